//! Bounds the bytes of answers under way, for each principal and in all.
//!
//! An answer above [`FREE_BYTES`] takes bytes as it is read and keeps them until the last buffer that holds its text is dropped:
//! the permit is attached to that buffer ([`AnswerPermit::attach`]). Where there are none left, the reader waits, so the server
//! waits too. One answer of each principal may exceed its share, and one answer in all may exceed the whole: so of several
//! answers that are half read, one always reaches its end.

mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, PrincipalLimitTable, Reason};
use waiting::{WaitingAnswer, WaitingAnswers};

/// Bytes that an answer has without a permit: bounded by how many answers there are.
pub const FREE_BYTES: usize = 64 << 10;
/// By so much a large answer grows.
const STEP: usize = 1 << 20;
/// How long an answer waits for bytes where no store keeps it.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// New requests are refused while an answer has waited for so long: its principal, or all together, read too slowly.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// The bytes of all principals. Clones are one.
#[derive(Clone, Debug)]
pub struct AnswerBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    counts: Mutex<BudgetCounts>,
    /// Answers that wait; read without the lock.
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct BudgetCounts {
    bytes_max: usize,
    all: BytesInUse,
    shares: HashMap<Principal, BytesInUse>,
    waiting: WaitingAnswers,
}

/// Bytes of one bound that answers hold.
#[derive(Clone, Copy, Debug, Default)]
struct BytesInUse {
    bytes: usize,
    /// Whether an answer was let over the bound and is still there.
    is_exceeded: bool,
}

impl BytesInUse {
    const fn has_room(self, more: usize, bytes_max: usize) -> bool {
        self.bytes.saturating_add(more) <= bytes_max
    }
}

/// Which bound an answer exceeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Excess {
    share: bool,
    whole: bool,
}

/// The bound that leaves no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FullBound {
    Share,
    Whole,
}

/// Why a request is refused before anything is done.
#[derive(Clone, Copy, Debug)]
pub struct BudgetRefusal {
    pub fault: GatewayFault,
    /// The bound that is reached.
    pub bytes_max: usize,
}

impl BudgetRefusal {
    /// The key that says the bound.
    #[must_use]
    pub fn key(&self) -> &'static str {
        if self.fault.reason == Reason::AnswersFull { "answer_bytes_max" } else { "answer_bytes_per_principal_max" }
    }
}

/// The bytes of one principal.
#[derive(Clone, Debug)]
pub struct AnswerShare {
    budget: AnswerBudget,
    principal: Principal,
    bytes_max: usize,
    /// How long an answer waits for bytes; `None` where its call has a deadline and an owner that keeps its outcome.
    wait_max: Option<Duration>,
}

/// The bytes that one answer holds; given back when dropped.
#[derive(Debug, Default)]
pub struct AnswerPermit {
    held: Option<(AnswerBudget, Principal)>,
    bytes: usize,
    excess: Excess,
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
    /// Bounds all principals together from now on.
    pub fn resize(&self, bytes_max: usize) {
        self.0.counts.lock().bytes_max = bytes_max;
        self.grant();
    }

    /// The share of a principal: at most `bytes_max` bytes.
    #[must_use]
    pub fn share(&self, principal: &Principal, bytes_max: usize) -> AnswerShare {
        AnswerShare { budget: self.clone(), principal: principal.clone(), bytes_max, wait_max: Some(WAIT_MAX) }
    }

    /// Why a new request of a principal is refused: an answer waits for bytes, and none became free for a moment. `share_max`
    /// is the bound of the principal's share.
    #[must_use]
    pub fn refusal(&self, principal: &Principal, share_max: impl FnOnce() -> usize) -> Option<BudgetRefusal> {
        if self.0.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let stalled = Instant::now().checked_sub(STALLED_AFTER)?;
        let counts = self.0.counts.lock();
        let full = counts.waiting.stalled_since(stalled, principal)?;
        let bytes_max = match full {
            FullBound::Share => share_max(),
            // A small answer needs no bytes, and this principal has no large one under way.
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
            counts.all.bytes -= bytes;
            counts.all.is_exceeded &= !excess.whole;
            if let Some(share) = counts.shares.get_mut(principal) {
                share.bytes -= bytes;
                share.is_exceeded &= !excess.share;
                if share.bytes == 0 && !share.is_exceeded {
                    counts.shares.remove(principal);
                }
            }
            metrics::gauge!(metric::ANSWER_BYTES).set(counts.all.bytes as f64);
        }
        if self.0.waiting.load(Ordering::Relaxed) > 0 {
            self.grant();
        }
    }

