//! Checks of arbitrary bytes as tokens, proofs, documents of issuers, access rules and audit files, as in `checks`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use taskgate::audit::verify::ChainVerifier;
use taskgate::config;
use taskgate::server::tokens::readings;
use taskgate::server::tokens::settings::{IssuerSettings, KeyLocation, signature_algorithm};
use taskgate::task::{AccessItem, AccessVerdict, Caller, Claims, DecisionArguments, Principal, Timestamp};

const ISSUER: &str = "https://login.example";
const ADDRESS: &str = "https://mcp.example/mcp";
/// The seeds are valid at this time: 2026-11-29.
const NOW: Timestamp = Timestamp::from_millis(1_795_910_400_000);
/// The public key of the seeds; its private key is lost.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k1","use":"sig","x":"HzVMZkRsYDV7vXvx_c_vSRd6ivK8dVgMvG2yPe8Pn_c","y":"BsyxLcbhrHQSUGEObol3KpqhLSmpZGARPuAcpt_C5ic"}]}"#;
/// The distance of a changed character from the end of its part: with it, the signature is another one.
const CHANGED: usize = 3;

fn issuer() -> IssuerSettings {
    IssuerSettings {
        issuer: Arc::from(ISSUER),
        keys: KeyLocation::File("keys.json".into()),
        algorithms: signature_algorithm("ES256").into_iter().collect(),
        audiences: BTreeSet::new(),
        token_types: BTreeSet::from(["at+jwt".to_owned()]),
        groups: Some(Arc::from("realm.groups")),
        owner_claim: None,
        implies: BTreeMap::from([(Arc::from("admin"), BTreeSet::from([Arc::from("mcp")]))]),
        max_stale: Duration::from_secs(60),
        introspection: None,
    }
}

fn read(text: &str) -> Result<Caller, &'static str> {
    readings::token(text, &issuer(), &Bytes::from_static(KEYS.as_bytes()), ADDRESS, NOW)
}

/// Changes the character at `at` from the end.
fn changed(text: &str, at: usize) -> Option<String> {
    let at = text.len().checked_sub(at)?;
    let mut bytes = text.as_bytes().to_vec();
    let byte = bytes.get_mut(at)?;
    *byte = if *byte == b'A' { b'B' } else { b'A' };
    String::from_utf8(bytes).ok()
}

/// Checks a signed token, or an issuer's claims of a token. If it is valid, it has an owner and an end, and each of its parts is
/// verified. Returns the fault.
pub fn token(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "token_malformed".to_owned() };
    let is_signed = !text.starts_with('{');
    let caller = if is_signed { read(text) } else { readings::introspected(text.as_bytes(), &issuer(), ADDRESS, NOW) };
    match caller {
        Ok(caller) => judge(caller),
        Err(fault) => return fault.to_owned(),
    }
    if is_signed {
        let parts: Vec<&str> = text.split('.').collect();
        assert_eq!(parts.len(), 3);
        for behind in [0, parts[2].len() + 1, parts[2].len() + parts[1].len() + 2] {
            if let Some(other) = changed(text, behind + CHANGED) {
                assert!(read(&other).is_err(), "{other}");
            }
        }
    }
    "valid".to_owned()
}

fn judge(caller: Caller) {
    let owner = caller.principal.as_str();
    assert!(owner.starts_with("jwt:") && !owner.chars().any(char::is_control), "{owner:?}");
    assert!(caller.until.is_some_and(|until| until > NOW));
    let claims = caller.claims.expect("a token has claims");
    assert_eq!(claims.issuer.as_deref(), Some(ISSUER));
    assert!(!claims.scopes.contains("admin") || claims.scopes.contains("mcp"));
    for name in claims.scopes.iter().chain(&claims.groups) {
        assert!((1..=255).contains(&name.len()) && !name.chars().any(char::is_control), "{name:?}");
    }
}

/// Checks a proof for one request. A valid one must be refused for every other request. Returns the fault.
pub fn proof(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "proof_malformed".to_owned() };
    let check = |method, address, token, now| readings::proof(text, method, address, token, now);
    if let Err(fault) = check("POST", ADDRESS, "token", NOW) {
        return fault.label().to_owned();
    }
    let later = NOW.after(Duration::from_secs(601));
    for (method, address, token, now) in [
        ("GET", ADDRESS, "token", NOW),
        ("POST", "https://mcp.example/other", "token", NOW),
        ("POST", ADDRESS, "another", NOW),
        ("POST", ADDRESS, "token", later),
    ] {
        assert!(check(method, address, token, now).is_err(), "{method} {address} {token}");
    }
    "valid".to_owned()
}

