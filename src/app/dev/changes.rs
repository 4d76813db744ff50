//! Watches the files of a program under development. Watches each folder by itself: a tree may hold tens of thousands
//! of unedited files. Changes within 200 ms are one.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::ModifyKind;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::file_name;

/// How long no further change may come: editors and version control write many files.
const SETTLE: Duration = Duration::from_millis(200);
/// The longest wait while changes continue.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// The most watched folders; the system limits them, too.
const FOLDERS_MAX: usize = 4_096;
const FILES_MAX: usize = 64;
/// ChangeNotices that are not read yet. Further ones are dropped: these suffice for a restart.
const NOTICES_MAX: usize = 256;

/// Folders of files that tools generate.
const IGNORED_FOLDERS: &str =
    ".git .hg .jj .svn .idea .mypy_cache .pytest_cache .ruff_cache .tox .venv __pycache__ node_modules target";
/// The endings of files that people write. The program itself may write others: restarts for these would never end.
const SOURCES: &str = "bash c cc cjs clj cpp cs cts dart ex exs fs go h hpp java jl js jsx kt lua mjs mts php pl py pyi rb rs scala sh sql swift toml ts tsx yaml yml";

/// The folder of the first argument that is a file, and the program itself if it is a path. Without such an argument the
/// working directory, unless the program alone or a program in that directory is the server; others are interpreters.
pub(super) fn watched_by(command: &[String]) -> Vec<PathBuf> {
    let mut words = command.iter().map(Path::new);
    let program = words.next().filter(|program| program.components().count() > 1 && program.is_file());
    let script = words.find(|word| word.is_file());
    let folder = match script.map(|script| script.parent()) {
        Some(Some(folder)) if folder != Path::new("") => Some(folder.to_owned()),
        Some(_) => Some(PathBuf::from(".")),
        None => {
            let is_server = program.is_some_and(|program| command.len() == 1 || is_in_working_directory(program));
            (!is_server).then(|| PathBuf::from("."))
        }
    };
    program.map(Path::to_owned).into_iter().chain(folder).collect()
}

/// Follows links: a virtual environment's interpreter is elsewhere.
fn is_in_working_directory(program: &Path) -> bool {
    let both = program.canonicalize().ok().zip(Path::new(".").canonicalize().ok());
    both.is_some_and(|(program, folder)| program.starts_with(folder))
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::app) struct ChangedFiles(BTreeSet<PathBuf>);

impl ChangedFiles {
    /// Replaces new folders by the files in them that people write: the program may make folders itself.
    fn enter_folders(&mut self, roots: &[PathBuf]) {
        let is_new = |path: &PathBuf| path.is_dir() && !roots.contains(path);
        let mut waiting: Vec<PathBuf> = self.0.iter().filter(|path| is_new(path)).cloned().collect();
        self.0.retain(|path| !waiting.contains(path));
        let mut seen = waiting.len();
        while let Some(folder) = waiting.pop() {
            for path in folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()) {
                let is_ignored = path.file_name().is_some_and(is_ignored_folder);
                if path.is_dir() && !path.is_symlink() {
                    seen += 1;
                    waiting.extend((!is_ignored && seen < FOLDERS_MAX).then_some(path));
                } else if is_source(&path) && self.0.len() < FILES_MAX {
                    self.0.insert(path);
                }
            }
        }
    }
}

impl fmt::Display for ChangedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut files = self.0.iter();
        write!(f, "{}", files.next().map(|file| file_name(file)).unwrap_or_default())?;
        match files.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[derive(Debug)]
pub(super) struct FileChanges {
    roots: Vec<PathBuf>,
    watcher: RecommendedWatcher,
    folders: usize,
    notices: ChangeNotices,
}

#[derive(Debug)]
struct ChangeNotices {
    received: mpsc::Receiver<PathBuf>,
    /// The files so far, with the times of the first and the last notice.
    pending: Option<(ChangedFiles, Instant, Instant)>,
}

impl fmt::Display for FileChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roots: Vec<_> = self.roots.iter().map(|root| root.display().to_string()).collect();
        write!(f, "{}", roots.join(", "))?;
        if self.folders >= FOLDERS_MAX {
            write!(f, " (only {FOLDERS_MAX} folders of it; name fewer by --watch)")?;
        }
        Ok(())
    }
}

