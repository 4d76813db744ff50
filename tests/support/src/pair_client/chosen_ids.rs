//! Makes calls under ids of its own (SEP-1686), which are answered all the same.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::messages::Messages;
use super::{Ending, LONGEST, POLL, PairClient, UserBehaviour, cancel_request, ending, under_way};

const TASK: &str = "modelcontextprotocol.io/task";
const RELATED: &str = "modelcontextprotocol.io/related-task";

fn is_related(meta: &Value, task: &str) -> bool {
    meta[RELATED] == json!({"taskId": task})
}

impl PairClient {
    /// Begins a call, up to the notification of its task: the ids of its request and its task, and the rest.
    async fn begin(&mut self, tool: &str) -> Result<(u64, String, Messages), String> {
        let task = format!("pair {}", self.next_id);
        let meta = json!({TASK: {"taskId": task, "keepAlive": 60_000}});
        let (id, reply) = self.send("tools/call", json!({"name": tool, "arguments": {}, "_meta": meta})).await;
        let mut messages = Messages::of(reply);
        match messages.next().await? {
            Some(said)
                if said["method"] == "notifications/tasks/created" && is_related(&said["params"]["_meta"], &task) =>
            {
                Ok((id, task, messages))
            }
            said => Err(format!("no word of a task: {said:?}")),
        }
    }

    pub(super) async fn chosen_call(&mut self, tool: &str, manner: UserBehaviour) -> Result<Ending, String> {
        let (id, task, mut messages) = self.begin(tool).await?;
        match manner {
            UserBehaviour::Cancelling => {
                under_way(&self.runs, tool).await?;
                return self.chosen_cancel(id, &task).await;
            }
            UserBehaviour::CancellingQueued => {
                sleep(Duration::from_millis(300)).await;
                let status = self.status(&task).await?;
                if status != "submitted" {
                    return Err(format!("queued, but {status}"));
                }
                return self.chosen_cancel(id, &task).await;
            }
            UserBehaviour::Leaving => {
                under_way(&Arc::clone(&self.runs), tool).await?;
                drop(messages);
                return self.come_back(&task).await;
            }
            UserBehaviour::Patient
            | UserBehaviour::Declining
            | UserBehaviour::Silent
            | UserBehaviour::CancellingWhenAsked => {}
        }
        while let Some(message) = messages.next().await? {
            if message["id"] == id {
                self.check_answer(&task, &message).await?;
                return ending(&message);
            }
            if message["method"] != "elicitation/create" {
                continue;
            }
            self.questions += 1;
            if !is_related(&message["params"]["_meta"], &task) {
                return Err(format!("a question of no task: {message}"));
            }
            let status = self.status(&task).await?;
            if status != "input_required" {
                return Err(format!("asked, but {status}"));
            }
            if manner == UserBehaviour::CancellingWhenAsked {
                return self.chosen_cancel(id, &task).await;
            }
            self.respond(&message, manner).await;
        }
        Err("the stream ended without an answer".to_owned())
    }

    async fn status(&mut self, task: &str) -> Result<String, String> {
        let message = self.ask("tasks/get", json!({"taskId": task})).await?;
        let result = &message["result"];
        match result["status"].as_str() {
            Some(status) if result["taskId"] == task && is_related(&result["_meta"], task) => Ok(status.to_owned()),
            _ => Err(format!("tasks/get: {message}")),
        }
    }

    /// The task's result is the call's answer.
    async fn check_answer(&mut self, task: &str, answer: &Value) -> Result<(), String> {
        let status = self.status(task).await?;
        let again = self.ask("tasks/result", json!({"taskId": task})).await?;
        let listed = self.ask("tasks/list", json!({})).await?;
        let is_listed =
            listed["result"]["tasks"].as_array().is_some_and(|all| all.iter().any(|one| one["taskId"] == task));
        let is_right = match answer.get("result") {
            Some(result) => status == "completed" && is_related(&result["_meta"], task) && again["result"] == *result,
            None => status == "failed" && again["error"]["code"] == -32602,
        };
        match is_right && is_listed {
            true => Ok(()),
            false => Err(format!("{status}, {answer}, then {again}; listed: {listed}")),
        }
    }

    /// Takes the call's request back, twice: its task has been cancelled then.
    async fn chosen_cancel(&mut self, id: u64, task: &str) -> Result<Ending, String> {
        cancel_request(&self.client, id).await;
        cancel_request(&self.client, id).await;
        match self.status(task).await?.as_str() {
            "cancelled" => Ok(Ending::Cancelled),
            status => Err(format!("cancelled, but {status}")),
        }
    }

    /// Finds a task again whose call's stream is gone.
    async fn come_back(&mut self, task: &str) -> Result<Ending, String> {
        let begun = Instant::now();
        while begun.elapsed() < LONGEST {
            match self.status(task).await?.as_str() {
                "submitted" | "working" => sleep(POLL).await,
                "completed" => return ending(&self.ask("tasks/result", json!({"taskId": task})).await?),
                status => return Err(format!("it should have gone on, but {status}")),
            }
        }
        Err("the task never ended".to_owned())
    }

    /// Cancels an answered call: nothing changes. A settled task can be deleted, once.
    pub(super) async fn cancel_settled_call(&mut self) -> Result<(), String> {
        let (id, task, mut messages) = self.begin("slow").await?;
        while messages.next().await?.is_some_and(|message| message["id"] != id) {}
        cancel_request(&self.client, id).await;
        let status = self.status(&task).await?;
        let named = json!({"taskId": task});
        let cancelled = self.ask("tasks/cancel", named.clone()).await?;
        let deleted = self.ask("tasks/delete", named.clone()).await?;
        let after = self.ask("tasks/get", named).await?;
        let is_refused = |answer: &Value| answer["error"]["code"] == -32602;
        let is_right = status == "completed" && is_refused(&cancelled) && deleted.get("result").is_some();
        if is_right && is_refused(&after) { Ok(()) } else { Err(format!("{status}, {cancelled}, {deleted}, {after}")) }
    }
}
