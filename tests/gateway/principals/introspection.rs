//! Introspection over HTTP: tokens that only their issuer can read, and requests while the issuer does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use support::issuer::{IssuerKey, with};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::gate::{ADA, Ask, Gate};
use super::tokens::{AUDIENCE, ISSUER, auth, claims, now};
use super::upstream::{ScriptedReply, ScriptedServer, SeenRequest, json_text, status, whole};

const LISTEN: &str = "public_url = \"https://mcp.example\"";
const SECRET: &str = "canary-91bd";
const OPAQUE: &str = "opaque~token/of+ada==";

struct World {
    issuer: ScriptedServer,
    gate: Gate,
}

impl World {
    /// `tokens` is the key of that name.
    async fn start(tokens: &str, reply: impl Fn(&SeenRequest) -> ScriptedReply + Send + Sync + 'static) -> Self {
        Self::before(ScriptedServer::start(move |seen| Some(reply(seen))).await, tokens).await
    }

    async fn before(issuer: ScriptedServer, tokens: &str) -> Self {
        Self::behind(issuer, LISTEN, tokens).await
    }

    async fn behind(issuer: ScriptedServer, listen: &str, tokens: &str) -> Self {
        let at = issuer.address;
        let asked = format!(
            "introspection = {{ url = \"http://{at}/introspect\", client_id = \"taskgate\", client_secret = \"{SECRET}\", \
             tokens = \"{tokens}\" }}"
        );
        let gate = Gate::of(listen, &auth(&format!("jwks_url = \"http://{at}/keys\""), &asked), "").await;
        Self { issuer, gate }
    }

    fn questions(&self) -> Vec<SeenRequest> {
        self.issuer.world.all(|seen| seen.target == "/introspect")
    }

    async fn ask(&self, token: &str) -> String {
        self.gate.send(&ask(token)).await.summary()
    }
}

fn ask(token: &str) -> Ask {
    Ask::call(token, "quick", &json!({}))
}

fn active(changes: &Value) -> Value {
    let base = json!({ "active": true, "client_id": "cli", "token_type": "Bearer" });
    with(&with(&base, &claims("ada")), changes)
}

fn says(answer: Value) -> impl Fn(&SeenRequest) -> ScriptedReply + Send + Sync + 'static {
    move |_| json_text(answer.to_string())
}

/// RFC 7662, 2.2: the claims are checked as in a signed token.
#[tokio::test]
async fn claims_from_introspection_are_checked_as_those_of_a_signed_token() {
    let rows = [
        ("good", active(&json!({})), "200 ok"),
        ("no issuer named", active(&json!({ "iss": null })), "200 ok"),
        ("no subject: the client", active(&json!({ "sub": null })), "200 ok"),
        ("several audiences", active(&json!({ "aud": ["x", AUDIENCE] })), "200 ok"),
        ("no type", active(&json!({ "token_type": null })), "200 ok"),
        ("not active", json!({ "active": false }), "401 -32600"),
        ("another issuer", active(&json!({ "iss": "https://evil.example" })), "401 -32600"),
        ("another audience", active(&json!({ "aud": "https://mcp.example/other/mcp" })), "401 -32600"),
        ("no audience", active(&json!({ "aud": null })), "401 -32600"),
        ("expired", active(&json!({ "exp": now() - 61 })), "401 -32600"),
        ("no end", active(&json!({ "exp": null })), "401 -32600"),
        ("an end as a text", active(&json!({ "exp": "4102444800" })), "401 -32600"),
        ("not yet", active(&json!({ "nbf": now() + 120 })), "401 -32600"),
        ("neither subject nor client", active(&json!({ "sub": null, "client_id": null })), "401 -32600"),
        ("bound to a key", active(&json!({ "cnf": { "jkt": "x" } })), "401 -32600"),
        ("a DPoP token", active(&json!({ "token_type": "DPoP" })), "401 -32600"),
        ("a refresh token", active(&json!({ "token_type": "refresh_token" })), "401 -32600"),
        ("a scope missing", active(&json!({ "scope": "other" })), "403 -32600 insufficient_scope"),
    ];
    for (name, answer, expected) in rows {
        let world = World::start("opaque", says(answer)).await;
        assert_eq!(world.ask(OPAQUE).await, expected, "{name}");
        let questions = world.questions();
        assert_eq!(questions.len(), 1, "{name}");
        assert_eq!(questions[0].bytes, "token=opaque%7Etoken%2Fof%2Bada%3D%3D&token_type_hint=access_token");
        assert!(questions[0].header("authorization").is_some_and(|value| value.starts_with("Basic ")), "{name}");
        let upstream = world.gate.server.world.all(|_| true);
        assert!(upstream.iter().all(|seen| seen.header("authorization").is_none()), "{name}: it went upstream");
    }
}

