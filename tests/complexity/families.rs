//! The table: the measured functions, their sizes, and how their cost may grow.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;

use crate::bench::{Act, Setup, result};
use crate::bodies::{
    Session, answers, escaped_keys, escapes, items, keys, modern, modern_call, nested, object, post, text,
};
use crate::upstream::{ScriptedReply, SeenRequest, whole};
use crate::{parts, rest};

/// How the cost of an act may grow with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// In proportion: one more item costs as much in a large input as in a small one.
    Linear,
    /// Not at all: something else grows, such as the number of other tasks.
    None,
}

/// Makes the measured future at one size. Its own work is not counted.
type Prepare = fn(Setup, usize) -> BoxFuture<'static, Act>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) sizes: [usize; 3],
    pub(crate) growth: Growth,
    /// So many instructions more or less mean nothing.
    pub(crate) noise: u64,
    pub(crate) prepare: Prepare,
}

/// Through a gateway, which may have to fetch a list of tools again in the middle of it.
const GATEWAY: u64 = 3_000_000;

const fn row(name: &'static str, sizes: [usize; 3], prepare: Prepare) -> Family {
    Family { name, sizes, growth: Growth::Linear, noise: GATEWAY, prepare }
}

const fn flat(name: &'static str, sizes: [usize; 3], prepare: Prepare) -> Family {
    Family { name, sizes, growth: Growth::None, noise: GATEWAY, prepare }
}

/// Without a gateway around it.
const fn alone(family: Family) -> Family {
    Family { noise: 0, ..family }
}

const SMALL: [usize; 3] = [1, 10, 100];
const KEYS: [usize; 3] = [10, 100, 1_000];
const BYTES: [usize; 3] = [1_000, 10_000, 100_000];

const HELD: &str = r#""resultType":"complete""#;
const OK: &str = r#""result""#;

