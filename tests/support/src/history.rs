//! The facts about clients, the upstream and the gateway's process, on one clock, and the laws that they must keep: L1 to L8.
//!
//! Clients record their answers, the upstream its requests and answers. [`violations`] reads both and reports each broken
//! law. It knows nothing of HTTP.

#![allow(clippy::wildcard_enum_match_arm, reason = "a law looks at the facts that it is about, and at no others")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Reasons for which a task may fail although its answer has arrived (L8).
const ALLOWED_REASONS: [&str; 4] = ["deadline_exceeded", "ttl_expired", "store_full", "result_too_large"];

/// How long a call that was sent before the acknowledgement of a cancel may be on its way to the server's ledger. The
/// engine's scenarios show the rest: no call is begun after the cancel's commit.
const ON_THE_WAY: Duration = Duration::from_millis(500);
/// The longest time from the end of the calls of a gateway that drains until its process is seen to have ended: clients are
/// notified and sessions are closed, on a busy machine.
const LEAVING_MAX: Duration = Duration::from_secs(3);
/// Task times are cut to whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// One thing that happened. Times are counted from the history's beginning.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A client is about to make a call that may reach the upstream this often.
    Sends {
        nonce: String,
        owner: String,
        calls_max: usize,
    },
    /// It was given a handle.
    Handle {
        nonce: String,
        task: String,
        expires: Duration,
    },
    /// Its refusal said that nothing was sent upstream.
    Refused {
        nonce: String,
    },
    /// It asked for a task at that time, and saw this.
    Polled {
        task: String,
        asked: Duration,
        seen: PollResult,
    },
    /// It is about to answer a question of the task; the answer was accepted.
    Answers {
        task: String,
        value: String,
    },
    Answered {
        task: String,
        value: String,
    },
    /// Its cancel was accepted.
    Cancelled {
        task: String,
    },
    /// Bytes that it read.
    Read {
        owner: String,
        text: String,
    },
    /// A call reached the upstream.
    Called {
        nonce: String,
    },
    /// The upstream asks a question, until it needs no answer any more.
    Asks {
        nonce: String,
    },
    StopsAsking {
        nonce: String,
    },
    /// An answer reached the upstream.
    Delivered {
        nonce: String,
        value: String,
    },
    /// A reader got the complete answer of the call.
    Returned {
        nonce: String,
        payload: String,
    },
    /// A gateway serves; it was killed or ended. Of several each says so for itself.
    Starts,
    Ends,
    /// A gateway was asked to end: its drain begins.
    Leaves,
    /// The store takes no writes, or takes them again.
    StoreFails,
    StoreHeals,
}

/// The result of a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollResult {
    /// There is no such task.
    Missing,
    Open,
    /// The result or error, byte for byte, and when the task last changed.
    Settled {
        status: String,
        payload: String,
        updated: Duration,
    },
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub at: Duration,
    pub fact: Fact,
}

/// Facts in the order in which they were recorded.
#[derive(Debug)]
pub struct History {
    began: Instant,
    /// The wall clock at the beginning, since 1970: the gateway's times are compared with it.
    wall: Duration,
    entries: Mutex<Vec<Entry>>,
}

impl History {
    pub fn begin(wall: Duration) -> Self {
        Self { began: Instant::now(), wall, entries: Mutex::default() }
    }

    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// A time of the wall clock, counted from the beginning.
    pub fn place(&self, wall: Duration) -> Duration {
        wall.saturating_sub(self.wall)
    }

    pub fn record(&self, fact: Fact) {
        let mut entries = self.entries.lock();
        entries.push(Entry { at: self.began.elapsed(), fact });
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().clone()
    }
}

/// A broken law, and its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub law: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.law, self.what)
    }
}

/// The time limits of the laws.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest that the gateway may serve until a task that it gave a handle for is settled (L3).
    pub settle_max: Duration,
    /// How long before the process ended an accepted answer may have been on its way upstream, and is then not sent again:
    /// at most once is promised first (L5).
    pub on_its_way_max: Duration,
}

/// Each law that a finished history breaks.
pub fn violations(entries: &[Entry], bounds: Bounds) -> Vec<Violation> {
    let mut replay = Replay::new(entries, bounds);
    replay.handles_last();
    replay.results_stay();
    replay.tasks_settle();
    replay.calls_happen_once();
    replay.answers_arrive_once();
    replay.cancels_hold();
    replay.owners_are_alone();
    replay.outcomes_are_kept();
    replay.found
}

