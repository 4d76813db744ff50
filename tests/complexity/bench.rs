//! The gateway, its upstreams and its clients on one thread, and the measurement of an act.
//!
//! Everything that runs there while an act is awaited counts, so the scripted upstream's work must be in proportion
//! too. The preparation of an act does not count.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use metrics_exporter_prometheus::PrometheusBuilder;
use parking_lot::Mutex;
use serde_json::json;
use taskgate::app::Gateway;
use taskgate::config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::families::Family;
use crate::upstream::{ScriptedReply, ScriptedServer, SeenRequest, answer, json_text, status};

/// Valgrind makes everything some fifty times slower; only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a call is waited for before it becomes a task: none does here.
const GRACE: &str = "30s";

/// Upstreams with lists that are not cached yet, each for one measurement.
const FRESH: usize = 16;

pub(crate) const MODERN: &str = "2026-07-28";

/// The list of tools, where no script has another one.
const TOOLS: &str = r#"{"resultType":"complete","ttlMs":0,"cacheScope":"public","tools":[{"name":"t","inputSchema":{"type":"object"}}]}"#;

/// A measured future.
pub(crate) type Act = BoxFuture<'static, ()>;

type Script = dyn Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync;

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) clients: SocketAddr,
    script: Arc<Mutex<Arc<Script>>>,
    fresh: Arc<Mutex<Vec<usize>>>,
}

pub(crate) struct Bench {
    runtime: Runtime,
    setup: Setup,
    _parts: (Gateway, ScriptedServer, ScriptedServer, tempfile::TempDir),
}

impl Bench {
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (setup, parts) = runtime.block_on(start());
        Self { runtime, setup, _parts: parts }
    }

    pub(crate) fn measure(&self, family: &Family, size: usize) {
        let act = self.runtime.block_on((family.prepare)(self.setup.clone(), size));
        counted_region(&self.runtime, act);
    }
}

/// Valgrind counts the instructions in here, on this thread. `count` knows its name.
#[inline(never)]
fn counted_region(runtime: &Runtime, act: Act) {
    runtime.block_on(act);
}

async fn start() -> (Setup, (Gateway, ScriptedServer, ScriptedServer, tempfile::TempDir)) {
    let script: Arc<Mutex<Arc<Script>>> = Arc::new(Mutex::new(Arc::new(|_: &SeenRequest| None)));
    let (now, modern_now) = (Arc::clone(&script), Arc::clone(&script));
    let session = ScriptedServer::slow(move |seen, _| {
        let script = Arc::clone(&now.lock());
        let said = || script(&seen).or_else(|| (seen.rpc() == "tools/list").then(|| result(&seen, TOOLS)));
        std::future::ready(if seen.rpc() == "initialize" { None } else { said() })
    })
    .await;
    let modern = ScriptedServer::slow(move |seen, _| {
        let script = Arc::clone(&modern_now.lock());
        std::future::ready(script(&seen).or_else(|| stateless_reply(&seen)))
    })
    .await;
    let url = session.url();
    let mut text = format!(
        "[store]\nkind = \"memory\"\n[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [upstreams.up]\nurl = \"{url}\"\nlife_signs = false\n[upstreams.up.tasks]\ngrace = \"{GRACE}\"\n\
         [upstreams.new]\nurl = \"{}\"\nprotocol = \"{MODERN}\"\n[upstreams.new.tasks]\ngrace = \"{GRACE}\"\n",
        modern.url()
    );
    for number in 0..FRESH {
        text.push_str(&format!("[upstreams.fresh{number}]\nurl = \"{url}\"\n"));
    }
    let mut config = config::parse("test.toml", &text, &|_| None).unwrap().config;
    let folder = tempfile::tempdir().unwrap();
    config.folder = folder.path().to_path_buf();
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let gateway = Gateway::start(config, metrics).await.unwrap();
    let fresh = Arc::new(Mutex::new((0..FRESH).collect()));
    (Setup { clients: gateway.address(), script, fresh }, (gateway, session, modern, folder))
}

/// A server of 2026-07-28.
fn stateless_reply(seen: &SeenRequest) -> Option<ScriptedReply> {
    let complete = |mut result: serde_json::Value| {
        result["resultType"] = json!("complete");
        Some(answer(seen, &result))
    };
    match seen.rpc() {
        "server/discover" => complete(json!({
            "supportedVersions": [MODERN], "capabilities": {"tools": {}}, "ttlMs": 60_000, "cacheScope": "public",
        })),
        "tools/list" => Some(result(seen, TOOLS)),
        "initialize" => Some(status(400)),
        _ if seen.method != http::Method::POST => Some(status(405)),
        _ => complete(json!({"content": []})),
    }
}

/// A result as text, for the request that was seen.
pub(crate) fn result(seen: &SeenRequest, result: &str) -> ScriptedReply {
    json_text(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.body["id"]))
}

impl Setup {
    /// From now on the upstreams answer in this way, where it says something.
    pub(crate) fn answers(&self, script: impl Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync + 'static) {
        *self.script.lock() = Arc::new(script);
    }

    /// Tools/call is answered with little.
    pub(crate) fn answers_shortly(&self) {
        self.answers(|seen| seen.is_call().then(|| result(seen, r#"{"resultType":"complete","content":[]}"#)));
    }

    /// The path of an upstream that has had no request.
    pub(crate) fn fresh(&self) -> String {
        format!("/fresh{}/mcp", self.fresh.lock().pop().expect("there are upstreams enough"))
    }

    /// An act: a request whose answer has a text in it.
    pub(crate) fn exchange(&self, request: Vec<u8>, expected: &'static str) -> Act {
        let setup = self.clone();
        Box::pin(async move {
            let answer = setup.send(&request).await;
            assert!(answer.contains(expected), "{expected} is not in {:.2000}", answer);
        })
    }

    /// Sends a request on a connection of its own and reads to the end.
    pub(crate) async fn send(&self, request: &[u8]) -> String {
        let talking = async {
            let mut stream = TcpStream::connect(self.clients).await.unwrap();
            let (mut read, mut write) = stream.split();
            let mut answer = Vec::new();
            // An answer may begin before the request has ended.
            let (written, heard) = tokio::join!(write.write_all(request), read.read_to_end(&mut answer));
            written.unwrap();
            heard.unwrap();
            String::from_utf8_lossy(&answer).into_owned()
        };
        tokio::time::timeout(PATIENCE, talking).await.expect("an answer")
    }

    /// Opens a stream and reads until a text has come; dropping the socket ends it.
    pub(crate) async fn open(&self, request: &[u8], until: &str) -> TcpStream {
        let opening = async {
            let mut stream = TcpStream::connect(self.clients).await.unwrap();
            stream.write_all(request).await.unwrap();
            let mut heard = Vec::new();
            while !String::from_utf8_lossy(&heard).contains(until) {
                assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0, "{}", String::from_utf8_lossy(&heard));
            }
            stream
        };
        tokio::time::timeout(PATIENCE, opening).await.expect("the stream opens")
    }
}
