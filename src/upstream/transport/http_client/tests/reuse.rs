//! Reuse of connections, over real sockets.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{FutureExt as _, join_all};
use http_body_util::BodyExt as _;
use hyper::server::conn::http2;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::super::pool::IDLE_MAX;
use super::*;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
/// More than any step here takes; more than idle connections are kept.
const PATIENCE: Duration = Duration::from_secs(20);

fn client(url: &url::Url, tls: ClientTls) -> HttpClient {
    client_within(PATIENCE, url, tls)
}

fn client_within(connect_max: Duration, url: &url::Url, tls: ClientTls) -> HttpClient {
    HttpClient::new(&Arc::from("reports"), url, connect_max, tls, &ProxySettings::Direct).unwrap()
}

async fn listen() -> (TcpListener, url::Url) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
    (listener, url)
}

/// As [`listen`], with TLS.
async fn listen_with_tls(protocol: &str) -> (TcpListener, url::Url, TlsAcceptor, ClientTls) {
    let (authority, mut config) = vouched_for("localhost");
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let (listener, url) = listen().await;
    let url = format!("https://localhost:{}/mcp", url.port().unwrap()).parse().unwrap();
    (listener, url, TlsAcceptor::from(Arc::new(config)), trusting(authority))
}

/// Sends a message and reads the whole response.
async fn send(client: &HttpClient) -> Result<Bytes, GatewayFault> {
    let outgoing = SessionHeaders::default().post(Bytes::from_static(b"{}"));
    let answer = tokio::time::timeout(PATIENCE, client.send(&outgoing, &HandedOver::default())).await.unwrap()?;
    Ok(answer.into_body().collect().await.unwrap().to_bytes())
}

fn sent(client: &HttpClient) -> JoinHandle<Result<Bytes, GatewayFault>> {
    let client = client.clone();
    TaskTracker::new().spawn(async move { send(&client).await })
}

/// Reads a whole request.
async fn request(stream: &mut (impl AsyncRead + Unpin)) {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n{}") {
        let byte = tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap();
        text.push(byte);
    }
}

async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    request(stream).await;
    stream.write_all(ANSWER).await.unwrap();
    stream.flush().await.unwrap();
}

/// Serves one request of the client on a new connection.
async fn serve_on_a_new_one(client: &HttpClient, listener: &TcpListener) -> TcpStream {
    let sending = sent(client);
    let (mut stream, _) = listener.accept().await.unwrap();
    answer(&mut stream).await;
    sending.await.unwrap().unwrap();
    stream
}

/// Serves two requests at once, one on each connection.
async fn serve_both(client: &HttpClient, streams: [&mut (impl AsyncRead + AsyncWrite + Unpin); 2]) {
    let both = [sent(client), sent(client)];
    join_all(streams.map(answer)).await;
    for sending in both {
        sending.await.unwrap().unwrap();
    }
}

/// Waits until the client has closed the connection.
async fn ended(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_serves_request_after_request_and_ends_when_it_is_idle_too_long() {
    let (listener, url) = listen().await;
    let client = client(&url, ClientTls::default());
    let mut stream = serve_on_a_new_one(&client, &listener).await;
    let sending = sent(&client);
    answer(&mut stream).await;
    sending.await.unwrap().unwrap();
    ended(&mut stream).await;
    serve_on_a_new_one(&client, &listener).await;
}

#[tokio::test]
async fn a_connection_that_its_server_ended_is_not_used_again() {
    let (listener, url) = listen().await;
    let client = client(&url, ClientTls::default());
    for _ in 0..3 {
        let mut stream = serve_on_a_new_one(&client, &listener).await;
        stream.shutdown().await.unwrap();
        // So the client has seen it.
        ended(&mut stream).await;
    }
}

#[tokio::test]
async fn a_connection_that_ends_with_its_answer_is_not_used_again() {
    let (listener, url) = listen().await;
    let client = client(&url, ClientTls::default());
    for _ in 0..3 {
        let sending = sent(&client);
        let (mut stream, _) = listener.accept().await.unwrap();
        request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        sending.await.unwrap().unwrap();
        ended(&mut stream).await;
    }
}

#[tokio::test]
async fn a_request_that_was_begun_is_not_sent_again() {
    let (listener, url) = listen().await;
    let client = client(&url, ClientTls::default());
    let mut stream = serve_on_a_new_one(&client, &listener).await;
    let sending = sent(&client);
    request(&mut stream).await;
    drop(stream);
    let fault = GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown);
    assert_eq!(sending.await.unwrap(), Err(fault));
    serve_on_a_new_one(&client, &listener).await;
}

#[tokio::test]
async fn a_connection_is_kept_once_its_answer_has_come_whole() {
    let (listener, url) = listen().await;
    let client = client(&url, ClientTls::default());
    let sending = sent(&client);
    let (mut stream, _) = listener.accept().await.unwrap();
    request(&mut stream).await;
    let (begun, rest) = ANSWER.split_at(ANSWER.len() - 1);
    stream.write_all(begun).await.unwrap();
    let mut second = serve_on_a_new_one(&client, &listener).await;
    stream.write_all(rest).await.unwrap();
    sending.await.unwrap().unwrap();
    // Each of the two takes a request at a time.
    serve_both(&client, [&mut stream, &mut second]).await;
}

