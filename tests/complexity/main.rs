//! No cost grows faster than its input: each public entry is measured in instructions, never timed.
//!
//! Read `families` first, the table of measurements: a new public entry is one more row there. This program runs itself
//! under valgrind, which counts; `bench` has the measured code, `count` reads valgrind's output. Without valgrind
//! nothing is counted, and the run says so, unless `TASKGATE_PEERS` is set: then it is an error.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]
#![allow(clippy::async_yields_async, reason = "the prepared act is counted later")]

mod bench;
mod bodies;
mod count;
mod families;
mod parts;
mod rest;

use support::scripted as upstream;

use std::collections::BTreeMap;
use std::io;

use families::{FAMILIES, Family, Growth};

/// Names the families that a process is to run, each on a line; or a part of the names that the test is to look at.
const WANTED: &str = "TASKGATE_FAMILIES";
/// Processes that count at the same time.
const AT_ONCE: usize = 2;

/// How often a family is counted before its cost is said to grow too fast; the least count of each size is used. Other
/// work of the gateway on the measured thread (a timer that is due, a list that is fetched again) only ever adds.
const TRIES: usize = 3;

/// Unit costs may differ by so much between small and large inputs.
const RATIO_MAX: u64 = 3;

/// The result of a family: the instructions at each of its sizes.
type Counts = [u64; 3];

#[test]
fn no_cost_grows_faster_than_its_input() {
    if !count::is_there() {
        assert!(std::env::var_os("TASKGATE_PEERS").is_none(), "valgrind is missing: `make setup` installs it");
        // Written past the harness, which prints a test's output only if it fails.
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("SKIPPED: valgrind is missing\n"));
        return;
    }
    let wanted = std::env::var(WANTED).unwrap_or_default();
    let chosen: Vec<&Family> = FAMILIES.iter().filter(|family| family.name.contains(&wanted)).collect();
    let mut counts = measured(&chosen);
    for _ in 1..TRIES {
        let again: Vec<&Family> =
            chosen.iter().filter(|family| !is_proportionate(family, counts[family.name])).copied().collect();
        for (name, counted) in measured(&again) {
            let known = counts[name];
            counts.insert(name, std::array::from_fn(|size| known[size].min(counted[size])));
        }
    }
    let mut wrong = Vec::new();
    let mut report = String::new();
    for family in chosen {
        let counted = counts[family.name];
        let line = line_of(family, counted);
        report.push_str(&line);
        if !is_proportionate(family, counted) {
            wrong.push(line);
        }
    }
    let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{report}"));
    assert!(wrong.is_empty(), "the cost of these grows faster than their input:\n{}", wrong.concat());
}

/// The counts of families, measured by several processes.
fn measured(families: &[&Family]) -> BTreeMap<&'static str, Counts> {
    let shares: Vec<Vec<&Family>> =
        (0..AT_ONCE).map(|share| families.iter().skip(share).step_by(AT_ONCE).copied().collect()).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> = shares.iter().map(|share| scope.spawn(|| run(share))).collect();
        running.into_iter().flat_map(|share| share.join().unwrap()).collect()
    })
}

/// Runs families under valgrind in one process.
fn run(share: &[&Family]) -> BTreeMap<&'static str, Counts> {
    if share.is_empty() {
        return BTreeMap::new();
    }
    let names: Vec<&str> = share.iter().map(|family| family.name).collect();
    let counted = count::counted(|command| {
        command.args(["the_families_at_work", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(WANTED, names.join("\n"));
    });
    assert_eq!(counted.len(), share.len() * 4, "each family is measured once for practice and at three sizes");
    share.iter().zip(counted.chunks(4)).map(|(family, four)| (family.name, [four[1], four[2], four[3]])).collect()
}

#[test]
#[ignore = "started by the test above, under valgrind"]
fn the_families_at_work() {
    let wanted = std::env::var(WANTED).unwrap_or_default();
    let wanted: Vec<&str> = wanted.lines().collect();
    let bench = bench::Bench::start();
    for name in wanted {
        let family = FAMILIES.iter().find(|family| family.name == name).unwrap();
        for size in [family.sizes[0], family.sizes[0], family.sizes[1], family.sizes[2]] {
            bench.measure(family, size);
        }
    }
}

/// The cost of one more item between the two larger sizes may be [`RATIO_MAX`] times the cost between the two smaller,
/// which may be too small by the noise. As much as the smallest input takes as a whole is allowed on top: one-time
/// costs, such as a table that grows.
fn is_proportionate(family: &Family, [small, middle, large]: Counts) -> bool {
    let [n, m, l] = family.sizes.map(|size| size as u64);
    match family.growth {
        Growth::Linear => {
            let first = (middle + family.noise).saturating_sub(small) / (m - n);
            large.saturating_sub(middle) <= RATIO_MAX * first * (l - m) + small
        }
        Growth::None => middle.max(large) <= RATIO_MAX * small + family.noise,
    }
}

fn line_of(family: &Family, [small, middle, large]: Counts) -> String {
    let [n, m, l] = family.sizes.map(|size| size as u64);
    let (first, second) = (middle.saturating_sub(small) / (m - n), large.saturating_sub(middle) / (l - m));
    format!(
        "{:<32} {n:>6} {m:>6} {l:>6}: {:>7.2} {:>7.2} {:>8.2} million instructions, {first} and {second} for one more\n",
        family.name,
        small as f64 / 1e6,
        middle as f64 / 1e6,
        large as f64 / 1e6,
    )
}

#[test]
fn the_judgement_tells_squares_from_lines() {
    let family =
        |growth| Family { name: "x", sizes: [10, 100, 1_000], growth, noise: 0, prepare: |_, _| unreachable!() };
    let costs = |cost: fn(u64) -> u64| [10, 100, 1_000].map(cost);
    for (growth, cost, fits) in [
        (Growth::Linear, (|n| 50_000 + 100 * n) as fn(u64) -> u64, true),
        (Growth::Linear, |n| 100 * n * u64::from(n.ilog2()), true),
        (Growth::Linear, |n| 10_000 + 1_000 * n + 10 * n * n, false),
        (Growth::Linear, |n| n * n, false),
        (Growth::None, |n| 50_000 + n, true),
        (Growth::None, |n| 5_000 + 100 * n, false),
    ] {
        assert_eq!(is_proportionate(&family(growth), costs(cost)), fits, "{:?} {:?}", growth, costs(cost));
    }
}
