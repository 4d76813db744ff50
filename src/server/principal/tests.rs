//! The sender of a request, by its credentials and headers.

use super::*;
use crate::server::ListenerLimits;
use crate::server::api_keys::{ApiKey, ApiKeys};
use crate::server::head::HeadGuard;

fn who(guard: &PrincipalGuard, request: &Request<()>, forwards: bool) -> Result<Principal, Refusal> {
    let limits = ListenerLimits { head_bytes_max: usize::MAX, ..ListenerLimits::default() };
    let rare = HeadGuard::new(limits).check(request)?;
    let asked = AskedPath { endpoint: None, forwards, wait: LookupWait::Over, certificate: None, rare };
    guard.identify(request, asked).map(|identity| match identity {
        Identity::Known(known) => known.caller.principal,
        Identity::NeedsLookup(_) => panic!("no token was sent"),
    })
}

/// B73.
#[test]
fn the_configuration_decides_the_principal_and_no_header_does() {
    for everyone in [Principal::local(), Principal::anonymous()] {
        let request = Request::builder()
            .header("x-forwarded-for", "192.0.2.1")
            .header("authorization", "Bearer x")
            .body(())
            .unwrap();
        let guard = PrincipalGuard::new(Authenticator::Everyone(everyone.clone()));
        assert_eq!(who(&guard, &request, true), Ok(everyone));
    }
}

/// Plain nginx with only a `proxy_pass` shows by nothing else.
#[test]
fn a_request_of_http_1_0_came_through_a_proxy() {
    let guard = PrincipalGuard::new(Authenticator::OnePerson(person(&[])));
    for (version, expected) in [(Version::HTTP_10, "anon"), (Version::HTTP_11, "local"), (Version::HTTP_2, "local")] {
        let request = Request::builder().version(version).header("host", "127.0.0.1:8080").body(()).unwrap();
        assert_eq!(who(&guard, &request, false).unwrap().as_str(), expected, "{version:?}");
    }
}

fn person(allowed: &[String]) -> LocalUser {
    LocalUser { is_shared: allowed.iter().any(|name| !is_loopback(name)), is_logged: Arc::default() }
}

/// The principal of a request on loopback: headers, allowed hosts, whether the path forwards credentials.
#[test]
fn one_person_is_alone_only_while_nothing_says_otherwise() {
    let (local, anonymous, ada) = ("local", "anon", Principal::bearing(b"Bearer ada"));
    let check = |allowed: &[&str], forwards: bool, headers: &[(&str, &str)], expected: &str| {
        let allowed: Vec<_> = allowed.iter().map(|&name| name.to_owned()).collect();
        let guard = PrincipalGuard::new(Authenticator::OnePerson(person(&allowed)));
        let request = headers.iter().fold(Request::builder(), |built, (name, value)| built.header(*name, *value));
        let found = who(&guard, &request.body(()).unwrap(), forwards);
        assert_eq!(found.unwrap().as_str(), expected, "{allowed:?} {forwards} {headers:?}");
    };
    for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.0.0.2", "[::1]:9", "a.localhost"] {
        check(&[], false, &[("host", host)], local);
        check(&["localhost", "[::1]"], false, &[("host", host)], local);
        check(&["mcp.example", "localhost"], false, &[("host", host)], anonymous);
    }
    for host in ["mcp.example", "10.0.0.7:80", "localhost.example", "[2001:db8::1]", ""] {
        check(&[], false, &[("host", host)], anonymous);
    }
    for proxied in ["forwarded", "x-forwarded-for", "X-Forwarded-Proto", "x-real-ip", "via"] {
        check(&[], false, &[("host", "localhost"), (proxied, "127.0.0.1")], anonymous);
    }
    check(&[], false, &[("host", "localhost"), ("authorization", "Bearer ada")], local);
    for (allowed, host) in [(&[] as &[&str], "localhost"), (&["mcp.example"], "mcp.example")] {
        check(allowed, true, &[("host", host), ("authorization", "Bearer ada")], ada.as_str());
        check(allowed, true, &[("host", host), ("x-real-ip", "::1"), ("authorization", "Bearer ada")], ada.as_str());
        check(allowed, true, &[("host", host)], anonymous);
    }
    let absolute = Request::builder().uri("http://mcp.example/mcp").header("host", "localhost").body(()).unwrap();
    let guard = PrincipalGuard::new(Authenticator::OnePerson(person(&[])));
    assert_eq!(who(&guard, &absolute, false), Ok(Principal::anonymous()));
    let twice = Request::builder().header("authorization", "a").header("authorization", "b").body(()).unwrap();
    assert_eq!(who(&guard, &twice, true), Err(Refusal::CredentialsAmbiguous));
}

