//! rmcp's server with tasks, in front of every kind of client.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::client::TestGateway;
use super::in_time;
use super::server::RustServer;
use super::speaker::{CallReport, Ending, Kind, PairClient, UserBehaviour};

const KEYS: &str = "[upstreams.up.tasks]\ngrace = \"700ms\"\npoll_interval = \"100ms\"";

fn said(text: &str) -> Ending {
    Ending::Result(text.to_owned())
}

/// One call by a fresh client; its report, and the server's numbers of tasks, runs and cancels.
async fn call(kind: Kind, tool: &str, manner: UserBehaviour) -> (CallReport, [usize; 3]) {
    let server = RustServer::start().await;
    let gate = TestGateway::with(server.address, KEYS).await;
    let ledger = Arc::clone(&server.ledger);
    let runs = move |_: &str| ledger.runs.load(Ordering::SeqCst);
    let mut speaker = in_time(PairClient::new(kind, gate.client_without_session(), runs)).await.unwrap();
    let story = in_time(speaker.call(tool, manner)).await.unwrap_or_else(|error| panic!("{kind:?} {tool}: {error}"));
    if story.ending == Ending::Cancelled {
        let told = async {
            while server.ledger.cancelled.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        in_time(told).await;
    }
    let ledger = &server.ledger;
    let counts = [&ledger.tasks, &ledger.runs, &ledger.cancelled].map(|count| count.load(Ordering::SeqCst));
    (story, counts)
}

#[tokio::test]
async fn every_client_has_the_results_of_rmcps_tools() {
    for (tool, ending) in [
        ("result", said("done")),
        ("slow", said("done")),
        ("tool_error", Ending::ToolError("it broke".to_owned())),
        ("rpc_error", Ending::Error(4711)),
    ] {
        for kind in Kind::WITHOUT_DRAFTS {
            let (story, [tasks, runs, cancelled]) = call(kind, tool, UserBehaviour::Patient).await;
            assert_eq!((&story.ending, story.questions), (&ending, 0), "{kind:?} {tool}");
            assert_eq!((runs, cancelled), (1, 0), "{kind:?} {tool}");
            // In a session, and in the pipe, the server does not get the extension.
            assert_eq!(tasks > 0, kind == Kind::ExtensionTasks && tool != "result", "{kind:?} {tool}");
            assert!(story.is_task || kind != Kind::CoreTasks, "{tool}");
            assert!(!story.is_task || kind.has_tasks(), "{kind:?} {tool}");
        }
    }
    let (story, _) = call(Kind::ExtensionTasks, "slow", UserBehaviour::Patient).await;
    assert!(story.is_task, "it outlives the grace");
}

#[tokio::test]
async fn rmcp_hears_of_every_cancel() {
    for kind in Kind::WITHOUT_DRAFTS {
        let (story, [_, runs, cancelled]) = call(kind, "wait", UserBehaviour::Cancelling).await;
        assert_eq!((story.ending, runs, cancelled), (Ending::Cancelled, 1, 1), "{kind:?}");
    }
}

#[tokio::test]
async fn rmcps_task_asks_its_client() {
    for (manner, ending) in [(UserBehaviour::Patient, said("accept Ada")), (UserBehaviour::Declining, said("decline"))]
    {
        let (story, [tasks, runs, _]) = call(Kind::ExtensionTasks, "ask", manner).await;
        assert_eq!((story.ending, story.questions, tasks, runs), (ending, 1, 1, 1), "{manner:?}");
    }
}
