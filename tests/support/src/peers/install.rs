//! Where the real peers are installed, which versions they have, and how many tests may run them at a time.

use std::cell::RefCell;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::{env, io};

use parking_lot::{Condvar, Mutex};
use tokio::process::Command;

use super::prefork;

/// Names the folder that `tests/peers/setup.sh` filled. Without it there are no real peers.
const VARIABLE: &str = "TASKGATE_PEERS";
const NPM: &str = include_str!("../../../peers/package.json");
const PY_MODERN: &str = include_str!("../../../peers/requirements-modern.txt");
const PY_LEGACY: &str = include_str!("../../../peers/requirements-legacy.txt");
const CARGO: &str = include_str!("../../../peers/rmcp_login/Cargo.toml");

/// How many tests of a process may have peers at a time. Their interpreters are idle most of the time, so these are
/// more than the smallest machine has cores; the time limits of peers allow for so many.
const TESTS_MAX: usize = 4;

static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

thread_local! {
    /// A test that looks for peers again goes on in its turn: a second one could be waited for by all that have the first.
    static TURN: RefCell<Weak<RunPermit>> = const { RefCell::new(Weak::new()) };
}

/// One of the [`TESTS_MAX`] places, until it is dropped.
#[derive(Debug)]
struct RunPermit;

impl RunPermit {
    /// Waits until a place is free; this blocks the thread, which is the test's own.
    fn take() -> Arc<Self> {
        TURN.with_borrow_mut(|last| {
            last.upgrade().unwrap_or_else(|| {
                let mut running = RUNNING.lock();
                ENDED.wait_while(&mut running, |running| *running >= TESTS_MAX);
                *running += 1;
                let turn = Arc::new(Self);
                *last = Arc::downgrade(&turn);
                turn
            })
        })
    }
}

impl Drop for RunPermit {
    fn drop(&mut self) {
        *RUNNING.lock() -= 1;
        ENDED.notify_one();
    }
}

/// The installed peers, for as long as a test runs them. As a path it is the folder that they are in.
#[derive(Clone, Debug)]
pub struct Peers {
    dir: PathBuf,
    _turn: Arc<RunPermit>,
}

impl Deref for Peers {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.dir
    }
}

impl Peers {
    /// `None` if no peers are asked for: then `what` is skipped with a message. Waits while too many other tests of
    /// this process have peers.
    ///
    /// # Panics
    /// If the folder is named but is not there.
    pub fn find(what: &str) -> Option<Self> {
        let dir = Self::dir(what)?;
        let dir = Path::new(&dir).canonicalize();
        let dir = dir.unwrap_or_else(|error| panic!("{VARIABLE}: {error}; run tests/peers/setup.sh first"));
        Some(Self { dir, _turn: RunPermit::take() })
    }

    /// Whether peers are asked for, the system's own programs among them. If not, `what` is skipped with a message.
    pub fn are_asked_for(what: &str) -> bool {
        Self::dir(what).is_some()
    }

    fn dir(what: &str) -> Option<OsString> {
        let dir = env::var_os(VARIABLE);
        if dir.is_none() {
            // Written past the test harness, which prints a test's output only if it fails.
            let _ = io::Write::write_fmt(
                &mut io::stderr(),
                format_args!("SKIPPED: {what}; {VARIABLE} does not say where the real peers are\n"),
            );
        }
        dir
    }

    /// Runs `program`, a path inside the folder, in that folder.
    pub fn command<S: AsRef<str>>(&self, program: &str, arguments: impl IntoIterator<Item = S>) -> Command {
        let words = self.words(program, arguments);
        let mut command = Command::new(&words[0]);
        command.current_dir(&self.dir).args(&words[1..]).env("PYTHONUNBUFFERED", "1");
        command
    }

    /// The words of that command. A Python program runs in a fork of a process that has imported its packages.
    pub fn words<S: AsRef<str>>(&self, program: &str, arguments: impl IntoIterator<Item = S>) -> Vec<String> {
        let arguments: Vec<String> = arguments.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let executable = self.dir.join(program);
        let words = match arguments.first() {
            Some(script) if program.ends_with("bin/python") => prefork::words(&self.dir, &executable, script),
            _ => vec![executable.display().to_string()],
        };
        [words, arguments].concat()
    }
}

/// A program of the system, which the distribution's package manager installed.
pub fn program(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&folders).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A list of pinned packages.
#[derive(Clone, Copy, Debug)]
pub enum Pins {
    Npm,
    /// Python packages that know 2026-07-28.
    PyModern,
    PyLegacy,
    /// Crates of `tests/peers/rmcp_login`.
    Cargo,
}

impl Pins {
    /// The version that `package` is pinned to.
    ///
    /// # Panics
    /// If the list does not name it.
    pub fn version(self, package: &str) -> &'static str {
        let found = match self {
            Self::Npm => found(NPM, &format!("    \"{package}\": \""), '"'),
            Self::PyModern => found(PY_MODERN, &format!("{package}=="), '\n'),
            Self::PyLegacy => found(PY_LEGACY, &format!("{package}=="), '\n'),
            Self::Cargo => found(CARGO, &format!("{package} = {{ version = \"="), '"'),
        };
        found.unwrap_or_else(|| panic!("{package} is not pinned in {self:?}"))
    }
}

/// The text behind `start` at the beginning of a line, up to `end`.
fn found(list: &'static str, start: &str, end: char) -> Option<&'static str> {
    list.lines().find_map(|line| line.strip_prefix(start)?.split(end).next())
}

#[test]
fn a_test_has_one_turn_and_others_wait_for_it() {
    let first = RunPermit::take();
    assert!(Arc::ptr_eq(&first, &RunPermit::take()), "it is the same thread");
    let others: Vec<_> = (0..3 * TESTS_MAX)
        .map(|_| {
            std::thread::spawn(|| {
                let _turn = RunPermit::take();
                let running = *RUNNING.lock();
                std::thread::yield_now();
                running
            })
        })
        .collect();
    let most = others.into_iter().map(|other| other.join().unwrap()).max();
    assert!(most.is_some_and(|most| (2..=TESTS_MAX).contains(&most)), "{most:?} at a time");
    drop(first);
    // Other tests of this process have their permits for a while.
    let is_free = || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        *RUNNING.lock() == 0
    };
    assert!((0..3_000).any(|_| is_free()), "a permit is not given back");
}
