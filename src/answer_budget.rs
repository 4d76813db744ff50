//! Limits the bytes of responses in progress, per principal and in total.
//! A response above [`FREE_BYTES`] takes bytes as it is read, and holds them until the last buffer with its text is dropped
//! ([`AnswerPermit::attach`]). When no bytes are left, the reader waits, and so does the server. One request per principal
//! may exceed its share, and one in total may exceed the whole: of several half-read responses one can always finish.

mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, PrincipalLimitTable, Reason};
use waiting::{WaitingAnswer, WaitingAnswers};

/// Bytes of a response without a permit: limited by the number of responses.
pub const FREE_BYTES: usize = 64 << 10;
const STEP: usize = 1 << 20;
/// How long a response waits for bytes if no store keeps it.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a response waits for bytes if the budget refused an earlier response of its connection.
const BRIEF_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long an incomplete message keeps its bytes if fewer than [`FREE_BYTES`] more arrive (U76).
const INCOMPLETE_MAX: Duration = Duration::from_secs(30);
/// The most that one interval between two reads adds to a reader's time: a slow client delays the reads, not the reader.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const _: () = assert!(INCOMPLETE_MAX.as_secs() < WAIT_MAX.as_secs(), "waiting responses outlast it");
/// Once a response in memory has waited this long, new requests of its principal, or of all, are refused.
const STALLED_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct AnswerBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    counts: Mutex<BudgetCounts>,
    /// The number of waiting responses; read without the lock.
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct BudgetCounts {
    bytes_max: usize,
    all: BytesInUse,
    shares: HashMap<Principal, BytesInUse>,
    waiting: WaitingAnswers,
}

#[derive(Clone, Copy, Debug, Default)]
struct BytesInUse {
    bytes: usize,
    /// The request that may exceed the bound, and the number of its responses that did and still exist.
    exceeding: AnswerRequest,
    exceeding_answers: usize,
}

impl BytesInUse {
    /// Whether a response exceeds the bound with `more` bytes; an error if another request exceeds it already.
    fn excess(self, more: usize, bytes_max: usize, request: AnswerRequest) -> Result<bool, ()> {
        let is_over = self.is_over(more, bytes_max);
        if is_over && self.exceeding_answers > 0 && self.exceeding != request { Err(()) } else { Ok(is_over) }
    }

    const fn is_over(self, more: usize, bytes_max: usize) -> bool {
        self.bytes.saturating_add(more) > bytes_max
    }

    const fn is_exceeded_by(self, request: AnswerRequest) -> bool {
        self.exceeding_answers > 0 && self.exceeding.0 == request.0
    }

    fn take(&mut self, more: usize, exceeds: bool, request: AnswerRequest) {
        self.bytes += more;
        if exceeds {
            self.exceeding = if self.exceeding_answers == 0 { request } else { self.exceeding };
            self.exceeding_answers += 1;
        }
    }

