//! A server's 401 and 403 reach its clients as refusals of their credential.

use http::Method;
use serde_json::json;
use support::session_client::{Reply, TestGateway};

use super::fixture::{
    CHALLENGE, Caller, FORWARDS, PAIRS, SESSION, STATELESS, challenged, challenges, metadata_address, protected, said,
};

/// Status, challenges, and the id and reason of the error in the body.
async fn shown(reply: Reply) -> (u16, Vec<String>, String) {
    let (code, found) = (reply.status.as_u16(), challenges(&reply).into_iter().map(str::to_owned).collect());
    let body = said(reply).await;
    (code, found, format!("{} {}", body["id"], body["error"]["data"]["reason"].as_str().unwrap_or_default()))
}

/// U03.
#[tokio::test]
async fn u03_a_client_without_credential_gets_a_challenge_with_the_gateways_metadata() {
    for (client, kind) in PAIRS {
        let server = protected(kind, |_| None).await;
        let gate = TestGateway::with(server.address, FORWARDS).await;
        let expected = vec![CHALLENGE.replace("http://up.example/meta", &metadata_address(&gate))];
        for token in [None, Some("bad")] {
            let caller = Caller::new(&gate, client, token);
            if client == SESSION {
                let id = "0 upstream_auth".to_owned();
                assert_eq!(shown(caller.initialize().await).await, (401, expected.clone(), id), "{client} {kind}");
                continue;
            }
            for reply in [
                caller.ask("server/discover", json!({})).await,
                caller.ask("tools/list", json!({})).await,
                caller.call("plain").await,
                caller.ask("prompts/list", json!({})).await,
                caller.ask("resources/read", json!({"uri": "a:b"})).await,
                caller.ask("subscriptions/listen", json!({"notifications": {"toolsListChanged": true}})).await,
            ] {
                let id = "7 upstream_auth".to_owned();
                assert_eq!(shown(reply).await, (401, expected.clone(), id), "{client} {kind} {token:?}");
            }
        }
        let caller = Caller::let_in(&gate, client, "good").await;
        assert_eq!(said(caller.call("plain").await).await["result"]["content"][0]["text"], "plain", "{client} {kind}");
    }
}

/// U03.
#[tokio::test]
async fn u03_a_credential_that_expires_is_asked_for_anew_wherever_it_is_shown() {
    for (client, kind) in PAIRS {
        let server = protected(kind, |_| None).await;
        let gate = TestGateway::with(server.address, FORWARDS).await;
        let mut caller = Caller::let_in(&gate, client, "good").await;
        assert_eq!(caller.call("plain").await.status, 200);
        if client == SESSION {
            // The session is the credential's; another one has none.
            caller.token = Some("bad");
            assert_eq!(caller.call("plain").await.status, 404, "{kind}");
            continue;
        }
        caller.token = Some("bad");
        for reply in [caller.call("plain").await, caller.ask("tools/list", json!({})).await] {
            assert_eq!(reply.status, 401, "{client} {kind}: nothing that another credential was shown is shown");
        }
    }
}

/// The server itself refuses a token that the gateway has seen before.
#[tokio::test]
async fn u03_a_session_whose_credential_is_refused_later_hears_of_it_on_every_request() {
    let refused = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_refused = std::sync::Arc::clone(&refused);
    let server = protected(SESSION, move |_| {
        let is_refused = is_refused.load(std::sync::atomic::Ordering::SeqCst);
        is_refused.then(|| challenged(401, &[CHALLENGE.as_bytes()]))
    })
    .await;
    let gate = TestGateway::with(server.address, FORWARDS).await;
    let people = [Caller::let_in(&gate, SESSION, "good").await, Caller::let_in(&gate, STATELESS, "good").await];
    for person in &people {
        assert_eq!(person.call("plain").await.status, 200);
    }
    refused.store(true, std::sync::atomic::Ordering::SeqCst);
    for person in &people {
        let reply = person.call("plain").await;
        assert_eq!((reply.status.as_u16(), challenges(&reply).len()), (401, 1));
    }
    let [person, _] = &people;
    for reply in
        [person.ask("tools/list", json!({})).await, person.ask("prompts/list", json!({})).await, person.get().await]
    {
        assert_eq!((reply.status.as_u16(), challenges(&reply).len()), (401, 1));
    }
}

/// A client of such calls would get nothing but a handle.
#[tokio::test]
async fn u03_a_call_that_is_a_task_from_its_beginning_is_refused_like_any_other() {
    for (client, kind) in PAIRS {
        let server = protected(kind, |seen| seen.is_call().then(|| challenged(401, &[CHALLENGE.as_bytes()]))).await;
        let gate =
            TestGateway::with(server.address, &format!("{FORWARDS}\n[upstreams.up.tasks]\nmode = \"always\"")).await;
        let caller = Caller::let_in(&gate, client, "good").await;
        let mut params = json!({"name": "plain", "arguments": {}});
        if client == SESSION {
            params["task"] = json!({});
        }
        let reply = caller.ask("tools/call", params).await;
        assert_eq!((reply.status.as_u16(), challenges(&reply).len()), (401, 1), "{client} {kind}");
        assert_eq!(said(reply).await["error"]["data"]["reason"], "upstream_auth", "{client} {kind}");
    }
}

