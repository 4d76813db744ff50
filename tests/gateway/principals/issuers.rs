//! Issuers over HTTP: the locations of their keys, keys that are not used, and requests while the keys are unavailable.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use support::issuer::{IssuerKey, base64url, key_set, with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::gate::{Ask, Gate};
use super::tokens::{ISSUER, auth, claims};
use super::upstream::{BodySender, ScriptedReply, ScriptedServer, in_time, json_text, status};

const LISTEN: &str = "public_url = \"https://mcp.example\"";

type Reply = Box<dyn Fn(&str) -> ScriptedReply + Send>;

/// A server of documents, by their paths.
struct IssuerServer {
    server: ScriptedServer,
    reply: Arc<Mutex<Reply>>,
}

impl IssuerServer {
    async fn start(reply: impl Fn(&str) -> ScriptedReply + Send + 'static) -> Self {
        let reply: Arc<Mutex<Reply>> = Arc::new(Mutex::new(Box::new(reply)));
        let script = Arc::clone(&reply);
        let server = ScriptedServer::start(move |seen| Some((script.lock())(&seen.target))).await;
        Self { server, reply }
    }

    fn replies(&self, reply: impl Fn(&str) -> ScriptedReply + Send + 'static) {
        *self.reply.lock() = Box::new(reply);
    }

    fn origin(&self) -> String {
        self.server.url().origin().ascii_serialization()
    }

    /// The number of fetches of the keys.
    fn fetches(&self) -> usize {
        self.server.world.all(|seen| seen.target == "/keys").len()
    }

    /// A gateway that fetches its keys from this server.
    async fn gate(&self, more: &str) -> Gate {
        Gate::of(LISTEN, &auth(&format!("jwks_url = \"{}/keys\"", self.origin()), more), "").await
    }
}

fn ping(token: &str) -> Ask {
    Ask::call(token, "quick", &json!({}))
}

fn keys(keys: &[&IssuerKey]) -> impl Fn(&str) -> ScriptedReply + Send + 'static {
    let text = key_set(keys.iter().copied());
    move |_| json_text(text.clone())
}

async fn status_of(gate: &Gate, token: &str) -> String {
    gate.send(&ping(token)).await.status().to_owned()
}

async fn readiness(gate: &Gate) -> String {
    let mut stream = TcpStream::connect(gate.gateway.admin_address()).await.unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    in_time(stream.read_to_string(&mut text)).await.unwrap();
    text
}

/// The metadata's locations: RFC 8414 with the path inserted, OpenID Connect with the path inserted, and with the path in front.
#[tokio::test]
async fn metadata_is_found_at_each_of_its_three_locations_and_must_name_its_issuer() {
    let key = IssuerKey::es256("k1");
    for (place, named, expected) in [
        ("/.well-known/oauth-authorization-server/realms/one", "/realms/one", "200"),
        ("/.well-known/openid-configuration/realms/one", "/realms/one", "200"),
        ("/realms/one/.well-known/openid-configuration", "/realms/one", "200"),
        ("/.well-known/oauth-authorization-server/realms/one", "/realms/two", "503"),
        ("/.well-known/oauth-authorization-server/realms/one", "/realms/one/", "503"),
        ("/.well-known/oauth-authorization-server", "/realms/one", "503"),
    ] {
        let server = IssuerServer::start(|_| status(404)).await;
        let origin = server.origin();
        let metadata = json!({ "issuer": format!("{origin}{named}"), "jwks_uri": format!("{origin}/keys") });
        let set = key_set([&key]);
        server.replies(move |target| match target {
            "/keys" => json_text(set.clone()),
            found if found == place => json_text(metadata.to_string()),
            _ => status(404),
        });
        let issuer = format!("{origin}/realms/one");
        let auth = format!("mode = \"tokens\"\n[[auth.issuers]]\nissuer = \"{issuer}\"\n");
        let gate = Gate::of(LISTEN, &auth, "").await;
        let token = key.token(&with(&claims("ada"), &json!({ "iss": issuer })));
        assert_eq!(status_of(&gate, &token).await, expected, "{place} {named}");
    }
}

