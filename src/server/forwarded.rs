//! Reads `Forwarded` headers of trusted proxies: client address, host and TLS. No header establishes an identity (B73).
//! An address limits the request rate of anonymous clients, and appears in logs.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};
use url::Url;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// An address, or all addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    /// The length of the prefix in bits.
    length: u8,
}

/// Whether a host name, without port, always means this machine.
pub(crate) fn is_loopback(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let is_local = |name: &str| name == "localhost" || name.ends_with(".localhost");
    is_local(name)
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
        || is_local(&name.to_ascii_lowercase())
}

pub(crate) fn is_at_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(is_loopback)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressRangeError {
    /// The text is neither an address nor an address with a slash and a number.
    Form,
    /// The prefix is longer than the address.
    Length,
    /// The address has bits set after the prefix.
    NotFirst,
}

impl AddressRange {
    /// Parses `192.0.2.7`, `10.0.0.0/8`, `2001:db8::/32`.
    pub fn parse(text: &str) -> Result<Self, AddressRangeError> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let first: IpAddr = address.parse().map_err(|_| AddressRangeError::Form)?;
        let most: u8 = if first.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => most,
            Some(digits) if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err(AddressRangeError::Form);
            }
            Some(digits) => digits.parse().ok().filter(|length| *length <= most).ok_or(AddressRangeError::Length)?,
        };
        let range = Self { first, length };
        if range.rest(bits(first)) != 0 { Err(AddressRangeError::NotFirst) } else { Ok(range) }
    }

    /// Whether it covers every IPv4 or every IPv6 address.
    pub const fn is_everything(&self) -> bool {
        self.length == 0
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && bits(self.first) == bits(address) - self.rest(bits(address))
    }

    /// The bits of an address after the prefix.
    fn rest(&self, bits: u128) -> u128 {
        let most: u32 = if self.first.is_ipv4() { 32 } else { 128 };
        let free = most - u32::from(self.length);
        bits & 1_u128.checked_shl(free).map_or(u128::MAX, |above| above - 1)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The network by which a client is counted: an IPv4 address, or the /64 in which an IPv6 client may choose any address.
pub(super) fn network(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct TrustedProxies(Arc<[AddressRange]>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForwardedRequest {
    /// The client's address as trusted proxies report it; otherwise the last known proxy's, or the peer's.
    pub(super) client: IpAddr,
    /// The host that the client requested, if a proxy reports it.
    pub(super) host: Option<String>,
    /// Whether a proxy reports that the client used TLS.
    pub(super) is_https: bool,
}

impl TrustedProxies {
    pub(super) fn new(all: &[AddressRange]) -> Self {
        Self(all.into())
    }

    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }

    /// Reads headers of a trusted `peer`, from the nearest hop on, as long as a trusted proxy named the hop.
    pub(super) fn read(&self, peer: IpAddr, headers: &HeaderMap) -> ForwardedRequest {
        let mut found = ForwardedRequest { client: peer, host: None, is_https: false };
        if !self.trusts(peer) {
            return found;
        }
        // A proxy sets one of the two headers, and may forward the other one as its client sent it.
        if headers.contains_key(FORWARDED) && headers.contains_key(FOR) {
            return found;
        }
        if headers.contains_key(FORWARDED) {
            let hops: Vec<ForwardedHop<'_>> = elements(headers, &FORWARDED).map(ForwardedHop::read).collect();
            for hop in hops.iter().rev() {
                found.host = hop.host.map(str::to_owned).or(found.host);
                found.is_https |= hop.proto.is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
                match hop.from.and_then(node) {
                    Some(address) => found.client = address,
                    None => break,
                }
                if !self.trusts(found.client) {
                    break;
                }
            }
            return found;
        }
        let hops: Vec<&str> = elements(headers, &FOR).collect();
        for hop in hops.iter().rev() {
            let Some(address) = node(hop) else { break };
            found.client = address;
            if !self.trusts(address) {
                break;
            }
        }
        found.host = elements(headers, &HOST).last().map(str::to_owned);
        found.is_https = elements(headers, &PROTO).last().is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
        found
    }
}

/// The elements of a list in one or several fields. Commas in quotes do not separate.
fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let fields = headers.get_all(name).iter().filter_map(|field| field.to_str().ok());
    fields.flat_map(|field| outside_quotes(field, ',')).map(str::trim).filter(|element| !element.is_empty())
}

fn outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    text.split(move |character| {
        is_quoted ^= character == '"';
        character == separator && !is_quoted
    })
}

