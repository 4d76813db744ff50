//! A request whose token lacks a scope, answered by another replica than the client's.

use bytes::Bytes;
use http_body_util::Full;
use serde_json::json;
use support::issuer::{IssuerKey, key_set};
use taskgate::task::{Clock as _, SystemClock};

use super::client::{Client, call, initialize};
use super::harness::{Replicas, before};
use super::upstream::ScriptedServer;

/// The challenge comes from the replica that answers: the owner of the session knows the tool, the other one the endpoint.
#[tokio::test]
async fn a_scope_that_is_missing_at_a_sessions_owner_is_named_at_every_replica() {
    let (server, key, folder) = (ScriptedServer::polite().await, IssuerKey::es256("k1"), tempfile::tempdir().unwrap());
    let keys = folder.path().join("keys.json");
    std::fs::write(&keys, key_set([&key])).unwrap();
    let served = format!(
        "public_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\n\
         [[auth.issuers]]\nissuer = \"https://login.example\"\nalgorithms = [\"ES256\"]\njwks_file = \"{}\"\n\
         {}[[upstreams.up.tools]]\nmatch = \"t\"\nscopes = [\"reports:write\", \"a,b\"]\n",
        keys.display(),
        before(&server)
    );
    let replicas = Replicas::serving(2, &served, &[]).await;
    let end = SystemClock.now().as_millis() / 1_000 + 300;
    let token = key.token(&json!({
        "iss": "https://login.example", "sub": "ada", "aud": "https://mcp.example/mcp", "exp": end, "scope": "mcp",
    }));
    let mut client = replicas.client_without_session(0);
    let body = initialize("2025-11-25", &json!({}));
    let post = |client: &Client, body: String| {
        let request = client.request("POST").header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {token}"));
        request.body(Full::new(Bytes::from(body))).unwrap()
    };
    let opened = client.send(post(&client, body)).await;
    client.session = Some(opened.header("mcp-session-id").unwrap().to_owned());
    client.version = Some("2025-11-25".to_owned());
    let mut answers = Vec::new();
    for at in [0, 1] {
        let client = replicas.at(at, &client);
        let refused = client.send(post(&client, call(1))).await;
        assert_eq!(refused.status, 403, "at {at}");
        assert_eq!(refused.header("taskgate-scopes-needed"), None, "clients see nothing of it");
        answers.push((refused.header("www-authenticate").map(str::to_owned), refused.text().await));
    }
    let metadata = "resource_metadata=\"https://mcp.example/.well-known/oauth-protected-resource/mcp\"";
    let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"mcp a,b reports:write\", {metadata}");
    assert_eq!(answers[0].0.as_deref(), Some(challenge.as_str()));
    assert_eq!(answers[0], answers[1]);
    assert_eq!(server.world.count("tools/call"), 0);
}
