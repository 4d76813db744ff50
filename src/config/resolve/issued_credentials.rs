//! Resolves the credentials that are issued for upstreams, and checks the other tables that they need.

use url::Url;

use super::super::error::MistakeCollector;
use super::super::keys::KeyField as _;
use super::super::raw::{RawClientTable, RawExchangeGrant, RawIssuedCredential, RawTokenTarget, RawUpstream};
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
    let is_blamed = keys.any(|key| report.has_mistake_at(&issued.location.below(key)));
    let mut sources = sources.into_iter().flatten();
    match (sources.next(), sources.next()) {
        (Some(_), None) => (),
        (Some(_), Some(second)) => report.mistake(second, "is a second source of the credential; write one of them"),
        (None, _) if is_blamed => (),
        (None, _) => report.mistake(&issued.location, "needs one of `client_credentials`, `exchange` and `command`"),
    }
    let redeemed = issued.id_jag.as_ref().map(|table| {
        check_id_jag(issued, table, report);
        request(table, &table.others, report)
    });
    if let Some(table) = &issued.client_credentials {
        return Some(IssuedCredentialSettings::ClientCredentials(request(table, &table.others, report)?));
    }
    if let Some(table) = &issued.exchange {
        check_exchange(table, tokens, report);
        let RawExchangeGrant { target, exchange: exchanged } = &table.others;
        let mut request = request(table, target, report)?;
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

fn check_exchange(table: &RawClientTable<RawExchangeGrant>, tokens: ClientTokens, report: &mut MistakeCollector) {
    if tokens == ClientTokens::Never && !report.has_mistake("auth.mode") {
        let message =
            "exchanges clients' access tokens, but no client is asked for one; write `mode = \"tokens\"` in [auth]";
        report.mistake(&table.location, message);
    }
    if table.others.target.resource.is_none() && !report.has_mistake_at(&table.location.below("resource")) {
        let message = "needs a `resource`: the server that the new token is for, mostly its `url`";
        report.mistake(&table.location, message);
    }
}

/// An identity assertion comes from the exchange, for the authorization server that redeems it.
fn check_id_jag<T>(issued: &RawIssuedCredential, table: &RawClientTable<T>, report: &mut MistakeCollector) {
    match &issued.exchange {
        None if report.has_mistake_at(&issued.location.below("exchange")) => (),
        None => report.mistake(
            &table.location,
            "redeems the identity assertion of an `exchange`, and there is none beside it; write one",
        ),
        Some(exchange) => {
            let is_blamed = report.has_mistake_at(&exchange.location.below("audience"));
            if exchange.others.exchange.audience.is_none() && !is_blamed {
                let message = "needs an `audience`: the issuer of the authorization server in `id_jag`";
                report.mistake(&exchange.location, message);
            }
        }
    }
}

fn request<T>(
    table: &RawClientTable<T>,
    target: &RawTokenTarget,
    report: &mut MistakeCollector,
) -> Option<TokenRequestSettings> {
    let client = client(table, target.token_url.as_ref(), report)?;
    let text = |written: &Option<LocatedValue<String>>| written.as_ref().map(|written| written.value.clone());
    let target = TokenTarget { resource: text(&target.resource), audience: None, scope: text(&target.scope) };
    Some(TokenRequestSettings { client, target })
}

/// The client that asks at `url`. Its password is in exactly one of two keys.
pub(super) fn client<T>(
    table: &RawClientTable<T>,
    url: Option<&LocatedValue<Url>>,
    report: &mut MistakeCollector,
) -> Option<TokenClientSettings> {
    let keys = &table.client;
    if let Some(known) = keys.client_secret.as_ref().filter(|_| table.is_inline) {
        let message = "the secret itself is in this file; write it as \"${VAR}\", or name a `client_secret_file`";
        report.warning(&known.location, message);
    }
    let secret = match (&keys.client_secret, &keys.client_secret_file) {
        (Some(known), None) => ClientSecret::Known(known.value.clone()),
        (None, Some(file)) => ClientSecret::File(file.value.clone()),
        (both, _) => {
            let mut names = ["client_secret", "client_secret_file"].into_iter();
            if both.is_some() || !names.any(|key| report.has_mistake_at(&table.location.below(key))) {
                report.mistake(&table.location, "needs either `client_secret` or `client_secret_file`");
            }
            return None;
        }
    };
    let (url, id) = (url?.value.clone(), keys.client_id.as_ref()?.value.clone());
    Some(TokenClientSettings { url, id, secret, sends: keys.client_auth.value })
}
