//! Maps live tasks to their runners, so that `apply` and returning clients can reach them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::engine::call::{CallStreamSender, RetryRefusal, RoundRetry};
use crate::task::{Answer, TaskKey};
use crate::wire::Payload;

/// Limit of queued answer sets per runner. Each has an answer, and fewer questions are open while a runner is busy.
const DELIVERIES_MAX: usize = 64;

const RETRIES_MAX: usize = 8;

#[derive(Debug)]
pub(super) enum RunnerCommand {
    /// Another replica holds the task, or nothing is left to do: end, without any notification.
    Fenced,
    Abandon,
    Deliver(Vec<(Payload, Answer)>),
    /// Deliver the row's undelivered answers to the upstream.
    LookAgain,
    Retried(CallStreamSender, RoundRetry),
}

/// Runners by task. An entry lives from the task's insert to the runner's end.
#[derive(Debug, Default)]
pub(in crate::engine) struct LiveRunners {
    by_task: Mutex<HashMap<TaskKey, Weak<RunnerMailbox>>>,
}

/// Queued commands for one runner. Not a channel: that reserves memory for its capacity, and most calls get no command.
#[derive(Debug, Default)]
struct RunnerMailbox {
    waiting: Mutex<MailboxState>,
    bell: Notify,
    polls: AtomicU32,
    /// Cancels that wait for room in the store.
    cancels: AtomicU32,
    /// Whether its task is in the store; false while its insert is in progress.
    is_stored: AtomicBool,
    /// Whether a repetition's client may receive questions, since the first client left or was sent its questions.
    takes_repetitions: AtomicBool,
}

#[derive(Debug, Default)]
struct MailboxState {
    is_fenced: bool,
    is_abandoned: bool,
    has_more: bool,
    deliveries: VecDeque<Vec<(Payload, Answer)>>,
    retries: VecDeque<(CallStreamSender, RoundRetry)>,
}

impl LiveRunners {
    /// Registers a task of an earlier process; `None` if it has a runner.
    pub(in crate::engine) fn claim(&self, key: &TaskKey) -> Option<RunnerCommands> {
        if self.by_task.lock().contains_key(key) { None } else { Some(self.insert(key.clone())) }
    }

    pub(super) fn insert(&self, key: TaskKey) -> RunnerCommands {
        let mailbox = Arc::default();
        self.by_task.lock().insert(key, Arc::downgrade(&mailbox));
        RunnerCommands { mailbox }
    }

    pub(in crate::engine) fn keys(&self) -> Vec<TaskKey> {
        self.by_task.lock().keys().cloned().collect()
    }

    pub(in crate::engine) fn has(&self, key: &TaskKey) -> bool {
        self.by_task.lock().contains_key(key)
    }

    pub(in crate::engine) fn remove(&self, key: &TaskKey) {
        self.by_task.lock().remove(key);
    }

    /// Calls `add` to add a command; returns whether there was room, or `None` if the runner has ended.
    fn send(&self, key: &TaskKey, add: impl FnOnce(&mut MailboxState) -> bool) -> Option<bool> {
        // Holds the lock throughout: a runner that leaves finds every command that was added before.
        let by_task = self.by_task.lock();
        let mailbox = by_task.get(key).and_then(Weak::upgrade)?;
        let is_added = add(&mut mailbox.waiting.lock());
        mailbox.bell.notify_one();
        Some(is_added)
    }

