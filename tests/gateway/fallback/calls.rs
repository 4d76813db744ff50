//! The outcomes of calls that outlive their grace period, and the answers of the three tools.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::people::{Gate, PAIRS, Person, SESSION, STATELESS, Setup, TOOLS, last, said};
use super::upstream::in_time;

#[tokio::test]
async fn a_call_that_outlives_grace_is_answered_with_its_task_and_had_by_the_tools() {
    for (client, server) in PAIRS {
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", TOOLS).await;
        let person = Person::meet(&gate, client).await;
        assert_eq!(said(&person.call("quick", json!({})).await), "quick", "{what}: a quick call is unchanged");

        let notice = person.call("slow", json!({})).await;
        let id = notice["structuredContent"]["taskId"].as_str().unwrap_or_else(|| panic!("{what}: {notice}"));
        assert_eq!(
            (&notice["structuredContent"]["status"], notice.get("isError")),
            (&json!("working"), None),
            "{what}"
        );
        for part in [id, "task_result", "task_status", "task_cancel", "slow"] {
            assert!(said(&notice).contains(part), "{what}: {notice}");
        }
        let status = person.call("task_status", json!({ "id": id })).await;
        assert_eq!(status["structuredContent"]["status"], "working", "{what}: {status}");
        let waited = person.call("task_result", json!({ "id": id, "wait_seconds": 0.05 })).await;
        assert_eq!(waited["structuredContent"]["status"], "working", "{what}: {waited}");

        let waiting = person.call("task_result", json!({ "id": id }));
        let (result, ()) = tokio::join!(waiting, async { setup.end_one() });
        assert_eq!((said(&result), &result["structuredContent"]), ("done", &json!({ "n": 1 })), "{what}");
        assert_eq!(result.get("resultType").is_some(), client == STATELESS, "{what}: {result}");
        let status = person.call("task_status", json!({ "id": id })).await;
        assert_eq!(status["structuredContent"]["status"], "completed", "{what}");
        let late = person.call("task_cancel", json!({ "id": id })).await;
        assert!(said(&late).contains("had ended before"), "{what}: {late}");
        assert_eq!(said(&person.call("task_result", json!({ "id": id })).await), "done", "{what}: it stays");
        let sent = setup.server.world.all(|seen| seen.is_call() && seen.body["params"]["name"] != "quick");
        assert_eq!(sent.len(), 1, "{what}: the tools are the gateway's own affair");
    }
}

#[tokio::test]
async fn a_cancel_settles_the_task_and_a_result_that_comes_later_changes_nothing() {
    for (client, server) in PAIRS {
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", TOOLS).await;
        let person = Person::meet(&gate, client).await;
        let id = person.task("slow").await;
        let waiting = person.begin(8, "tools/call", json!({ "name": "task_result", "arguments": { "id": id } }));
        let cancelling = person.call("task_cancel", json!({ "id": id }));
        let (waited, cancelled) = tokio::join!(Box::pin(async { waiting.await.text().await }), Box::pin(cancelling));
        assert_eq!(cancelled["structuredContent"]["status"], "cancelled", "{what}: {cancelled}");
        let waited = last(&waited)["result"].take();
        assert!(waited["isError"] == true && said(&waited).contains("cancelled"), "{what}: {waited}");
        setup.end_one();
        let again = person.call("task_cancel", json!({ "id": id })).await;
        assert!(said(&again).contains("had ended before (cancelled)"), "{what}: {again}");
        assert_eq!(person.call("task_result", json!({ "id": id })).await, waited, "{what}");
    }
}

/// LEG-14: the wait ends, and the task runs on.
#[tokio::test]
async fn leg_14_a_cancelled_wait_for_a_result_has_no_response() {
    for (client, server) in PAIRS {
        if client == STATELESS {
            continue;
        }
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", TOOLS).await;
        let person = Person::meet(&gate, client).await;
        let id = person.task("slow").await;
        let call = json!({ "name": "task_result", "arguments": { "id": id, "wait_seconds": 50 } });
        let mut waiting = Box::pin(in_time(async { person.begin(8, "tools/call", call).await.text().await }));
        let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 8 } });
        // Repeated: no sign tells when the request waits, and a cancel that comes before it has no effect.
        let text = loop {
            tokio::select! {
                text = &mut waiting => break text,
                () = tokio::time::sleep(Duration::from_millis(50)) => {
                    assert!(person.post(&cancel.to_string(), &[]).await.status.is_success(), "{what}");
                }
            }
        };
        assert!(!text.contains("jsonrpc"), "{what}: {text}");
        let status = person.call("task_status", json!({ "id": id })).await;
        assert_eq!(status["structuredContent"]["status"], "working", "{what}: {status}");
        setup.end_one();
        assert_eq!(said(&person.call("task_result", json!({ "id": id })).await), "done", "{what}");
    }
}