    /// Hands bytes to answers that wait, in their order.
    fn grant(&self) {
        // A permit whose answer is gone is dropped without the lock, which its drop takes.
        let mut unwanted = Vec::new();
        let mut counts = self.0.counts.lock();
        let BudgetCounts { bytes_max, all, shares, waiting } = &mut *counts;
        let bytes_max = *bytes_max;
        waiting.grant(
            |answer| {
                let share = shares.get(&answer.principal).copied().unwrap_or_default();
                let excess = excess(*all, share, answer.more, (bytes_max, answer.share_max))?;
                take(all, shares.entry(answer.principal.clone()).or_default(), answer.more, excess);
                let held = Some((self.clone(), answer.principal.clone()));
                Ok(AnswerPermit { held, bytes: answer.more, excess })
            },
            &mut unwanted,
        );
        self.0.waiting.store(waiting.len(), Ordering::Relaxed);
        metrics::gauge!(metric::ANSWER_BYTES).set(all.bytes as f64);
        drop(counts);
        drop(unwanted);
    }
}

/// Which bounds an answer exceeds with more bytes.
///
/// # Errors
/// The bound that another answer exceeds already.
const fn excess(
    all: BytesInUse,
    share: BytesInUse,
    more: usize,
    (bytes_max, share_max): (usize, usize),
) -> Result<Excess, FullBound> {
    let excess = Excess { share: !share.has_room(more, share_max), whole: !all.has_room(more, bytes_max) };
    if excess.share && share.is_exceeded {
        return Err(FullBound::Share);
    }
    if excess.whole && all.is_exceeded {
        return Err(FullBound::Whole);
    }
    Ok(excess)
}

const fn take(all: &mut BytesInUse, share: &mut BytesInUse, more: usize, excess: Excess) {
    all.bytes += more;
    all.is_exceeded |= excess.whole;
    share.bytes += more;
    share.is_exceeded |= excess.share;
}

fn refused(full: FullBound, executed: Executed) -> GatewayFault {
    let (reason, label) = match full {
        FullBound::Share => (Reason::TooMuchUnread, "too_much_unread"),
        FullBound::Whole => (Reason::AnswersFull, "answers_full"),
    };
    metrics::counter!(metric::ANSWERS_REFUSED, "reason" => label).increment(1);
    GatewayFault::new(reason, executed)
}

impl AnswerShare {
    /// The share of a call that a store keeps: its answer waits until the call's deadline.
    #[must_use]
    pub fn until_deadline(self) -> Self {
        Self { wait_max: None, ..self }
    }

    /// Waits until there are bytes for an answer that has `bytes` by now. Cancel safe.
    ///
    /// # Errors
    /// `TooMuchUnread` or `AnswersFull` after a minute, unless the answer waits for its call's deadline.
    pub async fn grow(&self, held: &mut AnswerPermit, bytes: usize) -> Result<(), GatewayFault> {
        let more = missing(held, bytes);
        if more == 0 || self.take_now(held, more).is_ok() {
            return Ok(());
        }
        // On the heap: few answers wait, and all have this future.
        Box::pin(self.wait(held, more)).await
    }