/// RFC 6749, 2.3.1: where the issuer takes no HTTP Basic.
#[tokio::test]
async fn the_password_is_sent_in_the_form_if_the_operator_says_so() {
    let issuer = ScriptedServer::start(|_| Some(json_text(active(&json!({})).to_string()))).await;
    let asked = format!(
        "introspection = {{ url = \"http://{}/introspect\", client_id = \"task gate\", client_secret = \"{SECRET}\", client_auth = \"post\" }}",
        issuer.address
    );
    let gate = Gate::of(LISTEN, &auth("jwks_url = \"http://127.0.0.1:9/keys\"", &asked), "").await;
    assert_eq!(gate.send(&ask(OPAQUE)).await.summary(), "200 ok");
    let question = issuer.world.first(|seen| seen.target == "/introspect").await;
    assert_eq!(question.header("authorization"), None);
    let fields: Vec<_> = url::form_urlencoded::parse(&question.bytes).into_owned().collect();
    let own = [("client_id", "task gate"), ("client_secret", SECRET)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(fields[2..], own);
}

/// The answer is 503 with `Retry-After`: clients would log in again at 401.
#[tokio::test]
async fn sec_39_an_issuer_that_cannot_be_asked_is_503_and_never_open() {
    let text = |text: String| {
        Box::new(move |_: &SeenRequest| json_text(text.clone()))
            as Box<dyn Fn(&SeenRequest) -> ScriptedReply + Send + Sync>
    };
    let code = |code: u16| {
        Box::new(move |_: &SeenRequest| status(code)) as Box<dyn Fn(&SeenRequest) -> ScriptedReply + Send + Sync>
    };
    let rows = [
        ("active as a text", text(active(&json!({ "active": "true" })).to_string())),
        ("active as a number", text(active(&json!({ "active": 1 })).to_string())),
        ("no active", text(active(&json!({ "active": null })).to_string())),
        ("active twice", text("{\"active\":false,\"active\":true}".to_owned())),
        ("a list", text(format!("[{}]", active(&json!({}))))),
        ("nothing", text(String::new())),
        ("10 MiB", text(" ".repeat(10 << 20))),
        ("HTML", Box::new(|_: &SeenRequest| whole("<html></html>"))),
        ("302", code(302)),
        ("204", code(204)),
        ("401", code(401)),
        ("404", code(404)),
        ("500", code(500)),
    ];
    for (name, reply) in rows {
        let world = World::start("opaque", reply).await;
        let answer = world.gate.send(&ask(OPAQUE)).await;
        assert_eq!((answer.status(), answer.header("retry-after")), ("503", Some("30")), "{name}: {answer:?}");
        assert!(
            !answer.text().contains(SECRET) && world.gate.server.world.all(SeenRequest::is_call).is_empty(),
            "{name}"
        );
    }
    // The issuer's port is closed from here on.
    let world = World::start("opaque", says(active(&json!({})))).await;
    let World { issuer, gate } = world;
    drop(issuer);
    assert_eq!(gate.send(&ask(OPAQUE)).await.status(), "503");
    assert_eq!(gate.send(&ask(ADA)).await.status(), "200", "keys are no matter of an issuer");
}

/// The form of a credential decides whether the issuer is asked; the gateway does not try both.
#[tokio::test]
async fn an_issuer_is_asked_about_the_tokens_of_one_form_alone() {
    let key = IssuerKey::es256("k1");
    let signed = key.token(&claims("ada"));
    let without_algorithm = key.sign("{\"typ\":\"at+jwt\"}", claims("ada").to_string());
    let set = support::issuer::key_set([&key]);
    for (tokens, token, expected, questions) in [
        ("opaque", OPAQUE, "200 ok", 1),
        ("opaque", &*signed, "200 ok", 0),
        ("opaque", &*without_algorithm, "200 ok", 1),
        ("signed", OPAQUE, "401 -32600", 0),
        ("signed", &*signed, "200 ok", 1),
        ("all", OPAQUE, "200 ok", 1),
        ("all", &*signed, "200 ok", 1),
    ] {
        let set = set.clone();
        let answer = active(&json!({})).to_string();
        let world = World::start(tokens, move |seen| match &*seen.target {
            "/keys" => json_text(set.clone()),
            _ => json_text(answer.clone()),
        });
        let world = world.await;
        assert_eq!(world.ask(token).await, expected, "{tokens} {token}");
        assert_eq!(world.questions().len(), questions, "{tokens} {token}");
        let keys = world.issuer.world.all(|seen| seen.target == "/keys").len();
        assert!(tokens == "opaque" || keys == 0, "no key is needed: {tokens}");
    }
}

#[tokio::test]
async fn an_issuer_that_calls_a_signed_token_revoked_is_believed() {
    let key = IssuerKey::es256("k1");
    let world = World::start("all", says(json!({ "active": false }))).await;
    assert_eq!(world.ask(&key.token(&claims("ada"))).await, "401 -32600");
    let stranger = key.token(&with(&claims("ada"), &json!({ "iss": "https://evil.example" })));
    assert_eq!((world.ask(&stranger).await, world.questions().len()), ("401 -32600".to_owned(), 1));
}

/// Tokens of either form from one issuer are one person's; tokens of another issuer are another person's.
#[tokio::test]
async fn a_task_is_found_by_its_owners_other_tokens() {
    let world = World::start("opaque", |seen: &SeenRequest| {
        let subject = if String::from_utf8_lossy(&seen.bytes).contains("bob") { "bob" } else { "ada" };
        json_text(active(&json!({ "sub": subject, "iss": ISSUER })).to_string())
    });
    let world = world.await;
    let made = world.gate.send(&Ask::call("ada-1", "held", &json!({}))).await;
    let id = made.json()["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made:?}")).to_owned();
    let get = |token: &str| Ask::new(token, "tasks/get", json!({ "taskId": id }));
    assert_eq!(world.gate.send(&get("ada-2")).await.summary(), "200 ok");
    let foreign = world.gate.send(&get("bob-1")).await;
    let unknown = world.gate.send(&Ask::new("bob-1", "tasks/get", json!({ "taskId": "0".repeat(32) }))).await;
    assert_eq!(foreign.body, unknown.body);
}

