//! Holds a call's row as its runner knows it: key, handle, position, attempt, and waiting writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bug_recipient::{BugRecipient, SharedBugRecipient};
use super::live_runners::{RunnerCommand, RunnerCommands};
use crate::engine::admission::TaskPermit;
use crate::engine::call::CallStreamSender;
use crate::engine::retry_delays::RetryDelays;
use crate::task::{Attempt, Event, Executed, SendAttempt, StoredCall, Task, TaskKey, TaskVisibility};
use crate::waits::or_pending;
use crate::wire::Payload;

/// Shortest time between two stored progress messages of a task (U25).
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// A call up for this long did not cause the earlier crashes: longer than the window to resume a stream (U24).
const STEADY_AFTER: Duration = Duration::from_secs(35);
/// How soon after an event of the call its position is stored.
const SOON: Duration = Duration::from_secs(1);
/// The longest interval between checks of a silent call.
const RARELY: Duration = Duration::from_secs(32);

pub(super) struct Recorder {
    row: Option<RunnerRow>,
    permit: Option<TaskPermit>,
    attempt: Attempt,
    checkpoint: Checkpoint,
    unstored: Option<Box<UnstoredSteps>>,
    /// Set while the upstream has not yet confirmed a resumed or resent call.
    unconfirmed: Option<UnconfirmedCall>,
    /// Whether another replica holds the task: see `Runner::write`.
    is_fenced: bool,
    bug_recipient: SharedBugRecipient,
}

struct RunnerRow {
    key: TaskKey,
    /// Whether its owner has the handle. `Hidden` while a client with an idempotency key waits for the outcome.
    visibility: TaskVisibility,
    /// Whether the metrics include it.
    is_counted: bool,
    commands: RunnerCommands,
    progress: Option<Arc<str>>,
    progress_due: Option<Instant>,
}

impl Recorder {
    pub(super) const fn new(permit: Option<TaskPermit>, bug_recipient: SharedBugRecipient) -> Self {
        Self {
            row: None,
            permit,
            attempt: Attempt::FIRST,
            checkpoint: Checkpoint::new(),
            unstored: None,
            unconfirmed: None,
            is_fenced: false,
            bug_recipient,
        }
    }

    pub(super) fn of_row(
        task: &Task,
        commands: RunnerCommands,
        permit: Option<TaskPermit>,
        bug_recipient: SharedBugRecipient,
    ) -> Self {
        let mut recorder = Self { attempt: task.attempt, ..Self::new(permit, bug_recipient) };
        recorder.checkpoint.written = task.recovery.resume.clone();
        recorder.checkpoint.check_soon();
        recorder.row = Some(RunnerRow::new(task.key.clone(), task.visibility, true, commands));
        recorder
    }

    pub(super) fn record_inserted(&mut self, key: TaskKey, visibility: TaskVisibility, commands: RunnerCommands) {
        *self.bug_recipient.lock() = BugRecipient::Task(key.clone());
        self.row = Some(RunnerRow::new(key, visibility, false, commands));
    }

    pub(super) fn take_row(&mut self) -> Option<TaskKey> {
        self.row.take().map(|row| row.key)
    }

    pub(super) const fn has_row(&self) -> bool {
        self.row.is_some()
    }

    pub(super) fn key(&self) -> Option<TaskKey> {
        self.row.as_ref().map(|row| row.key.clone())
    }

    pub(super) fn handle(&self) -> Option<&TaskKey> {
        self.row.as_ref().filter(|row| row.visibility.outlives_client()).map(|row| &row.key)
    }

    pub(super) fn has_handle(&self) -> bool {
        self.handle().is_some()
    }

    pub(super) const fn set_visibility(&mut self, visibility: TaskVisibility) {
        if let Some(row) = &mut self.row {
            row.visibility = visibility;
        }
    }

    /// Records that the metrics include the row; whether that is new.
    pub(super) fn mark_counted(&mut self) -> bool {
        self.row.as_mut().is_some_and(|row| !std::mem::replace(&mut row.is_counted, true))
    }

    /// The next command for the runner; pends while the call has no row. Cancel safe.
    pub(super) async fn next_command(&mut self) -> RunnerCommand {
        or_pending(self.row.as_mut().map(|row| row.commands.next())).await
    }

    /// Whether the clients of repetitions may receive questions.
    pub(super) fn take_repetitions(&self, takes: bool) {
        if let Some(row) = &self.row {
            row.commands.take_repetitions(takes);
        }
    }

