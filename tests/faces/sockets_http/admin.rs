//! The operators' listener.

use std::net::SocketAddr;
use std::sync::OnceLock;

use metrics_exporter_prometheus::PrometheusHandle;
use taskgate::server::admin::{Readiness, site};
use taskgate::server::{AdminSettings, Authenticator, RunningListener, start};
use taskgate::task::Principal;
use taskgate::telemetry::install_metrics;
use taskgate::upstream::upstream_health::UpstreamHealthList;

use super::harness::{Answer, connect, gate, outcome, post};

/// One recorder for the whole process: the facade has room for no second.
fn metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| install_metrics().unwrap()).clone()
}

async fn admin(readiness: &Readiness) -> RunningListener {
    let settings = AdminSettings { address: SocketAddr::from(([127, 0, 0, 1], 0)), tokens: Vec::new() };
    let callers = Authenticator::Everyone(Principal::local());
    start(site(&settings, callers, readiness.clone(), UpstreamHealthList::default(), metrics())).await.unwrap()
}

async fn ask(running: &RunningListener, method: &str, path: &str, host: &str) -> Answer {
    let mut client = connect(running.local_addr()).await;
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await;
    client.answer().await.unwrap()
}

#[track_caller]
fn check(answer: &Answer, status: &str, body: &str) {
    assert_eq!((answer.status(), String::from_utf8_lossy(&answer.body).as_ref()), (status, body));
}

#[tokio::test]
async fn readiness_names_each_blocker() {
    let readiness = Readiness::new();
    readiness.block("store");
    readiness.block("draining");
    let running = admin(&readiness).await;
    check(&ask(&running, "GET", "/healthz", "localhost").await, "200", "ok\n");
    check(&ask(&running, "GET", "/readyz", "localhost").await, "503", "draining\nstore\n");
    readiness.clear("store");
    readiness.clear("draining");
    check(&ask(&running, "GET", "/readyz", "localhost").await, "200", "ready\n");
    readiness.limit("store full");
    check(&ask(&running, "GET", "/readyz", "localhost").await, "200", "ready\nstore full\n");
    readiness.block("draining");
    check(&ask(&running, "GET", "/readyz", "localhost").await, "503", "draining\nstore full\n");
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let running = admin(&Readiness::new()).await;
    for path in ["/", "/tasks", "/mcp", "/healthz//"] {
        check(&ask(&running, "GET", path, "localhost").await, "404", "");
    }
    for method in ["DELETE", "PUT", "OPTIONS"] {
        let answer = ask(&running, method, "/metrics", "localhost").await;
        assert_eq!((answer.status(), answer.header("allow")), ("405", Some("GET, HEAD")), "{method}");
    }
}

#[tokio::test]
async fn a_browser_does_not_guess_the_type_of_an_admin_page() {
    let running = admin(&Readiness::new()).await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        let page = ask(&running, "GET", path, "localhost").await;
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
}

/// B66.
#[tokio::test]
async fn a_rebound_name_reaches_no_admin_path() {
    let running = admin(&Readiness::new()).await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        check(&ask(&running, "GET", path, "evil.example").await, "403", "");
    }
}

/// Every refusal is counted under a fixed reason (GW-45).
#[tokio::test]
async fn answers_and_refusals_are_counted() {
    let running = admin(&Readiness::new()).await;
    let gate = gate().await;
    outcome(&gate, post("", "{}").as_bytes()).await;
    outcome(&gate, post("Origin: null\r\n", "{}").as_bytes()).await;
    outcome(&gate, post("", "{}").replace("/mcp", "/panic").as_bytes()).await;
    outcome(&gate, b"\x16\x03\x01").await;
    let page = ask(&running, "GET", "/metrics", "localhost").await;
    let page = String::from_utf8(page.body).unwrap();
    for line in [
        "# TYPE taskgate_http_requests_total counter",
        "taskgate_http_requests_total{listener=\"clients\",status=\"200\"}",
        "taskgate_http_refused_total{reason=\"origin_foreign\"}",
        "taskgate_http_refused_total{reason=\"malformed\"}",
        "taskgate_http_panics_total ",
        "taskgate_connections{listener=\"clients\"}",
    ] {
        assert!(page.contains(line), "{line} in:\n{page}");
    }
}
