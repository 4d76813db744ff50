//! The whole gateway with TLS on both sides: clients of its own listener, upstreams behind private authorities.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use support::certificates;
use support::scripted::WAIT_MAX;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use certificates::{Authority, Identity};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use taskgate::app::Gateway;
use taskgate::config;
use taskgate::demo::DemoServer;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The demo server behind TLS.
struct Upstream {
    url: String,
    tracker: TaskTracker,
    _stop: DropGuard,
}

impl Upstream {
    /// `clients` is the authority of the accepted client certificates; without one, each client is accepted.
    async fn start(identity: &Identity, clients: Option<&Authority>, alpn: &str) -> Self {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let demo = DemoServer::start(free, &tracker, stop.clone()).await.unwrap();
        let demo: url::Url = demo.url().parse().unwrap();
        let plain = *demo.socket_addrs(|| None).unwrap().first().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(identity.server(&[alpn], clients)));
        let listener = TcpListener::bind(free).await.unwrap();
        let url = format!("https://localhost:{}{}", listener.local_addr().unwrap().port(), demo.path());
        let (inner, until) = (tracker.clone(), stop.clone());
        let accept = async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                inner.spawn(async move {
                    let Ok(mut stream) = acceptor.accept(socket).await else { return };
                    let mut plain = TcpStream::connect(plain).await.unwrap();
                    let _ = copy_bidirectional(&mut stream, &mut plain).await;
                });
            }
        };
        tracker.spawn(async move { until.run_until_cancelled(accept).await });
        Self { url, tracker, _stop: stop.drop_guard() }
    }
}

fn ca_file(folder: &Path, name: &str, authority: &Authority) -> PathBuf {
    certificates::write(folder, name, "CERTIFICATE", authority.certificate())
}

async fn gateway(text: &str) -> Gateway {
    let config = config::parse("test.toml", text, &|_| None).unwrap_or_else(|error| panic!("{error}")).config;
    Gateway::start(config, PrometheusBuilder::new().build_recorder().handle()).await.unwrap()
}

