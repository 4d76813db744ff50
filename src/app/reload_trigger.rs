//! Triggers a reload on SIGHUP, and when a file of the configuration changes. Watches folders: a file is often replaced
//! by another. Several changes cause one reload, unchanged contents none.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::descriptors::ConnectionCapacity;
use super::files::{FileUse, ReportedWarnings, configured};
use super::reload::{self, Fingerprint, ReloadSummary};
use super::service_manager;
use crate::config::Config;
use crate::failpoint;
use crate::metric;
use crate::system::{self, SignalStream};
use crate::waits::or_pending;

/// How long changes are collected: an editor writes more than once.
const SETTLE: Duration = Duration::from_millis(200);

/// Attempts to read a file that changes during each reading.
const READ_TRIES: usize = 5;

/// The least time between two reloads (F66).
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReloadCause {
    Asked,
    Changed,
}

#[derive(Debug)]
pub(super) struct ReloadTrigger {
    /// `None` if the command line is the configuration.
    file: Option<PathBuf>,
    /// Kept alive; `None` if folders cannot be watched.
    watcher: Option<RecommendedWatcher>,
    /// Folders that are watched or could not be, each with device and inode: another folder may replace it under the same name.
    watched: Vec<(PathBuf, Option<(u64, u64)>)>,
    /// Triggers a reload. A full channel already holds a trigger.
    changed: mpsc::Sender<()>,
    seen: SeenFiles,
    warned: ReportedWarnings,
    connections: ConnectionCapacity,
    wait: ReloadWait,
}

#[derive(Debug, PartialEq)]
enum SeenFiles {
    /// Both are compared: files may change between the two readings, and only the fingerprint has the certificates.
    Usable(Box<Config>, Fingerprint),
    /// The mistakes may be in files that the configuration names.
    Mistaken(String, Fingerprint),
}

#[derive(Debug)]
struct ReloadWait {
    /// `None` without a configuration file: then SIGHUP ends the process.
    hangups: Option<SignalStream>,
    changes: mpsc::Receiver<()>,
    /// A received trigger and its time, until `next` returns it.
    received: Option<(ReloadCause, Instant)>,
    last: Option<Instant>,
}

impl ReloadTrigger {
    /// Starts watching. With a file, SIGHUP does not end the process from now on.
    pub(super) fn new(
        file: Option<PathBuf>,
        config: &Config,
        warned: ReportedWarnings,
        connections: ConnectionCapacity,
    ) -> anyhow::Result<Self> {
        let hangups = file.as_ref().map(|_| system::hangups()).transpose().context("cannot listen for signals")?;
        let (sender, changes) = mpsc::channel(1);
        let changed = sender.clone();
        let notice = move |event: notify::Result<notify::Event>| {
            // Reading a file does not change it.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                let _ = sender.try_send(());
            }
        };
        let watcher = match &file {
            Some(_) => notify::recommended_watcher(notice)
                .inspect_err(|error| tracing::warn!(%error, "files are not watched; send SIGHUP after a change"))
                .ok(),
            None => None,
        };
        let seen = file.as_deref().map_or_else(Fingerprint::default, |file| reload::fingerprint(file, config));
        let wait = ReloadWait { hangups, changes, received: None, last: None };
        let seen = SeenFiles::Usable(Box::new(config.clone()), seen);
        let mut reloads = Self { file, watcher, watched: Vec::new(), changed, seen, warned, connections, wait };
        let files = reloads.file.as_deref().map(|file| reload::files(file, config));
        reloads.watch(&files.unwrap_or_default());
        Ok(reloads)
    }

    /// Watches the folders of the configuration's files, and stops watching other folders.
    fn watch_only(&mut self, files: &[PathBuf]) {
        let folders = self.watch(files);
        let Some(watcher) = &mut self.watcher else { return };
        self.watched.retain(|(folder, _)| {
            let is_used = folders.contains(folder);
            if !is_used {
                // Fails if the folder was deleted.
                let _ = watcher.unwatch(folder);
            }
            is_used
        });
    }

    /// Watches the folders of these files, too; returns the folders.
    fn watch(&mut self, files: &[PathBuf]) -> Vec<PathBuf> {
        let folders: Vec<_> = files.iter().flat_map(|file| folders(file)).collect();
        let Some(watcher) = &mut self.watcher else { return folders };
        for folder in &folders {
            let identity = fs::metadata(folder).ok().map(|folder| system::identity(&folder));
            match self.watched.iter().position(|(known, _)| known == folder) {
                Some(at) if self.watched[at].1 == identity => continue,
                Some(at) => {
                    // Fails if the former folder was deleted, and its watch with it.
                    let _ = watcher.unwatch(folder);
                    self.watched.swap_remove(at);
                }
                None => (),
            }
            match watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    // A change between the reading of its files and now was not noticed.
                    let _ = self.changed.try_send(());
                }
                // Once per folder: in a watched folder with the log, each warning would cause the next.
                Err(error) => {
                    tracing::warn!(%error, folder = %folder.display(), "changes in this folder are not noticed")
                }
            }
            self.watched.push((folder.clone(), identity));
        }
        folders
    }

    /// Waits for a trigger. Cancel safe: a trigger received by an earlier wait is not lost.
    pub(super) async fn next(&mut self) -> ReloadCause {
        self.wait.next().await
    }

    /// Reloads, or keeps the configuration and logs why. Returns whether it was applied; `None` without anything new.
    pub(super) fn carry_out(
        &mut self,
        why: ReloadCause,
        reload: impl FnOnce(Config) -> anyhow::Result<ReloadSummary>,
    ) -> Option<bool> {
        let file = self.file.clone()?;
        match read_unchanged(&file, |file| configured(file, FileUse::Reload)) {
            Ok(mut read) => {
                self.watch_only(&reload::files(&file, &read.config));
                let fingerprint = reload::fingerprint(&file, &read.config);
                read.shortage = self.connections.keep(&mut read.config);
                if !self.is_news(why, SeenFiles::Usable(Box::new(read.config.clone()), fingerprint)) {
                    return None;
                }
                // Not earlier: the log may be in a watched folder.
                self.warned.log(&read);
                service_manager::notify_reloading();
                failpoint::hit("reloading");
                let is_applied = log_outcome(reload(read.config));
                service_manager::notify_ready();
                Some(is_applied)
            }
            Err(mistakes) => {
                self.watch(std::slice::from_ref(&file));
                let seen = SeenFiles::Mistaken(mistakes.to_string(), reload::fingerprint_of(&file));
                if !self.is_news(why, seen) {
                    return None;
                }
                count("rejected");
                tracing::error!(%mistakes, "the configuration has mistakes; the one in force is kept");
                Some(false)
            }
        }
    }

    fn is_news(&mut self, why: ReloadCause, seen: SeenFiles) -> bool {
        let is_other = seen != self.seen;
        self.seen = seen;
        is_other || why == ReloadCause::Asked
    }
}