#[tokio::test]
async fn a_dropped_request_releases_its_connection() {
    let (listener, url, _, tls) = listen_with_tls("http/1.1").await;
    let client = client(&url, tls);
    let sending = sent(&client);
    let (mut stream, _) = listener.accept().await.unwrap();
    sending.abort();
    ended(&mut stream).await;
}

#[tokio::test]
async fn a_request_that_waits_for_its_connection_takes_one_that_comes_back() {
    let (listener, url, acceptor, tls) = listen_with_tls("http/1.1").await;
    let client = client(&url, tls);
    let first = sent(&client);
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = acceptor.accept(stream).await.unwrap();
    request(&mut stream).await;
    let second = sent(&client);
    let (late, _) = listener.accept().await.unwrap();
    stream.write_all(ANSWER).await.unwrap();
    first.await.unwrap().unwrap();
    answer(&mut stream).await;
    second.await.unwrap().unwrap();
    // A connection that is no longer needed is kept all the same.
    let mut late = acceptor.accept(late).await.unwrap();
    serve_both(&client, [&mut stream, &mut late]).await;
}

#[tokio::test]
async fn many_requests_at_once_make_no_more_connections_than_requests() {
    const REQUESTS: usize = 200;
    let (listener, url) = listen().await;
    let (client, made) = (client(&url, ClientTls::default()), Arc::new(AtomicUsize::new(0)));
    let (counted, tracker) = (Arc::clone(&made), TaskTracker::new());
    TaskTracker::new().spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            tracker.spawn(async move {
                loop {
                    answer(&mut stream).await;
                }
            });
        }
    });
    for round in 1..=2 {
        for answer in join_all((0..REQUESTS).map(|_| sent(&client))).await {
            answer.unwrap().unwrap();
        }
        assert!((1..=round * REQUESTS).contains(&made.load(Ordering::Relaxed)));
    }
    // A request that got a kept connection leaves its own, which may still be made when the second round begins.
    assert!(made.load(Ordering::Relaxed) < 2 * REQUESTS, "kept connections are used");
}

