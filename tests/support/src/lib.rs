//! Shared code of the test suites: scripted servers, clients, a gateway in front of them, and their records.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

pub mod alone;
pub mod balancer;
pub mod certificates;
pub mod checks;
pub mod clock_shift;
pub mod crowd;
pub mod fault_proxy;
pub mod history;
pub mod hostile_twin;
pub mod issuer;
pub mod kind;
pub mod ledger;
pub mod login_checks;
pub mod pair_client;
pub mod patroni;
pub mod peers;
pub mod pgbouncer;
pub mod ports;
pub mod postgres;
pub mod processes;
pub mod replicas;
pub mod sample_task;
pub mod scripted;
pub mod served;
pub mod serving;
pub mod session_client;
pub mod speaker;
pub mod standalone;
pub mod store_faults;
pub mod subtask_server;
pub mod talk;
mod unprivileged;
pub mod wire_client;

/// Declares tests of one expression each: `name: expression;`.
#[macro_export]
macro_rules! rows {
    ($($(#[$attribute:meta])* $name:ident: $test:expr;)*) => {
        $($(#[$attribute])* #[test] fn $name() { $test; })*
    };
}

/// As [`rows`], for tests that await their expression.
#[macro_export]
macro_rules! async_rows {
    ($($(#[$attribute:meta])* $name:ident: $test:expr;)*) => {
        $($(#[$attribute])* #[tokio::test] async fn $name() { $test.await; })*
    };
}

/// The repository's folder.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Compares a text with a file; `UPDATE_GOLDEN=1` rewrites the file.
#[track_caller]
pub fn check_golden(golden: &Path, found: &str) {
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(golden, found).expect("a writable folder");
    }
    assert_eq!(found, fs::read_to_string(golden).unwrap_or_default(), "{}", golden.display());
}

/// The folder that all of this build's files lie in: test binaries are in `PROFILE/deps` below it.
pub fn target_dir() -> PathBuf {
    let itself = env::current_exe().expect("the path of a test binary");
    let deps = itself.parent().expect("a test binary lies in a folder");
    deps.ancestors().nth(2).expect("cargo puts test binaries two folders below the target folder").to_owned()
}

/// The path of the program: built for this run, unless `TASKGATE_PROGRAM` names another one.
pub fn taskgate() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| {
        // Cargo names it; for a test binary that is run by hand it lies beside the folder of the binary.
        let named = env::var("TASKGATE_PROGRAM").or_else(|_| env::var("CARGO_BIN_EXE_taskgate"));
        named.unwrap_or_else(|_| {
            let itself = env::current_exe().expect("the path of a test binary");
            let profile = itself.ancestors().nth(2).expect("cargo puts test binaries below the folder of the profile");
            profile.join("taskgate").display().to_string()
        })
    });
    &PATH
}

/// The path of the demo as a bad server: see `tests/support/faulty_demo/server.rs`. `make test` names the one that it built.
pub fn faulty_demo() -> &'static str {
    static PATH: LazyLock<String> =
        LazyLock::new(|| env::var("TASKGATE_FAULTY_DEMO").unwrap_or_else(|_| built_faulty_demo()));
    &PATH
}

/// Cargo builds examples with all tests, but not with the binaries that a command names, so this builds it where it is missing or
/// old. It waits while another cargo compiles.
fn built_faulty_demo() -> String {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "--example", "taskgate-faulty-demo", "--target-dir"]).arg(target_dir());
    // It allows the test harness unstable options; with it build scripts would run again.
    build.current_dir(repository()).env_remove("RUSTC_BOOTSTRAP");
    assert!(build.status().expect("cargo runs").success(), "cargo does not build the example");
    target_dir().join("debug/examples/taskgate-faulty-demo").display().to_string()
}