/// B253: a page of another program, a redirect, and another issuer's metadata, at the locations before the issuer's own.
#[tokio::test]
async fn b253_metadata_is_found_behind_the_answers_of_another_program() {
    let key = IssuerKey::es256("k1");
    let text = |text: &str| {
        let text = text.to_owned();
        Box::new(move |_: &str| json_text(text.clone())) as Reply
    };
    let moved = |_: &str| {
        let mut reply = status(302);
        reply.headers_mut().insert("location", "/login".parse().unwrap());
        reply
    };
    let rows: Vec<(&str, Reply)> = vec![
        ("a page", text("<html>welcome</html>")),
        ("nothing", text("")),
        ("a redirect", Box::new(moved)),
        ("500", Box::new(|_| status(500))),
        ("another issuer", text(r#"{"issuer":"https://root.example","jwks_uri":"https://root.example/keys"}"#)),
        ("a page of 1 MiB", text(&" ".repeat(1 << 20))),
    ];
    for (name, other) in rows {
        let server = IssuerServer::start(|_| status(404)).await;
        let (origin, set) = (server.origin(), key_set([&key]));
        let issuer = format!("{origin}/realms/one");
        let metadata = json!({ "issuer": issuer, "jwks_uri": format!("{origin}/keys") }).to_string();
        server.replies(move |target| match target {
            "/keys" => json_text(set.clone()),
            "/realms/one/.well-known/openid-configuration" => json_text(metadata.clone()),
            _ => other(target),
        });
        let auth = format!("mode = \"tokens\"\n[[auth.issuers]]\nissuer = \"{issuer}\"\n");
        let gate = Gate::of(LISTEN, &auth, "").await;
        let token = key.token(&with(&claims("ada"), &json!({ "iss": issuer })));
        assert_eq!(status_of(&gate, &token).await, "200", "{name}");
    }
}

/// No key of such a set is used, and the client gets 503.
#[tokio::test]
async fn a_key_set_that_cannot_be_used_answers_503_and_is_never_open() {
    let key = IssuerKey::es256("k1");
    let token = key.token(&claims("ada"));
    let weak = json!({ "kty": "RSA", "kid": "k1", "n": base64url([0xff; 128]), "e": "AQAB" });
    let private = with(&key.jwk(), &json!({ "d": "AAAA" }));
    let set = |keys: Value| json!({ "keys": keys }).to_string();
    let text = |text: String| move |_: &str| json_text(text.clone());
    let moved = key_set([&key]);
    let rows: Vec<(&str, Reply)> = vec![
        ("2 MiB", Box::new(text(format!("{}{}", key_set([&key]), " ".repeat(2 << 20))))),
        ("one id twice", Box::new(text(set(json!([key.jwk(), IssuerKey::es256("k1").jwk()]))))),
        ("a private key", Box::new(text(set(json!([private]))))),
        ("RSA of 1,024 bits", Box::new(text(set(json!([weak]))))),
        ("no keys", Box::new(text(set(json!([]))))),
        ("HTML", Box::new(text("<html>log in</html>".to_owned()))),
        ("nothing", Box::new(text(String::new()))),
        ("500", Box::new(|_| status(500))),
        ("404", Box::new(|_| status(404))),
        ("401", Box::new(|_| status(401))),
        (
            "a redirect to good keys",
            Box::new(move |target| match target {
                "/keys" => {
                    let mut reply = status(302);
                    reply.headers_mut().insert("location", "/moved".parse().unwrap());
                    reply
                }
                _ => json_text(moved.clone()),
            }),
        ),
        (
            "a body that breaks off",
            Box::new(|_| {
                let (body, reply) = BodySender::of_type("application/json");
                body.raw("{\"keys\":[");
                body.cut();
                reply
            }),
        ),
    ];
    for (name, reply) in rows {
        let server = IssuerServer::start(reply).await;
        let gate = server.gate("").await;
        let answer = gate.send(&ping(&token)).await;
        assert_eq!((answer.status(), answer.header("retry-after")), ("503", Some("30")), "{name}: {answer:?}");
        assert_eq!(
            answer.json()["error"]["message"],
            json!(
                "Service unavailable: the issuer of the token, or its keys, cannot be asked; nothing was done, try again later"
            ),
            "{name}"
        );
        assert!(readiness(&gate).await.ends_with("ready\nissuer_unknown\n"), "{name}");
        assert_eq!(gate.server.world.all(|seen| seen.is_call()).len(), 0, "{name}");
        assert_eq!(server.server.world.all(|seen| seen.target == "/moved").len(), 0, "{name}");
    }
}

/// B139, B140.
#[tokio::test]
async fn b139_b140_an_unknown_key_is_fetched_once_for_all_waiting_requests() {
    let (one, two, three) = (IssuerKey::es256("k1"), IssuerKey::es256("k2"), IssuerKey::es256("k3"));
    let server = IssuerServer::start(keys(&[&one])).await;
    let gate = server.gate("").await;
    assert_eq!(status_of(&gate, &one.token(&claims("ada"))).await, "200");
    assert!(readiness(&gate).await.ends_with("ready\n"));
    server.replies(keys(&[&one, &two]));
    let waiting: Vec<_> = (0..20).map(|n| ping(&two.token(&claims(&format!("user-{n}"))))).collect();
    let before = server.fetches();
    for answer in gate.burst(&waiting).await {
        assert_eq!(answer.status(), "200", "while both keys are published, no token is refused");
    }
    assert_eq!(server.fetches(), before + 1);
    for name in ["a third key", "and again"] {
        assert_eq!(status_of(&gate, &three.token(&claims("ada"))).await, "401", "{name}");
    }
    assert_eq!(server.fetches(), before + 1, "one fetch in 30 s");
}

/// B140.
#[tokio::test]
async fn b140_while_an_issuer_is_away_known_keys_serve_until_they_are_stale() {
    let (one, two) = (IssuerKey::es256("k1"), IssuerKey::es256("k2"));
    let server = IssuerServer::start(keys(&[&one])).await;
    let gate = server.gate("max_stale = \"10s\"").await;
    let token = one.token(&claims("ada"));
    assert_eq!(status_of(&gate, &token).await, "200");
    server.replies(|_| status(503));
    assert_eq!(status_of(&gate, &two.token(&claims("ada"))).await, "503", "it may be a new key");
    let fresh = one.token(&claims("bob"));
    assert_eq!(status_of(&gate, &fresh).await, "200", "a known key");
    let stale = async {
        while status_of(&gate, &token).await != "503" {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    in_time(stale).await;
    for (name, token) in [("remembered", &token), ("known", &fresh), ("new", &one.token(&claims("eve")))] {
        assert_eq!(status_of(&gate, token).await, "503", "{name}");
    }
    assert!(readiness(&gate).await.ends_with("ready\nissuer_unknown\n"));
}

/// The metadata of an issuer cannot lead the gateway to a private address of another machine. An issuer on this machine may have
/// its keys here.
#[tokio::test]
async fn an_issuer_that_cannot_be_reached_does_not_hold_the_start() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gate = Gate::of(LISTEN, &auth(&format!("jwks_url = \"http://{address}/keys\""), ""), "").await;
    assert!(readiness(&gate).await.contains("issuer_unknown"), "the issuer does not answer, and the gateway serves");
    assert_eq!(gate.send(&ping(super::gate::ADA)).await.summary(), "200 ok", "holders of keys are served");
    drop(listener);
    assert_eq!(status_of(&gate, &IssuerKey::es256("k1").token(&claims("ada"))).await, "503");
    assert_eq!(claims("ada")["iss"], json!(ISSUER));
}

/// An issuer withdraws all keys at once by an empty set. Only an issuer that cannot be reached keeps them until `max_stale`.
#[tokio::test]
async fn sec_53_an_issuer_that_publishes_no_usable_key_withdraws_the_known_ones() {
    let (one, two) = (IssuerKey::es256("k1"), IssuerKey::es256("k2"));
    let private = json!({ "keys": [with(&one.jwk(), &json!({ "d": "AAAA" }))] }).to_string();
    for (name, set) in [("empty", key_set([])), ("private keys", private)] {
        let server = IssuerServer::start(keys(&[&one])).await;
        let gate = server.gate("").await;
        let remembered = one.token(&claims("ada"));
        assert_eq!(status_of(&gate, &remembered).await, "200");
        server.replies(move |_| json_text(set.clone()));
        // An unknown key leads to a fetch.
        assert_eq!(status_of(&gate, &two.token(&claims("ada"))).await, "503", "{name}");
        for token in [&remembered, &one.token(&claims("bob"))] {
            assert_eq!(status_of(&gate, token).await, "503", "{name}");
        }
        assert!(readiness(&gate).await.ends_with("ready\nissuer_unknown\n"), "{name}");
    }
}

/// Another setting of the issuer, or of all tokens, ends streams. Its keys are the same.
#[tokio::test]
async fn sec_54_a_reload_keeps_the_keys_of_an_issuer_that_is_away() {
    let key = IssuerKey::es256("k1");
    let server = IssuerServer::start(keys(&[&key])).await;
    let location = |path: &str| format!("jwks_url = \"{}{path}\"", server.origin());
    let mut gate = server.gate("").await;
    assert_eq!(status_of(&gate, &key.token(&claims("ada"))).await, "200");
    server.replies(|_| status(503));
    let changes = [
        ("an audience", auth(&location("/keys"), "audiences = [\"api://taskgate\"]"), "200"),
        ("a scope", auth(&location("/keys"), "").replace("scopes = [\"mcp\"]", "scopes = []"), "200"),
        ("proofs", auth(&location("/keys"), "").replace("scopes", "dpop = \"accept\"\nscopes"), "200"),
        ("other keys", auth(&location("/others"), ""), "503"),
    ];
    for (name, auth, expected) in changes {
        let text = format!("[listen]\n{LISTEN}\n[auth]\n{auth}[upstreams.up]\nurl = \"http://127.0.0.1:9/mcp\"\n");
        let changed = taskgate::config::parse("test.toml", &text, &|_| None).unwrap().config;
        gate.reload(changed.auth).unwrap();
        assert_eq!(status_of(&gate, &key.token(&claims("bob"))).await, expected, "{name}");
    }
}
