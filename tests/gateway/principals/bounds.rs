//! The bounds of one principal: each has its refusal, and another principal does not notice it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::gate::{ADA, Answer, Ask, BOB, Gate};
use super::upstream::{BodySender, in_time};
use super::withdrawn::stateless;

const UNKNOWN: &str = "0123456789abcdef0123456789abcdef";

#[track_caller]
fn check_wait(answer: &Answer, reason: &str, status: &str) {
    assert_eq!(answer.summary(), format!("{status} -32603 {reason}"), "{answer:?}");
    let data = &answer.json()["error"]["data"];
    assert_eq!((&data["source"], &data["executed"]), (&json!("gateway"), &json!("no")));
    let is_refused = status != "200";
    assert_eq!(answer.header("retry-after").is_some(), is_refused, "{answer:?}");
}

/// The unknown tasks that one principal asks for: twenty within a minute, and then one every three seconds.
struct Misses {
    began: Instant,
    count: u64,
}

impl Misses {
    fn begin() -> Self {
        Self { began: Instant::now(), count: 0 }
    }

    fn note(&mut self) {
        self.count += 1;
        let allowed = 20 + self.began.elapsed().as_secs() / 3;
        assert!(self.count <= allowed, "{} where {allowed} are allowed", self.count);
    }

    /// Repeats the request until it is refused, as on a busy machine the bound may allow further ones; returns the refusal.
    async fn until_refused(&mut self, gate: &Gate, ask: &Ask, missed: &str) -> Answer {
        loop {
            let answer = gate.send(ask).await;
            if answer.summary() != missed {
                return answer;
            }
            self.note();
        }
    }
}

/// B124, SEC-01, L25-62: a client cannot guess ids, in either era.
#[tokio::test]
async fn b124_after_twenty_unknown_tasks_a_principal_has_to_wait() {
    let gate = Gate::start().await;
    let own = gate.task(ADA, "task").await;
    let foreign = gate.task(BOB, "task").await;
    let session = gate.session(ADA).await;
    let get = |id: &str| Ask::new(ADA, "tasks/get", json!({ "taskId": id }));
    let (mut misses, missed) = (Misses::begin(), "200 -32602");
    for n in 0..20 {
        let id = if n % 2 == 0 { UNKNOWN } else { foreign.as_str() };
        assert_eq!(gate.send(&get(id)).await.summary(), missed, "{n}");
        misses.note();
    }
    for id in [UNKNOWN, foreign.as_str()] {
        check_wait(&misses.until_refused(&gate, &get(id), missed).await, "rate_limited", "429");
        let params = json!({ "taskId": id });
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let ask = Ask::session(ADA, Some(&session), method, &params);
            check_wait(&misses.until_refused(&gate, &ask, missed).await, "rate_limited", "200");
        }
    }
    assert_eq!(gate.send(&get(&own)).await.summary(), "200 ok", "an existing task is found");
    let other = Ask::new(BOB, "tasks/get", json!({ "taskId": UNKNOWN }));
    assert_eq!(gate.send(&other).await.summary(), "200 -32602", "others are not told to wait");
}

/// B124: reading tasks of sessions and listening for tasks count as guesses too.
#[tokio::test]
async fn b124_unknown_tasks_count_wherever_a_client_names_them() {
    let gate = Gate::start().await;
    let declared = json!({ "tasks": {} });
    let look = Ask::declaring(ADA, "tasks/get", json!({ "taskId": UNKNOWN }), &declared);
    let mut misses = Misses::begin();
    let without = gate.send(&look).await.summary();
    assert!(!without.contains("rate_limited"), "{without}");
    misses.note();
    for n in 1..20 {
        assert_eq!(gate.send(&look).await.summary(), without, "{n}");
        misses.note();
    }
    check_wait(&misses.until_refused(&gate, &look, &without).await, "rate_limited", "429");
    let ids = json!([UNKNOWN, "00000000000000000000000000000001"]);
    let listen = |ids| Ask::new(BOB, "subscriptions/listen", json!({ "notifications": { "taskIds": ids } }));
    let mut misses = Misses::begin();
    let refused = loop {
        let (mut answer, mut stream) = gate.open(&listen(ids.clone())).await;
        if !answer.contains("acknowledged") {
            in_time(stream.read_to_string(&mut answer)).await.unwrap();
            break Answer::of(answer.as_bytes());
        }
        misses.note();
    };
    assert!(misses.count >= 20, "{}", misses.count);
    check_wait(&refused, "rate_limited", "429");
    let own = json!([gate.task(BOB, "held").await]);
    let (first, _) = gate.open(&listen(own)).await;
    assert!(first.contains("acknowledged"), "an open stream stays: {first}");
}

