//! A headless browser: a page of an allowed origin calls a tool and follows its task, in both eras; a page of a foreign
//! one cannot. Each page is served by a small server of its own and reports its results there.
//!
//! It runs if `TASKGATE_PEERS` is set, as all real peers; without it nothing runs here, and the output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use http::StatusCode;
use serde_json::{Value, json};
use support::peers::WAIT_MAX;
use support::peers::install::{Peers, program};
use support::peers::process::Child;
use support::scripted::{ScriptedReply, ScriptedServer, SeenRequest, answer, status, whole};
use support::session_client::TestGateway;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

const PAGE: &str = include_str!("browser/page.html");
/// No name of these is this machine's: loopback origins may call anyway.
const ALLOWED: &str = "app.example";
const FOREIGN: &str = "evil.example";

/// A server of one page, and the page's reports.
struct PageServer {
    server: ScriptedServer,
    reports: mpsc::Receiver<Value>,
}

impl PageServer {
    async fn start() -> Self {
        let (sender, reports) = mpsc::channel(10);
        let server = ScriptedServer::slow(move |seen: SeenRequest, _| {
            let is_report = seen.target == "/report";
            if is_report {
                // They are dropped once the test has ended.
                let _ = sender.try_send(seen.body.clone());
            }
            let page = seen.target.starts_with("/page");
            std::future::ready(Some(match (is_report, page) {
                (true, _) => status(204),
                (false, true) => html(),
                (false, false) => status(404),
            }))
        })
        .await;
        Self { server, reports }
    }

    fn origin(&self, host: &str) -> String {
        format!("http://{host}:{}", self.server.address.port())
    }

    async fn report(&mut self) -> Value {
        timeout(WAIT_MAX, self.reports.recv()).await.expect("the page reports in time").unwrap()
    }
}

fn html() -> ScriptedReply {
    let mut page = whole(PAGE);
    page.headers_mut().insert("content-type", "text/html; charset=utf-8".parse().unwrap());
    assert_eq!(page.status(), StatusCode::OK);
    page
}

/// A browser that shows a page, with a profile of its own. Dropping it ends it.
struct Browser {
    _child: Child,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn open(url: &str, name: &str) -> Self {
        let chromium = program("chromium").expect("chromium is not installed: run `make setup`");
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new(chromium);
        command
            // Its sandbox does not run as root; the pages are the test's own.
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .arg(format!("--host-resolver-rules=MAP {ALLOWED} 127.0.0.1,MAP {FOREIGN} 127.0.0.1"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("--remote-debugging-port=0")
            .arg(url)
            .env("HOME", profile.path())
            .env("XDG_CONFIG_HOME", profile.path())
            .env("XDG_CACHE_HOME", profile.path());
        let child = Child::start(&format!("browser-{name}"), command).unwrap();
        Self { _child: child, _profile: profile }
    }
}

/// A server whose tool takes a while; tasks are followed by polling.
async fn server() -> ScriptedServer {
    ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => {
            Some(answer(seen, &json!({ "tools": [{ "name": "work", "inputSchema": { "type": "object" } }] })))
        }
        "tools/call" => Some(answer(seen, &json!({ "content": [{ "type": "text", "text": "it is done" }] }))),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_calls_and_follows_tasks_and_a_foreign_one_cannot() {
    if !Peers::are_asked_for("pages in Chromium") {
        return;
    }
    let (mut pages, server) = (PageServer::start().await, server().await);
    let listen = format!("allowed_origins = [\"{}\"]", pages.origin(ALLOWED));
    let keys = "[upstreams.up.tasks]\nmode = \"always\"\npoll_interval = \"50ms\"";
    let gate = TestGateway::open(&listen, server.url().as_str(), keys).await;
    let of = |origin: &str| format!("{origin}/page?gateway=http://{}/mcp", gate.gateway.address());

    let _browser = Browser::open(&of(&pages.origin(ALLOWED)), "allowed");
    let report = pages.report().await;
    let followed = json!({ "first": "working", "last": "completed", "text": "it is done" });
    assert_eq!(report, json!({ "session": followed, "stateless": followed }));
    assert_eq!(server.world.count("tools/call"), 2);

    let _browser = Browser::open(&of(&pages.origin(FOREIGN)), "foreign");
    let report = pages.report().await;
    let failed = "TypeError: Failed to fetch";
    assert_eq!(report, json!({ "session": failed, "stateless": failed, "unasked": "opaque, nothing to read" }));
    assert_eq!(server.world.count("tools/call"), 2, "nothing of it reached the server");
}
