//! Generates API keys (`taskgate keys`).

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;

use super::refuse;
use crate::config::{check_principal_id, quoted};
use crate::console;
use crate::server::api_keys::ApiKey;

/// The operations on keys.
#[derive(Debug, clap::Subcommand)]
pub(super) enum KeysCommand {
    /// Makes a key, and prints it once, on stderr; the block for the configuration goes to stdout.
    New {
        /// The principal of the key, which owns tasks and has limits.
        id: String,
    },
}

pub(super) fn run(order: &KeysCommand) -> anyhow::Result<ExitCode> {
    let KeysCommand::New { id } = order;
    if let Err(why) = check_principal_id(id) {
        return Ok(refuse(format_args!("ID {why}")));
    }
    let (secret, key) = ApiKey::mint(id);
    // A key must be shown before its digest is put into a configuration.
    write!(
        console::stderr(),
        "The key of {id}, shown this once; clients send it as `Authorization: Bearer KEY`:\n{secret}\n"
    )
    .context("cannot print the key")?;
    let block = format!("[[auth.api_keys]]\nid = {}\nkey_sha256 = {}\n", quoted(id), quoted(&key.known_as()));
    console::stdout().write_all(block.as_bytes()).context("cannot print the block")?;
    Ok(ExitCode::SUCCESS)
}