#[tokio::test]
async fn a_wait_ends_at_its_bound_and_bad_arguments_are_told_to_the_model() {
    let setup = Setup::of(SESSION, &[]).await;
    let gate = Gate::open(&setup.server, "", TOOLS).await;
    for client in [SESSION, STATELESS] {
        let person = Person::meet(&gate, client).await;
        let id = person.task("slow").await;
        let began = Instant::now();
        let waited = person.call("task_result", json!({ "id": id, "wait_seconds": 1 })).await;
        assert!(began.elapsed() >= Duration::from_secs(1), "{client}: {:?}", began.elapsed());
        assert_eq!(waited["structuredContent"]["status"], "working", "{client}");
        for arguments in [
            json!({}),
            json!({ "id": 7 }),
            json!({ "id": id, "wait_seconds": "long" }),
            json!({ "id": id, "wait_seconds": -1 }),
        ] {
            let refused = person.call("task_result", arguments.clone()).await;
            assert!(
                refused["isError"] == true && said(&refused).contains("must be"),
                "{client} {arguments}: {refused}"
            );
        }
        let text = person.text("tools/call", json!({ "name": "task_status" })).await;
        assert!(last(&text)["result"]["isError"] == true, "{client}: {text}");
    }
}

#[tokio::test]
async fn the_tools_need_no_upstream_once_a_list_was_seen() {
    for (client, server) in PAIRS {
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", TOOLS).await;
        let person = Person::meet(&gate, client).await;
        person.tools().await;
        let id = person.task("slow").await;
        let before = setup.server.world.all(|_| true).len();
        let cancelled = person.call("task_status", json!({ "id": id })).await;
        assert_eq!(cancelled["structuredContent"]["status"], "working", "{client} before {server}");
        assert_eq!(setup.server.world.all(|_| true).len(), before, "{client} before {server}");
    }
}

#[tokio::test]
async fn a_question_within_grace_is_asked_on_the_calls_own_stream() {
    let setup = Setup::of(SESSION, &["asks"]).await;
    let keys = TOOLS.replace("100ms", "30s");
    let gate = Gate::open(&setup.server, "", &keys).await;
    let person = Person::with(&gate, SESSION, json!({ "elicitation": {} }), None).await;
    let mut reply = person.begin(9, "tools/call", json!({ "name": "asks", "arguments": {} })).await;
    let mut text = String::new();
    let id = loop {
        text.push_str(&reply.piece().await.expect("a question is to come"));
        let asked = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let asked: Vec<Value> = asked.filter_map(|data| serde_json::from_str(data).ok()).collect();
        if let Some(asked) = asked.iter().find(|message| message["method"] == "elicitation/create") {
            break asked["id"].clone();
        }
    };
    let said = json!({ "jsonrpc": "2.0", "id": id, "result": { "action": "accept", "content": {} } });
    assert!(person.post(&said.to_string(), &[]).await.status.is_success());
    assert_eq!(last(&reply.text().await)["result"]["content"][0]["text"], "accept");
}

/// MOD-26, T-56: for any holder of the call, and with any answer at the grace's end.
#[tokio::test]
async fn a_stateless_client_is_asked_first_and_makes_its_request_again() {
    let asking_first = "[upstreams.up.tasks]\nearly_input = \"ask-first\"\ngrace = \"30s\"\n".to_owned();
    let extension = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    for server in [SESSION, STATELESS] {
        for (capabilities, keys) in
            [(json!({ "elicitation": {} }), TOOLS.replace("100ms", "30s")), (extension.clone(), asking_first.clone())]
        {
            let setup = Setup::of(server, &["asks"]).await;
            let gate = Gate::open(&setup.server, "", &keys).await;
            let person = Person::with(&gate, STATELESS, capabilities.clone(), None).await;
            let call = json!({ "name": "asks", "arguments": {} });
            let asked = person.ask("tools/call", call.clone()).await["result"].take();
            assert_eq!(asked["resultType"], "input_required", "before {server}, {capabilities}: {asked}");
            let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
            let mut again = call.clone();
            again["inputResponses"] = json!({ key: { "action": "accept", "content": {} } });
            again["requestState"] = asked["requestState"].clone();
            let answered = person.ask("tools/call", again).await;
            assert_eq!(
                answered["result"]["content"][0]["text"], "accept",
                "before {server}, {capabilities}: {answered}"
            );
        }
    }
}

