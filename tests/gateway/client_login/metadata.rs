//! The metadata of a protected server, under the gateway's address.

use http_body_util::Full;
use serde_json::{Value, json};
use support::scripted::{ScriptedReply, ScriptedServer, SeenRequest, json_text, status, whole};
use support::session_client::{Reply, TestGateway};

use super::fixture::{Caller, FORWARDS, SESSION, WELL_KNOWN, challenged, protected};

/// The server's metadata.
fn document() -> Value {
    json!({
        "resource": "http://up.example/mcp",
        "authorization_servers": ["https://as.example"],
        "scopes_supported": ["files:read"],
        "signed_metadata": "a.b.c",
    })
}

async fn ask(gate: &TestGateway, method: &str, path: &str, more: &[(&str, &str)]) -> Reply {
    let client = gate.client_without_session();
    let mut request = client.request(method).uri(path);
    for (name, value) in more {
        request.headers_mut().unwrap().insert(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    client.send(request.body(Full::default()).unwrap()).await
}

async fn with_document(at: &'static str, reply: impl Fn() -> ScriptedReply + Send + Sync + 'static) -> ScriptedServer {
    protected(SESSION, move |seen| {
        let asked = seen.target.starts_with("/.well-known") || seen.target == "/meta";
        asked.then(|| if seen.target == at { reply() } else { status(404) })
    })
    .await
}

fn ours(gate: &TestGateway) -> Value {
    let mut ours = document();
    ours["resource"] = json!(format!("{}/mcp", gate.gateway.base_url()));
    ours.as_object_mut().unwrap().remove("signed_metadata");
    ours
}

/// RFC 9728, 3.
#[tokio::test]
async fn metadata_is_served_to_everybody_with_our_address_in_it() {
    const OURS: &str = "/.well-known/oauth-protected-resource/mcp";
    for at in ["/.well-known/oauth-protected-resource/mcp", WELL_KNOWN] {
        let server = with_document(at, || json_text(document().to_string())).await;
        for auth in [
            "",
            "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"tg_ada_00112233445566778899aabbccddeeff\"\n",
        ] {
            let gate = TestGateway::open(auth, server.url().as_ref(), FORWARDS).await;
            let reply = ask(&gate, "GET", OURS, &[]).await;
            assert_eq!(
                (reply.status.as_u16(), reply.header("content-type")),
                (200, Some("application/json")),
                "{at} {auth}"
            );
            assert_eq!(reply.json().await, ours(&gate), "{at} {auth}");
            let head = ask(&gate, "HEAD", OURS, &[]).await;
            assert_eq!((head.status.as_u16(), head.text().await.as_str()), (200, ""));
            assert_eq!(ask(&gate, "POST", OURS, &[("content-type", "application/json")]).await.status, 405);
            for path in [
                WELL_KNOWN,
                "/.well-known/oauth-protected-resource/other/mcp",
                "/.well-known/oauth-authorization-server",
                "/register",
            ] {
                assert_eq!(ask(&gate, "GET", path, &[]).await.status, 404, "{path}");
            }
        }
    }
}

#[tokio::test]
async fn the_address_in_metadata_never_comes_from_a_request() {
    let server = with_document("/.well-known/oauth-protected-resource/mcp", || json_text(document().to_string())).await;
    let url = server.url().to_string();
    let gate = TestGateway::open("allowed_hosts = [\"mcp.example\", \"evil.example\"]", &url, FORWARDS).await;
    for forged in [
        &[("host", "evil.example")][..],
        &[("forwarded", "host=evil.example;proto=https")],
        &[("x-forwarded-host", "evil.example")],
    ] {
        let reply = ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", forged).await;
        assert_eq!(reply.json().await, ours(&gate), "{forged:?}");
    }
    let gate = TestGateway::open("public_url = \"https://mcp.example\"", &url, FORWARDS).await;
    let reply = ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[("host", "mcp.example")]).await;
    assert_eq!(reply.json().await["resource"], "https://mcp.example/mcp");
    let refused = Caller::new(&gate, SESSION, None).initialize().await;
    let challenge = refused.header("www-authenticate").unwrap();
    assert!(challenge.contains("\"https://mcp.example/.well-known/oauth-protected-resource/mcp\""), "{challenge}");
    let gate = TestGateway::open("", &url, &format!("{FORWARDS}\noauth_resource = \"upstream\"")).await;
    let reply = ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[]).await;
    assert_eq!(reply.json().await, document());
}

/// Pages that may call can read the documents for their login.
#[tokio::test]
async fn pages_of_allowed_origins_read_metadata_and_challenges() {
    let server = with_document(WELL_KNOWN, || json_text(document().to_string())).await;
    let gate = TestGateway::open("allowed_origins = [\"https://app.example\"]", server.url().as_ref(), FORWARDS).await;
    let reply =
        ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[("origin", "https://app.example")]).await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("access-control-allow-origin")),
        (200, Some("https://app.example"))
    );
    assert!(reply.header("access-control-expose-headers").unwrap().contains("WWW-Authenticate"));
    let reply =
        ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[("origin", "https://evil.example")]).await;
    assert_eq!(reply.status, 403);
}

