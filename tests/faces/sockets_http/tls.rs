//! TLS on the client listener: negotiation, refused clients and their alerts, and certificates that change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use taskgate::server::{Authenticator, ListenSettings, ListenerLimits, ListenerRole, ListenerSpec, Routes, start};
use taskgate::task::Principal;
use taskgate::tls::IdentityFiles;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::TaskTracker;

use super::certificates::Authority;
use super::harness::{Gate, PATIENCE, gate_with, post, settings};

/// A gate that speaks TLS, and the files for its clients.
struct Secure {
    gate: Gate,
    authority: Authority,
    /// Holds `server.pem` and `server.key`.
    folder: TempDir,
    first: CertificateDer<'static>,
}

async fn secure(limits: ListenerLimits) -> Secure {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let identity = authority.vouch(|_| ());
    let tls = Some(identity.write(folder.path(), "server"));
    let gate = gate_with(ListenSettings { tls, ..settings() }, limits).await;
    Secure { gate, authority, folder, first: identity.certificate }
}

impl Secure {
    async fn dial(&self, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(self.gate.running.local_addr()).await.unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), socket);
        timeout(PATIENCE, connecting).await.expect("a handshake or a refusal")
    }

    async fn connect(&self, alpn: &[&str]) -> TlsStream<TcpStream> {
        self.dial(self.authority.client(alpn)).await.unwrap()
    }

    /// All bytes that come in answer to `bytes`, which are no TLS or not enough of it, until the gate closes.
    async fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut client = self.gate.connect().await;
        client.send(bytes).await;
        let mut read = Vec::new();
        timeout(PATIENCE, client.stream.read_to_end(&mut read)).await.expect("an end").expect("no reset");
        read
    }
}

/// Reads one answer with a length of 15 over HTTP/1.
async fn answer_over(stream: &mut TlsStream<TcpStream>) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"{\"served\":true}") {
        assert!(timeout(PATIENCE, stream.read_buf(&mut read)).await.unwrap().unwrap() > 0, "an answer that broke off");
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn http_1_is_served_where_the_client_asks_for_it_or_for_nothing() {
    let secure = secure(ListenerLimits::default()).await;
    for (alpn, agreed) in [(&["http/1.1"][..], Some(&b"http/1.1"[..])), (&[], None)] {
        let mut stream = secure.connect(alpn).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed);
        for _ in 0..2 {
            stream.write_all(post("", "{}").as_bytes()).await.unwrap();
            assert!(answer_over(&mut stream).await.starts_with("HTTP/1.1 200 "));
        }
    }
    assert_eq!(secure.gate.reached(), 4);
}

#[tokio::test]
async fn http_2_is_agreed_on_where_both_speak_it() {
    let secure = secure(ListenerLimits::default()).await;
    let stream = secure.connect(&["http/1.1", "h2"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "the gate prefers it");
    let tracker = TaskTracker::new();
    let (mut requests, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tracker.spawn(connection);
    let request = Request::post("https://localhost/mcp").header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from_static(b"{}"))).unwrap();
    let response = timeout(PATIENCE, requests.send_request(request)).await.unwrap().unwrap();
    assert_eq!((response.version(), response.status().as_u16()), (Version::HTTP_2, 200));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "{\"served\":true}");
}

