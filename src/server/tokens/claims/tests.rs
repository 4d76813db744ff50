//! Hostile tokens, one fault each, and the reason of each refusal; key sets, likewise.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::json;
use support::issuer::{IssuerKey, base64url, key_set, with};

use super::*;
use crate::server::tokens::key_source::keys_in;
use crate::server::tokens::keys::{KEY_SET_BYTES_MAX, KeySetError};
use crate::server::tokens::settings::{KeyLocation, signature_algorithm};

const ISSUER: &str = "https://login.example";
const ASKED: &str = "https://mcp.example/reports/mcp";
const NOW: u64 = 1_800_000_000;

fn settings() -> IssuerSettings {
    let text = |name: &str| -> Arc<str> { Arc::from(name) };
    IssuerSettings {
        issuer: text(ISSUER),
        keys: KeyLocation::File("keys.json".into()),
        algorithms: vec![Algorithm::ES256, Algorithm::RS256],
        audiences: BTreeSet::from([normal_address("api://taskgate/")]),
        token_types: BTreeSet::from(["at+jwt".to_owned()]),
        groups: Some(text("realm_access.roles")),
        owner_claim: None,
        implies: BTreeMap::from([(text("admin"), BTreeSet::from([text("mcp"), text("read")]))]),
        max_stale: Duration::from_secs(60),
        introspection: None,
    }
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "sub": "ada", "aud": ASKED, "exp": NOW + 300, "iat": NOW, "client_id": "c1", "scope": "mcp" })
}

struct Desk {
    key: IssuerKey,
    rsa: IssuerKey,
    set: KeySet,
    settings: IssuerSettings,
}

impl Desk {
    fn new() -> Self {
        let (key, rsa) = (IssuerKey::es256("k1"), IssuerKey::rs256("r1"));
        let set = KeySet::parse(&Bytes::from(key_set([&key, &rsa]))).unwrap();
        Self { key, rsa, set, settings: settings() }
    }

    fn verify(&self, token: &str) -> Result<VerifiedToken, TokenError> {
        let now = Timestamp::from_millis(NOW * 1000);
        UnverifiedToken::read(token)?.verify(&self.settings, &self.set, ASKED, now)
    }

    fn headed(&self, changes: &Value) -> String {
        self.key.sign(with(&self.key.header(), changes).to_string(), claims().to_string())
    }

    fn claiming(&self, changes: &Value) -> String {
        self.key.token(&with(&claims(), changes))
    }
}

#[track_caller]
fn check(desk: &Desk, rows: &[(&str, String, Result<(), TokenError>)]) {
    for (name, token, expected) in rows {
        assert_eq!(desk.verify(token).map(drop), *expected, "{name}");
    }
}

