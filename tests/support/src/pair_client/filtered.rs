//! Looks for a task by filters (SEP-1904).

use serde_json::{Value, json};

use super::PairClient;

const STATUSES: [&str; 5] = ["working", "input_required", "completed", "failed", "cancelled"];

impl PairClient {
    /// The task is on every list that it fits, and on no other.
    pub(super) async fn check_lists(&mut self, id: &str) -> Result<(), String> {
        let task = self.ask("tasks/get", json!({"taskId": id})).await?["result"].take();
        let others: Vec<_> = STATUSES.into_iter().filter(|status| task["status"] != *status).collect();
        for (criteria, is_there) in [
            (json!({"taskIds": [id], "status": [task["status"]]}), true),
            (
                json!({"filter": {"taskIds": [id], "methods": ["tools/call"]}, "orderBy": "createdAt", "order": "asc"}),
                true,
            ),
            (json!({"status": [task["status"]], "createdBefore": "2100-01-01T00:00:00Z"}), true),
            (json!({"status": others}), false),
            (json!({"createdAfter": task["createdAt"], "taskIds": [id]}), false),
        ] {
            let page = self.ask("tasks/list", criteria.clone()).await?;
            let Some(tasks) = page["result"]["tasks"].as_array() else { return Err(format!("tasks/list: {page}")) };
            let found: Vec<&Value> = tasks.iter().filter(|found| found["taskId"] == id).collect();
            let is_right = if is_there { found == [&task] } else { found.is_empty() };
            if !is_right {
                return Err(format!("{criteria}: {page}, but the task is {task}"));
            }
        }
        Ok(())
    }
}
