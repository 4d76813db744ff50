//! A Unix socket in front of a URL, for rmcp: of its two HTTP clients the one for Unix sockets is built on hyper, so it
//! is the one that is linked. Connections are forwarded byte for byte, and recorded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener};
use tokio::task::JoinSet;
use url::Url;

/// The bytes that are kept of one connection; these tests send less.
const TRANSCRIPT_BYTES_MAX: usize = 1 << 20;

/// The bytes of both directions of one connection, in the order in which they passed.
type Transcript = Arc<Mutex<Vec<u8>>>;

/// Passes connections on. Dropping it cuts them.
#[derive(Debug)]
pub struct UnixSocketProxy {
    dir: TempDir,
    transcripts: Arc<Mutex<Vec<Transcript>>>,
    _running: JoinSet<()>,
}

impl UnixSocketProxy {
    /// Leads to the host of `url`.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn to(url: &str) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let url = Url::parse(url).map_err(|error| error.to_string())?;
        let to = url.socket_addrs(|| None).map_err(|error| error.to_string())?;
        let listener = UnixListener::bind(socket_in(dir.path())).map_err(|error| error.to_string())?;
        let transcripts: Arc<Mutex<Vec<Transcript>>> = Arc::default();
        let all = Arc::clone(&transcripts);
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (to, transcript) = (to.clone(), Transcript::default());
                all.lock().push(Arc::clone(&transcript));
                connections.spawn(async move {
                    let Ok(gateway) = TcpStream::connect(&*to).await else { return };
                    let (from_client, to_client) = client.into_split();
                    let (from_gateway, to_gateway) = gateway.into_split();
                    tokio::join!(
                        pass(from_client, to_gateway, &transcript),
                        pass(from_gateway, to_client, &transcript)
                    );
                });
            }
        });
        Ok(Self { dir, transcripts, _running: running })
    }

    pub fn socket(&self) -> PathBuf {
        socket_in(self.dir.path())
    }

    /// The transcript of each connection.
    pub fn transcripts(&self) -> Vec<String> {
        self.transcripts.lock().iter().map(|one| String::from_utf8_lossy(&one.lock()).into_owned()).collect()
    }
}

fn socket_in(dir: &Path) -> PathBuf {
    dir.join("gateway.sock")
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, transcript: &Transcript) {
    let mut chunk = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        {
            let mut kept = transcript.lock();
            let room = TRANSCRIPT_BYTES_MAX.saturating_sub(kept.len()).min(length);
            kept.extend_from_slice(&chunk[..room]);
        }
        if to.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
