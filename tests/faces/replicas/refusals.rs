//! Requests that the listener for replicas refuses.

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use taskgate::face::sealed::{ForwardToken, GatewayId, IdKind, digest_of_request};
use taskgate::replica::Incarnation;
use taskgate::task::{Caller, Clock as _, Principal, Timestamp};
use tokio::net::TcpStream;

use super::client::call;
use super::harness::{NOW, Replicas, sealer};
use super::upstream::{ScriptedServer, in_time};

/// Everything that goes with a request to another replica.
struct Forwarding {
    method: Method,
    target: &'static str,
    session: Option<String>,
    sealed: Vec<String>,
}

impl Forwarding {
    /// The status and the body of the answer.
    async fn send(&self, replicas: &Replicas, body: String) -> (u16, String) {
        let socket = TcpStream::connect(replicas.all[0].gateway.replica_address().unwrap()).await.unwrap();
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(socket));
        let (mut sender, connection) = in_time(handshake).await.unwrap();
        let running = tokio_util::task::TaskTracker::new().spawn(connection);
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(format!("http://replica{}", self.target))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        for sealed in &self.sealed {
            request = request.header("taskgate-forward", sealed);
        }
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        let answer =
            in_time(sender.send_request(request.body(Full::new(bytes::Bytes::from(body))).unwrap())).await.unwrap();
        let status = answer.status().as_u16();
        let body = in_time(answer.into_body().collect()).await.unwrap().to_bytes();
        running.abort();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

pub(crate) fn token(target: Incarnation, session: &str) -> ForwardToken {
    let mut headers = http::HeaderMap::new();
    headers.insert("mcp-session-id", session.parse().unwrap());
    ForwardToken {
        target,
        sender: Incarnation(77),
        number: 1,
        issued_at: NOW,
        request: digest_of_request(&Method::POST, "/mcp", None, &headers),
        caller: Caller::of(Principal::local()),
        client: None,
    }
}

/// With its reason for each, and nothing of any reaches the server.
#[tokio::test]
async fn sec_25_a_request_that_no_replica_sealed_for_this_one_a_moment_ago_is_refused() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let session = replicas.client().await.session.unwrap();
    let target = replicas.all[0].incarnation;
    let seal = |token: &ForwardToken| sealer().seal_forward(token).unwrap();
    let good = |number| ForwardToken { number, ..token(target, &session) };
    let at = |millis: u64| ForwardToken { issued_at: Timestamp::from_millis(millis), ..good(1) };
    let (now, foreign) =
        (NOW.as_millis(), taskgate::face::sealed::Sealer::new(taskgate::face::sealed::SealingKeys::ephemeral([9; 32])));
    let mut cut = seal(&good(1));
    cut.pop();
    let base =
        || Forwarding { method: Method::POST, target: "/mcp", session: Some(session.clone()), sealed: Vec::new() };
    let sealed = |token: ForwardToken| Forwarding { sealed: vec![seal(&token)], ..base() };
    for (what, request, status, reason) in [
        ("no token", base(), 401, "only replicas"),
        ("two tokens", Forwarding { sealed: vec![seal(&good(1)), seal(&good(1))], ..base() }, 401, "only replicas"),
        ("no token at all", Forwarding { sealed: vec!["x".repeat(9_000)], ..base() }, 401, "only replicas"),
        ("one that is cut", Forwarding { sealed: vec![cut], ..base() }, 401, "only replicas"),
        (
            "a foreign key's",
            Forwarding { sealed: vec![foreign.seal_forward(&good(1)).unwrap()], ..base() },
            401,
            "only replicas",
        ),
        (
            "of another kind",
            Forwarding {
                sealed: vec![sealer().seal(&GatewayId::in_memory(IdKind::Session, None, 1), None, b"x").unwrap()],
                ..base()
            },
            401,
            "only replicas",
        ),
        ("a session id", Forwarding { sealed: vec![session.clone()], ..base() }, 401, "only replicas"),
        ("another replica's", sealed(token(replicas.all[1].incarnation, &session)), 403, "to another replica"),
        ("an earlier life's", sealed(token(Incarnation(0), &session)), 403, "to another replica"),
        ("too old", sealed(at(now - 30_001)), 403, "too long ago"),
        ("from the future", sealed(at(now + 30_001)), 403, "too long ago"),
        ("another path", Forwarding { target: "/up/sse", ..sealed(good(1)) }, 403, "another request"),
        ("another query", Forwarding { target: "/mcp?x=1", ..sealed(good(1)) }, 403, "another request"),
        ("another method", Forwarding { method: Method::DELETE, ..sealed(good(1)) }, 403, "another request"),
        ("another session", Forwarding { session: Some("x".to_owned()), ..sealed(good(1)) }, 403, "another request"),
        ("no session", Forwarding { session: None, ..sealed(good(1)) }, 403, "another request"),
        ("number 0", sealed(good(0)), 403, "received before"),
        ("a path without a server", Forwarding { target: "/.well-known/x", ..base() }, 401, "only replicas"),
    ] {
        let (found, said) = request.send(&replicas, call(1)).await;
        assert!(found == status && said.contains(reason), "{what}: {found} {said}");
    }
    assert_eq!(server.world.count("tools/call"), 0);
    for (issued_at, number) in [(now - 30_000, 1), (now + 30_000, 2), (now, 40)] {
        let (status, said) = sealed(ForwardToken { number, ..at(issued_at) }).send(&replicas, call(1)).await;
        assert!(status == 200 && said.contains("\"n\":1"), "{number}: {status} {said}");
    }
    for number in [1, 2, 40] {
        let (status, said) = sealed(good(number)).send(&replicas, call(1)).await;
        assert!(status == 403 && said.contains("received before"), "twice {number}: {status} {said}");
    }
    assert_eq!(server.world.count("tools/call"), 3);
    replicas.clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(sealed(good(41)).send(&replicas, call(1)).await.0, 403, "it was good {:?} ago", replicas.clock.now());
}

/// The sealed principal decides who owns a session; the key of the seal alone opens none.
#[tokio::test]
async fn a_principal_has_no_session_of_anothers_by_way_of_a_replica() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let session = replicas.client().await.session.unwrap();
    let token =
        ForwardToken { caller: Caller::of(Principal::bearing(b"eve")), ..token(replicas.all[0].incarnation, &session) };
    let request = Forwarding {
        method: Method::POST,
        target: "/mcp",
        session: Some(session),
        sealed: vec![sealer().seal_forward(&token).unwrap()],
    };
    assert_eq!(request.send(&replicas, call(1)).await.0, 404);
}

/// Clients cannot use the header in which replicas name a principal.
#[tokio::test]
async fn the_clients_listener_takes_nothing_that_was_sealed_for_the_other() {
    let server = ScriptedServer::polite().await;
    let served = "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"tg_ada1_0011223344556677889900aabbccddee\"\n";
    let replicas = Replicas::serving(1, &format!("{served}{}", super::harness::before(&server)), &[]).await;
    let stranger = replicas.client_without_session(0);
    let token = token(replicas.all[0].incarnation, "x");
    let request = stranger
        .request("POST")
        .header("content-type", "application/json")
        .header("taskgate-forward", sealer().seal_forward(&token).unwrap());
    let reply = stranger.send(request.body(Full::new(bytes::Bytes::from(call(1)))).unwrap()).await;
    assert_eq!(reply.status.as_u16(), 401);
}
