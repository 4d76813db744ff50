//! Checks the reach of the client listener against its authentication.

use std::net::SocketAddr;

use super::super::error::MistakeCollector;
use super::super::keys::KeyField as _;
use super::super::raw::{AuthMode, RawConfig, RawUpstream};
use super::is_loopback;
use crate::server::forwarded::AddressRange;
use crate::server::is_loopback as names_loopback;

pub(super) fn check(raw: &RawConfig, address: SocketAddr, report: &mut MistakeCollector) {
    if let Some(location) = raw.listen.trusted_proxies.location()
        && raw.listen.trusted_proxies.value.iter().any(AddressRange::is_everything)
    {
        report.warning(
            location,
            "trusts every peer: any client can then claim another address; name the addresses of the proxies",
        );
    }
    // An unreadable setting may have any value.
    if ["auth", "auth.mode", "auth.anonymous"].into_iter().any(|key| report.has_mistake(key)) {
        return;
    }
    let has_keys = !raw.auth.asks_for(AuthMode::None);
    let is_anonymous = raw.auth.anonymous.value;
    if let Some(location) = raw.auth.anonymous.location().filter(|_| is_anonymous && raw.upstreams.iter().any(forwards))
    {
        // Another address is refused without it.
        let remedy = if is_loopback(address) { "" } else { "write a loopback address, with a proxy in front, and " };
        report.warning(
            location,
            format!(
                "serves all clients as one, also at an upstream with `forward_authorization`: a client that knows a task's \
                 id reads the task of another login; {remedy}leave it out, and each login has its own tasks there"
            ),
        );
    }
    if is_loopback(address) {
        if !has_keys && !is_anonymous {
            warn_of_many(raw, report);
        }
        return;
    }
    let Some(address_location) = raw.listen.address.location() else { return };
    let has_tls = raw.listen_tls.certificate.is_some() || report.has_mistake("listen.tls");
    if has_keys {
        if !has_tls && !raw.listen.plaintext.value && !report.has_mistake("listen.plaintext") {
            report.mistake(
                address_location,
                "other machines can reach this address, and their keys would not be encrypted; write [listen.tls], or \
                 `plaintext = true` in [listen] if a proxy in front of it speaks TLS",
            );
        }
    } else if !is_anonymous {
        report.mistake(
            address_location,
            "other machines can reach this address while `auth.mode` is \"none\"; write a loopback address, \
             or in [auth] `mode = \"api_keys\"` to serve holders of keys, or `anonymous = true` to serve every client",
        );
    } else if let Some(location) = raw.auth.anonymous.location()
        && raw.listen.allowed_hosts.location().is_none()
        && raw.listen.public_url.is_none()
        && !has_tls
    {
        report.warning(
            location,
            "serves every client, but only by loopback names and the address of the connection: another Host is \
             refused; write the address that clients use as `listen.public_url`, or names into `listen.allowed_hosts`",
        );
    }
}

/// Whether a client's credential for the server identifies the client at this upstream.
fn forwards(upstream: &RawUpstream) -> bool {
    upstream.url.forward_authorization.value
}

/// Only a warning: the clients may all be one person's.
fn warn_of_many(raw: &RawConfig, report: &mut MistakeCollector) {
    let forwarding = raw.upstreams.iter().filter(|upstream| forwards(upstream)).count();
    if forwarding > 0 && forwarding == raw.upstreams.len() {
        return;
    }
    let hosts = raw.listen.allowed_hosts.location();
    let public = raw.listen.public_url.as_ref();
    let named = hosts.filter(|_| !raw.listen.allowed_hosts.value.iter().all(|name| names_loopback(name)));
    let public = public.filter(|url| !url.value.host_str().is_some_and(names_loopback)).map(|url| &url.location);
    let proxies = raw.listen.trusted_proxies.location().filter(|_| !raw.listen.trusted_proxies.value.is_empty());
    let Some(location) = named.or(public).or(proxies) else { return };
    let (which, remedy) = match forwarding {
        0 => ("", "write in [auth] `anonymous = true` if that is intended, or `mode = \"api_keys\"`"),
        _ => (
            " at the upstreams without `forward_authorization`",
            "write `mode = \"api_keys\"` in [auth], or serve these upstreams from a gateway of their own",
        ),
    };
    report.warning(
        location,
        format!(
            "lets clients of other users in, and no credentials are required: every client is served as anonymous{which}, \
             without a list of tasks, and every client that knows a task's id can read it for an hour at most; {remedy}"
        ),
    );
}