/// The guards do not depend on the transport below HTTP: B58 over TLS.
#[tokio::test]
async fn a_foreign_host_is_refused_over_tls_too() {
    let secure = secure(ListenerLimits::default()).await;
    let mut stream = secure.connect(&[]).await;
    stream.write_all(post("", "{}").replace("Host: localhost", "Host: evil.example").as_bytes()).await.unwrap();
    let mut read = vec![0; 12];
    timeout(PATIENCE, stream.read_exact(&mut read)).await.unwrap().unwrap();
    assert_eq!(read, b"HTTP/1.1 403");
    assert_eq!(secure.gate.reached(), 0);
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_spoken() {
    let secure = secure(ListenerLimits::default()).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = ClientConfig::builder_with_provider(taskgate::tls::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(secure.authority.roots())
            .with_no_client_auth();
        let mut stream = secure.dial(config).await.unwrap();
        assert_eq!(stream.get_ref().1.protocol_version(), Some(version.version));
        stream.write_all(post("", "{}").as_bytes()).await.unwrap();
        assert!(answer_over(&mut stream).await.starts_with("HTTP/1.1 200 "));
    }
}

/// A ClientHello in which nothing is wrong but, perhaps, these two.
fn hello(version: [u8; 2], cipher: [u8; 2]) -> Vec<u8> {
    let mut body = version.to_vec();
    body.extend([7; 32]);
    body.extend([0, 0, 2, cipher[0], cipher[1], 1, 0]);
    // P-256, and ECDSA with it.
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, 16]);
    body.extend(extensions);
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
    let mut handshake = vec![1, 0, 0, length(&body)];
    handshake.extend(body);
    let mut record = vec![22, 3, 1, 0, length(&handshake)];
    record.extend(handshake);
    record
}