const KEY: &str = "tg_a1_0123456789abcdef0123456789abcdef";

#[track_caller]
fn check(ring: &ApiKeyRing, fields: &[&str], expected: &Result<Principal, Refusal>) {
    let mut request = Request::new(());
    for field in fields {
        request.headers_mut().append(AUTHORIZATION, field.parse().unwrap());
    }
    let guard = PrincipalGuard::new(Authenticator::KeyHolders(ring.clone()));
    assert_eq!(who(&guard, &request, true), *expected, "{fields:?}");
}

#[test]
fn b150_one_bearer_token_is_looked_at_and_nothing_else() {
    let ada = Principal::new("key:ada");
    let mut keys = ApiKeys::default();
    keys.add(ApiKey::read(KEY).unwrap(), &Caller::of(ada.clone())).unwrap();
    let ring = ApiKeyRing::new(keys);
    for scheme in ["Bearer ", "bearer ", "BEARER   "] {
        check(&ring, &[&format!("{scheme}{KEY}")], &Ok(ada.clone()));
    }
    let basic = format!("Basic {KEY}");
    for fields in [vec![], vec!["Bearer"], vec!["Bearer x"], vec![KEY], vec![basic.as_str()]] {
        check(&ring, &fields, &Err(Refusal::Unauthorized));
    }
    let good = format!("Bearer {KEY}");
    check(&ring, &[&good, &good], &Err(Refusal::CredentialsAmbiguous));
    check(&ApiKeyRing::new(ApiKeys::default()), &[&good], &Err(Refusal::Unauthorized));
}

/// The gateway's own header and `Authorization`; the principal, and the forwarded part of the latter.
#[test]
fn a_key_in_the_gateways_own_header_alone_decides_and_no_key_goes_on() {
    let ada = Principal::new("key:ada");
    let mut keys = ApiKeys::default();
    keys.add(ApiKey::read(KEY).unwrap(), &Caller::of(ada.clone())).unwrap();
    let guard = PrincipalGuard::new(Authenticator::KeyHolders(ApiKeyRing::new(keys)));
    let (bearer, long) = (format!("Bearer {KEY}"), "x".repeat(20_000));
    let (yes, unclear, no) = (Ok(ada), Err(Refusal::CredentialsAmbiguous), Err(Refusal::Unauthorized));
    let other = "Bearer tg_b1_0123456789abcdef0123456789abcdef";
    for (own, authorization, expected, goes_on) in [
        (vec![KEY.as_bytes()], vec![], &yes, None),
        (vec![], vec![bearer.as_str()], &yes, None),
        (vec![KEY.as_bytes()], vec!["Bearer theirs"], &yes, Some("Bearer theirs")),
        (vec![KEY.as_bytes()], vec!["Basic x"], &yes, Some("Basic x")),
        (vec![KEY.as_bytes()], vec![&bearer], &yes, None),
        (vec![KEY.as_bytes()], vec![other], &yes, None),
        (vec![KEY.as_bytes()], vec!["tg_slip"], &yes, None),
        (vec![b"tg_a1_0123456789abcdef0123456789abcdee"], vec![&bearer], &no, None),
        (vec![b""], vec![&bearer], &no, None),
        (vec![bearer.as_bytes()], vec![], &no, None),
        (vec![b"tg_a1_\xff"], vec![&bearer], &no, None),
        (vec![long.as_bytes()], vec![&bearer], &no, None),
        (vec![KEY.as_bytes(), KEY.as_bytes()], vec![], &unclear, None),
        (vec![KEY.as_bytes()], vec!["Bearer a", "Bearer b"], &unclear, None),
    ] {
        let mut request = Request::new(());
        for value in &own {
            request.headers_mut().append(KEY_HEADER, HeaderValue::from_bytes(value).unwrap());
        }
        for value in &authorization {
            request.headers_mut().append(AUTHORIZATION, value.parse().unwrap());
        }
        assert_eq!(who(&guard, &request, true), *expected, "{own:?} {authorization:?}");
        if expected.is_ok() {
            guard.withhold_keys(request.headers_mut(), TokenUse::Identity);
            let left = request.headers().get(AUTHORIZATION).map(|value| value.to_str().unwrap());
            assert_eq!((left, request.headers().contains_key(KEY_HEADER)), (goes_on, false), "{authorization:?}");
        }
    }
}
