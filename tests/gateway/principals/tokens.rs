//! Access tokens over HTTP: which are accepted, the exact refusal of the others, and the metadata by which clients log in.

use std::fmt::Write as _;

use serde_json::{Value, json};
pub(crate) use support::issuer::now;
use support::issuer::{IssuerKey, base64url, key_set, with};
use tempfile::TempDir;

use super::gate::{ADA, Answer, Ask, EVE, Gate};
use super::upstream::in_time;

pub(crate) const ISSUER: &str = "https://login.example";
pub(crate) const AUDIENCE: &str = "https://mcp.example/mcp";
const METADATA: &str = "resource_metadata=\"https://mcp.example/.well-known/oauth-protected-resource/mcp\"";

pub(crate) fn claims(subject: &str) -> Value {
    json!({ "iss": ISSUER, "sub": subject, "aud": AUDIENCE, "exp": now() + 300, "scope": "mcp" })
}

/// The `[auth]` section of a gateway that accepts tokens and keys; `more` belongs to the issuer.
pub(crate) fn auth(keys: &str, more: &str) -> String {
    let mut auth = format!(
        "mode = [\"tokens\", \"api_keys\"]\nscopes = [\"mcp\"]\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n\
         [[auth.issuers]]\nissuer = \"{ISSUER}\"\nalgorithms = [\"ES256\"]\n"
    );
    write!(auth, "{keys}\n{more}\n").unwrap();
    auth
}

struct TokenGate {
    gate: Gate,
    key: IssuerKey,
    folder: TempDir,
}

impl TokenGate {
    async fn start(more: &str) -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
        let file = folder.path().join("keys.json");
        std::fs::write(&file, key_set([&key])).unwrap();
        let keys = format!("jwks_file = \"{}\"", file.display());
        let gate = Gate::of("public_url = \"https://mcp.example\"", &auth(&keys, more), "").await;
        Self { gate, key, folder }
    }

    fn token(&self, changes: &Value) -> String {
        self.key.token(&with(&claims("ada"), changes))
    }
}

fn ping(credential: &str) -> Ask {
    Ask::call(credential, "quick", &json!({ "a": 1 }))
}

fn refused(code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "error": { "code": code, "message": message } })
}

#[track_caller]
fn check(name: &str, answer: &Answer, status: &str, challenge: Option<&str>, body: &Value) {
    assert_eq!(answer.status(), status, "{name}: {}", answer.text());
    assert_eq!(answer.header("www-authenticate"), challenge, "{name}");
    assert_eq!(answer.json(), *body, "{name}");
}

