//! The way from one replica to another, without the replica that goes it.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use taskgate::face::http::{Endpoint, FaceResponse, Inbound};
use taskgate::face::sealed::ForwardToken;
use taskgate::face::session_owners::{ForwardFailure, ReplicaLink as _, SessionOwners};
use taskgate::replica::{ReplicaDirectory, ReplicaPeer};
use taskgate::server::replica_link::Http2ReplicaLink;
use taskgate::server::{self, ForwardedCallers, Routes, replicas};
use taskgate::shared_limits::SharedLimits;
use taskgate::task::{ManualClock, PermitShare, Principal, PrincipalLimitTable, PrincipalLimits};
use taskgate::upstream::TaskScope;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::call;
use super::harness::{NOW, REACH_MAX, Replicas, sealer};
use super::refusals::token;
use super::upstream::{BodySender, ScriptedServer, in_time};

/// More than one answer may have unread.
const FLOOD_BYTES: usize = 100_000;

struct Way {
    link: Http2ReplicaLink,
    peer: ReplicaPeer,
    session: String,
}

impl Way {
    async fn to_the_first(replicas: &Replicas) -> Self {
        let life = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let first = &replicas.all[0];
        let address = first.gateway.replica_address().unwrap();
        let peer = ReplicaPeer { incarnation: first.incarnation, address };
        let others = PrincipalLimits { permits: PermitShare::percent(1).unwrap(), ..PrincipalLimits::default() };
        let limits = SharedLimits::new(Arc::new(PrincipalLimitTable { others, ..PrincipalLimitTable::default() }));
        Self {
            link: Http2ReplicaLink::new(None, life, limits).reaching_within(REACH_MAX),
            peer,
            session: replicas.client().await.session.unwrap(),
        }
    }

    async fn send(&self, number: u64, n: u32) -> Result<FaceResponse, ForwardFailure> {
        self.carry_for(&Principal::local(), number, n).await
    }

    async fn carry_for(&self, owner: &Principal, number: u64, n: u32) -> Result<FaceResponse, ForwardFailure> {
        let token = ForwardToken { number, ..token(self.peer.incarnation, &self.session) };
        let request = Request::post("/mcp")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-session-id", &self.session)
            .header("taskgate-forward", sealer().seal_forward(&token).unwrap())
            .body(Bytes::from(call(n)));
        in_time(self.link.send(self.peer, request.unwrap(), owner)).await
    }
}

/// A server that floods the first call, and echoes all others.
async fn flooding() -> ScriptedServer {
    ScriptedServer::slow(|seen, _| async move {
        (seen.body["params"]["arguments"]["n"] == 1).then(|| {
            let (events, reply) = BodySender::open();
            let text = "x".repeat(FLOOD_BYTES);
            events.raw(format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":{{\"x\":\"{text}\"}}}}\n\n"));
            // Open until no client reads.
            TaskTracker::new().spawn(async move { events.abandoned().await });
            reply
        })
    })
    .await
}

#[tokio::test]
async fn unread_answers_hold_up_no_other_on_their_connection() {
    let server = flooding().await;
    let replicas = Replicas::pair(&server).await;
    let way = Way::to_the_first(&replicas).await;
    let mut unread = Vec::new();
    for number in 1..=60 {
        unread.push(way.send(number, 1).await.unwrap());
    }
    // By then, their unread bytes are in the buffers, and no more come.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for number in 61..80 {
        let answer = way.send(number, 2).await.unwrap();
        let body = in_time(answer.into_body().collect()).await.unwrap().to_bytes();
        assert!(body.ends_with(b"{\"n\":2}}"), "{body:?}");
    }
    drop(unread);
}

/// The requests of one principal, among several, to one replica are bounded; each end makes room.
#[tokio::test]
async fn a_principal_with_all_its_permits_is_refused_at_once_and_others_are_served() {
    let server = flooding().await;
    let replicas = Replicas::pair(&server).await;
    let way = Way::to_the_first(&replicas).await;
    let (mut held, mut number, ada) = (Vec::new(), 0, Principal::bearing(b"ada"));
    let refused = loop {
        number += 1;
        match way.carry_for(&ada, number, 2).await {
            Ok(answer) => held.push(answer),
            Err(failure) => break failure,
        }
        assert!(number <= 100, "there is no bound");
    };
    assert_eq!((refused, held.len()), (ForwardFailure::Unreachable, 62), "a hundredth");
    assert!(way.carry_for(&Principal::bearing(b"bob"), number + 1, 2).await.is_ok());
    held.clear();
    assert!(way.carry_for(&ada, number + 2, 2).await.is_ok(), "there is room again");
    way.link.keep(&ReplicaDirectory::alone(replicas.all[1].incarnation));
    assert!(way.send(number + 3, 2).await.is_ok(), "a released connection is opened again");
}

/// The unspecified address leads here, too, and could be any machine's.
#[tokio::test]
async fn nothing_goes_in_clear_to_a_replica_that_is_not_on_loopback() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let mut way = Way::to_the_first(&replicas).await;
    way.peer.address.set_ip(Ipv4Addr::UNSPECIFIED.into());
    assert_eq!(way.send(1, 2).await.err(), Some(ForwardFailure::Unreachable));
    way.peer.address.set_ip(Ipv4Addr::LOCALHOST.into());
    assert!(way.send(2, 2).await.is_ok());
    assert_eq!(server.world.count("tools/call"), 1);
}

struct Buggy;

#[async_trait::async_trait]
impl Endpoint for Buggy {
    async fn serve(&self, _: Box<Inbound>) -> FaceResponse {
        panic!("a handler with a bug")
    }
}

/// F64. It had begun: the replica that forwarded the request must not report that nothing was done.
#[tokio::test]
async fn a_replica_whose_answer_panicked_has_taken_the_request() {
    let server = ScriptedServer::polite().await;
    let mut way = Way::to_the_first(&Replicas::pair(&server).await).await;
    let life = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let link = Arc::new(Http2ReplicaLink::new(None, life, SharedLimits::default()));
    let directory = ReplicaDirectory::alone(way.peer.incarnation);
    let owners = SessionOwners::new(directory, Arc::new(sealer()), Arc::new(ManualClock::at(NOW)), link);
    let routes = Routes::new().with("/mcp", Arc::new(Buggy));
    let (address, body_max) = (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), NonZeroUsize::new(4_096).unwrap());
    let site = replicas::site(address, None, body_max, ForwardedCallers::new(Arc::new(owners)), routes);
    let running = server::start(site).await.unwrap();
    way.peer.address = running.local_addr();
    let answer = way.send(1, 1).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["taskgate-forwarded"].as_bytes()), (500, &b"taken"[..]));
}
