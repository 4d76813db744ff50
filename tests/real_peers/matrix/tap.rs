//! A proxy between the gateway and an upstream that records the bytes.
//!
//! The recorded bytes prove the gateway's requests; its own metrics do not.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The bytes that are kept of one connection: these tests send less.
const HEARD_BYTES_MAX: usize = 1 << 20;

type Heard = Arc<Mutex<Vec<u8>>>;

/// Passes connections on. Dropping it cuts them.
#[derive(Debug)]
pub(crate) struct Tap {
    address: SocketAddr,
    /// The gateway's bytes, by connection: messages on different ones do not mix.
    heard: Arc<Mutex<Vec<Heard>>>,
    _running: JoinSet<()>,
}

impl Tap {
    /// # Errors
    /// If there is no free port.
    pub(crate) async fn start(to: SocketAddr) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| format!("no free port: {error}"))?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let heard = Arc::default();
        let mut running = JoinSet::new();
        running.spawn(accept(listener, to, Arc::clone(&heard)));
        Ok(Self { address, heard, _running: running })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often the gateway said `text`.
    pub(crate) fn count(&self, text: &str) -> usize {
        let count = |heard: &Heard| String::from_utf8_lossy(&heard.lock()).matches(text).count();
        self.heard.lock().iter().map(count).sum()
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, all: Arc<Mutex<Vec<Heard>>>) {
    let mut connections = JoinSet::new();
    while let Ok((gateway, _)) = listener.accept().await {
        let heard = Heard::default();
        all.lock().push(Arc::clone(&heard));
        connections.spawn(async move {
            let Ok(upstream) = TcpStream::connect(to).await else { return };
            let (from_gateway, mut to_gateway) = gateway.into_split();
            let (mut from_upstream, to_upstream) = upstream.into_split();
            tokio::join!(listen(from_gateway, to_upstream, &heard), async {
                let _ = copy(&mut from_upstream, &mut to_gateway).await;
                let _ = to_gateway.shutdown().await;
            });
        });
    }
}

async fn listen(mut gateway: OwnedReadHalf, mut upstream: OwnedWriteHalf, heard: &Heard) {
    let mut chunk = vec![0; 16 << 10];
    while let Ok(length @ 1..) = gateway.read(&mut chunk).await {
        let said = &chunk[..length];
        {
            let mut heard = heard.lock();
            let room = HEARD_BYTES_MAX.saturating_sub(heard.len()).min(length);
            heard.extend_from_slice(&said[..room]);
        }
        if upstream.write_all(said).await.is_err() {
            return;
        }
    }
    let _ = upstream.shutdown().await;
}
