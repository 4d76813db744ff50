//! Counts an upstream's calls in progress, by their fate if the gateway ends now. A call counts until its runner ends,
//! with or without a permit. Held calls are in no store, so operators see them here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use slab::Slab;
use tokio::time::Instant;

use super::CallPermitsInner;
use crate::task::Principal;

/// In milliseconds. Operators read the time since a call's last message in whole seconds.
const SIGN_STEP: u32 = 1_000;

/// The fate of a call if the gateway ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProspect {
    /// Its client waits for the response, which would be lost.
    Held,
    /// A task that the next process cannot resume.
    Lost,
    Repeated,
    Resumed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    pub held: usize,
    pub lost: usize,
    pub repeated: usize,
    pub resumed: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCallEntry {
    pub tool: Arc<str>,
    pub owner: Principal,
    pub began: Instant,
    /// When the upstream last sent a message about it, rounded down by less than a second.
    pub last_sign: Option<Instant>,
}

#[derive(Debug)]
struct CallRecord {
    call: HeldCallEntry,
    is_held: bool,
}

#[derive(Debug)]
pub(super) struct CallsInProgress {
    since: Instant,
    counts: [AtomicUsize; 4],
    records: Mutex<CallRecords>,
}

#[derive(Debug, Default)]
struct CallRecords {
    calls: Slab<CallRecord>,
    /// The upstream's last message about calls that have ended.
    last_sign: Option<Instant>,
}

impl Default for CallsInProgress {
    fn default() -> Self {
        Self { since: Instant::now(), counts: Default::default(), records: Mutex::default() }
    }
}

impl CallsInProgress {
    /// The low bits of the milliseconds until then: enough to compare two times of one call, and small in its futures.
    fn millis(&self, at: Instant) -> u32 {
        let millis = at.saturating_duration_since(self.since).as_millis() & u128::from(u32::MAX);
        u32::try_from(millis).unwrap_or_default()
    }

    pub(super) fn counts(&self) -> CallCounts {
        let of = |prospect| self.of(prospect).load(Ordering::Relaxed);
        CallCounts {
            held: of(CallProspect::Held),
            lost: of(CallProspect::Lost),
            repeated: of(CallProspect::Repeated),
            resumed: of(CallProspect::Resumed),
        }
    }

    pub(super) fn has_calls_begun_by(&self, time: Instant) -> bool {
        self.records.lock().calls.iter().any(|(_, record)| record.call.began <= time)
    }

    pub(super) fn held(&self) -> Vec<HeldCallEntry> {
        let records = self.records.lock();
        let held = records.calls.iter().filter(|(_, record)| record.is_held);
        held.map(|(_, record)| record.call.clone()).collect()
    }

    /// The time since the upstream's last message about any call, or since the oldest call in progress began.
    pub(super) fn silence(&self) -> Option<Duration> {
        let records = self.records.lock();
        let calls = || records.calls.iter().map(|(_, record)| &record.call);
        let began = calls().map(|call| call.began).min()?;
        let signs = calls().map(|call| call.last_sign).chain([records.last_sign]).flatten();
        Some(signs.fold(began, Instant::max).elapsed())
    }

    const fn of(&self, prospect: CallProspect) -> &AtomicUsize {
        let [held, lost, repeated, resumed] = &self.counts;
        match prospect {
            CallProspect::Held => held,
            CallProspect::Lost => lost,
            CallProspect::Repeated => repeated,
            CallProspect::Resumed => resumed,
        }
    }
}

#[must_use = "dropping it ends the count"]
#[derive(Debug)]
pub struct CallInProgress {
    shared: Arc<CallPermitsInner>,
    prospect: CallProspect,
    index: usize,
    /// When the record's sign was set; at first, a step before the call.
    last_sign: u32,
}

impl CallInProgress {
    pub(super) fn new(shared: Arc<CallPermitsInner>, tool: Arc<str>, owner: Principal) -> Self {
        let (prospect, all) = (CallProspect::Held, &shared.in_progress);
        let began = Instant::now();
        let last_sign = all.millis(began).wrapping_sub(SIGN_STEP);
        let record = CallRecord { call: HeldCallEntry { tool, owner, began, last_sign: None }, is_held: true };
        all.of(prospect).fetch_add(1, Ordering::Relaxed);
        let index = all.records.lock().calls.insert(record);
        Self { shared, prospect, index, last_sign }
    }

    /// Records a message of the upstream. Takes the list's lock once a second at most: a stream has many parts.
    pub fn note_sign(&mut self, at: Instant) {
        let now = self.shared.in_progress.millis(at);
        if now.wrapping_sub(self.last_sign) >= SIGN_STEP {
            self.last_sign = now;
            self.with_record(|record| record.call.last_sign = Some(at));
        }
    }

    /// Recounts the call under a changed prospect. A task is no longer held.
    pub fn now(&mut self, prospect: CallProspect) {
        self.with_record(|record| record.is_held = prospect == CallProspect::Held);
        self.count_as(prospect);
    }

    fn with_record(&self, change: impl FnOnce(&mut CallRecord)) {
        if let Some(record) = self.shared.in_progress.records.lock().calls.get_mut(self.index) {
            change(record);
        }
    }

    /// Recounts a held call by whether its client can return for the response, even to a later process.
    pub fn now_held(&mut self, has_place: bool) {
        self.count_as(if has_place { CallProspect::Resumed } else { CallProspect::Held });
    }

    fn count_as(&mut self, prospect: CallProspect) {
        if prospect != self.prospect {
            let all = &self.shared.in_progress;
            all.of(self.prospect).fetch_sub(1, Ordering::Relaxed);
            all.of(prospect).fetch_add(1, Ordering::Relaxed);
            self.prospect = prospect;
        }
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        let all = &self.shared.in_progress;
        all.of(self.prospect).fetch_sub(1, Ordering::Relaxed);
        let mut records = all.records.lock();
        let ended = records.calls.remove(self.index);
        records.last_sign = records.last_sign.max(ended.call.last_sign);
    }
}
