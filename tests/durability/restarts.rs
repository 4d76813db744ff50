//! Restarts under load: a successor that shares the listening socket waits for the store, the predecessor drains, and
//! no client notices.
//!
//! `RESTARTS` is how often (20).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use support::history;
use support::ledger;
use support::scripted::WAIT_MAX;
use support::wire_client;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use history::History;
use ledger::Ledger;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};
use wire_client::{Answer, Flavour, WireClient};

const PATIENCE: Duration = WAIT_MAX;

/// How many clients call all the time.
const CLIENTS: usize = 6;

/// One process of the program, on a listener that outlives it.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it as a service manager does: the socket is descriptor 3, and two variables say so.
    fn start(folder: &Path, socket: &TcpListener) -> Self {
        let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" serve --config taskgate.toml 3<&0 0</dev/null";
        let mut command = Command::new("bash");
        command.args(["-c", script, support::taskgate()]).current_dir(folder);
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        command.stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
        command.stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn serves(&mut self) {
        let served = async { while !self.lines.next_line().await.unwrap().expect("it serves").starts_with("admin") {} };
        timeout(PATIENCE, served).await.expect("it serves in time");
    }

    /// Asks it to end, without time for balancers to notice: they see no difference.
    async fn leave(mut self) {
        let id = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        kill_process(id, Signal::INT).unwrap();
        let status = timeout(PATIENCE, self.child.wait()).await.expect("it ends in time").unwrap();
        assert!(status.success(), "{status}");
    }
}

/// The errors that clients saw.
#[derive(Default)]
struct Watch {
    completed: AtomicUsize,
    mistakes: Mutex<Vec<String>>,
}

impl Watch {
    fn check(&self, (what, asked): (&str, Instant), answer: &Answer) -> bool {
        let is_well = answer.is_whole && answer.status == Some(200) && answer.result().is_some();
        if !is_well {
            self.mistakes.lock().push(format!("{what} after {:?}: {answer:?}", asked.elapsed()));
        }
        is_well
    }

    /// Calls one tool after the other, and follows each to its end.
    async fn client(&self, number: usize, address: SocketAddr, is_over: &AtomicBool) {
        let wire = WireClient { patience: PATIENCE, ..WireClient::new(Flavour::Extension) };
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) && self.mistakes.lock().len() < 20 {
            count += 1;
            let nonce = format!("n{number}-{count}x");
            let arguments = json!({"nonce": nonce, "ms": 300, "steps": 3});
            let asked = Instant::now();
            let answer = wire.ask(address, "tools/call", json!({"name": "work", "arguments": arguments})).await;
            if !self.check(("tools/call", asked), &answer) {
                continue;
            }
            let id = answer.json()["result"]["taskId"].clone();
            loop {
                let asked = Instant::now();
                let answer = wire.ask(address, "tasks/get", json!({"taskId": id})).await;
                if !self.check(("tasks/get", asked), &answer) {
                    break;
                }
                let task = answer.json()["result"].take();
                match task["status"].as_str() {
                    Some("working") => sleep(Duration::from_millis(30)).await,
                    Some("completed") => {
                        self.completed.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    _ => {
                        self.mistakes.lock().push(format!("{nonce}: {task}"));
                        break;
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_fail_no_request_and_lose_no_task() {
    let count = std::env::var("RESTARTS").map_or(20, |count| count.parse().expect("RESTARTS is a number"));
    assert!(count > 0, "nothing is tried");
    let history = Arc::new(History::begin(Duration::ZERO));
    let ledger = Ledger::open(history, true).await;
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[limits]\ndrain_max = \"2s\"\n\
         [store]\nkind = \"disk\"\npath = \"data\"\n[upstreams.up]\nurl = \"{}\"\n[upstreams.up.tasks]\nmode = \"always\"\n",
        ledger.server.url()
    );
    std::fs::write(folder.path().join("taskgate.toml"), text).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut first = Process::start(folder.path(), &socket);
    first.serves().await;
    let (watch, is_over) = (Watch::default(), AtomicBool::new(false));
    let clients = join_all((0..CLIENTS).map(|number| watch.client(number, address, &is_over)));
    let restarts = async {
        let mut process = first;
        for _ in 0..count {
            sleep(Duration::from_millis(150)).await;
            // It waits for the store until its predecessor has ended.
            let mut next = Process::start(folder.path(), &socket);
            process.leave().await;
            next.serves().await;
            process = next;
        }
        is_over.store(true, Ordering::Relaxed);
        process
    };
    let (_, _last) = tokio::join!(clients, restarts);
    let mistakes = watch.mistakes.lock();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    let lines = log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR") || line.contains("drained"));
    let lines: Vec<_> = lines.rev().take(30).collect();
    assert!(mistakes.is_empty(), "{}\n{}", mistakes.join("\n"), lines.join("\n"));
    assert!(watch.completed.load(Ordering::Relaxed) >= count, "too little was tried");
}