#[tokio::test]
async fn one_question_serves_all_and_is_finished_though_its_client_leaves() {
    let (gate, asked) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, count) = (Arc::clone(&gate), Arc::clone(&asked));
    let issuer = ScriptedServer::slow(move |_, _| {
        let (held, count) = (Arc::clone(&held), Arc::clone(&count));
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            held.acquire().await.unwrap().forget();
            Some(json_text(active(&json!({})).to_string()))
        }
    });
    let world = World::before(issuer.await, "all").await;
    let mut stream = TcpStream::connect(world.gate.gateway.address()).await.unwrap();
    stream.write_all(&ask(OPAQUE).bytes()).await.unwrap();
    world.issuer.world.first(|_| true).await;
    drop(stream);
    let asks = vec![ask(OPAQUE); 100];
    let (answers, ()) = tokio::join!(world.gate.burst(&asks), async { gate.add_permits(1) });
    assert!(answers.iter().all(|answer| answer.summary() == "200 ok"), "{:?}", answers[0]);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// While the issuer does not answer, lookups of one address leave some to other addresses.
#[tokio::test]
async fn sec_44_one_address_has_a_share_of_the_questions_to_an_issuer() {
    const SHARE: usize = 256;
    let held = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&held);
    let issuer = ScriptedServer::slow(move |seen, _| {
        let gate = Arc::clone(&gate);
        async move {
            if String::from_utf8_lossy(&seen.bytes).contains("junk") {
                gate.acquire().await.unwrap().forget();
            }
            Some(json_text(active(&json!({})).to_string()))
        }
    });
    let listen = format!("{LISTEN}\ntrusted_proxies = [\"127.0.0.1\"]");
    let world = World::behind(issuer.await, &listen, "opaque").await;
    let from = |address: &str, token: &str| ask(token).with("X-Forwarded-For", address);
    let mut streams = Vec::new();
    for nth in 0..SHARE {
        let mut stream = TcpStream::connect(world.gate.gateway.address()).await.unwrap();
        // All addresses of an IPv6 network are one client's.
        stream.write_all(&from(&format!("2001:db8::{nth:x}"), &format!("junk-{nth}")).bytes()).await.unwrap();
        streams.push(stream);
    }
    world.issuer.world.nth(SHARE - 1, |_| true).await;
    let refused = world.gate.send(&from("2001:db8::ffff", "junk-more")).await;
    assert_eq!((refused.status(), refused.header("retry-after")), ("503", Some("30")), "{refused:?}");
    assert_eq!(world.gate.send(&from("2001:db8:0:1::1", OPAQUE)).await.summary(), "200 ok", "another client is served");
    assert_eq!(world.questions().len(), SHARE + 1);
    held.add_permits(SHARE);
}