/// Reads metadata that name a key set, or a key set.
pub fn login_documents(bytes: &[u8]) -> String {
    let text = Bytes::copy_from_slice(bytes);
    if let Some(url) = readings::metadata(&text, ISSUER) {
        let is_local = url
            .host_str()
            .is_some_and(|host| host.contains("localhost") || host.starts_with("127.") || host == "[::1]");
        assert!(url.scheme() == "https" || (url.scheme() == "http" && is_local), "{url}");
        return "metadata".to_owned();
    }
    match readings::key_set(&text) {
        Ok(keys) => {
            assert!((1..=100).contains(&keys));
            format!("keys{keys}")
        }
        Err(_) => "refused".to_owned(),
    }
}

fn callers() -> Vec<Caller> {
    let names = |all: &[&str]| all.iter().copied().map(Arc::from).collect::<BTreeSet<_>>();
    let token = |scopes: &[&str], groups: &[&str]| {
        let claims = Claims {
            scopes: names(scopes),
            groups: names(groups),
            issuer: Some(Arc::from(ISSUER)),
            ..Claims::default()
        };
        Caller { claims: Some(Arc::new(claims)), ..Caller::of(Principal::of_subject(ISSUER, "ada")) }
    };
    vec![Caller::of(Principal::holding("ada")), token(&[], &["analysts"]), token(&["mcp", "write"], &[])]
}

/// Reads the rules of a configuration, and decides about the item whose name follows a NUL. Repeated decisions must be equal, and
/// no item may be allowed where its upstream is not.
pub fn access_rules(bytes: &[u8]) -> &'static str {
    let Ok(text) = std::str::from_utf8(bytes) else { return "refused" };
    let (rules, item) = text.split_once('\0').unwrap_or((text, "read_a"));
    // A key that names a file would make the configuration read it.
    if rules.contains("file") || rules.contains("path") {
        return "refused";
    }
    let text = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"bob\"\nkey = \"tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90\"\n\
         scopes = [\"mcp\", \"write\"]\ngroups = [\"analysts\"]\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"tg_ada1_0011223344556677889900aabbccddee\"\n\
         {rules}\n[upstreams.up]\nurl = \"http://127.0.0.1:8/mcp\"\n"
    );
    let Ok(loaded) = config::parse("rules.toml", &text, &|_| None) else { return "refused" };
    let table = &loaded.config.access;
    let fresh = taskgate::task::PrincipalAccessTable::clone(table);
    for caller in callers() {
        let upstream = table.upstream(&caller, "up").verdict;
        for item in [AccessItem::Tool(item), AccessItem::Prompt(item), AccessItem::Resource(item)] {
            for arguments in [DecisionArguments::Any, DecisionArguments::These(None)] {
                let decided = table.decision(&caller, "up", item, arguments);
                assert_eq!(table.decision(&caller, "up", item, arguments), decided);
                assert_eq!(fresh.decision(&caller, "up", item, arguments), decided);
                assert!(decided.verdict != AccessVerdict::Allowed || upstream == AccessVerdict::Allowed, "{item:?}");
                let is_key = caller.claims.is_none();
                assert!(!is_key || !matches!(decided.verdict, AccessVerdict::NeedsScopes(_)), "{item:?}");
            }
            let decided = table.decision(&caller, "up", item, DecisionArguments::Any).verdict;
            assert_eq!(table.has_item(&caller, "up", item), decided == AccessVerdict::Allowed);
        }
    }
    "read"
}

/// Verifies an audit file whole, and as two files cut at each of its lines: both have the same end of the chain.
pub fn audit_lines(bytes: &[u8]) -> String {
    let mut whole = ChainVerifier::default().partial();
    if whole.file(bytes).is_err() {
        return "refused".to_owned();
    }
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    for end in ends.take(16).filter(|end| *end < bytes.len()) {
        let mut parts = ChainVerifier::default().partial();
        for part in [&bytes[..end], &bytes[end..]] {
            parts.file(part).expect("a chain goes on in the next file");
        }
        assert_eq!((parts.last(), parts.lines, parts.lost), (whole.last(), whole.lines, whole.lost));
    }
    assert!(whole.finish().is_ok());
    format!("{}", whole.lines)
}