/// The facts about the call of a violation, a line each.
pub fn story(entries: &[Entry], violation: &Violation) -> String {
    let handles = entries.iter().filter_map(|entry| {
        let Fact::Handle { nonce, task, .. } = &entry.fact else { return None };
        Some((nonce.as_str(), task.as_str()))
    });
    let handles: Vec<_> = handles.collect();
    let mut sent = entries
        .iter()
        .filter_map(|entry| if let Fact::Sends { nonce, .. } = &entry.fact { Some(nonce.as_str()) } else { None });
    let of_task = handles.iter().find(|(_, task)| violation.what.contains(task)).map(|(nonce, _)| *nonce);
    let Some(nonce) = of_task.or_else(|| sent.find(|nonce| violation.what.contains(nonce))) else {
        return String::new();
    };
    let task = handles.iter().find(|(of, _)| *of == nonce).map_or("no task", |(_, task)| *task);
    let shown = entries.iter().filter(|entry| !matches!(entry.fact, Fact::Read { .. }));
    let lines = shown.map(|entry| format!("    {:?} {:?}", entry.at, entry.fact));
    let is_about = |line: &String| line.contains(nonce) || line.contains(task) || !line.contains('{');
    lines.filter(is_about).collect::<Vec<_>>().join("\n")
}

/// A handle that a client holds.
struct HeldHandle<'a> {
    nonce: &'a str,
    since: Duration,
    expires: Duration,
    /// The times of the request and of the answer, and the result.
    polls: Vec<(Duration, Duration, &'a PollResult)>,
}

impl HeldHandle<'_> {
    /// The first poll that showed it settled.
    fn settled(&self) -> Option<(Duration, &PollResult)> {
        let mut settled = self.polls.iter().filter(|(_, _, seen)| matches!(seen, PollResult::Settled { .. }));
        settled.next().map(|(_, at, seen)| (*at, *seen))
    }
}

struct Replay<'a> {
    entries: &'a [Entry],
    bounds: Bounds,
    handles: BTreeMap<&'a str, HeldHandle<'a>>,
    found: Vec<Violation>,
}

impl<'a> Replay<'a> {
    fn new(entries: &'a [Entry], bounds: Bounds) -> Self {
        let mut handles: BTreeMap<&str, HeldHandle<'_>> = BTreeMap::new();
        for Entry { at, fact } in entries {
            if let Fact::Handle { nonce, task, expires } = fact {
                handles.entry(task).or_insert(HeldHandle { nonce, since: *at, expires: *expires, polls: Vec::new() });
            } else if let Fact::Polled { task, asked, seen } = fact
                && let Some(held) = handles.get_mut(task.as_str())
            {
                held.polls.push((*asked, *at, seen));
            }
        }
        Self { entries, bounds, handles, found: Vec::new() }
    }

    fn report(&mut self, law: &'static str, what: String) {
        self.found.push(Violation { law, what });
    }

    fn end(&self) -> Duration {
        self.entries.last().map_or(Duration::ZERO, |entry| entry.at)
    }

    /// How long at least one gateway served between two moments.
    fn served(&self, from: Duration, to: Duration) -> Duration {
        let (mut served, mut since, mut serving) = (Duration::ZERO, None, 0_usize);
        for Entry { at, fact } in self.entries {
            if matches!(fact, Fact::Starts) {
                serving += 1;
                since.get_or_insert(*at);
            } else if matches!(fact, Fact::Ends) {
                serving = serving.saturating_sub(1);
                if serving == 0 {
                    served += overlap((since.take().unwrap_or(*at), *at), (from, to));
                }
            }
        }
        served + since.map_or(Duration::ZERO, |since| overlap((since, to.max(since)), (from, to)))
    }

    /// Whether each gateway served, and the store wrote, all the time between two moments.
    fn ran_without_fault(&self, from: Duration, to: Duration) -> bool {
        let (mut is_failing, mut ended) = (false, 0_usize);
        for Entry { at, fact } in self.entries.iter().filter(|entry| entry.at <= to) {
            match fact {
                Fact::Starts if *at < from => ended = ended.saturating_sub(1),
                Fact::Ends if *at < from => ended += 1,
                Fact::StoreFails => is_failing = true,
                Fact::StoreHeals => {
                    if *at >= from {
                        return false;
                    }
                    is_failing = false;
                }
                Fact::Ends if *at >= from => return false,
                _ => (),
            }
        }
        !is_failing && ended == 0 && !self.was_leaving(to) && self.served(from, to) + ROUNDING >= to - from
    }

