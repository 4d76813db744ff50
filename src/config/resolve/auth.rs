//! Resolves the authentication: keys, issuers of tokens, and the limits of each key's principal. Limits are beside a
//! key, else in `[limits]`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::keys::KeyField as _;
use super::super::raw::{
    AuthMode, RawApiKey, RawCertificate, RawClientTable, RawConfig, RawIntrospection, RawIssuer, RawIssuerValues,
    RawPrincipalLimits,
};
use super::super::section::LocatedValue;
use super::super::value::SCOPE;
use super::access::{by_principal, texts};
use super::issued_credentials::client;
use super::{count, value_or};
use crate::server::api_keys::{ApiKeySettings, AuthSettings, KeySource};
use crate::server::client_certificates::CertificateBlock;
use crate::server::tokens::settings::{
    IntrospectionSettings, IssuerSettings, KeyLocation, ProofPolicy, TokenSettings, normal_address, normal_type,
};
use crate::task::{Caller, Claims, NamePattern, PermitShare, Principal, PrincipalLimitTable, PrincipalLimits};
use crate::tls::{CertificateNeed, ClientCertificateFiles};

const MAX_STALE_MIN: Duration = Duration::from_secs(10);

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
    let tokens = resolve_tokens(raw, report);
    let of_certificates = resolve_certificates(raw, report);
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
    } else if let Some(location) = mode.location()
        && raw.api_keys.is_empty()
        && !["auth", "auth.api_keys", "auth.api_key_files"].iter().any(|list| report.has_mistake_in(list))
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

type Implied = BTreeMap<Arc<str>, BTreeSet<Arc<str>>>;

/// The settings of tokens; without effect unless `auth.mode` names them.
fn resolve_tokens(raw: &RawConfig, report: &mut MistakeCollector) -> TokenSettings {
    let is_asked = raw.auth.asks_for(AuthMode::Tokens);
    let has_scopes = !raw.auth.scopes.value.is_empty();
    let mut issuers: Vec<Arc<IssuerSettings>> = Vec::new();
    let mut locations = BTreeMap::new();
    for one in &raw.issuers {
        let Some(settings) = resolve_issuer(one, report) else { continue };
        if let Some(location) = locations.insert(Arc::clone(&settings.issuer), &one.location) {
            let message = format!("line {} has the same issuer; write each once", location.line);
            report.mistake(&one.location, message);
        }
        issuers.push(Arc::new(settings));
    }
    check_introspection(raw, report);
    if is_asked {
        check_needs(raw, report);
    } else if let Some(issuer) = raw.issuers.first().filter(|_| !report.has_mistake("auth.mode")) {
        report.mistake(&issuer.location, "no client is asked for a token; write `mode = \"tokens\"` in [auth]");
    } else if let Some(location) = raw.auth.scopes.location().filter(|_| has_scopes && !report.has_mistake("auth.mode"))
    {
        report.mistake(location, "needs tokens, which have scopes; write `mode = \"tokens\"` in [auth]");
    } else if let Some(location) =
        raw.auth.dpop.location().filter(|_| raw.auth.dpop.value != ProofPolicy::Off && !report.has_mistake("auth.mode"))
    {
        report.mistake(location, "needs tokens, which are bound to keys; write `mode = \"tokens\"` in [auth]");
    }
    let public_url = raw.listen.public_url.as_ref().map(|url| url.value.origin().ascii_serialization());
    TokenSettings {
        public_url: Arc::from(public_url.unwrap_or_default()),
        scopes: raw.auth.scopes.value.iter().map(|one| Arc::from(one.value.as_str())).collect(),
        proofs: raw.auth.dpop.value,
        issuers,
    }
}

fn check_needs(raw: &RawConfig, report: &mut MistakeCollector) {
    let Some(location) = raw.auth.mode.location() else { return };
    if raw.issuers.is_empty() && !report.has_mistake("auth.issuers") {
        report.mistake(location, "no issuer is declared; write [[auth.issuers]] with an `issuer` below it");
    }
    if raw.listen.public_url.is_none() && !report.has_mistake("listen.public_url") {
        let message = "tokens are for the address that clients use; write it in [listen] as `public_url`";
        report.mistake(location, message);
    }
    for upstream in &raw.upstreams {
        let forward = &upstream.url.forward_authorization;
        if let Some(location) = forward.location().filter(|_| forward.value) {
            let message = "sends clients' tokens to the server, but they are for this gateway (`auth.mode`); leave it out, \
                           or serve this upstream from a gateway of its own";
            report.mistake(location, message);
        }
    }
}

