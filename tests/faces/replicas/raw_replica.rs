//! The link to a replica that is a bare HTTP/2 peer: large requests, and refused ones.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{Request, Response};
use taskgate::face::session_owners::{ForwardFailure, ReplicaLink as _};
use taskgate::replica::{Incarnation, ReplicaPeer};
use taskgate::server::replica_link::Http2ReplicaLink;
use taskgate::shared_limits::SharedLimits;
use taskgate::task::Principal;
use taskgate::upstream::TaskScope;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::harness::REACH_MAX;
use super::upstream::in_time;

/// Far more than the windows of HTTP/2 have room for.
const LARGE: usize = 4 << 20;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The replica's behaviour at a request.
#[derive(Clone, Copy)]
pub(crate) enum Does {
    ReadSlowly,
    Refuse,
    ReadAndReset,
    /// Ends the connection; the last request that it says it may have worked on is the one of this stream.
    GoAway(u8),
}

/// Starts a replica that does one thing after the other; the lengths of the bodies that it read.
pub(crate) async fn replica(script: &'static [Does]) -> (ReplicaPeer, mpsc::Receiver<usize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let peer = ReplicaPeer { incarnation: Incarnation(7), address: listener.local_addr().unwrap() };
    let (seen, lengths) = mpsc::channel(script.len());
    TaskTracker::new().spawn(async move {
        let mut script = script.iter();
        while let Ok((socket, _)) = listener.accept().await {
            if let Some(Does::GoAway(last)) = script.as_slice().first() {
                go_away(socket, *last).await;
                script.next();
                continue;
            }
            let mut connection = h2::server::handshake(socket).await.unwrap();
            while let Some(Ok((request, answer))) = connection.accept().await {
                let does = script.next().expect("no more requests than the script has");
                // The connection must be polled meanwhile.
                TaskTracker::new().spawn(serve(*does, request, answer, seen.clone()));
            }
        }
    });
    (peer, lengths)
}

/// Waits for a request, which h2 would have counted as worked on, and ends the connection (RFC 9113, 6.8).
async fn go_away(mut socket: TcpStream, last: u8) {
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    socket.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
    socket.read_exact(&mut [0; PREFACE.len()]).await.unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut content = vec![0; len as usize];
        socket.read_exact(&mut content).await.unwrap();
        match head[3] {
            HEADERS => break,
            PING => socket.write_all(&[&[0, 0, 8, PING, 1, 0, 0, 0, 0], &content[..]].concat()).await.unwrap(),
            _ => (),
        }
    }
    const GO_AWAY: u8 = 7;
    socket.write_all(&[0, 0, 8, GO_AWAY, 0, 0, 0, 0, 0, 0, 0, 0, last, 0, 0, 0, 0]).await.unwrap();
    // Until the other side has read it: a socket that is closed with unread bytes discards its unsent ones.
    let _ = socket.read_to_end(&mut Vec::new()).await;
}

async fn serve(
    does: Does,
    request: Request<h2::RecvStream>,
    mut answer: SendResponse<Bytes>,
    seen: mpsc::Sender<usize>,
) {
    if matches!(does, Does::Refuse) {
        answer.send_reset(Reason::REFUSED_STREAM);
        return;
    }
    let (mut body, mut read) = (request.into_body(), 0);
    while let Some(Ok(data)) = body.data().await {
        read += data.len();
        tokio::time::sleep(Duration::from_millis(1)).await;
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    seen.try_send(read).unwrap();
    match does {
        Does::ReadSlowly => drop(answer.send_response(Response::new(()), true)),
        Does::ReadAndReset => answer.send_reset(Reason::INTERNAL_ERROR),
        Does::Refuse | Does::GoAway(_) => unreachable!("it has read nothing"),
    }
}

async fn carried(script: &'static [Does], len: usize) -> (Result<u16, ForwardFailure>, Vec<usize>) {
    let (peer, mut lengths) = replica(script).await;
    let life = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let link = Http2ReplicaLink::new(None, life, SharedLimits::default()).reaching_within(REACH_MAX);
    let request = Request::post("/mcp").body(Bytes::from(vec![b'x'; len])).unwrap();
    let answer = in_time(link.send(peer, request, &Principal::local())).await.map(|answer| answer.status().as_u16());
    let mut seen = Vec::new();
    while let Ok(len) = lengths.try_recv() {
        seen.push(len);
    }
    (answer, seen)
}

#[tokio::test]
async fn a_large_request_reaches_a_replica_that_reads_slowly_as_a_whole() {
    assert_eq!(carried(&[Does::ReadSlowly], LARGE).await, (Ok(200), vec![LARGE]));
}

#[tokio::test]
async fn a_request_that_a_replica_refused_is_sent_once_more_and_one_that_it_read_is_not() {
    assert_eq!(carried(&[Does::Refuse, Does::ReadSlowly], 10).await, (Ok(200), vec![10]));
    assert_eq!(carried(&[Does::Refuse, Does::Refuse], 10).await, (Err(ForwardFailure::Unreachable), vec![]));
    assert_eq!(carried(&[Does::ReadAndReset], 10).await, (Err(ForwardFailure::Lost), vec![10]));
}

#[tokio::test]
async fn a_request_that_goaway_excludes_is_sent_once_more_and_another_one_is_not() {
    assert_eq!(carried(&[Does::GoAway(0), Does::ReadSlowly], 10).await, (Ok(200), vec![10]));
    assert_eq!(carried(&[Does::GoAway(0), Does::GoAway(0)], 10).await, (Err(ForwardFailure::Unreachable), vec![]));
    assert_eq!(carried(&[Does::GoAway(1), Does::ReadSlowly], 10).await, (Err(ForwardFailure::Lost), vec![]));
}
