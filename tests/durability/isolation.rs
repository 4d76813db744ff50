//! A thousand principals of four kinds with equal names call with equal arguments. Each finds its own tasks and learns nothing of
//! the others', at one gateway, at two, and after `kill -9`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

pub(crate) mod crowd;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use http_body_util::BodyExt as _;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::history::History;
use support::hostile_twin;
use support::scripted::{BodySender, ScriptedServer, answer, in_time};

use self::crowd::{Answer, Crowd, FEW_NAMES, KINDS, NAMES, PersonConnection};
use super::kill_cycles::keeper::Keeper;

const AT_ONCE: usize = 16;
/// After a kill, every fourth name is tested: a connection for each principal takes most of the time.
const FEWER: usize = 4;
/// As long as a real id, but no task's.
const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

/// The tasks of one person.
pub(crate) struct Own {
    settled: String,
    result: Value,
    /// A call that the server does not answer; some persons have one.
    held: Option<String>,
    /// A call with a question: the task, and the key of the question.
    asking: Option<(String, String)>,
}

/// A server whose tool `work` returns a number that no other call has, `held` never returns, and `ask` asks.
pub(crate) async fn server() -> ScriptedServer {
    let calls = AtomicUsize::new(0);
    ScriptedServer::start(move |seen| match (seen.rpc(), seen.body["params"]["name"].as_str()) {
        ("tools/list", _) => {
            let tools =
                ["work", "held", "ask"].map(|name| json!({ "name": name, "inputSchema": { "type": "object" } }));
            Some(answer(seen, &json!({ "tools": tools })))
        }
        ("tools/call", Some("work")) => {
            let nth = calls.fetch_add(1, Ordering::SeqCst);
            Some(answer(seen, &json!({ "content": [], "structuredContent": { "nth": nth } })))
        }
        ("tools/call", name) => {
            let (events, reply) = BodySender::open();
            if name == Some("ask") {
                let params = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
                events.message(&json!({ "jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params }));
            }
            // Stays open until the test ends.
            std::mem::forget(events);
            Some(reply)
        }
        _ => None,
    })
    .await
}

/// Runs `act` for each person, or for each n-th name, several at a time.
async fn each<T>(crowd: &Crowd, every: usize, act: impl AsyncFn(usize) -> T) -> Vec<T> {
    let act = &act;
    let people = (0..crowd.people.len()).filter(|nth| (nth / KINDS).is_multiple_of(every));
    stream::iter(people).map(|nth| act(nth)).buffered(AT_ONCE).collect().await
}

async fn call(connection: &mut PersonConnection<'_>, tool: &str) -> String {
    in_time(async {
        loop {
            let made = connection.ask("tools/call", json!({ "name": tool, "arguments": { "n": 1 } })).await;
            if let Some(id) = made.json()["result"]["taskId"].as_str() {
                return id.to_owned();
            }
            // A busy machine's database may be late.
            assert!(made.status == 503 && made.body.contains("\"executed\":\"no\""), "{made:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
}

/// Polls the person's task until it has this status.
async fn until(connection: &mut PersonConnection<'_>, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    in_time(async {
        loop {
            let shown = connection.ask("tasks/get", json!({ "taskId": id })).await.json();
            if is_so(&shown["result"]) {
                return shown["result"].clone();
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
}

/// Makes the tasks of one person.
async fn make(crowd: &Crowd, nth: usize, address: SocketAddr) -> Own {
    let mut connection = crowd.people[nth].connect(address).await;
    let settled = call(&mut connection, "work").await;
    // Neither number is a multiple of the number of kinds.
    let held = if nth.is_multiple_of(9) { Some(call(&mut connection, "held").await) } else { None };
    let mut asking = None;
    if nth.is_multiple_of(11) {
        let id = call(&mut connection, "ask").await;
        let shown = until(&mut connection, &id, |task| task["inputRequests"].is_object()).await;
        let key = shown["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        asking = Some((id, key));
    }
    let result = until(&mut connection, &settled, |task| task["status"] == "completed").await;
    Own { settled, result, held, asking }
}

/// Another principal: another kind with the same name, or another name of the same kind.
fn other_person(nth: usize, all: usize) -> usize {
    if (nth / KINDS).is_multiple_of(2) { nth - nth % KINDS + (nth + 1) % KINDS } else { (nth + KINDS) % all }
}

/// Requests that name a task, in either era.
async fn asks_about(connection: &mut PersonConnection<'_>, session: &str, id: &str, key: &str) -> Vec<Answer> {
    let answers = json!({ key: { "action": "accept", "content": {} } });
    let mut replies = vec![
        connection.ask("tasks/get", json!({ "taskId": id })).await,
        connection.ask("tasks/update", json!({ "taskId": id, "inputResponses": answers })).await,
        connection.ask("tasks/cancel", json!({ "taskId": id })).await,
    ];
    replies.push(connection.in_session(Some(session), "tasks/result", json!({ "taskId": id })).await);
    replies
}

fn ids(own: &Own) -> BTreeSet<&str> {
    let asking = own.asking.iter().map(|(id, _)| id.as_str());
    [own.settled.as_str()].into_iter().chain(own.held.as_deref()).chain(asking).collect()
}

/// Each person sees its own tasks and lists them alone; another's task gets the answer for an unknown one.
pub(crate) async fn each_sees_its_own_alone(crowd: &Crowd, all: &[Own], address: SocketAddr) {
    each(crowd, 1, async |nth| {
        let (own, mut connection) = (&all[nth], crowd.people[nth].connect(address).await);
        let read = connection.ask("tasks/get", json!({ "taskId": own.settled })).await.json();
        assert_eq!(read["result"]["result"], own.result["result"], "{}", crowd.people[nth].name);
        let initialize = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
        });
        let opened = connection.in_session(None, "initialize", initialize).await;
        let session = opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}")).to_owned();
        let listed = connection.in_session(Some(&session), "tasks/list", json!({})).await.json();
        let listed = listed["result"]["tasks"].as_array().unwrap_or_else(|| panic!("{listed}")).clone();
        let listed: BTreeSet<_> = listed.iter().map(|task| task["taskId"].as_str().unwrap()).collect();
        assert_eq!(listed, ids(own));
        // Few requests: after twenty unknown tasks in a minute, all gateways answer otherwise.
        let unknown = asks_about(&mut connection, &session, UNKNOWN, "1").await;
        let of = &all[other_person(nth, all.len())];
        let (id, key) = match (&of.asking, &of.held) {
            (Some((id, key)), _) => (id.as_str(), key.as_str()),
            (None, Some(held)) => (held.as_str(), "1"),
            (None, None) => (of.settled.as_str(), "1"),
        };
        assert_eq!(
            asks_about(&mut connection, &session, id, key).await,
            unknown,
            "{nth} about {}'s",
            other_person(nth, all.len())
        );
        assert!(unknown.iter().all(|reply| reply.json()["error"]["code"] == -32602), "{unknown:?}");
    })
    .await;
}

/// Each person finds its own result, and nothing of another's.
pub(crate) async fn each_still_sees_its_own_alone(crowd: &Crowd, all: &[Own], address: SocketAddr) {
    each(crowd, FEWER, async |nth| {
        let (own, mut connection) = (&all[nth], crowd.people[nth].connect(address).await);
        // A fast machine exceeds the rate of missing tasks.
        let mut get = async |id: &str| {
            in_time(async {
                loop {
                    let reply = connection.ask("tasks/get", json!({ "taskId": id })).await;
                    if reply.status != 429 {
                        return reply;
                    }
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            })
            .await
        };
        // The gateway does not know yet which server it is.
        let read = get(&own.settled).await.json();
        assert_eq!(read["result"]["result"], own.result["result"], "{}", crowd.people[nth].name);
        let other = other_person(nth, all.len());
        assert_eq!(get(&all[other].settled).await, get(UNKNOWN).await, "{nth} about {other}'s");
    })
    .await;
}

/// Each person with a held call cancels it, and is notified of its own task alone, although it subscribed to others.
pub(crate) async fn each_is_notified_of_its_own_alone(crowd: &Crowd, all: &[Own], address: SocketAddr) {
    let holders: Vec<_> = (0..all.len()).filter(|nth| all[*nth].held.is_some()).take(40).collect();
    let mut streams = Vec::new();
    for (at, &nth) in holders.iter().enumerate() {
        let (own, other) = (all[nth].held.as_ref().unwrap(), holders[(at + 1) % holders.len()]);
        let foreign = all[other].held.as_ref().unwrap();
        let mut connection = crowd.people[nth].connect(address).await;
        let mut params = json!({ "notifications": { "taskIds": [foreign, own] } });
        let stream = connection.open("subscriptions/listen", &mut params).await;
        streams.push((own, connection, stream.into_body(), String::new()));
    }
    for (own, _, stream, text) in &mut streams {
        read_until(stream, text, own).await;
    }
    for &nth in &holders {
        let mut connection = crowd.people[nth].connect(address).await;
        let cancelled = connection.ask("tasks/cancel", json!({ "taskId": all[nth].held })).await.json();
        assert!(cancelled["result"].is_object(), "{cancelled}");
    }
    for (own, _, stream, text) in &mut streams {
        read_until(stream, text, "cancelled").await;
        let others = all.iter().flat_map(ids).filter(|id| id != own);
        assert_eq!(others.filter(|id| text.contains(id)).count(), 0, "{text}");
    }
}

async fn read_until(stream: &mut hyper::body::Incoming, text: &mut String, end: &str) {
    while !text.contains(end) {
        let frame = in_time(stream.frame()).await.unwrap_or_else(|| panic!("it ended: {text}")).unwrap();
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
    }
}

/// No request of another principal reached the server.
pub(crate) fn nothing_was_cancelled_or_answered(server: &ScriptedServer) {
    let reached = server.world.all(|seen| {
        seen.rpc() == "notifications/cancelled" || seen.method == "DELETE" || seen.body.get("result").is_some()
    });
    assert!(reached.is_empty(), "{reached:?}");
}

pub(crate) async fn make_all(crowd: &Crowd, addresses: &[SocketAddr]) -> Vec<Own> {
    let all = each(crowd, 1, async |nth| make(crowd, nth, addresses[nth % addresses.len()]).await).await;
    let results: BTreeSet<_> =
        all.iter().map(|own| own.result["result"]["structuredContent"]["nth"].as_u64()).collect();
    assert_eq!((results.len(), results.contains(&None)), (all.len(), false), "each task has its own result");
    assert_eq!(all.iter().flat_map(ids).count(), all.iter().flat_map(ids).collect::<BTreeSet<_>>().len());
    all
}

/// SEC-42, with a store on disk. At the end the holders of keys lose the tool; then their own tasks get the answer for unknown
/// ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sec_42_a_thousand_principals_with_equal_names_know_nothing_of_each_other() {
    let server = server().await;
    let names = if hostile_twin::is_wanted() { FEW_NAMES } else { NAMES };
    let crowd = Crowd::before(&server, names).await;
    let mut keeper = Keeper::new("isolation", "", Arc::new(History::begin(Duration::ZERO)));
    keeper.listen_with(Crowd::LISTEN);
    keeper.configure(&crowd.sections(""));
    keeper.start(&[]).await.unwrap();
    let all = make_all(&crowd, &[keeper.address()]).await;
    each_sees_its_own_alone(&crowd, &all, keeper.address()).await;
    nothing_was_cancelled_or_answered(&server);
    each_is_notified_of_its_own_alone(&crowd, &all, keeper.address()).await;
    keeper.kill().await;
    keeper.start(&[]).await.unwrap();
    each_still_sees_its_own_alone(&crowd, &all, keeper.address()).await;
    keeper.configure(&crowd.sections("tools = [\"held\"]"));
    keeper.signal(Signal::HUP);
    let mut first = crowd.people[0].connect(keeper.address()).await;
    until_is(async || first.ask("tasks/get", json!({ "taskId": all[0].settled })).await.json()["error"].is_object())
        .await;
    each(&crowd, FEWER, async |nth| {
        let mut connection = crowd.people[nth].connect(keeper.address()).await;
        let mut get = async |id: &str| connection.ask("tasks/get", json!({ "taskId": id })).await;
        match nth % KINDS {
            0 => assert_eq!(get(&all[nth].settled).await, get(UNKNOWN).await, "{nth}"),
            _ => {
                assert_eq!(get(&all[nth].settled).await.json()["result"]["result"], all[nth].result["result"], "{nth}")
            }
        }
    })
    .await;
    keeper.forget_log();
}

async fn until_is(mut is_so: impl AsyncFnMut() -> bool) {
    in_time(async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
}
