//! Runs the scenarios of sessions twice, at a server itself and through the gateway, and compares the results: session
//! clients must not notice the gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use super::exceptions::{AT_ENDPOINTS, AT_ENDPOINTS_OF_EVERYTHING, EndpointException};
use super::gateway::Gateway;
use super::install::Peers;
use super::suite::{Results, SERVED, Status, Suite, endpoint_with};
use super::upstream::{PeerServer, Program};

/// The last revision that has sessions.
pub(crate) const REVISION: &str = "2025-11-25";
/// How many scenarios the suite has for it.
pub(crate) const SCENARIOS: usize = 33;

/// Checks that may succeed through the gateway where they do not directly. Scenario, check; all of them if empty.
const MAY_BE_BETTER: [(&str, &str); 2] = [
    // The gateway knows which hosts and origins it is called by.
    ("dns-rebinding-protection", ""),
    // Session ids are the gateway's own, and 404 says that one has ended; server-everything says 400.
    ("server-session-lifecycle", "server-session-terminated-returns-404"),
];

const UPSTREAMS: [Program; 2] = [Program::Fixture, Program::Everything];

/// How often each status of a check came.
type Counts = BTreeMap<Status, usize>;

/// The suite's results of a pair: without the gateway and through it, or at a server's own path and at an endpoint.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) title: String,
    pub(crate) direct: Arc<Results>,
    pub(crate) through: Arc<Results>,
    /// Scenarios that do not apply with it.
    pub(crate) excepted: &'static [EndpointException],
}

/// The suite's results with each upstream: without the gateway and through it, and there at an endpoint.
#[derive(Debug, Default)]
pub(crate) struct SessionRuns {
    pub(crate) through: Vec<Comparison>,
    pub(crate) at_endpoints: Vec<Comparison>,
}

/// Runs the scenarios with each upstream.
///
/// # Errors
/// If a program cannot be started, or the suite's output cannot be read.
pub(crate) async fn run(peers: &Peers) -> Result<SessionRuns, String> {
    let mut runs = SessionRuns::default();
    // In turn: scenarios have time limits, and some change all sessions of a server.
    for upstream in UPSTREAMS {
        let server = PeerServer::start(upstream, peers, "conformance-sessions").await?;
        let name = upstream.name();
        let direct = left(peers, &format!("{name}-direct"), &server.url()).await?;
        let config = format!("[upstreams.{name}]\nurl = \"{}\"\n{}", server.url(), endpoint_with(name, peers));
        let gateway = Gateway::start(&format!("conformance-gateway-{name}"), &config, SERVED).await?;
        let through = left(peers, &format!("{name}-through"), gateway.url(name)).await?;
        let at_endpoint = left(peers, &format!("{name}-endpoint"), gateway.url("all")).await?;
        let title = upstream.title().to_owned();
        let own = Arc::clone(&through);
        let endpoint = format!("{title}, at an endpoint");
        let excepted = if upstream == Program::Everything { AT_ENDPOINTS_OF_EVERYTHING } else { AT_ENDPOINTS };
        runs.at_endpoints.push(Comparison { title: endpoint, direct: own, through: at_endpoint, excepted });
        runs.through.push(Comparison { title, direct, through, excepted: &[] });
    }
    Ok(runs)
}

async fn left(peers: &Peers, name: &str, url: &str) -> Result<Arc<Results>, String> {
    let suite = Suite::new(peers, name, url)?;
    let scenarios = suite.run_all(REVISION).await?;
    suite.results(scenarios).map(Arc::new)
}

