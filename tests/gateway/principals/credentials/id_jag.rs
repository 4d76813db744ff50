//! Identity assertions (ID-JAG): the gateway exchanges a token of the company's identity provider for an assertion, and the
//! server's authorization server redeems it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Reply, SECRET, World, anything, held_answers, issued};
use crate::principals::gate::{Answer, Ask};
use crate::principals::upstream::{ScriptedReply, SeenRequest, json_text, status, whole};

const AUDIENCE: &str = "https://login.reports.internal";
const ASSERTION: &str = "assertion-canary.of.ada";
const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const TYPE: &str = "urn:ietf:params:oauth:token-type:";

fn id_jag(origin: &str) -> String {
    format!(
        "[upstreams.up.credential]\n\
         exchange = {{ token_url = \"{origin}/identity\", client_id = \"taskgate\", client_secret = \"{SECRET}\", \
         resource = \"https://reports.internal/mcp\", audience = \"{AUDIENCE}\", scope = \"a\", \
         subject_token_type = \"id_token\" }}\n\
         id_jag = {{ token_url = \"{origin}/token\", client_id = \"gate\", client_secret = \"{SECRET}-2\" }}"
    )
}

/// An answer of the identity provider, with some members changed.
fn assertion(changes: &Value) -> ScriptedReply {
    let answer = json!({
        "issued_token_type": format!("{TYPE}id-jag"), "access_token": ASSERTION, "token_type": "N_A", "expires_in": 300,
    });
    json_text(support::issuer::with(&answer, changes).to_string())
}

/// The identity provider's answer, then the authorization server's.
fn in_steps(
    first: impl Fn() -> ScriptedReply + Send + Sync + 'static,
    second: impl Fn() -> ScriptedReply + Send + Sync + 'static,
) -> Arc<Reply> {
    Arc::new(move |_, seen: SeenRequest| {
        let reply = if seen.target == "/identity" { first() } else { second() };
        Box::pin(std::future::ready(reply))
    })
}

fn refusing(code: u16, text: &str) -> ScriptedReply {
    let mut reply = json_text(text.to_owned());
    *reply.status_mut() = http::StatusCode::from_u16(code).unwrap();
    reply
}

impl World {
    /// The number of requests to an endpoint.
    fn asked_at(&self, target: &str) -> usize {
        self.login.world.all(|seen| seen.target == target).len()
    }
}