#[test]
fn b138_b141_a_header_names_one_key_and_one_algorithm_of_the_issuer() {
    use TokenError as E;
    let desk = Desk::new();
    let signed = desk.claiming(&json!({}));
    let (_, rest) = signed.split_once('.').unwrap();
    let (middle, _) = rest.split_once('.').unwrap();
    let long = "k".repeat(256);
    check(
        &desk,
        &[
            ("as it should be", signed.clone(), Ok(())),
            ("RSA", desk.rsa.token(&claims()), Ok(())),
            ("its media type", desk.headed(&json!({ "typ": "application/at+jwt" })), Ok(())),
            ("its type in capitals", desk.headed(&json!({ "typ": "AT+JWT" })), Ok(())),
            (
                "addresses of keys are ignored",
                desk.headed(&json!({ "jku": "https://evil", "x5u": "https://evil", "jwk": {} })),
                Ok(()),
            ),
            ("alg none", format!("{}.{middle}.", base64url(r#"{"alg":"none"}"#)), Err(E::Malformed)),
            ("alg none, signed", desk.headed(&json!({ "alg": "none" })), Err(E::Algorithm)),
            ("alg NONE", desk.headed(&json!({ "alg": "NONE" })), Err(E::Algorithm)),
            ("HS256", desk.headed(&json!({ "alg": "HS256" })), Err(E::Algorithm)),
            ("an algorithm that is not listed", desk.headed(&json!({ "alg": "ES384" })), Err(E::Algorithm)),
            ("an algorithm in small letters", desk.headed(&json!({ "alg": "es256" })), Err(E::Algorithm)),
            ("no algorithm", desk.headed(&json!({ "alg": null })), Err(E::Algorithm)),
            ("an algorithm that is no text", desk.headed(&json!({ "alg": 5 })), Err(E::Malformed)),
            ("the algorithm of another key", desk.headed(&json!({ "alg": "RS256" })), Err(E::UnfitKey)),
            ("the key of another algorithm", desk.headed(&json!({ "kid": "r1" })), Err(E::UnfitKey)),
            ("an unknown key", desk.headed(&json!({ "kid": "k2" })), Err(E::UnknownKey)),
            ("an empty key id", desk.headed(&json!({ "kid": "" })), Err(E::Malformed)),
            ("a key id of 256 bytes", desk.headed(&json!({ "kid": long })), Err(E::Malformed)),
            ("a key id that is no text", desk.headed(&json!({ "kid": ["k1"] })), Err(E::Malformed)),
            ("no key id, and one key fits", desk.headed(&json!({ "kid": null })), Ok(())),
            ("crit", desk.headed(&json!({ "crit": ["b64"], "b64": false })), Err(E::Critical)),
            ("an empty crit", desk.headed(&json!({ "crit": [] })), Err(E::Critical)),
            ("another type", desk.headed(&json!({ "typ": "JWT" })), Err(E::Type)),
            ("no type", desk.headed(&json!({ "typ": null })), Err(E::Type)),
            ("a proof of possession as a token", desk.headed(&json!({ "typ": "dpop+jwt" })), Err(E::Type)),
        ],
    );
}

/// RFC 8725, 3.12: Cognito's identity tokens have no `typ`, and Hydra names no `token_type` for refresh tokens.
#[test]
fn sec_94_a_token_for_another_use_is_no_access_token() {
    let desk = Desk::new();
    for (used, expected) in [
        (json!("access"), Ok(())),
        (json!("access_token"), Ok(())),
        (json!("id"), Err(TokenError::Type)),
        (json!("refresh_token"), Err(TokenError::Type)),
        (json!(["access"]), Err(TokenError::Type)),
        (json!(""), Err(TokenError::Type)),
    ] {
        check(&desk, &[("of this use", desk.claiming(&json!({ "token_use": used })), expected)]);
        let introspected = with(&claims(), &json!({ "token_use": used }));
        let at = Timestamp::from_millis(NOW * 1000);
        let found = verify_introspected(introspected.as_object().unwrap(), &desk.settings, ASKED, at);
        assert_eq!(found.map(drop), expected, "{used}");
    }
}

#[test]
fn b142_b143_a_token_has_three_parts_and_one_reading() {
    use TokenError as E;
    let desk = Desk::new();
    let body = claims().to_string();
    let signed = desk.claiming(&json!({}));
    let (head, rest) = signed.split_once('.').unwrap();
    let (middle, tail) = rest.split_once('.').unwrap();
    let header = |text: &str| desk.key.sign(text, &body);
    let stranger = IssuerKey::es256("k1");
    let mut bent = tail.as_bytes().to_vec();
    bent[10] = if bent[10] == b'A' { b'B' } else { b'A' };
    let bent = String::from_utf8(bent).unwrap();
    check(
        &desk,
        &[
            ("a header of 4,097 bytes", desk.headed(&json!({ "x": "x".repeat(4_097) })), Err(E::TooLarge)),
            ("a header that is a list", header("[]"), Err(E::Malformed)),
            (
                "a header with one member twice",
                header(r#"{"alg":"none","alg":"ES256","typ":"at+jwt","kid":"k1"}"#),
                Err(E::Malformed),
            ),
            ("another's signature under the same key id", stranger.token(&claims()), Err(E::Signature)),
            ("one bit of the signature", format!("{head}.{middle}.{bent}"), Err(E::Signature)),
            ("half a signature", format!("{head}.{middle}.{}", &tail[..43]), Err(E::Signature)),
            ("a signature that is no base64url", format!("{head}.{middle}.{tail}="), Err(E::Signature)),
            ("no signature", format!("{head}.{middle}."), Err(E::Malformed)),
            ("two parts", format!("{head}.{middle}"), Err(E::Malformed)),
            ("four parts", format!("{signed}.x"), Err(E::Malformed)),
            ("five parts, as encrypted tokens have", format!("{head}.x.{middle}.x.{tail}"), Err(E::Malformed)),
            ("three dots", "...".to_owned(), Err(E::Malformed)),
            ("no dot", "opaque-token".to_owned(), Err(E::Malformed)),
            ("nothing", String::new(), Err(E::Malformed)),
            ("standard base64", desk.key.sign_parts(&format!("{head}=.{middle}")), Err(E::Malformed)),
            ("blanks around it", format!(" {signed} "), Err(E::Malformed)),
            ("17 KiB", desk.claiming(&json!({ "x": "x".repeat(17 << 10) })), Err(E::TooLarge)),
        ],
    );
    let swapped = desk.claiming(&json!({ "sub": "bob" }));
    let (other, _) = swapped.rsplit_once('.').unwrap();
    check(&desk, &[("another's claims under a good signature", format!("{other}.{tail}"), Err(E::Signature))]);
}

#[test]
fn b136_b146_claims_are_for_this_time() {
    use TokenError as E;
    let desk = Desk::new();
    let of = |changes: Value| desk.claiming(&changes);
    let body = |text: String| desk.key.sign(desk.key.header().to_string(), text);
    let whole = claims().to_string();
    let more = |member: &str| body(format!("{},{member}}}", &whole[..whole.len() - 1]));
    check(
        &desk,
        &[
            ("expired by 59 s", of(json!({ "exp": NOW - 59 })), Ok(())),
            ("expired by 60 s", of(json!({ "exp": NOW - 60 })), Err(E::Expired)),
            ("expired by 61 s", of(json!({ "exp": NOW - 61 })), Err(E::Expired)),
            ("expired in 1970", of(json!({ "exp": 0 })), Err(E::Expired)),
            ("a part of a second", of(json!({ "exp": 1_800_000_000.5 })), Ok(())),
            ("no exp", of(json!({ "exp": null })), Err(E::Times)),
            ("nbf null", more("\"nbf\":null"), Err(E::Times)),
            ("exp as a text", of(json!({ "exp": "1900000000" })), Err(E::Times)),
            ("exp in a list", of(json!({ "exp": [NOW + 1] })), Err(E::Times)),
            ("exp true", of(json!({ "exp": true })), Err(E::Times)),
            ("exp below zero", of(json!({ "exp": -1 })), Err(E::Times)),
            ("exp beyond all years", of(json!({ "exp": 1e300 })), Err(E::Times)),
            ("exp in milliseconds", of(json!({ "exp": NOW * 1000 })), Err(E::Times)),
            ("exp twice", more("\"exp\":1900000000"), Err(E::Malformed)),
            ("nbf in 60 s", of(json!({ "nbf": NOW + 60 })), Ok(())),
            ("nbf in 61 s", of(json!({ "nbf": NOW + 61 })), Err(E::NotYetValid)),
            ("nbf as a text", of(json!({ "nbf": "0" })), Err(E::Times)),
            ("iat in 61 s", of(json!({ "iat": NOW + 61 })), Err(E::NotYetValid)),
            ("iat as a text", of(json!({ "iat": "now" })), Err(E::Times)),
            ("no iat", of(json!({ "iat": null })), Ok(())),
        ],
    );
}

#[test]
fn b144_b145_a_token_is_of_this_issuer_and_for_this_endpoint() {
    use TokenError as E;
    let desk = Desk::new();
    let of = |changes: Value| desk.claiming(&changes);
    let many: Vec<String> = (0..1001).map(|n| format!("https://{n}.example")).collect();
    check(
        &desk,
        &[
            ("another issuer", of(json!({ "iss": "https://evil.example" })), Err(E::UnknownIssuer)),
            ("the issuer with a slash", of(json!({ "iss": "https://login.example/" })), Err(E::UnknownIssuer)),
            ("the issuer in capitals", of(json!({ "iss": "https://LOGIN.example" })), Err(E::UnknownIssuer)),
            ("no issuer", of(json!({ "iss": null })), Err(E::UnknownIssuer)),
            ("issuers in a list", of(json!({ "iss": [ISSUER] })), Err(E::UnknownIssuer)),
            ("another endpoint", of(json!({ "aud": "https://mcp.example/files/mcp" })), Err(E::Audience)),
            ("the gateway alone", of(json!({ "aud": "https://mcp.example" })), Err(E::Audience)),
            ("a part of the address", of(json!({ "aud": "https://mcp.example/reports/mc" })), Err(E::Audience)),
            ("the address and more", of(json!({ "aud": "https://mcp.example/reports/mcp/x" })), Err(E::Audience)),
            ("two slashes at its end", of(json!({ "aud": "https://mcp.example/reports/mcp//" })), Err(E::Audience)),
            ("its path in capitals", of(json!({ "aud": "https://mcp.example/Reports/mcp" })), Err(E::Audience)),
            ("with its port", of(json!({ "aud": "https://mcp.example:443/reports/mcp" })), Err(E::Audience)),
            ("by http", of(json!({ "aud": "http://mcp.example/reports/mcp" })), Err(E::Audience)),
            ("a slash at its end", of(json!({ "aud": "https://mcp.example/reports/mcp/" })), Ok(())),
            ("its host in capitals", of(json!({ "aud": "HTTPS://MCP.Example/reports/mcp" })), Ok(())),
            ("one of several", of(json!({ "aud": ["https://other.example", ASKED] })), Ok(())),
            ("a configured one", of(json!({ "aud": "api://taskgate" })), Ok(())),
            ("a configured one with a slash", of(json!({ "aud": "api://taskgate/" })), Ok(())),
            ("no audience", of(json!({ "aud": null })), Err(E::Audience)),
            ("an empty list", of(json!({ "aud": [] })), Err(E::Audience)),
            ("an empty audience", of(json!({ "aud": "" })), Err(E::Audience)),
            ("a number among audiences", of(json!({ "aud": [ASKED, 1] })), Err(E::Audience)),
            ("an object as audience", of(json!({ "aud": { ASKED: true } })), Err(E::Audience)),
            ("1,001 audiences", of(json!({ "aud": many })), Err(E::TooLarge)),
        ],
    );
}

#[test]
fn b143_b147_claims_have_a_subject_and_one_reading() {
    use TokenError as E;
    let desk = Desk::new();
    let of = |changes: Value| desk.claiming(&changes);
    let body = |text: String| desk.key.sign(desk.key.header().to_string(), text);
    let whole = claims().to_string();
    let more = |member: &str| body(format!("{},{member}}}", &whole[..whole.len() - 1]));
    let deep = format!("\"x\":{}1{}", "[".repeat(1000), "]".repeat(1000));
    check(
        &desk,
        &[
            ("no subject, but a client", of(json!({ "sub": null })), Ok(())),
            ("neither", of(json!({ "sub": null, "client_id": null })), Err(E::Subject)),
            ("a person", of(json!({ "sub": null, "preferred_username": "ada" })), Err(E::Subject)),
            ("an empty subject", of(json!({ "sub": "" })), Err(E::Subject)),
            ("a subject that is a number", of(json!({ "sub": 7 })), Err(E::Subject)),
            ("a subject of 255 bytes", of(json!({ "sub": "a".repeat(255) })), Ok(())),
            ("a subject of 256 bytes", of(json!({ "sub": "a".repeat(256) })), Err(E::Subject)),
            ("a subject with a line end", of(json!({ "sub": "ada\n{}" })), Err(E::Subject)),
            ("a subject with an escape", of(json!({ "sub": "ada\u{1b}[2J" })), Err(E::Subject)),
            ("a subject with NUL", of(json!({ "sub": "a\0b" })), Err(E::Subject)),
            ("bound to a key", of(json!({ "cnf": { "jkt": "x" } })), Err(E::Bound)),
            ("bound to a certificate", of(json!({ "cnf": { "x5t": "x" } })), Err(E::Bound)),
            ("bound to nothing", of(json!({ "cnf": {} })), Err(E::Bound)),
            ("claims in a list", body("[]".to_owned()), Err(E::Malformed)),
            ("claims that are not JSON", body("{".to_owned()), Err(E::Malformed)),
            ("claims that are a token", body(of(json!({}))), Err(E::Malformed)),
            ("claims 1,000 deep", more(&deep), Err(E::Malformed)),
            ("half of a surrogate pair", more(r#""x":"\ud800""#), Err(E::Malformed)),
            ("1e400", more("\"x\":1e400"), Err(E::Malformed)),
            ("a byte order mark", body(format!("\u{feff}{whole}")), Err(E::Malformed)),
            ("a subject twice", more("\"sub\":\"bob\""), Err(E::Malformed)),
            ("scopes as a number", of(json!({ "scope": 1 })), Err(E::Scopes)),
            ("scope as a list", of(json!({ "scope": ["mcp"] })), Err(E::Scopes)),
            ("a scope of 256 bytes", of(json!({ "scope": "s".repeat(256) })), Err(E::Scopes)),
            ("1,001 scopes", of(json!({ "scope": "a ".repeat(1001) })), Err(E::Scopes)),
            ("a number among scopes", of(json!({ "scope": null, "scp": ["mcp", 1] })), Err(E::Scopes)),
            ("groups as a number", of(json!({ "realm_access": { "roles": 1 } })), Err(E::Groups)),
            ("groups as an object", of(json!({ "realm_access": { "roles": {} } })), Err(E::Groups)),
            ("a number among groups", of(json!({ "realm_access": { "roles": ["a", 1] } })), Err(E::Groups)),
            ("a group of 256 bytes", of(json!({ "realm_access": { "roles": ["g".repeat(256)] } })), Err(E::Groups)),
            ("an empty group", of(json!({ "realm_access": { "roles": [""] } })), Err(E::Groups)),
            ("1,001 groups", of(json!({ "realm_access": { "roles": vec!["g"; 1001] } })), Err(E::Groups)),
            ("1,000 groups", of(json!({ "realm_access": { "roles": vec!["g"; 1000] } })), Ok(())),
        ],
    );
}

/// Also of an opaque token, which only its issuer can read.
#[test]
fn sec_41_a_caller_with_a_bound_token_is_marked() {
    let desk = Desk::new();
    let digest = "A".repeat(43);
    for (cnf, is_bound) in
        [(json!({ "jkt": digest }), true), (json!({ "x5t#S256": digest }), true), (json!(null), false)]
    {
        let changes = json!({ "cnf": cnf });
        let (read, now) = (with(&claims(), &changes), Timestamp::from_millis(NOW * 1000));
        let introspected = verify_introspected(read.as_object().unwrap(), &desk.settings, ASKED, now);
        for found in [desk.verify(&desk.claiming(&changes)), introspected] {
            assert_eq!(found.map(|token| token.claims.is_bound), Ok(is_bound), "{cnf}");
        }
    }
}

#[test]
fn scopes_include_others_and_groups_stand_where_the_issuer_puts_them() {
    let desk = Desk::new();
    let names = |set: &BTreeSet<Arc<str>>| set.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ");
    for (changes, scopes, groups) in [
        (json!({}), "mcp", ""),
        (json!({ "scope": "  b  a " }), "a b", ""),
        (json!({ "scope": "" }), "", ""),
        (json!({ "scope": null }), "", ""),
        (json!({ "scope": "admin" }), "admin mcp read", ""),
        (json!({ "scope": null, "scp": "a b" }), "a b", ""),
        (json!({ "scope": null, "scp": ["b", "a"] }), "a b", ""),
        (json!({ "scp": ["b", "a"] }), "mcp", ""),
        (json!({ "realm_access": { "roles": ["y", "x", "y"] } }), "mcp", "x y"),
        (json!({ "realm_access": { "roles": "x y" } }), "mcp", "x y"),
        (json!({ "realm_access.roles": ["flat"] }), "mcp", "flat"),
        (json!({ "realm_access": ["roles"] }), "mcp", ""),
        (json!({ "realm_access": "roles" }), "mcp", ""),
    ] {
        let token = desk.verify(&desk.claiming(&changes)).unwrap();
        assert_eq!(
            (names(&token.claims.scopes), names(&token.claims.groups)),
            (scopes.into(), groups.into()),
            "{changes}"
        );
        assert_eq!(token.claims.issuer.as_deref(), Some(ISSUER));
        assert_eq!(token.until, Timestamp::from_millis((NOW + 360) * 1000));
    }
    let dotted = json!({ "https://example.com/claims": { "a.b": { "c": "found" } } });
    let found = claim_at(dotted.as_object().unwrap(), "https://example.com/claims.a.b.c");
    assert_eq!(found, Some(&json!("found")));
}

#[test]
fn b155_b156_tasks_belong_to_a_subject_of_an_issuer_and_to_a_team_only_if_that_is_written() {
    let mut desk = Desk::new();
    let owner = |desk: &Desk, changes: Value| desk.verify(&desk.claiming(&changes)).map(|token| token.owner);
    let ada = owner(&desk, json!({})).unwrap();
    assert_eq!(ada.as_str(), "jwt:ced4229bf4ad3faa:ada");
    assert_eq!(
        owner(&desk, json!({ "exp": NOW + 900, "jti": "2", "scope": "other" })).unwrap(),
        ada,
        "a refreshed token"
    );
    assert_eq!(owner(&desk, json!({ "sub": null })).unwrap().as_str(), "jwt:ced4229bf4ad3faa:c1");
    desk.settings.owner_claim = Some(Arc::from("team"));
    assert_eq!(owner(&desk, json!({})), Err(TokenError::Subject), "everybody must have one");
    let team = owner(&desk, json!({ "team": "ada" })).unwrap();
    assert_eq!(team.as_str(), "jwt:ced4229bf4ad3faa/team:ada");
    desk.settings.issuer = Arc::from("https://other.example");
    desk.settings.owner_claim = None;
    assert_ne!(owner(&desk, json!({ "iss": "https://other.example" })).unwrap(), ada, "the same subject elsewhere");
}

#[test]
fn weak_private_and_ambiguous_keys_are_not_used() {
    let (key, other, rsa) = (IssuerKey::es256("k1"), IssuerKey::es256("k2"), IssuerKey::rs256("r1"));
    let set = |keys: Value| json!({ "keys": keys }).to_string();
    let short = json!({ "kty": "RSA", "kid": "weak", "n": base64url([0xff; 128]), "e": "AQAB" });
    let modulus = rsa.jwk()["n"].clone();
    let many: Vec<Value> = (0..101).map(|n| with(&key.jwk(), &json!({ "kid": n.to_string() }))).collect();
    let none = |why| Err(KeySetError::NoneUsable(why));
    let of = |one: Value| set(json!([one]));
    let changed = |changes: Value| of(with(&key.jwk(), &changes));
    let weak = "an RSA key has less than 2048 or more than 8192 bits";
    let shown = "a key is private or symmetric: every reader of the set could sign with it";
    let unfit = "a key is of another type, use or form";
    for (name, text, expected) in [
        ("two keys", set(json!([key.jwk(), other.jwk()])), Ok(2)),
        ("a weak one beside a good one", set(json!([short, key.jwk()])), Ok(1)),
        ("a weak one", of(short), none(weak)),
        ("an exponent of one", of(json!({ "kty": "RSA", "n": modulus, "e": "AQ" })), none(weak)),
        ("a private key", changed(json!({ "d": "x" })), none(shown)),
        ("a shared secret", of(json!({ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256" })), none(shown)),
        ("one id for two", set(json!([key.jwk(), with(&other.jwk(), &json!({ "kid": "k1" })), rsa.jwk()])), Ok(1)),
        ("for encryption", changed(json!({ "use": "enc" })), none(unfit)),
        ("for other operations", changed(json!({ "key_ops": ["encrypt"] })), none(unfit)),
        ("for verification", changed(json!({ "use": null, "key_ops": ["verify"] })), Ok(1)),
        ("an algorithm of another type", changed(json!({ "alg": "RS256" })), none(unfit)),
        ("an unknown algorithm", changed(json!({ "alg": "ES256K" })), none(unfit)),
        ("an unknown curve", changed(json!({ "crv": "secp256k1" })), none(unfit)),
        ("an unknown type", changed(json!({ "kty": "AKP" })), none(unfit)),
        ("half a point", changed(json!({ "x": "AA" })), none(unfit)),
        ("an id that is no text", changed(json!({ "kid": 1 })), none(unfit)),
        ("a key that is a text", of(json!("key")), none(unfit)),
        ("no key", set(json!([])), none("it is empty")),
        ("101 keys", set(json!(many)), Err(KeySetError::TooMany)),
        ("keys as an object", set(json!({})), Err(KeySetError::NoList)),
        ("a bare list", "[]".to_owned(), Err(KeySetError::NoList)),
        ("HTML", "<html>".to_owned(), Err(KeySetError::NotJson)),
        ("nothing", String::new(), Err(KeySetError::NotJson)),
        ("1 MiB and a byte", " ".repeat(KEY_SET_BYTES_MAX + 1), Err(KeySetError::TooLarge)),
    ] {
        let found = KeySet::parse(&Bytes::from(text)).map(|set| set.len());
        assert_eq!(found, expected, "{name}");
    }
    let both = KeySet::parse(&Bytes::from(key_set([&key, &other]))).unwrap();
    assert!(both.find(None, Algorithm::ES256).is_none(), "which of the two?");
}

/// Keycloak's key sets have a key for encryption, and the gateway fetches them every 10 minutes.
#[test]
fn a_key_that_is_left_out_is_told_once_for_each_set() {
    let (first, second) = (IssuerKey::es256("k1"), IssuerKey::es256("k2"));
    let set = |key: &IssuerKey| {
        let encrypts = with(&second.jwk(), &json!({ "kid": "k3", "use": "enc" }));
        KeySet::parse(&Bytes::from(json!({ "keys": [key.jwk(), encrypts] }).to_string())).unwrap()
    };
    let before = set(&first);
    assert_eq!(before.newly_unused(None).len(), 1);
    assert!(set(&first).newly_unused(Some(&before)).is_empty());
    assert_eq!(set(&second).newly_unused(Some(&before)).len(), 1, "after a rotation");
}

#[test]
fn metadata_is_its_issuers_alone_and_its_fault_is_named() {
    let keys = "https://login.example/keys";
    let other = "it is of the issuer `https://login.example/`; if that is yours, write it as `issuer`, byte for byte";
    let hidden = "it is of the issuer `a b`; if that is yours, write it as `issuer`, byte for byte";
    let none = "it is not a JSON object with an `issuer`";
    let no_keys = "it has no `jwks_uri` of https";
    for (text, expected) in [
        (json!({ "issuer": ISSUER, "jwks_uri": keys }).to_string(), Ok(keys)),
        (json!({ "issuer": "https://login.example/", "jwks_uri": keys }).to_string(), Err(other)),
        (json!({ "issuer": "a\u{1b}b" }).to_string(), Err(hidden)),
        (json!({ "issuer": ISSUER, "jwks_uri": "http://login.example/keys" }).to_string(), Err(no_keys)),
        (json!({ "issuer": ISSUER }).to_string(), Err(no_keys)),
        (json!({ "jwks_uri": keys }).to_string(), Err(none)),
        ("<html>".to_owned(), Err(none)),
    ] {
        let found = keys_in(&Bytes::from(text.clone()), ISSUER).map(|url| url.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
    }
}

#[test]
fn issuers_sign_with_public_keys_alone() {
    for name in ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"] {
        assert!(signature_algorithm(name).is_some(), "{name}");
    }
    for name in ["none", "HS256", "HS384", "HS512", "es256", "RS1", ""] {
        assert!(signature_algorithm(name).is_none(), "{name}");
    }
}