/// Every public entry with each of its sizes that can grow.
pub(crate) const FAMILIES: &[Family] = &[
    // Requests without a session, of calls that the engine holds.
    row("held call: keys", KEYS, |setup, n| held(setup, keys(n))),
    row("held call: escaped keys", KEYS, |setup, n| held(setup, escaped_keys(n))),
    row("held call: items", KEYS, |setup, n| held(setup, items(n))),
    row("held call: text", BYTES, |setup, n| held(setup, text(n))),
    row("held call: escapes", KEYS, |setup, n| held(setup, escapes(n))),
    flat("held call: depth", [2, 6, 50], |setup, n| held(setup, nested(n))),
    row("held call: keys, named", KEYS, |setup, n| {
        let name = new_name();
        setup.answers_shortly();
        now(setup.exchange(modern_call("/up/mcp", &escaped_keys(n), &[("Idempotency-Key", &name)]), OK))
    }),
    row("tasks/update: answers", KEYS, |setup, n| {
        let params = format!(r#""taskId":"{}","inputResponses":{}"#, "0".repeat(32), answers(n));
        now(setup.exchange(modern("/up/mcp", "tasks/update", Some(&"0".repeat(32)), &params, &[]), "-32602"))
    }),
    row("held call: inputResponses", KEYS, |setup, n| {
        setup.answers_shortly();
        let params = format!(r#""name":"t","arguments":{{}},"inputResponses":{}"#, answers(n));
        now(setup.exchange(modern("/up/mcp", "tools/call", Some("t"), &params, &[]), OK))
    }),
    row("held call: metadata", KEYS, |setup, n| {
        setup.answers_shortly();
        let call = modern_call("/up/mcp", "{}", &[]);
        let text = String::from_utf8(call).unwrap().split_once("\r\n\r\n").unwrap().1.to_owned();
        let meta = escaped_keys(n);
        let text = text.replacen(r#""_meta":{"#, &format!(r#""_meta":{{{},"#, &meta[1..meta.len() - 1]), 1);
        let headers = [("MCP-Protocol-Version", crate::bench::MODERN), ("Mcp-Method", "tools/call"), ("Mcp-Name", "t")];
        now(setup.exchange(post("/up/mcp", &headers, &text), OK))
    }),
    row("held call: headers", [1, 5, 50], |setup, n| {
        setup.answers_shortly();
        let names: Vec<String> = (0..n).map(|n| format!("Mcp-Param-A{n}")).collect();
        let more: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
        now(setup.exchange(modern_call("/up/mcp", "{}", &more), OK))
    }),
    // Requests without a session to a server that knows none.
    row("passed call: escaped keys", KEYS, |setup, n| {
        setup.answers_shortly();
        now(setup.exchange(modern_call("/new/mcp", &escaped_keys(n), &[]), OK))
    }),
    row("passed call: inputResponses", KEYS, |setup, n| {
        setup.answers_shortly();
        let params = format!(r#""name":"t","arguments":{{}},"inputResponses":{}"#, answers(n));
        now(setup.exchange(modern("/new/mcp", "tools/call", Some("t"), &params, &[]), OK))
    }),
    row("passed call: questions", [1, 5, 30], |setup, n| {
        setup.answers(move |seen| {
            let ask = r#"{"method":"elicitation/create","params":{"mode":"form","message":"m","requestedSchema":{"type":"object","properties":{}}}}"#;
            let asked = object((0..n).map(|n| format!(r#""\u0071{n}":{ask}"#)));
            let text = format!(r#"{{"resultType":"input_required","inputRequests":{asked},"requestState":"s"}}"#);
            seen.is_call().then(|| result(seen, &text))
        });
        now(setup.exchange(modern_call("/new/mcp", "{}", &[]), "input_required"))
    }),
    // Requests in a session.
    row("session call: escaped keys", KEYS, |setup, n| {
        in_session(setup, "2025-06-18", move |session| session.call(&escaped_keys(n), &[]))
    }),
    row("session call: keys, named", KEYS, |setup, n| {
        let name = new_name();
        in_session(setup, "2025-11-25", move |session| session.call(&escaped_keys(n), &[("Idempotency-Key", &name)]))
    }),
    row("session array: messages", SMALL, |setup, n| {
        in_session(setup, "2025-03-26", move |session| {
            let one = |n| format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"ping"}}"#);
            session.post(&format!("[{}]", (0..n).map(one).collect::<Vec<_>>().join(",")), &[])
        })
    }),
    // Lists.
    row("tools/list, held: tools", [5, 50, 500], |setup, n| list(setup.clone(), setup.fresh(), tools(n))),
    row("tools/list, held: annotations", KEYS, |setup, n| list(setup.clone(), setup.fresh(), annotated(n))),
    row("tools/list, passed: tools", [5, 50, 500], |setup, n| list(setup, "/new/mcp".to_owned(), tools(n))),
    row("tools/list, passed: annotations", KEYS, |setup, n| list(setup, "/new/mcp".to_owned(), annotated(n))),
    // Answers.
    row("held call: members answered", KEYS, |setup, n| answered(setup, "/up/mcp", escaped_keys(n))),
    row("held call: items answered", KEYS, |setup, n| answered(setup, "/up/mcp", items(n))),
    row("passed call: members answered", KEYS, |setup, n| answered(setup, "/new/mcp", escaped_keys(n))),
    row("held call: events", [5, 50, 500], |setup, n| {
        streamed(&setup, move |seen| progress(seen).repeat(n));
        now(setup.exchange(modern_call("/up/mcp", "{}", &[]), OK))
    }),
    row("held call: data lines", KEYS, |setup, n| {
        streamed(&setup, move |_| format!("data: {{\n{}data: }}\n\n", "data:\n".repeat(n)));
        now(setup.exchange(modern_call("/up/mcp", "{}", &[]), OK))
    }),
    row("held call: comments", KEYS, |setup, n| {
        streamed(&setup, move |_| ": x\n\n".repeat(n));
        now(setup.exchange(modern_call("/up/mcp", "{}", &[]), OK))
    }),
    row("passed call: events", [5, 50, 500], |setup, n| {
        streamed(&setup, move |seen| progress(seen).repeat(n));
        now(setup.exchange(modern_call("/new/mcp", "{}", &[]), OK))
    }),
    row("session call: events", [5, 50, 500], |setup, n| {
        in_session_with(setup, "2025-06-18", move |session, setup| {
            streamed(setup, move |seen| progress(seen).repeat(n));
            session.call("{}", &[])
        })
    }),
    row("session call: events not to be sent", [5, 50, 500], |setup, n| {
        in_session_with(setup, "2025-03-26", move |session, setup| {
            streamed(setup, move |_| "id: 7\ndata:\n\n".repeat(n));
            session.call("{}", &[])
        })
    }),
    // Host and stream.
    alone(row("stdio: lines", SMALL, |_, n| rest::lines(n, 10))),
    alone(row("stdio: bytes of a line", BYTES, |_, n| rest::lines(1, n))),
    // Texts by themselves.
    alone(row("framing: one byte at a time", [300, 3_000, 30_000], |_, n| parts::pieces(n))),
    alone(row("event gate: a lead in pieces", [300, 3_000, 30_000], |_, n| parts::lead(n))),
    alone(row("canonical form: escaped keys", KEYS, |_, n| parts::canonical(escaped_keys(n)))),
    alone(flat("canonical form: depth", [2, 6, 50], |_, n| parts::canonical(nested(n)))),
    alone(row("array of messages", SMALL, |_, n| parts::batch(n))),
    alone(row("input schema: annotations", [60, 600, 6_000], |_, n| parts::schema(&annotated(n)))),
    alone(flat("access decision: rules", KEYS, |_, n| parts::decision(n))),
    // Work beside a request.
    alone(flat("a request beside tasks", [10, 100, 1_000], |_, n| rest::get(n))),
    alone(flat("a page of tasks", [100, 300, 1_000], |_, n| rest::page(n))),
    alone(row("operators' list: tasks", [60, 300, 900], |_, n| rest::operators(n))),
    alone(row("all tasks", [100, 1_000, 6_000], |_, n| rest::survey(n))),
    flat("a call beside sessions", [1, 5, 25], rest::beside_sessions),
    flat("a call beside listeners", [1, 5, 25], rest::beside_listeners),
];

/// An idempotency key that no call had.
fn new_name() -> String {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    format!("name-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

fn now(act: Act) -> BoxFuture<'static, Act> {
    Box::pin(std::future::ready(act))
}

fn held(setup: Setup, arguments: String) -> BoxFuture<'static, Act> {
    setup.answers_shortly();
    now(setup.exchange(modern_call("/up/mcp", &arguments, &[]), HELD))
}

fn in_session(
    setup: Setup,
    version: &'static str,
    request: impl FnOnce(&Session) -> Vec<u8> + Send + 'static,
) -> BoxFuture<'static, Act> {
    in_session_with(setup, version, move |session, setup| {
        setup.answers_shortly();
        request(session)
    })
}

fn in_session_with(
    setup: Setup,
    version: &'static str,
    request: impl FnOnce(&Session, &Setup) -> Vec<u8> + Send + 'static,
) -> BoxFuture<'static, Act> {
    Box::pin(async move {
        let session = Session::open(&setup, version).await;
        let request = request(&session, &setup);
        setup.exchange(request, OK)
    })
}

fn list(setup: Setup, path: String, tools: String) -> BoxFuture<'static, Act> {
    let complete = format!(r#"{{"resultType":"complete","ttlMs":0,"cacheScope":"public","tools":{tools}}}"#);
    setup.answers(move |seen| (seen.rpc() == "tools/list").then(|| result(seen, &complete)));
    now(setup.exchange(modern(&path, "tools/list", None, "", &[]), "inputSchema"))
}

fn tools(count: usize) -> String {
    let one = |n| format!(r#"{{"name":"t{n}","description":"A tool.","inputSchema":{{"type":"object"}}}}"#);
    format!("[{}]", (0..count).map(one).collect::<Vec<_>>().join(","))
}

/// A tool that wants so many arguments in headers.
fn annotated(count: usize) -> String {
    let properties = object((0..count).map(|n| format!(r#""a{n}":{{"type":"string","x-mcp-header":"H{n}"}}"#)));
    format!(r#"[{{"name":"t","inputSchema":{{"type":"object","properties":{properties}}}}}]"#)
}

fn answered(setup: Setup, path: &'static str, members: String) -> BoxFuture<'static, Act> {
    let members = format!(r#"{{"resultType":"complete","content":[],"structuredContent":{members}}}"#);
    setup.answers(move |seen| seen.is_call().then(|| result(seen, &members)));
    now(setup.exchange(modern_call(path, "{}", &[]), OK))
}

/// Calls are answered by an event stream: first so much, then the result.
fn streamed(setup: &Setup, first: impl Fn(&SeenRequest) -> String + Send + Sync + 'static) {
    setup.answers(move |seen| {
        let last = format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{{"resultType":"complete","content":[]}}}}"#,
            seen.body["id"]
        );
        let mut reply: ScriptedReply = whole(format!("{}data: {last}\n\n", first(seen)));
        reply.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
        seen.is_call().then_some(reply)
    });
}

/// An event with a notification that belongs to no call.
fn progress(_: &SeenRequest) -> String {
    "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\n"
        .to_owned()
}
