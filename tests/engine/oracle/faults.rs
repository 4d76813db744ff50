//! The proxy does the faults of its verbs to a connection, at the byte that they name, and no others.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use super::fault_proxy::{Fault, FaultProxy, Verb};

const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough for a wrong reaction of a stalled connection.
const SOON: Duration = Duration::from_millis(200);

/// Echoes its input, and closes when its client has.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tracker = TaskTracker::new();
    let connections = tracker.clone();
    tracker.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            connections.spawn(async move {
                let (mut from, mut to) = stream.split();
                // The end of a connection is the subject of the tests.
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

/// The echo of `lines` through the proxy, and how it ends.
async fn through(fault: Fault, lines: &[&str]) -> (String, Option<ErrorKind>) {
    let proxy = FaultProxy::with(echo().await, fault).await;
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    let mut back = Vec::new();
    let talk = async {
        for line in lines {
            stream.write_all(line.as_bytes()).await.map_err(|error| error.kind())?;
        }
        let expected: usize = lines.iter().map(|line| line.len()).sum();
        while back.len() < expected {
            // The bytes before the stall may take their time.
            let stalls = fault.verb == Verb::Stall && back.len() >= fault.after;
            match timeout(if stalls { SOON } else { PATIENCE }, stream.read_buf(&mut back)).await {
                Ok(Ok(0)) => return Err(ErrorKind::UnexpectedEof),
                Ok(Ok(_)) => (),
                Ok(Err(error)) => return Err(error.kind()),
                Err(_) => return Err(ErrorKind::TimedOut),
            }
        }
        Ok(())
    };
    let end = talk.await.err();
    timeout(PATIENCE, proxy.strikes()).await.unwrap();
    assert_eq!(proxy.struck(), 1, "{fault:?}");
    (String::from_utf8(back).unwrap(), end)
}

#[tokio::test]
async fn each_verb_strikes_at_its_byte() {
    let eof = Some(ErrorKind::UnexpectedEof);
    for (verb, back, end) in [
        (Verb::Cut, "abc", eof),
        (Verb::HalfClose, "abc", eof),
        (Verb::Stall, "abc", Some(ErrorKind::TimedOut)),
        (Verb::Corrupt, "abcefgh", None),
        (Verb::Delay(Duration::from_millis(20)), "abcdefgh", None),
        (Verb::Drip(Duration::from_millis(1)), "abcdefgh", None),
    ] {
        let (text, ended) = through(Fault::down("", 3, verb), &["abcdefgh"]).await;
        let expected = if verb == Verb::Corrupt { "abceefgh" } else { back };
        assert_eq!((text.as_str(), ended), (expected, end), "{verb:?}");
    }
}

#[tokio::test]
async fn a_reset_is_no_orderly_end() {
    let (text, end) = through(Fault::down("", 3, Verb::Reset), &["abcdefgh"]).await;
    assert!("abc".starts_with(&text), "{text}");
    assert_eq!(end, Some(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn bytes_are_counted_from_the_mark_on_even_where_it_comes_in_two_pieces() {
    for lines in [&["xx mark abcdef"][..], &["xx ma", "rk abcdef"]] {
        let (text, end) = through(Fault::up("mark", 3, Verb::HalfClose), lines).await;
        assert_eq!((text.as_str(), end), ("xx mark ab", Some(ErrorKind::UnexpectedEof)));
    }
}

#[tokio::test]
async fn a_fault_strikes_as_often_as_it_is_told_and_others_pass() {
    let proxy = FaultProxy::start(echo().await).await;
    proxy.set_times(Fault::down("", 0, Verb::Cut), 1);
    for expected in ["", "hello"] {
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut back = [0; 5];
        let read = timeout(PATIENCE, stream.read_exact(&mut back)).await.unwrap();
        assert_eq!(read.is_ok(), !expected.is_empty());
    }
    timeout(PATIENCE, proxy.strikes()).await.unwrap();
}

/// Else each network that is cut off for a while would leave connections at the server for good.
#[tokio::test]
async fn a_connection_that_stalled_ends_at_its_target_once_it_may_and_its_sender_is_told_nothing() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = FaultProxy::with(target.local_addr().unwrap(), Fault::up("", 0, Verb::Stall)).await;
    let mut client = TcpStream::connect(proxy.address).await.unwrap();
    client.write_all(b"abc").await.unwrap();
    let (mut server, _) = timeout(PATIENCE, target.accept()).await.unwrap().unwrap();
    let mut byte = [0];
    assert!(timeout(SOON, server.read(&mut byte)).await.is_err(), "it stalls");
    proxy.set(None);
    assert_eq!(timeout(PATIENCE, server.read(&mut byte)).await.unwrap().unwrap(), 0);
    drop(server);
    client.write_all(b"def").await.unwrap();
    assert!(timeout(SOON, client.read(&mut byte)).await.is_err(), "nothing, nor the end");
}

#[tokio::test]
async fn held_bytes_come_whole_once_they_are_released_and_later_connections_pass() {
    let proxy = FaultProxy::start(echo().await).await;
    let connect = || TcpStream::connect(proxy.address);
    let mut held = connect().await.unwrap();
    let mut back = [0; 8];
    held.write_all(b"ab").await.unwrap();
    timeout(PATIENCE, held.read_exact(&mut back[..2])).await.unwrap().unwrap();
    proxy.set_present(Fault::up("", 0, Verb::Hold));
    held.write_all(b"cdef").await.unwrap();
    timeout(PATIENCE, proxy.strikes()).await.unwrap();
    held.write_all(b"gh").await.unwrap();
    let mut later = connect().await.unwrap();
    later.write_all(b"hello").await.unwrap();
    timeout(PATIENCE, later.read_exact(&mut back[..5])).await.unwrap().unwrap();
    assert!(timeout(SOON, held.read_exact(&mut back[2..])).await.is_err(), "it passed");
    proxy.set(None);
    timeout(PATIENCE, held.read_exact(&mut back[2..])).await.unwrap().unwrap();
    assert_eq!(&back[2..], b"cdefgh");
}

#[tokio::test]
async fn a_drip_takes_its_time() {
    let began = Instant::now();
    let (text, _) = through(Fault::down("", 0, Verb::Drip(Duration::from_millis(10))), &["abcdefgh"]).await;
    assert_eq!(text, "abcdefgh");
    assert!(began.elapsed() >= Duration::from_millis(70));
}