    pub(in crate::engine) fn polled(&self, key: &TaskKey) {
        if let Some(mailbox) = self.mailbox(key) {
            mailbox.polls.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(in crate::engine) fn polls(&self, key: &TaskKey) -> u32 {
        self.mailbox(key).map_or(0, |mailbox| mailbox.polls.load(Ordering::Relaxed))
    }

    /// Registers a cancel that waits for room in the store; until the guard is dropped, no outcome is stored.
    pub(in crate::engine) fn waits_to_cancel(&self, key: &TaskKey) -> Option<WaitingCancel> {
        let mailbox = self.mailbox(key)?;
        mailbox.cancels.fetch_add(1, Ordering::Relaxed);
        Some(WaitingCancel(Arc::downgrade(&mailbox)))
    }

    pub(in crate::engine) fn has_waiting_cancel(&self, key: &TaskKey) -> bool {
        self.mailbox(key).is_some_and(|mailbox| mailbox.cancels.load(Ordering::Relaxed) > 0)
    }

    /// Whether a task has a runner that receives commands; false while its insert's commit is unknown.
    pub(super) fn receives_commands(&self, key: &TaskKey) -> bool {
        self.mailbox(key).is_some()
    }

    fn mailbox(&self, key: &TaskKey) -> Option<Arc<RunnerMailbox>> {
        self.by_task.lock().get(key).and_then(Weak::upgrade)
    }

    pub(in crate::engine) fn fence(&self, key: &TaskKey) {
        self.send(key, |waiting| {
            waiting.is_fenced = true;
            true
        });
    }

    /// The runner of a task that is in the store; `None` while its insert is in progress.
    pub(in crate::engine) fn stored(&self, key: &TaskKey) -> Option<StoredRunner> {
        let mailbox = self.mailbox(key).filter(|mailbox| mailbox.is_stored.load(Ordering::Relaxed))?;
        Some(StoredRunner(Arc::downgrade(&mailbox)))
    }

    pub(in crate::engine) fn abandon(&self, key: &TaskKey) {
        self.send(key, |waiting| {
            waiting.is_abandoned = true;
            true
        });
    }

    pub(in crate::engine) fn deliver(&self, key: &TaskKey, answers: Vec<(Payload, Answer)>) {
        self.send(key, |waiting| {
            // The answers are in the row: without room here, they are read from there.
            waiting.has_more |= !push(&mut waiting.deliveries, answers, DELIVERIES_MAX);
            true
        });
    }

    pub(in crate::engine) fn look_again(&self, key: &TaskKey) {
        self.send(key, |waiting| {
            waiting.has_more = true;
            true
        });
    }

    pub(in crate::engine) fn retry(
        &self,
        key: &TaskKey,
        sender: CallStreamSender,
        retry: RoundRetry,
    ) -> Result<(), RetryRefusal> {
        match self.send(key, |waiting| push(&mut waiting.retries, (sender, retry), RETRIES_MAX)) {
            Some(true) => Ok(()),
            Some(false) => Err(RetryRefusal::TooMany),
            None => Err(RetryRefusal::NotHere),
        }
    }

    /// Passes a repetition's client to the runner of the first call, if that has no client for its questions.
    pub(super) fn join(&self, key: &TaskKey, sender: CallStreamSender, retry: RoundRetry) -> bool {
        let is_taken = self.mailbox(key).is_some_and(|mailbox| mailbox.takes_repetitions.load(Ordering::Relaxed));
        is_taken && self.retry(key, sender, retry).is_ok()
    }
}

/// A reference to one runner, even if its key has a new one by now.
#[derive(Debug)]
pub(in crate::engine) struct StoredRunner(Weak<RunnerMailbox>);

impl StoredRunner {
    pub(in crate::engine) fn fence(&self) {
        if let Some(mailbox) = self.0.upgrade() {
            mailbox.waiting.lock().is_fenced = true;
            mailbox.bell.notify_one();
        }
    }
}

#[derive(Debug)]
pub(in crate::engine) struct WaitingCancel(Weak<RunnerMailbox>);

impl Drop for WaitingCancel {
    fn drop(&mut self) {
        if let Some(mailbox) = self.0.upgrade() {
            mailbox.cancels.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, max: usize) -> bool {
    let has_room = queue.len() < max;
    if has_room {
        queue.push_back(item);
    }
    has_room
}

#[derive(Debug)]
pub(in crate::engine) struct RunnerCommands {
    mailbox: Arc<RunnerMailbox>,
}

impl RunnerCommands {
    pub(super) fn is_stored(&self) {
        self.mailbox.is_stored.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_repetitions(&self, takes: bool) {
        self.mailbox.takes_repetitions.store(takes, Ordering::Relaxed);
    }

    /// The next command; pends for ever once no sender is left. Cancel safe.
    pub(super) async fn next(&mut self) -> RunnerCommand {
        loop {
            if let Some(order) = self.take() {
                return order;
            }
            // A notification between the check and the wait is kept.
            self.mailbox.bell.notified().await;
        }
    }

    /// Ends come before answers, answers before clients. An end is not removed: only a fence may replace it.
    fn take(&self) -> Option<RunnerCommand> {
        let mut waiting = self.mailbox.waiting.lock();
        if waiting.is_fenced {
            return Some(RunnerCommand::Fenced);
        }
        if waiting.is_abandoned {
            return Some(RunnerCommand::Abandon);
        }
        if let Some(answers) = waiting.deliveries.pop_front() {
            return Some(RunnerCommand::Deliver(answers));
        }
        if std::mem::take(&mut waiting.has_more) {
            return Some(RunnerCommand::LookAgain);
        }
        waiting.retries.pop_front().map(|(sender, retry)| RunnerCommand::Retried(sender, retry))
    }

    /// A client that returned too late for a command.
    pub(super) fn late(&mut self) -> Option<CallStreamSender> {
        self.mailbox.waiting.lock().retries.pop_front().map(|(sender, _)| sender)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::task::{Principal, TaskId};

    const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(5);

    fn key() -> TaskKey {
        TaskKey { owner: Principal::new("someone"), id: TaskId::from_bits(1) }
    }

    fn answers(number: usize) -> Vec<(Payload, Answer)> {
        vec![(Payload::of(&number), Answer::Result(Payload::empty_object()))]
    }

    /// As for a task with an unknown insert.
    #[test]
    fn a_claim_whose_runner_is_gone_is_a_claim_and_no_runner() {
        let live = LiveRunners::default();
        let commands = live.claim(&key()).unwrap();
        assert!(live.receives_commands(&key()) && live.claim(&key()).is_none());
        drop(commands);
        assert!(!live.receives_commands(&key()) && live.claim(&key()).is_none());
        live.remove(&key());
        assert!(live.claim(&key()).is_some());
    }

    #[tokio::test]
    async fn an_end_goes_before_answers_and_wakes_a_runner_that_waits() {
        let live = LiveRunners::default();
        let mut commands = live.insert(key());
        let ring = async {
            live.deliver(&key(), answers(1));
            live.abandon(&key());
        };
        let both = async { tokio::join!(biased; commands.next(), ring) };
        let (ordered, ()) = tokio::time::timeout(WAIT_MAX, both).await.expect("it wakes");
        assert!(matches!(ordered, RunnerCommand::Abandon), "{ordered:?}");
        assert!(matches!(commands.next().await, RunnerCommand::Abandon), "nothing comes after it");
    }

    #[tokio::test]
    async fn answers_come_in_order_and_no_more_wait_than_may() {
        let live = LiveRunners::default();
        let mut commands = live.insert(key());
        for number in 0..=DELIVERIES_MAX {
            live.deliver(&key(), answers(number));
        }
        for number in 0..DELIVERIES_MAX {
            let Some(RunnerCommand::Deliver(got)) = commands.next().now_or_never() else {
                panic!("{number} is missing")
            };
            assert_eq!(got, answers(number));
        }
        let last = commands.next().now_or_never();
        assert!(matches!(last, Some(RunnerCommand::LookAgain)), "the one too many lies in the row: {last:?}");
        assert!(commands.next().now_or_never().is_none(), "once");
    }

    #[test]
    fn no_client_is_given_to_a_runner_that_has_ended() {
        let live = LiveRunners::default();
        drop(live.insert(key()));
        assert_eq!(live.send(&key(), |_| true), None);
    }

    #[test]
    fn one_that_is_fenced_as_removed_is_no_other_of_its_key() {
        let (runners, key) = (LiveRunners::default(), key());
        let first = runners.insert(key.clone());
        assert!(runners.stored(&key).is_none(), "its task is about to be added");
        first.is_stored();
        let stored = runners.stored(&key).unwrap();
        drop(first);
        let mut second = runners.insert(key);
        second.is_stored();
        stored.fence();
        assert!(second.next().now_or_never().is_none());
    }
}
