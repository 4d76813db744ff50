//! Real servers and real clients as programs, and `taskgate probe` in front of one.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::peers::install;
use support::peers::{WAIT_MAX, in_time};
use support::ports::reserved_address;
use taskgate::config;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// The folder that they are installed in.
pub(crate) struct Peers(install::Peers);

impl Peers {
    /// `None`, with a message, where they are not installed.
    pub(crate) fn find() -> Option<Self> {
        install::Peers::find("real servers and clients over HTTP+SSE").map(Self)
    }

    /// A program of theirs, which runs in the folder.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.0.command(words[0], &words[1..]);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// The facts that a driver prints, in its last line.
    pub(crate) async fn drive(&self, words: &[&str]) -> Value {
        let output = tokio::time::timeout(WAIT_MAX, self.command(words).output());
        let output = output.await.unwrap_or_else(|_| panic!("too slow: {words:?}")).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let last = text.lines().last().unwrap_or_else(|| {
            panic!("{words:?} says nothing: {}", String::from_utf8_lossy(&output.stderr));
        });
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{words:?}: {error}: {last}"))
    }

    /// Probes a program of theirs.
    pub(crate) async fn probe_command(&self, words: &[&str], call: &(&str, Value, &str), name: &str) -> Value {
        let program = |word: &&str| {
            if self.0.join(word).exists() { self.0.join(word).display().to_string() } else { (*word).to_owned() }
        };
        let arguments: Vec<String> = words[1..].iter().map(program).collect();
        let words = [vec!["--".to_owned()], self.0.words(words[0], arguments)].concat();
        let report = run_probe(&words, call).await;
        judge(&report, call, "stdio", name);
        report
    }
}

/// A server that is a process of its own.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    pub(crate) url: String,
}

impl Server {
    pub(crate) async fn start(peers: &Peers, command: &[&str], path: &str) -> Self {
        let address = reserved_address();
        let child = launch(peers, command, address).await;
        Self { child, address, url: format!("http://{address}{path}") }
    }

    pub(crate) async fn kill(&mut self) {
        in_time(self.child.kill()).await.unwrap();
    }

    pub(crate) async fn restart(&mut self, peers: &Peers, command: &[&str]) {
        self.child = launch(peers, command, self.address).await;
    }
}

/// Starts it and waits until it listens.
async fn launch(peers: &Peers, words: &[&str], address: SocketAddr) -> Child {
    let port = address.port().to_string();
    let mut command = peers.command(words);
    command.env("PORT", &port).stdout(Stdio::null()).stderr(Stdio::null());
    if words.last() == Some(&"--port") {
        command.arg(port);
    }
    let mut child = command.spawn().unwrap();
    in_time(async {
        while TcpStream::connect(address).await.is_err() {
            assert!(child.try_wait().unwrap().is_none(), "{words:?} has ended");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    child
}

/// Probes an address with the program, and checks the report.
pub(crate) async fn probe(url: &str, call: &(&str, Value, &str), transport: &str, name: &str) -> Value {
    let report = run_probe(&[url.to_owned()], call).await;
    judge(&report, call, transport, name);
    report
}

/// A probe starts the program once for each version, and an interpreter takes long on a busy machine.
const PROBE_MAX: Duration = WAIT_MAX.saturating_mul(5);

async fn run_probe(target: &[String], (tool, arguments, _): &(&str, Value, &str)) -> Value {
    let mut command = Command::new(support::taskgate());
    command.args(["probe", "--json", "--timeout", &format!("{}s", PROBE_MAX.as_secs())]);
    command.args(["--call", tool, &arguments.to_string()]).args(target).kill_on_drop(true);
    let output = tokio::time::timeout(PROBE_MAX, command.stdin(Stdio::null()).output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn judge(report: &Value, (tool, _, holds): &(&str, Value, &str), transport: &str, name: &str) {
    assert_eq!(report["transport"], transport, "{report}");
    assert_eq!(report["call"]["outcome"], "result", "{report}");
    assert!(report["call"]["result"]["content"][0]["text"].as_str().unwrap().contains(holds), "{report}");
    assert!(report["call"]["seconds"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["tools"].as_array().unwrap().iter().any(|listed| listed["name"] == *tool), "{report}");
    let block = report["toml"].as_str().unwrap();
    let config = config::parse("block.toml", block, &|_| None).unwrap_or_else(|error| panic!("{error}\n{block}"));
    assert_eq!(&*config.config.upstreams[0].name, name, "{block}");
}

/// The versions that a report names as served.
pub(crate) fn served(report: &Value) -> Vec<String> {
    let versions = report["versions"].as_array().unwrap().iter().filter(|version| version["served"] == true);
    versions.map(|version| version["version"].as_str().unwrap().to_owned()).collect()
}
