//! Servers of five kinds at one path: a client calls the tools of all of them side by side, in one session where it has one.

use std::fmt::Write as _;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::join_all;

use super::cases::{self, Case, Cell};
use super::client::TestGateway;
use super::front::held_calls;
use super::server::{self, Kind, Ledger, OWN_TOOL};
use super::speaker::{self, Ending, PairClient, UserBehaviour};
use super::upstream::ScriptedServer;
use super::{Row, task_keys};

const MEMBERS: [Kind; 5] = [Kind::Session, Kind::Stateless, Kind::CoreTasks, Kind::CoreRequired, Kind::ExtensionTasks];
/// Cases that are gone through side by side, each with as many calls as there are members.
const AT_ONCE: usize = 10;
/// Ids of requests that the calls of one upstream may use.
const IDS: u64 = 10_000;

type Member = (Kind, ScriptedServer, Arc<Ledger>);

const fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Session => "session",
        Kind::Stateless => "stateless",
        Kind::CoreTasks => "core",
        Kind::CoreRequired => "core-required",
        Kind::ExtensionTasks => "extension",
        Kind::Gateway => "gateway",
    }
}

/// Each case has one of the two ways to name tools, and each client has both.
fn prefix_policy(case: Case) -> &'static str {
    let place = Case::ALL.iter().position(|one| *one == case).unwrap_or_default();
    if place.is_multiple_of(2) { "auto" } else { "always" }
}

fn served(members: &[Member], case: Case) -> String {
    let names: Vec<_> = members.iter().map(|(kind, ..)| name(*kind)).collect();
    let mut text =
        format!("[[endpoints]]\npath = \"/mcp\"\nupstreams = {names:?}\nprefix = \"{}\"\n", prefix_policy(case));
    for (kind, server, _) in members {
        let (name, address) = (name(*kind), server.address);
        let queue = if case == Case::CancelQueued { "in_flight_max = 1\n" } else { "" };
        let _ = writeln!(text, "[upstreams.{name}]\nurl = \"http://{address}/mcp\"\n{queue}{}", task_keys(name, case));
    }
    text
}

/// All rows, as at the paths of the upstreams themselves.
pub(crate) async fn rows() -> Vec<Row> {
    let clients = speaker::Kind::WITHOUT_DRAFTS;
    let runs = clients.into_iter().flat_map(|client| Case::ALL.map(|case| (client, case)));
    let columns: Vec<_> =
        futures_util::stream::iter(runs).map(|(client, case)| column(client, case)).buffered(AT_ONCE).collect().await;
    let mut rows: Vec<Row> = clients
        .into_iter()
        .flat_map(|client| MEMBERS.map(|server| Row { client, server, cells: Vec::new() }))
        .collect();
    for (client, case, cells) in columns {
        for (server, cell) in cells {
            let row = rows.iter_mut().find(|row| row.client == client && row.server == server);
            row.expect("there is one for each").cells.push((case, cell));
        }
    }
    rows
}

/// One case of one client with each of the members, at a gateway of its own.
async fn column(client: speaker::Kind, case: Case) -> (speaker::Kind, Case, Vec<(Kind, Cell)>) {
    let members: Vec<Member> = join_all(MEMBERS.map(|kind| async move {
        let (server, ledger) = server::start(kind).await;
        (kind, server, ledger)
    }))
    .await;
    let gate = TestGateway::serving(&served(&members, case)).await;
    let (speaker, blocker) = match tokio::try_join!(
        PairClient::new(client, gate.client_without_session(), |_| 0),
        PairClient::new(client, gate.client_without_session(), |_| 0)
    ) {
        Ok(both) => both,
        Err(why) => {
            let wrong = |kind| (kind, Cell::Wrong(why.clone()));
            return (client, case, MEMBERS.map(wrong).into());
        }
    };
    let shared = &gate;
    let calling = members.iter().enumerate().map(|(at, member)| {
        let first_id = IDS * (at as u64 + 1);
        let hand = |of: &PairClient| {
            let ledger = Arc::clone(&member.2);
            of.at_upstream(name(member.0), first_id, move |tool| ledger.runs(tool))
        };
        let both = (hand(&speaker), hand(&blocker));
        async move { (member.0, cell(case, client, shared, member, both).await) }
    });
    let mut cells = join_all(calling).await;
    if prefix_policy(case) == "auto"
        && let Err(why) = own_tool(speaker, &members).await
    {
        cells[0].1 = Cell::Wrong(why);
    }
    (client, case, cells)
}

async fn cell(
    case: Case,
    client: speaker::Kind,
    gate: &TestGateway,
    (kind, server, ledger): &Member,
    (mut speaker, blocker): (PairClient, PairClient),
) -> Cell {
    match cases::why_not(client, *kind, case) {
        Some(why) => Cell::NotApplicable(why),
        None if case == Case::CancelQueued => {
            let held = async || held_calls(&[&gate.gateway], name(*kind)).await;
            Cell::of(cases::run_queued(client, (&mut speaker, &mut [blocker]), ledger, held)).await
        }
        None => Cell::of(cases::run(case, client, *kind, &mut speaker, ledger, server)).await,
    }
}

/// A tool that only one upstream has is called by its own name, where names are not always prefixed.
async fn own_tool(mut speaker: PairClient, members: &[Member]) -> Result<(), String> {
    let story = speaker.call(OWN_TOOL, UserBehaviour::Patient).await?;
    let owner = members.iter().find(|(kind, ..)| *kind == Kind::Session);
    if story.ending != Ending::Result("done".to_owned()) {
        return Err(format!("{OWN_TOOL}: {:?}", story.ending));
    }
    cases::once(&owner.ok_or("no member has it")?.2, OWN_TOOL)
}
