//! Clients that ask one gateway after the other: they see one course of each task.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use support::crowd::Job;
use support::history::{Fact, PollResult};
use support::postgres;
use support::wire_client::Flavour;
use tokio::time::sleep;

use super::harness::{PATIENCE, PLAIN, RESUMABLE, Settings, Site, answered, client, job, until};
use super::writes::call_until_task;

/// How often a client asks.
const POLL: Duration = Duration::from_millis(20);

/// One task, followed at each gateway in turn by a client that knows no other; each state that it showed, once.
async fn course(site: &Site<'_>, flavour: Flavour, number: u64) -> Vec<(String, String)> {
    let mut wire = client(flavour, if number.is_multiple_of(2) { RESUMABLE } else { PLAIN });
    let addresses: Vec<_> = site.replicas.iter().map(|replica| replica.keeper.address()).collect();
    assert!(wire.open(addresses[0]).await);
    let is_session = wire.flavour != Flavour::Extension;
    let id = call_until_task(async |tried| {
        let (nonce, owner) = (format!("turns-{number}-{tried}x"), "local".to_owned());
        let mut params = json!({"name": "work", "arguments": {"ms": 1_500, "steps": 8, "nonce": nonce}});
        site.history.record(Fact::Sends { nonce, owner, calls_max: 1 });
        if is_session {
            (params["task"], params["_meta"]) = (json!({}), json!({"progressToken": "p"}));
        }
        wire.ask(addresses[0], "tools/call", params).await
    })
    .await;
    let mut seen: Vec<(String, String)> = Vec::new();
    for turn in 0.. {
        let answer = answered(&wire, addresses[turn % addresses.len()], "tasks/get", json!({"taskId": id})).await;
        let task = answer.json()["result"].take();
        let text = |key: &str| task[key].as_str().unwrap_or_default().to_owned();
        let state = (text("status"), text("statusMessage"));
        assert!(!state.0.is_empty(), "known everywhere from the beginning: {answer:?}");
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        if seen.last().is_some_and(|(status, _)| status == "completed") {
            break;
        }
        sleep(POLL).await;
    }
    let mut outcomes = BTreeMap::new();
    for address in addresses {
        let method = if is_session { "tasks/result" } else { "tasks/get" };
        let mut outcome = answered(&wire, address, method, json!({"taskId": id})).await.json()["result"].take();
        // It names the server, as far as the gateway that is asked has met it.
        outcome.as_object_mut().unwrap().remove("_meta");
        outcomes.insert(outcome.to_string(), address);
    }
    assert_eq!(outcomes.len(), 1, "the same everywhere: {outcomes:?}");
    seen
}

/// F52, L2: at every gateway, progress and states only go forward, and the outcome is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f52_clients_that_ask_one_gateway_after_the_other_see_one_course_of_each_task() {
    let Some(server) = postgres::shared() else { return };
    let site = Site::of(3, "in_turn", server, Settings::default()).await;
    let calls = (0..6).map(|number| {
        let flavour = if number % 3 == 0 { Flavour::Core(None) } else { Flavour::Extension };
        course(&site, flavour, number)
    });
    for (number, seen) in futures_util::future::join_all(calls).await.into_iter().enumerate() {
        let messages: Vec<_> =
            seen.iter().map(|(_, message)| message).filter(|message| message.starts_with("step")).collect();
        assert!(!messages.is_empty(), "{number} shows its progress: {seen:?}");
        assert!(messages.is_sorted(), "{number} goes back: {seen:?}");
        let statuses = seen.iter().map(|(status, _)| status.as_str());
        let ended = statuses.clone().position(|status| status == "completed").unwrap();
        assert_eq!(ended, seen.len() - 1, "{number}: {seen:?}");
        assert!(statuses.take(ended).all(|status| status == "working"), "{number}: {seen:?}");
    }
    let asked = |nth: u64| {
        let question = Job { arguments: json!({"ms": 200, "asks": true}), ..job(&format!("asked-{nth}-"), 200) };
        let cancelled =
            Job { cancels_after: Some(Duration::from_millis(nth * 50)), ..job(&format!("cancelled-{nth}-"), 3_000) };
        [question, cancelled]
    };
    let jobs = (0..6).flat_map(asked).map(async |job| {
        site.crowd.run_as_task(job, client(Flavour::Extension, RESUMABLE), PATIENCE).await;
    });
    futures_util::future::join_all(jobs).await;
    until("all are settled", async || site.tables.are_all_settled()).await;
    let entries = site.history.entries();
    let cancelled = entries.iter().filter(|entry| {
        matches!(&entry.fact, Fact::Polled { seen: PollResult::Settled { status, .. }, .. } if status == "cancelled")
    });
    assert!(cancelled.count() > 0, "a cancel at one gateway ends what another one runs");
    let delivered = entries.iter().filter(|entry| matches!(entry.fact, Fact::Delivered { .. })).count();
    assert_eq!(delivered, 6, "each answer reaches its server, wherever it was given");
    assert_eq!(site.judge().await, 12);
}
