//! Converts a host's JSON into a configuration (`taskgate import`).
//!
//! Read `host_file` for the locations of servers, `server_block` for the conversion of one, `variables` for references and
//! secrets.

mod host_file;
mod notes;
mod references;
mod relaxed_json;
mod secrets;
mod server_block;
mod variables;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use super::printable::printable;
use super::tool_arguments::text_of;
use super::{USAGE, refuse, write_line};
use crate::config::{fallback_name, fitting_name};
use crate::console;
use notes::ImportNotes;
use variables::Variables;

/// The largest file that is read.
const BYTES_MAX: u64 = 4 << 20;
const MISTAKES_MAX: usize = 20;

#[derive(Debug, clap::Args)]
pub(super) struct ImportArguments {
    /// The JSON in which a host names its servers; comments may stand in it. `-` reads standard input.
    #[arg(value_name = "HOST.json")]
    file: PathBuf,
}

/// Prints the configuration, and notes the settings that it lacks.
///
/// # Errors
/// If standard output cannot be written.
pub(super) fn run(arguments: &ImportArguments) -> anyhow::Result<ExitCode> {
    let is_stdin = arguments.file.as_os_str() == "-";
    let name = if is_stdin { "standard input".to_owned() } else { arguments.file.display().to_string() };
    if is_stdin && io::stdin().is_terminal() {
        return Ok(refuse("- reads standard input, which is a terminal: pipe a host's JSON into it"));
    }
    let text = match is_stdin {
        true => text_of(io::stdin(), &name, BYTES_MAX),
        false => File::open(&arguments.file)
            .map_err(|error| format!("{name}: {error}"))
            .and_then(|file| text_of(file, &name, BYTES_MAX)),
    };
    let text = match text {
        Ok(text) => text,
        Err(why) => return Ok(refuse(why)),
    };
    match imported(&text) {
        Ok(imported) => {
            console::stdout().write_all(imported.toml.as_bytes()).context("cannot print the configuration")?;
            for note in imported.notes {
                write_line(format_args!("{name}: {}", printable(&note)));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(mistakes) => {
            for mistake in mistakes.iter().take(MISTAKES_MAX) {
                write_line(format_args!("{name}{}", printable(mistake)));
            }
            if mistakes.len() > MISTAKES_MAX {
                write_line(format_args!("{name}: there are {} more mistakes", mistakes.len() - MISTAKES_MAX));
            }
            Ok(ExitCode::from(USAGE))
        }
    }
}

struct Imported {
    toml: String,
    /// Settings that are imported in another form, or not at all.
    notes: Vec<String>,
}

/// The configuration for a host's file.
///
/// # Errors
/// Every mistake in it, each preceded by its JSON pointer.
fn imported(text: &str) -> Result<Imported, Vec<String>> {
    let json = relaxed_json::parse(text).map_err(|error| {
        let hint =
            if text.contains("\n[") || text.starts_with('[') { "; a host's file is JSON, and no TOML" } else { "" };
        vec![format!(":{}: {error}{hint}", error.line(text))]
    })?;
    let mut notes = ImportNotes::default();
    let file = host_file::read(&json, &mut notes);
    let mut variables = Variables::of(text);
    let (mut blocks, mut names, mut listeners) = (Vec::new(), Vec::new(), BTreeSet::new());
    for server in &file.servers {
        let name = free_name(&server.name, &names);
        if let Some(block) = server_block::of(server, &name, &mut variables, &mut notes) {
            if name != server.name {
                notes.note(&server.pointer, format_args!("is called `{name}` here, and served at /{name}/mcp"));
            }
            listeners.extend(block.listener.map(|listener| (listener, server.pointer.as_str())));
            blocks.push(block.text);
            names.push(name);
        }
    }
    for input in &file.inputs {
        if let Some(variable) = variables.of_host_value(&format!("input:{}", input.id)) {
            let what = input.description.as_ref().map(|what| format!(" ({what})")).unwrap_or_default();
            notes.note(
                &input.pointer,
                format_args!("the host asks its user for it{what}; here it is the variable {variable}"),
            );
        }
    }
    let is_empty = blocks.is_empty() && !file.servers.is_empty();
    let used: Vec<&str> = variables.used().collect();
    for (listener, pointer) in &listeners {
        let text = format_args!("has the port that [{listener}] has by default, so that takes a free one");
        notes.note(pointer, text);
        blocks.insert(0, format!("[{listener}]\naddress = \"127.0.0.1:0\"\n"));
    }
    if !used.is_empty() {
        blocks.insert(0, format!("# The environment of the gateway must hold {}.\n", used.join(", ")));
    }
    let mut said = notes.into_result().map_err(with_colons)?;
    if is_empty {
        said.push("/: no server is left".to_owned());
        return Err(with_colons(said));
    }
    if !used.is_empty() {
        said.push(format!("set where the gateway starts: {}", used.join(", ")));
    }
    Ok(Imported { toml: blocks.join("\n"), notes: said })
}

fn with_colons(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().map(|line| format!(": {line}")).collect()
}

/// A valid name that no other server has.
fn free_name(host_name: &str, taken: &[String]) -> String {
    let name = fitting_name(host_name).unwrap_or_else(fallback_name);
    let numbered = (2_usize..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or(name)
}