/// Calls `greet` over HTTP/2 and TLS.
async fn greet(gateway: &Gateway, authority: &Authority, tracker: &TaskTracker) -> (StatusCode, Value) {
    let socket = TcpStream::connect(gateway.address()).await.unwrap();
    let connector = TlsConnector::from(Arc::new(authority.client(&["h2"])));
    let stream = connector.connect("localhost".try_into().unwrap(), socket).await.unwrap();
    let (mut requests, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tracker.spawn(connection);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"name": "greet", "arguments": {"name": "Ada"}, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let request = Request::post("https://localhost/reports/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "greet")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = timeout(WAIT_MAX, requests.send_request(request)).await.unwrap().unwrap();
    let status = response.status();
    let body = timeout(WAIT_MAX, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

/// The outcome of a call through a gateway whose upstream block ends with `tls`.
async fn outcome(folder: &Path, authority: &Authority, upstream: &Upstream, tls: &str) -> (StatusCode, Value) {
    authority.vouch(|_| ()).write(folder, "server");
    let at = folder.display();
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [listen.tls]\ncertificate = \"{at}/server.pem\"\nkey = \"{at}/server.key\"\n\
         [store]\npath = \"{at}/data\"\nephemeral = true\n[upstreams.reports]\nurl = \"{}\"\n[upstreams.reports.tls]\n{tls}",
        upstream.url,
    );
    let gateway = gateway(&text).await;
    assert_eq!(gateway.base_url(), format!("https://{}", gateway.address()));
    let answer = greet(&gateway, authority, &upstream.tracker).await;
    assert!(folder.join("data/seal.key").exists());
    timeout(WAIT_MAX, gateway.drain(Some(Duration::ZERO))).await.unwrap();
    answer
}

#[tokio::test]
async fn a_call_goes_through_tls_on_both_sides() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let ca = ca_file(folder.path(), "ca.pem", &authority);
    let upstream = Upstream::start(&authority.vouch(|_| ()), None, "http/1.1").await;
    let tls = format!("ca = \"{}\"", ca.display());
    let (status, answer) = outcome(folder.path(), &authority, &upstream, &tls).await;
    assert_eq!((status, &answer["result"]["content"][0]["text"]), (StatusCode::OK, &json!("Hello, Ada!")), "{answer}");
}

/// U42, with a file of authorities: neither the system's nor other authorities count.
#[tokio::test]
async fn an_upstream_with_an_untrusted_certificate_gets_no_request() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let other = ca_file(folder.path(), "other.pem", &Authority::new());
    let upstream = Upstream::start(&authority.vouch(|_| ()), None, "http/1.1").await;
    let expired = authority.vouch(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let expired = Upstream::start(&expired, None, "http/1.1").await;
    let own = ca_file(folder.path(), "ca.pem", &authority);
    for (upstream, ca) in [(&upstream, &other), (&expired, &own)] {
        let tls = format!("ca = \"{}\"", ca.display());
        let (status, answer) = outcome(folder.path(), &authority, upstream, &tls).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
        let data = &answer["error"]["data"];
        assert_eq!((&data["reason"], &data["executed"]), (&json!("upstream_tls"), &json!("no")), "{answer}");
    }
}

#[tokio::test]
async fn an_upstream_that_asks_for_a_certificate_gets_ours() {
    let (authority, clients, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let ca = format!("ca = \"{}\"", ca_file(folder.path(), "ca.pem", &authority).display());
    let own = clients.vouch(|_| ()).write(folder.path(), "gateway");
    let own = format!("certificate = \"{}\"\nkey = \"{}\"", own.certificate.display(), own.key.display());
    for alpn in ["http/1.1", "h2"] {
        let upstream = Upstream::start(&authority.vouch(|_| ()), Some(&clients), alpn).await;
        let (status, answer) = outcome(folder.path(), &authority, &upstream, &format!("{ca}\n{own}")).await;
        let text = &answer["result"]["content"][0]["text"];
        assert_eq!((status, text), (StatusCode::OK, &json!("Hello, Ada!")), "{alpn}: {answer}");
        // TLS 1.3 tells a client so only after it has begun to send.
        let (status, answer) = outcome(folder.path(), &authority, &upstream, &ca).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{alpn}: {answer}");
        let data = &answer["error"]["data"];
        assert_eq!((&data["reason"], &data["executed"]), (&json!("upstream_tls"), &json!("no")), "{alpn}: {answer}");
    }
}

/// `taskgate call --ca`: the file replaces the system's authorities.
#[tokio::test]
async fn a_caller_trusts_the_authorities_that_it_names_and_no_others() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let own = ca_file(folder.path(), "ca.pem", &authority);
    let other = ca_file(folder.path(), "other.pem", &Authority::new());
    for alpn in ["http/1.1", "h2"] {
        let upstream = Upstream::start(&authority.vouch(|_| ()), None, alpn).await;
        for (ca, code) in [(Some(&own), 0), (Some(&other), 69), (None, 69)] {
            let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_taskgate"));
            command.args(["call", &upstream.url, "greet", r#"{"name":"Ada"}"#]).kill_on_drop(true);
            command.args(ca.iter().flat_map(|ca| [Path::new("--ca"), ca.as_path()]));
            let output = timeout(WAIT_MAX, command.output()).await.unwrap().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(code), "{alpn} {ca:?}: {stderr}");
            assert_eq!(output.stdout == b"Hello, Ada!\n", code == 0);
        }
    }
}

/// B170, B166: all files at once, the same words from both commands, and nothing is started or made.
#[test]
fn files_of_no_use_end_the_start_with_64() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let good = authority.vouch(|_| ()).write(folder.path(), "good");
    authority.vouch(|_| ()).write(folder.path(), "other");
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::copy(&good.certificate, folder.path().join("data/seal.key")).unwrap();
    let key_file = folder.path().join("data/seal.key");
    std::fs::set_permissions(&key_file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let text = "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n[store]\npath = \"data\"\nephemeral = true\n\
                [listen.tls]\ncertificate = \"good.pem\"\nkey = \"other.key\"\n\
                [upstreams.a]\nurl = \"https://localhost/\"\n\
                tls = { ca = \"none.pem\", certificate = \"good.pem\", key = \"other.key\" }\n";
    std::fs::write(folder.path().join("gate.toml"), text).unwrap();
    let expected = "\
        gate.toml:6: key `store.path`: data/seal.key: others than its owner may use it (mode 0644); change that to 0600, and the \
        key if they may have read it\n\
        gate.toml:10: key `listen.tls.key`: other.key: is not the key of the certificate in good.pem\n\
        gate.toml:13: key `upstreams.a.tls.ca`: none.pem: cannot be read: No such file or directory (os error 2)\n\
        gate.toml:13: key `upstreams.a.tls.key`: other.key: is not the key of the certificate in good.pem\n";
    let beside = [
        expected,
        "gate.toml:14: key `upstreams.a.ttl`: unknown key here; it belongs to [upstreams.NAME.tasks] or \
        [[upstreams.NAME.tools]]\n",
    ]
    .concat();
    for arguments in [&["check", "gate.toml"][..], &["serve", "--config", "gate.toml"]] {
        check(folder.path(), arguments, expected);
    }
    let more = [text, "ttl = \"1h\"\n[upstreams.b]\ncommand = \"true\"\ncwd = \"nowhere\"\n"].concat();
    std::fs::write(folder.path().join("gate.toml"), more).unwrap();
    let beside = [&beside, "gate.toml:17: key `upstreams.b.cwd`: nowhere: is not a folder\n"].concat();
    for arguments in [&["check", "gate.toml"][..], &["serve", "--config", "gate.toml"]] {
        check(folder.path(), arguments, &beside);
    }
}

/// B245: time alone makes no file unusable: a certificate of the listener or towards one server that has expired, or is not
/// valid yet, is used, and `check` warns.
#[tokio::test]
async fn b245_a_certificate_that_has_expired_ends_no_start_and_no_reload() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let upstream = Upstream::start(&authority.vouch(|_| ()), None, "http/1.1").await;
    ca_file(folder.path(), "ca.pem", &authority);
    authority.vouch(|_| ()).write(folder.path(), "server");
    authority.vouch(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1)).write(folder.path(), "old");
    let at = folder.path().display();
    let text = |listener: &str, more: &str| {
        format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
             [listen.tls]\ncertificate = \"{at}/{listener}.pem\"\nkey = \"{at}/{listener}.key\"\n\
             [store]\nkind = \"memory\"\npath = \"{at}/data\"\n[upstreams.reports]\nurl = \"{}\"\n\
             tls = {{ ca = \"{at}/ca.pem\", certificate = \"{at}/old.pem\", key = \"{at}/old.key\" }}\n{more}",
            upstream.url
        )
    };
    let mut gateway = gateway(&text("server", "")).await;
    assert_eq!(greet(&gateway, &authority, &upstream.tracker).await.0, StatusCode::OK, "the server asks for none");
    authority.vouch(|params| params.not_before = rcgen::date_time_ymd(3000, 1, 1)).write(folder.path(), "server");
    let more = "[upstreams.more]\ncommand = \"true\"\n";
    let config = config::parse("test.toml", &text("server", more), &|_| None).unwrap().config;
    assert_eq!(gateway.reload(config).unwrap().opened, 1, "the rest of a changed file is applied");
    timeout(WAIT_MAX, gateway.drain(Some(Duration::ZERO))).await.unwrap();

    std::fs::write(folder.path().join("gate.toml"), text("old", "")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    let output = command.args(["check", "gate.toml"]).current_dir(folder.path()).output().unwrap();
    let warning = |line: u32, key: &str| {
        format!(
            "warning: gate.toml:{line}: key `{key}.certificate`: {at}/old.pem: the certificate has expired; write a newer one\n"
        )
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    for expected in [warning(6, "listen.tls"), warning(13, "upstreams.reports.tls")] {
        assert!(stderr.contains(&expected), "{stderr}");
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
}

/// The same of the files by which gateways share a database: nothing of it is connected to.
#[test]
fn files_of_no_use_for_a_database_and_its_gateways_end_the_start_with_64() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.vouch(|_| ()).write(folder.path(), "good");
    authority.vouch(|_| ()).write(folder.path(), "other");
    let text = "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
                [store]\nkind = \"postgres\"\nurl_file = \"db.url\"\npassword_file = \"db.password\"\nca = \"good.key\"\n\
                durability = \"single\"\npath = \"data\"\n\
                [replica]\naddress = \"192.0.2.1:9443\"\ncertificate = \"good.pem\"\nkey = \"other.key\"\nca = \"none.pem\"\n\
                [upstreams.a]\nurl = \"https://localhost/\"\n";
    std::fs::write(folder.path().join("gate.toml"), text).unwrap();
    let expected = "\
        gate.toml:7: key `store.url_file`: db.url: cannot be read: No such file or directory (os error 2)\n\
        gate.toml:8: key `store.password_file`: db.password: cannot be read: No such file or directory (os error 2)\n\
        gate.toml:9: key `store.ca`: good.key: has no certificate; a PEM file has one between BEGIN CERTIFICATE and END CERTIFICATE\n\
        gate.toml:15: key `replica.key`: other.key: is not the key of the certificate in good.pem\n\
        gate.toml:16: key `replica.ca`: none.pem: cannot be read: No such file or directory (os error 2)\n";
    for arguments in [&["check", "gate.toml"][..], &["serve", "--config", "gate.toml"]] {
        check(folder.path(), arguments, expected);
    }
}

#[track_caller]
fn check(folder: &Path, arguments: &[&str], expected: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    let output = command.args(arguments).env("TASKGATE_LOG", "error").current_dir(folder).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "{arguments:?}");
    assert_eq!(output.status.code(), Some(64), "{arguments:?}");
}

/// F65, B170: a certificate that was replaced is shown as soon as the configuration is read again; a bad one never, and the
/// rest of the configuration is applied beside it.
#[tokio::test]
async fn f65_a_reload_shows_the_new_certificate_and_b170_keeps_the_old_one_where_the_new_is_of_no_use() {
    let (authority, other, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let upstream = Upstream::start(&authority.vouch(|_| ()), None, "http/1.1").await;
    let ca = ca_file(folder.path(), "ca.pem", &authority);
    authority.vouch(|_| ()).write(folder.path(), "server");
    let at = folder.path().display();
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [listen.tls]\ncertificate = \"{at}/server.pem\"\nkey = \"{at}/server.key\"\n\
         [store]\nkind = \"memory\"\npath = \"{at}/data\"\n\
         [upstreams.reports]\nurl = \"{}\"\n[upstreams.reports.tls]\nca = \"{}\"",
        upstream.url,
        ca.display()
    );
    let with = |more: &str| config::parse("test.toml", &format!("{text}{more}"), &|_| None).unwrap().config;
    let config = || with("");
    let mut gateway = gateway(&text).await;
    assert_eq!(greet(&gateway, &authority, &upstream.tracker).await.0, StatusCode::OK);

    std::fs::write(folder.path().join("server.key"), "nonsense").unwrap();
    std::fs::write(&ca, "nonsense").unwrap();
    let changes = gateway.reload(with("\n[upstreams.more]\ncommand = \"true\"\n")).unwrap();
    assert_eq!((changes.kept, changes.opened), (1, 1));
    assert_eq!(greet(&gateway, &authority, &upstream.tracker).await.0, StatusCode::OK, "the old ones are in use");
    let refused = gateway.reload(with("\n[upstreams.reports.tasks]\nttl = \"1h\"\n")).unwrap_err();
    assert!(
        format!("{refused:#}").contains("ca.pem: has no certificate"),
        "a changed upstream needs them: {refused:#}"
    );

    ca_file(folder.path(), "ca.pem", &authority);
    other.vouch(|_| ()).write(folder.path(), "server");
    let changes = gateway.reload(config()).unwrap();
    assert_eq!((changes.kept, changes.opened, changes.retired, changes.others), (1, 0, 1, true));
    assert!(gateway.reload(config()).unwrap().is_none(), "nothing changed since");
    let shown = async {
        while !trusts(&gateway, &other).await {
            tokio::task::yield_now().await;
        }
    };
    // Without a signal, the listener checks the files only after five seconds.
    timeout(Duration::from_secs(4), shown).await.unwrap();
    assert_eq!(greet(&gateway, &other, &upstream.tracker).await.0, StatusCode::OK);
    timeout(WAIT_MAX, gateway.drain(Some(Duration::ZERO))).await.unwrap();
}

/// Whether a client that trusts this authority alone gets through the handshake.
async fn trusts(gateway: &Gateway, authority: &Authority) -> bool {
    let socket = TcpStream::connect(gateway.address()).await.unwrap();
    let connector = TlsConnector::from(Arc::new(authority.client(&["h2"])));
    connector.connect("localhost".try_into().unwrap(), socket).await.is_ok()
}
