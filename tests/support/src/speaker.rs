//! A server of 2026-07-28 with subscriptions: its policy grants them, and a test sends its notifications.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::scripted::{BodySender, ScriptedReply, SeenRequest, in_time, json_text};

pub const LISTEN: &str = "subscriptions/listen";
pub const TAG: &str = "io.modelcontextprotocol/subscriptionId";
pub const TOOLS: &str = "notifications/tools/list_changed";
pub const RESOURCES: &str = "notifications/resources/list_changed";
pub const UPDATED: &str = "notifications/resources/updated";

/// The granted part of the member `notifications`; `Err` is a refusal with this code.
type GrantPolicy = dyn Fn(&Value) -> Result<Option<Value>, i64> + Send + Sync;

pub struct SubscriptionServer {
    streams: Mutex<Vec<SubscriptionStream>>,
    opened: Notify,
    manner: Box<GrantPolicy>,
}

/// One stream with a subscription.
#[derive(Clone)]
pub struct SubscriptionStream {
    pub seen: SeenRequest,
    pub events: BodySender,
}

impl SubscriptionServer {
    /// Grants each subscription.
    pub fn granting_all() -> Arc<Self> {
        Self::of(|asked| Ok(Some(asked.clone())))
    }

    /// `Ok(None)` never acknowledges.
    pub fn of(manner: impl Fn(&Value) -> Result<Option<Value>, i64> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { streams: Mutex::default(), opened: Notify::new(), manner: Box::new(manner) })
    }

    /// A script's answer to a subscription; none to other requests.
    pub fn reply(&self, seen: &SeenRequest) -> Option<ScriptedReply> {
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
        let (events, reply) = BodySender::open();
        let stream = SubscriptionStream { seen: seen.clone(), events };
        if let Some(granted) = granted {
            stream.send("notifications/subscriptions/acknowledged", &json!({ "notifications": granted }));
        }
        self.streams.lock().push(stream);
        self.opened.notify_waiters();
        Some(reply)
    }

    /// The n-th stream, waiting for it. If a subscription shrinks, their number depends on time.
    pub async fn stream(&self, n: usize) -> SubscriptionStream {
        self.find(|streams| streams.get(n).cloned()).await
    }

    /// The newest stream on which updates of just these resources were asked for, waiting for it.
    pub async fn stream_about(&self, uris: &[&str]) -> SubscriptionStream {
        let is_meant = |stream: &&SubscriptionStream| stream.uris() == uris;
        self.find(|streams| streams.iter().rfind(is_meant).cloned()).await
    }

    async fn find(&self, find: impl Fn(&[SubscriptionStream]) -> Option<SubscriptionStream>) -> SubscriptionStream {
        let found = async {
            loop {
                let opened = self.opened.notified();
                tokio::pin!(opened);
                opened.as_mut().enable();
                let found = find(&self.streams.lock());
                if let Some(stream) = found {
                    return stream;
                }
                opened.await;
            }
        };
        in_time(found).await
    }

    /// The newest stream.
    pub fn last(&self) -> SubscriptionStream {
        self.streams.lock().last().cloned().expect("a listener is there")
    }

    pub fn count(&self) -> usize {
        self.streams.lock().len()
    }
}

/// Refuses with this code each subscription that names this resource.
pub fn refusing(unknown: &'static str, code: i64) -> Arc<SubscriptionServer> {
    SubscriptionServer::of(move |asked| {
        let is_named = |uris: &Vec<Value>| uris.iter().any(|uri| uri == unknown);
        match asked["resourceSubscriptions"].as_array().is_some_and(is_named) {
            true => Err(code),
            false => Ok(Some(asked.clone())),
        }
    })
}

impl SubscriptionStream {
    /// The requested subscription.
    pub fn asked(&self) -> &Value {
        &self.seen.body["params"]["notifications"]
    }

    /// The resources among it, in order.
    pub fn uris(&self) -> Vec<&str> {
        let mut uris: Vec<_> =
            self.asked()["resourceSubscriptions"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        uris.sort_unstable();
        uris
    }

    /// Sends a notification with the tag of the subscription.
    pub fn send(&self, method: &str, params: &Value) {
        let mut params = params.clone();
        params["_meta"][TAG] = self.seen.body["id"].clone();
        self.events.message(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }
}
