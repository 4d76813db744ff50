//! Programs that are bad servers.

use std::time::Duration;

use serde_json::json;
use support::processes;

use super::client::{StandaloneClient, fault, text};
use super::gate::{GatewayProcess, command_line, faulty_demo, in_time};

const ALWAYS_TASKS: &str = "[upstreams.up.tasks]\nmode = \"always\"\n";

/// F45.
#[tokio::test]
async fn f45_a_program_that_ends_in_mid_call_says_how_and_is_started_again() {
    let gate = GatewayProcess::new().await;
    let client = StandaloneClient::session(&gate).await;
    let other = StandaloneClient::session(&gate).await;
    let slow = json!({ "name": "slow_report", "arguments": { "seconds": 2, "steps": 1 } });
    let mut running = other.ask(1, "tools/call", slow).await;
    for (how, key, number) in [("exit", "exitStatus", 7), ("abort", "exitSignal", 6)] {
        let broken = client.call(2, "broken", json!({ "how": how, "code": 7 })).await;
        let data = fault(&broken);
        assert_eq!((&data["reason"], &data["executed"]), (&json!("upstream_closed"), &json!("unknown")), "{broken}");
        assert_eq!(data[key], number, "{broken}");
        assert!(broken["error"]["message"].as_str().unwrap().contains(&number.to_string()), "{broken}");
        assert_eq!(text(&client.call(3, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
    }
    // Another client has another process, which went on.
    assert!(text(&running.answer().await.0).contains("1 sections"));
}

/// F45.
#[tokio::test]
async fn f45_a_program_that_is_killed_fails_the_calls_and_tasks_of_stateless_clients() {
    let gate = GatewayProcess::with("", "[upstreams.up.tasks]\ngrace = \"100ms\"\n").await;
    let client = StandaloneClient::stateless(&gate);
    let slow = json!({ "seconds": 60, "steps": 60 });
    let id = client.task(1, "slow_report", slow.clone()).await;
    let params = json!({ "name": "slow_report", "arguments": slow, "_meta": { "progressToken": "p" } });
    let mut lost = client.ask(2, "tools/call", params).await;
    // Both run: the program says so.
    let progress = lost.next().await.unwrap();
    assert!(progress["params"]["message"].as_str().is_some_and(|said| said.starts_with("section")), "{progress}");
    let asking = client.clone().with_tasks();
    in_time(async {
        loop {
            let (task, _) = asking.ask(3, "tasks/get", json!({ "taskId": id })).await.answer().await;
            assert_eq!(task["result"]["status"], "working", "{task}");
            if task["result"]["statusMessage"].as_str().is_some_and(|said| said.starts_with("section")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    for program in gate.programs() {
        processes::signal(program, "KILL");
    }
    let (lost, _) = lost.answer().await;
    assert_eq!(fault(&lost)["exitSignal"], 9, "{lost}");
    let task = client.settled(&id).await;
    assert_eq!(task["status"], "failed", "{task}");
    assert_eq!(task["error"]["data"]["exitSignal"], 9, "{task}");
    assert_eq!(text(&client.call(4, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
}

/// F45.
#[tokio::test]
async fn f45_a_program_that_ends_at_once_fails_the_handshake_and_is_not_started_over_and_over() {
    let gate = GatewayProcess::with("start", "").await;
    let error = StandaloneClient::try_session(&gate).await.unwrap_err();
    let data = fault(&error);
    assert_eq!((&data["executed"], &data["exitStatus"]), (&json!("no"), &json!(3)), "{error}");
    let stateless = StandaloneClient::stateless(&gate).call(1, "greet", json!({ "name": "Ada" })).await;
    assert_eq!(fault(&stateless)["executed"], "no", "{stateless}");
    let mut told_to_wait = false;
    for _ in 0..12 {
        let error = StandaloneClient::try_session(&gate).await.unwrap_err();
        told_to_wait |= fault(&error)["retryAfterMs"].as_u64().is_some_and(|wait| wait > 0);
    }
    assert!(told_to_wait, "{}", gate.log());
    gate.until_processes(0).await;
}

/// F45.
#[tokio::test]
async fn f45_a_program_that_does_not_exist_is_an_upstream_that_cannot_be_reached() {
    let dir = tempfile::tempdir().unwrap();
    let gate = GatewayProcess::start(dir, "command = \"taskgate-no-such-program\"\n").await;
    let error = StandaloneClient::try_session(&gate).await.unwrap_err();
    // It is looked for before it is started, so nothing has an exit status.
    let data = fault(&error);
    assert_eq!((&data["executed"], &data["reason"]), (&json!("no"), &json!("upstream_unreachable")), "{error}");
    gate.until_logged("it cannot be started: taskgate-no-such-program: is not found in PATH").await;
    gate.until_logged(": key `upstreams.up.command`: taskgate-no-such-program: is not found in PATH").await;
}

/// F45.
#[tokio::test]
async fn f45_a_flood_on_standard_error_holds_up_nothing_and_is_logged_in_part() {
    let gate = GatewayProcess::new().await;
    let client = StandaloneClient::session(&gate).await;
    let answer = client.call(1, "broken", json!({ "how": "stderr" })).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    gate.until_logged("of a flood").await;
    let logged = gate.log().matches("of a flood").count();
    assert!(logged < 1_000, "{logged}");
    assert!(gate.dropped("stderr_line").await > 10_000);
}

/// F45.
#[tokio::test]
async fn f45_lines_that_are_no_messages_are_skipped_and_counted() {
    let gate = GatewayProcess::with("noise", "").await;
    let client = StandaloneClient::session(&gate).await;
    let answer = client.call(1, "broken", json!({ "how": "noise" })).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(text(&client.call(2, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
    assert_eq!(gate.dropped("stray_line").await, 2);
    assert_eq!(gate.dropped("malformed_event").await, 3);
    gate.until_logged("starting up ...").await;
}

#[tokio::test]
async fn an_unexpected_answer_is_dropped_and_counted() {
    let gate = GatewayProcess::new().await;
    let client = StandaloneClient::session(&gate).await;
    let answer = client.call(1, "broken", json!({ "how": "wrong_id" })).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(gate.dropped("foreign_response").await, 1);
}

/// B236. Programs may print the arguments of their calls, on either stream.
#[tokio::test]
async fn other_output_of_a_program_is_logged_at_debug_alone() {
    for (fault, how, written) in [("", "stderr", "of a flood"), ("noise", "noise", "starting up ...")] {
        let dir = tempfile::tempdir().unwrap();
        let upstream = faulty_demo(fault, dir.path().to_str().unwrap());
        let gate = GatewayProcess::logging(dir, &upstream, "info").await;
        let client = StandaloneClient::session(&gate).await;
        client.call(1, "broken", json!({ "how": how })).await;
        client.leave().await;
        gate.until_processes(0).await;
        assert!(!gate.log().contains(written), "{}", gate.log());
    }
}

/// A program in the shell that answers a call by the command in place of `CALL`.
const ANSWERING: &str = r#"
while read -r line; do
    id=$(printf %s "$line" | sed -nE 's/.*"id":("[^"]*"|[0-9]+)[,}].*/\1/p')
    says() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
    case $line in
        *'"initialize"'*) says '"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"odd","version":"1"}}' ;;
        *'"tools/list"'*) says '"result":{"tools":[{"name":"work","inputSchema":{"type":"object"}}]}' ;;
        *'"tools/call"'*) CALL ;;
        *'"id"'*) says '"error":{"code":-32601,"message":"Method not found"}' ;;
    esac
done
"#;
const UNREADABLE: &str = r#"says '"result":[broken'"#;
/// Log messages alone, as fast as they are read.
const FLOOD: &str =
    r#"exec yes '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"flood"}}'"#;

fn answering(call: &str) -> String {
    format!("command = \"sh\"\nargs = [\"-c\", {:?}]\n", ANSWERING.replace("CALL", call))
}

#[tokio::test]
async fn an_unreadable_line_in_place_of_an_answer_is_a_failure_of_the_upstream() {
    let upstream = format!("{}{ALWAYS_TASKS}", answering(UNREADABLE));
    let gate = GatewayProcess::start(tempfile::tempdir().unwrap(), &upstream).await;
    let answer = StandaloneClient::session(&gate).await.call(1, "work", json!({})).await;
    assert_eq!(fault(&answer)["reason"], "upstream_malformed", "{answer}");
    assert_eq!(gate.failures("upstream_malformed").await, 1, "of a call in the pipe");
    let client = StandaloneClient::stateless(&gate);
    let task = client.settled(&client.task(2, "work", json!({})).await).await;
    assert_eq!(task["error"]["data"]["reason"], "upstream_malformed", "{task}");
    assert_eq!(gate.failures("upstream_malformed").await, 2, "of a task");
    let health = gate.health().await;
    let last = &health["last_failure"];
    assert_eq!(
        (&health["state"], &last["reason"], &last["cause"]),
        (&json!("failing"), &json!("upstream_malformed"), &json!("an answer that is not MCP"))
    );
    gate.until_logged("an answer that is not MCP").await;
    assert_eq!(gate.log().matches("an answer that is not MCP").count(), 1, "{}", gate.log());
    assert_eq!((gate.failures("upstream_closed").await, gate.failures("upstream_timeout").await), (0, 0));
}

/// GW-26: log messages reset no timer of a client that waits for progress.
#[tokio::test]
async fn gw_26_a_flood_of_log_messages_hides_no_progress_from_its_client() {
    let gate = GatewayProcess::start(tempfile::tempdir().unwrap(), &answering(FLOOD)).await;
    let until_progress = async |client: StandaloneClient, key: Option<&str>| {
        let mut meta = json!({ "progressToken": "p" });
        if let Some(key) = key {
            meta["io.taskgate/idempotency-key"] = json!(key);
        }
        let params = json!({ "name": "work", "arguments": {}, "_meta": meta });
        let mut reply = client.ask(1, "tools/call", params).await;
        in_time(async { while reply.next().await.expect("the call is held")["method"] != "notifications/progress" {} })
            .await;
    };
    let [piped, driven] = [StandaloneClient::session(&gate).await, StandaloneClient::session(&gate).await];
    let stateless = StandaloneClient::stateless(&gate);
    tokio::join!(until_progress(piped, None), until_progress(driven, Some("k")), until_progress(stateless, None));
}

#[tokio::test]
async fn silence_is_a_failure_of_the_upstream() {
    let gate = GatewayProcess::with("", &format!("call_idle_max = \"300ms\"\n{ALWAYS_TASKS}")).await;
    let slow = json!({ "seconds": 60, "steps": 1 });
    for (before, client) in [(0, StandaloneClient::session(&gate).await), (1, StandaloneClient::stateless(&gate))] {
        let answer = client.call(1, "slow_report", slow.clone()).await;
        assert_eq!(fault(&answer)["reason"], "upstream_timeout", "{answer}");
        assert_eq!(gate.failures("upstream_timeout").await, before + 1);
    }
    let client = StandaloneClient::stateless(&gate);
    let task = client.settled(&client.task(2, "slow_report", slow).await).await;
    assert_eq!(task["error"]["data"]["reason"], "upstream_timeout", "{task}");
    assert_eq!(gate.failures("upstream_timeout").await, 3, "of a task");
    assert_eq!(gate.health().await["last_failure"]["cause"], "it was silent for too long");
    assert_eq!((gate.failures("upstream_closed").await, gate.failures("upstream_malformed").await), (0, 0));
}

#[tokio::test]
async fn a_call_that_its_client_ends_is_no_failure_of_the_upstream() {
    let gate = GatewayProcess::with("", ALWAYS_TASKS).await;
    let slow = json!({ "seconds": 60, "steps": 1 });
    let client = StandaloneClient::session(&gate).await;
    let params = json!({ "name": "slow_report", "arguments": slow });
    let mut taken_back = client.ask(1, "tools/call", params.clone()).await;
    client.note("notifications/cancelled", json!({ "requestId": 1 })).await;
    while taken_back.next().await.is_some() {}
    let mut left = client.ask(2, "tools/call", params).await;
    client.leave().await;
    while left.next().await.is_some() {}
    let client = StandaloneClient::stateless(&gate).with_tasks();
    let task = client.task(3, "slow_report", slow).await;
    client.ask(4, "tasks/cancel", json!({ "taskId": task })).await.answer().await;
    assert_eq!(client.settled(&task).await["status"], "cancelled");
    // A failure of the ended calls would be counted before the answer to this one.
    assert_eq!(
        text(&StandaloneClient::stateless(&gate).call(5, "greet", json!({ "name": "Ada" })).await),
        "Hello, Ada!"
    );
    let failures = [gate.failures("upstream_closed").await, gate.failures("upstream_timeout").await];
    assert_eq!(failures, [0, 0], "{}", gate.log());
}

/// F45.
#[tokio::test]
async fn f45_a_line_that_is_too_large_ends_its_process_and_the_next_call_has_another() {
    let gate = GatewayProcess::new().await;
    let client = StandaloneClient::session(&gate).await;
    let slow = json!({ "name": "slow_report", "arguments": { "seconds": 60, "steps": 1 } });
    let mut running = client.ask(3, "tools/call", slow).await;
    let answer = client.call(1, "flood", json!({ "bytes": 2 << 20 })).await;
    for answer in [answer, running.answer().await.0] {
        let data = fault(&answer);
        assert_eq!((&data["reason"], &data["executed"]), (&json!("result_too_large"), &json!("unknown")), "{answer}");
    }
    assert_eq!(text(&client.call(2, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
}

/// F45.
#[tokio::test]
async fn f45_an_orphan_of_a_program_does_not_hide_its_end_and_ends_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (program, mark) = (support::faulty_demo(), dir.path().display().to_string());
    // In a group of its own, and with the program's output.
    let script = format!("setsid sleep 100 & exec {program} --faults=");
    let upstream = format!("command = \"sh\"\nargs = [\"-c\", {script:?}]\nenv = {{ MARK = {mark:?} }}\n");
    let gate = GatewayProcess::start(dir, &upstream).await;
    let client = StandaloneClient::session(&gate).await;
    let sleeping = || -> Vec<u32> {
        let is_sleep = |id: &u32| command_line(*id).first().is_some_and(|word| word == "sleep");
        gate.programs().into_iter().filter(is_sleep).collect()
    };
    // The program may answer before the background process of the shell runs `sleep`.
    let until_one_sleeps = async |is_meant: &dyn Fn(u32) -> bool| {
        in_time(async {
            loop {
                if let [one] = sleeping()[..]
                    && is_meant(one)
                {
                    return one;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    };
    let first = until_one_sleeps(&|_| true).await;
    let broken = client.call(1, "broken", json!({ "how": "exit", "code": 7 })).await;
    let data = fault(&broken);
    assert_eq!((&data["reason"], &data["exitStatus"]), (&json!("upstream_closed"), &json!(7)), "{broken}");
    assert_eq!(text(&client.call(2, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
    // The process that the first program left behind ends with it.
    until_one_sleeps(&|one| one != first).await;
    client.leave().await;
    gate.until_processes(0).await;
}
