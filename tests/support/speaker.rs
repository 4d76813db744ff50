//! A server of 2026-07-28 that can be listened to: it acknowledges what its manner allows, and says what a test says.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::upstream::{Events, Reply, Seen, in_time, json_text};

pub(crate) const LISTEN: &str = "subscriptions/listen";
pub(crate) const TAG: &str = "io.modelcontextprotocol/subscriptionId";
pub(crate) const TOOLS: &str = "notifications/tools/list_changed";
pub(crate) const RESOURCES: &str = "notifications/resources/list_changed";
pub(crate) const UPDATED: &str = "notifications/resources/updated";

/// What is granted of the member `notifications`; `Err` is a refusal with this code.
type Manner = dyn Fn(&Value) -> Result<Option<Value>, i64> + Send + Sync;

pub(crate) struct Speaker {
    streams: Mutex<Vec<Stream>>,
    opened: Notify,
    manner: Box<Manner>,
}

/// One stream that somebody listens to.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) seen: Seen,
    pub(crate) events: Events,
}

impl Speaker {
    /// Grants whatever is asked for.
    pub(crate) fn generous() -> Arc<Self> {
        Self::of(|asked| Ok(Some(asked.clone())))
    }

    /// `Ok(None)` never acknowledges.
    pub(crate) fn of(manner: impl Fn(&Value) -> Result<Option<Value>, i64> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { streams: Mutex::default(), opened: Notify::new(), manner: Box::new(manner) })
    }

    /// What a script answers: nothing, unless it is asked to be listened to.
    pub(crate) fn reply(&self, seen: &Seen) -> Option<Reply> {
        if seen.rpc() != LISTEN {
            return None;
        }
        let granted = match (self.manner)(&seen.body["params"]["notifications"]) {
            Ok(granted) => granted,
            Err(code) => {
                let error = json!({"code": code, "message": "no"});
                return Some(json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string()));
            }
        };
        let (events, reply) = Events::open();
        let stream = Stream { seen: seen.clone(), events };
        if let Some(granted) = granted {
            stream.say("notifications/subscriptions/acknowledged", &json!({ "notifications": granted }));
        }
        self.streams.lock().push(stream);
        self.opened.notify_waiters();
        Some(reply)
    }

    /// The n-th stream, waiting for it.
    pub(crate) async fn stream(&self, n: usize) -> Stream {
        let found = async {
            loop {
                let opened = self.opened.notified();
                tokio::pin!(opened);
                opened.as_mut().enable();
                if let Some(stream) = self.streams.lock().get(n).cloned() {
                    return stream;
                }
                opened.await;
            }
        };
        in_time(found).await
    }

    pub(crate) fn count(&self) -> usize {
        self.streams.lock().len()
    }
}

impl Stream {
    /// What was asked for.
    pub(crate) fn asked(&self) -> &Value {
        &self.seen.body["params"]["notifications"]
    }

    /// Says something, tagged as it must be.
    pub(crate) fn say(&self, method: &str, params: &Value) {
        let mut params = params.clone();
        params["_meta"][TAG] = self.seen.body["id"].clone();
        self.events.message(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }
}
