//! Resolves the authentication: one mode, and each key written in one way.

use std::collections::BTreeMap;

use super::super::error::MistakeCollector;
use super::super::keys::KeyField as _;
use super::super::raw::{AuthMode, RawApiKey, RawConfig};
use crate::server::api_keys::{ApiKeySettings, AuthSettings, KeySource};
use crate::task::Principal;

pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> AuthSettings {
    let (mode, anonymous) = (&raw.auth.mode, &raw.auth.anonymous);
    let keys: Vec<_> = raw.api_keys.iter().filter_map(|key| resolve_key(key, report)).collect();
    check_ids(raw, report);
    match mode.value {
        AuthMode::ApiKeys => {
            if let Some(location) = anonymous.location().filter(|_| anonymous.value) {
                report.mistake(location, "serves every client, but `auth.mode` requires keys; leave one of them out");
            }
            if let Some(location) =
                mode.location().filter(|_| raw.api_keys.is_empty() && !report.blames("auth.api_keys"))
            {
                report
                    .mistake(location, "no key is declared; write [[auth.api_keys]] with an `id` and a `key` below it");
            }
            AuthSettings::ApiKeys(keys)
        }
        AuthMode::None => {
            // A file with keys shows that its author expects them to be required.
            if let Some(key) = raw.api_keys.first().filter(|_| mode.location().is_some() || !report.blames("auth.mode"))
            {
                report.mistake(&key.location, "no client is asked for a key; write `mode = \"api_keys\"` in [auth]");
            }
            AuthSettings::Everyone(if anonymous.value { Principal::anonymous() } else { Principal::local() })
        }
    }
}

fn resolve_key(raw: &RawApiKey, report: &mut MistakeCollector) -> Option<ApiKeySettings> {
    let values = &raw.values;
    let mut keys = ["id", "key", "key_file", "key_sha256"].into_iter();
    let blamed = keys.any(|key| report.blames_at(&raw.location.below(key)));
    if let Some(key) = values.key.as_ref().filter(|_| raw.is_inline) {
        let message = "the secret itself is in this file; write key = \"${VAR}\", `key_file` or `key_sha256`";
        report.warning(&key.location, message);
    }
    let known = [&values.key, &values.key_sha256].into_iter().flatten();
    let mut sources: Vec<_> = known.map(|key| (KeySource::Known(key.value.clone()), &key.location)).collect();
    sources.extend(values.key_file.as_ref().map(|file| (KeySource::File(file.value.clone()), &file.location)));
    if sources.len() != 1 && !blamed {
        report.mistake(&raw.location, "needs one of `key`, `key_file` and `key_sha256`, and no more");
    }
    let (source, location) = sources.pop()?;
    let principal = Principal::holding(&values.id.as_ref()?.value);
    Some(ApiKeySettings { principal, source, place: location.key_place() })
}

/// Two keys with one ID cannot be distinguished. Keys in files are compared when they are read.
fn check_ids(raw: &RawConfig, report: &mut MistakeCollector) {
    let mut locations = BTreeMap::new();
    for key in raw.api_keys.iter().flat_map(|raw| [&raw.values.key, &raw.values.key_sha256]).flatten() {
        if let Some(location) = locations.insert(key.value.id(), &key.location) {
            let line = location.line_seen_from(&key.location, &report.file());
            report.mistake(&key.location, format!("the key in {line} has the same ID; give each key another one"));
        }
    }
}