    fn give_back(&mut self, bytes: usize, exceeds: bool) {
        self.bytes -= bytes;
        self.exceeding_answers -= usize::from(exceeds);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AnswerRequest(u64);

impl AnswerRequest {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

tokio::task_local! {
    /// The current request, if it may hold several responses at once: from several servers, or a response and its copy.
    static REQUEST: AnswerRequest;
}

/// Runs the work of one request: its shares belong together. A nested call joins the outer request, which it would
/// otherwise wait for.
pub async fn as_one_request<F: Future>(asking: F) -> F::Output {
    let request = REQUEST.try_with(|request| *request).unwrap_or_else(|_| AnswerRequest::next());
    REQUEST.scope(request, asking).await
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Excess {
    share: bool,
    whole: bool,
}

impl Excess {
    /// The exceeded bounds that are not in `before`.
    const fn beside(self, before: Self) -> Self {
        Self { share: self.share && !before.share, whole: self.whole && !before.whole }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FullBound {
    Share,
    Whole,
}

#[derive(Clone, Copy, Debug)]
pub struct BudgetRefusal {
    pub fault: GatewayFault,
    pub bytes_max: usize,
}

impl BudgetRefusal {
    pub fn key(&self) -> &'static str {
        if self.fault.reason == Reason::AnswersFull { "answer_bytes_max" } else { "answer_bytes_per_principal_max" }
    }
}

/// One principal's share of the budget.
#[derive(Clone, Debug)]
pub struct AnswerShare {
    budget: AnswerBudget,
    principal: Principal,
    bytes_max: usize,
    /// The request that it belongs to; `None` if each response counts as a request.
    request: Option<AnswerRequest>,
    wait: RoomWait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomWait {
    /// The part that was read is in memory. Waits [`WAIT_MAX`] at most; new requests are refused meanwhile.
    InMemory,
    /// As [`Self::InMemory`], after a refused response of its connection, but waits [`BRIEF_WAIT_MAX`] at most.
    BehindRefused,
    /// The outcome will be stored for its owner: waits until the call's deadline.
    UntilDeadline,
    /// The response stays in the store until there are bytes for it. Waits this long at most.
    InStore(Duration),
}

impl RoomWait {
    const fn max(self) -> Option<Duration> {
        match self {
            Self::InMemory => Some(WAIT_MAX),
            Self::BehindRefused => Some(BRIEF_WAIT_MAX),
            Self::InStore(max) => Some(max),
            Self::UntilDeadline => None,
        }
    }

    const fn refuses_others_after(self) -> Option<Duration> {
        match self {
            Self::InMemory => Some(STALLED_AFTER),
            Self::BehindRefused => Some(Duration::ZERO),
            Self::InStore(_) | Self::UntilDeadline => None,
        }
    }
}

/// The bytes of one response; released when dropped.
#[derive(Debug, Default)]
#[must_use]
pub struct AnswerPermit {
    held: Option<(AnswerBudget, Principal)>,
    bytes: usize,
    excess: Excess,
    request: Option<AnswerRequest>,
    /// The length of the message in [`FREE_BYTES`], and the microseconds that its reader has waited since it changed.
    length: u16,
    waited_us: u32,
    looked: Option<Instant>,
}

impl Default for AnswerBudget {
    fn default() -> Self {
        let counts = BudgetCounts {
            bytes_max: PrincipalLimitTable::default().answer_bytes_max,
            all: BytesInUse::default(),
            shares: HashMap::new(),
            waiting: WaitingAnswers::default(),
        };
        Self(Arc::new(BudgetState { counts: Mutex::new(counts), waiting: AtomicUsize::new(0) }))
    }
}

impl AnswerBudget {
    pub fn resize(&self, bytes_max: usize) {
        self.0.counts.lock().bytes_max = bytes_max;
        self.grant();
    }

    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.0.counts.lock().all.bytes
    }

    #[must_use]
    pub fn share(&self, principal: &Principal, bytes_max: usize) -> AnswerShare {
        let request = REQUEST.try_with(|request| *request).ok();
        AnswerShare { budget: self.clone(), principal: principal.clone(), bytes_max, request, wait: RoomWait::InMemory }
    }

    /// Why a new request of a principal is refused; `share_max` is the bound of the principal's share.
    pub fn refusal(&self, principal: &Principal, share_max: impl FnOnce() -> usize) -> Option<BudgetRefusal> {
        if self.0.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let counts = self.0.counts.lock();
        let full = counts.waiting.stalled_at(Instant::now(), principal)?;
        let bytes_max = match full {
            FullBound::Share => share_max(),
            // A small response needs no bytes, and this principal has no large one in progress.
            FullBound::Whole if !counts.shares.contains_key(principal) && !counts.waiting.is_behind(principal) => {
                return None;
            }
            FullBound::Whole => counts.bytes_max,
        };
        Some(BudgetRefusal { fault: refused(full, Executed::No), bytes_max })
    }

    fn give_back(&self, principal: &Principal, bytes: usize, excess: Excess) {
        {
            let mut counts = self.0.counts.lock();
            counts.all.give_back(bytes, excess.whole);
            if let Some(share) = counts.shares.get_mut(principal) {
                share.give_back(bytes, excess.share);
                if share.bytes == 0 && share.exceeding_answers == 0 {
                    counts.shares.remove(principal);
                }
            }
            metrics::gauge!(metric::ANSWER_BYTES).set(counts.all.bytes as f64);
        }
        if self.0.waiting.load(Ordering::Relaxed) > 0 {
            self.grant();
        }
    }

    fn grant(&self) {
        // A permit of a cancelled wait is dropped after the lock, which its drop takes.
        let mut unwanted = Vec::new();
        let mut counts = self.0.counts.lock();
        let BudgetCounts { bytes_max, all, shares, waiting } = &mut *counts;
        let bytes_max = *bytes_max;
        waiting.grant(
            |answer, is_behind| {
                let share = shares.get(&answer.principal).copied().unwrap_or_default();
                let WaitingAnswer { request, more, .. } = *answer;
                if let Some(full) = is_behind
                    && !all.is_exceeded_by(request)
                    && !share.is_exceeded_by(request)
                {
                    return Err(full);
                }
                let excess = excess(*all, share, more, bytes_max, answer.share_max, request)?.beside(answer.excess);
                take(all, shares.entry(answer.principal.clone()).or_default(), more, excess, request);
                Ok(AnswerPermit::new(self, &answer.principal, more, excess, request))
            },
            &mut unwanted,
        );
        self.0.waiting.store(waiting.len(), Ordering::Relaxed);
        metrics::gauge!(metric::ANSWER_BYTES).set(all.bytes as f64);
        drop(counts);
        drop(unwanted);
    }
}

/// The bounds that a response of a request exceeds with `more` bytes, or the bound that another request exceeds.
fn excess(
    all: BytesInUse,
    share: BytesInUse,
    more: usize,
    bytes_max: usize,
    share_max: usize,
    request: AnswerRequest,
) -> Result<Excess, FullBound> {
    Ok(Excess {
        share: share.excess(more, share_max, request).map_err(|()| FullBound::Share)?,
        whole: all.excess(more, bytes_max, request).map_err(|()| FullBound::Whole)?,
    })
}

fn take(all: &mut BytesInUse, share: &mut BytesInUse, more: usize, excess: Excess, request: AnswerRequest) {
    all.take(more, excess.whole, request);
    share.take(more, excess.share, request);
}

fn refused(full: FullBound, executed: Executed) -> GatewayFault {
    let (reason, label) = match full {
        FullBound::Share => (Reason::TooMuchUnread, "too_much_unread"),
        FullBound::Whole => (Reason::AnswersFull, "answers_full"),
    };
    metrics::counter!(metric::ANSWERS_REFUSED, "reason" => label).increment(1);
    GatewayFault::new(reason, executed)
}

/// A response in the queue. Once it no longer waits, those behind it are tried again.
struct QueuedAnswer<'a> {
    granted: oneshot::Receiver<AnswerPermit>,
    budget: &'a AnswerBudget,
}

impl Drop for QueuedAnswer<'_> {
    fn drop(&mut self) {
        self.granted.close();
        self.budget.grant();
    }
}

impl AnswerShare {
    /// The share of one request, for all responses that it holds at once.
    #[must_use]
    pub fn of_one_request(self) -> Self {
        Self { request: self.request.or_else(|| Some(AnswerRequest::next())), ..self }
    }

    /// The share of a stored call: its response waits until the call's deadline.
    #[must_use]
    pub fn until_deadline(self) -> Self {
        Self { wait: RoomWait::UntilDeadline, ..self }
    }

    /// The share of a response that follows a refused one on its connection: the connection's other messages wait for it.
    #[must_use]
    pub fn behind_refused(self) -> Self {
        Self { wait: RoomWait::BehindRefused, ..self }
    }

    /// The share of a response that stays in its store while it waits.
    #[must_use]
    pub fn in_store(self, max: Duration) -> Self {
        Self { wait: RoomWait::InStore(max), ..self }
    }

    /// Whether the call's outcome has an owner that keeps it.
    pub const fn is_kept(&self) -> bool {
        matches!(self.wait, RoomWait::UntilDeadline)
    }

    /// Waits until a response may hold `bytes` in total. Cancel safe. Fails after a minute, unless it has other limits.
    pub async fn grow(&self, held: &mut AnswerPermit, bytes: usize) -> Result<(), GatewayFault> {
        if self.grow_now(held, bytes) {
            return Ok(());
        }
        // Boxed: few responses wait, and all have this future.
        Box::pin(self.wait(held, missing(held, bytes))).await?;
        held.looked = None;
        held.note_growth(bytes);
        Ok(())
    }

    async fn wait(&self, held: &mut AnswerPermit, more: usize) -> Result<(), GatewayFault> {
        let request = self.request_of(held);
        let (answer, granted) = WaitingAnswer::new(self, more, request, held.excess);
        {
            let mut counts = self.budget.0.counts.lock();
            counts.waiting.push(answer);
            self.budget.0.waiting.store(counts.waiting.len(), Ordering::Relaxed);
        }
        // Bytes may have been released before it was queued.
        self.budget.grant();
        let mut queued = QueuedAnswer { granted, budget: &self.budget };
        let granted = match self.wait.max() {
            Some(max) => tokio::time::timeout(max, &mut queued.granted).await.ok(),
            None => Some((&mut queued.granted).await),
        };
        let Some(Ok(permit)) = granted else {
            let counts = self.budget.0.counts.lock();
            let share = counts.shares.get(&self.principal).copied().unwrap_or_default();
            let full = excess(counts.all, share, more, counts.bytes_max, self.bytes_max, request).err();
            drop(counts);
            return Err(refused(full.unwrap_or(FullBound::Share), Executed::Yes));
        };
        held.merge(permit);
        Ok(())
    }

    /// As [`Self::grow`] without waiting; returns whether there were enough bytes.
    pub fn grow_now(&self, held: &mut AnswerPermit, bytes: usize) -> bool {
        let more = missing(held, bytes);
        let is_granted = more == 0 || self.take_now(held, more).is_ok();
        if is_granted {
            held.note_growth(bytes);
        }
        is_granted
    }

    /// Takes bytes for a text that is in memory already; fails if there are none.
    pub fn hold(&self, text: Bytes) -> Result<Bytes, GatewayFault> {
        self.try_hold(text).map_err(|full| refused(full, Executed::No))
    }

    /// As [`Self::hold`], for a response that waits if there are none; `None` then.
    pub fn hold_now(&self, text: Bytes) -> Option<Bytes> {
        self.try_hold(text).ok()
    }

    fn try_hold(&self, text: Bytes) -> Result<Bytes, FullBound> {
        let mut held = AnswerPermit::default();
        let more = missing(&held, text.len());
        if more > 0 {
            self.take_now(&mut held, more)?;
        }
        Ok(held.attach(text))
    }

    /// Takes bytes for a copy of a text that held them until now, even above a bound.
    pub fn rehold(&self, text: Bytes) -> Bytes {
        self.of_copy(text.len()).attach(text)
    }

    /// The permit of a copy of a text that held these bytes until now, even above a bound.
    pub fn of_copy(&self, bytes: usize) -> AnswerPermit {
        let mut held = AnswerPermit::default();
        self.take(&mut held, bytes);
        held
    }

    fn take(&self, held: &mut AnswerPermit, bytes: usize) {
        let more = missing(held, bytes);
        if more == 0 {
            return;
        }
        let request = self.request_of(held);
        let mut counts = self.budget.0.counts.lock();
        let BudgetCounts { bytes_max, all, shares, .. } = &mut *counts;
        let share = shares.entry(self.principal.clone()).or_default();
        // The copy may exceed the bounds as the replaced text did; until it is dropped, no other request may.
        let excess = Excess { share: share.is_over(more, self.bytes_max), whole: all.is_over(more, *bytes_max) };
        let excess = excess.beside(held.excess);
        take(all, share, more, excess, request);
        drop(counts);
        held.merge(AnswerPermit::new(&self.budget, &self.principal, more, excess, request));
    }

    fn request_of(&self, held: &AnswerPermit) -> AnswerRequest {
        held.request.or(self.request).unwrap_or_else(AnswerRequest::next)
    }

    fn take_now(&self, held: &mut AnswerPermit, more: usize) -> Result<(), FullBound> {
        let request = self.request_of(held);
        let mut counts = self.budget.0.counts.lock();
        let share = counts.shares.get(&self.principal).copied().unwrap_or_default();
        // A request that exceeds a bound already may finish.
        let is_over = share.is_exceeded_by(request) || counts.all.is_exceeded_by(request);
        let excess = match excess(counts.all, share, more, counts.bytes_max, self.bytes_max, request) {
            Err(full) if !is_over => return Err(full),
            Err(_) => Excess::default(),
            Ok(excess) if excess == Excess::default() && !is_over && counts.waiting.is_behind(&self.principal) => {
                return Err(FullBound::Share);
            }
            Ok(excess) => excess.beside(held.excess),
        };
        let BudgetCounts { all, shares, .. } = &mut *counts;
        take(all, shares.entry(self.principal.clone()).or_default(), more, excess, request);
        metrics::gauge!(metric::ANSWER_BYTES).set(all.bytes as f64);
        drop(counts);
        held.merge(AnswerPermit::new(&self.budget, &self.principal, more, excess, request));
        Ok(())
    }
}

/// The bytes to take besides those held: in steps, so that requests are rare.
const fn missing(held: &AnswerPermit, bytes: usize) -> usize {
    let step = if bytes <= STEP { FREE_BYTES } else { STEP };
    if bytes <= FREE_BYTES { 0 } else { bytes.next_multiple_of(step).saturating_sub(held.bytes) }
}

impl AnswerPermit {
    fn new(budget: &AnswerBudget, owner: &Principal, bytes: usize, excess: Excess, request: AnswerRequest) -> Self {
        let held = Some((budget.clone(), owner.clone()));
        Self { held, bytes, excess, request: Some(request), length: 0, waited_us: 0, looked: None }
    }

    fn note_growth(&mut self, bytes: usize) {
        let length = u16::try_from(bytes / FREE_BYTES).unwrap_or(u16::MAX);
        if self.bytes > 0 && (self.looked.is_none() || self.length != length) {
            (self.length, self.waited_us, self.looked) = (length, 0, Some(Instant::now()));
        }
    }

    /// Counts how long a reader without a deadline waits for more of a message; returns the time of its next look.
    pub fn look(&mut self) -> Option<Instant> {
        let (now, looked) = (Instant::now(), self.looked.as_mut()?);
        let since = now.duration_since(std::mem::replace(looked, now)).min(LOOK_EVERY);
        self.waited_us = self.waited_us.saturating_add(u32::try_from(since.as_micros()).unwrap_or(u32::MAX));
        Some(now + LOOK_EVERY.min(INCOMPLETE_MAX.saturating_sub(Duration::from_micros(self.waited_us.into()))))
    }

    /// Whether the message was incomplete for too long at the last look.
    pub fn is_stalled(&self) -> bool {
        self.looked.is_some() && Duration::from_micros(self.waited_us.into()) >= INCOMPLETE_MAX
    }

    fn merge(&mut self, mut other: Self) {
        self.held = self.held.take().or_else(|| other.held.take());
        self.request = self.request.or(other.request);
        self.bytes += std::mem::take(&mut other.bytes);
        let more = std::mem::take(&mut other.excess);
        self.excess = Excess { share: self.excess.share || more.share, whole: self.excess.whole || more.whole };
    }

    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Attaches the permit to the text, until its last buffer is dropped.
    pub fn attach(mut self, text: Bytes) -> Bytes {
        let excess = self.bytes.saturating_sub(text.len());
        if let Some((budget, principal)) = &self.held
            && excess > 0
        {
            budget.give_back(principal, excess, Excess::default());
            self.bytes -= excess;
        }
        if self.bytes == 0 && self.excess == Excess::default() {
            return text;
        }
        Bytes::from_owner(HeldText { text, _held: self })
    }
}

impl Drop for AnswerPermit {
    fn drop(&mut self) {
        if let Some((budget, principal)) = self.held.take()
            && (self.bytes > 0 || self.excess != Excess::default())
        {
            budget.give_back(&principal, self.bytes, self.excess);
        }
    }
}

struct HeldText {
    text: Bytes,
    _held: AnswerPermit,
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

#[cfg(test)]
mod tests;