fn resolve_issuer(raw: &RawIssuer, report: &mut MistakeCollector) -> Option<IssuerSettings> {
    let values = &raw.values;
    let implies = resolve_implied(values, report);
    let written = values.issuer.as_ref()?;
    let keys = match (&values.jwks_file, &values.jwks_url) {
        (Some(file), Some(_)) => {
            report.mistake(&file.location, "has `jwks_url` beside it; write one of them, or none");
            return None;
        }
        (Some(file), None) => KeyLocation::File(file.value.clone()),
        (None, Some(url)) => KeyLocation::Url(url.value.clone()),
        (None, None) => KeyLocation::Discovered(Url::parse(&written.value).ok()?),
    };
    if let Some(location) = values.max_stale.location().filter(|_| values.max_stale.value < MAX_STALE_MIN) {
        report.mistake(location, "is shorter than the minimum, 10s: the keys are fetched after half of it");
    }
    let introspection = raw.introspection.as_ref().map(|asked| introspection(asked, report));
    let set =
        |list: &[LocatedValue<String>], form: fn(&str) -> String| list.iter().map(|one| form(&one.value)).collect();
    Some(IssuerSettings {
        issuer: Arc::from(written.value.as_str()),
        keys,
        algorithms: values.algorithms.value.iter().map(|one| one.value).collect(),
        audiences: values.audiences.as_ref().map(|list| set(&list.value, normal_address)).unwrap_or_default(),
        token_types: set(&values.token_types.value, normal_type),
        groups: values.groups.as_ref().map(|claim| Arc::from(claim.value.as_str())),
        owner_claim: values.owner_claim.as_ref().map(|claim| Arc::from(claim.value.as_str())),
        implies,
        max_stale: values.max_stale.value,
        introspection: introspection.flatten(),
    })
}

fn introspection(
    table: &RawClientTable<RawIntrospection>,
    report: &mut MistakeCollector,
) -> Option<IntrospectionSettings> {
    let client = client(table, table.others.url.as_ref(), report)?;
    Some(IntrospectionSettings { client, tokens: table.others.tokens.value })
}

/// An opaque token names no issuer, so that one alone can be asked about it.
fn check_introspection(raw: &RawConfig, report: &mut MistakeCollector) {
    let asked = raw.issuers.iter().filter_map(|issuer| issuer.introspection.as_ref());
    let mut opaque = asked.filter(|asked| asked.others.tokens.value.has_opaque());
    if let (Some(first), Some(second)) = (opaque.next(), opaque.next()) {
        let message = format!(
            "line {} has opaque tokens, too, and they name no issuer; write `tokens = \"signed\"` at one of them",
            first.location.line
        );
        report.mistake(&second.location, message);
    }
}

/// All scopes that a scope includes, directly or by another one.
fn resolve_implied(raw: &RawIssuerValues, report: &mut MistakeCollector) -> Implied {
    let Some(written) = &raw.implies else { return Implied::new() };
    let direct: Implied = written
        .value
        .iter()
        .map(|LocatedValue { value: (name, list), .. }| {
            (Arc::from(name.as_str()), list.iter().map(|one| Arc::from(one.value.as_str())).collect())
        })
        .collect();
    for one in &written.value {
        if (SCOPE.read)(&one.value.0).is_err() {
            report.mistake(&one.location, format!("is not a scope; write {}", SCOPE.wanted));
        }
    }
    let mut all = Implied::new();
    for (index, name) in direct.keys().enumerate() {
        let (mut found, mut next) = (BTreeSet::new(), vec![Arc::clone(name)]);
        while let Some(scope) = next.pop() {
            for implied in direct.get(&scope).into_iter().flatten() {
                if found.insert(Arc::clone(implied)) {
                    next.push(Arc::clone(implied));
                }
            }
        }
        // Reported once, for the first scope of a cycle.
        if found.contains(name) && direct.keys().take(index).all(|earlier| !found.contains(earlier)) {
            let location = written.value.iter().find(|one| *one.value.0 == **name).map(|one| &one.location);
            let location = location.unwrap_or(&written.location);
            report.mistake(location, "includes itself; a scope includes smaller ones only");
        }
        all.insert(Arc::clone(name), found);
    }
    all
}

/// The most blocks: each new certificate is compared with all.
const BLOCKS_MAX: usize = 1_000;

