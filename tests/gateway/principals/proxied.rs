//! A loopback listener without authentication: it serves one person, until a request shows that there are several.

use std::net::TcpListener;

use serde_json::{Value, json};
use taskgate::app::sockets::Sockets;

use super::gate::{Ask, Gate};

/// No key is required here.
const NO_KEY: &str = "";
const HOST: (&str, &str) = ("Host", "mcp.example");
const ALICE: (&str, &str) = ("Authorization", "Bearer alice");
const BOB: (&str, &str) = ("Authorization", "Bearer bob");

/// Headers in place of the usual ones.
type Headers<'a> = &'a [(&'a str, &'a str)];

fn dressed(ask: Ask, headers: Headers<'_>) -> Ask {
    let bare = ask.without("Authorization");
    headers.iter().fold(bare, |ask, (name, value)| ask.without(name).with(name, value))
}

async fn send(gate: &Gate, ask: Ask, headers: Headers<'_>) -> super::gate::Answer {
    gate.send(&dressed(ask, headers)).await
}

/// Opens a session of 2025-11-25.
async fn session(gate: &Gate, headers: Headers<'_>) -> String {
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
    });
    let opened = send(gate, Ask::session(NO_KEY, None, "initialize", &params), headers).await;
    let offers = opened.json()["result"]["capabilities"]["tasks"].get("list").is_some();
    let id = opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}")).to_owned();
    let listed = send(gate, Ask::session(NO_KEY, Some(&id), "tasks/list", &json!({})), headers).await;
    assert_eq!(listed.summary() == "200 ok", offers, "the offered list is served: {listed:?}");
    id
}

/// Lists tasks; the names, or the error.
async fn list(gate: &Gate, headers: Headers<'_>) -> Result<Vec<String>, String> {
    let id = session(gate, headers).await;
    let listed = send(gate, Ask::session(NO_KEY, Some(&id), "tasks/list", &json!({})), headers).await;
    match listed.json()["result"]["tasks"].as_array() {
        Some(tasks) => Ok(tasks.iter().map(|task| task["taskId"].as_str().unwrap().to_owned()).collect()),
        None => Err(listed.summary()),
    }
}

/// Makes a task in 2026-07-28; its result.
async fn make(gate: &Gate, headers: Headers<'_>) -> Value {
    let made = send(gate, Ask::call(NO_KEY, "task", &json!({ "of": "me" })), headers).await;
    made.json()["result"].clone()
}