impl FileChanges {
    /// Watches files and folders, but not the gateway's own folder.
    pub(super) fn new(paths: &[PathBuf], own_folder: &Path) -> notify::Result<Self> {
        let canonical =
            |path: &PathBuf| path.canonicalize().map_err(|error| notify::Error::io(error).add_path(path.clone()));
        let roots = paths.iter().map(canonical).collect::<notify::Result<Vec<_>>>()?;
        let filter = ChangeFilter {
            roots: roots.clone(),
            // The folder may not exist yet.
            own_folder: std::path::absolute(own_folder).unwrap_or_else(|_| own_folder.to_owned()),
        };
        let (sender, received) = mpsc::channel(NOTICES_MAX);
        let notice = move |event: notify::Result<notify::Event>| {
            let Ok(event) = event else { return };
            if matches!(event.kind, EventKind::Access(_)) {
                return;
            }
            let is_placed = matches!(event.kind, EventKind::Create(_) | EventKind::Modify(ModifyKind::Name(_)));
            for path in event.paths.into_iter().filter(|path| filter.takes(path, is_placed)) {
                let _ = sender.try_send(path);
            }
        };
        let watcher = notify::recommended_watcher(notice)?;
        let mut changes = Self { roots, watcher, folders: 0, notices: ChangeNotices { received, pending: None } };
        changes.watch()?;
        Ok(changes)
    }

    pub(super) async fn next(&mut self) -> ChangedFiles {
        loop {
            let mut changed = self.notices.next().await;
            // Watches new folders. A folder that was removed meanwhile needs no watch.
            let _ = self.watch();
            changed.enter_folders(&self.roots);
            if !changed.0.is_empty() {
                return changed;
            }
        }
    }

    /// Watches all folders that exist now; watching one again changes nothing.
    fn watch(&mut self) -> notify::Result<()> {
        self.folders = 0;
        let mut waiting: Vec<PathBuf> = Vec::new();
        for root in &self.roots {
            let folder = if root.is_dir() { root } else { root.parent().unwrap_or(root) };
            self.watcher.watch(folder, RecursiveMode::NonRecursive)?;
            waiting.extend(root.is_dir().then(|| root.clone()));
        }
        while let Some(folder) = waiting.pop() {
            self.folders += 1;
            for entry in folder.read_dir().into_iter().flatten().flatten() {
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_folder && !is_ignored_folder(entry.file_name()) && self.folders + waiting.len() < FOLDERS_MAX {
                    // The folder may have been removed, or be unreadable.
                    let _ = self.watcher.watch(&entry.path(), RecursiveMode::NonRecursive);
                    waiting.push(entry.path());
                }
            }
        }
        Ok(())
    }
}

impl ChangeNotices {
    async fn next(&mut self) -> ChangedFiles {
        loop {
            let Some((_, first, last)) = &self.pending else {
                match self.received.recv().await {
                    Some(path) => self.add(path),
                    None => std::future::pending().await,
                }
                continue;
            };
            let settled = (*last + SETTLE).min(*first + SETTLE_MAX);
            tokio::select! {
                Some(path) = self.received.recv() => self.add(path),
                () = sleep_until(settled) => return self.pending.take().map(|(files, ..)| files).unwrap_or_default(),
            }
        }
    }

    fn add(&mut self, path: PathBuf) {
        let now = Instant::now();
        let (files, _, last) = self.pending.get_or_insert_with(|| (ChangedFiles::default(), now, now));
        *last = now;
        if files.0.len() < FILES_MAX {
            files.0.insert(path);
        }
    }
}

struct ChangeFilter {
    roots: Vec<PathBuf>,
    own_folder: PathBuf,
}

impl ChangeFilter {
    /// Whether a changed file is the program's. A new folder (`is_placed`) may hold files.
    fn takes(&self, path: &Path, is_placed: bool) -> bool {
        if path.starts_with(&self.own_folder) {
            return false;
        }
        self.roots.iter().filter_map(|root| path.strip_prefix(root).ok()).any(|below| {
            // A named file counts in any case.
            let may_count = is_source(below) || (is_placed && path.is_dir());
            below == Path::new("") || (may_count && !below.iter().any(is_ignored_folder))
        })
    }
}