pub(super) fn certificate_files(raw: &RawConfig, report: &mut MistakeCollector) -> Option<ClientCertificateFiles> {
    let tls = &raw.listen_tls;
    let Some(ca) = &tls.client_ca else {
        if !report.has_mistake("listen.tls.client_ca") {
            let crl = tls.client_crl.as_ref().map(|crl| &crl.location);
            for location in [crl, tls.client_certificates.location()].into_iter().flatten() {
                report.mistake(location, "has no effect without `client_ca`; write one beside it");
            }
        }
        return None;
    };
    let is_read = [AuthMode::Certificates, AuthMode::Tokens].into_iter().any(|mode| raw.auth.asks_for(mode));
    let is_required = tls.client_certificates.value == CertificateNeed::Required;
    if !is_read
        && !is_required
        && !report.has_mistake("auth.mode")
        && !report.has_mistake("listen.tls.client_certificates")
    {
        let message = "no client needs a certificate; write `mode = \"certificates\"` in [auth], or \
                       `client_certificates = \"required\"` here";
        report.mistake(&ca.location, message);
    }
    Some(ClientCertificateFiles {
        ca: ca.value.clone(),
        crl: tls.client_crl.as_ref().map(|crl| crl.value.clone()),
        need: tls.client_certificates.value,
    })
}

/// The blocks of `[[auth.certificates]]`; without effect unless `auth.mode` names certificates.
fn resolve_certificates(raw: &RawConfig, report: &mut MistakeCollector) -> Vec<CertificateBlock> {
    if !raw.auth.asks_for(AuthMode::Certificates) {
        if let Some(block) = raw.certificates.first().filter(|_| !report.has_mistake("auth.mode")) {
            report.mistake(
                &block.location,
                "no client is asked for a certificate; write `mode = \"certificates\"` in [auth]",
            );
        }
    } else if let Some(location) = raw.auth.mode.location() {
        check_certificate_needs(raw, location, report);
    }
    if let Some(late) = raw.certificates.get(BLOCKS_MAX) {
        report.mistake(&late.location, format!("there are more than {BLOCKS_MAX} blocks; write a * in `san`"));
        return Vec::new();
    }
    let mut all: Vec<CertificateBlock> = Vec::new();
    for block in &raw.certificates {
        let Some(resolved) = resolve_block(block, raw, report) else { continue };
        if all.iter().any(|other| other.san == resolved.san) {
            report.mistake(&block.location, "another block has the same `san`; write each once");
        }
        all.push(resolved);
    }
    all
}

fn check_certificate_needs(raw: &RawConfig, location: &ConfigLocation, report: &mut MistakeCollector) {
    if raw.listen_tls.client_ca.is_none()
        && !["listen.tls", "listen.tls.client_ca"].into_iter().any(|key| report.has_mistake(key))
    {
        let message = "no authority verifies certificates; write `client_ca` in [listen.tls]";
        report.mistake(location, message);
    }
    if raw.certificates.is_empty() && !report.has_mistake_in("auth.certificates") {
        let message = "no certificate is declared; write [[auth.certificates]] with a `san` below it";
        report.mistake(location, message);
    }
}

fn resolve_block(block: &RawCertificate, raw: &RawConfig, report: &mut MistakeCollector) -> Option<CertificateBlock> {
    let values = &block.values;
    let same_as = values.same_as.as_ref();
    let san = values.san.as_ref()?;
    if let Some(same_as) = same_as {
        check_same(same_as, san.value.has_star(), raw, report);
    }
    let claims =
        Claims { scopes: texts(values.scopes.as_ref()), groups: texts(values.groups.as_ref()), ..Claims::default() };
    Some(CertificateBlock {
        san: san.value.clone(),
        same_as: same_as.and_then(|same_as| NamePattern::parse(&same_as.value)),
        claims: Arc::new(claims),
    })
}

fn check_same(same_as: &LocatedValue<String>, has_star: bool, raw: &RawConfig, report: &mut MistakeCollector) {
    let is_star = same_as.value.contains('*');
    let key = Principal::new(&same_as.value);
    let mut ids = raw.api_keys.iter().filter_map(|one| one.values.id.as_ref());
    if is_star && !has_star {
        report.mistake(&same_as.location, "has a *, and `san` beside it has none; write the whole principal");
    } else if let Some(id) = key.key_id().filter(|_| !is_star)
        && !ids.any(|one| one.value == id)
    {
        report.mistake(&same_as.location, format!("there is no key with the id of {:?}", same_as.value));
    }
}
