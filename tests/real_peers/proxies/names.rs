//! By which names and from which pages requests come through a proxy, who they are from, and how large they may be.

use std::net::IpAddr;

use futures_util::future::join_all;
use http::Version;
use serde_json::{Value, json};
use support::peers::install::Peers;
use support::session_client::{Client, HttpOptions};

use super::running_proxy::{HOST, ProxySetup, ReverseProxy};
use super::{Front, PUBLIC, post, stateless};

const FOREIGN: &str = "evil.example";

/// The status of a request with these headers in place of its own, and the body.
async fn asked(client: &Client, headers: &[(&'static str, &str)]) -> (u16, String) {
    let mut request =
        client.request("POST").header("mcp-protocol-version", "2026-07-28").header("mcp-method", "tools/list");
    for (name, value) in headers {
        request.headers_mut().unwrap().insert(*name, value.parse().unwrap());
    }
    let params = json!({ "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    } });
    let reply = post(client, request, "tools/list", &params).await.unwrap();
    (reply.status.as_u16(), reply.text().await)
}

/// The public URL alone tells the gateway its name and pages, with any `Host` that the proxy sends.
#[tokio::test]
async fn the_public_name_is_served_behind_every_proxy_and_no_other() {
    if !Peers::are_asked_for("names and origins behind nginx, Caddy and HAProxy") {
        return;
    }
    for proxy in ReverseProxy::ALL {
        let front = Front::start(proxy, ProxySetup::Documented, PUBLIC, "names").await;
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let client = front.proxy.client(&front.behind, version);
            assert_eq!(asked(&client, &[]).await.0, 200, "{proxy:?} {version:?}");
            let (own, foreign) = (format!("https://{HOST}"), format!("https://{FOREIGN}"));
            assert_eq!(asked(&client, &[("origin", &own)]).await.0, 200, "{proxy:?} {version:?}");
            let (status, why) = asked(&client, &[("origin", &foreign)]).await;
            assert!(status == 403 && why.contains("allowed_origins"), "{proxy:?} {version:?}: {why}");
        }
        let client = front.proxy.client(&front.behind, Version::HTTP_11);
        let (status, text) = asked(&client, &[("host", FOREIGN)]).await;
        match proxy {
            // It has no such site.
            ReverseProxy::Caddy => assert_eq!((status, text.as_str()), (200, "")),
            ReverseProxy::Nginx | ReverseProxy::Haproxy => {
                assert!(status == 403 && text.contains("allowed_hosts"), "{text}")
            }
        }
    }
}

/// Without settings about the proxy, its own headers decide. No client is taken for the machine's one user.
#[tokio::test]
async fn without_a_public_url_a_proxy_decides_by_the_host_that_it_passes_on() {
    if !Peers::are_asked_for("nginx, Caddy and HAProxy in front of a gateway that knows nothing of them") {
        return;
    }
    for proxy in ReverseProxy::ALL {
        let front = Front::start(proxy, ProxySetup::Least, "", "told-nothing").await;
        let client = front.proxy.client(&front.behind, Version::HTTP_11);
        let (status, text) = asked(&client, &[]).await;
        match proxy {
            ReverseProxy::Caddy | ReverseProxy::Haproxy => {
                assert!(status == 403 && text.contains("allowed_hosts"), "{text}")
            }
            // It requests the name of its own configuration, in HTTP/1.0.
            ReverseProxy::Nginx => {
                assert_eq!(status, 200);
                let opened =
                    client.post(support::session_client::initialize("2025-11-25", &json!({}))).await.json().await;
                let tasks = &opened["result"]["capabilities"]["tasks"];
                assert!(tasks.is_object() && tasks.get("list").is_none(), "the client is anonymous: {opened}");
            }
        }
    }
}

/// So many requests of a client at this address, each of which says in its headers that it comes from another; how many were
/// served.
async fn served(front: &Front, from: [u8; 4], count: u8) -> usize {
    let client = front.proxy.client(&front.behind, Version::HTTP_11);
    let over = HttpOptions { from: IpAddr::from(from), ..client.over.clone() };
    let client = Client { over, ..client };
    let answers = (0..count).map(async |n| {
        let lies = [format!("for=192.0.2.{n}"), format!("192.0.2.{n}")];
        let lies = [("forwarded", lies[0].as_str()), ("x-forwarded-for", &lies[1]), ("x-real-ip", &lies[1])];
        asked(&client, if n % 2 == 0 { &lies } else { &lies[1..] }).await.0
    });
    join_all(answers).await.into_iter().filter(|status| *status == 200).count()
}

/// A trusted proxy tells the clients' addresses, and each address has its own share of requests, in spite of the clients' own headers.
#[tokio::test]
async fn a_client_that_asks_too_often_is_told_from_others_behind_every_proxy() {
    if !Peers::are_asked_for("addresses of clients behind nginx, Caddy and HAProxy") {
        return;
    }
    for proxy in ReverseProxy::ALL {
        let front = Front::start(proxy, ProxySetup::Documented, PUBLIC, "addresses").await;
        let (mut noisy, mut sent) = (0, 0);
        while noisy == sent {
            noisy += served(&front, [127, 0, 0, 2], 50).await;
            sent += 50;
            assert!(sent < 5_000, "{proxy:?}: an address has no bound");
        }
        let client = front.proxy.client(&front.behind, Version::HTTP_11);
        let over = HttpOptions { from: [127, 0, 0, 3].into(), ..client.over.clone() };
        let other = Client { over, ..client };
        let others = join_all((0..20).map(|_| asked(&other, &[]))).await;
        assert!(others.iter().all(|(status, _)| *status == 200), "{proxy:?}: another address");
    }
}

/// A body of the gateway's maximum gets through; nginx by itself takes 1 MiB.
#[tokio::test]
async fn large_arguments_get_through_every_proxy() {
    if !Peers::are_asked_for("large requests behind nginx, Caddy and HAProxy") {
        return;
    }
    for proxy in ReverseProxy::ALL {
        for setup in [ProxySetup::Least, ProxySetup::Documented] {
            let front = Front::start(proxy, setup, PUBLIC, "large").await;
            let client = front.proxy.client(&front.behind, Version::HTTP_11);
            let call: Value = json!({ "name": "work", "arguments": { "text": "x".repeat(3 << 20) } });
            let (reply, ()) = futures_util::future::join(stateless(&client, "tools/call", call), async {
                if proxy != ReverseProxy::Nginx || setup != ProxySetup::Least {
                    front.behind.call().await.answer(&json!({ "content": [] }));
                }
            })
            .await;
            let refused = proxy == ReverseProxy::Nginx && setup == ProxySetup::Least;
            assert_eq!(reply.unwrap().status.as_u16(), if refused { 413 } else { 200 }, "{proxy:?} {setup:?}");
        }
    }
}
