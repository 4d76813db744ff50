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
            if let Some(place) = anonymous.place().filter(|_| anonymous.value) {
                report.mistake(place, "serves anybody, but `auth.mode` asks for keys; leave one of them out");
            }
            if let Some(place) = mode.place().filter(|_| raw.api_keys.is_empty() && !report.blames("auth.api_keys")) {
                report.mistake(place, "nobody has a key; write [[auth.api_keys]] with an `id` and a `key` below it");
            }
            AuthSettings::ApiKeys(keys)
        }
        AuthMode::None => {
            // A file with keys shows that its author expects them to be required.
            if let Some(key) = raw.api_keys.first().filter(|_| mode.place().is_some() || !report.blames("auth.mode")) {
                report.mistake(&key.place, "nobody is asked for a key; write `mode = \"api_keys\"` in [auth]");
            }
            AuthSettings::Everyone(if anonymous.value { Principal::anonymous() } else { Principal::local() })
        }
    }
}

fn resolve_key(raw: &RawApiKey, report: &mut MistakeCollector) -> Option<ApiKeySettings> {
    let values = &raw.values;
    let mut keys = ["id", "key", "key_file", "key_sha256"].into_iter();
    let blamed = keys.any(|key| report.blames_at(&raw.place.below(key)));
    if let Some(key) = values.key.as_ref().filter(|_| raw.is_inline) {
        let message = "the secret itself stands in this file; write key = \"${VAR}\", `key_file` or `key_sha256`";
        report.warning(&key.place, message);
    }
    let known = [&values.key, &values.key_sha256].into_iter().flatten();
    let mut sources: Vec<_> = known.map(|key| (KeySource::Known(key.value.clone()), &key.place)).collect();
    sources.extend(values.key_file.as_ref().map(|file| (KeySource::File(file.value.clone()), &file.place)));
    if sources.len() != 1 && !blamed {
        report.mistake(&raw.place, "needs one of `key`, `key_file` and `key_sha256`, and no more");
    }
    let (source, place) = sources.pop()?;
    let principal = Principal::holding(&values.id.as_ref()?.value);
    Some(ApiKeySettings { principal, source, place: place.place() })
}

/// Two keys with one ID cannot be distinguished. Keys in files are compared when they are read.
fn check_ids(raw: &RawConfig, report: &mut MistakeCollector) {
    let mut places = BTreeMap::new();
    for key in raw.api_keys.iter().flat_map(|raw| [&raw.values.key, &raw.values.key_sha256]).flatten() {
        if let Some(place) = places.insert(key.value.id(), &key.place) {
            let line = place.line_seen_from(&key.place, &report.file());
            report.mistake(&key.place, format!("the key in {line} has the same ID; give each key one of its own"));
        }
    }
}