/// B30, SEC-20: an alert, the end of the connection, and no byte of HTTP.
#[tokio::test]
async fn a_client_without_tls_or_with_an_old_version_gets_an_alert() {
    let secure = secure(ListenerLimits::default()).await;
    for (name, sent, alert) in [
        ("B30 plaintext", post("", "{}").into_bytes(), 10..=50),
        ("B30 HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), 10..=50),
        ("a record that is none", vec![0xff; 64], 10..=50),
        ("B30 TLS 1.0", hello([3, 1], [0xc0, 0x09]), 70..=70),
        ("SEC-20 TLS 1.1", hello([3, 2], [0xc0, 0x09]), 70..=70),
        ("B30 no common cipher", hello([3, 3], [0x00, 0x0a]), 40..=40),
    ] {
        let read = secure.raw(&sent).await;
        let [21, 3, _, 0, 2, 2, reason] = read[..] else { panic!("{name}: {read:?} is no fatal alert") };
        assert!(alert.contains(&reason), "{name}: {reason}");
    }
    let refused = secure.dial(secure.authority.client(&["spdy/1"])).await.unwrap_err().to_string();
    assert!(refused.contains("NoApplicationProtocol"), "{refused}");
    assert_eq!(secure.gate.reached(), 0);
    secure.gate.emptied().await;
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_ended() {
    let secure =
        secure(ListenerLimits { handshake_deadline: Duration::from_millis(100), ..ListenerLimits::default() }).await;
    assert_eq!(secure.raw(b"").await, b"");
    assert_eq!(secure.raw(&hello([3, 3], [0xc0, 0x2b])[..20]).await, b"");
    secure.gate.emptied().await;
    let slow = ListenerLimits { head_deadline: Duration::from_millis(100), ..ListenerLimits::default() };
    let secure = self::secure(slow).await;
    let mut silent = secure.connect(&[]).await;
    let ended = timeout(PATIENCE, silent.read(&mut [0; 1])).await.expect("B27: an end");
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
}

/// B28 over TLS: bytes in the buffers of TLS count as unread.
#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let hasty = ListenerLimits { write_stall: Duration::from_millis(100), ..ListenerLimits::default() };
    let secure = secure(hasty).await;
    let mut stream = secure.connect(&["http/1.1"]).await;
    stream.write_all(post("", "{}").replace("/mcp", "/flood").as_bytes()).await.unwrap();
    secure.gate.arrivals(1).await;
    secure.gate.emptied().await;
}

/// Whether a new connection is shown `certificate`.
async fn shows(secure: &Secure, certificate: &CertificateDer<'static>) -> bool {
    let stream = secure.connect(&[]).await;
    stream.get_ref().1.peer_certificates().is_some_and(|chain| chain[0] == *certificate)
}

/// F65: new handshakes use the new pair, connections go on, a bad file changes nothing.
#[tokio::test]
async fn a_certificate_that_was_replaced_is_shown_without_a_restart() {
    let secure =
        secure(ListenerLimits { certificate_check: Duration::from_millis(20), ..ListenerLimits::default() }).await;
    let mut early = secure.connect(&[]).await;
    assert!(shows(&secure, &secure.first).await);
    // Half of a change is a mismatch, and so nothing to be shown.
    let second = secure.authority.vouch(|_| ());
    let pair = second.write(secure.folder.path(), "second");
    let used = |name: &str| secure.folder.path().join(name);
    std::fs::rename(&pair.key, used("server.key")).unwrap();
    // Time for several checks of the files; a wrong reload would have come by now.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(shows(&secure, &secure.first).await);
    std::fs::rename(&pair.certificate, used("server.pem")).unwrap();
    let changed = async {
        while !shows(&secure, &second.certificate).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, changed).await.expect("the new certificate is taken up");
    early.write_all(post("", "{}").as_bytes()).await.unwrap();
    assert!(answer_over(&mut early).await.starts_with("HTTP/1.1 200 "));
}

/// Names of the certificate are served, with any certificate that is shown at the time.
#[tokio::test]
async fn names_of_the_certificate_are_served() {
    let named = |names: &'static [&'static str]| {
        move |params: &mut rcgen::CertificateParams| {
            let name = |name: &&str| rcgen::SanType::DnsName((*name).try_into().unwrap());
            params.subject_alt_names.extend(names.iter().map(name));
        }
    };
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let first = authority.vouch(named(&["mcp.example", "*.wild.example"]));
    let tls = Some(first.write(folder.path(), "server"));
    let limits = ListenerLimits { certificate_check: Duration::from_millis(20), ..ListenerLimits::default() };
    let gate = gate_with(ListenSettings { tls, ..settings() }, limits).await;
    let secure = Secure { gate, authority, folder, first: first.certificate };
    let status = async |host: &str| {
        let mut stream = secure.connect(&[]).await;
        let request = post("", "{}").replace("Host: localhost", &format!("Host: {host}"));
        let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut read = Vec::new();
        // A refusal ends the connection with the body unread.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut read)).await.unwrap();
        String::from_utf8_lossy(&read).split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for (host, expected) in [
        ("localhost", "200"),
        ("gate.example", "200"),
        ("mcp.example", "200"),
        ("MCP.example:443", "200"),
        ("mcp.example", "200"),
        ("a.wild.example", "200"),
        ("a.b.wild.example", "403"),
        ("wild.example", "403"),
        ("next.example", "403"),
        ("mcp.example.evil.example", "403"),
    ] {
        assert_eq!(status(host).await, expected, "{host}");
    }
    let second = secure.authority.vouch(named(&["next.example"]));
    second.write(secure.folder.path(), "server");
    let changed = async {
        while !shows(&secure, &second.certificate).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, changed).await.expect("the new certificate is taken up");
    assert_eq!((status("next.example").await.as_str(), status("mcp.example").await.as_str()), ("200", "403"));
}

/// B170.
#[tokio::test]
async fn a_listener_does_not_start_with_a_pair_that_is_none() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let start_with = async |files: IdentityFiles| {
        let settings = ListenSettings { tls: Some(files), ..settings() };
        let (callers, routes) = (Authenticator::Everyone(Principal::local()), Routes::new());
        let refused = start(ListenerSpec {
            role: ListenerRole::Clients,
            settings,
            limits: ListenerLimits::default(),
            callers,
            routes,
            peers: None,
            audit: None,
        })
        .await;
        let refused = refused.map(|running| running.local_addr()).unwrap_err().to_string();
        refused.replace(&format!("{}/", folder.path().display()), "")
    };
    let good = authority.vouch(|_| ()).write(folder.path(), "good");
    let other = authority.vouch(|_| ()).write(folder.path(), "other");
    assert_eq!(
        start_with(IdentityFiles { key: other.key, ..good.clone() }).await,
        "other.key: is not the key of the certificate in good.pem"
    );
    assert_eq!(
        start_with(IdentityFiles { key: folder.path().join("none.key"), ..good }).await,
        "none.key: cannot be read: No such file or directory (os error 2)"
    );
}