/// U03: as ever where the credential is the gateway's own.
#[tokio::test]
async fn u03_a_refusal_of_the_gateways_own_credential_is_told_to_no_client() {
    for (client, kind) in PAIRS {
        let server = protected(kind, |_| None).await;
        for keys in ["", "[upstreams.up.auth]\nauthorization = \"Bearer own\"\n"] {
            let gate = TestGateway::with(server.address, keys).await;
            let caller = Caller::new(&gate, client, Some("good"));
            let reply = if client == SESSION { caller.initialize().await } else { caller.call("plain").await };
            let (code, found, why) = shown(reply).await;
            let expected = if client == SESSION { (200, "0 upstream_auth") } else { (503, "7 upstream_auth") };
            assert_eq!((code, why.as_str()), expected, "{client} {kind} {keys}");
            assert!(found.is_empty(), "{client} {kind} {found:?}");
        }
    }
}

type Fields<'a> = &'a [&'a [u8]];

/// Headers of servers' refusals, and those that a client gets. OURS stands for the gateway's metadata.
#[tokio::test]
async fn u03_a_challenge_of_any_kind_is_passed_on_or_left_out() {
    let long = [b"Bearer realm=\"".to_vec(), vec![b'x'; 9_000], b"\"".to_vec()].concat();
    let rows: [(u16, Fields<'_>, u16, &[&str]); 12] = [
        (401, &[], 401, &["Bearer"]),
        (401, &[b"Bearer"], 401, &["Bearer"]),
        (401, &[b"Basic realm=\"up\""], 401, &["Basic realm=\"up\""]),
        (
            401,
            &[b"Basic realm=\"up\"", b"Bearer resource_metadata=\"http://evil.example/m\""],
            401,
            &["Basic realm=\"up\"", "Bearer resource_metadata=\"OURS\""],
        ),
        (
            401,
            &[b"Bearer resource_metadata=http://up/m, Basic realm=up"],
            401,
            &["Bearer resource_metadata=\"OURS\", Basic realm=up"],
        ),
        (401, &[&long], 401, &["Bearer"]),
        (401, &[b"Bearer realm=\"a\tb\""], 401, &["Bearer realm=\"a\tb\""]),
        (401, &[b"Bearer realm=\"caf\xe9\""], 401, &["Bearer"]),
        (401, &[b"Bearer realm=\"open, resource_metadata=\"http://up/m\""], 401, &["Bearer"]),
        (
            403,
            &[b"Bearer error=\"insufficient_scope\", scope=\"a b\", resource_metadata=\"http://up/m\""],
            403,
            &["Bearer error=\"insufficient_scope\", scope=\"a b\", resource_metadata=\"OURS\""],
        ),
        // Nothing that a login would mend.
        (403, &[], 503, &[]),
        (407, &[b"Basic realm=\"proxy\""], 503, &[]),
    ];
    for (code, said, shown_as, expected) in rows {
        let said: Vec<Vec<u8>> = said.iter().map(|one| one.to_vec()).collect();
        let answered = said.clone();
        let server = protected(STATELESS, move |seen| {
            let fields: Vec<&[u8]> = answered.iter().map(Vec::as_slice).collect();
            (seen.rpc() == "prompts/list").then(|| challenged(code, &fields))
        })
        .await;
        let gate = TestGateway::with(server.address, FORWARDS).await;
        let reply = Caller::new(&gate, STATELESS, Some("good")).ask("prompts/list", json!({})).await;
        let ours = metadata_address(&gate);
        let expected: Vec<String> = expected.iter().map(|one| one.replace("OURS", &ours)).collect();
        // A call that may have run is answered with 200, unless the answer is a refusal.
        let shown_as = if shown_as == 503 { 200 } else { shown_as };
        assert_eq!(
            (reply.status.as_u16(), challenges(&reply)),
            (shown_as, expected.iter().map(String::as_str).collect()),
            "{said:?}"
        );
    }
}

/// A head that is too large is refused before it is looked at.
#[tokio::test]
async fn u03_a_refusal_with_100_kb_of_header_is_an_answer_that_is_no_mcp() {
    let server = protected(SESSION, |seen| {
        let field = [b"Bearer realm=\"".to_vec(), vec![b'x'; 100 * 1024], b"\"".to_vec()].concat();
        (seen.method == Method::POST).then(|| challenged(401, &[&field]))
    })
    .await;
    let gate = TestGateway::with(server.address, FORWARDS).await;
    let (code, found, why) = shown(Caller::new(&gate, SESSION, None).initialize().await).await;
    assert_eq!((code, found.len(), why.as_str()), (200, 0, "0 upstream_malformed"));
}

#[tokio::test]
async fn a_refusal_of_one_method_alone_is_a_refusal_of_that_method_alone() {
    for (client, kind) in PAIRS {
        let server =
            protected(kind, |seen| (seen.rpc() == "tools/list").then(|| challenged(401, &[CHALLENGE.as_bytes()])))
                .await;
        let gate = TestGateway::with(server.address, FORWARDS).await;
        let caller = Caller::let_in(&gate, client, "good").await;
        let reply = caller.ask("tools/list", json!({})).await;
        assert_eq!((reply.status.as_u16(), challenges(&reply).len()), (401, 1), "{client} {kind}");
        let reply = caller.ask("prompts/list", json!({})).await;
        assert_eq!((reply.status.as_u16(), challenges(&reply).len()), (200, 0), "{client} {kind}");
    }
}
