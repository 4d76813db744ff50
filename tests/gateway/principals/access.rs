//! A key's lists: the paths and tools that it opens, and tasks of a tool that it has lost.

use serde_json::json;
use taskgate::config;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::gate::{ADA, ADA_TOO, Answer, Ask, BOB, Gate};
use super::upstream::in_time;

const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

/// Keys of ada and bob; `ada` has further members of ada's key. There is an upstream besides the gate's own.
fn text(ada: &str) -> String {
    let mut text = "mode = \"api_keys\"\n".to_owned();
    for (id, key, more) in [("ada", ADA, ada), ("ada", ADA_TOO, ada), ("bob", BOB, "")] {
        text += &format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n{more}\n");
    }
    text + "[upstreams.other]\nurl = \"http://127.0.0.1:9/mcp\"\n"
}

async fn gate(ada: &str) -> Gate {
    Gate::of("", &text(ada), "").await
}

impl Gate {
    /// Replaces the lists of ada's key.
    fn narrow(&mut self, ada: &str) {
        let text = format!("[auth]\n{}[upstreams.up]\nurl = \"http://127.0.0.1:8/mcp\"\n", text(ada));
        let access = config::parse("test.toml", &text, &|_| None).unwrap().config.access;
        self.reload_with(|config| config.access = access).unwrap();
    }
}

#[track_caller]
fn check_alike(what: &str, one: &Answer, other: &Answer, expected: &str) {
    assert_eq!(one, other, "{what}");
    assert_eq!(one.summary(), expected, "{what}");
}

/// The answer is the same for every request, and over HTTP+SSE too.
#[tokio::test]
async fn a_path_that_a_key_does_not_open_is_like_an_unknown_path() {
    let gate = gate("upstreams = [\"other\"]").await;
    let list = Ask::new(ADA, "tools/list", json!({}));
    let asks = [
        list.clone(),
        Ask::session(ADA, None, "initialize", &json!({})),
        Ask { body: String::new(), ..list.clone() },
        Ask { body: "{".to_owned(), ..list.clone() },
        Ask { body: "[]".to_owned(), ..list.clone() },
        list.clone().without("content-type"),
        list.clone().without("accept").with("Accept", "text/html"),
        list.clone().with("Expect", "nothing"),
        list.clone().with("Mcp-Session-Id", "x"),
    ];
    let verbs = ["GET", "DELETE", "PUT", "HEAD", "OPTIONS", "PATCH"].map(|verb| Ask { verb, ..list.clone() });
    for ask in asks.into_iter().chain(verbs) {
        for path in ["/mcp", "/sse", "/mcp?x=1"] {
            let withheld = gate.send(&ask.clone().at(path)).await;
            assert_eq!(withheld, gate.send(&ask.clone().at("/nowhere")).await, "{} {path}", ask.verb);
            assert_eq!(withheld.status(), "404", "{} {path}", ask.verb);
            assert!(!withheld.body.contains("servers at"), "{withheld:?}");
        }
    }
    assert_eq!(gate.send(&list.clone().at("/other/mcp")).await.status(), "503", "it is tried");
    assert_eq!(gate.send(&Ask::new(BOB, "tools/list", json!({}))).await.summary(), "200 ok");
    assert_eq!(gate.server.world.count("tools/list"), 1, "bob's");
}

