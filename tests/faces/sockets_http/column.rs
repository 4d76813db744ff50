//! The two columns of each table: a recording endpoint, which sees every admitted request, and a whole gateway with a
//! session client in front of a session upstream, which sees every forwarded one.

use std::net::SocketAddr;

use super::client;
use super::harness::{BODY_MAX, Gate, gate};
use super::upstream::ScriptedServer;

/// The body of every well-formed request, which each column can serve.
pub(crate) const MESSAGE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
/// Its length, for `Content-Length`, and as the head of a chunk.
pub(crate) const LENGTH: &str = "40";
pub(crate) const HEX: &str = "28";

pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    /// The methods in `Allow` at the path `/mcp`.
    pub(crate) allow: &'static str,
    /// Two header fields of each request, beside those of its row.
    lines: [(&'static str, String); 2],
    behind: Behind,
}

enum Behind {
    Recorder(Gate),
    Session { server: ScriptedServer, _gate: Box<client::TestGateway> },
}

impl Column {
    pub(crate) async fn all() -> [Self; 2] {
        [Self::recorder().await, Self::session().await]
    }

    async fn recorder() -> Self {
        let gate = gate().await;
        let address = gate.running.local_addr();
        let lines = [("x-session", "1".to_owned()), ("x-version", "1".to_owned())];
        Self { name: "any endpoint", address, allow: "POST", lines, behind: Behind::Recorder(gate) }
    }

    pub(crate) async fn session() -> Self {
        let server = ScriptedServer::polite().await;
        let listen = format!(
            "allowed_hosts = [\"gate.example\"]\nallowed_origins = [\"https://app.example:8443\"]\n\
             [limits]\nbody_bytes_max = \"{}KiB\"",
            BODY_MAX >> 10
        );
        let gate = client::TestGateway::open(&listen, &format!("http://{}/mcp", server.address), "").await;
        let session = gate.client().await.session.unwrap();
        let lines = [("mcp-session-id", session), ("mcp-protocol-version", "2025-11-25".to_owned())];
        let address = gate.gateway.address();
        let behind = Behind::Session { server, _gate: Box::new(gate) };
        Self { name: "the session face", address, allow: "GET, POST, DELETE", lines, behind }
    }

    /// The upstream of the session face.
    pub(crate) fn server(&self) -> &ScriptedServer {
        match &self.behind {
            Behind::Session { server, .. } => server,
            Behind::Recorder(_) => panic!("a recorder has no upstream"),
        }
    }

    /// How many requests came through so far.
    pub(crate) fn reached(&self) -> usize {
        match &self.behind {
            Behind::Recorder(gate) => gate.reached(),
            Behind::Session { server, .. } => {
                server.world.all(|seen| seen.bytes.trim_ascii_end() == MESSAGE.as_bytes()).len()
            }
        }
    }

    /// The column's header lines, for requests that are written out.
    pub(crate) fn lines(&self) -> String {
        self.lines.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
    }

    pub(crate) fn fields(&self) -> [(&str, &str); 2] {
        self.lines.each_ref().map(|(name, value)| (*name, value.as_str()))
    }

    /// A request of HTTP/1.1 with the column's lines behind its first; anything else as it is.
    pub(crate) fn dress(&self, sent: &str) -> String {
        match sent.split_once('\n') {
            Some((first, rest)) if first.trim_end().ends_with("HTTP/1.1") => {
                let lines = if first.ends_with('\r') { self.lines() } else { self.lines().replace("\r\n", "\n") };
                format!("{first}\n{lines}{rest}")
            }
            Some(_) | None => sent.to_owned(),
        }
    }
}