/// Serves HTTP/2 on one connection. `arrived` counts the requests, and responses wait for `gate`; after `over` the server takes
/// no further request.
async fn serve_http2(
    stream: tokio_rustls::server::TlsStream<TcpStream>,
    arrived: Arc<Semaphore>,
    gate: Arc<Semaphore>,
    over: oneshot::Receiver<()>,
) {
    let service = service_fn(move |_| {
        arrived.add_permits(1);
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let serving = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let over = tokio::select! {
        _ = &mut serving => panic!("the client ended it"),
        over = over => over,
    };
    over.unwrap();
    serving.as_mut().graceful_shutdown();
    let _ = serving.await;
}

#[tokio::test]
async fn a_connection_of_http_2_serves_all_until_its_server_ends_it() {
    const REQUESTS: usize = 20;
    let (listener, url, acceptor, tls) = listen_with_tls("h2").await;
    let client = client(&url, tls);
    let (arrived, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    // The server's protocol is known when many ask for its second connection.
    for at_once in [1, REQUESTS] {
        let first: Vec<_> = (0..at_once).map(|_| sent(&client)).collect();
        let (stream, _) = listener.accept().await.unwrap();
        let (end, over) = oneshot::channel();
        let stream = acceptor.accept(stream).await.unwrap();
        TaskTracker::new().spawn(serve_http2(stream, Arc::clone(&arrived), Arc::clone(&gate), over));
        gate.add_permits(at_once);
        for sending in first {
            sending.await.unwrap().unwrap();
        }
        let more: Vec<_> = (0..REQUESTS).map(|_| sent(&client)).collect();
        arrived.acquire_many((at_once + REQUESTS) as u32).await.unwrap().forget();
        assert!(listener.accept().now_or_never().is_none(), "one connection for all");
        // Requests that the server has begun get their responses, after the client learned that they are the last.
        end.send(()).unwrap();
        gate.add_permits(REQUESTS);
        for sending in more {
            sending.await.unwrap().unwrap();
        }
    }
}

/// Its client may be slow, so that the connection ends before the request is sent.
#[tokio::test]
async fn a_connection_that_ended_before_its_request_was_polled_costs_no_request() {
    let (listener, url) = listen().await;
    let client = client(&url, ClientTls::default());
    let mut unpolled = Box::pin(send(&client));
    let ended = loop {
        assert!((&mut unpolled).now_or_never().is_none());
        match listener.accept().now_or_never() {
            Some(accepted) => break accepted.unwrap().0,
            None => tokio::task::yield_now().await,
        }
    };
    drop(ended);
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        answer(&mut stream).await;
    };
    let (sent, ()) = tokio::join!(unpolled, serving);
    sent.unwrap();
}

/// Its client may be slow, while others wait for the connection.
#[tokio::test]
async fn u69_a_connection_of_http_2_is_made_for_all_even_if_its_first_request_is_not_polled() {
    let (listener, url, acceptor, tls) = listen_with_tls("h2").await;
    let client = client(&url, tls);
    let (arrived, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(3)));
    let serve = |stream| {
        let ((end, over), acceptor) = (oneshot::channel(), acceptor.clone());
        let (arrived, gate) = (Arc::clone(&arrived), Arc::clone(&gate));
        let serving = TaskTracker::new().spawn(async move {
            serve_http2(acceptor.accept(stream).await.unwrap(), arrived, gate, over).await;
        });
        (end, serving)
    };
    // The server's protocol is known once its first connection has ended.
    let first = sent(&client);
    let (end, serving) = serve(listener.accept().await.unwrap().0);
    first.await.unwrap().unwrap();
    end.send(()).unwrap();
    serving.await.unwrap();
    let mut unpolled = Box::pin(send(&client));
    let stream = loop {
        assert!((&mut unpolled).now_or_never().is_none());
        match listener.accept().now_or_never() {
            Some(accepted) => break accepted.unwrap().0,
            None => tokio::task::yield_now().await,
        }
    };
    let (_end, _serving) = serve(stream);
    sent(&client).await.unwrap().unwrap();
    unpolled.await.unwrap();
    assert!(listener.accept().now_or_never().is_none(), "one connection for both");
}

/// A connection with a held call is not idle, however long nothing else is sent.
#[tokio::test]
async fn a_connection_of_http_2_is_kept_for_the_next_request_as_long_as_one_is_under_way() {
    let (listener, url, acceptor, tls) = listen_with_tls("h2").await;
    let client = client(&url, tls);
    let (arrived, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let held = sent(&client);
    let (stream, _) = listener.accept().await.unwrap();
    let (end, over) = oneshot::channel();
    let stream = acceptor.accept(stream).await.unwrap();
    TaskTracker::new().spawn(serve_http2(stream, Arc::clone(&arrived), Arc::clone(&gate), over));
    arrived.acquire().await.unwrap().forget();
    tokio::time::pause();
    for _ in 0..3 {
        tokio::time::advance(IDLE_MAX).await;
    }
    tokio::time::resume();
    let next = sent(&client);
    tokio::select! {
        biased;
        permit = arrived.acquire() => permit.unwrap().forget(),
        _ = listener.accept() => panic!("another connection was made"),
    }
    gate.add_permits(2);
    for sending in [held, next] {
        sending.await.unwrap().unwrap();
    }
    end.send(()).unwrap();
}

#[tokio::test]
async fn u78_a_connection_of_http_2_that_grants_no_stream_is_left_for_a_new_one() {
    let (listener, url, acceptor, tls) = listen_with_tls("h2").await;
    let client = client_within(4 * CONNECT_MAX, &url, tls);
    let (arrived, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let mut sending = Vec::new();
    for _ in 0..2 {
        sending.push(sent(&client));
        let accepted = tokio::time::timeout(PATIENCE, listener.accept()).await;
        let stream = acceptor.accept(accepted.expect("another connection is made").unwrap().0).await.unwrap();
        let (arrived_here, gate) = (Arc::clone(&arrived), Arc::clone(&gate));
        TaskTracker::new().spawn(async move {
            let handshake = h2::server::Builder::new().max_concurrent_streams(1).handshake::<_, Bytes>(stream);
            let mut connection = handshake.await.unwrap();
            let mut answer = None;
            loop {
                tokio::select! {
                    accepted = connection.accept() => {
                        let Some(Ok((_, sender))) = accepted else { return };
                        arrived_here.add_permits(1);
                        answer = Some(sender);
                    }
                    permit = gate.acquire(), if answer.is_some() => {
                        permit.unwrap().forget();
                        answer.take().unwrap().send_response(Response::new(()), true).unwrap();
                    }
                }
            }
        });
        arrived.acquire().await.unwrap().forget();
    }
    // Requests that have their streams keep them.
    gate.add_permits(sending.len());
    for sending in sending {
        sending.await.unwrap().unwrap();
    }
    assert_eq!(arrived.available_permits(), 0, "no request was sent twice");
}

/// RFC 9113, 8.7.
#[tokio::test]
async fn a_request_that_its_server_reports_as_not_processed_is_sent_again() {
    let (listener, url, acceptor, tls) = listen_with_tls("h2").await;
    let client = client(&url, tls);
    let sending = sent(&client);
    let stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
    let serving = TaskTracker::new().spawn(async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let mut arrived = 0;
        while let Some(Ok((_, mut answer))) = connection.accept().await {
            arrived += 1;
            match arrived {
                1 | 2 => answer.send_reset(h2::Reason::REFUSED_STREAM),
                _ => drop(answer.send_response(Response::new(()), true).unwrap()),
            }
        }
        arrived
    });
    sending.await.unwrap().unwrap();
    drop(client);
    assert_eq!(serving.await.unwrap(), 3);
}
