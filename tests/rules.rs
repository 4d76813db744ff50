//! Which test proves which rule of the protocol's flavours: every ID of `rules/ids.txt` is named by a test that ran,
//! or `rules/untested.txt` says why none does.
//!
//! A test names a rule in its own name (`l25_37_…`), in its comment or in its body. `TASKGATE_TEST_LOG` is what the
//! run of all tests printed; without it only the sources are looked at, and the output says so. The table goes to
//! `target/reports/rules.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "rules/sources.rs"]
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use sources::Named;

const IDS: &str = include_str!("rules/ids.txt");
const UNTESTED: &str = include_str!("rules/untested.txt");

fn ids() -> BTreeSet<&'static str> {
    IDS.lines().collect()
}

/// Rules that no test can or does prove, each with the reason.
fn untested() -> BTreeMap<&'static str, &'static str> {
    let lines = UNTESTED.lines().filter(|line| !line.is_empty());
    lines.map(|line| line.split_once(' ').expect("an ID and a reason")).collect()
}

/// The names of all tests that passed, without their modules.
fn passed(log: &str) -> BTreeSet<&str> {
    let names = log.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... ok"));
    names.map(|name| name.rsplit("::").next().unwrap_or(name)).collect()
}

/// What is wrong with the coverage, one line each.
fn mistakes(named: &Named, untested: &BTreeMap<&str, &str>, ran: Option<&BTreeSet<&str>>) -> Vec<String> {
    let ids = ids();
    let mut mistakes = Vec::new();
    for id in &ids {
        let tests = named.get(*id);
        match (tests, untested.get(id)) {
            (None, None) => mistakes.push(format!("{id} is named by no test, and nothing says why")),
            (Some(tests), Some(_)) => {
                mistakes.push(format!("{id} is said to be untested, but {} names it", tests.iter().next().unwrap()));
            }
            (Some(tests), None) => {
                let has_run = |ran: &BTreeSet<&str>| tests.iter().any(|test| ran.contains(test.as_str()));
                if ran.is_some_and(|ran| !has_run(ran)) {
                    mistakes.push(format!("{id} is named by {tests:?}, none of which ran"));
                }
            }
            (None, Some(_)) => {}
        }
    }
    let unknown = named.keys().map(String::as_str).chain(untested.keys().copied()).filter(|id| !ids.contains(id));
    mistakes.extend(unknown.map(|id| format!("there is no rule {id}")));
    mistakes
}

fn table(named: &Named, untested: &BTreeMap<&str, &str>) -> String {
    let mut table = String::from("| rule | tests |\n|---|---|\n");
    for id in ids() {
        let tests = named.get(id).map(|tests| tests.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>());
        let cell = match (tests, untested.get(id)) {
            (Some(tests), _) => tests.join(", "),
            (None, Some(why)) => format!("none: {why}"),
            (None, None) => "none".to_owned(),
        };
        let _ = writeln!(table, "| {id} | {cell} |");
    }
    table
}

#[test]
fn every_rule_is_named_by_a_test_that_ran_or_by_the_reason_why_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = sources::named(root);
    let untested = untested();
    let reports = root.join("target/reports");
    std::fs::create_dir_all(&reports).unwrap();
    std::fs::write(reports.join("rules.md"), table(&named, &untested)).unwrap();
    let log = std::env::var_os("TASKGATE_TEST_LOG").map(|path| std::fs::read_to_string(path).unwrap());
    if log.is_none() {
        println!("left out: whether the tests that name rules ran (TASKGATE_TEST_LOG is not set)");
    }
    let ran = log.as_deref().map(passed);
    assert!(ran.as_ref().is_none_or(|ran| ran.len() > 100), "the log is not one of all tests");
    let mistakes = mistakes(&named, &untested, ran.as_ref());
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn a_rule_without_a_test_or_whose_test_did_not_run_or_that_is_no_rule_is_a_mistake() {
    let all_but = |left_out: &str| {
        let rest = ids().into_iter().filter(|id| *id != left_out);
        rest.map(|id| (id.to_owned(), BTreeSet::from(["proves".to_owned()]))).collect::<Named>()
    };
    let none = BTreeMap::new();
    let ran = BTreeSet::from(["proves"]);
    assert!(mistakes(&all_but(""), &none, Some(&ran)).is_empty());
    assert_eq!(mistakes(&all_but("EXT-07"), &none, Some(&ran)).len(), 1);
    assert!(mistakes(&all_but("EXT-07"), &BTreeMap::from([("EXT-07", "why")]), Some(&ran)).is_empty());
    assert_eq!(mistakes(&all_but(""), &BTreeMap::from([("EXT-07", "why")]), Some(&ran)).len(), 1);
    assert_eq!(mistakes(&all_but(""), &none, Some(&BTreeSet::from(["other"]))).len(), ids().len());
    let mut named = all_but("");
    named.insert("EXT-99".to_owned(), BTreeSet::from(["proves".to_owned()]));
    assert_eq!(mistakes(&named, &none, Some(&ran)).len(), 1);
}

#[test]
fn only_tests_that_passed_have_run() {
    let log = "test a::b::first ... ok\ntest second ... FAILED\ntest third ... ignored\ntest result: ok. 3 passed\n";
    assert_eq!(passed(log), BTreeSet::from(["first"]));
}
