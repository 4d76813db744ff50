//! The official MCP conformance suite, through the gateway, against session servers that know no tasks: for clients of
//! 2026-07-28, and for clients with sessions, which must see the same as without the gateway.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. The results go to `target/reports/conformance.md` and `target/reports/conformance-2025-11-25.md`,
//! and the first stands in `docs/compatibility.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod exceptions;
mod sessions;
mod suite;

use support::peers::gateway;
use support::peers::install;
use support::peers::process;
use support::peers::report;
use support::peers::upstream;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use exceptions::{EXCEPTIONS, reason};
use install::Peers;
use sessions::Comparison;
use suite::{BothPaths, CORE_SCENARIOS, Results, TASKS};
use tokio::runtime::Runtime;

const EXPECTED: &str = "tests/peers/conformance-expected.txt";

/// The suite's results.
struct Left {
    stateless: Arc<Results>,
    sessions: Vec<Comparison>,
    /// At the paths of servers, and at endpoints of each of them and another server.
    at_endpoints: Vec<Comparison>,
}

async fn run(peers: &Peers) -> Result<Left, String> {
    let BothPaths { own, at_endpoint } = suite::run(peers).await?;
    let sessions = sessions::run(peers).await?;
    let title = format!("{}, at an endpoint", suite::REVISION);
    let (direct, through) = (Arc::clone(&own), Arc::new(at_endpoint));
    let mut at_endpoints = vec![Comparison { title, direct, through, excepted: &[] }];
    at_endpoints.extend(sessions.at_endpoints);
    Ok(Left { stateless: own, sessions: sessions.through, at_endpoints })
}

/// The suite is run once, by the first test that asks, and never twice at a time: its scenarios have time limits.
#[track_caller]
fn left() -> Option<&'static Left> {
    static LEFT: OnceLock<Option<Result<Left, String>>> = OnceLock::new();
    let run = || {
        let peers = Peers::find("the conformance suite")?;
        Some(Runtime::new().unwrap().block_on(run(&peers)))
    };
    LEFT.get_or_init(run).as_ref().map(|left| left.as_ref().unwrap_or_else(|error| panic!("{error}")))
}

#[track_caller]
fn results() -> Option<&'static Results> {
    left().map(|left| &*left.stateless)
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
fn tasks_scenarios_succeed_in_every_check() {
    let Some(results) = results() else { return };
    for scenario in TASKS {
        let mut checks = results.checks.iter().filter(|check| check.scenario == scenario).peekable();
        assert!(checks.peek().is_some(), "{scenario} left no checks");
        let wrong: Vec<_> = checks.filter(|check| !check.is_fine()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[test]
fn every_check_that_fails_has_a_known_reason() {
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
fn the_results_are_reported_and_the_page_shows_them() {
    let Some(results) = results() else { return };
    report::publish("conformance", &suite::table(results));
}

#[test]
fn every_session_scenario_leaves_the_same_checks_with_and_without_the_gateway() {
    let Some(left) = left() else { return };
    for comparison in &left.sessions {
        for results in [&comparison.direct, &comparison.through] {
            assert_eq!(results.scenarios.len(), sessions::SCENARIOS, "{}", comparison.title);
        }
    }
    let differences: Vec<_> = left.sessions.iter().flat_map(Comparison::differences).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Names of tools are the servers' own there: none has a prefix.
#[test]
fn every_scenario_leaves_the_same_checks_at_an_endpoint_of_several_servers() {
    let Some(left) = left() else { return };
    for comparison in &left.at_endpoints {
        assert_eq!(comparison.through.scenarios, comparison.direct.scenarios, "{}", comparison.title);
    }
    let differences: Vec<_> = left.at_endpoints.iter().flat_map(Comparison::differences).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn the_session_results_are_reported_and_the_page_shows_them() {
    let Some(left) = left() else { return };
    report::publish(&format!("conformance-{}", sessions::REVISION), &sessions::table(&left.sessions));
}
