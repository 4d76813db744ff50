//! The runners of live tasks, by task: how `apply` and returning clients reach the one that owns a call.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::engine::call::{Retry, Seat};
use crate::task::{Answer, TaskKey};
use crate::wire::Payload;

/// Sets of answers on their way to one runner. Each holds an answer at least, and no more questions than these are
/// open while a runner is busy.
const DELIVERIES_MAX: usize = 64;

/// Clients on their way back to one runner.
const RETRIES_MAX: usize = 8;

/// What a runner is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Tell the upstream that nobody wants the result, and end.
    Abandon,
    /// Hand answers to the upstream.
    Deliver(Vec<(Payload, Answer)>),
    /// A client came back.
    Retried(Seat, Retry),
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
    retries: mpsc::Sender<(Seat, Retry)>,
}

impl LiveRunners {
    /// Enters a task of an earlier life of the process; `None` if somebody runs it.
    pub(in crate::engine) fn claim(&self, key: &TaskKey) -> Option<Orders> {
        if self.by_task.lock().contains_key(key) {
            return None;
        }
        Some(self.insert(key.clone()))
    }

    pub(super) fn insert(&self, key: TaskKey) -> Orders {
        let abandon = CancellationToken::new();
        let (deliveries, delivered) = mpsc::channel(DELIVERIES_MAX);
        let (retries, retried) = mpsc::channel(RETRIES_MAX);
        self.by_task.lock().insert(key, Line { abandon: abandon.clone(), deliveries, retries });
        Orders { abandon, delivered, retried }
    }

    pub(in crate::engine) fn remove(&self, key: &TaskKey) {
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

    /// Whether a client that came back was handed to the runner.
    pub(in crate::engine) fn retry(&self, key: &TaskKey, seat: Seat, retry: Retry) -> bool {
        self.by_task.lock().get(key).is_some_and(|line| line.retries.try_send((seat, retry)).is_ok())
    }
}

/// The runner's end of the line.
#[derive(Debug)]
pub(in crate::engine) struct Orders {
    abandon: CancellationToken,
    delivered: mpsc::Receiver<Vec<(Payload, Answer)>>,
    retried: mpsc::Receiver<(Seat, Retry)>,
}

impl Orders {
    /// The next order; pends for ever once the entry is gone. Cancel safe.
    pub(super) async fn next(&mut self) -> Order {
        tokio::select! {
            biased;
            () = self.abandon.cancelled() => Order::Abandon,
            Some(answers) = self.delivered.recv() => Order::Deliver(answers),
            Some((seat, retry)) = self.retried.recv() => Order::Retried(seat, retry),
            else => std::future::pending().await,
        }
    }

    /// A client that came back too late to be told of by an order.
    pub(super) fn late(&mut self) -> Option<Seat> {
        self.retried.try_recv().ok().map(|(seat, _)| seat)
    }
}
