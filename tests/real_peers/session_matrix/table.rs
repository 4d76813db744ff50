//! The calls of each client at each upstream, and their expected outcomes: `session-cases.json`, read and judged.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

const TEXT: &str = include_str!("../../peers/session-cases.json");

/// The clients, in the order of the report.
pub(crate) const CLIENTS: [&str; 9] =
    ["ts1", "ts2", "py1", "py2", "fastmcp2", "fastmcp3", "fastmcp4", "rmcp", "inspector"];

/// The drivers' report of a case.
pub(crate) type Facts = Map<String, Value>;

/// Facts that are equal or wrong. Of the others texts may say more, and numbers may be larger.
const EXACT: [&str; 5] = ["outcome", "code", "status", "deleted", "ended"];

/// The whole file.
#[derive(Debug, Deserialize)]
pub(crate) struct Table {
    clients: BTreeMap<String, Client>,
    upstreams: BTreeMap<String, Upstream>,
    not_applicable: Vec<Impossible>,
}

/// A client, and the cases that it cannot do or does not show.
#[derive(Debug, Deserialize)]
pub(crate) struct Client {
    /// The program and its script; empty for the one that runs in this process.
    pub(crate) run: Vec<String>,
    /// Its name and version.
    pub(crate) what: String,
    #[serde(default)]
    unseen: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    not_applicable: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Upstream {
    cases: BTreeMap<String, Value>,
    not_applicable: BTreeMap<String, String>,
}

/// A case that only a pair cannot do.
#[derive(Debug, Deserialize)]
struct Impossible {
    client: String,
    upstream: String,
    case: String,
    why: String,
}

/// The table of the real run.
pub(crate) fn table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| serde_json::from_str(TEXT).expect("session-cases.json is read"));
    &TABLE
}

impl Table {
    /// # Panics
    /// If there is no such client.
    pub(crate) fn client(&self, name: &str) -> &Client {
        self.clients.get(name).unwrap_or_else(|| panic!("{name} is no client of the table"))
    }

    /// The case as its driver is given it, or why there is none.
    ///
    /// # Errors
    /// The reason why the client or the upstream cannot do it.
    ///
    /// # Panics
    /// If the table has neither.
    pub(crate) fn case(&self, client: &str, upstream: &str, case: &str) -> Result<&Value, &str> {
        let pair = |known: &&Impossible| {
            [known.client.as_str(), known.upstream.as_str(), known.case.as_str()] == [client, upstream, case]
        };
        let server = &self.upstreams[upstream];
        let why = self.client(client).not_applicable.get(case).or_else(|| server.not_applicable.get(case));
        if let Some(why) = why.or_else(|| Some(&self.not_applicable.iter().find(pair)?.why)) {
            return Err(why);
        }
        Ok(server.cases.get(case).unwrap_or_else(|| panic!("{upstream} has neither {case} nor a reason")))
    }

    /// # Errors
    /// The parts of `facts` that are not as expected.
    pub(crate) fn judge(&self, client: &str, case: &str, given: &Value, facts: &Facts) -> Result<(), String> {
        let entry = self.client(client);
        let version = facts.get("version").and_then(Value::as_str).unwrap_or_default();
        if !entry.what.split([' ', ',']).any(|word| word == version) {
            return Err(format!("{} expected, not version {version}", entry.what));
        }
        let unseen = entry.unseen.get(case);
        let expected = given.get("expect").and_then(Value::as_object).expect("every case expects something");
        let shown = expected.iter().filter(|(name, _)| !unseen.is_some_and(|unseen| unseen.contains(name)));
        let wrong: Vec<_> = shown
            .filter(|(name, expected)| !is_met(name, expected, facts.get(*name)))
            .map(|(name, expected)| format!("{name} {expected}"))
            .collect();
        let all = || Value::Object(facts.clone());
        if wrong.is_empty() { Ok(()) } else { Err(format!("{} expected, not {}", wrong.join(", "), all())) }
    }
}

fn is_met(name: &str, expected: &Value, found: Option<&Value>) -> bool {
    match (expected, found) {
        (Value::String(part), Some(Value::String(text))) if !EXACT.contains(&name) => text.contains(part.as_str()),
        (Value::Number(least), Some(Value::Number(number))) if !EXACT.contains(&name) => {
            number.as_f64() >= least.as_f64()
        }
        (expected, found) => found == Some(expected),
    }
}

#[test]
fn every_client_of_the_table_is_driven() {
    let table = table();
    let mut listed: Vec<_> = table.clients.keys().map(String::as_str).collect();
    let mut driven = CLIENTS.to_vec();
    listed.sort_unstable();
    driven.sort_unstable();
    assert_eq!(listed, driven);
}

#[test]
fn a_fact_is_met_by_more_text_or_a_larger_number_but_only_by_the_same_outcome() {
    #[track_caller]
    fn check(name: &str, expected: Value, found: Value, is_right: bool) {
        assert_eq!(is_met(name, &expected, Some(&found)), is_right, "{name}: {expected} by {found}");
        assert!(!is_met(name, &expected, None), "{name}");
    }
    check("text", "Ada".into(), "Hello, Ada!".into(), true);
    check("text", "Ada".into(), "Hello".into(), false);
    check("notified", 3.into(), 4.into(), true);
    check("last", 3.into(), 3.0.into(), true);
    check("last", 3.into(), 2.5.into(), false);
    check("last", "info".into(), 3.into(), false);
    check("outcome", "ok".into(), "ok then".into(), false);
    check("status", 404.into(), 405.into(), false);
    check("session_kept", true.into(), false.into(), false);
}
