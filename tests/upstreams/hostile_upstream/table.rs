//! The table: the upstream's answers to `tools/call`, and the responses to clients by seven paths, three of them to a
//! server of 2026-07-28.

use super::gate::{Answer, Gate, RESULT_BYTES_MAX};
use super::server::Act;
use super::{verdicts, version_rules};

const JSON: &str = "Content-Type: application/json\r\n";

/// An answer under any status line and header fields, with the right length.
fn says(status: &str, fields: &str, body: &str) -> Act {
    Act::SaysOn(format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {{len}}\r\n\r\n{body}").into_bytes())
}

fn json(body: &str) -> Act {
    says("200 OK", JSON, body)
}

/// The head of an event stream that ends with its connection, and its events.
fn events(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{text}").into_bytes()
}

fn result(id: &str, n: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"structuredContent":{{"n":{n}}}}}}}"#)
}

fn error(id: &str, code: i64) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"no"}}}}"#)
}

fn fine() -> String {
    result("{id}", 1)
}

fn event(message: &str) -> String {
    format!("data: {message}\n\n")
}

/// The act, and the verdicts of a plain call, a task and a session client's call. A task of 2025-11-25 and a call of a
/// server without sessions have the verdicts of [`verdicts`].
type Row = (&'static str, Act, [String; 3]);

/// The same error for all three: at HTTP 200, and of the task.
fn alike(name: &'static str, act: Act, error: &str) -> Row {
    let (at_once, task) = (format!("200 {error}"), format!("failed {error}"));
    (name, act, [at_once.clone(), task, at_once])
}

fn row(name: &'static str, act: Act, expected: [&str; 3]) -> Row {
    (name, act, expected.map(str::to_owned))
}

const FINE: [&str; 3] = ["200 fine {\"n\":1}", "completed {\"n\":1}", "200 fine {\"n\":1}"];
const MALFORMED: &str = "-32603 upstream_malformed unknown";
const MALFORMED_RUN: &str = "-32603 upstream_malformed yes";

fn heads() -> Vec<Row> {
    let page = "Content-Type: text/html\r\n";
    let challenge = "WWW-Authenticate: Bearer realm=\"theirs\"\r\n";
    // It was sent twice.
    let lost = "-32603 upstream_session_lost unknown";
    let status = |name, act, rest| alike(name, act, &format!("-32603 upstream_http_status unknown {rest}"));
    let encoded = format!("{JSON}Content-Encoding: gzip\r\n");
    let zipped =
        format!("HTTP/1.1 200 OK\r\n{JSON}Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n").into_bytes();
    let decorated =
        format!("{JSON}Set-Cookie: a=b\r\nServer: x\r\nAlt-Svc: h3=\":1\"\r\nAccess-Control-Allow-Origin: *\r\n");
    vec![
        status("U01 500", says("500 Oops", page, "<p>"), "500"),
        status("U01 502", says("502 Oops", page, "<p>"), "502"),
        status("U01 504", says("504 Oops", JSON, "{}"), "504"),
        status("U02 503", says("503 Busy", "Retry-After: 7\r\n", ""), "503 7000ms"),
        status("U02 429", says("429 Busy", "Retry-After: 3\r\n", ""), "429 3000ms"),
        alike("U03 401", says("401 Who", challenge, ""), "-32603 upstream_auth unknown 401"),
        alike("U03 403", says("403 No", challenge, ""), "-32603 upstream_auth unknown 403"),
        alike("U04", says("404 Gone", "", ""), lost),
        row("U04 a result", says("404 Gone", JSON, &fine()), FINE),
        alike("U04 an error", says("404 Gone", JSON, &error("{id}", -32004)), "-32004"),
        alike("U04 nobody's error", says("404 Gone", JSON, &error("null", -32004)), lost),
        row("U01 a result", says("500 Oops", JSON, &fine()), FINE),
        alike("U01 an error", says("500 Oops", JSON, &error("{id}", -32050)), "-32050"),
        alike(
            "U05",
            says("307 There", "Location: http://127.0.0.1:9/\r\n", ""),
            "-32603 upstream_redirect unknown 307",
        ),
        alike("U06 html", says("200 OK", page, "<p>"), MALFORMED),
        alike("U06 no type", says("200 OK", "", "{}"), MALFORMED),
        alike("U16", says("200 OK", &encoded, &fine()), MALFORMED),
        alike("U16 transfer coding", Act::Says(zipped), MALFORMED),
        row("U40", says("200 OK", &decorated, &fine()), FINE),
    ]
}

fn bodies() -> Vec<Row> {
    let (plain, task) = ("200 -32603 upstream_malformed yes", "failed -32603 upstream_malformed yes");
    let deep =
        format!(r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"a":{}{}}}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let big = format!(
        r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"content":[],"a":"{}"}}}}"#,
        "x".repeat(2 * RESULT_BYTES_MAX)
    );
    let (large, large_task) = ("200 -32603 result_too_large yes", "failed -32603 result_too_large yes");
    let announced = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: 1073741824\r\n\r\n").into_bytes();
    let short = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: 1000\r\n\r\n{}", fine()).into_bytes();
    let piped = |name, body: &str| row(name, json(body), [plain, task, "200 as it came"]);
    vec![
        piped("U07 truncated", r#"{"jsonrpc":"2.0","id":"#),
        row("U07 none", json(""), [plain, task, plain]),
        piped("U07 no JSON", "<html>"),
        row(
            "U08 id twice",
            json(r#"{"jsonrpc":"2.0","id":{id},"id":{id},"result":{"structuredContent":{"n":1}}}"#),
            [plain, task, "200 fine {\"n\":1}"],
        ),
        // It may be an error with a question in it, so it is read before it goes on.
        alike(
            "U08 both",
            json(r#"{"jsonrpc":"2.0","id":{id},"result":{},"error":{"code":1,"message":"m"}}"#),
            MALFORMED_RUN,
        ),
        piped("U08 neither", r#"{"jsonrpc":"2.0","id":{id}}"#),
        row(
            "U08 array",
            json(r#"[{"jsonrpc":"2.0","id":{id},"result":{"structuredContent":{"n":1}}}]"#),
            [FINE[0], FINE[1], "200 fine {\"n\":1}"],
        ),
        row(
            "U08 an error that is null",
            json(r#"{"jsonrpc":"2.0","id":{id},"result":{"structuredContent":{"n":1}},"error":null}"#),
            FINE,
        ),
        row("U12", json(&big), [large, large_task, "200 fine null"]),
        // An answer that never shows its kind is not forwarded, and its client gets an error.
        row("U12 announced", Act::Says(announced), [large, large_task, "200 -32603 upstream_closed unknown"]),
        row(
            "U14 short",
            Act::Says(short),
            ["200 -32603 upstream_closed unknown", "failed -32603 upstream_closed unknown", "cut"],
        ),
        piped("U27", &deep),
        row(
            "U28 surrogate",
            json(r#"{"jsonrpc":"2.0","id":{id},"result":{"content":[],"\ud800":1}}"#),
            [plain, task, "200 as it came"],
        ),
        row(
            "U28 key twice",
            json(r#"{"jsonrpc":"2.0","id":{id},"result":{"a":1,"a":2,"structuredContent":{"n":1}}}"#),
            [plain, task, "200 fine {\"n\":1}"],
        ),
    ]
}

fn framing() -> Vec<Row> {
    let garbled = |name, bytes: Vec<u8>| alike(name, Act::Says(bytes), MALFORMED);
    let field = |n: usize| format!("x-{n}: {}\r\n", "y".repeat(700));
    let fields: String = (0..99).map(field).collect();
    let many: String = (0..101).map(|n| format!("x-{n}: y\r\n")).collect();
    let continues = "HTTP/1.1 100 Continue\r\n\r\n".repeat(17);
    let with = |lines: &str| format!("HTTP/1.1 200 OK\r\n{JSON}{lines}\r\n{}", fine()).into_bytes();
    vec![
        garbled("U13 64 KiB", with(&fields)),
        garbled("U13 101 fields", with(&many)),
        garbled("U13 1xx", [continues.into_bytes(), with("Connection: close\r\n")].concat()),
        garbled("U14 NUL", with("a: b\0c\r\n")),
        garbled("U14 bare CR", with("a: b\rc\r\n")),
        row(
            "U14 CL and TE",
            Act::Says(with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")),
            [
                "200 -32603 upstream_closed unknown",
                "failed -32603 upstream_closed unknown",
                "200 -32603 upstream_closed unknown",
            ],
        ),
        garbled("U14 two lengths", with("Content-Length: 5\r\nContent-Length: 6\r\n")),
        garbled("no HTTP", b"\x16\x03\x01\0\0".to_vec()),
    ]
}

fn wrong_ids() -> String {
    [result("99", 2), result("\"{id}\"", 3), result("null", 4)].map(|text| event(&text)).concat()
}

fn endless_streams() -> Vec<Row> {
    let late = "-32603 deadline_exceeded unknown";
    vec![
        alike("U09 wrong ids alone", Act::Stays(events(&wrong_ids())), late),
        alike("U18", Act::Drips(events(""), b": still here\n\n".to_vec()), late),
    ]
}

/// An event without end: the pipe forwards it in pieces until the deadline.
fn endless_event() -> Vec<Row> {
    let (large, large_task) = ("200 -32603 result_too_large yes", "failed -32603 result_too_large yes");
    let late = "200 -32603 deadline_exceeded unknown";
    vec![row("U17", Act::Drips(events("data: "), vec![b'x'; 16 << 10]), [large, large_task, late])]
}

fn streams() -> Vec<Row> {
    let fine = event(&fine());
    let odd = event("{nonsense");
    let wrong_ids = wrong_ids();
    let closed = ["200 -32603 upstream_closed unknown", "failed -32603 upstream_closed unknown"];
    let malformed = ["200 -32603 upstream_malformed unknown", "failed -32603 upstream_malformed unknown"];
    let mixed = "\u{feff}: hello\r\nid: 1\r\rdata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":{id},\r\ndata: \"result\":{\"content\":[],\"structuredContent\":{\"n\":1}}}\r\n\r\n";
    let with = |[plain, task]: [&'static str; 2], piped| [plain, task, piped];
    vec![
        row("U09 wrong ids first", Act::Says(events(&(wrong_ids.clone() + &fine))), FINE),
        row(
            "U10",
            Act::Says(events(&(fine.clone() + &event(&result("{id}", 2))))),
            ["200 fine {\"n\":1}", "completed {\"n\":1}", "200 fine {\"n\":2}"],
        ),
        row("U19 one", Act::Says(events(&(odd.clone() + &fine))), FINE),
        row("U19 ten", Act::Says(events(&(odd.repeat(10) + &fine))), FINE),
        row("U19 eleven", Act::Says(events(&(odd.repeat(11) + &fine))), with(malformed, "200 fine {\"n\":1}")),
        row("U20", Act::Says(events(mixed)), ["200 fine {\"n\":1}", "completed {\"n\":1}", "200 as it came"]),
        row("U21", Act::Says(events("id: a\0b\nretry: 0\n: x\n\n")), with(closed, closed[0])),
        row("U22", Act::Says(events("")), with(closed, closed[0])),
        row("U22 cut", Act::Says(events("data: {\"jsonrpc\"")), with(closed, closed[0])),
        row(
            "U22, U23 resumed",
            Act::Resumed(events("id: e-1\nretry: 100\ndata:\n\n"), events(&(wrong_ids + &fine))),
            ["200 fine {\"n\":1}", "completed {\"n\":1}", "200 as it came"],
        ),
        row("U30", Act::Says(events(&(event(r#"{"jsonrpc":"2.0","id":1,"method":"tools/dance"}"#) + &fine))), FINE),
    ]
}

/// Results that 2026-07-28 lacks, or has only for a client that asked: sessions forward them.
fn other_versions() -> Vec<Row> {
    let result_of = |kind: &str, more: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{{id}},"result":{{"resultType":{kind}{more},"content":[],"structuredContent":{{"n":1}}}}}}"#
        )
    };
    let typed = |name, kind, more| row(name, json(&result_of(kind, more)), FINE);
    let told = |name, method: &str, params: &str| {
        let note = event(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{{{params}}}}}"#));
        row(name, Act::Says(events(&(note + &event(&fine())))), FINE)
    };
    let position = "retry: 1\nid: 1\n\n: c\nid: 2\n";
    // The pipe test of U56 has a whole handle: bridged clients get the task's outcome.
    vec![
        typed("U56 task without an id", r#""task""#, ""),
        typed("U56 unknown", r#""later""#, ""),
        typed("U56 number", "7", ""),
        row(
            "U56 twice",
            json(&result_of(r#""complete","resultType":"task""#, r#","taskId":"theirs""#)),
            ["200 -32603 upstream_malformed yes", "failed -32603 upstream_malformed yes", FINE[2]],
        ),
        typed("U56 another case", r#""complete","ResultType":"task""#, r#","taskId":"theirs""#),
        typed("U56 asks nothing", r#""input_required""#, ""),
        typed("U56 complete", r#""complete""#, ""),
        row("U57 position", Act::Says(events(&(position.to_owned() + &event(&fine())))), FINE),
        told("U58 log", "message", r#""level":"emergency","data":"x""#),
        told("U58 progress", "progress", r#""progressToken":"theirs","progress":1"#),
        told("U58 list", "tools/list_changed", ""),
        told("U58 resource", "resources/updated", r#""uri":"a:b""#),
        told("U58 acknowledged", "subscriptions/acknowledged", r#""notifications":{}"#),
        told("U58 cancelled", "cancelled", r#""requestId":7"#),
        told("U58 task", "tasks/status", r#""taskId":"theirs","status":"working""#),
        told("U58 unknown", "x", ""),
    ]
}

fn floods() -> Vec<Row> {
    let progress: String = (0..10_000)
        .map(|n| event(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{{id}},"progress":{n}}}}}"#)))
        .collect();
    let fine = event(&fine());
    vec![row("U25", Act::Says(events(&(progress + &fine))), FINE)]
}

fn handshakes() -> Vec<Row> {
    let initialized = r#"{"jsonrpc":"2.0","id":{id},"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"h","version":"1"}}}"#;
    let named = |id: &str| {
        let fields = format!("{JSON}Mcp-Session-Id: {id}\r\n");
        Act::AtHandshake(format!("HTTP/1.1 200 OK\r\n{fields}Connection: close\r\n\r\n{initialized}").into_bytes())
    };
    let malformed =
        ["503 -32603 upstream_malformed no", "503 -32603 upstream_malformed no", "200 -32603 upstream_malformed no"];
    vec![
        row("U39 blank inside", named("a b"), malformed),
        row("U39 no ASCII", named("caf\u{e9}"), malformed),
        row("U39 too long", named(&"x".repeat(1025)), malformed),
    ]
}

/// The responses of a row.
struct Seen {
    plain: Answer,
    task: String,
    piped: Answer,
    core_task: Answer,
    /// `None` where the act is one of a handshake, which 2026-07-28 has not.
    stateless: Option<SeenStateless>,
}

/// The same of a server of 2026-07-28.
struct SeenStateless {
    pipe: Answer,
    task: String,
    bridged: Answer,
}

impl SeenStateless {
    async fn of(gate: &Gate, row: usize, act: &Act) -> Option<Self> {
        if matches!(act, Act::AtHandshake(_)) {
            return None;
        }
        let (pipe, task, bridged) = tokio::join!(gate.stateless_pipe(row), gate.stateless_task(row), gate.bridged(row));
        Some(Self { pipe, task, bridged })
    }
}

impl Seen {
    async fn of(gate: &Gate, row: usize, act: &Act) -> Self {
        // One after the other where the upstream cannot tell which stream is resumed.
        if matches!(act, Act::Resumed(..)) {
            return Self {
                plain: gate.plain(row).await,
                task: gate.task(row).await,
                piped: gate.piped(row).await,
                core_task: gate.core_task(row).await,
                stateless: SeenStateless::of(gate, row, act).await,
            };
        }
        let (plain, task, piped, core_task, stateless) = tokio::join!(
            gate.plain(row),
            gate.task(row),
            gate.piped(row),
            gate.core_task(row),
            SeenStateless::of(gate, row, act)
        );
        Self { plain, task, piped, core_task, stateless }
    }

    fn summaries(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("plain", self.plain.summary()),
            ("task", self.task.clone()),
            (verdicts::SESSION_PIPE, self.piped.summary()),
            ("core task", self.core_task.summary()),
        ];
        all.extend(self.stateless.iter().flat_map(|seen| {
            [
                (verdicts::STATELESS_PIPE, seen.pipe.summary()),
                (verdicts::STATELESS_TASK, seen.task.clone()),
                (verdicts::BRIDGE, seen.bridged.summary()),
            ]
        }));
        all
    }

    /// The responses to clients of 2026-07-28, at any server.
    fn to_stateless_clients(&self) -> Vec<(&'static str, &Answer)> {
        let pipe = self.stateless.iter().map(|seen| (verdicts::STATELESS_PIPE, &seen.pipe));
        [("plain", &self.plain)].into_iter().chain(pipe).collect()
    }

    /// A call that reached the server may have run: it is sent again only if the server does not know the session, and
    /// no error says that it did not run.
    fn check_sent(&self, name: &str, made: usize) {
        let summaries = self.summaries();
        let of_lost_session = summaries.iter().filter(|(_, seen)| seen.contains("upstream_session_lost")).count();
        assert!(made <= summaries.len() + of_lost_session, "{name}: {made} calls reached the server");
        for (client, seen) in summaries {
            let is_denied = made > 0 && seen.split(' ').any(|word| word == "no");
            assert!(!is_denied, "{name}, {client}: {made} calls arrived, and {seen}");
        }
    }

    fn check_headers(&self, name: &str) {
        let stateless = self.stateless.iter().flat_map(|seen| [&seen.pipe, &seen.bridged]);
        for answer in [&self.plain, &self.piped, &self.core_task].into_iter().chain(stateless) {
            for field in
                ["www-authenticate", "set-cookie", "server", "alt-svc", "access-control-allow-origin", "location"]
            {
                assert_eq!(answer.header(field), None, "{name}: {field} is theirs");
            }
        }
    }
}

async fn check(rows: Vec<Row>, deadline: &str) {
    let acts = rows.iter().map(|(_, act, _)| act.clone()).collect();
    let gate = Gate::of_both_eras(acts, deadline).await;
    let mut wrong = Vec::new();
    for (row, (name, act, expected)) in rows.iter().enumerate() {
        let seen = Seen::of(&gate, row, act).await;
        seen.check_sent(name, gate.server.calls(row).len());
        seen.check_headers(name);
        let summaries = seen.summaries();
        for ((client, found), expected) in summaries.iter().zip(expected) {
            if found != expected {
                wrong.push(format!("{name}, {client}: {found}, not {expected}"));
            }
        }
        wrong.extend(verdicts::differences(name, &summaries));
        wrong.extend(version_rules::broken(name, &seen.to_stateless_clients()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// U01 to U06, U16, U40.
#[tokio::test]
async fn heads_that_refuse_or_cannot_be_read() {
    check(heads(), "1m").await;
}

/// U07, U08, U12, U14, U27, U28: answers in JSON. The pipe judges only answers that it keeps.
#[tokio::test]
async fn bodies_that_are_no_answer() {
    check(bodies(), "1m").await;
}

/// U13, U14: HTTP that is none.
#[tokio::test]
async fn http_that_is_none() {
    check(framing(), "1m").await;
}

/// U09, U10, U17 to U25, U30: event streams.
#[tokio::test]
async fn event_streams_that_go_wrong() {
    check(streams(), "1m").await;
}

/// U09, U18: the deadline ends the event streams; the calls begin long before it.
#[tokio::test]
async fn event_streams_without_end() {
    check(endless_streams(), "4s").await;
}

/// U17.
#[tokio::test]
async fn an_event_without_end() {
    check(endless_event(), "4s").await;
}

/// U56, U57, U58: answers of a server of another version, and of one that breaks its own version's rules.
#[tokio::test]
async fn results_and_messages_of_other_versions() {
    check(other_versions(), "1m").await;
}

/// U25: a flood of progress.
#[tokio::test]
async fn floods_that_are_survived() {
    check(floods(), "1m").await;
}

/// U39, and the answers to the handshake that are none.
#[tokio::test]
async fn handshakes_that_fail() {
    check(handshakes(), "1m").await;
}