/// The row's upstream and tool decide, for every method that names the task.
#[tokio::test]
async fn a_task_of_a_tool_that_its_owner_lost_is_unknown_and_can_still_be_cancelled() {
    for (ada, is_other_path) in [("tools = [\"quick\", \"ask\"]", false), ("upstreams = [\"other\"]", true)] {
        // One gateway for each task: after twenty unknown tasks in a minute the refusal is another one.
        let mut gate = gate("").await;
        let (settled, held) = (gate.task(ADA, "task").await, gate.task(ADA, "held").await);
        let bobs = gate.task(BOB, "task").await;
        let session = gate.session(ADA).await;
        gate.narrow(ada);
        // The owner finds its task at any path.
        let at = |ask: Ask| if is_other_path { ask.at("/other/mcp") } else { ask };
        for id in [&settled, &held] {
            for method in ["tasks/get", "tasks/update"] {
                let ask = |id: &str| {
                    let answers = json!({ "1": { "action": "accept" } });
                    at(Ask::new(ADA, method, json!({ "taskId": id, "inputResponses": answers })))
                };
                let (lost, unknown) = (gate.send(&ask(id)).await, gate.send(&ask(UNKNOWN)).await);
                check_alike(&format!("{ada} {method}"), &lost, &unknown, "200 -32602");
            }
        }
        let listen = async |ids: &[&str]| {
            let ask = at(Ask::new(ADA, "subscriptions/listen", json!({ "notifications": { "taskIds": ids } })));
            let (first, _stream) = gate.open(&ask).await;
            first.split("data: ").nth(1).unwrap_or_else(|| panic!("{first}")).split("\n\n").next().unwrap().to_owned()
        };
        assert_eq!(listen(&[&settled, &held]).await, listen(&[UNKNOWN]).await, "{ada}");
        assert_eq!(gate.send(&Ask::new(BOB, "tasks/get", json!({ "taskId": bobs }))).await.summary(), "200 ok");
        if !is_other_path {
            for method in ["tasks/get", "tasks/result"] {
                let ask = |id: &str| Ask::session(ADA, Some(&session), method, &json!({ "taskId": id }));
                let (lost, unknown) = (gate.send(&ask(&settled)).await, gate.send(&ask(UNKNOWN)).await);
                check_alike(method, &lost, &unknown, "200 -32602");
            }
            let listed = gate.send(&Ask::session(ADA, Some(&session), "tasks/list", &json!({}))).await.json();
            assert_eq!(listed["result"]["tasks"], json!([]), "{listed}");
            let again = gate.send(&Ask::call(ADA, "task", &json!({}))).await;
            assert_eq!(again.summary(), "200 -32602", "none is made");
        }
        let cancel = at(Ask::new(ADA, "tasks/cancel", json!({ "taskId": held })));
        assert_eq!(gate.send(&cancel).await.summary(), "200 ok", "{ada}");
        gate.narrow("");
        for (id, expected) in [(&settled, "completed"), (&held, "cancelled")] {
            let read = gate.send(&Ask::new(ADA, "tasks/get", json!({ "taskId": id }))).await.json();
            assert_eq!(read["result"]["status"], expected, "nothing was lost");
        }
    }
}

/// SEC-30: a client of 2026-07-28 cancels a task that was made in a session, too (EXT-63).
#[tokio::test]
async fn a_client_that_lost_a_tool_can_cancel_its_tasks_in_every_flavour() {
    let mut gate = gate("").await;
    let session = gate.session(ADA).await;
    let mut made = Vec::new();
    for _ in 0..2 {
        let call = json!({ "name": "held", "arguments": {}, "task": {} });
        let handle = gate.send(&Ask::session(ADA, Some(&session), "tools/call", &call)).await.json();
        made.push(handle["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{handle}")).to_owned());
    }
    gate.narrow("tools = [\"quick\"]");
    let declared = json!({ "tasks": {} });
    let in_session = |method: &str, id: &str| Ask::session(ADA, Some(&session), method, &json!({ "taskId": id }));
    let afterwards = |method: &str, id: &str| Ask::declaring(ADA, method, json!({ "taskId": id }), &declared);
    for (id, ask) in made.iter().zip([&in_session as &dyn Fn(&str, &str) -> Ask, &afterwards]) {
        let (lost, unknown) = (gate.send(&ask("tasks/get", id)).await, gate.send(&ask("tasks/get", UNKNOWN)).await);
        assert_eq!(lost, unknown);
        let ended = gate.send(&ask("tasks/cancel", id)).await;
        assert_eq!(ended.summary(), "200 ok", "{ended:?}");
        let told = gate.send(&ask("tasks/cancel", id)).await;
        assert_eq!(told, gate.send(&ask("tasks/cancel", UNKNOWN)).await, "it does not show that the task has ended");
    }
}

/// The streams of the key that lost the upstream end in order; streams of other keys go on.
#[tokio::test]
async fn streams_end_with_the_upstream_that_their_key_lost() {
    let mut gate = gate("").await;
    let listen = |key| Ask::declaring(key, "subscriptions/listen", json!({ "notifications": {} }), &json!({}));
    let older = |key| Ask { verb: "GET", body: String::new(), ..listen(key) }.at("/sse");
    let mut ends = Vec::new();
    for ask in [listen(ADA), listen(ADA_TOO), older(ADA)] {
        ends.push(gate.open(&ask).await.1);
    }
    let stays = [gate.open(&listen(BOB)).await.1, gate.open(&older(BOB)).await.1];
    let is_open = |stream: &TcpStream| {
        let read = stream.try_read(&mut [0; 64]);
        assert!(read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "nothing came, and no end");
    };
    gate.narrow("tools = [\"quick\"]");
    ends.iter().chain(&stays).for_each(is_open);
    gate.narrow("upstreams = [\"other\"]");
    for mut stream in ends {
        let mut rest = Vec::new();
        in_time(stream.read_to_end(&mut rest)).await.unwrap();
        assert!(rest.ends_with(b"0\r\n\r\n"), "in order: {rest:?}");
    }
    stays.iter().for_each(is_open);
    assert_eq!(gate.send(&listen(ADA)).await.status(), "404");
    gate.narrow("");
    assert!(gate.open(&listen(ADA)).await.0.contains("acknowledged"), "and back again");
}
