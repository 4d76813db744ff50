//! Resolves the authentication, and the limits of each key's principal. Limits are beside a key, else in `[limits]`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::keys::KeyField as _;
use super::super::raw::{AuthMode, RawApiKey, RawConfig, RawPrincipalLimits};
use super::super::section::LocatedValue;
use super::access::{by_principal, texts};
use super::{certificates, count, token_issuers, value_or};
use crate::server::api_keys::{ApiKeySettings, AuthSettings, KeySource};
use crate::task::{Caller, Claims, PermitShare, Principal, PrincipalLimitTable, PrincipalLimits};

type KeyLocations<'a> = BTreeMap<&'a str, &'a ConfigLocation>;

pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> AuthSettings {
    let (mode, anonymous) = (&raw.auth.mode, &raw.auth.anonymous);
    let (mut keys, mut locations) = (Vec::new(), KeyLocations::new());
    for key in &raw.api_keys {
        keys.extend(resolve_key(key, report));
        check_ids(key, &mut locations, report);
    }
    let asks = |kind| raw.auth.asks_for(kind);
    check_kinds(raw, report);
    let tokens = token_issuers::resolve(raw, report);
    let of_certificates = certificates::resolve(raw, report);
    if !asks(AuthMode::None)
        && let Some(location) = anonymous.location().filter(|_| anonymous.value)
    {
        report.mistake(location, "serves every client, but `auth.mode` requires credentials; leave one of them out");
    }
    if !asks(AuthMode::ApiKeys) {
        // A file with keys shows that its author expects them to be required.
        if let Some(key) =
            raw.api_keys.first().filter(|_| mode.location().is_some() || !report.has_mistake("auth.mode"))
        {
            let wanted = match (asks(AuthMode::Tokens), asks(AuthMode::Certificates)) {
                (true, true) => "[\"tokens\", \"api_keys\", \"certificates\"]",
                (true, false) => "[\"tokens\", \"api_keys\"]",
                (false, true) => "[\"certificates\", \"api_keys\"]",
                (false, false) => "\"api_keys\"",
            };
            report.mistake(&key.location, format!("no client is asked for a key; write `mode = {wanted}` in [auth]"));
        }
    } else if let Some(location) =
        mode.location().filter(|_| raw.api_keys.is_empty() && !report.has_mistake("auth.api_keys"))
    {
        report.mistake(location, "no key is declared; write [[auth.api_keys]] with an `id` and a `key` below it");
    }
    let others = match (asks(AuthMode::Tokens), asks(AuthMode::ApiKeys)) {
        (true, true) => Some(AuthSettings::Tokens(Arc::new(tokens), keys)),
        (true, false) => Some(AuthSettings::Tokens(Arc::new(tokens), Vec::new())),
        (false, true) => Some(AuthSettings::ApiKeys(keys)),
        (false, false) => None,
    };
    match (asks(AuthMode::Certificates), others) {
        (true, others) => AuthSettings::Certificates(of_certificates, others.map(Box::new)),
        (false, Some(others)) => others,
        (false, None) => {
            AuthSettings::Everyone(if anonymous.value { Principal::anonymous() } else { Principal::local() })
        }
    }
}

fn check_kinds(raw: &RawConfig, report: &mut MistakeCollector) {
    let kinds = &raw.auth.mode.value;
    let Some(location) = raw.auth.mode.location() else { return };
    if kinds.contains(&AuthMode::None) && kinds.len() > 1 {
        report.mistake(location, "has \"none\" beside kinds of credentials; leave \"none\" out");
    } else if kinds.iter().enumerate().any(|(index, kind)| kinds[..index].contains(kind)) {
        report.mistake(location, "names a kind of credentials twice; write each once");
    }
}

fn resolve_key(raw: &RawApiKey, report: &mut MistakeCollector) -> Option<ApiKeySettings> {
    let values = &raw.values;
    let mut keys = ["id", "key", "key_file", "key_sha256"].into_iter();
    let blamed = keys.any(|key| report.has_mistake_at(&raw.location.below(key)));
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
    let until = values.expires.as_ref().map(|expires| expires.value);
    let caller = Caller { claims: claims(raw), until, ..Caller::of(principal) };
    Some(ApiKeySettings { caller, source, place: location.key_place() })
}

fn claims(raw: &RawApiKey) -> Option<Arc<Claims>> {
    let claims = Claims {
        scopes: texts(raw.values.scopes.as_ref()),
        groups: texts(raw.values.groups.as_ref()),
        ..Claims::default()
    };
    (claims != Claims::default()).then(|| Arc::new(claims))
}

/// Two keys with one ID cannot be distinguished. Keys in files are compared when they are read.
fn check_ids<'a>(raw: &'a RawApiKey, locations: &mut KeyLocations<'a>, report: &mut MistakeCollector) {
    for key in [&raw.values.key, &raw.values.key_sha256].into_iter().flatten() {
        if let Some(location) = locations.insert(key.value.id(), &key.location) {
            let line = location.line_seen_from(&key.location, &report.file());
            report.mistake(&key.location, format!("the key in {line} has the same ID; give each key another one"));
        }
    }
}

pub(super) fn resolve_limits(raw: &RawConfig, report: &mut MistakeCollector) -> PrincipalLimitTable {
    let answer_bytes_max = raw.limits.answer_bytes_max.value;
    let default = PrincipalLimits { answer_bytes_max: answer_bytes_max / 2, ..PrincipalLimits::default() };
    let others = limits(&raw.principal_limits, &default);
    let mut own = by_principal(&raw.api_keys, "limits", |key, _| limits(&key.limits, &others), PartialEq::eq, report);
    own.retain(|_, its| *its != others);
    PrincipalLimitTable { answer_bytes_max, others, own }
}

fn limits(raw: &RawPrincipalLimits, others: &PrincipalLimits) -> PrincipalLimits {
    let rate = |raw: &Option<LocatedValue<u32>>, other| {
        raw.as_ref().and_then(|written| NonZeroU32::new(written.value)).unwrap_or(other)
    };
    let permits =
        raw.permits_percent_max.as_ref().and_then(|written| PermitShare::percent(u8::try_from(written.value).ok()?));
    PrincipalLimits {
        requests_per_second: rate(&raw.requests_per_second, others.requests_per_second),
        requests_burst: rate(&raw.requests_burst, others.requests_burst),
        polls_per_task: rate(&raw.polls_per_task, others.polls_per_task),
        tasks_max: raw.tasks_per_principal_max.as_ref().map_or(others.tasks_max, |max| count(max.value)),
        stored_bytes_max: value_or(raw.stored_bytes_per_principal_max.as_ref(), others.stored_bytes_max),
        answer_bytes_max: value_or(raw.answer_bytes_per_principal_max.as_ref(), others.answer_bytes_max),
        streams_max: raw.streams_per_principal_max.as_ref().map_or(others.streams_max, |max| count(max.value)),
        permits: permits.unwrap_or(others.permits),
    }
}
