//! Makes calls that the gateway may answer with a handle (the tasks extension).

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::messages::{detail, ending};
use super::{Ending, LONGEST, POLL, PairClient, UserBehaviour, answer_to, check_fields, own_id};

impl PairClient {
    /// The extension: a plain answer or a handle, questions in `tasks/get`.
    pub(super) async fn extension_call(&mut self, tool: &str, manner: UserBehaviour) -> Result<(Ending, bool), String> {
        let created = self.ask("tools/call", json!({"name": tool, "arguments": {}})).await?;
        let task = &created["result"];
        if task["resultType"] != "task" {
            return Ok((ending(&created)?, false));
        }
        let id = own_id(task)?;
        check_fields(task, &["taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs"])?;
        if manner == UserBehaviour::Leaving {
            sleep(Duration::from_millis(200)).await;
        }
        if matches!(manner, UserBehaviour::Cancelling | UserBehaviour::CancellingQueued) {
            return Ok((self.extension_cancel(&id).await?, true));
        }
        let begun = Instant::now();
        while begun.elapsed() < LONGEST {
            let message = self.ask("tasks/get", json!({"taskId": id})).await?;
            let task = &message["result"];
            match task["status"].as_str() {
                Some("working") => {}
                Some("input_required") if manner == UserBehaviour::CancellingWhenAsked => {
                    self.questions += 1;
                    return Ok((self.extension_cancel(&id).await?, true));
                }
                Some("input_required") => self.update(&id, task, manner).await?,
                Some("completed" | "failed") => return Ok((ending(&detail(task))?, true)),
                Some("cancelled") => return Ok((Ending::Cancelled, true)),
                _ => return Err(format!("tasks/get: {message}")),
            }
            sleep(POLL).await;
        }
        Err("the task never ended".to_owned())
    }

    async fn update(&mut self, id: &str, task: &Value, manner: UserBehaviour) -> Result<(), String> {
        let mut answers = json!({});
        for (key, question) in task["inputRequests"].as_object().into_iter().flatten() {
            self.questions += usize::from(self.seen_keys.insert(key.clone()));
            if let Some(answer) = answer_to(question, manner) {
                answers[key] = answer;
            }
        }
        if answers.as_object().is_some_and(|answers| !answers.is_empty()) {
            let ack = self.ask("tasks/update", json!({"taskId": id, "inputResponses": answers})).await?;
            if ack["result"]["resultType"] != "complete" || ack["result"].get("taskId").is_some() {
                return Err(format!("tasks/update: {ack}"));
            }
        }
        Ok(())
    }

    async fn extension_cancel(&mut self, id: &str) -> Result<Ending, String> {
        for _ in 0..2 {
            let ack = self.ask("tasks/cancel", json!({"taskId": id})).await?;
            if ack["result"]["resultType"] != "complete" {
                return Err(format!("tasks/cancel: {ack}"));
            }
        }
        let task = self.ask("tasks/get", json!({"taskId": id})).await?;
        if task["result"]["status"] == "cancelled" { Ok(Ending::Cancelled) } else { Err(format!("cancelled: {task}")) }
    }
}
