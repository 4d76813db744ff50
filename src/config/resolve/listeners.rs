//! Decides where each listener listens, and by which names it is known.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::super::error::MistakeCollector;
use super::super::raw::RawConfig;
use super::{MIB, count_or, exposure, first_place, identity, is_loopback, not_zero, value_or};
use crate::server::{AdminSettings, ListenSettings};

const LISTEN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ADMIN_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> (ListenSettings, AdminSettings) {
    let listen = resolve_listen(raw, report);
    let admin = AdminSettings { address: value_or(raw.admin_address.as_ref(), ADMIN_ADDRESS) };
    check_addresses(raw, &listen, admin, report);
    (listen, admin)
}

fn resolve_listen(raw: &RawConfig, report: &mut MistakeCollector) -> ListenSettings {
    let address = value_or(raw.listen.address.as_ref(), LISTEN_ADDRESS);
    exposure::check(raw, address, report);
    // What clients know the gateway by is one more name that is served, and its pages are the gateway's own.
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
        body_bytes_max: not_zero(value_or(raw.limits.body_bytes_max.as_ref(), 4 * MIB)),
        connections_max: not_zero(count_or(raw.limits.connections_max.as_ref(), 10_000)),
        drain_max: value_or(raw.limits.drain_max.as_ref(), Duration::from_secs(30)),
    }
}

fn check_addresses(raw: &RawConfig, listen: &ListenSettings, admin: AdminSettings, report: &mut MistakeCollector) {
    if let Some(written) = &raw.admin_address
        && !is_loopback(admin.address)
    {
        report.mistake(
            &written.place,
            "other machines can reach this address, and the admin listener has no authentication yet; \
             write a loopback address",
        );
    }
    let (a, b) = (listen.address, admin.address);
    let overlap = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    let unknown = report.blames("listen.address") || report.blames("admin.address");
    // The two defaults differ, so at least one of them was written.
    if !unknown
        && a.port() != 0
        && a.port() == b.port()
        && overlap
        && let Some(place) = first_place([raw.admin_address.as_ref(), raw.listen.address.as_ref()])
    {
        report.mistake(place, "`listen.address` and `admin.address` overlap; give them different ports");
    }
}
