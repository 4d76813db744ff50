//! Secrets stay where they belong: none is found in a log, a metric, an error or an answer (SEC-12).

use std::io;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusBuilder;
use parking_lot::Mutex;
use serde_json::json;
use tracing::Level;

use super::client::TestGateway;
use super::peers::{PAIRS, Person, server, server_with};
use super::upstream::status;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Unlike anything that is written for another reason.
const CANARIES: [&str; 3] = ["canary-of-the-upstream-7c1", "canary-of-the-client-7c2", "canary-of-a-header-7c3"];

const KEYS: [&str; 2] = [
    "forward_headers = [\"x-tenant\"]\n[upstreams.up.auth]\nauthorization = \"Bearer canary-of-the-upstream-7c1\"\n",
    "forward_headers = [\"x-tenant\"]\nforward_authorization = true\n\
     [upstreams.up.auth]\nheader = \"X-Api-Key\"\nvalue = \"canary-of-the-upstream-7c1\"\n",
];

/// Calls that succeed, that are refused, that fail.
async fn live(keys: &str) -> String {
    let headers = [("authorization", "Bearer canary-of-the-client-7c2"), ("x-tenant", "canary-of-a-header-7c3")];
    let mut said = String::new();
    for (client, kind) in PAIRS {
        let server = server(kind).await;
        let gate = TestGateway::with(server.address, keys).await;
        let person = Person::with(&gate, client, &headers).await;
        said.push_str(&person.call("plain").await);
        said.push_str(&person.call("nothing").await);
        let refusing = server_with(kind, |seen| seen.is_call().then(|| status(401))).await;
        let gate = TestGateway::with(refusing.address, keys).await;
        let person = Person::with(&gate, client, &headers).await;
        said.push_str(&person.ask("tools/call", json!({"name": "plain", "arguments": {}})).await.to_string());
    }
    let parsed = taskgate::config::parse("test", &format!("[upstreams.up]\nurl = \"http://h/\"\n{keys}"), &|_| None);
    said.push_str(&format!("{parsed:?}"));
    said
}

#[tokio::test]
async fn sec_12_no_secret_is_found_in_logs_metrics_errors_or_answers() {
    // The log and the metrics belong to the whole process.
    if !support::alone::is("edges::secrets::sec_12_no_secret_is_found_in_logs_metrics_errors_or_answers") {
        return;
    }
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer(move || writer.clone()).init();
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    let mut said = String::new();
    for keys in KEYS {
        said.push_str(&Box::pin(live(keys)).await);
    }
    let written = String::from_utf8_lossy(&log.0.lock()).into_owned();
    let rendered = metrics.render();
    assert!(written.contains("taskgate") && rendered.contains("taskgate_"), "there is something to be searched");
    for canary in CANARIES {
        for (name, text) in [("log", &written), ("metrics", &rendered), ("answers", &said)] {
            let at = text.find(canary);
            assert_eq!(
                at,
                None,
                "SEC-12: {canary} in the {name}: {}",
                at.map_or("", |at| &text[at.saturating_sub(200)..at])
            );
        }
    }
}

/// An error about a secret does not repeat it.
#[test]
fn sec_12_a_mistake_in_a_secret_does_not_repeat_it() {
    let env = |name: &str| (name == "TOKEN").then(|| "canary\nof two lines".to_owned());
    for keys in
        ["authorization = \"${TOKEN}\"", "authorization = \"canary\\u0007\"", "header = \"X-K\"\nvalue = \"${TOKEN}\""]
    {
        let text = format!("[upstreams.up]\nurl = \"http://127.0.0.1:1/\"\n[upstreams.up.auth]\n{keys}\n");
        let words = taskgate::config::parse("test", &text, &env).unwrap_err().to_string();
        assert!(words.contains("is not the value of a header") && !words.contains("canary"), "{words}");
    }
}
