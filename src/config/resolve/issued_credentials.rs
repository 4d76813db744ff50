//! Resolves the credentials that are issued for upstreams, and what they need elsewhere.

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::keys::KeyField as _;
use super::super::raw::{RawIssuedCredential, RawTokenGrant, RawUpstream};
use super::super::section::LocatedValue;
use crate::upstream::issued_credential::{
    ExchangeSettings, IssuedCredentialSettings, TokenRequestSettings, TokenTarget,
};
use crate::upstream::subject_token::SubjectTokens;
use crate::upstream::token_client::{ClientSecret, TokenClientSettings};

/// Whether clients come with access tokens, which can be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientTokens {
    Asked,
    Never,
}

pub(super) fn resolve(
    raw: &RawUpstream,
    tokens: ClientTokens,
    report: &mut MistakeCollector,
) -> Option<IssuedCredentialSettings> {
    let issued = raw.issued.as_ref()?;
    check_alone(raw, issued, report);
    let sources = [
        issued.command.command.as_ref().map(|command| &command.location),
        issued.client_credentials.as_ref().map(|grant| &grant.location),
        issued.exchange.as_ref().map(|grant| &grant.location),
    ];
    let mut keys = ["command", "client_credentials", "exchange"].into_iter();
    let is_blamed = keys.any(|key| report.blames_at(&issued.location.below(key)));
    let mut sources = sources.into_iter().flatten();
    match (sources.next(), sources.next()) {
        (Some(_), None) => (),
        (Some(_), Some(second)) => report.mistake(second, "is a second source of the credential; write one of them"),
        (None, _) if is_blamed => (),
        (None, _) => report.mistake(&issued.location, "needs one of `client_credentials`, `exchange` and `command`"),
    }
    let redeemed = issued.id_jag.as_ref().map(|grant| {
        check_id_jag(issued, grant, report);
        request(grant, report)
    });
    if let Some(grant) = &issued.client_credentials {
        return Some(IssuedCredentialSettings::ClientCredentials(request(grant, report)?));
    }
    if let Some(grant) = &issued.exchange {
        check_exchange(grant, tokens, report);
        let (mut request, exchanged) = (request(grant, report)?, &issued.exchanged);
        request.target.audience = exchanged.audience.as_ref().map(|written| written.value.clone());
        return Some(IssuedCredentialSettings::Exchange(Box::new(ExchangeSettings {
            request,
            subject_type: exchanged.subject_token_type.value,
            takes_bound_tokens: exchanged.bound_tokens.value,
            subjects: SubjectTokens::default(),
            redeemed: match redeemed {
                Some(redeemed) => Some(redeemed?),
                None => None,
            },
        })));
    }
    let command = issued.command.command.as_ref()?;
    if command.value.first().is_none_or(String::is_empty) {
        report.mistake(&command.location, "names no program");
    }
    Some(IssuedCredentialSettings::Command(command.value.clone()))
}

/// Another source of the same header would win or lose silently.
fn check_alone(raw: &RawUpstream, issued: &RawIssuedCredential, report: &mut MistakeCollector) {
    let forwards = &raw.url.forward_authorization;
    if let Some(location) = forwards.location().filter(|_| forwards.value) {
        report.mistake(location, "the table `credential` fills the same header; leave one of them out");
    }
    let auth = raw.auth.as_ref().filter(|auth| {
        let header = auth.values.header.as_ref();
        auth.values.authorization.is_some() || header.is_some_and(|header| header.value == http::header::AUTHORIZATION)
    });
    if auth.is_some() {
        report.mistake(&issued.location, "the table `auth` fills the same header; leave one of them out");
    }
}

fn check_exchange(grant: &RawTokenGrant, tokens: ClientTokens, report: &mut MistakeCollector) {
    if tokens == ClientTokens::Never && !report.blames("auth.mode") {
        let message =
            "exchanges clients' access tokens, but no client is asked for one; write `mode = \"tokens\"` in [auth]";
        report.mistake(&grant.location, message);
    }
    if grant.client.resource.is_none() && !report.blames_at(&grant.location.below("resource")) {
        let message = "needs a `resource`: the server that the new token is for, mostly its `url`";
        report.mistake(&grant.location, message);
    }
}

/// An identity assertion comes from the exchange, for the authorization server that redeems it.
fn check_id_jag(issued: &RawIssuedCredential, grant: &RawTokenGrant, report: &mut MistakeCollector) {
    match &issued.exchange {
        None if report.blames_at(&issued.location.below("exchange")) => (),
        None => report.mistake(&grant.location, "redeems what `exchange` is given, which is missing"),
        Some(exchange) => {
            let is_blamed = report.blames_at(&exchange.location.below("audience"));
            if issued.exchanged.audience.is_none() && !is_blamed {
                let message = "needs an `audience`: the issuer of the authorization server in `id_jag`";
                report.mistake(&exchange.location, message);
            }
        }
    }
}

fn request(grant: &RawTokenGrant, report: &mut MistakeCollector) -> Option<TokenRequestSettings> {
    let target = target(grant);
    client(grant, report).map(|client| TokenRequestSettings { client, target })
}

fn client(grant: &RawTokenGrant, report: &mut MistakeCollector) -> Option<TokenClientSettings> {
    let values = &grant.client;
    let secret = secret(
        &grant.location,
        (values.client_secret.as_ref(), values.client_secret_file.as_ref()),
        grant.is_inline,
        report,
    );
    let (url, id) = (values.token_url.as_ref()?.value.clone(), values.client_id.as_ref()?.value.clone());
    Some(TokenClientSettings { url, id, secret: secret?, sends: values.client_auth.value })
}

/// The gateway's password at an authorization server, from exactly one of its two keys.
pub(super) fn secret(
    table: &ConfigLocation,
    (known, file): (Option<&LocatedValue<String>>, Option<&LocatedValue<std::path::PathBuf>>),
    is_inline: bool,
    report: &mut MistakeCollector,
) -> Option<ClientSecret> {
    if let Some(known) = known.filter(|_| is_inline) {
        let message = "the secret itself is in this file; write it as \"${VAR}\", or name a `client_secret_file`";
        report.warning(&known.location, message);
    }
    match (known, file) {
        (Some(known), None) => Some(ClientSecret::Known(known.value.clone())),
        (None, Some(file)) => Some(ClientSecret::File(file.value.clone())),
        (both, _) => {
            let mut keys = ["client_secret", "client_secret_file"].into_iter();
            if both.is_some() || !keys.any(|key| report.blames_at(&table.below(key))) {
                report.mistake(table, "needs either `client_secret` or `client_secret_file`");
            }
            None
        }
    }
}

fn target(grant: &RawTokenGrant) -> TokenTarget {
    let text = |written: &Option<LocatedValue<String>>| written.as_ref().map(|written| written.value.clone());
    TokenTarget { resource: text(&grant.client.resource), audience: None, scope: text(&grant.client.scope) }
}
