//! The headers for an upstream: its credential on every request, and the client's headers that the operator names.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use http::Method;
use http_body_util::Full;

use taskgate::app::files::{self, FileUse};

use super::client::{TestGateway, call};
use super::peers::{PAIRS, Person, SESSION, STATELESS, server};
use super::upstream::SeenRequest;

/// Headers of clients that are never forwarded, and one that may be.
const CLIENTS: [(&str, &str); 7] = [
    ("x-request-id", "r-1"),
    ("traceparent", "00-1"),
    ("authorization", "Bearer clients-own"),
    ("cookie", "c=1"),
    ("dpop", "proof"),
    ("proxy-authorization", "Basic cA=="),
    ("x-api-key", "clients-own"),
];

fn never(seen: &SeenRequest) {
    // The server gave one to the session.
    assert!(seen.header("cookie").is_none_or(|cookie| cookie == "a=b"), "SEC-04: {} {}", seen.method, seen.rpc());
    for name in ["dpop", "proxy-authorization", "traceparent"] {
        assert_eq!(seen.header(name), None, "SEC-04: {} {} {name}", seen.method, seen.rpc());
    }
}

/// SEC-04: header capture at the upstream.
#[tokio::test]
async fn named_headers_go_on_with_the_request_that_they_came_with_and_no_others() {
    for (client, kind) in PAIRS {
        let server = server(kind).await;
        let gate = TestGateway::with(server.address, "forward_headers = [\"X-Request-Id\"]").await;
        let person = Person::with(&gate, client, &CLIENTS).await;
        assert_eq!(person.call("plain").await, "plain", "{client} {kind}");
        let all = server.world.all(|_| true);
        for seen in &all {
            never(seen);
            assert_eq!(seen.header("authorization"), None, "SEC-04: {client} {kind} {}", seen.rpc());
            assert_eq!(seen.header("x-api-key"), None, "{client} {kind} {}", seen.rpc());
        }
        let with: Vec<_> =
            all.iter().filter(|seen| seen.header("x-request-id") == Some("r-1")).map(SeenRequest::rpc).collect();
        assert!(with.contains(&"tools/call"), "{client} {kind} {with:?}");
        if kind == SESSION {
            let call = server.world.first(SeenRequest::is_call).await;
            assert_eq!(call.header("cookie"), Some("a=b"), "{client}");
        }
        // The gateway's own sessions and requests have no header of any client.
        let is_own = |rpc: &&str| *rpc == "server/discover" || (client == STATELESS && *rpc != "tools/call");
        assert!(!with.iter().any(is_own), "{client} {kind} {with:?}");
    }
}

#[tokio::test]
async fn a_clients_authorization_goes_on_only_where_the_operator_says_so() {
    for (client, kind) in PAIRS {
        let server = server(kind).await;
        let gate = TestGateway::with(server.address, "forward_authorization = true").await;
        let person = Person::with(&gate, client, &CLIENTS).await;
        assert_eq!(person.call("plain").await, "plain", "{client} {kind}");
        let call = server.world.first(SeenRequest::is_call).await;
        assert_eq!(call.header("authorization"), Some("Bearer clients-own"), "{client} {kind}");
        assert_eq!(call.header("x-request-id"), None, "{client} {kind}");
        server.world.all(|_| true).iter().for_each(never);
    }
}

#[tokio::test]
async fn the_upstreams_credential_is_on_every_request_and_a_client_cannot_replace_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, "own-secret\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let in_file = format!("[upstreams.up.auth]\nheader = \"X-Api-Key\"\nvalue_file = {:?}\n", file.to_str().unwrap());
    for (keys, name, value) in [
        ("[upstreams.up.auth]\nauthorization = \"Bearer own-secret\"\n", "authorization", "Bearer own-secret"),
        (in_file.as_str(), "x-api-key", "own-secret"),
    ] {
        for (client, kind) in PAIRS {
            let server = server(kind).await;
            let gate = TestGateway::with(server.address, keys).await;
            let person = Person::with(&gate, client, &CLIENTS).await;
            assert_eq!(person.call("plain").await, "plain", "{client} {kind}");
            if client == SESSION && kind == SESSION {
                drop(person.client.get(None).await);
                drop(person.client.delete().await);
            }
            let all = server.world.all(|_| true);
            for seen in &all {
                assert_eq!(seen.header(name), Some(value), "{client} {kind} {} {}", seen.method, seen.rpc());
                assert_eq!(seen.headers.get_all(name).iter().count(), 1);
                never(seen);
            }
            if client == SESSION && kind == SESSION {
                for method in [Method::GET, Method::DELETE] {
                    assert!(all.iter().any(|seen| seen.method == method), "{method}");
                }
            }
        }
    }
}

/// B168.
#[tokio::test]
async fn b168_a_credential_file_that_others_can_read_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, "own-secret").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let text = format!(
        "[upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n[upstreams.up.auth]\nheader = \"X-Api-Key\"\nvalue_file = {:?}\n",
        file.to_str().unwrap()
    );
    let mut config = taskgate::config::parse("test", &text, &|_| None).unwrap().config;
    config.folder = folder.path().to_path_buf();
    let refused = files::check(&config, FileUse::Start);
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("`upstreams.up.auth.value_file`") && words.contains("mode 0640"), "{words}");
    assert!(!words.contains("own-secret"), "{words}");
}

/// The code for headers that differ from the body is one of 2026-07-28; older clients do not know it.
#[tokio::test]
async fn a_session_request_with_bad_protocol_headers_is_an_invalid_request() {
    let server = server(SESSION).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    let session = client.session.clone().unwrap();
    for (name, value) in [
        ("mcp-protocol-version", "2025-11-25"),
        ("mcp-protocol-version", "2031-01-01"),
        ("mcp-session-id", session.as_str()),
    ] {
        for verb in ["POST", "GET", "DELETE"] {
            let request = client.request(verb).header("content-type", "application/json").header(name, value);
            let body = if verb == "POST" { call(1) } else { String::new() };
            let reply = client.send(request.body(Full::from(body)).unwrap()).await;
            let status = reply.status.as_u16();
            let text = reply.text().await;
            assert!(status == 400 && text.contains("-32600") && text.contains(name), "{verb} {name}: {status} {text}");
        }
    }
    assert_eq!(client.post(call(2)).await.status, 200);
}