fn is_source(path: &Path) -> bool {
    let is_variables = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".env"));
    is_variables || path.extension().is_some_and(|end| SOURCES.split(' ').any(|source| end == source))
}

fn is_ignored_folder(name: impl AsRef<std::ffi::OsStr>) -> bool {
    IGNORED_FOLDERS.split(' ').any(|ignored| name.as_ref() == ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_of_a_moment_are_one_and_endless_ones_are_reported_in_time() {
        let (sender, received) = mpsc::channel(NOTICES_MAX);
        let mut notices = ChangeNotices { received, pending: None };
        for n in 0..100 {
            sender.try_send(PathBuf::from(format!("/s/{n}.py"))).unwrap();
        }
        let changed = notices.next().await;
        assert_eq!(changed.to_string(), "0.py and 63 more");
        let begun = Instant::now();
        let writing = async {
            loop {
                tokio::time::sleep(SETTLE / 2).await;
                sender.try_send(PathBuf::from("/s/a.py")).unwrap();
            }
        };
        let changed = tokio::select! { biased; changed = notices.next() => changed, () = writing => unreachable!() };
        assert_eq!((changed.to_string().as_str(), begun.elapsed()), ("a.py", SETTLE / 2 + SETTLE_MAX));
        // A cancelled wait loses no event.
        sender.try_send(PathBuf::from("/s/b.py")).unwrap();
        assert!(tokio::time::timeout(SETTLE / 2, notices.next()).await.is_err());
        assert_eq!(notices.next().await.to_string(), "b.py");
    }

    #[test]
    fn files_that_tools_write_change_nothing() {
        let filter =
            ChangeFilter { roots: vec!["/s".into(), "/bin/server".into()], own_folder: "/s/taskgate-data".into() };
        for (path, expected) in [
            ("/s/server.py", true),
            ("/s/lib/.env", true),
            ("/s", true),
            ("/bin/server", true),
            ("/bin/other", false),
            ("/s/.git/index", false),
            ("/s/a/node_modules/b/c.js", false),
            ("/s/__pycache__", false),
            ("/s/out.txt", false),
            ("/s/.server.py.swp", false),
            ("/s/taskgate-data/made.py", false),
        ] {
            assert_eq!(filter.takes(Path::new(path), true), expected, "{path}");
        }
    }

    #[test]
    fn a_new_folder_counts_by_the_files_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let made = ["cache", "lib/part", "lib/.git"].map(|name| folder.path().join(name));
        made.iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
        for name in ["cache/a.db", "lib/part/b.py", "lib/.git/c.py"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let filter = ChangeFilter { roots: vec![folder.path().to_owned()], own_folder: "/none".into() };
        assert_eq!([true, false].map(|is_placed| filter.takes(&made[0], is_placed)), [true, false]);
        let entered = |names: &[&str]| {
            let mut changed = ChangedFiles(names.iter().map(|name| folder.path().join(name)).collect());
            changed.enter_folders(&[folder.path().to_owned()]);
            changed.0.len()
        };
        assert_eq!((entered(&["cache"]), entered(&["lib"]), entered(&["cache", "a.py"]), entered(&[""])), (0, 1, 1, 1));
    }

    #[test]
    fn a_command_names_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let text = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(text("server.py"), "").unwrap();
        let words = |words: &[&str]| watched_by(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(words(&["python3", "-u", &text("server.py"), "/"]), [folder.path()]);
        assert_eq!(words(&[&text("server.py")]), [folder.path().join("server.py")]);
        assert_eq!(words(&["python3", "-m", "server"]), [Path::new(".")]);
        // As the interpreter of a virtual environment.
        let interpreter = text("python");
        std::os::unix::fs::symlink("/bin/sh", &interpreter).unwrap();
        assert_eq!(words(&[&interpreter, "-m", "server"]), [Path::new(&interpreter), Path::new(".")]);
        // Built by the author: `cargo test` runs in the package's folder.
        assert_eq!(words(&["./Cargo.toml", "--port", "1"]), [Path::new("./Cargo.toml")]);
    }
}
