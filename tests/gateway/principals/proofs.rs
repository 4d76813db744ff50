//! Proofs of possession over HTTP (DPoP, RFC 9449): a token that is bound to a key serves the key's holder alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use support::issuer::{IssuerKey, base64url, key_set, proof_header as header, thumbprint, token_digest, with};
use taskgate::server::api_keys::AuthSettings;
use taskgate::server::tokens::settings::ProofPolicy;
use tempfile::TempDir;

use super::certificates::CertificateGate;
use super::gate::{ADA, Answer, Ask, Gate};
use super::tokens::{AUDIENCE, ISSUER, claims, now};
use super::upstream::{ScriptedServer, SeenRequest, in_time, json_text};

const METADATA: &str = "resource_metadata=\"https://mcp.example/.well-known/oauth-protected-resource/mcp\"";
const ALGORITHMS: &str = "algs=\"ES256 ES384 EdDSA PS256 RS256\"";
const NO_PROOF: &str =
    "Unauthorized: send a new DPoP proof with each request, made for its method, its address and its access token";
const NO_TOKEN: &str = "Unauthorized: send a valid access token as `Authorization: Bearer TOKEN`; the WWW-Authenticate header says \
                        where clients log in";

struct ProofGate {
    gate: Gate,
    issuer: IssuerKey,
    /// The client's key.
    key: IssuerKey,
    _folder: TempDir,
}

/// The claims of a proof for a call with this token.
fn body(token: &str) -> Value {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let id = format!("proof-{number}");
    json!({ "jti": id, "htm": "POST", "htu": AUDIENCE, "iat": now(), "ath": token_digest(token) })
}

fn proof(key: &IssuerKey, token: &str) -> String {
    key.sign(header(key).to_string(), body(token).to_string())
}

impl ProofGate {
    async fn start(policy: &str, upstream: &str) -> Self {
        let (folder, issuer) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
        let file = folder.path().join("keys.json");
        std::fs::write(&file, key_set([&issuer])).unwrap();
        let auth = format!(
            "mode = [\"tokens\", \"api_keys\"]\nscopes = [\"mcp\"]\ndpop = \"{policy}\"\n\
             [[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n\
             [[auth.issuers]]\nissuer = \"{ISSUER}\"\nalgorithms = [\"ES256\"]\njwks_file = \"{}\"\n",
            file.display()
        );
        let gate = Gate::of("public_url = \"https://mcp.example\"", &auth, upstream).await;
        Self { gate, issuer, key: IssuerKey::es256("client"), _folder: folder }
    }

    fn bound(&self, changes: &Value) -> String {
        let bound = with(&claims("ada"), &json!({ "cnf": { "jkt": thumbprint(&self.key) } }));
        self.issuer.token(&with(&bound, changes))
    }

    fn unbound(&self) -> String {
        self.issuer.token(&claims("ada"))
    }

    async fn send(&self, scheme: &str, token: &str, proofs: &[&str]) -> Answer {
        self.gate.send(&ask(&call(), scheme, token, proofs)).await
    }
}

fn call() -> Ask {
    Ask::call("x", "quick", &json!({ "a": 1 }))
}

/// The request with other credentials.
fn ask(ask: &Ask, scheme: &str, token: &str, proofs: &[&str]) -> Ask {
    let ask = ask.clone().without("Authorization").with("Authorization", &format!("{scheme} {token}"));
    proofs.iter().fold(ask, |ask, proof| ask.with("DPoP", proof))
}

#[track_caller]
fn check(name: &str, answer: &Answer, challenge: &str, message: &str) {
    assert_eq!(answer.status(), "401", "{name}: {answer:?}");
    assert_eq!(answer.header("www-authenticate"), Some(challenge), "{name}");
    assert_eq!(answer.json(), json!({ "jsonrpc": "2.0", "error": { "code": -32600, "message": message } }), "{name}");
}

