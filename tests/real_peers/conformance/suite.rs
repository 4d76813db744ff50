//! Runs the official conformance suite against a gateway in front of a fixture, and reads its results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tempfile::TempDir;
use tokio::time::timeout;

use super::exceptions::reason;
use super::gateway::Gateway;
use super::install::Peers;
use super::process::log_file;
use super::upstream::{PeerServer, Program};

/// The revision that the core scenarios are run for.
pub(crate) const REVISION: &str = "2026-07-28";
/// How many core scenarios the suite has for it: a scenario that is not run is not counted by the suite.
pub(crate) const CORE_SCENARIOS: usize = 40;

/// The tasks scenarios of which all checks succeed.
pub(crate) const TASKS: [&str; 9] = [
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-dispatch-and-envelope",
    "tasks-request-headers",
    "tasks-required-task-error",
    "tasks-mrtr-input",
    "tasks-mrtr-composition",
];
/// The others.
const MORE_TASKS: [&str; 1] = ["tasks-status-notifications"];

/// One run of the suite; each scenario has a limit of its own, which is far below this.
const RUN_MAX: Duration = Duration::from_secs(300);

const RETRIES_MAX: usize = 3;

/// How the fixture's tools are treated: all that the gateway knows of them.
const POLICIES: &str = r#"
[upstreams.fixture.tasks]
mode = "never"
poll_interval = "200ms"

[[upstreams.fixture.tools]]
match = "failing_job"
mode = "required"

[[upstreams.fixture.tools]]
match = "slow_compute"
mode = "always"

[[upstreams.fixture.tools]]
match = "protocol_error_job"
mode = "always"

[[upstreams.fixture.tools]]
match = "confirm_delete"
mode = "always"

[[upstreams.fixture.tools]]
match = "multi_input"
mode = "always"

[[upstreams.fixture.tools]]
match = "test_tool_with_task"
mode = "always"
early_input = "ask-first"
"#;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Status {
    Success,
    Failure,
    Warning,
    Skipped,
    Info,
}

/// One check; ordered, so that a run is the same list in any order of the suite.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Check {
    pub(crate) scenario: String,
    pub(crate) id: String,
    pub(crate) status: Status,
    pub(crate) error: Option<String>,
}

impl Check {
    /// Whether it is as the suite wants it, or only tells something.
    pub(crate) const fn is_fine(&self) -> bool {
        matches!(self.status, Status::Success | Status::Info)
    }
}

/// A line of the expected checks: a check without the text of its error.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.scenario, self.id, self.status)
    }
}

/// The suite's results.
#[derive(Debug)]
pub(crate) struct Results {
    /// Sorted.
    pub(crate) checks: Vec<Check>,
    /// Every scenario that was started, in order.
    pub(crate) scenarios: Vec<String>,
}

/// The suite's results at the path of a server, and at an endpoint of that and another server.
pub(crate) struct BothPaths {
    pub(crate) own: Arc<Results>,
    pub(crate) at_endpoint: Results,
}

/// Runs the core scenarios, then each tasks scenario; at the fixture's own path, and then at the endpoint's.
///
/// # Errors
/// If a program cannot be started, or the suite's output cannot be read.
pub(crate) async fn run(peers: &Peers) -> Result<BothPaths, String> {
    let fixture = PeerServer::start(Program::Fixture, peers, "conformance").await?;
    let endpoint = endpoint_with("fixture", peers);
    let config = format!("[upstreams.fixture]\nurl = \"{}\"\n{POLICIES}{endpoint}", fixture.url());
    let gateway = Gateway::start("conformance-gateway", &config, SERVED).await?;
    let own = Arc::new(run_at(peers, "core", gateway.url("fixture")).await?);
    let at_endpoint = run_at(peers, "core-endpoint", gateway.url("all")).await?;
    Ok(BothPaths { own, at_endpoint })
}

/// The number of paths of a gateway with a server, the section of [`endpoint_with`], and the endpoint.
pub(crate) const SERVED: usize = 3;

/// An endpoint at `/all/mcp` of the upstream `name` and of another server that has nothing of the same name: the suite
/// knows the names of tools, so none has a prefix.
pub(crate) fn endpoint_with(name: &str, peers: &Peers) -> String {
    let words = ["node", "node_modules/@modelcontextprotocol/server-memory/dist/index.js"];
    let command = words.map(|word| peers.join(word).display().to_string());
    format!(
        "[upstreams.memory]\ncommand = {command:?}\n\
         [[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"{name}\", \"memory\"]\nprefix = \"auto\"\n"
    )
}

async fn run_at(peers: &Peers, name: &str, url: &str) -> Result<Results, String> {
    let suite = Suite::new(peers, name, url)?;
    let mut scenarios = suite.run_all(REVISION).await?;
    for scenario in TASKS.into_iter().chain(MORE_TASKS) {
        // With --spec-version the suite would skip the scenarios of extensions.
        suite.run(scenario, &["--scenario", scenario]).await?;
        scenarios.push(scenario.to_owned());
    }
    suite.retry().await?;
    suite.results(scenarios)
}

/// The scenario that a line of the suite says is started.
fn started(line: &str) -> Option<&str> {
    line.trim().strip_prefix("=== Running scenario: ")?.strip_suffix(" ===")
}

/// The suite, aimed at one URL.
#[derive(Debug)]
pub(crate) struct Suite<'a> {
    peers: &'a Peers,
    name: &'a str,
    url: &'a str,
    out: TempDir,
}