/// A proxy's element in `Forwarded` (RFC 7239, 4).
#[derive(Default)]
struct ForwardedHop<'a> {
    from: Option<&'a str>,
    host: Option<&'a str>,
    proto: Option<&'a str>,
}

impl<'a> ForwardedHop<'a> {
    fn read(element: &'a str) -> Self {
        let mut hop = Self::default();
        for (name, value) in outside_quotes(element, ';').filter_map(|pair| pair.split_once('=')) {
            let value = value.trim();
            let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
            let place = match name.trim().to_ascii_lowercase().as_str() {
                "for" => &mut hop.from,
                "host" => &mut hop.host,
                "proto" => &mut hop.proto,
                _ => continue,
            };
            *place = Some(value);
        }
        hop
    }
}

/// The address of a node, with or without port; `None` for `unknown`, an obfuscated name or an invalid text.
fn node(text: &str) -> Option<IpAddr> {
    let bare = text.trim_matches('"');
    let in_brackets = || bare.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || bare.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address: IpAddr = bare.parse().ok().or_else(with_port).or_else(in_brackets)?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_an_address_or_a_network_by_its_first_address() {
        use AddressRangeError::{Form, Length, NotFirst};
        for (text, expected) in [
            ("192.0.2.7", Ok((true, false))),
            ("192.0.2.7/32", Ok((true, false))),
            ("192.0.2.0/24", Ok((true, true))),
            ("0.0.0.0/0", Ok((true, true))),
            ("10.0.0.0/8", Ok((false, false))),
            ("2001:db8::/32", Ok((false, false))),
            ("::/0", Ok((false, false))),
            ("proxy.example", Err(Form)),
            ("192.0.2", Err(Form)),
            ("192.0.2.0/", Err(Form)),
            ("192.0.2.0/+8", Err(Form)),
            ("192.0.2.0/x", Err(Form)),
            ("192.0.2.7:80", Err(Form)),
            ("", Err(Form)),
            ("192.0.2.0/33", Err(Length)),
            ("2001:db8::/129", Err(Length)),
            ("192.0.2.0/999", Err(Length)),
            ("192.0.2.7/24", Err(NotFirst)),
            ("2001:db8::1/64", Err(NotFirst)),
        ] {
            let near: [IpAddr; 2] = ["192.0.2.7".parse().unwrap(), "192.0.2.200".parse().unwrap()];
            let found = AddressRange::parse(text).map(|range| (range.contains(near[0]), range.contains(near[1])));
            assert_eq!(found, expected, "{text:?}");
        }
        let range = AddressRange::parse("2001:db8::/32").unwrap();
        assert!(range.contains("2001:db8:1::9".parse().unwrap()) && !range.contains("2001:db9::".parse().unwrap()));
    }

    /// The bad rows: how a request with these headers is read. Trusted are 10.0.0.0/8 and ::1.
    #[test]
    fn b73_only_trusted_proxies_say_whose_a_request_is() {
        let proxies = ["10.0.0.0/8", "::1"].map(|text| AddressRange::parse(text).unwrap());
        let proxies = TrustedProxies::new(&proxies);
        let many = vec!["10.1.1.1"; 100].join(", ");
        let check = |peer: &str, fields: &[(&'static str, &str)], client: &str, host: Option<&str>, is_https: bool| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, value.parse().unwrap());
            }
            let expected =
                ForwardedRequest { client: client.parse().unwrap(), host: host.map(str::to_owned), is_https };
            assert_eq!(proxies.read(peer.parse().unwrap(), &headers), expected, "{peer} {fields:?}");
        };
        let stranger = "203.0.113.9";
        // An untrusted peer is the client.
        check(stranger, &[("forwarded", "for=192.0.2.1;host=a;proto=https")], stranger, None, false);
        check(stranger, &[("x-forwarded-for", "192.0.2.1"), ("x-forwarded-host", "a")], stranger, None, false);
        // The nearest untrusted hop is the client; the hops that it reports are ignored.
        check("10.0.0.1", &[("x-forwarded-for", "192.0.2.1")], "192.0.2.1", None, false);
        check("10.0.0.1", &[("x-forwarded-for", "127.0.0.1, 192.0.2.1")], "192.0.2.1", None, false);
        check("10.0.0.1", &[("x-forwarded-for", "6.6.6.6, 192.0.2.1, 10.0.0.2")], "192.0.2.1", None, false);
        check(
            "10.0.0.1",
            &[("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "192.0.2.1")],
            "192.0.2.1",
            None,
            false,
        );
        check("::1", &[("x-forwarded-for", "2001:db8::7")], "2001:db8::7", None, false);
        check("::1", &[("x-forwarded-for", "::ffff:192.0.2.1")], "192.0.2.1", None, false);
        check("::1", &[("x-forwarded-for", "[2001:db8::7]:4711")], "2001:db8::7", None, false);
        check("::1", &[("x-forwarded-for", "192.0.2.1:4711")], "192.0.2.1", None, false);
        // An unreadable hop leaves the last readable one.
        for rubbish in ["", "unknown", "_hidden", "a, b, c", "192.0.2.1.5", "\"", ",,,", "x".repeat(8000).as_str()] {
            check("10.0.0.1", &[("x-forwarded-for", rubbish)], "10.0.0.1", None, false);
        }
        check("10.0.0.1", &[("x-forwarded-for", "192.0.2.1, unknown")], "10.0.0.1", None, false);
        check("10.0.0.1", &[("x-forwarded-for", "unknown, 10.9.9.9")], "10.9.9.9", None, false);
        check("10.0.0.1", &[("x-forwarded-for", many.as_str())], "10.1.1.1", None, false);
        check("10.0.0.1", &[("x-forwarded-for", &format!("192.0.2.1, {many}"))], "192.0.2.1", None, false);
        check(
            "10.0.0.1",
            &[("x-forwarded-for", "192.0.2.1"), ("x-forwarded-host", "mcp.example"), ("x-forwarded-proto", "HTTPS")],
            "192.0.2.1",
            Some("mcp.example"),
            true,
        );
        // RFC 7239.
        for (field, client, host, is_https) in [
            ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60", None, false),
            ("For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17", None, false),
            (
                "for=192.0.2.43, for=10.0.0.9;host=\"mcp.example:443\";proto=https",
                "192.0.2.43",
                Some("mcp.example:443"),
                true,
            ),
            ("for=6.6.6.6;host=evil, for=192.0.2.43;host=mcp.example", "192.0.2.43", Some("mcp.example"), false),
            ("for=unknown;host=mcp.example", "10.0.0.1", Some("mcp.example"), false),
            ("for=_SEVKISEK", "10.0.0.1", None, false),
            ("for=\"1,2;3\", for=192.0.2.43", "192.0.2.43", None, false),
            ("for", "10.0.0.1", None, false),
            (";;;=,=;\"", "10.0.0.1", None, false),
        ] {
            check("10.0.0.1", &[("forwarded", field)], client, host, is_https);
            let both = [("forwarded", field), ("x-forwarded-for", "6.6.6.6"), ("x-forwarded-host", "mcp.example")];
            check("10.0.0.1", &both, "10.0.0.1", None, false);
        }
    }
}