impl Comparison {
    /// The changes for the worse, one line each; an unneeded exception is one, too.
    pub(crate) fn differences(&self) -> Vec<String> {
        let (direct, through) = (by_check(&self.direct), by_check(&self.through));
        let checks: BTreeSet<_> = direct.keys().chain(through.keys()).copied().collect();
        let none = Counts::new();
        let line = |(scenario, id)| {
            let direct = direct.get(&(scenario, id)).unwrap_or(&none);
            let through = through.get(&(scenario, id)).unwrap_or(&none);
            let may_be_better = MAY_BE_BETTER.iter().any(|known| known.0 == scenario && [id, ""].contains(&known.1));
            let is_same = direct == through || may_be_better && is_better(through, direct);
            let place = format!("{} × {scenario} × {id}", self.title);
            (!is_same).then(|| format!("{place}: {} directly, {} through", words(direct), words(through)))
        };
        let (known, mut wrong): (Vec<_>, Vec<_>) = checks
            .into_iter()
            .filter_map(|(scenario, id)| Some((scenario, line((scenario, id))?)))
            .partition(|(scenario, _)| self.excepted.iter().any(|(excepted, _)| excepted == scenario));
        let is_needed = |scenario: &str| known.iter().any(|(differs, _)| *differs == scenario);
        let unneeded = self.excepted.iter().filter(|(scenario, _)| !is_needed(scenario));
        wrong.extend(unneeded.map(|(scenario, _)| (*scenario, format!("{} × {scenario} is no exception", self.title))));
        wrong.into_iter().map(|(_, line)| line).collect()
    }
}

/// Whether a check that did not always succeed now does, as often as it is made.
fn is_better(now: &Counts, then: &Counts) -> bool {
    let all: usize = then.values().sum();
    now.get(&Status::Success) == Some(&all)
}

fn by_check(results: &Results) -> BTreeMap<(&str, &str), Counts> {
    let mut checks: BTreeMap<_, Counts> = BTreeMap::new();
    for check in &results.checks {
        let counts = checks.entry((check.scenario.as_str(), check.id.as_str())).or_default();
        *counts.entry(check.status).or_default() += 1;
    }
    checks
}

/// `3 passed, 1 failed`.
fn words(counts: &Counts) -> String {
    let word = |status| match status {
        Status::Success => "passed",
        Status::Failure => "failed",
        Status::Warning => "warnings",
        Status::Skipped => "skipped",
        Status::Info => "told",
    };
    let words: Vec<_> = counts.iter().map(|(status, count)| format!("{count} {}", word(*status))).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

/// The report: a row for each scenario.
pub(crate) fn table(comparisons: &[Comparison]) -> String {
    let columns = comparisons.iter().map(|comparison| {
        let title = &comparison.title;
        format!(" {title}, directly | {title}, through |")
    });
    let lines = "---|---|".repeat(comparisons.len());
    let mut table = format!("| scenario |{}\n|---|{lines}\n", columns.collect::<String>());
    let scenarios: BTreeSet<_> = comparisons.iter().flat_map(|comparison| &comparison.direct.scenarios).collect();
    for scenario in scenarios {
        let _ = write!(table, "| {scenario} |");
        for results in comparisons.iter().flat_map(|comparison| [&*comparison.direct, &*comparison.through]) {
            let mut counts = Counts::new();
            for check in results.checks.iter().filter(|check| check.scenario == *scenario) {
                *counts.entry(check.status).or_default() += 1;
            }
            let _ = write!(table, " {} |", words(&counts));
        }
        table.push('\n');
    }
    table
}

#[test]
fn a_check_that_always_succeeds_is_better() {
    #[track_caller]
    fn check(now: &[(Status, usize)], then: &[(Status, usize)], better: bool) {
        let counts = |of: &[(Status, usize)]| of.iter().copied().collect();
        assert_eq!(is_better(&counts(now), &counts(then)), better, "{now:?} {then:?}");
    }
    check(&[(Status::Success, 2)], &[(Status::Success, 1), (Status::Failure, 1)], true);
    check(&[(Status::Success, 1)], &[(Status::Success, 1), (Status::Failure, 1)], false);
    check(&[(Status::Failure, 1)], &[(Status::Success, 1)], false);
    check(&[], &[(Status::Failure, 1)], false);
}