    pub(super) fn late_client(&mut self) -> Option<CallStreamSender> {
        self.row.as_mut()?.commands.late()
    }

    pub(super) fn keep_progress(&mut self, text: Arc<str>) {
        if let Some(row) = &mut self.row {
            row.progress = Some(text);
            row.progress_due.get_or_insert_with(Instant::now);
        }
    }

    pub(super) fn progress_due(&self) -> Option<Instant> {
        self.row.as_ref()?.progress_due
    }

    pub(super) fn take_progress(&mut self) -> Option<Arc<str>> {
        self.row.as_mut()?.progress.take()
    }

    /// The status text to store now. Due again after an interval, so that texts within it are stored at its end.
    pub(super) fn next_progress(&mut self) -> Option<Arc<str>> {
        let row = self.row.as_mut()?;
        let text = row.progress.take();
        row.progress_due = text.is_some().then(|| Instant::now() + PROGRESS_INTERVAL);
        text
    }

    /// Keeps a status text for the next try of the store, if there is one; no timer stores it.
    pub(super) fn progress_waits(&mut self, text: Option<Arc<str>>) {
        if let Some(row) = &mut self.row {
            row.progress = text.or_else(|| row.progress.take());
            row.progress_due = None;
        }
    }

    pub(super) const fn has_permit(&self) -> bool {
        self.permit.is_some()
    }

    pub(super) const fn permit_mut(&mut self) -> Option<&mut TaskPermit> {
        self.permit.as_mut()
    }

    pub(super) fn set_permit(&mut self, permit: Option<TaskPermit>) {
        self.permit = permit;
    }

    pub(super) const fn attempt(&self) -> Attempt {
        self.attempt
    }

    pub(super) const fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// Records that another replica holds the task; whether that is new.
    pub(super) const fn fence(&mut self) -> bool {
        !std::mem::replace(&mut self.is_fenced, true)
    }

    /// A position of the exchange, if it differs from the row's.
    pub(super) fn new_position(&self, position: Payload) -> Option<Payload> {
        (self.checkpoint.written.as_ref() != Some(&position)).then(|| position.detached())
    }

    pub(super) const fn has_position(&self) -> bool {
        self.checkpoint.written.is_some()
    }

    pub(super) fn position_written(&mut self, position: Option<Payload>) {
        self.checkpoint.written = position;
    }

    pub(super) const fn check_due(&self) -> Option<Instant> {
        self.checkpoint.due
    }

    pub(super) fn check_soon(&mut self) {
        self.checkpoint.check_soon();
    }

    pub(super) fn checked(&mut self) {
        self.checkpoint.rest();
    }

    /// Adds a step that waits for the store, without a log entry; whether it is new.
    pub(super) fn postpone(&mut self, step: UnstoredStep) -> bool {
        self.unstored.get_or_insert_with(|| Box::new(UnstoredSteps::new())).add(step)
    }

    pub(super) fn waits_for(&self, step: UnstoredStep) -> bool {
        self.unstored.as_ref().is_some_and(|wait| wait.steps.contains(&step))
    }

    pub(super) const fn waits_for_store(&self) -> bool {
        self.unstored.is_some()
    }

    pub(super) fn store_due(&self) -> Option<Instant> {
        self.unstored.as_ref().map(|wait| wait.due)
    }

    pub(super) fn begin_try(&mut self) -> Vec<UnstoredStep> {
        self.unstored.as_mut().map_or_else(Vec::new, |wait| wait.begin_try())
    }

    pub(super) fn end_tries(&mut self) {
        self.unstored = None;
    }

    pub(super) fn schedule_store_retry(&mut self) {
        match self.unstored.as_mut().filter(|wait| !wait.steps.is_empty()) {
            Some(wait) => wait.rest(),
            None => self.unstored = None,
        }
    }

    pub(super) fn will_resume(&mut self) {
        self.unconfirmed = Some(UnconfirmedCall::new(ResumeKind::Resumed, true));
    }

    /// The call is to be sent again. `is_counted`: whether the row says that this process resumed it.
    pub(super) fn will_resend(&mut self, is_counted: bool) {
        self.unconfirmed = Some(UnconfirmedCall::new(ResumeKind::SentAgain, is_counted));
    }

