//! Resolves the headers for an upstream: one credential, and forwarded headers of clients.

use http::header::AUTHORIZATION;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::keys::KeyField as _;
use super::super::raw::{RawCredential, RawUpstream};
use crate::face::client_login::ResourceName;
use crate::server::is_at_loopback;
use crate::upstream::ForwardingRules;
use crate::upstream::transport::credential::{Credential, CredentialSource};

pub(super) fn credential(raw: &RawUpstream, report: &mut MistakeCollector) -> Option<Credential> {
    let auth = raw.auth.as_ref()?;
    let values = &auth.values;
    let table = &auth.location.key;
    let keys = ["authorization", "header", "value", "value_file"];
    let has_mistake = keys.iter().any(|key| report.has_mistake(&format!("{table}.{key}")));
    warn_of_secret_in_file(auth, report);
    warn_of_clear_text(raw, &auth.location, report);
    let known = |value: &http::HeaderValue| CredentialSource::Known(value.clone());
    let found = match (&values.authorization, &values.header, &values.value, &values.value_file) {
        (Some(value), None, None, None) => Some((AUTHORIZATION, known(&value.value))),
        (None, Some(header), Some(value), None) => Some((header.value.clone(), known(&value.value))),
        (None, Some(header), None, Some(file)) => {
            Some((header.value.clone(), CredentialSource::File(file.value.clone())))
        }
        _ => None,
    };
    if found.is_none() && !has_mistake {
        let message = "needs `authorization` alone, or `header` with either `value` or `value_file`";
        report.mistake(&auth.location, message);
    }
    let (header, source) = found?;
    if let Some(location) = values.header.location()
        && raw.url.forward_headers.value.contains(&header)
    {
        report.mistake(
            location,
            "is in `forward_headers`, too: the credential would replace the clients' value; leave it out there",
        );
    }
    Some(Credential { header, source })
}

fn warn_of_secret_in_file(auth: &RawCredential, report: &mut MistakeCollector) {
    let written = [&auth.values.authorization, &auth.values.value].into_iter().flatten().next();
    if let Some(written) = written.filter(|_| auth.is_inline) {
        let message = "the secret itself is in this file; write it as \"${VAR}\", or name a `value_file`";
        report.warning(&written.location, message);
    }
}

fn warn_of_clear_text(raw: &RawUpstream, location: &ConfigLocation, report: &mut MistakeCollector) {
    let Some(url) = raw.own.url.as_ref().map(|url| &url.value).filter(|url| url.scheme() == "http") else { return };
    if !is_at_loopback(url) {
        report.warning(location, "can be read on the network: the `url` begins with http://");
    }
}

pub(super) fn forwarding(raw: &RawUpstream, report: &mut MistakeCollector) -> ForwardingRules {
    let forwards = &raw.url.forward_authorization;
    let has_own = raw.auth.as_ref().map(|auth| &auth.values).is_some_and(|auth| {
        auth.authorization.is_some() || auth.header.as_ref().is_some_and(|header| header.value == AUTHORIZATION)
    });
    if let Some(location) = forwards.location().filter(|_| forwards.value) {
        warn_of_clear_text(raw, location, report);
        if has_own {
            report.mistake(location, "the table `auth` fills the same header; leave one of them out");
        }
    }
    let resource = &raw.own.oauth_resource;
    if let Some(location) = resource.location().filter(|_| resource.value != ResourceName::default() && !forwards.value)
    {
        let message = "has no effect without `forward_authorization = true`: only then clients log in at the server";
        report.mistake(location, message);
    }
    ForwardingRules::new(raw.url.forward_headers.value.clone(), forwards.value)
}
