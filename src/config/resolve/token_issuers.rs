//! Resolves the issuers of access tokens, and checks the other keys that tokens need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use url::Url;

use super::super::error::MistakeCollector;
use super::super::keys::KeyField as _;
use super::super::raw::{AuthMode, RawClientTable, RawConfig, RawIntrospection, RawIssuer, RawIssuerValues};
use super::super::section::LocatedValue;
use super::super::value::SCOPE;
use super::issued_credentials::client;
use crate::server::tokens::settings::{
    IntrospectionSettings, IssuerSettings, KeyLocation, ProofPolicy, TokenSettings, normal_address, normal_type,
};

type Implied = BTreeMap<Arc<str>, BTreeSet<Arc<str>>>;

/// The settings of tokens; without effect unless `auth.mode` names them.
pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> TokenSettings {
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
        scopes: texts(&raw.auth.scopes.value),
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
        .map(|LocatedValue { value: (name, list), .. }| (Arc::from(name.as_str()), texts(list).into_iter().collect()))
        .collect();
    for one in &written.value {
        if (SCOPE.read)(&one.value.0).is_err() {
            report.mistake(&one.location, format!("is no scope; write {}", SCOPE.wanted));
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

fn texts(list: &[LocatedValue<String>]) -> Vec<Arc<str>> {
    list.iter().map(|one| Arc::from(one.value.as_str())).collect()
}