/// An address may ask about 256 tokens that are not active, and then about ten in a second.
#[tokio::test]
async fn sec_51_an_address_that_sends_unknown_tokens_is_refused_and_good_tokens_are_served() {
    let listen = format!("{LISTEN}\ntrusted_proxies = [\"127.0.0.1\"]");
    let issuer = ScriptedServer::start(|seen| {
        let is_junk = String::from_utf8_lossy(&seen.bytes).contains("junk");
        Some(json_text(if is_junk { json!({ "active": false }) } else { active(&json!({})) }.to_string()))
    });
    let world = World::behind(issuer.await, &listen, "opaque").await;
    let from = |address: &str, token: &str| ask(token).with("X-Forwarded-For", address);
    let (flooding, other) = ("192.0.2.7", "192.0.2.8");
    assert_eq!(world.gate.send(&from(flooding, OPAQUE)).await.summary(), "200 ok");
    let mut refused = None;
    for round in 0..1_000 {
        let junk: Vec<_> = (0..100).map(|n| from(flooding, &format!("junk-{round}-{n}"))).collect();
        let answers = world.gate.burst(&junk).await;
        assert!(answers.iter().all(|answer| ["401", "429", "503"].contains(&answer.status())), "{answers:?}");
        refused = answers.into_iter().find(|answer| answer.status() == "429");
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!(refused.header("retry-after"), Some("1"));
    let sentence = "Too many requests: this address sent many access tokens that are not active; nothing was done, try again later";
    assert_eq!(refused.json()["error"]["message"], sentence);
    assert_eq!(world.gate.send(&from(flooding, OPAQUE)).await.summary(), "200 ok", "it is known");
    assert_eq!(world.gate.send(&from(other, "another")).await.summary(), "200 ok", "another address asks");
}

/// Each question had a connection, and a reading of the system's roots, of its own.
#[tokio::test]
async fn questions_to_an_issuer_share_its_connections() {
    let world = World::start("opaque", says(json!({ "active": false }))).await;
    for n in 0..40 {
        assert_eq!(world.ask(&format!("token-{n}")).await, "401 -32600");
    }
    let connections = world.issuer.world.connections.load(Ordering::Relaxed);
    assert_eq!(world.questions().len(), 40);
    // An idle one is closed after 4 s, which a slow machine may take.
    assert!(connections <= 20, "{connections}");
}

/// Two people of one client: without a subject, both would be the client, with its tasks.
#[tokio::test]
async fn sec_52_a_person_without_a_subject_is_not_taken_for_the_client() {
    let rows = [
        (json!({ "username": "ada" }), "401 -32600"),
        (json!({ "preferred_username": "ada" }), "401 -32600"),
        (json!({ "email": "ada@company.example" }), "401 -32600"),
        (json!({ "upn": "ada@company.example" }), "401 -32600"),
        (json!({ "username": 7 }), "401 -32600"),
        (json!({ "username": "cli" }), "200 ok"),
        (json!({}), "200 ok"),
    ];
    for (names, expected) in rows {
        let world = World::start("opaque", says(active(&with(&json!({ "sub": null }), &names)))).await;
        assert_eq!(world.ask(OPAQUE).await, expected, "{names}");
    }
    let world = World::start("opaque", says(active(&json!({ "username": "ada" })))).await;
    assert_eq!(world.ask(OPAQUE).await, "200 ok", "the subject is the person");
}
