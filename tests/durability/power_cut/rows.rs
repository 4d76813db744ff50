//! The work of the recorded program, and the check of the rows that it acknowledged.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use taskgate::store::{DiskStore, TaskStore, WriteRole};
use taskgate::task::{
    Attempt, CallOrigin, ClientKind, Event, Phase, Principal, Task, TaskId, TaskKey, TaskTimes, TaskVisibility,
    Timestamp, transition,
};
use taskgate::wire::Payload;

const START: Timestamp = Timestamp::from_millis(1_000_000);
/// Rows that are written at the same time, so that a transaction holds several.
const AT_ONCE: u32 = 6;
const ROWS_PER_PROCESS: u32 = 84;

/// A row's first state follows from its number.
fn made(number: u32) -> Task {
    let key = TaskKey { owner: Principal::new("local"), id: TaskId::from_bits(u128::from(number).pow(3)) };
    let origin = CallOrigin { upstream: Arc::from("demo"), tool: Arc::from("slow"), client: ClientKind::Session };
    let times = TaskTimes {
        ttl: Duration::from_secs(60),
        keep_result_min: Duration::from_secs(10),
        poll_interval: Duration::from_secs(1),
    };
    let message = format!("number {number} ").repeat(usize::try_from(number % 7).unwrap() * 40);
    Task {
        phase: Phase::Working,
        status_message: Some(message.into()),
        ..Task::queued(key, TaskVisibility::Handle, origin, START, times)
    }
}

/// So does its last one.
fn done(number: u32) -> Task {
    let result = Payload::of(&format!("result {number} ").repeat(usize::try_from(number % 11).unwrap() * 100));
    let event = Event::Returned { attempt: Attempt::FIRST, result, is_error: false };
    transition(made(number), event, START).0
}

fn print(number: u32, what: &str) {
    let line = format!("row {number} {what}\n");
    // Past the harness, which would keep it for later.
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// The work of one process.
pub(crate) async fn work(store: &DiskStore, process: u32) {
    let numbers: Vec<u32> = (1..=ROWS_PER_PROCESS).map(|number| process * ROWS_PER_PROCESS + number).collect();
    for together in numbers.chunks(usize::try_from(AT_ONCE).unwrap()) {
        join_all(together.iter().map(|number| one(store, *number))).await;
    }
}

async fn one(store: &DiskStore, number: u32) {
    let revision = store.insert(&made(number)).await.unwrap();
    print(number, "made");
    if number.is_multiple_of(2) {
        store.replace(revision, WriteRole::Holder, &done(number)).await.unwrap();
        print(number, "done");
    }
    if number.is_multiple_of(5) {
        print(number, "going");
        store.remove(&made(number).key).await.unwrap();
        print(number, "gone");
    }
}

/// The last word that was printed about each row.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged(BTreeMap<u32, String>);

impl Acknowledged {
    pub(crate) fn record(&mut self, line: &str) {
        let (number, word) = line.strip_prefix("row ").and_then(|rest| rest.split_once(' ')).unwrap();
        self.0.insert(number.parse().unwrap(), word.to_owned());
    }
}

/// Each row that is not as it was acknowledged, in words.
pub(crate) async fn violations(store: &DiskStore, acknowledged: &Acknowledged) -> Vec<String> {
    let mut found = Vec::new();
    for (&number, word) in &acknowledged.0 {
        let row = match store.load(&made(number).key, START).await {
            Ok(row) => row.map(|row| (*row.task).clone()),
            Err(error) => {
                found.push(format!("row {number} cannot be read: {error}"));
                continue;
            }
        };
        let is_right = match (word.as_str(), &row) {
            ("made", Some(task)) => *task == made(number) || *task == done(number),
            ("done", Some(task)) => *task == done(number),
            ("going", Some(task)) => *task == made(number) || *task == done(number),
            ("going" | "gone", None) => true,
            _ => false,
        };
        if !is_right {
            found.push(format!("row {number} was {word}, and is {:?}", row.map(|task| task.phase)));
        }
    }
    let new = made(1_000_000);
    if let Err(error) = store.insert(&new).await {
        found.push(format!("nothing new can be written: {error}"));
    }
    found
}