    pub(super) fn is_resuming(&self) -> bool {
        self.unconfirmed.as_ref().is_some_and(|call| call.kind == ResumeKind::Resumed)
    }

    /// The `executed` of a call that is not sent now: unknown if an earlier attempt may have been executed.
    pub(super) const fn executed_so_far(&self) -> Executed {
        if self.unconfirmed.is_some() { Executed::Unknown } else { Executed::No }
    }

    fn send_attempt(&self) -> SendAttempt {
        let again = |call: &UnconfirmedCall| SendAttempt::Again { is_counted: call.is_counted };
        self.unconfirmed.as_ref().map_or(SendAttempt::First, again)
    }

    pub(super) fn sending(&self, call: impl FnOnce() -> Option<StoredCall>) -> Vec<Event> {
        self.send_attempt().events(self.attempt, call)
    }

    /// Whether a row shows that these events were stored.
    pub(super) fn is_sending_stored(&self, task: &Task) -> bool {
        self.send_attempt().is_stored(self.attempt, task)
    }

    /// Records that the row says that the call is about to be sent; the new attempt if it is sent again.
    pub(super) fn record_sending(&mut self) -> Option<Attempt> {
        let next = self.send_attempt().number(self.attempt);
        let unconfirmed = self.unconfirmed.as_mut()?;
        *unconfirmed = UnconfirmedCall::new(ResumeKind::SentAgain, true);
        self.attempt = next;
        self.checkpoint.written = None;
        Some(next)
    }

    /// Records a sign of the upstream; whether the call waited for one.
    pub(super) const fn confirm(&mut self) -> bool {
        self.unconfirmed.take().is_some()
    }

    /// Whether an unconfirmed call has run long enough.
    pub(super) fn is_steady(&self) -> bool {
        self.unconfirmed.as_ref().is_some_and(|call| call.since.elapsed() >= STEADY_AFTER)
    }

    pub(super) fn is_resumption_counted(&self) -> bool {
        self.unconfirmed.as_ref().is_some_and(|call| call.is_counted)
    }
}

impl RunnerRow {
    fn new(key: TaskKey, visibility: TaskVisibility, is_counted: bool, commands: RunnerCommands) -> Self {
        commands.is_stored();
        Self { key, visibility, is_counted, commands, progress: None, progress_due: None }
    }
}

#[derive(Debug)]
struct Checkpoint {
    written: Option<Payload>,
    due: Option<Instant>,
    pause: Duration,
}

impl Checkpoint {
    /// Not due until a row exists that outlives this process.
    const fn new() -> Self {
        Self { written: None, due: None, pause: SOON }
    }

    fn check_soon(&mut self) {
        self.pause = SOON;
        let soon = Instant::now() + SOON;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    fn rest(&mut self) {
        self.due = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RARELY);
    }
}

#[derive(Debug)]
struct UnconfirmedCall {
    kind: ResumeKind,
    since: Instant,
    /// Whether the row says that this process resumed the call.
    is_counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResumeKind {
    Resumed,
    SentAgain,
}

impl UnconfirmedCall {
    fn new(kind: ResumeKind, is_counted: bool) -> Self {
        Self { kind, since: Instant::now(), is_counted }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnstoredStep {
    /// Mark the call as sent, and send it.
    Mark,
    Answers,
    Questions,
    Withdrawals,
    /// Send the open questions to the waiting client.
    Round,
    /// Repeat the call, since its user has completed the URL elicitation.
    Repeat,
    Subtasks,
    Progress,
}

struct UnstoredSteps {
    steps: Vec<UnstoredStep>,
    tried: Vec<UnstoredStep>,
    pauses: RetryDelays,
    due: Instant,
}

impl UnstoredSteps {
    fn new() -> Self {
        let mut pauses = RetryDelays::of_writers();
        let due = Instant::now() + pauses.take();
        Self { steps: Vec::new(), tried: Vec::new(), pauses, due }
    }

    fn add(&mut self, step: UnstoredStep) -> bool {
        if self.steps.contains(&step) {
            return false;
        }
        self.steps.push(step);
        !self.tried.contains(&step)
    }

    /// The steps to try now; those that fail again are added again.
    fn begin_try(&mut self) -> Vec<UnstoredStep> {
        let steps = std::mem::take(&mut self.steps);
        self.tried.clone_from(&steps);
        steps
    }

    fn rest(&mut self) {
        self.due = Instant::now() + self.pauses.take();
    }
}