type Answering = fn() -> ScriptedReply;

/// Faults of metadata, and the answer to a client.
#[tokio::test]
async fn metadata_of_no_use_is_not_passed_on() {
    let redirect = || {
        let mut reply = status(302);
        reply.headers_mut().insert("location", "http://evil.example/meta".parse().unwrap());
        reply
    };
    let rows: [(&str, Answering, u16, &str); 12] = [
        ("not found", || status(404), 404, "no metadata"),
        ("behind a credential", || challenged(401, &[b"Bearer"]), 404, "no metadata"),
        ("an error", || status(500), 502, "with an error"),
        ("a redirect", redirect, 502, "not followed"),
        ("HTML", || whole("<html>"), 502, "not application/json"),
        ("broken", || json_text("{\"resource\":"), 502, "not JSON"),
        ("an array", || json_text("[]"), 502, "not an object"),
        ("nothing in it", || json_text("{}"), 502, "`resource`"),
        ("deep", || json_text("[".repeat(60_000)), 502, "not JSON"),
        ("a resource that is none", || json_text("{\"resource\":\"javascript:alert(1)\"}"), 502, "`resource`"),
        (
            "servers that are none",
            || json_text("{\"resource\":\"https://up\",\"authorization_servers\":[7]}"),
            502,
            "`authorization_servers`",
        ),
        (
            "too large",
            || json_text(format!("{{\"resource\":\"https://up\",\"x\":\"{}\"}}", "x".repeat(70_000))),
            502,
            "64 KiB",
        ),
    ];
    for (what, reply, code, words) in rows {
        let server = with_document("/.well-known/oauth-protected-resource/mcp", reply).await;
        let gate = TestGateway::with(server.address, FORWARDS).await;
        let shown = ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[]).await;
        assert_eq!(shown.status, code, "{what}");
        let body = shown.text().await;
        assert!(body.contains(words), "{what}: {body}");
    }
    // No server listens there.
    let gate = TestGateway::open("", "http://127.0.0.1:9/mcp", FORWARDS).await;
    assert_eq!(ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[]).await.status, 502);
}

/// Where a server says that its metadata is: followed at its own origin alone.
#[tokio::test]
async fn metadata_of_a_foreign_origin_is_not_fetched() {
    let elsewhere = with_document("/meta", || json_text(document().to_string())).await;
    let foreign = format!("http://{}/meta", elsewhere.address);
    for (announced, own, expected) in [
        (None, "/meta", 200),
        (Some(foreign.clone()), "/nowhere", 502),
        (Some(foreign), "/.well-known/oauth-protected-resource/mcp", 200),
        (Some("not an address".to_owned()), "/nowhere", 404),
    ] {
        let server = {
            let announced = announced.clone();
            protected(SESSION, move |seen: &SeenRequest| {
                if seen.target == own {
                    return Some(json_text(document().to_string()));
                }
                if seen.target.starts_with("/.well-known") || seen.target == "/not%20an%20address" {
                    return Some(status(404));
                }
                let host = seen.header("host").unwrap();
                let address = announced.clone().unwrap_or_else(|| format!("http://{host}/meta"));
                Some(challenged(401, &[format!("Bearer resource_metadata=\"{address}\"").as_bytes()]))
            })
            .await
        };
        let gate = TestGateway::with(server.address, FORWARDS).await;
        assert_eq!(Caller::new(&gate, SESSION, None).initialize().await.status, 401);
        let reply = ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[]).await;
        assert_eq!(reply.status, expected, "{announced:?} {own}");
    }
    assert_eq!(elsewhere.world.all(|_| true).len(), 0, "no request went there");
}

#[tokio::test]
async fn metadata_is_fetched_once_for_all_clients_of_a_minute() {
    let server = with_document("/.well-known/oauth-protected-resource/mcp", || json_text(document().to_string())).await;
    let gate = TestGateway::with(server.address, FORWARDS).await;
    let many = (0..8).map(|_| ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[]));
    for reply in futures_util::future::join_all(many).await {
        assert_eq!(reply.status, 200);
    }
    assert_eq!(server.world.all(|_| true).len(), 1);
    let seen = server.world.first(|_| true).await;
    assert_eq!((seen.header("accept"), seen.header("authorization")), (Some("application/json"), None));
}

#[tokio::test]
async fn servers_whose_clients_do_not_log_in_by_themselves_have_no_metadata() {
    let server = with_document("/.well-known/oauth-protected-resource/mcp", || json_text(document().to_string())).await;
    let gate = TestGateway::with(server.address, "").await;
    assert_eq!(ask(&gate, "GET", "/.well-known/oauth-protected-resource/mcp", &[]).await.status, 404);
    assert_eq!(server.world.all(|_| true).len(), 0);
}