/// Proofs with a wrong form, type or key, by their fault.
fn malformed_proofs(at: &ProofGate, token: &str) -> Vec<(&'static str, String)> {
    let key = &at.key;
    let claiming = |changes: Value| key.sign(header(key).to_string(), with(&body(token), &changes).to_string());
    let headed = |changes: Value| key.sign(with(&header(key), &changes).to_string(), body(token).to_string());
    let good = proof(key, token);
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let private = with(&header(key)["jwk"], &json!({ "d": "AAAA" }));
    let other = IssuerKey::es256("other");
    let of_other = |header: &Value| other.sign(header.to_string(), body(token).to_string());
    vec![
        ("an empty field", String::new()),
        ("no proof at all", "x".to_owned()),
        ("two parts", signed.to_owned()),
        ("no signature", format!("{signed}.")),
        ("four parts", format!("{good}.a")),
        ("a signature that is cut", good[..good.len() - 1].to_owned()),
        ("the signature of another proof", format!("{signed}.{}", proof(key, token).rsplit_once('.').unwrap().1)),
        ("signed by another key than it names", of_other(&header(key))),
        ("two in one field", format!("{good}, {good}")),
        ("9 KiB", claiming(json!({ "x": "x".repeat(9 << 10) }))),
        ("an access token", at.issuer.token(&claims("ada"))),
        ("another type", headed(json!({ "typ": "JWT" }))),
        ("no type", headed(json!({ "typ": null }))),
        ("a type that is no text", headed(json!({ "typ": ["dpop+jwt"] }))),
        (
            "alg none",
            format!(
                "{}.{}.{signature}",
                base64url(with(&header(key), &json!({ "alg": "none" })).to_string()),
                base64url("{}")
            ),
        ),
        ("HS256", headed(json!({ "alg": "HS256" }))),
        ("ES384 with a key on P-256", headed(json!({ "alg": "ES384" }))),
        ("RS512, which is not listed", headed(json!({ "alg": "RS512" }))),
        ("crit", headed(json!({ "crit": ["exp"] }))),
        ("no key", headed(json!({ "jwk": null }))),
        ("a key as a text", headed(json!({ "jwk": header(key)["jwk"].to_string() }))),
        ("a private key", headed(json!({ "jwk": private }))),
        ("a symmetric key", headed(json!({ "jwk": { "kty": "oct", "k": "AAAA" } }))),
        ("half a key", headed(json!({ "jwk": with(&header(key)["jwk"], &json!({ "y": null })) }))),
        ("a key for encryption", headed(json!({ "jwk": with(&header(key)["jwk"], &json!({ "use": "enc" })) }))),
        ("kid alone", headed(json!({ "jwk": null, "kid": "client" }))),
        ("a claim twice", key.sign(header(key).to_string(), r#"{"jti":"a","jti":"b"}"#)),
        ("claims in a list", key.sign(header(key).to_string(), "[]")),
        ("a header in a list", key.sign("[]", body(token).to_string())),
    ]
}

/// Proofs with wrong claims, by their fault.
fn misdirected_proofs(at: &ProofGate, token: &str) -> Vec<(&'static str, String)> {
    let key = &at.key;
    let claiming = |changes: Value| key.sign(header(key).to_string(), with(&body(token), &changes).to_string());
    vec![
        ("another method", claiming(json!({ "htm": "GET" }))),
        ("the method in another case", claiming(json!({ "htm": "post" }))),
        ("no method", claiming(json!({ "htm": null }))),
        ("another path", claiming(json!({ "htu": "https://mcp.example/other/mcp" }))),
        ("the path with a slash", claiming(json!({ "htu": "https://mcp.example/mcp/" }))),
        ("another host", claiming(json!({ "htu": "https://evil.example/mcp" }))),
        ("the host behind a user", claiming(json!({ "htu": "https://mcp.example@evil.example/mcp" }))),
        (
            "the address behind the proxy",
            claiming(json!({ "htu": format!("http://{}/mcp", at.gate.gateway.address()) })),
        ),
        ("http", claiming(json!({ "htu": "http://mcp.example/mcp" }))),
        ("the path alone", claiming(json!({ "htu": "/mcp" }))),
        ("no address", claiming(json!({ "htu": null }))),
        ("an address in a list", claiming(json!({ "htu": [AUDIENCE] }))),
        ("too old", claiming(json!({ "iat": now() - 302 }))),
        ("too early", claiming(json!({ "iat": now() + 600 }))),
        ("no time", claiming(json!({ "iat": null }))),
        ("a time as a text", claiming(json!({ "iat": now().to_string() }))),
        ("a time below zero", claiming(json!({ "iat": -1 }))),
        ("expired", claiming(json!({ "exp": now() - 100 }))),
        ("not valid yet", claiming(json!({ "nbf": now() + 100 }))),
        ("no token", claiming(json!({ "ath": null }))),
        ("another token", claiming(json!({ "ath": token_digest("another") }))),
        (
            "the token's digest with padding",
            claiming(json!({ "ath": format!("{}=", body(token)["ath"].as_str().unwrap()) })),
        ),
        ("no id", claiming(json!({ "jti": null }))),
        ("an empty id", claiming(json!({ "jti": "" }))),
        ("an id of 256 bytes", claiming(json!({ "jti": "x".repeat(256) }))),
        ("an id that is a number", claiming(json!({ "jti": 7 }))),
    ]
}

/// B194: every invalid proof gets the same sentence and challenge, and the server gets nothing.
#[tokio::test]
async fn b194_a_hostile_proof_gets_401_and_the_server_nothing() {
    for policy in ["accept", "require"] {
        let at = ProofGate::start(policy, "").await;
        let token = at.bound(&json!({}));
        let challenge = format!("DPoP error=\"invalid_dpop_proof\", {METADATA}, scope=\"mcp\", {ALGORITHMS}");
        let rows = [malformed_proofs(&at, &token), misdirected_proofs(&at, &token)].concat();
        assert!(rows.len() >= 50, "{}", rows.len());
        for (name, hostile) in rows {
            check(name, &at.send("DPoP", &token, &[&hostile]).await, &challenge, NO_PROOF);
        }
        let (one, two) = (proof(&at.key, &token), proof(&at.key, &token));
        for (name, proofs) in [("none", vec![]), ("two", vec![&*one, &*two]), ("one twice", vec![&*one, &*one])] {
            check(name, &at.send("DPoP", &token, &proofs).await, &challenge, NO_PROOF);
        }
        assert_eq!(at.gate.server.world.all(|seen| seen.is_call()).len(), 0);
        assert_eq!(at.send("DPoP", &token, &[&one]).await.summary(), "200 ok", "a refused one is not used up");
        check("again", &at.send("DPoP", &token, &[&one]).await, &challenge, NO_PROOF);
        let elsewhere = ask(&call().at("/mcp?x=1"), "DPoP", &token, &[&one]);
        check("at another query", &at.gate.send(&elsewhere).await, &challenge, NO_PROOF);
    }
}

/// If the token does not fit its binding, the token is refused and not its proof.
#[tokio::test]
async fn a_bound_token_needs_its_key_and_another_token_has_none() {
    for policy in ["accept", "require"] {
        let at = ProofGate::start(policy, "").await;
        let (bound, unbound, other) = (at.bound(&json!({})), at.unbound(), IssuerKey::es256("other"));
        let (bearer, dpop) = match policy {
            "accept" => (
                format!("Bearer error=\"invalid_token\", {METADATA}, scope=\"mcp\", DPoP {ALGORITHMS}"),
                format!("DPoP error=\"invalid_token\", {METADATA}, scope=\"mcp\", {ALGORITHMS}"),
            ),
            _ => {
                let same = format!("DPoP error=\"invalid_token\", {METADATA}, scope=\"mcp\", {ALGORITHMS}");
                (same.clone(), same)
            }
        };
        let of_other = proof(&other, &bound);
        for (name, token, proof) in [
            ("a key that it is not bound to", &bound, &of_other),
            ("no binding", &unbound, &proof(&at.key, &unbound)),
            ("expired", &at.bound(&json!({ "exp": now() - 100 })), &proof(&at.key, &bound)),
            (
                "two conditions",
                &at.bound(&json!({ "cnf": { "jkt": thumbprint(&at.key), "x5t#S256": thumbprint(&at.key) } })),
                &of_other,
            ),
            (
                "an unknown condition",
                &at.bound(&json!({ "cnf": { "jkt": thumbprint(&at.key), "kid": "x" } })),
                &of_other,
            ),
            ("a key of the gateway", &ADA.to_owned(), &proof(&at.key, ADA)),
        ] {
            check(name, &at.send("DPoP", token, &[proof]).await, &dpop, NO_TOKEN);
        }
        for (name, proofs) in [("alone", vec![]), ("with its proof", vec![proof(&at.key, &bound)])] {
            let proofs: Vec<&str> = proofs.iter().map(String::as_str).collect();
            check(name, &at.send("Bearer", &bound, &proofs).await, &bearer, NO_TOKEN);
        }
        let plain = at.send("Bearer", &unbound, &[]).await;
        match policy {
            "accept" => assert_eq!(plain.summary(), "200 ok"),
            _ => check("unbound", &plain, &bearer, NO_TOKEN),
        }
        let nothing = at.gate.send(&call().without("Authorization")).await;
        let login = match policy {
            "accept" => format!("Bearer {METADATA}, scope=\"mcp\", DPoP {ALGORITHMS}"),
            _ => format!("DPoP {METADATA}, scope=\"mcp\", {ALGORITHMS}"),
        };
        check("nothing", &nothing, &login, NO_TOKEN);
        assert_eq!(
            at.gate.send(&Ask::call(ADA, "quick", &json!({}))).await.summary(),
            "200 ok",
            "a key of the gateway"
        );
        for scheme in ["DPoP", "dpop", "DPOP  "] {
            assert_eq!(at.send(scheme, &bound, &[&proof(&at.key, &bound)]).await.summary(), "200 ok", "{scheme}");
        }
        let calls = at.gate.server.world.all(|seen| seen.is_call());
        let passed = |seen: &&SeenRequest| seen.header("authorization").is_some() || seen.header("dpop").is_some();
        assert_eq!(calls.iter().filter(passed).count(), 0, "no server gets the token or its proof");
    }
}

#[tokio::test]
async fn without_the_setting_a_bound_token_is_refused_and_no_scheme_is_offered() {
    let at = ProofGate::start("off", "").await;
    let bound = at.bound(&json!({}));
    let challenge = format!("Bearer error=\"invalid_token\", {METADATA}, scope=\"mcp\"");
    check("with its proof", &at.send("DPoP", &bound, &[&proof(&at.key, &bound)]).await, &challenge, NO_TOKEN);
    check("as a bearer token", &at.send("Bearer", &bound, &[]).await, &challenge, NO_TOKEN);
    assert_eq!(at.send("Bearer", &at.unbound(), &[]).await.summary(), "200 ok");
}

#[tokio::test]
async fn metadata_and_challenges_for_scopes_name_the_needed_proofs() {
    for (policy, algorithms, is_required) in [
        ("off", Value::Null, Value::Null),
        ("accept", json!(["ES256", "ES384", "EdDSA", "PS256", "RS256"]), Value::Null),
        ("require", json!(["ES256", "ES384", "EdDSA", "PS256", "RS256"]), json!(true)),
    ] {
        let at = ProofGate::start(policy, "").await;
        let mut get = call().without("Authorization").at("/.well-known/oauth-protected-resource/mcp");
        get.verb = "GET";
        get.body = String::new();
        let found = at.gate.send(&get).await.json();
        assert_eq!(found["dpop_signing_alg_values_supported"], algorithms, "{policy}");
        assert_eq!(found["dpop_bound_access_tokens_required"], is_required, "{policy}");
        if policy == "off" {
            continue;
        }
        let small = at.bound(&json!({ "scope": "other" }));
        let answer = at.send("DPoP", &small, &[&proof(&at.key, &small)]).await;
        let expected = format!("DPoP error=\"insufficient_scope\", scope=\"mcp\", {METADATA}, {ALGORITHMS}");
        assert_eq!((answer.status(), answer.header("www-authenticate")), ("403", Some(&*expected)), "{policy}");
    }
    let tool = "[[upstreams.up.tools]]\nmatch = \"quick\"\nscopes = [\"big\"]\n";
    let at = ProofGate::start("accept", tool).await;
    let token = at.bound(&json!({}));
    let answer = at.send("DPoP", &token, &[&proof(&at.key, &token)]).await;
    let expected = format!("DPoP error=\"insufficient_scope\", scope=\"mcp big\", {METADATA}, {ALGORITHMS}");
    assert_eq!((answer.status(), answer.header("www-authenticate")), ("403", Some(&*expected)), "{answer:?}");
}

/// Every request carries a proof of its own: polls, streams, sessions and messages of HTTP+SSE.
#[tokio::test]
async fn a_task_is_followed_with_refreshed_tokens_and_a_proof_for_each_request() {
    let mut at = ProofGate::start("require", "").await;
    let token = at.bound(&json!({ "aud": [AUDIENCE, "https://mcp.example/sse"] }));
    let send = async |at: &ProofGate, request: &Ask, token: &str, changes: Value| {
        let proof = at.key.sign(header(&at.key).to_string(), with(&body(token), &changes).to_string());
        at.gate.send(&ask(request, "DPoP", token, &[&proof])).await
    };
    let made = send(&at, &Ask::call("x", "task", &json!({})), &token, json!({})).await.json();
    let id = made["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let get = Ask::new("x", "tasks/get", json!({ "taskId": id }));
    for poll in 0..3 {
        let fresh = at.bound(&json!({ "jti": poll }));
        assert_eq!(send(&at, &get, &fresh, json!({})).await.json()["result"]["taskId"], json!(id));
    }
    // The person's next token is bound to another key, and finds the task too.
    let renewed = IssuerKey::es256("renewed");
    let of_renewed = at.bound(&json!({ "cnf": { "jkt": thumbprint(&renewed) } }));
    let answer = at.gate.send(&ask(&get, "DPoP", &of_renewed, &[&proof(&renewed, &of_renewed)])).await;
    assert_eq!(answer.json()["result"]["taskId"], json!(id));

    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
    });
    let opened = send(&at, &Ask::session("x", None, "initialize", &params), &token, json!({})).await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    let mut listen = Ask::session("x", Some(&session), "x", &json!({})).without("Content-Type");
    listen.verb = "GET";
    listen.body = String::new();
    let for_get = |at: &ProofGate, path: &str| {
        let address = format!("https://mcp.example{path}");
        at.key.sign(
            header(&at.key).to_string(),
            with(&body(&token), &json!({ "htm": "GET", "htu": address })).to_string(),
        )
    };
    let used = for_get(&at, "/mcp");
    let (head, _stream) = at.gate.open(&ask(&listen, "DPoP", &token, &[&used])).await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let again = at.gate.send(&ask(&listen, "DPoP", &token, &[&used])).await;
    assert_eq!(again.status(), "401", "a stream that is opened again needs a new proof");

    let older = ask(&listen.without("Mcp-Session-Id").at("/sse"), "DPoP", &token, &[&for_get(&at, "/sse")]);
    let (head, _older) = at.gate.open(&older).await;
    let place = head.split("data: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or_else(|| panic!("{head}"));
    let message = Ask::session("x", None, "ping", &json!({})).at(place);
    let path = place.split('?').next().unwrap();
    let address = json!({ "htu": format!("https://mcp.example{path}") });
    assert_eq!(send(&at, &message, &token, address).await.status(), "202", "{place}");
    assert_eq!(send(&at, &message, &token, json!({ "htu": "https://mcp.example/mcp" })).await.status(), "401");

    let kept = proof(&at.key, &token);
    assert_eq!(at.send("DPoP", &token, &[&kept]).await.summary(), "200 ok");
    at.gate.reload_with(|config| config.listen.body_bytes_max = std::num::NonZeroUsize::new(1 << 20).unwrap()).unwrap();
    assert_eq!(at.send("DPoP", &token, &[&kept]).await.status(), "401", "a reload forgets no proof");
    let mut tokens = None;
    let without_tokens = at.gate.reload_with(|config| {
        let keys = AuthSettings::ApiKeys(config.auth.keys().to_vec());
        tokens = Some(std::mem::replace(&mut config.auth, keys));
    });
    without_tokens.unwrap();
    at.gate.reload_with(|config| config.auth = tokens.unwrap()).unwrap();
    assert_eq!(at.send("DPoP", &token, &[&kept]).await.status(), "401", "not even while no tokens are accepted");
    assert_eq!(at.send("DPoP", &token, &[&proof(&at.key, &token)]).await.summary(), "200 ok");
}

#[tokio::test]
async fn a_reload_that_requires_proofs_ends_the_streams_of_bearers() {
    let mut at = ProofGate::start("accept", "").await;
    let token = at.unbound();
    let session = at.gate.session_of(&token).await;
    let mut listen = Ask::session(&token, Some(&session), "x", &json!({})).without("Content-Type");
    listen.verb = "GET";
    listen.body = String::new();
    let (_, mut stream) = at.gate.open(&listen).await;
    at.gate
        .reload_with(|config| {
            let AuthSettings::Tokens(tokens, _) = &mut config.auth else { panic!() };
            Arc::make_mut(tokens).proofs = ProofPolicy::Require;
        })
        .unwrap();
    let mut rest = Vec::new();
    in_time(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest)).await.unwrap();
    assert_eq!(at.send("Bearer", &token, &[]).await.status(), "401");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The log is the whole process's. Accepted and refused credentials both cause log lines.
#[tokio::test]
async fn sec_12_nothing_of_a_token_a_proof_or_a_certificate_is_found_in_the_log() {
    let own = "principals::proofs::sec_12_nothing_of_a_token_a_proof_or_a_certificate_is_found_in_the_log";
    if !support::alone::is(own) {
        return;
    }
    let log = Log::default();
    let writer = log.clone();
    let of_gateway = tracing_subscriber::EnvFilter::new("taskgate=trace");
    tracing_subscriber::fmt().with_env_filter(of_gateway).with_writer(move || writer.clone()).init();
    let canary = "canary-7d1";
    let at = ProofGate::start("accept", "").await;
    let token = at.bound(&json!({ "jti": canary, "sub": format!("ada-{canary}"), "groups": [canary] }));
    let told = json!({ "jti": canary, "x": canary });
    let good = at.key.sign(header(&at.key).to_string(), with(&body(&token), &told).to_string());
    assert_eq!(at.send("DPoP", &token, &[&good]).await.summary(), "200 ok");
    let elsewhere = json!({ "htu": format!("https://{canary}.example/\n{canary}"), "jti": canary });
    let bad = at.key.sign(header(&at.key).to_string(), with(&body(&token), &elsewhere).to_string());
    for (scheme, proofs) in [("DPoP", vec![&*bad]), ("DPoP", vec![&*good]), ("Bearer", vec![]), (canary, vec![canary])]
    {
        assert_eq!(at.send(scheme, &token, &proofs).await.status(), "401", "{scheme}");
    }
    let certificates = CertificateGate::start(
        "optional",
        "mode = \"certificates\"\n[[auth.certificates]]\nsan = \"spiffe://corp/agents/*\"\n",
        "",
    )
    .await;
    for (name, status) in [(canary.to_owned(), "200"), (format!("{canary}\r\nforged line"), "401")] {
        let identity = certificates.agent(&name);
        let answer = certificates.send(certificates.client(Some(&identity)), &call().without("Authorization")).await;
        assert_eq!(answer.unwrap().status(), status);
    }
    let written = String::from_utf8_lossy(&log.0.lock()).into_owned();
    for reason in ["proof_request", "proof_repeated", "token_not_proven", "certificate_unknown"] {
        assert!(written.contains(reason), "{reason} is not logged: {written}");
    }
    for secret in [canary, &token, &good, "forged line"] {
        assert!(!written.contains(secret), "{secret} in the log");
    }
}

/// The gateway cannot prove the client's key to another server.
#[tokio::test]
async fn sec_41_a_bound_token_is_exchanged_only_where_the_configuration_says_so() {
    for (takes_bound, summary, asked) in [(false, "503 -32603 credential_bound", 0), (true, "200 ok", 1)] {
        let issued = json!({ "access_token": "issued", "token_type": "Bearer", "expires_in": 3600 }).to_string();
        let login = ScriptedServer::start(move |_| Some(json_text(issued.clone()))).await;
        let upstream = format!(
            "[upstreams.up.credential]\nexchange = {{ token_url = \"{}\", client_id = \"taskgate\", \
             client_secret = \"canary-3f9a\", resource = \"https://reports.internal/mcp\", bound_tokens = {takes_bound} }}",
            login.url()
        );
        let at = ProofGate::start("accept", &upstream).await;
        let bound = at.bound(&json!({}));
        let answer = at.send("DPoP", &bound, &[&proof(&at.key, &bound)]).await;
        assert_eq!((&*answer.summary(), login.world.all(|_| true).len()), (summary, asked), "{takes_bound}");
        assert_eq!(at.gate.server.world.all(SeenRequest::is_call).len(), asked, "{takes_bound}");
        assert_eq!(at.send("Bearer", &at.unbound(), &[]).await.summary(), "200 ok", "another token of the same person");
        assert_eq!(login.world.all(|_| true).len(), asked + 1, "{takes_bound}");
    }
}