    /// Whether a gateway may have ended its calls at the end of its drain, while its process had not ended yet.
    fn was_leaving(&self, at: Duration) -> bool {
        let mut leaving = 0_usize;
        for Entry { at: then, fact } in self.entries.iter().filter(|entry| entry.at <= at + LEAVING_MAX) {
            match fact {
                Fact::Leaves if *then <= at => leaving += 1,
                Fact::Ends if *then <= at => leaving = leaving.saturating_sub(1),
                Fact::Ends if leaving > 0 => return true,
                _ => (),
            }
        }
        false
    }

    /// L1.
    fn handles_last(&mut self) {
        let mut found = Vec::new();
        for (task, held) in &self.handles {
            let is_gone = |(asked, at, seen): &&(Duration, Duration, &PollResult)| {
                **seen == PollResult::Missing && *asked >= held.since && *at < held.expires
            };
            if let Some((asked, ..)) = held.polls.iter().find(is_gone) {
                found.push(format!(
                    "{task} ({}) was not found at {asked:?}, its handle is of {:?}",
                    held.nonce, held.since
                ));
            }
        }
        found.into_iter().for_each(|what| self.report("L1", what));
    }

    /// L2.
    fn results_stay(&mut self) {
        let mut found = Vec::new();
        for (task, held) in &self.handles {
            let Some((shown, first)) = held.settled() else { continue };
            for (asked, at, seen) in held.polls.iter().filter(|(asked, ..)| *asked >= shown) {
                let is_same = match (first, seen) {
                    (
                        PollResult::Settled { status: a, payload: b, .. },
                        PollResult::Settled { status: c, payload: d, .. },
                    ) => (a, b) == (c, d),
                    (_, PollResult::Missing) => *at >= held.expires,
                    (_, _) => false,
                };
                if !is_same {
                    found.push(format!("{task} ({}) was {first:?}, and {seen:?} at {asked:?}", held.nonce));
                }
            }
        }
        found.into_iter().for_each(|what| self.report("L2", what));
    }

    /// L3.
    fn tasks_settle(&mut self) {
        let end = self.end();
        let mut found = Vec::new();
        for (task, held) in &self.handles {
            let until = held.settled().map_or(end, |(at, _)| at).min(held.expires);
            let served = self.served(held.since, until);
            if served > self.bounds.settle_max {
                found.push(format!("{task} ({}) was not settled after {served:?} of service", held.nonce));
            }
        }
        found.into_iter().for_each(|what| self.report("L3", what));
    }

    /// L4.
    fn calls_happen_once(&mut self) {
        let mut calls: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut allowed, mut refused) = (BTreeMap::new(), BTreeSet::new());
        for Entry { fact, .. } in self.entries {
            match fact {
                Fact::Called { nonce } => *calls.entry(nonce).or_default() += 1,
                Fact::Sends { nonce, calls_max, .. } => drop(allowed.insert(nonce.as_str(), *calls_max)),
                Fact::Refused { nonce } => drop(refused.insert(nonce.as_str())),
                _ => (),
            }
        }
        // A client that reads this may repeat the call.
        for held in self.handles.values() {
            if let Some((_, PollResult::Settled { payload, .. })) = held.settled()
                && payload.contains(r#""executed":"no""#)
            {
                refused.insert(held.nonce);
            }
        }
        for (nonce, count) in calls {
            let max = if refused.contains(nonce) { 0 } else { allowed.get(nonce).copied().unwrap_or_default() };
            if count > max {
                self.report("L4", format!("{nonce} reached the upstream {count} times, {max} at most were promised"));
            }
        }
    }

