//! Resolves the addresses and names of the listeners.

use std::net::SocketAddr;

use url::Url;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::keys::KeyField as _;
use super::super::raw::{RawAdmin, RawAdminToken, RawConfig, RawListen};
use super::{certificates, count, exposure, identity, is_at, is_loopback, not_zero};
use crate::server::api_keys::{ApiKeySettings, KeySource};
use crate::server::{AdminSettings, ListenSettings};
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
    exposure::check(raw, address, report);
    // The public URL's host is served, and its origin belongs to the gateway.
    let public = raw.listen.public_url.as_ref().map(|url| &url.value);
    let public_url = public.map(|url| url.origin().ascii_serialization());
    let public_host = public.and_then(|url| url.host_str()).map(str::to_owned);
    ListenSettings {
        address,
        tls: identity(raw.listen_tls.certificate.as_ref(), raw.listen_tls.key.as_ref()),
        client_certificates: certificates::files(raw, report),
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