impl ReloadWait {
    async fn next(&mut self) -> ReloadCause {
        let (mut why, at) = match self.received {
            Some(received) => received,
            None => {
                let why = tokio::select! {
                    Some(()) = signal(&mut self.hangups) => ReloadCause::Asked,
                    Some(()) = self.changes.recv() => ReloadCause::Changed,
                    else => std::future::pending().await,
                };
                *self.received.insert((why, Instant::now()))
            }
        };
        let settled = at + SETTLE;
        tokio::time::sleep_until(self.last.map_or(settled, |last| settled.max(last + INTERVAL))).await;
        // Triggers received meanwhile belong to this reload. Nothing is awaited from here on.
        while self.changes.try_recv().is_ok() {}
        if let Some(hangups) = &mut self.hangups {
            let more = std::future::poll_fn(|context| std::task::Poll::Ready(hangups.poll_recv(context)));
            if matches!(more.await, std::task::Poll::Ready(Some(()))) {
                why = ReloadCause::Asked;
            }
        }
        self.last = Some(Instant::now());
        self.received = None;
        why
    }
}

pub(super) async fn signal(stream: &mut Option<SignalStream>) -> Option<()> {
    or_pending(stream.as_mut().map(SignalStream::recv)).await
}

/// The folder of a file, and the folder of the file that it is a link to.
fn folders(file: &Path) -> impl Iterator<Item = PathBuf> {
    let own = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or_else(|| Path::new("."));
    let target = file.canonicalize().ok();
    let target = target.as_deref().and_then(Path::parent).map(Path::to_owned);
    [Some(own.canonicalize().unwrap_or_else(|_| own.to_owned())), target].into_iter().flatten()
}

/// Reads the file, again if it is written meanwhile: half of a file may be a mistake, or mean something else.
fn read_unchanged<T>(file: &Path, mut read: impl FnMut(&Path) -> T) -> T {
    let mut tries = 1;
    loop {
        let before = reload::fingerprint_of(file);
        let found = read(file);
        if reload::fingerprint_of(file) == before || tries == READ_TRIES {
            return found;
        }
        tries += 1;
    }
}

fn log_outcome(outcome: anyhow::Result<ReloadSummary>) -> bool {
    match outcome {
        Ok(changes) => {
            count(if changes.is_none() { "unchanged" } else { "applied" });
            for key in &changes.need_restart {
                tracing::warn!(key, "changed; takes effect at the next start");
            }
            let (opened, kept, retired) = (changes.opened, changes.kept, changes.retired);
            tracing::info!(opened, kept, retired, "the configuration was read again");
            true
        }
        Err(error) => {
            count("rejected");
            let error = format!("{error:#}");
            tracing::error!(error, "the configuration cannot be used; the one in force is kept");
            false
        }
    }
}

