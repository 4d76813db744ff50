//! Spares an HTTP/1.1 connection the wake-up for the last piece of a body: of a client's request, or of a server's response.
//! hyper wakes a connection's task when a piece of a body is taken. After the last piece, a client's connection polls
//! all layers in vain. HTTP/2 connections are always woken: a taken piece lets them send a window update.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming};
use parking_lot::Mutex;

thread_local! {
    /// Whether this thread takes a piece of a body. A wake-up by another thread, as for a readable socket, is not withheld.
    static IS_TAKING: Cell<bool> = const { Cell::new(false) };
    static WITHHELD: Cell<Option<Arc<ConnectionTask>>> = const { Cell::new(None) };
}

/// Polls a body. Wakes its HTTP/1.1 connection only if more of the body is to come.
pub(crate) fn poll_piece(
    mut body: Pin<&mut Incoming>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    let taking = Taking::begin();
    let piece = body.as_mut().poll_frame(context);
    drop(taking);
    if let Some(task) = WITHHELD.take()
        && !body.is_end_stream()
    {
        task.wake();
    }
    piece
}

/// Ends when dropped, also by a panic.
struct Taking;

impl Taking {
    fn begin() -> Self {
        IS_TAKING.set(true);
        Self
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        IS_TAKING.set(false);
    }
}

/// Polls a connection with a waker that [`poll_piece`] can withhold.
#[derive(Debug)]
pub(crate) struct ConnectionWaker {
    task: Arc<ConnectionTask>,
    waker: Waker,
}

impl ConnectionWaker {
    pub(crate) fn new() -> Self {
        let task = Arc::<ConnectionTask>::default();
        Self { waker: Arc::clone(&task).into(), task }
    }

    pub(crate) fn poll<F: Future>(&self, connection: Pin<&mut F>, context: &Context<'_>) -> Poll<F::Output> {
        self.task.set(context.waker());
        connection.poll(&mut Context::from_waker(&self.waker))
    }
}

/// The waker of the tokio task that polled a connection last.
#[derive(Debug, Default)]
struct ConnectionTask(Mutex<Option<Waker>>);

impl ConnectionTask {
    fn set(&self, waker: &Waker) {
        let mut task = self.0.lock();
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    fn wake_task(&self) {
        self.0.lock().iter().for_each(Waker::wake_by_ref);
    }
}

impl Wake for ConnectionTask {
    fn wake(self: Arc<Self>) {
        if !IS_TAKING.get() {
            self.wake_task();
        } else if let Some(another) = WITHHELD.replace(Some(self)) {
            another.wake_task();
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Arc::clone(self).wake();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Empty;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    /// Reads a body to its end; returns its length.
    async fn read_bytes(body: &mut Incoming, is_withheld: bool) -> usize {
        let (mut body, mut bytes) = (Pin::new(body), 0);
        let mut next = |context: &mut Context<'_>| match is_withheld {
            true => poll_piece(body.as_mut(), context),
            false => body.as_mut().poll_frame(context),
        };
        while let Some(piece) = poll_fn(&mut next).await {
            bytes += piece.unwrap().into_data().unwrap().len();
        }
        bytes
    }

    /// Answers one request that is written in these pieces; returns how often its connection was polled.
    async fn polls_for(pieces: &[&str], is_withheld: bool) -> usize {
        let (mut client, server) = duplex(4_096);
        let service = service_fn(move |mut request: Request<Incoming>| async move {
            assert_eq!(read_bytes(request.body_mut(), is_withheld).await, 10);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
        let mut connection = Box::pin(http1::Builder::new().serve_connection(TokioIo::new(server), service));
        let (polls, waker) = (Arc::<AtomicUsize>::default(), ConnectionWaker::new());
        let mut tasks = JoinSet::new();
        let counted = Arc::clone(&polls);
        tasks.spawn(poll_fn(move |context| {
            counted.fetch_add(1, Ordering::Relaxed);
            waker.poll(connection.as_mut(), context)
        }));
        for piece in pieces {
            yield_now().await;
            client.write_all(piece.as_bytes()).await.unwrap();
        }
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
        }
        for _ in 0..8 {
            yield_now().await;
        }
        polls.load(Ordering::Relaxed)
    }

    const HEAD: &str = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n";

    #[tokio::test]
    async fn the_last_piece_of_a_body_wakes_no_connection() {
        let whole = format!("{HEAD}0123456789");
        assert_eq!(polls_for(&[&whole], true).await + 1, polls_for(&[&whole], false).await);
    }

    /// Reads one response that the server writes in these pieces; returns how often its connection was polled.
    async fn polls_for_response(pieces: &[&str], is_withheld: bool) -> usize {
        let (mut server, client) = duplex(4_096);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
        let (mut connection, waker) = (Box::pin(connection), ConnectionWaker::new());
        let polls = Arc::<AtomicUsize>::default();
        let (mut tasks, counted) = (JoinSet::new(), Arc::clone(&polls));
        tasks.spawn(poll_fn(move |context| {
            counted.fetch_add(1, Ordering::Relaxed);
            waker.poll(connection.as_mut(), context)
        }));
        for _ in 0..2 {
            polls.store(0, Ordering::Relaxed);
            let mut answering = Box::pin(sender.send_request(Request::new(Empty::<Bytes>::new())));
            let mut head = vec![0; 1_024];
            tokio::select! {
                biased;
                answer = &mut answering => panic!("there is no response yet: {answer:?}"),
                read = server.read(&mut head) => assert_ne!(read.unwrap(), 0),
            }
            server.write_all(pieces[0].as_bytes()).await.unwrap();
            let mut answer = answering.await.unwrap();
            for piece in &pieces[1..] {
                yield_now().await;
                server.write_all(piece.as_bytes()).await.unwrap();
            }
            assert_eq!(read_bytes(answer.body_mut(), is_withheld).await, 10);
            for _ in 0..8 {
                yield_now().await;
            }
            assert!(sender.is_ready(), "it serves the next request");
        }
        polls.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn the_last_piece_of_a_response_wakes_no_connection() {
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789";
        let (head, body) = whole.split_at(whole.len() - 10);
        for pieces in [&[whole][..], &[head, body], &[head, &body[..4], &body[4..]]] {
            let polls = polls_for_response(pieces, true).await;
            assert!(polls < polls_for_response(pieces, false).await, "{pieces:?}: {polls}");
        }
        let chunked =
            ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\n0123\r\n", "6\r\n456789\r\n", "0\r\n\r\n"];
        assert!(polls_for_response(&chunked, true).await > 0);
    }

    /// The service compares the bytes; a connection that is not woken would never respond.
    #[tokio::test]
    async fn a_body_in_pieces_is_read_to_its_end() {
        let begun = format!("{HEAD}01234");
        for pieces in [&[&*begun, "56789"][..], &[&begun, "567", "89"], &[HEAD, "01234", "56789"]] {
            polls_for(pieces, true).await;
        }
    }
}