    async fn wait(&self, held: &mut AnswerPermit, more: usize) -> Result<(), GatewayFault> {
        let (answer, granted) = WaitingAnswer::new(self.principal.clone(), more, self.bytes_max);
        {
            let mut counts = self.budget.0.counts.lock();
            counts.waiting.push(answer);
            self.budget.0.waiting.store(counts.waiting.len(), Ordering::Relaxed);
        }
        // Bytes may have become free before it stood in the queue.
        self.budget.grant();
        let granted = match self.wait_max {
            Some(max) => tokio::time::timeout(max, granted).await.ok(),
            None => Some(granted.await),
        };
        let Some(Ok(permit)) = granted else {
            let counts = self.budget.0.counts.lock();
            let share = counts.shares.get(&self.principal).copied().unwrap_or_default();
            let full = excess(counts.all, share, more, (counts.bytes_max, self.bytes_max)).err();
            drop(counts);
            return Err(refused(full.unwrap_or(FullBound::Share), Executed::Yes));
        };
        held.merge(permit);
        Ok(())
    }

    /// The same without waiting; whether there are bytes for it.
    pub fn grow_now(&self, held: &mut AnswerPermit, bytes: usize) -> bool {
        let more = missing(held, bytes);
        more == 0 || self.take_now(held, more).is_ok()
    }

    /// Takes bytes for a text that is there already.
    ///
    /// # Errors
    /// `TooMuchUnread` or `AnswersFull` where there are none.
    pub fn hold(&self, text: Bytes) -> Result<Bytes, GatewayFault> {
        let mut held = AnswerPermit::default();
        let more = missing(&held, text.len());
        if more > 0 {
            self.take_now(&mut held, more).map_err(|full| refused(full, Executed::No))?;
        }
        Ok(held.attach(text))
    }

    /// Takes bytes for a copy of a text that has had them until now, whether or not there are any.
    #[must_use]
    pub fn rehold(&self, text: Bytes) -> Bytes {
        let more = missing(&AnswerPermit::default(), text.len());
        if more == 0 {
            return text;
        }
        let mut counts = self.budget.0.counts.lock();
        let BudgetCounts { all, shares, .. } = &mut *counts;
        take(all, shares.entry(self.principal.clone()).or_default(), more, Excess::default());
        drop(counts);
        let held = Some((self.budget.clone(), self.principal.clone()));
        AnswerPermit { held, bytes: more, excess: Excess::default() }.attach(text)
    }

    fn take_now(&self, held: &mut AnswerPermit, more: usize) -> Result<(), FullBound> {
        let mut counts = self.budget.0.counts.lock();
        let share = counts.shares.get(&self.principal).copied().unwrap_or_default();
        let room = (counts.bytes_max, self.bytes_max);
        let is_over = held.excess != Excess::default();
        let excess = match excess(counts.all, share, more, room) {
            // An answer that exceeds a bound already goes on to its end.
            Err(full) if !is_over => return Err(full),
            Err(_) => Excess::default(),
            Ok(excess) if excess == Excess::default() && !is_over && counts.waiting.is_behind(&self.principal) => {
                return Err(FullBound::Share);
            }
            Ok(excess) => excess,
        };
        let BudgetCounts { all, shares, .. } = &mut *counts;
        take(all, shares.entry(self.principal.clone()).or_default(), more, excess);
        metrics::gauge!(metric::ANSWER_BYTES).set(all.bytes as f64);
        drop(counts);
        let permit = AnswerPermit { held: Some((self.budget.clone(), self.principal.clone())), bytes: more, excess };
        held.merge(permit);
        Ok(())
    }
}

/// How many bytes an answer takes beyond those that it holds: in steps, so that it asks seldom.
const fn missing(held: &AnswerPermit, bytes: usize) -> usize {
    let step = if bytes <= STEP { FREE_BYTES } else { STEP };
    if bytes <= FREE_BYTES { 0 } else { bytes.next_multiple_of(step).saturating_sub(held.bytes) }
}

impl AnswerPermit {
    fn merge(&mut self, mut other: Self) {
        self.held = self.held.take().or_else(|| other.held.take());
        self.bytes += std::mem::take(&mut other.bytes);
        let more = std::mem::take(&mut other.excess);
        self.excess = Excess { share: self.excess.share || more.share, whole: self.excess.whole || more.whole };
    }

    /// How many bytes it holds.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The text, which holds the bytes until its last buffer is dropped.
    #[must_use]
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

/// A text, and the bytes that it has of the budget.
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
