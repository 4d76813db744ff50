//! Declares the keys of the gateway as a client of an authorization server: for introspection, and for issued credentials.

use std::path::PathBuf;

use super::super::error::ConfigLocation;
use super::super::keys::{KeyTable as _, keys};
use super::super::section::Section;
use super::super::value::{CLIENT_ID, CLIENT_SECRET, KEY_FILE, WordList};
use crate::upstream::token_client::SecretCarriage;

const SECRET_CARRIAGES: WordList<SecretCarriage> =
    &[("basic", Some(SecretCarriage::Basic)), ("post", Some(SecretCarriage::Post))];

keys! {
    /// The keys that every table of a client has.
    struct RawTokenClient {
        /// The gateway's name at the authorization server.
        reload client_id: String = require(&CLIENT_ID);
        /// The gateway's password there, written as `"${VAR}"`.
        reload client_secret: String = read(&CLIENT_SECRET);
        /// A file with the password and nothing else. A changed password is used without a reload.
        reload client_secret_file: PathBuf = read(&KEY_FILE);
        /// `"post"`: the password is sent in the form (`client_secret_post`), where the server takes no HTTP Basic.
        reload client_auth: SecretCarriage = word(SECRET_CARRIAGES), default "basic";
    }
}

/// A table with the keys of a client, and with others.
#[derive(Debug)]
pub(in crate::config) struct RawClientTable<T> {
    pub(in crate::config) location: ConfigLocation,
    pub(in crate::config) client: RawTokenClient,
    /// Whether the password is in the file itself and not in the environment.
    pub(in crate::config) is_inline: bool,
    pub(in crate::config) others: T,
}

/// Reads a table even if it is absent, so that its keys are known.
pub(super) fn read_client<T>(
    mut section: Section<'_, '_>,
    others: impl FnOnce(&mut Section<'_, '_>) -> T,
) -> Option<RawClientTable<T>> {
    let (location, is_inline) = (section.written_location(), !section.has_variable("client_secret"));
    let (client, others) = (RawTokenClient::read(&mut section), others(&mut section));
    section.close();
    location.map(|location| RawClientTable { location, client, is_inline, others })
}