/// B125, D86-28: all requests count, polls separately; each principal has its own count.
#[tokio::test]
async fn b125_a_principal_above_its_rate_is_told_when_to_retry() {
    let gate = Gate::with("requests_per_second = 5\nrequests_burst = 10").await;
    let task = gate.task(ADA, "held").await;
    let session = gate.session(ADA).await;
    let poll = Ask::new(ADA, "tasks/get", json!({ "taskId": task }));
    let ping = Ask::session(ADA, Some(&session), "ping", &json!({}));
    let note = Ask { body: r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#.to_owned(), ..poll.clone() };
    let asks: Vec<_> = (0..400).map(|n| [&poll, &ping, &poll, &note][n % 4].clone()).collect();
    let began = Instant::now();
    let answers = gate.burst(&asks).await;
    let took = began.elapsed();
    let (polls, requests) =
        ("polls a second for the present number of unfinished tasks", "5 requests a second, 10 at once");
    // A slow machine may stay below the rate.
    for (kind, fine, refused, bound, too_long) in [
        ([0, 2].as_slice(), "200 ok", "429 -32603 rate_limited", polls, 3),
        (&[1], "200 ok", "200 -32603 rate_limited", requests, 20),
        (&[3], "202∅", "429 -32603 rate_limited", requests, 20),
    ] {
        let of_kind = || answers.iter().enumerate().filter(|(n, _)| kind.contains(&(n % 4))).map(|(_, answer)| answer);
        for answer in of_kind() {
            assert!([fine, refused].contains(&answer.summary().as_str()), "{kind:?}: {answer:?}");
            let waits = answer.status() == "429";
            assert_eq!(answer.header("retry-after"), waits.then_some("1"), "{answer:?}");
        }
        let Some(told) = of_kind().find(|answer| answer.summary() == refused) else {
            assert!(took >= Duration::from_secs(too_long), "{kind:?}: none was refused within {took:?}");
            continue;
        };
        let told = told.json()["error"]["message"].to_string();
        assert!(told.contains(bound) && told.contains("for the key `"), "{told}");
    }
    let seen = gate.send(&Ask::new(BOB, "tools/list", json!({}))).await;
    assert_eq!(seen.summary(), "200 ok");
}

/// GW-40: kept results take bytes, and each principal has a share of them.
#[tokio::test]
async fn a_principal_that_keeps_too_much_gets_no_further_task() {
    let gate = Gate::with("stored_bytes_per_principal_max = \"64KiB\"").await;
    let big = json!({ "text": "x".repeat(20_000) });
    let mut handles = 0;
    let refused = loop {
        let answer = gate.send(&Ask::call(ADA, "task", &big)).await;
        if answer.status() != "200" {
            break answer;
        }
        handles += 1;
        assert!(handles < 80, "64KiB are never so much");
        let id = answer.json()["result"]["taskId"].as_str().unwrap().to_owned();
        assert_eq!(settled(&gate, ADA, &id).await["status"], "completed", "the bound decides on new tasks alone");
    };
    check_wait(&refused, "too_much_stored", "429");
    assert!(handles >= 3, "{handles}");
    let session = gate.session(ADA).await;
    let call = json!({ "name": "task", "arguments": {}, "task": {} });
    let answer = gate.send(&Ask::session(ADA, Some(&session), "tools/call", &call)).await;
    check_wait(&answer, "too_much_stored", "200");
    assert_eq!(gate.send(&Ask::call(ADA, "quick", &big)).await.summary(), "200 ok", "plain calls need no room");
    let made = gate.task(BOB, "task").await;
    assert_eq!(settled(&gate, BOB, &made).await["status"], "completed");
}

/// Waits for the end of a task.
async fn settled(gate: &Gate, key: &'static str, id: &str) -> Value {
    loop {
        let seen = gate.send(&Ask::new(key, "tasks/get", json!({ "taskId": id }))).await.json();
        if seen["result"]["status"] != "working" {
            return seen["result"].clone();
        }
        // No faster than the request rate.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// T-58: each principal's unsettled tasks are counted separately.
#[tokio::test]
async fn one_principals_unsettled_tasks_leave_room_for_anothers() {
    let gate = Gate::with("tasks_per_principal_max = 3").await;
    for _ in 0..3 {
        gate.task(ADA, "held").await;
    }
    check_wait(&gate.send(&Ask::call(ADA, "held", &json!({}))).await, "too_many_tasks", "429");
    gate.task(BOB, "held").await;
}

/// B159.
#[tokio::test]
async fn b159_a_principal_has_64_streams() {
    let keys = |id: &str, key: &str| format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n");
    let auth = ["mode = \"api_keys\"\n".to_owned(), keys("ada", ADA), keys("bob", BOB)].concat();
    // Streams of a server without sessions are piped.
    let piped = stateless(|seen| match seen.rpc() {
        "subscriptions/listen" => {
            let (events, reply) = BodySender::open();
            events.message(&json!({ "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged" }));
            events.stay_open();
            Some(reply)
        }
        _ => None,
    });
    for gate in [Gate::start().await, Gate::behind(piped.await, "", &auth, "").await] {
        has_64_streams(&gate).await;
    }
}

async fn has_64_streams(gate: &Gate) {
    let listen = |key| Ask::new(key, "subscriptions/listen", json!({ "notifications": {} }));
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(gate.open(&listen(ADA)).await);
    }
    check_wait(&gate.send(&listen(ADA)).await, "too_many_listeners", "429");
    open.push(gate.open(&listen(BOB)).await);
    assert!(open.iter().all(|(first, _)| first.contains("acknowledged")));
}

/// SEC-03, L7: a thousand clients may all use the ids 0 and 1.
#[tokio::test]
async fn sec_03_a_thousand_clients_with_two_ids_get_their_own_answers() {
    let gate = Arc::new(Gate::start().await);
    let sessions = [(ADA, Arc::<str>::from(gate.session(ADA).await)), (BOB, Arc::from(gate.session(BOB).await))];
    let (clients, places) = (TaskTracker::new(), Arc::new(Semaphore::new(64)));
    let mut running = Vec::new();
    for n in 0..1_000_u32 {
        let (gate, places, (key, session)) = (Arc::clone(&gate), Arc::clone(&places), sessions[n as usize % 2].clone());
        running.push(clients.spawn(async move {
            let _place = places.acquire().await.unwrap();
            let arguments = json!({ "nonce": format!("{key}-{n}") });
            let mut ask = match n % 4 {
                0 | 1 => Ask::call(key, "quick", &arguments),
                _ => {
                    let params = json!({ "name": "quick", "arguments": arguments });
                    Ask::session(key, Some(&session), "tools/call", &params)
                }
            };
            let id = n / 4 % 2;
            ask.body = ask.body.replacen("\"id\":7", &format!("\"id\":{id}"), 1);
            let answer = loop {
                let answer = gate.send(&ask).await;
                // The request rate holds here too: a request that it refuses was not sent.
                if !answer.summary().ends_with("rate_limited") {
                    break answer.json();
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            };
            assert_eq!(answer["id"], id, "{answer}");
            assert_eq!(answer["result"]["structuredContent"], arguments, "{answer}");
        }));
    }
    for client in running {
        client.await.unwrap();
    }
    assert_eq!(gate.server.world.count("tools/call"), 1_000, "each once");
}

/// Agents with one key make and poll tasks at a fleet's rate, while another key polls as fast as it can. It runs for a moment
/// over sockets; `engine/scenarios/fleet` runs the same for long in paused time.
#[tokio::test]
async fn a_fleet_with_one_key_is_not_refused_beside_one_that_polls_too_often() {
    const AGENTS: u64 = 50;
    const TASKS_OF_EACH: u64 = 2;
    let gate = Arc::new(Gate::start().await);
    let greedy = gate.task(BOB, "held").await;
    let clients = TaskTracker::new();
    let agents: Vec<_> = (0..AGENTS)
        .map(|agent| {
            let gate = Arc::clone(&gate);
            clients.spawn(async move {
                // All agents together make 40 a second.
                tokio::time::sleep(Duration::from_millis(25 * agent)).await;
                let (mut own, mut answers) = (Vec::new(), Vec::new());
                for _ in 0..TASKS_OF_EACH {
                    let made = gate.send(&Ask::call(ADA, "held", &json!({}))).await;
                    own.push(made.json()["result"]["taskId"].as_str().unwrap_or_default().to_owned());
                    answers.push(made);
                    tokio::time::sleep(Duration::from_millis(25 * AGENTS)).await;
                }
                for _ in 0..2 {
                    for id in &own {
                        answers.push(gate.send(&Ask::new(ADA, "tasks/get", json!({ "taskId": id }))).await);
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                answers
            })
        })
        .collect();
    let polls = vec![Ask::new(BOB, "tasks/get", json!({ "taskId": greedy })); 200];
    let mut refused = 0;
    // About 50 pass each second: the slower the machine, the fewer of a burst are refused.
    for _ in 0..200 {
        let answers = gate.burst(&polls).await;
        refused += answers.iter().filter(|answer| answer.summary() == "429 -32603 rate_limited").count();
        if refused > 100 {
            break;
        }
    }
    assert!(refused > 100, "{refused} of 40,000");
    for agent in agents {
        for answer in agent.await.unwrap() {
            assert_eq!(answer.summary(), "200 ok", "{answer:?}");
        }
    }
}
