//! Power cuts, replayed: every write and sync of a working store is recorded, and the disk's possible content at some
//! moment is rebuilt, with any part of the writes that were not synced by then. A store opened on it has every row that
//! was acknowledged before that moment.
//!
//! `TASKGATE_POWER_CUT_IMAGES` says how many moments are tried, `TASKGATE_SEED` which.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a run says which moments it tried, or why none")]

mod disk;
mod rows;
mod trace;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use disk::Disk;
use rows::{Acknowledged, violations};
use taskgate::store::{DiskSettings, DiskStore};
use trace::{Event, read_trace};

const IMAGES: usize = 40;
/// As many show that a store which syncs nothing is found out.
const IMAGES_WITHOUT_SYNC: usize = 10;

const FOLDER: &str = "TASKGATE_POWER_CUT_FOLDER";
const WITHOUT_SYNC: &str = "TASKGATE_POWER_CUT_WITHOUT_SYNC";

/// Numbers that look random and follow from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }
}

fn settings(folder: &Path) -> DiskSettings {
    let mut settings = DiskSettings::new(folder.to_owned(), 1 << 30);
    settings.is_ephemeral = true;
    settings
}

/// Not a test: the program that is recorded. It prints each acknowledgement at once.
#[test]
#[ignore = "the others start it"]
fn the_store_at_work() {
    let folder = std::env::var_os(FOLDER).expect("only the other tests start this one");
    let settings = settings(Path::new(&folder));
    let settings = if std::env::var_os(WITHOUT_SYNC).is_some() { settings.without_sync() } else { settings };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Closing brings the log into the file, so there are checkpoints among the moments.
        for process in 0..3 {
            let store = DiskStore::open(settings.clone()).await.unwrap();
            rows::work(&store, process).await;
            if process < 2 {
                store.close().await;
            }
        }
    });
}

/// Whether the recorder is there. `make test` sets `TASKGATE_PEERS`, and then nothing may be left out.
fn can_record() -> bool {
    let there = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = there.is_ok_and(|status| status.success());
    assert!(there || std::env::var_os("TASKGATE_PEERS").is_none(), "strace is missing");
    if !there {
        eprintln!("left out: strace is missing");
    }
    there
}

/// The program's writes and syncs of its store, and its lines.
fn record(is_synced: bool) -> Vec<Event> {
    let place = tempfile::tempdir().unwrap();
    let (folder, log) = (place.path().join("one/two/data"), place.path().join("trace"));
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-xx", "-s", "10000000", "-o"]).arg(&log);
    command.args(["-e", "trace=pwrite64,write,lseek,fsync,fdatasync,ftruncate,unlink,unlinkat"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["power_cut::the_store_at_work", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, &folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !is_synced {
        command.env(WITHOUT_SYNC, "1");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    read_trace(&std::fs::read_to_string(log).unwrap(), &folder)
}

/// Cuts the power at `images` moments. Returns the lost rows, a line each.
fn cut(events: &[Event], images: usize, dice: &mut Dice) -> Vec<String> {
    let mut moments: Vec<usize> = (0..images).map(|_| dice.below(events.len() + 1)).collect();
    moments.sort_unstable();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut disk, mut acknowledged, mut at, mut lost) = (Disk::default(), Acknowledged::default(), 0, Vec::new());
    for moment in moments {
        for event in &events[at..moment] {
            if let Event::Printed(line) = event {
                acknowledged.record(line);
            }
            disk.happen(event);
        }
        at = moment;
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("data");
        disk.image(&folder, dice);
        let found = runtime.block_on(async {
            match DiskStore::open(settings(&folder)).await {
                Ok(store) => {
                    let found = violations(&store, &acknowledged).await;
                    store.close().await;
                    found
                }
                Err(error) => vec![format!("it does not open: {error}")],
            }
        });
        lost.extend(found.into_iter().map(|what| format!("moment {moment}: {what}")));
    }
    lost
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[allow(clippy::disallowed_methods, reason = "each run tries other moments, and says which")]
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number("TASKGATE_SEED").unwrap_or_else(|| u64::try_from(now.as_nanos() % (1 << 48)).unwrap());
    println!("TASKGATE_SEED={seed}");
    seed
}

/// Printed lines, writes, and syncs.
fn count(events: &[Event]) -> [usize; 3] {
    let count = |is_meant: fn(&Event) -> bool| events.iter().filter(|event| is_meant(event)).count();
    [
        count(|event| matches!(event, Event::Printed(_))),
        count(|event| matches!(event, Event::Wrote { .. })),
        count(|event| matches!(event, Event::Synced { .. })),
    ]
}

/// F55, L1, L2.
#[test]
fn f55_every_acknowledged_row_survives_a_power_cut() {
    if !can_record() {
        return;
    }
    let events = record(true);
    let [printed, wrote, synced] = count(&events);
    assert!(printed > 300 && wrote > 300 && synced > 100, "{printed} lines, {wrote} writes, {synced} syncs");
    // The images know of one folder; those that it lies in were made, too, and a promise is worth nothing without them.
    let promised = events.iter().position(|event| matches!(event, Event::Printed(_))).unwrap();
    let above = |event: &&Event| matches!(event, Event::SyncedAbove(_));
    let named: Vec<&Event> = events[..promised].iter().filter(above).collect();
    assert_eq!(named.len(), 3, "the entries of one, two and data: {named:?}");
    let images = number("TASKGATE_POWER_CUT_IMAGES").map_or(IMAGES, |images| usize::try_from(images).unwrap());
    let seed = seed();
    let lost = cut(&events, images, &mut Dice(seed));
    assert_eq!(lost, Vec::<String>::new(), "TASKGATE_SEED={seed}");
}

/// The test of the test: it misses rows that were acknowledged without a sync.
#[test]
fn a_store_that_does_not_sync_is_detected() {
    if !can_record() {
        return;
    }
    let events = record(false);
    let [printed, wrote, synced] = count(&events);
    assert!(printed > 300 && wrote > 300 && synced < 20, "{printed} lines, {wrote} writes, {synced} syncs");
    let lost = cut(&events, IMAGES_WITHOUT_SYNC, &mut Dice(seed()));
    assert!(lost.len() > IMAGES_WITHOUT_SYNC / 2, "only {lost:?}");
}
