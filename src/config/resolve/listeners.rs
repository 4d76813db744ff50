//! Resolves the addresses and names of the listeners.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use url::Url;

use super::super::error::MistakeCollector;
use super::super::raw::{RawAdminToken, RawConfig};
use super::super::section::LocatedValue;
use super::{MIB, count_or, exposure, first_place, identity, is_at, is_loopback, not_zero, value_or};
use crate::server::api_keys::{ApiKeySettings, KeySource};
use crate::server::{AdminSettings, ListenSettings};
use crate::task::{OperatorRight, Principal};

pub(in crate::config) const LISTEN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
pub(in crate::config) const ADMIN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// As long as clients wait for a call by default: some libraries for 60 s, others for 300 s. A longer drain would wait for calls
/// that no client awaits.
const DRAIN_MAX: Duration = Duration::from_secs(300);

/// The listener with this default address.
#[must_use]
pub fn usual_listener_at(url: &Url) -> Option<&'static str> {
    let usual = [("listen", LISTEN_ADDRESS), ("admin", ADMIN_ADDRESS)];
    usual.into_iter().find(|(_, address)| is_at(url, *address)).map(|(name, _)| name)
}

pub(super) struct Listeners {
    pub(super) listen: ListenSettings,
    pub(super) admin: AdminSettings,
    pub(super) metrics: Option<SocketAddr>,
}

pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> Listeners {
    let listen = resolve_listen(raw, report);
    let tokens = raw.admin.tokens.iter().filter_map(resolve_token).collect();
    let admin = AdminSettings { address: value_or(raw.admin.address.as_ref(), ADMIN_ADDRESS), tokens };
    check_admin(raw, report);
    let metrics = raw.metrics_address.as_ref().map(|written| written.value);
    check_overlaps(
        &[
            ("listen.address", listen.address, raw.listen.address.as_ref()),
            ("admin.address", admin.address, raw.admin.address.as_ref()),
        ]
        .into_iter()
        .chain(metrics.map(|address| ("metrics.address", address, raw.metrics_address.as_ref())))
        .collect::<Vec<_>>(),
        report,
    );
    Listeners { listen, admin, metrics }
}

fn resolve_token(raw: &RawAdminToken) -> Option<ApiKeySettings> {
    let file = raw.file.as_ref()?;
    // The default is the lesser right.
    let principal = Principal::operator(value_or(raw.may.as_ref(), OperatorRight::Read));
    Some(ApiKeySettings { principal, source: KeySource::File(file.value.clone()), place: file.place.place() })
}

fn resolve_listen(raw: &RawConfig, report: &mut MistakeCollector) -> ListenSettings {
    let address = value_or(raw.listen.address.as_ref(), LISTEN_ADDRESS);
    exposure::check(raw, address, report);
    // The public URL's host is served, and its origin belongs to the gateway.
    let public = raw.listen.public_url.as_ref().map(|url| &url.value);
    let public_url = public.map(|url| url.origin().ascii_serialization());
    let public_host = public.and_then(|url| url.host_str()).map(str::to_owned);
    ListenSettings {
        address,
        tls: identity(&raw.listen.tls),
        plaintext: value_or(raw.listen.plaintext.as_ref(), false),
        allowed_hosts: raw.listen.allowed_hosts.iter().cloned().chain(public_host).collect(),
        allowed_origins: raw.listen.allowed_origins.iter().cloned().chain(public_url.clone()).collect(),
        public_url,
        trusted_proxies: raw.listen.trusted_proxies.clone(),
        body_bytes_max: not_zero(value_or(raw.limits.body_bytes_max.as_ref(), 4 * MIB)),
        connections_max: not_zero(count_or(raw.limits.connections_max.as_ref(), 10_000)),
        drain_max: value_or(raw.limits.drain_max.as_ref(), DRAIN_MAX),
    }
}

fn check_admin(raw: &RawConfig, report: &mut MistakeCollector) {
    let Some(written) = raw.admin.address.as_ref().filter(|written| !is_loopback(written.value)) else { return };
    if !raw.admin.tokens.is_empty() {
        report.warning(
            &written.place,
            "operators' tokens can be read by whoever is on the way: nothing is encrypted here; keep to a network that is \
             safe, or write a loopback address and let a proxy that speaks TLS reach it",
        );
    } else if !report.blames("admin.tokens") {
        report.mistake(
            &written.place,
            "other machines can reach this address, and nobody there is asked for a token; write [[admin.tokens]] with a \
             `file` below it, or a loopback address. Metrics and health alone have a listener of their own: [metrics]",
        );
    }
}

/// A listener: its key, its address, and the location of that in the file.
type ListenerAddress<'a> = (&'static str, SocketAddr, Option<&'a LocatedValue<SocketAddr>>);

fn check_overlaps(all: &[ListenerAddress<'_>], report: &mut MistakeCollector) {
    for (index, (key, address, written)) in all.iter().enumerate() {
        for (other_key, other, other_written) in all.iter().take(index) {
            let overlap = address.ip() == other.ip() || address.ip().is_unspecified() || other.ip().is_unspecified();
            let unknown = report.blames(key) || report.blames(other_key);
            // The defaults differ, so at least one of them was written.
            if !unknown
                && address.port() != 0
                && address.port() == other.port()
                && overlap
                && let Some(place) = first_place([*written, *other_written])
            {
                report.mistake(place, format!("`{other_key}` and `{key}` overlap; give them different ports"));
            }
        }
    }
}
