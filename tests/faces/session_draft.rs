//! Tasks of SEP-1686 over real sockets: a session client that chooses the ids of its tasks, the whole gateway, and a
//! server whose calls wait for the test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bad;
mod calls;
mod lists;
mod lives;

use support::scripted as upstream;
use support::talk;

use serde_json::{Value, json};

use talk::{ManualSetup, SessionMessages, SessionUser};

/// The member of a call's `_meta`, and the one of all messages about its task.
const TASK: &str = "modelcontextprotocol.io/task";
const RELATED: &str = "modelcontextprotocol.io/related-task";

/// A gateway whose clients may use the draft.
async fn setup() -> ManualSetup {
    ManualSetup::with("[upstreams.up.tasks]\ndrafts = [\"sep-1686\"]\n").await
}

/// A client of a version.
async fn person(stage: &ManualSetup, version: &str) -> SessionUser {
    SessionUser::meet(&stage.gate, version, &json!({"elicitation": {}, "sampling": {}, "roots": {}})).await
}

fn called(task: &Value) -> Value {
    json!({"name": "work", "arguments": {}, "_meta": {TASK: task}})
}

/// Calls a tool under an id; the stream behind the word that there is a task.
async fn begun(person: &SessionUser, id: u32, task: &str) -> SessionMessages {
    let mut stream = SessionMessages::of(person.request(id, "tools/call", &called(&json!({"taskId": task}))).await);
    let created = stream.next().await.unwrap();
    let related = json!({"_meta": {RELATED: {"taskId": task}}});
    assert_eq!(created, json!({"jsonrpc": "2.0", "method": "notifications/tasks/created", "params": related}));
    stream
}
