//! Resolves the addresses and names of the listeners.

use std::net::SocketAddr;

use url::Url;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::keys::KeyField as _;
use super::super::raw::{AuthMode, RawAdmin, RawAdminToken, RawConfig, RawListen, RawUpstream};
use super::{auth, count, identity, is_at, is_loopback, not_zero};
use crate::server::api_keys::{ApiKeySettings, KeySource};
use crate::server::forwarded::AddressRange;
use crate::server::{self, AdminSettings, ListenSettings, is_at_loopback};
use crate::task::{Caller, Principal};

pub(in crate::config) fn listen_address() -> SocketAddr {
    RawListen::default().address.value
}

pub(in crate::config) fn admin_address() -> SocketAddr {
    RawAdmin::default().address.value
}

/// The listener with this default address.
pub fn usual_listener_at(url: &Url) -> Option<&'static str> {
    let usual = [("listen", listen_address()), ("admin", admin_address())];
    usual.into_iter().find(|(_, address)| is_at(url, *address)).map(|(name, _)| name)
}

pub(super) struct Listeners {
    pub(super) listen: ListenSettings,
    pub(super) admin: AdminSettings,
    pub(super) metrics: Option<SocketAddr>,
}

pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> Listeners {
    let listen = resolve_listen(raw, report);
    let tokens = raw.admin_tokens.iter().filter_map(resolve_token).collect();
    let admin = AdminSettings { address: raw.admin.address.value, tokens };
    check_admin(raw, report);
    let metrics = raw.metrics.address.as_ref().map(|written| written.value);
    check_overlaps(
        &[
            ("listen.address", listen.address, raw.listen.address.location()),
            ("admin.address", admin.address, raw.admin.address.location()),
        ]
        .into_iter()
        .chain(metrics.map(|address| ("metrics.address", address, raw.metrics.address.location())))
        .collect::<Vec<_>>(),
        report,
    );
    Listeners { listen, admin, metrics }
}

fn resolve_token(raw: &RawAdminToken) -> Option<ApiKeySettings> {
    let file = raw.file.as_ref()?;
    let caller = Caller::of(Principal::operator(raw.may.value));
    Some(ApiKeySettings { caller, source: KeySource::File(file.value.clone()), place: file.location.key_place() })
}

fn resolve_listen(raw: &RawConfig, report: &mut MistakeCollector) -> ListenSettings {
    let address = raw.listen.address.value;
    check_exposure(raw, address, report);
    // The public URL's host is served, and its origin belongs to the gateway.
    let public = raw.listen.public_url.as_ref().map(|url| &url.value);
    let public_url = public.map(|url| url.origin().ascii_serialization());
    let public_host = public.and_then(|url| url.host_str()).map(str::to_owned);
    ListenSettings {
        address,
        tls: identity(raw.listen_tls.certificate.as_ref(), raw.listen_tls.key.as_ref()),
        client_certificates: auth::certificate_files(raw, report),
        plaintext: raw.listen.plaintext.value,
        allowed_hosts: raw.listen.allowed_hosts.value.iter().cloned().chain(public_host).collect(),
        allowed_origins: raw.listen.allowed_origins.value.iter().cloned().chain(public_url.clone()).collect(),
        public_url,
        trusted_proxies: raw.listen.trusted_proxies.value.clone(),
        body_bytes_max: not_zero(raw.limits.body_bytes_max.value),
        connections_max: not_zero(count(raw.limits.connections_max.value)),
        drain_max: raw.limits.drain_max.value,
    }
}

fn check_admin(raw: &RawConfig, report: &mut MistakeCollector) {
    let Some(location) = raw.admin.address.location().filter(|_| !is_loopback(raw.admin.address.value)) else { return };
    if !raw.admin_tokens.is_empty() {
        report.warning(
            location,
            "operators' tokens can be read on the network: this listener has no TLS; use a trusted network, or write a \
             loopback address with a TLS proxy in front",
        );
    } else if !report.has_mistake("admin.tokens") {
        report.mistake(
            location,
            "other machines can reach this address, and no token is required; write [[admin.tokens]] with a \
             `file` below it, or a loopback address. Metrics and health alone have a listener of their own: [metrics]",
        );
    }
}

/// A listener: its key, its address, and the location of that in the file.
type ListenerAddress<'a> = (&'static str, SocketAddr, Option<&'a ConfigLocation>);

fn check_overlaps(all: &[ListenerAddress<'_>], report: &mut MistakeCollector) {
    for (index, (key, address, written)) in all.iter().enumerate() {
        for (other_key, other, other_written) in all.iter().take(index) {
            let overlap = address.ip() == other.ip() || address.ip().is_unspecified() || other.ip().is_unspecified();
            let unknown = report.has_mistake(key) || report.has_mistake(other_key);
            // The defaults differ, so at least one of them was written.
            if !unknown
                && address.port() != 0
                && address.port() == other.port()
                && overlap
                && let Some(location) = written.or(*other_written)
            {
                report.mistake(location, format!("`{other_key}` and `{key}` overlap; give them different ports"));
            }
        }
    }
}

/// Checks the reach of the client listener against its authentication.
fn check_exposure(raw: &RawConfig, address: SocketAddr, report: &mut MistakeCollector) {
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
    let named = hosts.filter(|_| !raw.listen.allowed_hosts.value.iter().all(|name| server::is_loopback(name)));
    let public = public.filter(|url| !is_at_loopback(&url.value)).map(|url| &url.location);
    let proxies = raw.listen.trusted_proxies.location().filter(|_| !raw.listen.trusted_proxies.value.is_empty());
    let Some(location) = named.or(public).or(proxies) else { return };
    let (which, remedy) = match forwarding {
        0 => ("", "write in [auth] `anonymous = true` if that is intended, or `mode = \"api_keys\"`"),
        _ => (
            " at the upstreams without `forward_authorization`",
            "write `mode = \"api_keys\"` in [auth], or serve these upstreams from a separate gateway",
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
