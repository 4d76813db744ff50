//! Whose tasks the tools are for: as `tasks/*`.

use serde_json::json;

use super::people::{ADA, BOB, Gate, PAIRS, Person, Setup};

/// T-22: another principal's task is absent.
#[tokio::test]
async fn a_foreign_task_is_answered_like_an_unknown_one_byte_for_byte() {
    for (client, server) in PAIRS {
        let what = format!("{client} before {server}");
        let setup = Setup::of(server, &[]).await;
        let gate = Gate::for_two(&setup.server).await;
        let ada = Person::with(&gate, client, json!({}), Some(ADA)).await;
        let bob = Person::with(&gate, client, json!({}), Some(BOB)).await;
        bob.tools().await;
        let id = ada.task("slow").await;
        for tool in ["task_status", "task_result", "task_cancel"] {
            let ask = |id: String| bob.text("tools/call", json!({ "name": tool, "arguments": { "id": id } }));
            let foreign = ask(id.clone()).await;
            assert!(foreign.contains("There is no such task"), "{what} {tool}: {foreign}");
            for unknown in ["0".repeat(32), "not-one-of-ours".to_owned()] {
                assert_eq!(ask(unknown).await, foreign, "{what} {tool}");
            }
        }
        let status = ada.call("task_status", json!({ "id": id })).await;
        assert_eq!(status["structuredContent"]["status"], "working", "{what}: it was not cancelled");
        // From another session of hers it is hers all the same.
        let again = Person::with(&gate, client, json!({}), Some(ADA)).await;
        let cancelled = again.call("task_cancel", json!({ "id": id })).await;
        assert_eq!(cancelled["structuredContent"]["status"], "cancelled", "{what}: {cancelled}");
    }
}