    /// L5.
    fn answers_arrive_once(&mut self) {
        let (mut given, mut accepted) = (BTreeSet::new(), Vec::new());
        let (mut delivered, mut asking) = (BTreeMap::<&str, usize>::new(), BTreeSet::new());
        let is_at_an_end = |at: Duration| {
            let near = |end: &Entry| end.at >= at && end.at - at <= self.bounds.on_its_way_max;
            self.entries.iter().any(|entry| matches!(entry.fact, Fact::Ends) && near(entry))
        };
        for Entry { at, fact } in self.entries {
            match fact {
                Fact::Answers { value, .. } => drop(given.insert(value.as_str())),
                Fact::Answered { .. } if is_at_an_end(*at) => (),
                Fact::Answered { task, value } => accepted.push((task.as_str(), value.as_str())),
                Fact::Delivered { value, .. } => *delivered.entry(value).or_default() += 1,
                Fact::Asks { nonce } => drop(asking.insert(nonce.as_str())),
                Fact::StopsAsking { nonce } => drop(asking.remove(nonce.as_str())),
                _ => (),
            }
        }
        for (value, count) in &delivered {
            if *count > 1 {
                self.report("L5", format!("{value} was delivered {count} times"));
            }
            if !given.contains(value) {
                self.report("L5", format!("{value} was delivered, and no client gave it"));
            }
        }
        for (task, value) in accepted {
            let nonce = self.handles.get(task).map(|held| held.nonce);
            if nonce.is_some_and(|nonce| asking.contains(nonce)) && !delivered.contains_key(value) {
                self.report("L5", format!("{value} was accepted for {task}, the upstream still asks and never got it"));
            }
        }
    }

    /// L6.
    fn cancels_hold(&mut self) {
        let mut found = Vec::new();
        for Entry { at, fact } in self.entries {
            let Fact::Cancelled { task } = fact else { continue };
            let Some(held) = self.handles.get(task.as_str()) else { continue };
            let is_called = |entry: &&Entry| {
                entry.at > *at + ON_THE_WAY && matches!(&entry.fact, Fact::Called { nonce } if nonce == held.nonce)
            };
            if let Some(late) = self.entries.iter().find(is_called) {
                found.push(format!("{} was called at {:?}, cancelled at {at:?}", held.nonce, late.at));
            }
            for (asked, _, seen) in held.polls.iter().filter(|(asked, ..)| asked >= at) {
                let is_final = match seen {
                    PollResult::Settled { status, updated, .. } => status == "cancelled" || *updated <= *at + ROUNDING,
                    PollResult::Missing => true,
                    PollResult::Open => false,
                };
                if !is_final {
                    found.push(format!("{task} was cancelled at {at:?}, and {seen:?} at {asked:?}"));
                }
            }
        }
        found.into_iter().for_each(|what| self.report("L6", what));
    }

    /// L7.
    fn owners_are_alone(&mut self) {
        let mut nonces: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut found = Vec::new();
        for Entry { fact, .. } in self.entries {
            if let Fact::Sends { nonce, owner, .. } = fact {
                nonces.entry(owner).or_default().insert(nonce);
            }
        }
        for Entry { at, fact } in self.entries {
            let Fact::Read { owner, text } = fact else { continue };
            let others = nonces.iter().filter(|(of, _)| **of != owner);
            let foreign = others.flat_map(|(of, nonces)| nonces.iter().map(move |nonce| (nonce, of)));
            if let Some((nonce, of)) = foreign.into_iter().find(|(nonce, _)| text.contains(**nonce)) {
                found.push(format!("{owner} read {nonce} of {of} at {at:?}"));
            }
        }
        found.into_iter().for_each(|what| self.report("L7", what));
    }

    /// L8.
    fn outcomes_are_kept(&mut self) {
        let mut returned: BTreeMap<&str, Vec<(Duration, &str)>> = BTreeMap::new();
        for Entry { at, fact } in self.entries {
            if let Fact::Returned { nonce, payload } = fact {
                returned.entry(nonce).or_default().push((*at, payload));
            }
        }
        let mut found = Vec::new();
        for (task, held) in &self.handles {
            let Some((_, PollResult::Settled { status, payload, updated })) = held.settled() else { continue };
            let answers = returned.get(held.nonce).map_or(&[][..], Vec::as_slice);
            if status == "completed" && !answers.iter().any(|(_, answer)| payload.contains(answer)) {
                found.push(format!("{task} ({}) shows an answer that the upstream never sent: {payload}", held.nonce));
            }
            // A failure before the answer came, or while it could not be stored, had another cause.
            let is_allowed = ALLOWED_REASONS.iter().any(|reason| payload.contains(reason));
            let in_time = |(sent, _): &&(Duration, &str)| updated >= sent && self.ran_without_fault(*sent, *updated);
            if status == "failed"
                && !is_allowed
                && let Some((sent, _)) = answers.iter().find(in_time)
            {
                found.push(format!("{task} ({}) failed, though it was answered at {sent:?}", held.nonce));
            }
        }
        found.into_iter().for_each(|what| self.report("L8", what));
    }
}

fn overlap(one: (Duration, Duration), other: (Duration, Duration)) -> Duration {
    one.1.min(other.1).saturating_sub(one.0.max(other.0))
}
