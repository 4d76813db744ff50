//! The runners of live tasks, by task: how `apply` reaches the one that owns a call.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::task::{Answer, TaskKey};
use crate::wire::Payload;

/// Sets of answers on their way to one runner; each stands for a commit, so a runner that is this far
/// behind has lost its upstream.
const DELIVERIES_MAX: usize = 64;

/// What a runner is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Tell the upstream that nobody wants the result, and end.
    Abandon,
    /// Hand answers to the upstream.
    Deliver(Vec<(Payload, Answer)>),
}

/// Runners by task. An entry lives from the task's insert to the runner's end.
#[derive(Debug, Default)]
pub(in crate::engine) struct LiveRunners {
    by_task: Mutex<HashMap<TaskKey, Line>>,
}

#[derive(Debug)]
struct Line {
    abandon: CancellationToken,
    deliveries: mpsc::Sender<Vec<(Payload, Answer)>>,
}

impl LiveRunners {
    pub(super) fn insert(&self, key: TaskKey) -> Orders {
        let abandon = CancellationToken::new();
        let (deliveries, orders) = mpsc::channel(DELIVERIES_MAX);
        self.by_task.lock().insert(key, Line { abandon: abandon.clone(), deliveries });
        Orders { abandon, deliveries: orders }
    }

    pub(super) fn remove(&self, key: &TaskKey) {
        self.by_task.lock().remove(key);
    }

    /// A runner that is not here has ended: then there is nobody to tell.
    pub(in crate::engine) fn abandon(&self, key: &TaskKey) {
        if let Some(line) = self.by_task.lock().get(key) {
            line.abandon.cancel();
        }
    }

    pub(in crate::engine) fn deliver(&self, key: &TaskKey, answers: Vec<(Payload, Answer)>) {
        if let Some(line) = self.by_task.lock().get(key)
            && line.deliveries.try_send(answers).is_err()
        {
            tracing::warn!(task = ?key.id, "answers could not be handed to the runner");
        }
    }
}

/// The runner's end of the line.
#[derive(Debug)]
pub(super) struct Orders {
    abandon: CancellationToken,
    deliveries: mpsc::Receiver<Vec<(Payload, Answer)>>,
}

impl Orders {
    /// The next order; pends for ever once the entry is gone. Cancel safe.
    pub(super) async fn next(&mut self) -> Order {
        tokio::select! {
            biased;
            () = self.abandon.cancelled() => Order::Abandon,
            Some(answers) = self.deliveries.recv() => Order::Deliver(answers),
            else => std::future::pending().await,
        }
    }
}
