//! Numbers a memory store's incarnations, and notifies each about writes by the others.
//!
//! Outside of tests a process has one incarnation, which ends with its store.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::replica::Incarnation;
use crate::store::tasks::StoreHint;
use crate::task::TaskKey;

/// Beyond this lag an incarnation loses the oldest hints, and is notified of the loss.
const HINTS_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct MemoryIncarnations {
    state: Mutex<IncarnationsState>,
    /// A fast check for the usual case.
    has_ended: AtomicBool,
    hints: broadcast::Sender<(Incarnation, TaskKey)>,
}

#[derive(Debug, Default)]
struct IncarnationsState {
    last: u64,
    ended: BTreeSet<Incarnation>,
    /// Some may be removed or settled by now.
    left: VecDeque<TaskKey>,
}

impl Default for MemoryIncarnations {
    fn default() -> Self {
        Self { state: Mutex::default(), has_ended: AtomicBool::new(false), hints: broadcast::Sender::new(HINTS_MAX) }
    }
}

impl MemoryIncarnations {
    pub(super) fn begin(&self) -> Incarnation {
        let mut state = self.state.lock();
        state.last += 1;
        Incarnation(state.last)
    }

    pub(super) fn end(&self, holder: Incarnation) {
        self.state.lock().ended.insert(holder);
        self.has_ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_ended(&self, holder: Incarnation) -> bool {
        self.has_ended.load(Ordering::SeqCst) && self.state.lock().ended.contains(&holder)
    }

    pub(super) fn leave(&self, keys: impl Iterator<Item = TaskKey>) {
        self.state.lock().left.extend(keys);
    }

    pub(super) fn take_left(&self) -> Option<TaskKey> {
        self.state.lock().left.pop_front()
    }

    /// Call after the row's lock is released. A row inserted by an ended incarnation counts as left behind.
    pub(super) fn wrote(&self, holder: Incarnation, key: &TaskKey) {
        if self.has_ended(holder) {
            self.leave(std::iter::once(key.clone()));
        }
        if self.hints.receiver_count() > 0 {
            let _ = self.hints.send((holder, key.clone()));
        }
    }

    pub(super) fn changes(&self, holder: Incarnation) -> BoxStream<'static, StoreHint> {
        let hints = stream::unfold(self.hints.subscribe(), move |mut hints| async move {
            loop {
                match hints.recv().await {
                    Ok((writer, _)) if writer == holder => (),
                    Ok((_, key)) => return Some((StoreHint::Changed(key), hints)),
                    Err(RecvError::Lagged(_)) => return Some((StoreHint::Missed, hints)),
                    Err(RecvError::Closed) => return None,
                }
            }
        });
        hints.boxed()
    }
}
