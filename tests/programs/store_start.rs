//! The message and exit code of the program about a store that it cannot open; `check` has the same.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::fs;
#[cfg(target_os = "linux")]
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};

use rusqlite::Connection;
use taskgate::store::{DiskSettings, DiskStore};

/// A configuration whose store is in `folder`, and the program with it, which is expected to end by itself.
fn run(home: &Path, arguments: &[&str], folder: &str, keys: &str) -> Output {
    command(home, folder, keys).args(arguments).output().unwrap()
}

/// The same without arguments.
fn command(home: &Path, folder: &str, keys: &str) -> Command {
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [store]\npath = \"{folder}\"\n{keys}\n[upstreams.a]\nurl = \"http://127.0.0.1:9/mcp\"\n"
    );
    fs::write(home.join("gate.toml"), text).unwrap();
    in_home(home, Command::new(env!("CARGO_BIN_EXE_taskgate")))
}

fn in_home(home: &Path, mut command: Command) -> Command {
    command.current_dir(home).env("TASKGATE_LOG", "off");
    command
}

const SERVE: &[&str] = &["serve", "--config", "gate.toml"];
const CHECK: &[&str] = &["check", "gate.toml"];
const ANYWHERE: &str = "ephemeral = true";

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim_end().to_owned()
}

async fn made(folder: &Path) {
    let mut settings = DiskSettings::new(folder.to_owned(), 1 << 20);
    settings.is_ephemeral = true;
    DiskStore::open(settings).await.unwrap().close().await;
}

/// B172: the same words from `check` and from `serve`, and 64.
#[tokio::test]
async fn b172_a_store_of_no_use_is_said_by_check_and_serve_alike() {
    let home = tempfile::tempdir().unwrap();
    for name in ["newer", "older", "text"] {
        made(&home.path().join(name)).await;
    }
    for (name, version) in [("newer", 9), ("older", 1)] {
        let database = Connection::open(home.path().join(name).join("tasks.db")).unwrap();
        database.execute_batch(&format!("PRAGMA user_version = {version}; PRAGMA wal_checkpoint(TRUNCATE)")).unwrap();
    }
    fs::write(home.path().join("text/tasks.db"), "words").unwrap();
    fs::write(home.path().join("file"), "").unwrap();
    for (folder, said) in [
        (
            "newer",
            "newer/tasks.db: was written by a newer taskgate (version 9, this one knows 6); run that one. The file is left as it is",
        ),
        (
            "older",
            "older/tasks.db: was written by an older taskgate (version 1; this one reads 6 only); let that one finish its \
             tasks, then move it away together with the files beside it, and a new one is made in its place. The file is left as it is",
        ),
        ("text", "text/tasks.db: is not a database; move it away, and a new one is made in its place"),
        ("file", "file: not a directory; name a folder that the gateway may write to"),
    ] {
        for arguments in [CHECK, SERVE] {
            let output = run(home.path(), arguments, folder, ANYWHERE);
            let said = format!("gate.toml:6: key `store.path`: {said}");
            assert!(text(&output).lines().any(|line| line == said), "{arguments:?}: {}", text(&output));
            assert_eq!(output.status.code(), Some(64), "{arguments:?} {folder}");
        }
    }
}

/// A folder and an audit file that this user cannot write are warnings, since another user may serve. Root gives up its
/// right to write everywhere.
#[cfg(target_os = "linux")]
#[test]
fn b260_a_check_warns_where_a_start_by_this_user_would_end() {
    let home = tempfile::tempdir().unwrap();
    let closed = home.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let set_mode = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
    let run = |arguments: &[&str]| {
        let audit = "ephemeral = true\n[audit]\npath = \"closed/audit.jsonl\"";
        let mut command = command(home.path(), "closed/new/data", audit);
        if home.path().metadata().unwrap().uid() == 0 {
            let program = command.get_program().to_owned();
            command = in_home(home.path(), Command::new("setpriv"));
            command.args(["--inh-caps=-dac_override", "--bounding-set=-dac_override"]).arg(program);
        }
        command.args(arguments).output().unwrap()
    };
    set_mode(0o555);
    let refused = "Permission denied (os error 13); `serve` as this user would end";
    let warnings = [("store.path", "closed/new/data"), ("audit.path", "closed/audit.jsonl")]
        .map(|(key, path)| format!("warning: key `{key}`: {path}: {refused}"));
    let checked = run(CHECK);
    assert_eq!(text(&checked), warnings.join("\n"));
    assert!(checked.status.success(), "{checked:?}");
    assert_eq!(run(SERVE).status.code(), Some(64));
    set_mode(0o755);
    let checked = run(CHECK);
    assert_eq!((text(&checked).as_str(), checked.status.success()), ("", true));
}

/// F56: 74, and the file is kept.
#[tokio::test]
async fn f56_a_damaged_store_ends_the_start_with_74() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("data/tasks.db");
    made(&home.path().join("data")).await;
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0xa5);
    fs::write(&path, &bytes).unwrap();
    let output = run(home.path(), SERVE, "data", ANYWHERE);
    assert!(text(&output).starts_with("key `store.path`: data/tasks.db: is damaged ("), "{}", text(&output));
    assert_eq!(output.status.code(), Some(74));
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

/// B171: a store that is open elsewhere is waited for, and then it is 75. A check of the file is none of that.
#[tokio::test]
async fn b171_a_store_that_stays_open_ends_the_start_with_75() {
    let home = tempfile::tempdir().unwrap();
    let mut settings = DiskSettings::new(home.path().join("data"), 1 << 20);
    settings.is_ephemeral = true;
    let held = DiskStore::open(settings).await.unwrap();
    let output = run(home.path(), CHECK, "data", ANYWHERE);
    assert_eq!(text(&output), "warning: key `store.path`: data: a gateway has the store open now");
    assert!(output.status.success());
    let output = run(home.path(), SERVE, "data", ANYWHERE);
    let said =
        "key `store.path`: data: another gateway has the store open; end it, or name another folder as `store.path`";
    assert_eq!(text(&output), said);
    assert_eq!(output.status.code(), Some(75));
    held.close().await;
}

/// B171.
#[cfg(target_os = "linux")]
#[test]
fn b171_a_store_in_memory_has_to_be_meant() {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let said = "gate.toml:6: key `store.path`: data: is in memory (tmpfs), which does not keep files reliably; name a folder on a local disk, or \
                write `ephemeral = true` in [store] if tasks may be lost";
    for arguments in [CHECK, SERVE] {
        let output = run(home.path(), arguments, "data", "");
        assert_eq!((text(&output).as_str(), output.status.code()), (said, Some(64)), "{arguments:?}");
    }
    assert!(run(home.path(), CHECK, "data", ANYWHERE).status.success());
    assert!(!home.path().join("data").exists(), "a check makes nothing");
}