#[tokio::test]
async fn a_task_that_waits_for_an_answer_says_so() {
    let setup = Setup::of(SESSION, &["asks"]).await;
    let gate = Gate::open(&setup.server, "", TOOLS).await;
    for client in [SESSION, STATELESS] {
        let person = Person::with(&gate, client, json!({ "elicitation": {} }), None).await;
        let call = json!({ "name": "asks", "arguments": { "waits": true } });
        let notice = person.ask("tools/call", call).await["result"].take();
        let id = notice["structuredContent"]["taskId"].as_str().unwrap_or_else(|| panic!("{client}: {notice}"));
        setup.end_one();
        let status = in_time(async {
            loop {
                let status = person.call("task_status", json!({ "id": id })).await;
                if status["structuredContent"]["status"] != "working" {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        assert_eq!(status["structuredContent"]["status"], "input_required", "{client}: {status}");
        assert!(said(&status).contains("Sure?"), "{client}: {status}");
        assert_eq!(status["structuredContent"]["questions"], json!(["Sure?"]), "{client}");
        let waited = person.call("task_result", json!({ "id": id, "wait_seconds": 0 })).await;
        assert_eq!(waited["structuredContent"]["status"], "input_required", "{client}: {waited}");
        person.call("task_cancel", json!({ "id": id })).await;
    }
}

#[tokio::test]
async fn an_array_may_hold_calls_of_the_tools() {
    for server in [SESSION, STATELESS] {
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", TOOLS).await;
        let person = Person::meet(&gate, "2025-03-26").await;
        let id = person.task("slow").await;
        let call = |number: u32, tool: &str, arguments: Value| json!({ "jsonrpc": "2.0", "id": number, "method": "tools/call", "params": { "name": tool, "arguments": arguments } });
        let all = json!([
            call(1, "task_status", json!({ "id": id })),
            call(2, "quick", json!({})),
            call(3, "slow", json!({}))
        ]);
        let text = in_time(person.post(&all.to_string(), &[])).await.text().await;
        assert_eq!(text.matches("\"status\":\"working\"").count(), 2, "{server}: {text}");
        assert!(text.contains("\"quick\""), "{server}: {text}");
    }
}

#[tokio::test]
async fn hold_has_no_such_tools_and_waits() {
    for (client, server) in PAIRS {
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::open(&setup.server, "", "[upstreams.up.tasks]\ngrace = \"100ms\"\n").await;
        let person = Person::meet(&gate, client).await;
        assert_eq!(person.tools().await, ["slow", "quick", "last"], "{what}");
        let waiting = async { tokio::time::timeout(Duration::from_millis(400), person.call("slow", json!({}))).await };
        assert!(waiting.await.is_err(), "{what}");
        let answered = person.text("tools/call", json!({ "name": "task_status", "arguments": { "id": "x" } })).await;
        assert!(
            answered.contains("task_status") || answered.contains("-32602"),
            "{what}: the server's own: {answered}"
        );
    }
}

#[tokio::test]
async fn fallback_is_each_tools_own() {
    let keys =
        "[upstreams.up.tasks]\ngrace = \"100ms\"\n[[upstreams.up.tools]]\nmatch = \"slow\"\nfallback = \"tools\"\n";
    let setup = Setup::of(SESSION, &[]).await;
    let gate = Gate::open(&setup.server, "", keys).await;
    for client in [SESSION, STATELESS] {
        let person = Person::meet(&gate, client).await;
        let tools = person.pages().await.concat();
        let has_schema =
            |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap().get("outputSchema").is_some();
        assert_eq!(["slow", "quick"].map(has_schema), [false, true], "{client}");
        let id = person.task("slow").await;
        assert_eq!(person.call("task_cancel", json!({ "id": id })).await["structuredContent"]["status"], "cancelled");
    }
}
