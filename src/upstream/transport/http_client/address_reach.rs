//! Keeps requests to addresses that others name away from private networks.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, FutureExt as _};
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower::Service;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AddressReach {
    /// The operator wrote the address.
    #[default]
    Any,
    /// Another server named it: private networks are out of reach, however their names resolve.
    Public,
}

/// The system's resolver, without the addresses that are out of reach.
#[derive(Clone, Debug)]
pub(super) struct ReachedNames {
    system: GaiResolver,
    reach: AddressReach,
}

impl ReachedNames {
    pub(super) fn new(reach: AddressReach) -> Self {
        Self { system: GaiResolver::new(), reach }
    }
}

impl Service<Name> for ReachedNames {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolving, reach) = (self.system.call(name), self.reach);
        async move {
            let found = resolving.await?.filter(|address| reach == AddressReach::Any || is_public(address.ip()));
            let found: Vec<SocketAddr> = found.collect();
            match found.is_empty() {
                true => Err(io::Error::other("the name has no address, or only private ones")),
                false => Ok(found.into_iter()),
            }
        }
        .boxed()
    }
}

/// Whether an address is one of the public internet.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            let is_shared = first == 100 && (64..128).contains(&second);
            let is_kept = first == 0 || first >= 224 || (first == 192 && second == 0 && ip.octets()[2] == 0);
            !(ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_shared || is_kept)
        }
        IpAddr::V6(ip) => {
            let first = ip.segments()[0];
            // Unique local, link local, multicast; the last translates to addresses of version 4.
            let is_local = first & 0xfe00 == 0xfc00 || first & 0xff80 == 0xfe80 || first & 0xff00 == 0xff00;
            let is_translated = first == 0x64 || first == 0x2002;
            !(ip.is_loopback() || ip.is_unspecified() || is_local || is_translated)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_networks_are_told_from_the_internet() {
        for (address, expected) in [
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("172.31.0.1", false),
            ("192.168.0.1", false),
            ("169.254.169.254", false),
            ("100.64.0.1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("192.0.0.8", false),
            ("::1", false),
            ("::", false),
            ("::ffff:10.0.0.1", false),
            ("fd00::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("64:ff9b::a00:1", false),
            ("2002:a00:1::", false),
            ("8.8.8.8", true),
            ("172.32.0.1", true),
            ("100.128.0.1", true),
            ("2606:4700::1111", true),
            ("::ffff:8.8.8.8", true),
        ] {
            assert_eq!(is_public(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_alone_is_out_of_reach() {
        for (reach, expected) in [(AddressReach::Any, true), (AddressReach::Public, false)] {
            let found = ReachedNames::new(reach).call("localhost".parse().unwrap()).await;
            assert_eq!(found.is_ok(), expected, "{reach:?}");
        }
    }
}