impl<'a> Suite<'a> {
    /// `name` is one that no other suite of this test has.
    ///
    /// # Errors
    /// If there is no place for its output.
    pub(crate) fn new(peers: &'a Peers, name: &'a str, url: &'a str) -> Result<Self, String> {
        let out = tempfile::tempdir().map_err(|error| error.to_string())?;
        Ok(Self { peers, name, url, out })
    }

    /// Runs every scenario of `revision`, and says which they were.
    ///
    /// # Errors
    /// If the suite cannot be started, or does not end.
    pub(crate) async fn run_all(&self, revision: &str) -> Result<Vec<String>, String> {
        let printed = self.run("all", &["--suite", "all", "--spec-version", revision]).await?;
        Ok(printed.lines().filter_map(started).map(str::to_owned).collect())
    }

    /// Runs scenarios again that failed without a known reason: some limits of the suite are below a second, which a busy machine exceeds.
    ///
    /// # Errors
    /// As [`Self::run_all`].
    async fn retry(&self) -> Result<(), String> {
        for _ in 0..RETRIES_MAX {
            let checks = read(self.out.path())?;
            let failed = checks
                .iter()
                .filter(|check| check.status == Status::Failure && reason(&check.scenario, &check.id).is_none());
            for scenario in failed.map(|check| check.scenario.as_str()).collect::<BTreeSet<_>>() {
                for entry in fs::read_dir(self.out.path()).map_err(|error| error.to_string())?.flatten() {
                    if scenario_of(&entry.file_name().to_string_lossy()) == Some(scenario) {
                        fs::remove_dir_all(entry.path()).map_err(|error| error.to_string())?;
                    }
                }
                let is_core = !TASKS.iter().chain(&MORE_TASKS).any(|tasks| *tasks == scenario);
                let version: &[&str] = if is_core { &["--spec-version", REVISION] } else { &[] };
                self.run(scenario, &[&["--scenario", scenario][..], version].concat()).await?;
            }
        }
        Ok(())
    }

    /// The suite's output. Its exit code says only that some check failed, so it is ignored.
    async fn run(&self, name: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command =
            self.peers.command("node", ["node_modules/@modelcontextprotocol/conformance/dist/index.js", "server"]);
        command.args(["--url", self.url]).args(arguments).arg("-o").arg(self.out.path()).kill_on_drop(true);
        let output = timeout(RUN_MAX, command.output()).await;
        let output = output.map_err(|_| format!("the suite did not end: {name}"))?;
        let output = output.map_err(|error| format!("the suite cannot be started: {error}"))?;
        let log = log_file(&format!("conformance-suite-{}-{name}", self.name))?;
        fs::write(&log, [&output.stdout[..], &output.stderr].concat()).map_err(|error| error.to_string())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The results of all runs.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn results(&self, scenarios: Vec<String>) -> Result<Results, String> {
        let mut checks = read(self.out.path())?;
        checks.sort();
        Ok(Results { checks, scenarios })
    }
}

/// Every check of every `server-SCENARIO-TIME/checks.json` below `out`.
fn read(out: &Path) -> Result<Vec<Check>, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Written {
        id: String,
        status: Status,
        error_message: Option<String>,
    }
    let mut checks = Vec::new();
    let mut count = 0;
    for entry in fs::read_dir(out).map_err(|error| error.to_string())? {
        count += 1;
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let scenario = scenario_of(&name).ok_or_else(|| format!("the suite wrote a folder {name}"))?;
        // A scenario that throws leaves none: it is missed where the checks are compared with the scenarios.
        let Ok(text) = fs::read(entry.path().join("checks.json")) else { continue };
        let written: Vec<Written> = serde_json::from_slice(&text).map_err(|error| format!("{name}: {error}"))?;
        checks.extend(written.into_iter().map(|Written { id, status, error_message: error }| Check {
            scenario: scenario.to_owned(),
            id,
            status,
            error,
        }));
    }
    assert!(count > 0, "the suite wrote no folder into {}", out.display());
    Ok(checks)
}

/// `tools-list` of `server-tools-list-2026-11-21T10-20-30-400Z`.
fn scenario_of(folder: &str) -> Option<&str> {
    let named = folder.strip_prefix("server-")?;
    let (name, _time) = named.split_at_checked(named.len().checked_sub("-2026-11-21T10-20-30-400Z".len())?)?;
    Some(name)
}

/// The report: a row for each scenario.
pub(crate) fn table(results: &Results) -> String {
    let mut table = "| scenario | passed | failed | warnings | skipped | why |\n|---|---|---|---|---|---|\n".to_owned();
    let mut by_scenario: BTreeMap<&str, Vec<&Check>> = BTreeMap::new();
    for check in &results.checks {
        by_scenario.entry(&check.scenario).or_default().push(check);
    }
    for scenario in &results.scenarios {
        let checks = by_scenario.get(scenario.as_str()).map(Vec::as_slice).unwrap_or_default();
        let count = |status| checks.iter().filter(|check| check.status == status).count();
        let mut why: Vec<_> = checks.iter().filter_map(|check| reason(scenario, &check.id)).collect();
        why.dedup();
        let [passed, failed] = [Status::Success, Status::Failure].map(count);
        let [warnings, skipped] = [Status::Warning, Status::Skipped].map(count);
        let why = why.join("; ");
        let _ = writeln!(table, "| {scenario} | {passed} | {failed} | {warnings} | {skipped} | {why} |");
    }
    table
}

#[test]
fn folders_and_lines_of_the_suite_name_scenarios() {
    assert_eq!(scenario_of("server-tools-list-2026-11-21T10-20-30-400Z"), Some("tools-list"));
    assert_eq!(scenario_of("client-x"), None);
    assert_eq!(started("=== Running scenario: tools-list ==="), Some("tools-list"));
    assert_eq!(started("Results saved"), None);
}
