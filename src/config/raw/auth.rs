//! Lists the keys of `[auth]` and of further files of keys.

use std::path::PathBuf;

use super::super::error::ConfigLocation;
use super::super::section::{LocatedValue, Section};
use super::super::value::{API_KEY, API_KEY_DIGEST, KEY_FILE, KEYS_FILE, PATTERN, PRINCIPAL_ID, UPSTREAM_NAME};
use super::RawPrincipalLimits;
use crate::server::api_keys::ApiKey;

#[derive(Debug, Default)]
pub(in crate::config) struct RawAuth {
    pub(in crate::config) mode: Option<LocatedValue<AuthMode>>,
    pub(in crate::config) anonymous: Option<LocatedValue<bool>>,
    /// Further files of keys, relative to the folder of the file that names them.
    pub(in crate::config) api_key_files: Vec<LocatedValue<PathBuf>>,
    /// The keys of the further files follow, once these are read.
    pub(in crate::config) api_keys: Vec<RawApiKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum AuthMode {
    None,
    ApiKeys,
}

/// One key. The resolver checks that it is written in exactly one way.
#[derive(Debug)]
pub(in crate::config) struct RawApiKey {
    pub(in crate::config) place: ConfigLocation,
    pub(in crate::config) id: Option<LocatedValue<String>>,
    pub(in crate::config) key: Option<LocatedValue<ApiKey>>,
    /// Whether `key` is in the file itself and not in the environment.
    pub(in crate::config) is_inline: bool,
    pub(in crate::config) key_file: Option<LocatedValue<PathBuf>>,
    pub(in crate::config) key_sha256: Option<LocatedValue<ApiKey>>,
    /// The limits of its holder, if they differ from the common ones.
    pub(in crate::config) limits: RawPrincipalLimits,
    pub(in crate::config) access: RawAccess,
}

/// The upstreams and tools of a key's holder, if restricted.
#[derive(Debug, Default)]
pub(in crate::config) struct RawAccess {
    pub(in crate::config) upstreams: Option<LocatedValue<Vec<LocatedValue<String>>>>,
    /// Patterns of tool names, as clients see them.
    pub(in crate::config) tools: Option<LocatedValue<Vec<LocatedValue<String>>>>,
}

pub(super) fn read(mut section: Section<'_, '_>) -> RawAuth {
    let modes = [("none", Some(AuthMode::None)), ("api_keys", Some(AuthMode::ApiKeys)), ("jwt", None), ("mtls", None)];
    let auth = RawAuth {
        mode: section.word("mode", &modes),
        anonymous: section.flag("anonymous"),
        api_key_files: section.read_each("api_key_files", &KEYS_FILE),
        api_keys: section.each("api_keys", read_api_key),
    };
    section.close();
    auth
}

/// Reads the root table of a file of keys.
pub(in crate::config) fn read_keys(mut root: Section<'_, '_>) -> Vec<RawApiKey> {
    let mut section = root.section("auth");
    let keys = section.each("api_keys", read_api_key);
    section.close();
    root.close();
    keys
}

fn read_api_key(mut section: Section<'_, '_>) -> RawApiKey {
    let mut key = RawApiKey {
        place: section.place(),
        id: section.require("id", &PRINCIPAL_ID),
        is_inline: !section.has_variable("key"),
        key: section.read("key", &API_KEY),
        key_file: section.read("key_file", &KEY_FILE),
        key_sha256: section.read("key_sha256", &API_KEY_DIGEST),
        limits: RawPrincipalLimits::default(),
        access: RawAccess {
            upstreams: section.read_some("upstreams", &UPSTREAM_NAME),
            tools: section.read_some("tools", &PATTERN),
        },
    };
    let mut own = section.section("limits");
    key.limits = RawPrincipalLimits::read(&mut own);
    own.close();
    section.close();
    key
}
