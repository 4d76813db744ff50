//! Checks each response to a client of 2026-07-28 against the rules of that version, from any server and by any path.
//!
//! The clients of the table declare nothing, and ask for neither progress nor log messages.

use serde_json::Value;

use super::gate::Answer;

/// A row that breaks a rule in the pipe, with the reason.
struct Exception {
    row: &'static str,
    rule: &'static str,
    reason: &'static str,
}

const EXCEPTIONS: [Exception; 5] = [
    Exception::new("U08 id twice", TYPE, UNREADABLE),
    Exception::new("U28 key twice", TYPE, UNREADABLE),
    Exception::new("U19 one", MESSAGE, NO_MESSAGE),
    Exception::new("U19 ten", MESSAGE, NO_MESSAGE),
    Exception::new("U19 eleven", MESSAGE, NO_MESSAGE),
];

const TYPE: &str = "MOD-11: a result is complete";
const POSITION: &str = "MOD-21: no event has an id or a retry time";
const NOTIFICATION: &str = "MOD-22, MOD-23, MOD-24: nothing comes that was not asked for";
const REQUEST: &str = "MOD-18: no request is sent to a client";
const MESSAGE: &str = "an event is one message";
const UNREADABLE: &str = "what readers may read in two ways is not written anew";
const NO_MESSAGE: &str = "a text that is no message asks nothing, and is forwarded";

impl Exception {
    const fn new(row: &'static str, rule: &'static str, reason: &'static str) -> Self {
        Self { row, rule, reason }
    }
}

fn rule_broken_by(message: &Value) -> Option<&'static str> {
    let method = message["method"].as_str();
    match (method, message.get("id")) {
        (Some(_), Some(_)) => Some(REQUEST),
        // A method that no version has may belong to an extension.
        (Some("notifications/x"), None) => None,
        (Some(_), None) => Some(NOTIFICATION),
        (None, _) if message["result"].is_object() && message["id"] == 7 => {
            (message["result"]["resultType"] != "complete").then_some(TYPE)
        }
        (None, _) => (!message.is_object()).then_some(MESSAGE),
    }
}

fn rules_broken_in(answer: &Answer) -> Vec<&'static str> {
    let text = String::from_utf8_lossy(&answer.body);
    if !answer.is_stream() {
        let message = serde_json::from_str::<Value>(&text);
        return message.iter().filter_map(rule_broken_by).collect();
    }
    // Clients ignore an event that its server left incomplete.
    let events = text.split("\n\n").filter(|event| !event.contains("event: incomplete\n"));
    let lines = events.flat_map(|event| event.split(['\r', '\n']));
    let broken = lines.filter_map(|line| match line.split_once(':') {
        Some(("id" | "retry", _)) => Some(POSITION),
        Some(("data", data)) => serde_json::from_str(data).map_or(Some(MESSAGE), |message| rule_broken_by(&message)),
        _ => None,
    });
    broken.collect()
}

/// The errors in the responses to one row, each behind its path.
pub(super) fn broken(row: &str, answers: &[(&'static str, &Answer)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut excepted: Vec<_> = EXCEPTIONS.iter().filter(|exception| exception.row == row).collect();
    for (way, answer) in answers {
        for rule in rules_broken_in(answer) {
            match excepted.iter().position(|exception| exception.rule == rule) {
                Some(at) => _ = excepted.remove(at),
                None if EXCEPTIONS.iter().any(|exception| exception.row == row && exception.rule == rule) => (),
                None => wrong.push(format!("{row}, {way}: {rule}")),
            }
        }
    }
    wrong.extend(excepted.iter().map(|exception| format!("{row} is listed, and keeps the rule: {}", exception.reason)));
    wrong
}
