//! U35: an upstream that has far too many tools, or far too much to say of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::program::{Call, Folder, Program, block};
use super::upstream::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer, in_time};

const FEW: usize = 3;
const MANY: usize = 100_000;
/// Answers with one tool of 64 MiB.
const LARGE: usize = 0;

/// A server whose list is as long as the test wants it now.
struct Lister {
    server: ScriptedServer,
    tools: Arc<AtomicUsize>,
    streams: Arc<Mutex<Vec<BodySender>>>,
}

fn list(seen: &SeenRequest, count: usize) -> ScriptedReply {
    let tool = |n: usize| json!({"name": format!("t{n}"), "inputSchema": {"type": "object"}});
    let tools: Vec<Value> = match count {
        LARGE => vec![json!({"name": "t0", "description": "x".repeat(64 << 20), "inputSchema": {}})],
        count => (0..count).map(tool).collect(),
    };
    answer(seen, &json!({"tools": tools}))
}

impl Lister {
    async fn start(count: usize) -> Self {
        let (tools, streams) = (Arc::new(AtomicUsize::new(count)), Arc::<Mutex<Vec<BodySender>>>::default());
        let (now, open) = (Arc::clone(&tools), Arc::clone(&streams));
        let server = ScriptedServer::start(move |seen| match (seen.method.as_str(), seen.rpc()) {
            ("GET", _) => {
                let (events, reply) = BodySender::open();
                open.lock().push(events);
                Some(reply)
            }
            (_, "tools/list") => Some(list(seen, now.load(Ordering::SeqCst))),
            _ => None,
        })
        .await;
        Self { server, tools, streams }
    }

    /// Changes the list, and says so.
    fn change(&self, count: usize) {
        self.tools.store(count, Ordering::SeqCst);
        for stream in &*self.streams.lock() {
            stream.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n");
        }
    }
}

/// How many tools a client is shown.
async fn shown(program: &Program) -> usize {
    let answer = Call::new("tools/list", &json!({})).send(program.clients, "/up/mcp").await;
    answer.json()["result"]["tools"].as_array().unwrap_or_else(|| panic!("no list: {:.300}", answer.body)).len()
}

async fn until_shown(program: &Program, lister: &Lister, asked: usize) -> usize {
    in_time(async {
        loop {
            let count = shown(program).await;
            if lister.server.world.count("tools/list") > asked {
                return count;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await
}

const MARK: &str = "taskgate_upstream_tools_cut_off{upstream=\"up\"}";

#[tokio::test]
async fn u35_a_list_that_is_far_too_long_is_cut_off_and_the_last_whole_one_served() {
    let lister = Lister::start(FEW).await;
    let folder = Folder::new();
    folder.write(&block("up", &lister.server));
    let program = Program::serve(&folder).await;
    assert_eq!(shown(&program).await, FEW);
    for (count, expected, is_cut_off) in [(MANY, FEW, 1), (LARGE, FEW, 1), (FEW + 1, FEW + 1, 0), (MANY, FEW + 1, 1)] {
        let asked = lister.server.world.count("tools/list");
        lister.change(count);
        assert_eq!(until_shown(&program, &lister, asked).await, expected, "of {count}");
        assert_eq!(program.counted(MARK).await, is_cut_off, "of {count}");
        let params = json!({"name": format!("t{}", expected - 1), "arguments": {"n": 7}});
        // Of a client without tasks: to read a list takes long on a busy machine.
        let called = Call::declaring("tools/call", &params, &json!({})).send(program.clients, "/up/mcp").await;
        assert_eq!(called.json()["result"]["n"], 7, "its calls are checked against the shown list: {}", called.body);
    }
    program.says("the tool list is too long: clients get its beginning", 2).await;
    // The metric of the replaced server is 0 again, once its last call has ended.
    let other = Lister::start(FEW).await;
    folder.write(&block("up", &other.server));
    program.says("the configuration was read again", 1).await;
    assert_eq!(shown(&program).await, FEW);
    in_time(async {
        while program.counted(MARK).await > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn u35_a_list_that_was_never_whole_is_shown_as_far_as_it_was_read() {
    for (count, expected) in [(MANY, 10_000), (LARGE, 0)] {
        let lister = Lister::start(count).await;
        let folder = Folder::new();
        folder.write(&block("up", &lister.server));
        let program = Program::serve(&folder).await;
        assert_eq!((shown(&program).await, program.counted(MARK).await), (expected, 1));
    }
}
