//! The official MCP conformance suite, through the gateway, against a session server that knows no tasks.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. The results go to `target/reports/conformance.md` and stand in the README.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "conformance/exceptions.rs"]
mod exceptions;
#[allow(dead_code, reason = "metrics are read by the matrix of clients and servers")]
#[path = "peers/support/gateway.rs"]
mod gateway;
#[allow(dead_code, reason = "the versions are shown by the matrix of clients and servers")]
#[path = "peers/support/install.rs"]
mod install;
#[path = "peers/support/process.rs"]
mod process;
#[path = "peers/support/report.rs"]
mod report;
#[path = "conformance/suite.rs"]
mod suite;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use exceptions::{EXCEPTIONS, reason};
use install::Peers;
use suite::{CORE_SCENARIOS, Results, TASKS};
use tokio::runtime::Runtime;

const EXPECTED: &str = "tests/peers/conformance-expected.txt";

/// What the suite left. It is run once, by whichever test comes first.
#[track_caller]
fn results() -> Option<&'static Results> {
    static RESULTS: OnceLock<Option<Result<Results, String>>> = OnceLock::new();
    let run = || {
        let peers = Peers::find("the conformance suite")?;
        Some(Runtime::new().unwrap().block_on(suite::run(&peers)))
    };
    RESULTS.get_or_init(run).as_ref().map(|results| results.as_ref().unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn every_scenario_leaves_checks() {
    let Some(results) = results() else { return };
    assert_eq!(results.scenarios.iter().filter(|name| !name.starts_with("tasks-")).count(), CORE_SCENARIOS);
    let left: BTreeSet<_> = results.checks.iter().map(|check| &check.scenario).collect();
    let started: BTreeSet<_> = results.scenarios.iter().collect();
    assert_eq!(started, left, "a scenario that throws leaves no checks");
}

#[test]
fn tasks_scenarios_without_questions_succeed_in_every_check() {
    let Some(results) = results() else { return };
    for scenario in TASKS {
        let mut checks = results.checks.iter().filter(|check| check.scenario == scenario).peekable();
        assert!(checks.peek().is_some(), "{scenario} left no checks");
        let wrong: Vec<_> = checks.filter(|check| !check.is_fine()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn what_does_not_succeed_has_a_reason() {
    let Some(results) = results() else { return };
    let (unknown, known): (Vec<_>, Vec<_>) = results
        .checks
        .iter()
        .filter(|check| !check.is_fine())
        .partition(|check| reason(&check.scenario, &check.id).is_none());
    assert!(unknown.is_empty(), "{unknown:#?}");
    let known: BTreeSet<_> = known.into_iter().map(|check| (check.scenario.as_str(), check.id.as_str())).collect();
    let listed: BTreeSet<_> = EXCEPTIONS.iter().map(|&(scenario, check, _)| (scenario, check)).collect();
    assert_eq!(known, listed, "an exception that is not needed any more is taken off the list");
}

/// A check that vanishes is as much of a change as one that fails: `UPDATE_GOLDEN=1` accepts both.
#[test]
fn the_checks_are_the_expected_ones() {
    let Some(results) = results() else { return };
    let lines: String = results.checks.iter().map(|check| format!("{check}\n")).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(EXPECTED);
    if report::updates_golden() {
        fs::write(&file, &lines).unwrap();
    }
    let expected = fs::read_to_string(&file).unwrap();
    let (now, then): (Vec<_>, Vec<_>) = (lines.lines().collect(), expected.lines().collect());
    assert_eq!(now, then, "not the checks of {EXPECTED}");
}

#[test]
fn the_results_are_reported_and_the_readme_shows_them() {
    let Some(results) = results() else { return };
    report::publish("conformance", &suite::table(results));
}