async fn task(gate: &Gate, headers: Headers<'_>) -> String {
    let made = make(gate, headers).await;
    made["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

/// Whether a client can read a task by its id, in either era.
async fn reads(gate: &Gate, id: &str, headers: Headers<'_>) -> bool {
    let modern = send(gate, Ask::new(NO_KEY, "tasks/get", json!({ "taskId": id })), headers).await;
    let session = session(gate, headers).await;
    let older = Ask::session(NO_KEY, Some(&session), "tasks/get", &json!({ "taskId": id }));
    let older = send(gate, older, headers).await;
    assert_eq!(modern.summary(), older.summary(), "{headers:?}");
    modern.summary() == "200 ok"
}

/// The principal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The one user: it lists tasks, and keeps them for a day.
    Local,
    /// The user of this credential: as the one user.
    Alice,
    /// An anonymous client: no list, and tasks live for an hour.
    Anonymous,
}

/// Requests by their headers, each with its principal.
type Requests<'a> = &'a [(Headers<'a>, Who)];

async fn who(gate: &Gate, headers: Headers<'_>) -> Who {
    let made = make(gate, headers).await;
    let id = made["taskId"].as_str().unwrap_or_else(|| panic!("{made}"));
    let ttl = made["ttlMs"].as_u64().unwrap_or_else(|| panic!("{made}"));
    match list(gate, headers).await {
        Ok(tasks) => {
            assert!(tasks.contains(&id.to_owned()), "{headers:?}");
            assert_eq!(ttl, 86_400_000, "{headers:?}");
            if headers.contains(&ALICE) && !reads(gate, id, &[]).await { Who::Alice } else { Who::Local }
        }
        Err(refused) => {
            assert_eq!((refused.as_str(), ttl), ("200 -32601", 3_600_000), "{headers:?}");
            assert!(reads(gate, id, headers).await, "the id is enough");
            Who::Anonymous
        }
    }
}

#[tokio::test]
async fn a_client_behind_a_proxy_is_anonymous() {
    use Who::{Alice, Anonymous, Local};
    let hosts = "allowed_hosts = [\"mcp.example\"]";
    let forwards = "forward_authorization = true";
    let public = "public_url = \"https://mcp.example\"";
    let rows: [(&str, &str, Requests<'_>); 7] = [
        (
            "",
            "",
            &[
                (&[], Local),
                (&[("Host", "127.0.0.1:8080")], Local),
                (&[("Host", "[::1]")], Local),
                (&[ALICE], Local),
                (&[("Forwarded", "for=192.0.2.1")], Anonymous),
                (&[("X-Forwarded-For", "127.0.0.1")], Anonymous),
                (&[("X-Forwarded-Host", "localhost"), ALICE], Anonymous),
                (&[("X-Real-IP", "192.0.2.1")], Anonymous),
            ],
        ),
        (hosts, "", &[(&[], Anonymous), (&[HOST], Anonymous), (&[HOST, ALICE], Anonymous)]),
        ("trusted_proxies = [\"10.0.0.0/8\"]", "", &[(&[], Anonymous)]),
        (public, "", &[(&[], Anonymous), (&[HOST], Anonymous)]),
        ("public_url = \"http://localhost:8080\"", "", &[(&[], Local)]),
        ("", forwards, &[(&[], Anonymous), (&[ALICE], Alice), (&[ALICE, ("Forwarded", "for=192.0.2.1")], Alice)]),
        (hosts, forwards, &[(&[HOST], Anonymous), (&[HOST, ALICE], Alice), (&[ALICE], Alice)]),
    ];
    for (listen, upstream, requests) in rows {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let handed = Sockets { clients: Some(socket), ..Sockets::default() };
        for gate in [Gate::of(listen, "", upstream).await, Gate::on(listen, "", upstream, handed).await] {
            for (headers, expected) in requests {
                assert_eq!(who(&gate, headers).await, *expected, "{listen:?} {upstream:?} {headers:?}");
            }
        }
    }
}

/// The operator serves everyone as anonymous: a credential changes nothing.
#[tokio::test]
async fn where_all_clients_are_anonymous_a_credential_changes_nothing() {
    let gate = Gate::of("allowed_hosts = [\"mcp.example\"]", "anonymous = true", "forward_authorization = true").await;
    for headers in [&[] as Headers<'_>, &[HOST], &[HOST, ALICE], &[("X-Real-IP", "::1")]] {
        assert_eq!(who(&gate, headers).await, Who::Anonymous, "{headers:?}");
    }
}

/// Two persons use a server behind a TLS proxy.
#[tokio::test]
async fn two_people_behind_a_proxy_do_not_see_each_others_tasks() {
    for headers in [&[] as Headers<'_>, &[("X-Forwarded-For", "192.0.2.1")]] {
        let gate = Gate::of("", "", "forward_authorization = true").await;
        let (alice, bob) = ([headers, &[ALICE]].concat(), [headers, &[BOB]].concat());
        let id = task(&gate, &alice).await;
        assert_eq!(list(&gate, &alice).await, Ok(vec![id.clone()]));
        assert_eq!(list(&gate, &bob).await, Ok(Vec::new()));
        assert!(reads(&gate, &id, &alice).await);
        assert!(!reads(&gate, &id, &bob).await && !reads(&gate, &id, headers).await);
        let session = session(&gate, &bob).await;
        let result = Ask::session(NO_KEY, Some(&session), "tasks/result", &json!({ "taskId": id }));
        let result = send(&gate, result, &bob).await;
        assert!(!result.body.contains("of") && result.summary() == "200 -32602", "{result:?}");
        let twice = send(&gate, Ask::new(NO_KEY, "tools/list", json!({})).with("authorization", "Bearer alice"), &[])
            .await
            .status()
            .to_owned();
        assert_eq!(twice, "200", "one credential");
        let twice = dressed(Ask::new(NO_KEY, "tools/list", json!({})), &alice).with("authorization", "Bearer bob");
        assert_eq!(gate.send(&twice).await.status(), "400", "two credentials are refused");
    }
}

/// A client behind a proxy cannot continue the one user's work, nor the reverse.
#[tokio::test]
async fn a_session_or_stream_or_state_belongs_to_the_principal_that_began_it() {
    const PROXIED: Headers<'_> = &[("X-Forwarded-For", "192.0.2.1")];
    let gate = Gate::of("", "", "").await;
    for (first, other) in [(&[] as Headers<'_>, PROXIED), (PROXIED, &[])] {
        let id = session(&gate, first).await;
        let ping = || Ask::session(NO_KEY, Some(&id), "ping", &json!({}));
        assert_eq!(send(&gate, ping(), other).await.summary(), "404 -32001");
        let get = Ask { verb: "GET", body: String::new(), ..ping() };
        assert_eq!(send(&gate, get, other).await.summary(), "404 -32001");
        assert_eq!(send(&gate, ping(), first).await.summary(), "200 ok");

        let open = Ask { verb: "GET", body: String::new(), ..Ask::session(NO_KEY, None, "", &json!({})) }.at("/sse");
        let (head, _stream) = gate.open(&dressed(open, first)).await;
        let target = head.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_else(|| panic!("{head}"));
        let say = || Ask::session(NO_KEY, None, "ping", &json!({})).at(target);
        assert_eq!(send(&gate, say(), other).await.status(), "404");
        assert_eq!(send(&gate, say(), first).await.status(), "202");

        let ask = |state: Option<&str>| {
            let mut params = json!({ "name": "ask", "arguments": {} });
            if let Some(state) = state {
                params["requestState"] = json!(state);
            }
            Ask::declaring(NO_KEY, "tools/call", params, &json!({ "elicitation": {} }))
        };
        let asked = send(&gate, ask(None), first).await.json();
        let state = asked["result"]["requestState"].as_str().unwrap_or_else(|| panic!("{asked}"));
        let summary = send(&gate, ask(Some(state)), other).await.summary();
        assert_eq!(summary, "200 -32602 invalid_request_state");
    }
}

/// The one user's tasks are kept while others are served, and no other client reads them.
#[tokio::test]
async fn tasks_of_the_one_person_wait_while_others_are_served() {
    let mut gate = Gate::of("", "", "").await;
    let id = task(&gate, &[]).await;
    assert!(reads(&gate, &id, &[]).await);
    gate.reload_with(|config| config.listen.allowed_hosts = vec!["mcp.example".to_owned()]).unwrap();
    for headers in [&[] as Headers<'_>, &[HOST]] {
        assert!(!reads(&gate, &id, headers).await, "{headers:?}");
    }
    gate.reload_with(|config| config.listen.allowed_hosts.clear()).unwrap();
    assert!(reads(&gate, &id, &[]).await);
    assert!(!reads(&gate, &id, &[("Forwarded", "for=192.0.2.1")]).await);
}

/// Anonymous clients share no idempotency keys: none gets another's task by a key, or is refused for another's call.
#[tokio::test]
async fn anonymous_clients_share_no_idempotency_key() {
    let gate = Gate::of("allowed_hosts = [\"mcp.example\"]", "anonymous = true", "").await;
    let named = |session: Option<&str>, of: &str| {
        let params = json!({ "name": "task", "arguments": { "of": of }, "task": {} });
        let ask = match session {
            Some(id) => Ask::session(NO_KEY, Some(id), "tools/call", &params),
            None => Ask::call(NO_KEY, "task", &params["arguments"]),
        };
        dressed(ask.with("Idempotency-Key", "1"), &[HOST])
    };
    let (one, two) = (session(&gate, &[HOST]).await, session(&gate, &[HOST]).await);
    let handle = async |session: &str, of: &str| {
        let made = gate.send(&named(Some(session), of)).await;
        made.json()["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{made:?}")).to_owned()
    };
    let first = handle(&one, "a").await;
    assert_eq!(handle(&one, "a").await, first, "its own");
    assert_ne!(handle(&two, "a").await, first, "a stranger's");
    let three = session(&gate, &[HOST]).await;
    assert_ne!(handle(&three, "b").await, first, "and none is refused for another client's key");
    let refused = gate.send(&named(None, "a")).await;
    assert_eq!(refused.summary(), "200 -32602");
    assert!(refused.body.contains("idempotency key"), "{refused:?}");
    assert_eq!(gate.send(&named(None, "b")).await.summary(), refused.summary(), "after any call of others");
    assert_eq!(gate.server.world.all(|seen| seen.body["params"]["name"] == "task").len(), 3);
}

/// The number of served requests of each address, of `count` from each.
async fn served(gate: &Gate, addresses: &[&str], count: usize) -> Vec<usize> {
    let mut served = vec![0; addresses.len()];
    for _ in 0..count {
        for (address, served) in addresses.iter().zip(&mut served) {
            let ask = Ask::new(NO_KEY, "tools/list", json!({}));
            *served += usize::from(send(gate, ask, &[("X-Forwarded-For", address)]).await.status() == "200");
        }
    }
    served
}

/// All addresses of an IPv6 network count as one client.
#[tokio::test]
async fn clients_of_one_ipv6_network_share_its_rate() {
    let limits = "[limits]\nrequests_per_second = 1\nrequests_burst = 10\n";
    let gate = Gate::of("trusted_proxies = [\"127.0.0.0/8\"]", limits, "").await;
    let many: Vec<String> = (1..=10).map(|n| format!("2001:db8:1:2::{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let all: usize = served(&gate, &many, 5).await.iter().sum();
    assert!((10..50).contains(&all), "each has a rate of its own: {all}");
    assert_eq!(served(&gate, &["2001:db8:1:3::1"], 5).await, [5]);
}

/// A trusted proxy names its clients' addresses, and each has its share. An untrusted proxy's names are ignored.
#[tokio::test]
async fn clients_behind_a_trusted_proxy_have_a_rate_for_each_address() {
    // A rate that every machine exceeds.
    let limits = "[limits]\nrequests_per_second = 1\nrequests_burst = 100\n";
    let gate = Gate::of("trusted_proxies = [\"127.0.0.0/8\"]", limits, "").await;
    assert_eq!(who(&gate, &[]).await, Who::Anonymous, "a proxy is in front, for every kind of request");
    let noisy = served(&gate, &["192.0.2.1"], 400).await[0];
    assert!((100..400).contains(&noisy), "it has its burst and its rate: {noisy}");
    assert_eq!(served(&gate, &["192.0.2.2", "192.0.2.3, 127.0.0.9", "6.6.6.6, 192.0.2.4"], 20).await, [20; 3]);
    let untrusting = Gate::of("", limits, "").await;
    let all = served(&untrusting, &["192.0.2.1", "192.0.2.2"], 300).await;
    assert!(all.iter().sum::<usize>() < 400, "all of them are one: {all:?}");
}

/// The gateway's own pages are known by the name that a trusted proxy forwards, if the gateway serves that name.
#[tokio::test]
async fn pages_of_the_name_that_clients_use_are_known_behind_a_proxy_that_changes_it() {
    for (trusted, expected) in [("\"127.0.0.1\"", ["200", "403", "403", "403"]), ("", ["403"; 4])] {
        let listen = format!("allowed_hosts = [\"mcp.example\"]\ntrusted_proxies = [{trusted}]");
        let gate = Gate::of(&listen, "anonymous = true", "").await;
        for ((host, origin, proto), expected) in [
            ("mcp.example", "https://mcp.example", "https"),
            ("mcp.example", "http://mcp.example", "https"),
            ("evil.example", "https://evil.example", "https"),
            ("mcp.example", "https://evil.example", "https"),
        ]
        .into_iter()
        .zip(expected)
        {
            let headers = [("X-Forwarded-Host", host), ("X-Forwarded-Proto", proto), ("Origin", origin)];
            let answer = send(&gate, Ask::new(NO_KEY, "tools/list", json!({})), &headers).await;
            assert_eq!(answer.status(), expected, "{trusted} {headers:?}");
        }
    }
}
