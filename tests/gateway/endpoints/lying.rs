//! One of the servers lies about its list: its lies stay its own.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};

use super::speaker::Kind;
use super::upstream::{BodySender, ScriptedReply, SeenRequest, answer, json_text, status, whole};
use super::{KINDS, at_one_path, client_of, hello, said, tool, tools};

/// Most pages of one list that are read.
const PAGES_MAX: usize = 200;

/// A server's tool list, and the tools that clients get.
type Lie = (&'static str, fn(&SeenRequest) -> ScriptedReply, &'static [&'static str]);

fn listed(seen: &SeenRequest, tools: &Value) -> ScriptedReply {
    answer(seen, &json!({"tools": tools}))
}

fn refused(seen: &SeenRequest, code: u16) -> ScriptedReply {
    let error = json!({"code": -32000, "message": "who are you?"});
    let mut reply = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
    *reply.status_mut() = StatusCode::from_u16(code).unwrap();
    reply.headers_mut().insert("www-authenticate", "Bearer realm=\"x\"".parse().unwrap());
    reply
}

const LIES: [Lie; 15] = [
    ("tools that are an object", |seen| listed(seen, &json!({"0": tool("hello")})), &[]),
    ("tools that are a text", |seen| listed(seen, &json!("hello")), &[]),
    ("no tools", |seen| answer(seen, &json!({})), &[]),
    ("a result that is a list", |seen| answer(seen, &json!([tool("hello")])), &[]),
    ("no result", |seen| json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"]}).to_string()), &[]),
    ("tools without names", |seen| listed(seen, &json!([{"inputSchema": {}}, {"name": 7}, 7, null])), &[]),
    ("one without a name", |seen| listed(seen, &json!([{"title": "x"}, tool("hello")])), &["liar__hello"]),
    ("one name twice", |seen| listed(seen, &json!([tool("hello"), tool("hello")])), &["liar__hello"]),
    ("an empty name", |seen| listed(seen, &json!([tool("")])), &["liar__"]),
    ("a name with another's prefix", |seen| listed(seen, &json!([tool("good__hello")])), &["liar__good__hello"]),
    ("a name with its own prefix", |seen| listed(seen, &json!([tool("liar__hello")])), &["liar__liar__hello"]),
    ("a page", |_| whole("<html>Bad gateway</html>"), &[]),
    ("text that is not JSON", |_| json_text("{\"jsonrpc\":\"2.0\",\"id\":"), &[]),
    ("that it wants a login", |seen| refused(seen, 401), &[]),
    (
        "half an answer",
        |_| {
            let (events, reply) = BodySender::open();
            events.cut();
            reply
        },
        &[],
    ),
];

/// A name with another upstream's prefix never leads to it.
#[tokio::test]
async fn a_server_that_lies_about_its_tools_takes_none_from_the_others() {
    let trying = LIES.into_iter().flat_map(|lie| ["always", "auto"].map(|policy| (lie, policy)));
    join_all(trying.map(|((what, lie, shown), policy)| async move {
        let liar = hello("liar", move |seen| (seen.rpc() == "tools/list").then(|| lie(seen))).await;
        let good = hello("good", |_| None).await;
        let servers = [("liar".to_owned(), liar.address), ("good".to_owned(), good.address)];
        let gate = at_one_path(&servers, &format!("prefix = \"{policy}\"")).await;
        for kind in KINDS {
            let mut client = client_of(kind, &gate).await;
            let found = tools(&mut client).await;
            match policy {
                "always" => assert_eq!(found, [shown, &["good__hello"]].concat(), "{what}, {kind:?}"),
                // With a prefix only where two have the name.
                _ => assert!(
                    found.contains(&"good__hello".to_owned()) != found.contains(&"hello".to_owned()),
                    "{what}: {found:?}"
                ),
            }
            assert_eq!(said(&mut client, "good__hello").await, "good", "{what}, {kind:?}");
            if policy == "always" {
                for name in shown {
                    assert_eq!(said(&mut client, name).await, "liar", "{what}, {kind:?}: {name}");
                }
            }
        }
    }))
    .await;
}

#[tokio::test]
async fn a_cursor_that_leads_to_itself_leads_nowhere() {
    for cursor in [json!(7), json!("x"), json!({"at": [1]})] {
        let page = json!({"tools": [tool("hello")], "nextCursor": cursor});
        let liar = hello("liar", move |seen| (seen.rpc() == "tools/list").then(|| answer(seen, &page))).await;
        let good = hello("good", |_| None).await;
        let servers = [("liar".to_owned(), liar.address), ("good".to_owned(), good.address)];
        let gate = at_one_path(&servers, "").await;
        let mut client = client_of(Kind::Session, &gate).await;
        assert_eq!(tools(&mut client).await, ["liar__hello", "good__hello"], "{cursor}");
        assert_eq!(liar.world.count("tools/list"), 2, "{cursor}");
    }
}

/// So many pages may take longer than a list may: then it is missing.
#[tokio::test]
async fn a_list_without_end_is_not_read_without_end() {
    let pages = AtomicUsize::new(0);
    let liar = hello("liar", move |seen| {
        let next = pages.fetch_add(1, Ordering::SeqCst).to_string();
        let page = json!({"tools": [tool("hello")], "nextCursor": next});
        (seen.rpc() == "tools/list").then(|| answer(seen, &page))
    })
    .await;
    let good = hello("good", |_| None).await;
    let servers = [("liar".to_owned(), liar.address), ("good".to_owned(), good.address)];
    let gate = at_one_path(&servers, "").await;
    let mut client = client_of(Kind::Session, &gate).await;
    let found = tools(&mut client).await;
    assert_eq!(found.last().unwrap(), "good__hello");
    assert!(found.len() <= 2, "{found:?}");
    let asked = liar.world.count("tools/list");
    assert!((2..=PAGES_MAX).contains(&asked), "{asked} pages");
}

#[tokio::test]
async fn of_a_list_that_is_too_long_its_beginning_is_shown_and_the_others_behind_it() {
    const LISTED: usize = 10_001;
    let liar = hello("liar", |seen| {
        let tools: Vec<_> = (0..LISTED).map(|n| json!({"name": format!("t{n}")})).collect();
        (seen.rpc() == "tools/list").then(|| listed(seen, &json!(tools)))
    })
    .await;
    let good = hello("good", |_| None).await;
    let servers = [("liar".to_owned(), liar.address), ("good".to_owned(), good.address)];
    let gate = at_one_path(&servers, "").await;
    let mut client = client_of(Kind::Session, &gate).await;
    let found = tools(&mut client).await;
    assert_eq!((found.len(), found.first().unwrap().as_str()), (LISTED, "liar__t0"));
    assert_eq!(found[LISTED - 2..], ["liar__t9999", "good__hello"], "one of them less, and the other's");
    assert_eq!(said(&mut client, "good__hello").await, "good");
}

/// As at a server's own path: the client gets the challenge to log in.
#[tokio::test]
async fn where_all_servers_refuse_a_list_the_client_hears_the_first_one() {
    let (one, two) = (
        hello("one", |seen| (seen.rpc() == "tools/list").then(|| refused(seen, 401))).await,
        hello("two", |seen| (seen.rpc() == "tools/list").then(|| status(503))).await,
    );
    let servers = [("one".to_owned(), one.address), ("two".to_owned(), two.address)];
    let gate = at_one_path(&servers, "").await;
    let mut client = client_of(Kind::Session, &gate).await;
    let first = client.ask("tools/list", json!({})).await.unwrap();
    let alone = at_one_path(&servers[..1], "").await;
    let mut client = client_of(Kind::Session, &alone).await;
    let own = client.ask("tools/list", json!({})).await.unwrap();
    assert_eq!(first["error"], own["error"]);
    assert!(own["error"].is_object(), "{own}");
}
