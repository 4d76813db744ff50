//! Real clients that log in at a real authorization server, and follow a slow call while their tokens expire: each client in each flow
//! that it has, at a server's path and at an endpoint of several servers.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. Each flow runs once, and all cells in `make peers`. The table stands in `docs/compatibility.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::fmt::Write as _;

use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value, json};
use support::peers::coverage::every_cell_runs;
use support::peers::gateway::Gateway;
use support::peers::install::{Peers, Pins};
use support::peers::login::{Client, Issuer, config, slow_server};
use support::peers::report;
use support::scripted::ScriptedServer;

/// How long the gateway accepts an access token. A login takes less.
const TOKEN_SECONDS: &str = "5";
/// How long the call takes: a token that was new when it began has expired before its end.
const CALL_MILLIS: u64 = 8_000;
/// The clients wait most of the time. With many more, two cores would need longer for their logins than the tokens are accepted.
const CLIENTS_AT_ONCE: usize = 8;

fn title_of(client: Client) -> String {
    let (pins, package, tasks) = match client {
        Client::TypeScript => (Pins::Npm, "@modelcontextprotocol/client", "ext-tasks"),
        Client::Python => (Pins::PyModern, "mcp", "`fallback = \"tools\"`"),
        Client::AiSdk => (Pins::Npm, "@ai-sdk/mcp", "`fallback = \"tools\"`"),
        Client::Rust => (Pins::Cargo, "rmcp", "ext-tasks"),
        Client::Inspector => (Pins::Npm, "@modelcontextprotocol/inspector", "its pages in Chromium, ext-tasks"),
    };
    format!("{package} {}, {tasks}", pins.version(package))
}

/// A client in one of the flows that it has.
#[derive(Debug)]
struct Login {
    client: Client,
    /// The driver's name of the flow, or `step-up`.
    flow: &'static str,
    title: &'static str,
    /// How often a person logs in.
    logins: u64,
    /// The path at which `make test` runs it, if it does.
    path_always: Option<&'static str>,
}

const fn login(client: Client, flow: &'static str, logins: u64, path_always: Option<&'static str>) -> Login {
    let title = title(flow);
    Login { client, flow, title, logins, path_always }
}

const fn title(flow: &str) -> &'static str {
    match flow.as_bytes() {
        b"registration" => "code flow, registers itself (RFC 7591)",
        b"known" => "code flow, registered before",
        b"document" => "code flow, client-id metadata document",
        b"step-up" => "code flow, step-up for a tool's scope",
        b"credentials" => "client credentials",
        b"signed" => "client credentials, private-key JWT",
        b"assertion" => "identity assertion (ID-JAG, cross-app access)",
        b"dpop" => "code flow, DPoP",
        _ => panic!("a flow without a title"),
    }
}

const LOGINS: [Login; 20] = [
    login(Client::TypeScript, "registration", 1, None),
    login(Client::TypeScript, "document", 1, Some("up")),
    login(Client::TypeScript, "step-up", 2, Some("all")),
    login(Client::TypeScript, "credentials", 0, None),
    login(Client::TypeScript, "signed", 0, None),
    login(Client::TypeScript, "assertion", 1, None),
    login(Client::TypeScript, "dpop", 1, Some("all")),
    login(Client::Python, "registration", 1, None),
    login(Client::Python, "document", 1, None),
    login(Client::Python, "step-up", 2, None),
    login(Client::Python, "credentials", 0, Some("all")),
    login(Client::Python, "signed", 0, Some("up")),
    login(Client::Python, "assertion", 1, Some("all")),
    login(Client::AiSdk, "registration", 1, Some("up")),
    login(Client::AiSdk, "known", 1, Some("all")),
    login(Client::Rust, "registration", 1, None),
    login(Client::Rust, "document", 1, None),
    login(Client::Rust, "step-up", 2, None),
    login(Client::Rust, "credentials", 0, None),
    login(Client::Inspector, "registration", 1, None),
];

/// The two paths of a row, and the prefix of the tools there.
const PATHS: [(&str, &str); 2] = [("up", ""), ("all", "up__")];

/// A gateway that checks tokens, an authorization server, and a server behind the gateway.
struct LoginPeers {
    peers: Peers,
    gateway: Gateway,
    server: ScriptedServer,
    issuer: Issuer,
    /// The company's identity provider, for identity assertions.
    identity: Issuer,
}

impl LoginPeers {
    async fn start() -> Option<Self> {
        let peers = Peers::find("the matrix of logins")?;
        let tokens = ["jwt", TOKEN_SECONDS];
        let identity = Issuer::start(&peers, "logins-identity", tokens, None).await.unwrap();
        let issuer = Issuer::start(&peers, "logins-issuer", tokens, Some(&identity.url)).await.unwrap();
        let server = slow_server().await;
        let auth = format!(
            "[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\ndpop = \"accept\"\n[[auth.issuers]]\nissuer = \"{}\"\n",
            issuer.url
        );
        let gateway = Gateway::start_public("logins-gateway", &config(&auth, &server), 3).await.unwrap();
        Some(Self { peers, gateway, server, issuer, identity })
    }

