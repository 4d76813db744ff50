//! One of the servers is not there, or does not answer: the others are.

use std::future::pending;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use support::ports::reserved_address;

use super::speaker::Kind;
use super::upstream::{ScriptedReply, ScriptedServer, SeenRequest, json_text};
use super::{KINDS, at_one_path, client_of, hello, said, says_hello, tools};

/// How long an endpoint waits for an upstream's description.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long clients wait for `server/discover`, before they open a session instead.
const DISCOVER_MAX: Duration = Duration::from_secs(10);

#[tokio::test]
async fn one_of_twenty_servers_is_away_and_nineteen_are_there() {
    let servers = join_all((0..20).map(|n| async move { hello(&format!("s{n}"), |_| None).await })).await;
    let mut addresses: Vec<_> =
        servers.iter().enumerate().map(|(n, server)| (format!("s{n}"), server.address)).collect();
    addresses[6].1 = reserved_address();
    let gate = at_one_path(&addresses, "").await;
    let there: Vec<_> = (0..20).filter(|n| *n != 6).map(|n| format!("s{n}__hello")).collect();
    for kind in KINDS {
        let mut client = client_of(kind, &gate).await;
        assert_eq!(tools(&mut client).await, there, "{kind:?}");
        for n in [0, 5, 7, 19] {
            assert_eq!(said(&mut client, &format!("s{n}__hello")).await, format!("s{n}"), "{kind:?}");
        }
        assert_eq!(said(&mut client, "s6__hello").await, "-32603 no", "{kind:?}");
    }
}

/// A server that answers nothing of `held`, ever.
async fn silent(held: &'static [&'static str]) -> ScriptedServer {
    ScriptedServer::slow(move |seen, _| async move {
        if held.contains(&seen.rpc()) {
            return pending::<Option<ScriptedReply>>().await;
        }
        says_hello("silent", &seen)
    })
    .await
}

/// Once a server has been late twice, it is not waited for as long again.
#[tokio::test]
async fn servers_that_do_not_answer_delay_the_others_only_briefly() {
    let quick = hello("quick", |_| None).await;
    let (mute, listless) = (silent(&["initialize", "server/discover"]).await, silent(&["tools/list"]).await);
    let servers = [("mute", &mute), ("quick", &quick), ("listless", &listless)];
    let servers = servers.map(|(name, server)| (name.to_owned(), server.address));
    // An endpoint for each kind of client, so that none uses another's cache.
    join_all(KINDS.map(|kind| {
        let servers = servers.clone();
        async move {
            let gate = at_one_path(&servers, "").await;
            let opening = Instant::now();
            let mut client = client_of(kind, &gate).await;
            if kind == Kind::Stateless {
                let said = client.ask("server/discover", json!({})).await.unwrap();
                assert!(said["result"]["capabilities"]["tools"].is_object(), "{said}");
            }
            assert!(opening.elapsed() < DISCOVER_MAX, "{kind:?}: {:?}", opening.elapsed());
            for _ in 0..2 {
                let begun = Instant::now();
                assert_eq!(tools(&mut client).await, ["quick__hello"], "{kind:?}");
                assert!(begun.elapsed() < ANSWER_MAX * 3 / 2, "{kind:?}: {:?}", begun.elapsed());
            }
            let again = Instant::now();
            let mut other = client_of(kind, &gate).await;
            for client in [&mut client, &mut other] {
                assert_eq!(tools(client).await, ["quick__hello"], "{kind:?}");
                assert_eq!(said(client, "quick__hello").await, "quick", "{kind:?}");
            }
            assert!(again.elapsed() < ANSWER_MAX, "{kind:?}: {:?}", again.elapsed());
        }
    }))
    .await;
}

#[tokio::test]
async fn an_unlisted_resource_is_found_while_a_server_is_unavailable() {
    let two = hello("two", |seen| {
        let uri = seen.body["params"]["uri"].as_str().unwrap_or_default();
        (seen.rpc() == "resources/read").then(|| match uri {
            "hidden://two" => super::answer(seen, &json!({"contents": [{"uri": uri, "text": "found"}]})),
            _ => not_found(seen),
        })
    })
    .await;
    *two.world.initialize_result.lock() = json!({"capabilities": {"tools": {}, "resources": {}}});
    let gate = at_one_path(&[("one".to_owned(), reserved_address()), ("two".to_owned(), two.address)], "").await;
    for kind in KINDS {
        let mut client = client_of(kind, &gate).await;
        let read = client.ask("resources/read", json!({"uri": "hidden://two"})).await.unwrap();
        assert_eq!(read["result"]["contents"][0]["text"], "found", "{kind:?}: {read}");
        let none = client.ask("resources/read", json!({"uri": "hidden://nobody"})).await.unwrap();
        assert_eq!(none["error"]["message"], "no such resource", "{kind:?}: {none}");
    }
}

fn not_found(seen: &SeenRequest) -> ScriptedReply {
    let error = json!({"code": -32002, "message": "no such resource"});
    json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string())
}

/// The first that lists it is the first that is there.
#[tokio::test]
async fn a_resource_of_two_servers_is_the_seconds_while_the_first_is_away() {
    let server = |name: &'static str| async move {
        let server = hello(name, move |seen| {
            let result = match seen.rpc() {
                "resources/list" => json!({"resources": [{"uri": "test://both", "name": name}]}),
                "resources/read" => json!({"contents": [{"uri": "test://both", "text": name}]}),
                _ => return None,
            };
            Some(super::answer(seen, &result))
        })
        .await;
        *server.world.initialize_result.lock() = json!({"capabilities": {"tools": {}, "resources": {}}});
        server
    };
    let (one, two) = (server("one").await, server("two").await);
    let addresses = |first| [("one".to_owned(), first), ("two".to_owned(), two.address)];
    for (first, owner) in [(one.address, "one"), (reserved_address(), "two")] {
        let gate = at_one_path(&addresses(first), "").await;
        for kind in [Kind::Session, Kind::Stateless] {
            let mut client = client_of(kind, &gate).await;
            let listed = client.ask("resources/list", json!({})).await.unwrap()["result"]["resources"].take();
            assert_eq!(listed, json!([{"uri": "test://both", "name": owner}]), "{kind:?}");
            let read = client.ask("resources/read", json!({"uri": "test://both"})).await.unwrap();
            assert_eq!(read["result"]["contents"][0]["text"], owner, "{kind:?}: {read}");
        }
    }
}
