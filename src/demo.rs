//! Serves a small MCP server without tasks, to try the gateway with. It supports 2025-03-26 and 2025-06-18 with
//! sessions, over streamable HTTP and over stdio.

mod http;
mod rpc;
mod session;
mod stdio;
mod tools;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use session::DemoSessions;
pub use stdio::serve as serve_stdio;

/// The most open connections; more wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
const HEAD_READ_MAX: Duration = Duration::from_secs(10);
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Pause after an error of `accept`, which usually means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running demo server. Dropping it does not stop it; its token does.
#[derive(Clone, Copy, Debug)]
pub struct DemoServer {
    pub local_addr: SocketAddr,
}

#[derive(Debug)]
struct DemoState {
    local_addr: SocketAddr,
    sessions: DemoSessions,
    tracker: TaskTracker,
    cancel: CancellationToken,
}

impl DemoServer {
    /// Binds `address` (port 0 picks one) and serves on tasks of `tracker` until `cancel`, which ends all sessions.
    pub async fn start(address: SocketAddr, tracker: &TaskTracker, cancel: CancellationToken) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let local_addr = listener.local_addr()?;
        let sessions = DemoSessions::new(cancel.clone());
        let shared = Arc::new(DemoState { local_addr, sessions, tracker: tracker.clone(), cancel });
        tracker.spawn(accept(listener, shared));
        Ok(Self { local_addr })
    }

    pub fn url(&self) -> String {
        format!("http://{}{}", self.local_addr, http::PATH)
    }
}

async fn accept(listener: TcpListener, shared: Arc<DemoState>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let serving = async {
        loop {
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, _)) => {
                    shared.tracker.spawn(serve(stream, Arc::clone(&shared), place));
                }
                Err(error) => {
                    tracing::warn!(%error, "the demo server cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    shared.cancel.run_until_cancelled(serving).await;
}

async fn serve(stream: TcpStream, shared: Arc<DemoState>, _place: OwnedSemaphorePermit) {
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(http::answer(&shared, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_READ_MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shared.cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(DRAIN_MAX, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = &*error, "a connection of the demo server ended early");
    }
}
