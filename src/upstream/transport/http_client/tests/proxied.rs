//! Requests through a proxy that alone knows the servers' names.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};

use support::ports::reserved_address;

use super::*;

/// The proxy's behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyManner {
    /// Connects every name to the server at this port.
    Serves(u16),
    Refuses(u16),
    Silent,
}

/// A proxy that records the heads of its requests.
async fn proxy(manner: ProxyManner) -> (url::Url, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&heads);
    let tasks = TaskTracker::new();
    tasks.clone().spawn(async move {
        loop {
            let mut client = BufReader::new(listener.accept().await.unwrap().0);
            let seen = Arc::clone(&seen);
            tasks.spawn(async move {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && client.read_line(&mut head).await.unwrap() > 0 {}
                let is_tunnel = head.starts_with("CONNECT ");
                seen.lock().push(head.clone());
                match manner {
                    ProxyManner::Silent => {
                        // Until the client closes.
                        let _ = client.read(&mut [0]).await;
                    }
                    ProxyManner::Refuses(status) => {
                        let answer = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
                        client.write_all(answer.as_bytes()).await.unwrap();
                    }
                    ProxyManner::Serves(port) if is_tunnel => {
                        let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                    ProxyManner::Serves(_) => {
                        client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                    }
                }
            });
        }
    });
    (url, heads)
}

/// The outcome of a request through a proxy, and its text.
async fn sent(to: &str, proxy: ProxySettings, tls: ClientTls, connect_max: Duration) -> (Option<u16>, String) {
    let client = HttpClient::new(&Arc::from("reports"), &to.parse().unwrap(), connect_max, tls, &proxy).unwrap();
    let outgoing = SessionHeaders::default().post(Bytes::from_static(b"{}"));
    let handed_over = HandedOver::default();
    let answer = tokio::time::timeout(Duration::from_secs(20), client.send(&outgoing, &handed_over)).await.unwrap();
    let said = client.health().last().map(|failure| failure.cause.clone()).unwrap_or_default();
    (answer.ok().map(|response| response.status().as_u16()), said)
}

fn at(url: &url::Url, credentials_file: Option<std::path::PathBuf>) -> ProxySettings {
    ProxySettings::At { url: url.clone(), credentials_file }
}

/// UPC-31.
#[tokio::test]
async fn a_server_that_only_the_proxy_knows_is_reached_through_it() {
    let (authority, config) = vouched_for("up.invalid");
    let port = serve(config).await.port().unwrap();
    let (url, heads) = proxy(ProxyManner::Serves(port)).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.key");
    fs::write(&file, "user:s3cr3t\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let long = Duration::from_secs(15);
    let through = || at(&url, Some(file.clone()));
    let (status, said) = sent(&format!("https://up.invalid:{port}/mcp"), through(), trusting(authority), long).await;
    assert_eq!(status, Some(200), "{said}");
    let (status, said) = sent("http://up.invalid/mcp?a=1", through(), ClientTls::default(), long).await;
    assert_eq!(status, Some(200), "{said}");
    let heads = heads.lock().clone();
    let lines: Vec<_> = heads.iter().map(|head| head.lines().next().unwrap_or_default().to_owned()).collect();
    assert_eq!(
        lines,
        [format!("CONNECT up.invalid:{port} HTTP/1.1"), "POST http://up.invalid/mcp?a=1 HTTP/1.1".to_owned()]
    );
    let credentials = format!("proxy-authorization: Basic {}", BASE64_STANDARD.encode("user:s3cr3t"));
    for head in &heads {
        assert!(head.to_ascii_lowercase().contains(&credentials.to_ascii_lowercase()), "{head}");
    }
}

#[tokio::test]
async fn a_proxy_that_serves_nothing_is_named_with_its_behaviour() {
    for (manner, to, expected) in [
        (ProxyManner::Refuses(407), "https://up.invalid/mcp", "it asks for other credentials (HTTP 407)"),
        (ProxyManner::Refuses(407), "http://up.invalid/mcp", "the proxy asks for other credentials"),
        (ProxyManner::Refuses(502), "https://up.invalid/mcp", "it refused to connect to the server (HTTP 502)"),
        (ProxyManner::Silent, "https://up.invalid/mcp", "no connection in time"),
    ] {
        let (url, heads) = proxy(manner).await;
        // Only of a silent proxy the whole time is waited for.
        let connect_max = if manner == ProxyManner::Silent { 2 * CONNECT_MAX } else { Duration::from_secs(15) };
        let (_, said) = sent(to, at(&url, None), ClientTls::default(), connect_max).await;
        let name = format!("through the proxy {}:{}: ", url.host_str().unwrap(), url.port().unwrap());
        assert!(said.contains(expected) && (to.starts_with("http:") || said.starts_with(&name)), "{manner:?}: {said}");
        assert!(!heads.lock().is_empty());
    }
    let gone = reserved_address();
    let url = format!("http://{gone}").parse().unwrap();
    let (status, said) = sent("https://up.invalid/mcp", at(&url, None), ClientTls::default(), 15 * CONNECT_MAX).await;
    assert_eq!((status, said), (None, format!("through the proxy {gone}: connection refused")));
}
