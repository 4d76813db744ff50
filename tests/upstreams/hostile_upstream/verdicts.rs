//! Compares the verdicts of one answer by every path. A list has the differences between the pipes and the gateway's
//! own calls, each with a reason.

pub(super) const SESSION_PIPE: &str = "session pipe";
pub(super) const STATELESS_PIPE: &str = "2026-07-28 pipe";
/// The gateway's own calls to servers of 2026-07-28.
pub(super) const STATELESS_TASK: &str = "2026-07-28 task";
pub(super) const BRIDGE: &str = "bridge to 2026-07-28";

/// A row's verdicts in a session's pipe and in one of 2026-07-28, and the reason why the gateway's own calls have others.
struct Difference {
    row: &'static str,
    session: &'static str,
    stateless: &'static str,
    reason: &'static str,
}

/// A row's verdict at servers of 2026-07-28, piped or not, where sessions have another.
struct EraDifference {
    row: &'static str,
    stateless: &'static str,
    reason: &'static str,
}

const ERA_DIFFERENCES: [EraDifference; 8] = [
    EraDifference { row: "U04", stateless: "upstream_http_status", reason: SESSION },
    EraDifference { row: "U04 nobody's error", stateless: "error", reason: SESSION },
    EraDifference { row: "U22, U23 resumed", stateless: CLOSED, reason: RESUMED },
    EraDifference { row: "U56 task without an id", stateless: NO_MCP, reason: TYPED },
    EraDifference { row: "U56 unknown", stateless: NO_MCP, reason: TYPED },
    EraDifference { row: "U56 number", stateless: NO_MCP, reason: TYPED },
    EraDifference { row: "U56 another case", stateless: NO_MCP, reason: TYPED },
    EraDifference { row: "U56 asks nothing", stateless: NO_MCP, reason: TYPED },
];

const DIFFERENCES: [Difference; 17] = [
    Difference::new("U07 truncated", RAW, RAW, VALUE),
    Difference::new("U07 no JSON", RAW, RAW, VALUE),
    Difference::new("U08 neither", RAW, RAW, VALUE),
    Difference::new("U27", RAW, RAW, VALUE),
    Difference::new("U28 surrogate", RAW, NO_MCP, HIDDEN),
    Difference::new("U08 id twice", ANSWER, ANSWER, VALUE),
    Difference::new("U28 key twice", ANSWER, ANSWER, VALUE),
    Difference::new("U12", ANSWER, ANSWER, VALUE),
    Difference::new("U12 announced", CLOSED, CLOSED, BEGINNING),
    Difference::new("U14 short", CUT, CLOSED, BEGUN),
    Difference::new("U17", "deadline_exceeded", CLOSED, EVENT),
    Difference::new("U19 eleven", ANSWER, ANSWER, EVENTS),
    Difference::new("U20", RAW, ANSWER, EVENTS),
    Difference::new("U22, U23 resumed", RAW, CLOSED, RESUMED),
    Difference::new("U56 twice", ANSWER, NO_MCP, VALUE),
    Difference::new("U04", "upstream_session_lost", "upstream_http_status", SESSION),
    Difference::new("U04 nobody's error", "upstream_session_lost", "error", SESSION),
];

const RAW: &str = "as it came";
const ANSWER: &str = "answer";
const CUT: &str = "cut";
const CLOSED: &str = "upstream_closed";
const NO_MCP: &str = "no MCP";
const TYPED: &str = "results of 2026-07-28 have a type, and in sessions it is one unknown member among others";
const VALUE: &str = "a result goes through piece by piece; to judge its value or its size the pipe would hold it whole";
const HIDDEN: &str = "a member with an escaped name may be a question in 2026-07-28, so the result is read whole there";
const BEGINNING: &str = "an answer without the beginning of a message is not forwarded, with any announced length; its client gets an error";
const BEGUN: &str = "the client has the beginning by then, and can be told of the end by an end alone";
const EVENT: &str = "the pipe of 2026-07-28 holds an event until it knows that it asks nothing, a session's does not";
const EVENTS: &str = "each event goes through as it came: its client reads or drops what the gateway would not count";
const RESUMED: &str = "a session client resumes the stream itself, and 2026-07-28 has no streams to resume";
const SESSION: &str = "2026-07-28 has no session that a 404 could be about: status and error go to the client";

impl Difference {
    const fn new(row: &'static str, session: &'static str, stateless: &'static str, reason: &'static str) -> Self {
        Self { row, session, stateless, reason }
    }
}

/// `answer`, `error`, the gateway's reason, or how a body came that is none of them.
fn verdict(summary: &str) -> &str {
    let words: Vec<_> = summary.split(' ').collect();
    match words[..] {
        ["completed", ..] | [_, "fine", ..] => ANSWER,
        [_, "as", "it", "came"] => RAW,
        [_, _, "upstream_malformed", ..] => NO_MCP,
        [_, _, reason, ..] => reason,
        [_, _] => "error",
        _ => summary,
    }
}

/// The wrong summaries of one row, each behind its path. The first one is a plain call's.
pub(super) fn differences(row: &str, summaries: &[(&'static str, String)]) -> Vec<String> {
    let plain = verdict(&summaries[0].1);
    let of_era = ERA_DIFFERENCES.iter().find(|difference| difference.row == row);
    let at_stateless = of_era.map_or(plain, |difference| difference.stateless);
    let listed = DIFFERENCES.iter().find(|difference| difference.row == row);
    let mut wrong = Vec::new();
    let mut is_alike = true;
    for (way, summary) in summaries {
        let expected = match (listed, *way) {
            (Some(listed), SESSION_PIPE) => listed.session,
            (Some(listed), STATELESS_PIPE) => listed.stateless,
            (_, STATELESS_PIPE | STATELESS_TASK | BRIDGE) => at_stateless,
            (_, _) => plain,
        };
        let found = verdict(summary);
        is_alike &= found == plain;
        if found != expected {
            wrong.push(format!("{row}: the verdict of the {way} is {found}, not {expected}"));
        }
    }
    let reasons = [listed.map(|listed| listed.reason), of_era.map(|listed| listed.reason)];
    for reason in reasons.into_iter().flatten().filter(|_| is_alike) {
        wrong.push(format!("{row} is listed, and does not differ: {reason}"));
    }
    wrong
}