fn count(outcome: &'static str) {
    metrics::counter!(metric::CONFIG_RELOADS, "outcome" => outcome).increment(1);
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_file_that_is_written_while_it_is_read_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskgate.toml");
        for (writes, expected) in [(0, "0"), (1, "1"), (99, "4")] {
            fs::write(&file, "0").unwrap();
            let mut written = 0;
            let read = read_unchanged(&file, |file| {
                let text = fs::read_to_string(file).unwrap();
                if written < writes {
                    written += 1;
                    fs::write(file, written.to_string()).unwrap();
                }
                text
            });
            assert_eq!(read, expected, "{writes} writes");
        }
    }

    /// As if the file changed after it was read and before its fingerprint was taken.
    #[tokio::test]
    async fn a_change_between_the_reading_and_the_watching_is_applied_and_an_unchanged_file_is_not() {
        const NEXT: &str = "http://127.0.0.1:1/next";
        for (former, expected) in [("http://127.0.0.1:1/former", vec![NEXT.to_owned()]), (NEXT, Vec::new())] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("taskgate.toml");
            // More connections than any process may have: the number in force differs from the file's.
            let head = "[limits]\nconnections_max = 9_000_000\n";
            let write = |url| fs::write(&file, format!("{head}[upstreams.up]\nurl = \"{url}\"\n")).unwrap();
            write(former);
            let mut read = configured(&file, FileUse::Reload).unwrap().config;
            write(NEXT);
            let (connections, _) = ConnectionCapacity::provide(&mut read);
            let warned = ReportedWarnings::default();
            let mut reloads = ReloadTrigger::new(Some(file.clone()), &read, warned, connections).unwrap();
            let mut applied = Vec::new();
            for _ in 0..2 {
                let why = timeout(Duration::from_secs(60), reloads.next()).await.unwrap();
                reloads.carry_out(why, |config| {
                    applied.push(config.upstreams[0].server.http().unwrap().url.to_string());
                    Ok(ReloadSummary::default())
                });
                write(NEXT);
            }
            assert_eq!(applied, expected, "{former}");
        }
    }

    /// Kubernetes replaces the folder that a link leads to.
    #[tokio::test]
    async fn f111_a_folder_that_a_link_no_longer_leads_to_is_not_watched() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let file = root.join("taskgate.toml");
        let lead_to = |version: &str| {
            let target = root.join(version);
            fs::create_dir_all(&target).unwrap();
            let text = format!("[upstreams.up]\nurl = \"http://127.0.0.1:1/{version}\"\n");
            fs::write(target.join("taskgate.toml"), text).unwrap();
            let _ = fs::remove_file(&file);
            std::os::unix::fs::symlink(target.join("taskgate.toml"), &file).unwrap();
        };
        lead_to("one");
        let mut read = configured(&file, FileUse::Reload).unwrap().config;
        let (connections, _) = ConnectionCapacity::provide(&mut read);
        let warned = ReportedWarnings::default();
        let mut reloads = ReloadTrigger::new(Some(file.clone()), &read, warned, connections).unwrap();
        for version in ["two", "three"] {
            lead_to(version);
            assert_eq!(reloads.carry_out(ReloadCause::Changed, |_| Ok(ReloadSummary::default())), Some(true));
            let watched: Vec<_> = reloads.watched.iter().map(|(folder, _)| folder.clone()).collect();
            assert_eq!(watched, [root.clone(), root.join(version)], "{version}");
        }
    }

    const MOMENT: Duration = Duration::from_millis(50);

    /// A cancelled wait leaves its trigger, without delay, to the next one.
    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_given_up_leaves_its_reason_to_the_next_one() {
        let (sender, changes) = mpsc::channel(1);
        let hangups = Some(system::hangups().unwrap());
        let mut wait = ReloadWait { hangups, changes, received: None, last: None };
        for pause in [SETTLE, INTERVAL] {
            let begun = Instant::now();
            sender.try_send(()).unwrap();
            for _ in 0..3 {
                assert!(timeout(MOMENT, wait.next()).await.is_err(), "it settles");
            }
            let received = timeout(INTERVAL, wait.next()).await;
            assert_eq!((received, begun.elapsed()), (Ok(ReloadCause::Changed), pause));
        }
        assert!(timeout(INTERVAL * 9, wait.next()).await.is_err(), "each once");

        // A later trigger does not turn an operator's request into another kind.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        let sent = Instant::now();
        while wait.received.is_none() {
            // Of paused time: seconds by the clock.
            assert!(sent.elapsed() < Duration::from_secs(36_000), "the signal comes");
            assert!(timeout(MOMENT, wait.next()).await.is_err(), "it settles");
        }
        sender.try_send(()).unwrap();
        assert_eq!(wait.next().await, ReloadCause::Asked);
        assert!(timeout(INTERVAL * 9, wait.next()).await.is_err(), "each once");
    }
}