/// draft-ietf-oauth-identity-assertion-authz-grant; RFC 7523, 2.1.
#[tokio::test]
async fn sec_40_an_identity_assertion_goes_to_the_configured_authorization_server_alone() {
    let world = World::start(in_steps(|| assertion(&json!({})), || issued(1)), anything(), id_jag).await;
    let token = world.token("ada", &json!({}));
    for _ in 0..2 {
        assert_eq!(world.call(&token).await.status(), "200");
    }
    let requested = format!("{TYPE}id-jag");
    let subject_type = format!("{TYPE}id_token");
    let expected = [
        ("grant_type", EXCHANGE),
        ("requested_token_type", &*requested),
        ("subject_token", &*token),
        ("subject_token_type", &*subject_type),
        ("resource", "https://reports.internal/mcp"),
        ("audience", AUDIENCE),
        ("scope", "a"),
    ];
    assert_eq!(world.form(0), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let expected = [("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", ASSERTION)];
    assert_eq!(world.form(1), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(world.asked(), 2, "the second call has the token of the first");
    let seen = world.login.world.all(|_| true);
    // `taskgate:canary-3f9a` and `gate:canary-3f9a-2`
    let passwords = ["Basic dGFza2dhdGU6Y2FuYXJ5LTNmOWE=", "Basic Z2F0ZTpjYW5hcnktM2Y5YS0y"];
    assert_eq!(seen.iter().map(|seen| seen.header("authorization").unwrap()).collect::<Vec<_>>(), passwords);
    assert_eq!(world.credentials(), ["Bearer issued-1", "Bearer issued-1"]);
    let seen = world.gate.server.world.all(|_| true);
    let is_shown = |secret: &str| seen.iter().any(|seen| format!("{seen:?}").contains(secret));
    assert!(!is_shown(&token) && !is_shown(ASSERTION), "the server got a token that is not for it");
}

#[track_caller]
fn check(name: &str, refused: &Answer, kind: &str) {
    assert_eq!(refused.summary(), format!("503 -32603 credential_{kind}"), "{name}");
    assert_eq!(refused.json()["error"]["data"]["executed"], "no", "{name}");
    assert!(!refused.text().contains("canary"), "{name}: {refused:?}");
}

/// An access token in the place of an assertion would give the server's authorization server the person's rights at the gateway.
#[tokio::test]
async fn an_identity_provider_that_gives_no_assertion_is_named_and_its_answer_goes_nowhere() {
    type First = fn() -> ScriptedReply;
    let rows: [(&str, First, &str); 15] = [
        (
            "an access token",
            || assertion(&json!({ "issued_token_type": format!("{TYPE}access_token"), "token_type": "Bearer" })),
            "malformed",
        ),
        ("a token without its type", || assertion(&json!({ "issued_token_type": null })), "malformed"),
        ("another type", || assertion(&json!({ "issued_token_type": "id-jag" })), "malformed"),
        (
            "a type that is no text",
            || assertion(&json!({ "issued_token_type": [format!("{TYPE}id-jag")] })),
            "malformed",
        ),
        ("a bearer token", || assertion(&json!({ "token_type": "Bearer" })), "malformed"),
        ("no `token_type`", || assertion(&json!({ "token_type": null })), "malformed"),
        ("no assertion", || assertion(&json!({ "access_token": null })), "malformed"),
        ("an empty one", || assertion(&json!({ "access_token": "" })), "malformed"),
        ("one of two words", || assertion(&json!({ "access_token": "canary of-ada" })), "malformed"),
        ("one of 9,000 bytes", || assertion(&json!({ "access_token": "x".repeat(9_000) })), "malformed"),
        ("HTML", || whole(format!("<html>{ASSERTION}")), "malformed"),
        ("10 MiB", || whole(" ".repeat(10 << 20)), "malformed"),
        (
            "a policy that denies",
            || refusing(400, "{\"error\":\"access_denied\",\"error_description\":\"canary\"}"),
            "refused",
        ),
        ("429", || status(429), "unavailable"),
        ("500", || status(500), "unavailable"),
    ];
    for (name, first, kind) in rows {
        let world = World::start(in_steps(first, || issued(1)), anything(), id_jag).await;
        check(name, &world.call(&world.token("ada", &json!({}))).await, kind);
        assert_eq!((world.asked_at("/identity"), world.asked_at("/token")), (1, 0), "{name}");
        assert_eq!(world.credentials(), Vec::<String>::new(), "{name}");
    }
}

#[tokio::test]
async fn an_authorization_server_that_does_not_redeem_an_assertion_is_named_and_the_server_is_not_called() {
    type Second = fn() -> ScriptedReply;
    let rows: [(&str, Second, &str); 7] = [
        ("the assertion itself", || assertion(&json!({})), "malformed"),
        ("an assertion as a bearer token", || assertion(&json!({ "token_type": "Bearer" })), "malformed"),
        ("a DPoP token", || json_text("{\"access_token\":\"canary\",\"token_type\":\"DPoP\"}".to_owned()), "malformed"),
        ("HTML", || whole(format!("<html>{ASSERTION}")), "malformed"),
        ("an unknown client", || refusing(401, "{\"error\":\"invalid_client\"}"), "refused"),
        ("a refused assertion", || refusing(400, "{\"error\":\"invalid_grant\"}"), "refused"),
        ("503", || status(503), "unavailable"),
    ];
    for (name, second, kind) in rows {
        let world = World::start(in_steps(|| assertion(&json!({})), second), anything(), id_jag).await;
        check(name, &world.call(&world.token("ada", &json!({}))).await, kind);
        assert_eq!((world.asked_at("/identity"), world.asked_at("/token")), (1, 1), "{name}");
        assert_eq!(world.credentials(), Vec::<String>::new(), "{name}");
    }
}

/// An authorization server accepts an assertion once, so each token needs a new one.
#[tokio::test]
async fn a_hundred_calls_cause_one_assertion_and_a_renewal_another() {
    let (gate, reply) = held_answers();
    let reply: Arc<Reply> = Arc::new(move |n, seen: SeenRequest| match &*seen.target {
        "/identity" => Box::pin(std::future::ready(assertion(&json!({ "access_token": format!("assertion-{n}") })))),
        _ => reply(n, seen),
    });
    let world = World::start(reply, Arc::new(|value| value != "Bearer issued-2"), id_jag).await;
    let asks = vec![Ask::call(&world.token("ada", &json!({})), "quick", &json!({})); 100];
    gate.add_permits(3);
    let answers = world.gate.burst(&asks).await;
    assert!(answers.iter().all(|answer| answer.status() == "200"), "{:?}", answers[0]);
    assert_eq!(
        (world.asked_at("/identity"), world.asked_at("/token")),
        (2, 2),
        "the first token was refused by the server"
    );
    assert_eq!(
        (world.field(1, "assertion"), world.field(3, "assertion")),
        ("assertion-1".into(), "assertion-3".into())
    );
    assert_eq!(world.call(&world.token("bob", &json!({}))).await.status(), "200", "another person has another one");
}
