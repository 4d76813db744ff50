//! Calls that have a process of their own.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::client::{StandaloneClient, fault, text};
use super::gate::{GatewayProcess, in_time};

/// The upstream's keys: calls of these tools are kept apart.
fn apart(keys: &str, tools: &str) -> String {
    format!("{keys}[[upstreams.up.tools]]\nmatch = {tools:?}\nprocess_per_call = true\n")
}

#[tokio::test]
async fn each_call_of_such_a_tool_has_a_process_that_ends_with_it() {
    let gate = GatewayProcess::with("stateless", &apart("", "who")).await;
    for client in [StandaloneClient::stateless(&gate), StandaloneClient::session(&gate).await] {
        let mut seen: Vec<_> = join_all((0..4).map(|id| client.call(id, "who", json!({})))).await;
        seen.iter_mut().for_each(|answer| *answer = json!(text(answer)));
        seen.sort_by_key(ToString::to_string);
        seen.dedup();
        assert_eq!(seen.len(), 4, "{seen:?}");
    }
    // The remaining process, if any, is the one that serves other tools.
    in_time(async {
        while gate.programs().len() > 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_crash_in_such_a_process_is_that_calls_alone() {
    for (faults, tool, name, done) in
        [("", "slow_report", "seconds", "sections"), ("stateless", "slow", "name", "waited")]
    {
        let gate = GatewayProcess::with(faults, &apart("", "broken")).await;
        let client =
            if faults.is_empty() { StandaloneClient::session(&gate).await } else { StandaloneClient::stateless(&gate) };
        let slow = json!({ "name": tool, "arguments": { name: 1, "steps": 1, "millis": 1_000 } });
        let other = async { client.ask(2, "tools/call", slow).await.answer().await.0 };
        let (broken, other) = tokio::join!(client.call(1, "broken", json!({ "how": "exit", "code": 7 })), other);
        let data = fault(&broken);
        assert_eq!((&data["exitStatus"], &data["executed"]), (&json!(7), &json!("unknown")), "{broken}");
        assert!(text(&other).contains(done), "{other}");
        gate.until_processes(2).await;
    }
}

/// T-20: several such calls may ask at the same time, since each has a process to itself.
#[tokio::test]
async fn t_20_questions_of_such_calls_reach_them_and_their_answers_the_processes() {
    let gate = GatewayProcess::with("", &apart("", "confirm_delete")).await;
    let client = StandaloneClient::session(&gate).await;
    let mut replies = Vec::new();
    for id in 0..3 {
        let params = json!({ "name": "confirm_delete", "arguments": { "path": format!("{id}.txt") } });
        replies.push(client.ask(id, "tools/call", params).await);
    }
    let mut asked = Vec::new();
    for reply in &mut replies {
        let question = reply.next().await.unwrap();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        asked.push(question["id"].clone());
    }
    assert_ne!(asked[0], asked[1]);
    for (number, id) in asked.iter().enumerate().rev() {
        let result = json!({ "action": "accept", "content": { "confirm": number != 1 } });
        client.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result })).await;
    }
    for (number, reply) in replies.iter_mut().enumerate() {
        let (answer, _) = reply.answer().await;
        let expected = if number == 1 { "Kept 1.txt" } else { "Deleted " };
        assert!(text(&answer).starts_with(expected), "{answer}");
    }
    gate.until_processes(2).await;
}

#[tokio::test]
async fn a_cancel_reaches_the_process_of_its_call_and_a_session_takes_its_processes_along() {
    let gate = GatewayProcess::with("", &apart("", "slow_report")).await;
    let client = StandaloneClient::session(&gate).await;
    let slow = json!({ "name": "slow_report", "arguments": { "seconds": 60, "steps": 60 } });
    let _cancelled = client.ask(1, "tools/call", slow.clone()).await;
    let _left = client.ask(2, "tools/call", slow).await;
    // The session's own, and one for each call.
    gate.until_processes(6).await;
    client.note("notifications/cancelled", json!({ "requestId": 1 })).await;
    gate.until_processes(4).await;
    client.leave().await;
    gate.until_processes(0).await;
}

#[tokio::test]
async fn such_calls_wait_for_a_place_and_become_tasks_like_others() {
    let tasks = "processes_max = 3\n[upstreams.up.tasks]\nmode = \"always\"\n";
    let gate = GatewayProcess::with("", &apart(tasks, "slow_report")).await;
    let client = StandaloneClient::stateless(&gate);
    let calls = (0..6).map(|id| client.call(id, "slow_report", json!({ "seconds": 0.3, "steps": 1 })));
    for answer in join_all(calls).await {
        assert!(text(&answer).contains("1 sections"), "{answer}");
    }
    assert!(gate.programs().len() <= 3);
    let client = client.with_tasks();
    let handle = client.call(9, "slow_report", json!({ "seconds": 0.3, "steps": 1 })).await;
    let id = handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}"));
    let ended = in_time(async {
        loop {
            let (task, _) = client.ask(10, "tasks/get", json!({ "taskId": id })).await.answer().await;
            if task["result"]["status"] != "working" {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert_eq!(ended.await["result"]["status"], "completed");
}

/// A server that asks under the id and the token 0, and returns the progress that it gets.
const ASKING: &str = r#"
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id": *\("[^"]*"\|[0-9]*\).*/\1/p')
  case $line in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"ask","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*)
      call=$id
      echo '{"jsonrpc":"2.0","id":0,"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}},"_meta":{"progressToken":0}}}'
      continue ;;
    *'notifications/progress'*) id=$call result="{\"content\":[],\"told\":$line}" ;;
    *'"id"'*'"method"'*) echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"error\":{\"code\":-32601,\"message\":\"unknown\"}}"; continue ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

/// T-62: each process has its own tokens, too.
#[tokio::test]
async fn t_62_progress_of_a_question_reaches_the_process_that_asks() {
    let upstream = format!("command = \"sh\"\nargs = [\"-c\", '''{ASKING}''']\n");
    let gate = GatewayProcess::start(tempfile::tempdir().unwrap(), &apart(&upstream, "ask")).await;
    let client = StandaloneClient::session(&gate).await;
    let (mut replies, mut tokens) = (Vec::new(), Vec::new());
    for id in 0..2 {
        let mut reply = client.ask(id, "tools/call", json!({ "name": "ask", "arguments": {} })).await;
        let question = reply.next().await.unwrap();
        tokens.push(question["params"]["_meta"]["progressToken"].clone());
        replies.push(reply);
    }
    for (number, token) in tokens.iter().enumerate().rev() {
        client.note("notifications/progress", json!({ "progressToken": token, "progress": number })).await;
        let (answer, _) = replies[number].answer().await;
        assert_eq!(answer["result"]["told"]["params"], json!({ "progressToken": 0, "progress": number }), "{answer}");
    }
}
