//! Follows the subtask of a call (SEP-2268).

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Ending, LONGEST, POLL, PairClient, UserBehaviour, check_fields, own_id};

impl PairClient {
    /// A call whose one subtask is read, asked and cancelled by itself; its parent ends after it.
    pub(super) async fn subtask_call(&mut self, tool: &str, manner: UserBehaviour) -> Result<Ending, String> {
        let call = json!({"name": tool, "arguments": {"items": ["only"]}, "task": {"ttl": 60_000}});
        let created = self.ask("tools/call", call).await?;
        let task = &created["result"]["task"];
        let top = own_id(task)?;
        check_fields(task, &["taskId", "status", "createdAt", "lastUpdatedAt", "ttl"])?;
        let named = self.ask("tasks/get", json!({"taskId": top})).await?["result"]["childTaskIds"].take();
        let [Value::String(child)] = named.as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err(format!("one subtask expected, not {named}"));
        };
        self.parent = Some(top.clone());
        let ending = self.core_end(tool, child, manner).await;
        self.parent = None;
        let ending = ending?;
        let below = self.ask("tasks/get", json!({"taskId": child})).await?["result"].take();
        if below["parentTaskId"] != *top || below.get("childTaskIds").is_some() {
            return Err(format!("not a subtask of {top}: {below}"));
        }
        let begun = Instant::now();
        while begun.elapsed() < LONGEST {
            let above = self.ask("tasks/get", json!({"taskId": top})).await?["result"].take();
            match above["status"].as_str() {
                Some("working") => sleep(POLL).await,
                Some("completed" | "failed") if above["childTaskIds"] == named => return Ok(ending),
                // A question of a subtask is no question of its parent (SUB-14).
                _ => return Err(format!("its parent: {above}")),
            }
        }
        Err("the parent never ended".to_owned())
    }
}