/// Bad credentials, by their fault.
fn hostile_credentials(at: &TokenGate) -> Vec<(&'static str, String)> {
    let token = |changes: Value| at.token(&changes);
    let headed = |changes: Value| at.key.sign(with(&at.key.header(), &changes).to_string(), claims("ada").to_string());
    let good = token(json!({}));
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (stranger, rsa) = (IssuerKey::es256("k1"), IssuerKey::rs256("k1"));
    let header = at.key.header().to_string();
    let text = |claims: &str| at.key.sign(&header, claims);
    vec![
        ("no token at all", "x".to_owned()),
        ("two parts", signed.to_owned()),
        ("no signature", format!("{signed}.")),
        ("five parts", format!("{good}.a.b")),
        ("cut by one character", good[..good.len() - 1].to_owned()),
        ("signed by a stranger", stranger.token(&claims("ada"))),
        ("signed by a stranger's RSA key", rsa.token(&claims("ada"))),
        ("alg none", format!("{}.{}.{signature}", base64url(r#"{"alg":"none","typ":"at+jwt"}"#), base64url("{}"))),
        ("HS256", headed(json!({ "alg": "HS256" }))),
        ("RS256, which is not listed", headed(json!({ "alg": "RS256" }))),
        ("an unknown key of a file", headed(json!({ "kid": "k2" }))),
        ("jku", headed(json!({ "kid": "k2", "jku": "https://evil.example/keys" }))),
        ("crit", headed(json!({ "crit": ["exp"] }))),
        ("an identity token", headed(json!({ "typ": "JWT" }))),
        ("no typ", headed(json!({ "typ": null }))),
        ("a header in a list", at.key.sign("[]", claims("ada").to_string())),
        ("a member twice", at.key.sign(r#"{"alg":"ES256","alg":"none"}"#, "{}")),
        ("another issuer", token(json!({ "iss": "https://evil.example" }))),
        ("the issuer with a slash", token(json!({ "iss": "https://login.example/" }))),
        ("no issuer", token(json!({ "iss": null }))),
        ("another audience", token(json!({ "aud": "https://other.example/mcp" }))),
        ("the audience without the path", token(json!({ "aud": "https://mcp.example" }))),
        ("no audience", token(json!({ "aud": null }))),
        ("an audience in small pieces", token(json!({ "aud": ["https://mcp.example", "/mcp"] }))),
        ("expired", token(json!({ "exp": now() - 61 }))),
        ("no end", token(json!({ "exp": null }))),
        ("an end as a text", token(json!({ "exp": "9999999999" }))),
        ("an end below zero", token(json!({ "exp": -5 }))),
        ("an end beyond all", token(json!({ "exp": 1e300 }))),
        ("not yet", token(json!({ "nbf": now() + 600 }))),
        ("issued tomorrow", token(json!({ "iat": now() + 86_400 }))),
        ("no subject", token(json!({ "sub": null }))),
        ("an empty subject", token(json!({ "sub": "" }))),
        ("a subject with a line end", token(json!({ "sub": "ada\r\nX: 1" }))),
        ("a subject of 256 bytes", token(json!({ "sub": "a".repeat(256) }))),
        ("bound to a key", token(json!({ "cnf": { "jkt": "x" } }))),
        ("scopes as a number", token(json!({ "scope": 1 }))),
        ("claims in a list", text("[]")),
        ("claims twice", text(r#"{"iss":"https://login.example","iss":"https://login.example"}"#)),
        ("claims 1,000 deep", text(&format!("{}{}", "[".repeat(1_000), "]".repeat(1_000)))),
        ("claims that are not JSON", text("iss=1")),
        ("17 KiB", token(json!({ "x": "x".repeat(17 << 10) }))),
        ("a key that nobody has", EVE.to_owned()),
        ("a key that is cut", ADA[..ADA.len() - 1].to_owned()),
    ]
}

/// B136, B137, B138 and on to B150: every bad token gets the same sentence and challenge.
#[tokio::test]
async fn b136_to_b150_a_hostile_token_gets_401_and_learns_nothing() {
    let at = TokenGate::start("").await;
    let (good, rows) = (at.token(&json!({})), hostile_credentials(&at));
    assert!(rows.len() >= 40, "{}", rows.len());
    let sentence = "Unauthorized: send a valid access token as `Authorization: Bearer TOKEN`; the WWW-Authenticate header says \
                    where clients log in";
    let challenge = format!("Bearer error=\"invalid_token\", {METADATA}, scope=\"mcp\"");
    let of_key = "Unauthorized: the API key is unknown; send a valid one, or an access token: the WWW-Authenticate header says \
                  where clients log in";
    for (name, credential) in rows {
        let answer = at.gate.send(&ping(&credential)).await;
        let sentence = if credential.starts_with("tg_") { of_key } else { sentence };
        check(name, &answer, "401", Some(&challenge), &refused(-32600, sentence));
    }
    let none = format!("Bearer {METADATA}, scope=\"mcp\"");
    let keyless = at.gate.send(&ping("x").without("Authorization")).await;
    check("nothing", &keyless, "401", Some(&none), &refused(-32600, sentence));
    let basic = at.gate.send(&ping("x").without("Authorization").with("Authorization", "Basic eDp5")).await;
    check("another scheme", &basic, "401", Some(&challenge), &refused(-32600, sentence));
    let elsewhere = at.gate.send(&ping(&good).at("/nowhere")).await;
    let nowhere = "Bearer error=\"invalid_token\", scope=\"mcp\"";
    check("a path that is none", &elsewhere, "401", Some(nowhere), &refused(-32600, sentence));
    assert_eq!(at.gate.send(&ping(&good)).await.summary(), "200 ok", "and the good one is");
    let reached: Vec<_> = at.gate.server.world.all(|seen| seen.is_call());
    assert_eq!(reached.len(), 1, "no other request reached the server");
    assert_eq!(reached[0].header("authorization"), None, "the token is the gateway's alone");
}

/// B148, B149, B150.
#[tokio::test]
async fn b148_b149_b150_a_token_is_sent_once_in_a_header_and_with_every_scope() {
    let at = TokenGate::start("implies = { admin = [\"all\"], all = [\"mcp\"] }\n").await;
    let good = at.token(&json!({}));
    let twice = "Bad request: send at most one Authorization header and one X-Taskgate-Key header";
    let both = "Bad request: send an Authorization header or an X-Taskgate-Key header, not both";
    let query = "Bad request: send the access token in the Authorization header, never in the query";
    for (name, ask, sentence) in [
        ("two tokens", ping(&good).with("Authorization", &format!("Bearer {good}")), twice),
        ("a token and a key", ping(&good).with("X-Taskgate-Key", ADA), both),
        ("in the query", ping(&good).at(&format!("/mcp?access_token={good}")), query),
        (
            "in the query alone",
            ping(&good).without("Authorization").at(&format!("/mcp?a=b&access_token={good}")),
            query,
        ),
        ("in the query, spelt otherwise", ping(&good).at("/mcp?access%5Ftoken=x"), query),
    ] {
        check(name, &at.gate.send(&ask).await, "400", None, &refused(-32600, sentence));
    }
    let small = "Forbidden: the access token lacks a scope; the WWW-Authenticate header lists all that are needed";
    let mut body = refused(-32600, small);
    body["error"]["data"] = json!({ "source": "gateway", "reason": "insufficient_scope", "executed": "no" });
    let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"mcp\", {METADATA}");
    for (name, scope) in [("none", json!(null)), ("another", json!("read")), ("a longer one", json!("mcp2"))] {
        let answer = at.gate.send(&ping(&at.token(&json!({ "scope": scope })))).await;
        check(name, &answer, "403", Some(&challenge), &body);
    }
    for credential in [
        at.token(&json!({ "scope": "other mcp" })),
        at.token(&json!({ "scope": null, "scp": ["mcp"] })),
        at.token(&json!({ "scope": "admin" })),
        at.token(&json!({ "aud": ["https://x.example", "HTTPS://MCP.example/mcp/"] })),
        ADA.to_owned(),
    ] {
        assert_eq!(at.gate.send(&ping(&credential)).await.summary(), "200 ok", "{credential}");
    }
    let lower = ping("x").without("Authorization").with("Authorization", &format!("bearer   {good}"));
    assert_eq!(at.gate.send(&lower).await.summary(), "200 ok", "a scheme has no case");
    let slash = ping(&good).at("/mcp/");
    assert_eq!(at.gate.send(&slash).await.summary(), "200 ok", "the path with a slash is the same endpoint");
    let own = ping("x").without("Authorization").with("X-Taskgate-Key", ADA);
    assert_eq!(at.gate.send(&own).await.summary(), "200 ok");
}

/// B148: each rule for the upstream needs a scope. The token lacks it, and its client learns which.
#[tokio::test]
async fn b148_a_token_without_the_scope_of_any_rule_for_its_path_is_403_with_that_scope() {
    let rule = |scope: &str, tool: &str| {
        format!(
            "[[auth.rules]]\nwho = {{ scopes = [\"{scope}\"] }}\nupstreams = [\"up\"]\ntools = [\"{tool}\"]\nallow = true\n"
        )
    };
    let endpoint = "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\"]\n";
    let at = TokenGate::start(&format!("{}{}{endpoint}", rule("read", "quick"), rule("run", "held"))).await;
    for path in ["/mcp", "/all/mcp"] {
        let address = format!("https://mcp.example{path}");
        let token = |scope: &str| at.token(&json!({ "aud": address, "scope": scope }));
        let list = |credential: &str| Ask::new(credential, "tools/list", json!({})).at(path);
        let small = "Forbidden: the access token lacks a scope; the WWW-Authenticate header lists all that are needed";
        let mut body = refused(-32600, small);
        body["error"]["data"] = json!({ "source": "gateway", "reason": "insufficient_scope", "executed": "no" });
        let challenge = format!(
            "Bearer error=\"insufficient_scope\", scope=\"mcp read run\", {}",
            METADATA.replace("/mcp\"", &format!("{path}\""))
        );
        check(path, &at.gate.send(&list(&token("mcp"))).await, "403", Some(&challenge), &body);
        assert_eq!(at.gate.send(&list(&token("mcp read"))).await.summary(), "200 ok", "{path}");
        assert_eq!(at.gate.send(&list(ADA)).await.status(), "404", "{path}: a key cannot get a scope");
    }
}

/// B155, B156.
#[tokio::test]
async fn b155_b156_a_refreshed_token_finds_its_tasks_and_no_other_subject_does() {
    let at = TokenGate::start("").await;
    let made = at.gate.send(&Ask::call(&at.token(&json!({ "jti": "1" })), "task", &json!({}))).await;
    let id = made.json()["result"]["taskId"].as_str().unwrap().to_owned();
    let get = |credential: &str| Ask::new(credential, "tasks/get", json!({ "taskId": id }));
    let again = at.gate.send(&get(&at.token(&json!({ "jti": "2", "exp": now() + 900, "scope": "mcp x" })))).await;
    assert_eq!(again.json()["result"]["taskId"], json!(id), "{again:?}");
    let bob = at.gate.send(&get(&at.token(&json!({ "sub": "bob" })))).await;
    let unknown = Ask::new(&at.token(&json!({})), "tasks/get", json!({ "taskId": "0".repeat(id.len()) }));
    let unknown = at.gate.send(&unknown).await;
    assert_eq!(bob, unknown, "as one that there never was");
    let key = at.gate.send(&get(ADA)).await;
    assert_eq!(key, unknown, "a key of the same name is another principal");
}

/// The configuration decides; the request's Host does not count.
#[tokio::test]
async fn b164_metadata_is_public_and_names_each_path_by_its_public_address() {
    let at = TokenGate::start("").await;
    let get = |path: &str| {
        let mut ask = ping("x").without("Authorization").at(path);
        ask.verb = "GET";
        ask.body = String::new();
        ask
    };
    let of = |resource: &str| {
        json!({
            "resource": resource, "authorization_servers": [ISSUER], "scopes_supported": ["mcp"],
            "bearer_methods_supported": ["header"],
        })
    };
    let well_known = "/.well-known/oauth-protected-resource";
    for (path, resource) in [("/mcp", AUDIENCE), ("", AUDIENCE), ("/sse", "https://mcp.example/sse")] {
        let found = at.gate.send(&get(&format!("{well_known}{path}"))).await;
        assert_eq!((found.status(), found.json()), ("200", of(resource)), "{path}");
        assert_eq!(found.header("content-type"), Some("application/json"));
        assert_eq!(found.header("cache-control"), Some("max-age=60"));
    }
    let odd = get(&format!("{well_known}/mcp")).without("Host").with("Host", "evil.example");
    assert_eq!(at.gate.send(&odd).await.json(), of(AUDIENCE));
    let page = get(&format!("{well_known}/mcp")).with("Origin", "https://mcp.example");
    let page = at.gate.send(&page).await;
    assert_eq!(page.header("access-control-allow-origin"), Some("https://mcp.example"));
    for path in ["/other/mcp", "/mcp/", "/mcp/x"] {
        let found = at.gate.send(&get(&format!("{well_known}{path}"))).await;
        assert!(matches!(found.status(), "404" | "200"), "{path}: {found:?}");
    }
    assert_eq!(at.gate.send(&get(&format!("{well_known}/other/mcp"))).await.status(), "404");
}

#[tokio::test]
async fn a_reload_that_changes_an_issuer_or_the_scopes_ends_streams_and_forgets_tokens() {
    let mut at = TokenGate::start("").await;
    let good = at.token(&json!({}));
    let listen = Ask::session(&good, Some(&at.gate.session_of(&good).await), "x", &json!({}));
    let mut listen = listen.without("Content-Type");
    listen.verb = "GET";
    listen.body = String::new();
    let (_, mut kept) = at.gate.open(&listen).await;
    at.gate.reload_with(|_| ()).unwrap();
    assert_eq!(at.gate.send(&ping(&good)).await.summary(), "200 ok", "nothing has changed");
    let other = IssuerKey::es256("k1");
    std::fs::write(at.folder.path().join("keys.json"), key_set([&other])).unwrap();
    at.gate.reload_with(|_| ()).unwrap();
    assert_eq!(at.gate.send(&ping(&good)).await.status(), "401", "its key is gone");
    assert_eq!(at.gate.send(&ping(&other.token(&claims("ada")))).await.summary(), "200 ok");
    let mut rest = Vec::new();
    in_time(tokio::io::AsyncReadExt::read_to_end(&mut kept, &mut rest)).await.unwrap();
}
