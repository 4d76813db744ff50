//! Watches a call's subtasks: their questions, messages and outcomes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::answer_budget::FREE_BYTES;
use crate::cause::CauseChain;
use crate::dialect::plain::question_method;
use crate::engine::change::HeldRow;
use crate::engine::change_subscribers::ChangeSubscriber;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::task::reference::LoggedTask;
use crate::task::{Phase, TaskKey, TaskVisibility};
use crate::wire::{Object, Payload};

/// An event of a child. Children are numbered in the order of their parent's list.
pub(in crate::engine::runner) enum ChildEvent {
    /// It asked a question. The client cannot see the child, and so gets the question from the parent (T-40).
    Asked {
        index: usize,
        ask: Payload,
        method: Arc<str>,
        params: Option<Payload>,
    },
    Withdrawn {
        index: usize,
        ask: Payload,
    },
    Status(Arc<str>),
    /// It settled; `None` if its row was removed.
    Settled {
        index: usize,
        row: Option<HeldRow>,
    },
}

pub(super) struct Children {
    engine: Arc<Engine>,
    keys: BTreeMap<usize, TaskKey>,
    changes: FuturesUnordered<BoxFuture<'static, WatchedChild>>,
    unread: Option<WatchedChild>,
    /// When it is read again after a failure of the store.
    retry: Option<(Instant, RetryDelays)>,
    events: VecDeque<ChildEvent>,
}

struct WatchedChild {
    index: usize,
    key: TaskKey,
    changes: ChangeSubscriber,
    /// The questions that its parent has received.
    open: Vec<Payload>,
    message: Option<Arc<str>>,
}

impl Children {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        let (changes, events) = (FuturesUnordered::new(), VecDeque::new());
        Self { engine, keys: BTreeMap::new(), changes, unread: None, retry: None, events }
    }

    /// Watches one more child, and reads it at once. `open` holds its questions that its parent has asked already.
    pub(super) fn watch(&mut self, index: usize, key: TaskKey, open: Vec<Payload>) {
        self.keys.insert(index, key.clone());
        let changes = self.engine.watchers.watch_always(&key);
        let child = WatchedChild { index, key, changes, open, message: None };
        self.changes.push(Box::pin(std::future::ready(child)));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.keys.is_empty() && self.events.is_empty()
    }

    pub(super) fn key(&self, index: usize) -> Option<&TaskKey> {
        self.keys.get(&index)
    }

    /// The next event; pends until there is one. Cancel safe.
    pub(super) async fn next(&mut self) -> ChildEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if self.unread.is_none() {
                self.unread = self.changes.next().await;
            }
            let Some(child) = &self.unread else { return std::future::pending().await };
            if let Some((at, _)) = self.retry {
                tokio::time::sleep_until(at).await;
            }
            let row = match self.engine.load_within(&child.key, FREE_BYTES).await {
                Ok(row) => Some(row),
                Err(TaskError::Unknown) => None,
                Err(error) => {
                    tracing::warn!(task = %LoggedTask(&child.key), error = %CauseChain(&error), "a subtask could not be read yet");
                    let mut pauses = self.retry.map_or_else(RetryDelays::of_writers, |(_, pauses)| pauses);
                    self.retry = Some((Instant::now() + pauses.take(), pauses));
                    continue;
                }
            };
            self.retry = None;
            if let Some(child) = self.unread.take() {
                self.looked_at(child, row);
            }
        }
    }

    fn looked_at(&mut self, mut child: WatchedChild, row: Option<HeldRow>) {
        let index = child.index;
        let task = match row {
            Some(HeldRow::Read(task)) if !task.is_settled() => task,
            ended => {
                self.events.extend(child.open.drain(..).map(|ask| ChildEvent::Withdrawn { index, ask }));
                self.keys.remove(&index);
                self.events.push_back(ChildEvent::Settled { index, row: ended });
                return;
            }
        };
        if task.visibility == TaskVisibility::Part {
            let open: Vec<_> = match &task.phase {
                Phase::AwaitingInput(open) => open.values().collect(),
                Phase::Queued | Phase::Working | Phase::Settled(_) => Vec::new(),
            };
            let gone = child.open.extract_if(.., |ask| !open.iter().any(|question| question.ask == *ask));
            self.events.extend(gone.map(|ask| ChildEvent::Withdrawn { index, ask }));
            for question in open {
                if !child.open.contains(&question.ask) {
                    let params = Object::of(&question.request).and_then(|request| request.get("params"));
                    let (ask, method) = (question.ask.clone(), question_method(&question.request));
                    child.open.push(ask.clone());
                    self.events.push_back(ChildEvent::Asked { index, ask, method, params });
                }
            }
        }
        if task.status_message != child.message {
            child.message.clone_from(&task.status_message);
            self.events.extend(task.status_message.clone().map(ChildEvent::Status));
        }
        self.changes.push(Box::pin(async move {
            child.changes.changed().await;
            child
        }));
    }
}