    /// Runs one cell; `ms` tells its call from those of others.
    async fn run(&self, login: &Login, (path, prefix): (&str, &str), ms: u64) -> Result<(), String> {
        let name = format!("{:?}-{}-{path}", login.client, login.flow).to_lowercase();
        let is_step_up = login.flow == "step-up";
        let tool = format!("{prefix}{}", if is_step_up { "change" } else { "slow" });
        let signer: Value = serde_json::from_str(&self.issuer.signer).map_err(|error| error.to_string())?;
        let wanted = json!({
            "url": self.gateway.url(path), "issuer": self.issuer.url, "identity": self.identity.url, "user": name,
            "flow": if is_step_up { "document" } else { login.flow }, "signer": signer,
        });
        // Other clients log in once more by themselves.
        let asks_first = matches!(login.client, Client::TypeScript | Client::Rust);
        let step_up = (is_step_up && asks_first).then(|| json!({ "stepUp": tool }));
        let steps: Vec<_> = step_up.into_iter().chain([login.client.task(&tool, ms)]).collect();
        let facts = login.client.run(&self.peers, &format!("logins-{name}"), wanted, &steps).await?;
        let facts = facts.last().expect("a driver has facts of each step");
        let calls = self.server.world.all(|seen| seen.is_call() && seen.body["params"]["arguments"]["ms"] == ms);
        login.judge(facts, calls.len()).map_err(|why| format!("{why}: {facts}"))
    }
}

impl Login {
    fn judge(&self, facts: &Value, calls: usize) -> Result<(), String> {
        let scheme = if self.flow == "dpop" { "dpop" } else { "bearer" };
        let is_lower = |value: &Value, text: &str| value.as_str().is_some_and(|value| value.eq_ignore_ascii_case(text));
        let rows = [
            ("it has the result", facts["status"] == "completed" && facts["text"] == "done"),
            ("it polled", facts["polls"].as_u64() >= Some(2)),
            ("the call ran once", calls == 1),
            ("its user logs in as often as needed", facts["logins"] == self.logins),
            ("it renewed its token", facts["tokens"].as_u64() > Some(self.logins.max(1))),
            ("its token has the right scheme", is_lower(&facts["scheme"], scheme)),
        ];
        rows.iter().find(|(_, holds)| !holds).map_or(Ok(()), |(claim, _)| Err(format!("not so: {claim}")))
    }
}

type Outcome = (&'static Login, &'static str, Result<(), String>);

/// Runs all cells, or each flow by one of its clients at one of the two addresses.
async fn outcomes(world: &LoginPeers) -> Vec<Outcome> {
    let cells = LOGINS.iter().flat_map(|login| PATHS.map(|path| (login, path)));
    let cells = cells.filter(|(login, (path, _))| every_cell_runs() || login.path_always == Some(*path));
    let runs = cells
        .zip(CALL_MILLIS..)
        .map(|((login, path), ms)| async move { (login, path.0, world.run(login, path, ms).await) });
    stream::iter(runs).buffered(CLIENTS_AT_ONCE).collect().await
}

/// A row for each login, with both of its cells.
fn table(outcomes: &[Outcome]) -> String {
    let mut table = "| client | flow | a server's path | an endpoint of several |\n|---|---|---|---|\n".to_owned();
    for row in outcomes.chunks(PATHS.len()) {
        let _ = write!(table, "| {} | {} |", title_of(row[0].0.client), row[0].0.title);
        for (_, _, outcome) in row {
            let _ = match outcome {
                Ok(()) => write!(table, " ok |"),
                Err(why) => write!(table, " FAIL {} |", why.replace(['|', '\n'], " ")),
            };
        }
        table.push('\n');
    }
    table
}

#[tokio::test]
async fn real_clients_log_in_by_every_flow_and_read_the_result_of_a_call_that_outlives_their_token() {
    let Some(world) = LoginPeers::start().await else { return };
    let outcomes = outcomes(&world).await;
    assert_eq!(outcomes.len(), if every_cell_runs() { LOGINS.len() * PATHS.len() } else { 8 });
    let failed = outcomes.iter().filter_map(|(login, path, outcome)| {
        let why = outcome.as_ref().err()?;
        Some(format!("{} × {} × {path}: {why}", title_of(login.client), login.title))
    });
    let failed: Vec<_> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let shown = world.server.world.all(|seen| seen.header("authorization").is_some());
    assert!(shown.is_empty(), "no server gets a token: {shown:?}");
    if every_cell_runs() {
        report::publish_every_cell("logins", &table(&outcomes));
    }
}
