//! API keys: bad ones (B149 to B152), and where good ones go.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use taskgate::config;
use taskgate::server::api_keys::{AuthSettings, KeySource};

use super::gate::{ADA, ADA_TOO, Ask, BOB, EVE, Gate};
use super::upstream::in_time;

fn list(key: &str) -> Ask {
    Ask::new(key, "tools/list", json!({}))
}

/// B149, B150, B151, SEC-05: a client without a key learns nothing, not even which paths exist.
#[tokio::test]
async fn b151_a_key_opens_and_anything_else_is_answered_alike() {
    let gate = Gate::start().await;
    for key in [ADA, ADA_TOO, BOB] {
        assert_eq!(gate.send(&list(key)).await.summary(), "200 ok", "{key}");
    }
    let lower = list("").without("authorization").with("authorization", &format!("bearer {ADA}"));
    assert_eq!(gate.send(&lower).await.summary(), "200 ok", "the scheme is in any case");
    let mut refused = Vec::new();
    for (what, value) in [
        ("none", None),
        ("basic", Some(format!("Basic {ADA}"))),
        ("unknown", Some(format!("Bearer {EVE}"))),
        ("wrong by the last byte", Some(format!("Bearer {}f", &ADA[..ADA.len() - 1]))),
        ("another's secret", Some(format!("Bearer tg_ada1_{}", &BOB[8..]))),
        ("no key", Some("Bearer x".to_owned())),
        ("no token", Some("Bearer".to_owned())),
    ] {
        let ask = list("").without("authorization");
        let ask = match value {
            Some(value) => ask.with("Authorization", &value),
            None => ask,
        };
        let answer = gate.send(&ask).await;
        assert_eq!(
            (answer.summary().as_str(), answer.header("www-authenticate")),
            ("401 -32600", Some("Bearer")),
            "{what}"
        );
        refused.push(answer);
    }
    assert!(refused.iter().all(|answer| *answer == refused[0]), "byte for byte: {refused:#?}");
    assert_eq!(
        gate.send(&list(ADA).with("Authorization", &format!("Bearer {ADA}"))).await.summary(),
        "400 -32600",
        "B150"
    );
    assert_eq!(gate.server.world.all(|seen| seen.body["params"]["name"] == "x").len(), 0);
}

/// A client without a key looks for a way to get one; a 401 at the metadata would look like an OAuth login.
#[tokio::test]
async fn a_client_without_key_is_told_of_keys_and_finds_no_oauth() {
    let gate = Gate::start().await;
    let refused = gate.send(&list(EVE)).await;
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("Unauthorized: send an API key as `Authorization: Bearer tg_"), "{message}");
    assert!(message.contains("or `X-Taskgate-Key: tg_"), "both ways: {message}");
    for target in [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/mcp/.well-known/openid-configuration",
        "/register",
    ] {
        for verb in ["GET", "POST", "OPTIONS"] {
            let answer = gate.send(&Ask { verb, ..list(EVE).at(target) }).await;
            assert_eq!(answer.summary(), "404 -32600", "{verb} {target}");
            assert!(answer.body.contains("no OAuth"), "{answer:?}");
        }
    }
    assert_eq!(
        gate.send(&list(EVE).at("/elsewhere")).await.status(),
        "401",
        "a refusal does not show which paths exist"
    );
}

/// SEC-05: every verb and path requires a key.
#[tokio::test]
async fn sec_05_every_verb_asks_for_a_key() {
    let gate = Gate::start().await;
    for verb in ["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"] {
        let answer = gate.send(&Ask { verb, ..list(EVE) }).await;
        assert_eq!(answer.status(), "401", "{verb}");
    }
}

/// SEC-04, B73, B75: no server gets a client's key.
#[tokio::test]
async fn sec_04_no_credential_of_a_client_reaches_the_upstream() {
    let gate = Gate::start().await;
    let secret =
        |ask: Ask| ask.with("Cookie", "canary=1").with("Proxy-Authorization", "Bearer canary").with("DPoP", "canary");
    assert_eq!(gate.send(&secret(Ask::call(ADA, "quick", &json!({})))).await.summary(), "200 ok");
    let session = gate.session(ADA).await;
    let call = json!({ "name": "quick", "arguments": {} });
    assert_eq!(gate.send(&secret(Ask::session(ADA, Some(&session), "tools/call", &call))).await.summary(), "200 ok");
    let seen = gate.server.world.all(|_| true);
    assert!(seen.len() > 5, "{seen:#?}");
    for request in seen {
        let text = format!("{:?} {:?}", request.headers, request.bytes);
        assert!(!text.contains("canary") && !text.contains("tg_ada"), "{text}");
        assert!(request.header("authorization").is_none());
    }
}

/// A request with its key in the gateway's own header, and with the server's credential in `Authorization`.
fn beside(ask: Ask, key: &str, theirs: Option<&str>) -> Ask {
    let ask = ask.without("authorization").with("X-Taskgate-Key", key);
    match theirs {
        Some(theirs) => ask.with("Authorization", theirs),
        None => ask,
    }
}

/// A key in the gateway's own header leaves `Authorization` to the server's login. A value that is or looks like a key goes to no
/// server.
#[tokio::test]
async fn a_key_stands_beside_the_servers_credential_and_is_never_forwarded() {
    let auth = format!(
        "mode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n[[auth.api_keys]]\nid = \"bob\"\nkey = \"{BOB}\"\n"
    );
    let gate = Gate::of("", &auth, "forward_authorization = true").await;
    let call = |key: &str| Ask::call(key, "quick", &json!({}));
    let (as_eve, as_bob) = (format!("Bearer {EVE}"), format!("Bearer {BOB}"));
    for (authorization, goes_on) in [
        (Some("Bearer theirs"), Some("Bearer theirs")),
        (Some("Basic dGhlaXJz"), Some("Basic dGhlaXJz")),
        (Some(as_bob.as_str()), None),
        (Some(as_eve.as_str()), None),
        (None, None),
    ] {
        let opened = gate.send(&beside(Ask::session(ADA, None, "initialize", &hello()), ADA, authorization)).await;
        let session = opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}"));
        let params = json!({ "name": "quick", "arguments": {} });
        for ask in [call(ADA), Ask::session(ADA, Some(session), "tools/call", &params)] {
            let seen = gate.server.world.count("tools/call");
            let answer = gate.send(&beside(ask, ADA, authorization)).await;
            assert_eq!(answer.summary(), "200 ok", "{authorization:?}");
            let call = gate.server.world.all(|seen| seen.rpc() == "tools/call").remove(seen);
            assert_eq!(call.header("authorization"), goes_on, "{authorization:?}");
        }
    }
    // A key in `Authorization` alone identifies its client as before, and the server gets no `Authorization`.
    assert_eq!(gate.send(&call(ADA)).await.summary(), "200 ok");
    let made = gate.send(&beside(Ask::call(ADA, "task", &json!({})), ADA, Some("Bearer theirs"))).await.json();
    let get = Ask::new(ADA, "tasks/get", json!({ "taskId": made["result"]["taskId"] }));
    assert_eq!(
        gate.send(&beside(get.clone(), ADA, Some("Bearer renewed"))).await.summary(),
        "200 ok",
        "the key's task"
    );
    assert_eq!(gate.send(&get).await.summary(), "200 ok", "whichever way the key comes");
    assert_eq!(
        gate.send(&beside(get, BOB, Some("Bearer theirs"))).await.summary(),
        "200 -32602",
        "and not another principal's"
    );
    for seen in gate.server.world.all(|_| true) {
        let text = format!("{:?} {:?}", seen.headers, seen.bytes);
        assert!(!text.contains("tg_ada") && !text.contains("tg_bob") && !text.contains("tg_eve"), "{text}");
        assert!(seen.header("x-taskgate-key").is_none(), "{text}");
    }
}

/// B150, B151: a bad key in the gateway's own header is refused even beside a good one in `Authorization`.
#[tokio::test]
async fn b151_a_bad_key_in_the_gateways_own_header_is_not_made_good_by_another() {
    let gate = Gate::start().await;
    let mut refused = Vec::new();
    for (what, value) in [
        ("empty", String::new()),
        ("unknown", EVE.to_owned()),
        ("with a scheme", format!("Bearer {ADA}")),
        ("with quotes", format!("\"{ADA}\"")),
        ("two in one", format!("{ADA}, {ADA}")),
        ("another case", ADA.to_uppercase()),
        ("not ASCII", format!("{ADA}é")),
        ("too long", format!("{ADA}{}", "0".repeat(300))),
        ("wrong by the last byte", format!("{}f", &ADA[..ADA.len() - 1])),
    ] {
        let answer = gate.send(&list(ADA).with("X-Taskgate-Key", &value)).await;
        assert_eq!(answer.summary(), "401 -32600", "{what}");
        refused.push(answer);
    }
    assert!(refused.iter().all(|answer| *answer == refused[0]), "byte for byte: {refused:#?}");
    for twice in [
        list("").without("authorization").with("X-Taskgate-Key", ADA).with("x-taskgate-key", ADA),
        beside(list(""), ADA, Some("Bearer a")).with("Authorization", "Bearer b"),
    ] {
        assert_eq!(gate.send(&twice).await.summary(), "400 -32600", "B150: {twice:?}");
    }
    assert_eq!(gate.send(&beside(list(""), &format!("  {ADA} "), None)).await.summary(), "200 ok", "blanks around it");
    // A stream of HTTP+SSE and its posts.
    let older = beside(Ask { verb: "GET", body: String::new(), ..list("") }.at("/sse"), ADA, None);
    let (first, _stream) = gate.open(&older).await;
    assert!(first.contains("event: endpoint"), "{first}");
    let wrong = Ask { headers: older.with("X-Taskgate-Key", EVE).headers, verb: "GET", ..list("") }.at("/sse");
    assert_eq!(gate.send(&wrong).await.summary(), "400 -32600");
}

fn hello() -> serde_json::Value {
    json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } })
}

fn auth_of(keys: &[(&str, &str)]) -> config::Config {
    let mut text = "[auth]\nmode = \"api_keys\"\n[upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n".to_owned();
    for (id, key) in keys {
        text += &format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n");
    }
    config::parse("test.toml", &text, &|_| None).unwrap().config
}

/// B152: the owner's tasks wait for its next key. Streams end with their key: a subscription would otherwise show its client
/// events without end.
#[tokio::test]
async fn b152_a_key_that_is_taken_back_opens_nothing_and_nothing_is_lost() {
    let mut gate = Gate::start().await;
    let task = gate.task(ADA, "task").await;
    let get = |key| Ask::new(key, "tasks/get", json!({ "taskId": task }));
    let running = Ask::declaring(ADA, "subscriptions/listen", json!({ "notifications": {} }), &json!({}));
    let (first, mut stream) = gate.open(&running).await;
    assert!(first.contains("acknowledged"), "{first}");
    gate.reload(auth_of(&[("bob", BOB)]).auth).unwrap();
    for key in [ADA, ADA_TOO] {
        assert_eq!(gate.send(&get(key)).await.summary(), "401 -32600");
    }
    assert_eq!(gate.send(&get(BOB)).await.summary(), "200 -32602", "it is not his");
    let mut rest = Vec::new();
    in_time(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest)).await.unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(!rest.contains("data:") && rest.ends_with("0\r\n\r\n"), "it ends, and orderly: {rest:?}");
    gate.reload(auth_of(&[("ada", EVE)]).auth).unwrap();
    assert_eq!(gate.send(&get(EVE)).await.summary(), "200 ok", "the same person with another key");
    let twice = auth_of(&[("ada", EVE), ("bob", BOB)]);
    let mut wrong = twice.auth.clone();
    if let AuthSettings::ApiKeys(keys) = &mut wrong {
        keys[1].source = KeySource::File("/nowhere/key".into());
    }
    let refused = gate.reload(wrong).unwrap_err().to_string();
    assert!(refused.starts_with("key `auth.api_keys[1].key`: /nowhere/key: cannot be read"), "{refused}");
    assert_eq!(gate.send(&get(EVE)).await.summary(), "200 ok", "a bad list changes nothing");
}

/// A stream in either era ends with the key that opened it, even if its owner has another key. A client without a key is not
/// served on once keys are required.
#[tokio::test]
async fn a_stream_ends_with_the_key_that_opened_it_and_with_no_other() {
    let listen = |key| Ask::declaring(key, "subscriptions/listen", json!({ "notifications": {} }), &json!({}));
    let older = |key| Ask { verb: "GET", body: String::new(), ..list(key) }.at("/sse");
    let ended = async |mut stream: tokio::net::TcpStream| {
        let mut rest = Vec::new();
        in_time(tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest)).await.unwrap();
        assert!(rest.ends_with(b"0\r\n\r\n"), "in order: {rest:?}");
    };
    let is_open = |stream: &tokio::net::TcpStream| {
        let read = stream.try_read(&mut [0; 64]);
        assert!(read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "nothing came, and no end");
    };
    let mut gate = Gate::start().await;
    let (ada, older_ada) = (gate.open(&listen(ADA)).await.1, gate.open(&older(ADA)).await.1);
    let others = [gate.open(&listen(ADA_TOO)).await.1, gate.open(&older(BOB)).await.1];
    gate.reload(auth_of(&[("ada", ADA_TOO), ("bob", BOB)]).auth).unwrap();
    ended(ada).await;
    ended(older_ada).await;
    assert_eq!(gate.send(&list(BOB)).await.summary(), "200 ok");
    others.iter().for_each(is_open);
    // The key stays, but is another principal's now.
    gate.reload(auth_of(&[("eve", ADA_TOO), ("bob", BOB)]).auth).unwrap();
    let [ada, bob] = others;
    ended(ada).await;
    is_open(&bob);

    let mut gate = Gate::of("", "", "").await;
    let (modern, sse) = (gate.open(&listen("")).await.1, gate.open(&older("")).await.1);
    gate.reload_with(|config| config.listen.allowed_origins.push("https://app.example".to_owned())).unwrap();
    is_open(&modern);
    gate.reload(auth_of(&[("bob", BOB)]).auth).unwrap();
    ended(modern).await;
    ended(sse).await;
}

/// Runs the program; returns its exit code and output.
async fn program(arguments: &[&str], key: Option<&str>) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.args(arguments).env_remove("TASKGATE_KEY").kill_on_drop(true);
    if let Some(key) = key {
        command.env("TASKGATE_KEY", key);
    }
    let output = in_time(command.output()).await.unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn the_command_line_comes_with_a_key_and_never_shows_it() {
    let gate = Gate::start().await;
    let url = format!("{}/mcp", gate.gateway.base_url());
    for flavour in ["extension", "core", "none"] {
        let call = ["call", &url, "quick", r#"{"a":1}"#, "--flavour", flavour];
        // The policy of `quick` is `never`, so every flavour has the same outcome.
        let (code, text) = program(&call, Some(ADA)).await;
        assert_eq!(code, Some(0), "{flavour}: {text}");
        let (code, text) = program(&call, None).await;
        assert_eq!(code, Some(69), "{flavour}: {text}");
        assert!(text.contains("401"), "{flavour}: {text}");
        let (code, text) = program(&[&call[..], &["--key", EVE]].concat(), Some(ADA)).await;
        assert_eq!(code, Some(69), "the option precedes the environment: {text}");
        assert!(!text.contains("tg_"), "{text}");
    }
    let (_, help) = program(&["call", "--help"], Some(ADA)).await;
    assert!(help.contains("TASKGATE_KEY") && !help.contains("tg_"), "{help}");
}

/// B168, B169, SEC-24: `check` and `serve` both find it, before anything is served.
#[tokio::test]
async fn b168_a_key_file_that_others_can_read_is_refused_with_64() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let config = format!(
        "[store]\nkind = \"memory\"\npath = {:?}\n[auth]\nmode = \"api_keys\"\n\
         [[auth.api_keys]]\nid = \"ada\"\nkey_file = {:?}\n[upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n",
        path("data"),
        path("ada.key")
    );
    std::fs::write(path("config.toml"), config).unwrap();
    let file = path("config.toml").display().to_string();
    for (content, mode, expected) in
        [(ADA, 0o640, "others than its owner may use it"), ("tg_ada1_weak", 0o600, "less than 128 bits")]
    {
        std::fs::write(path("ada.key"), content).unwrap();
        std::fs::set_permissions(path("ada.key"), Permissions::from_mode(mode)).unwrap();
        for arguments in [["check", &file].as_slice(), ["serve", "--config", &file].as_slice()] {
            let (code, text) = program(arguments, None).await;
            assert_eq!(code, Some(64), "{arguments:?}: {text}");
            assert!(text.contains("key `auth.api_keys[0].key_file`") && text.contains(expected), "{text}");
            assert!(!text.contains("tg_ada1_"), "{text}");
        }
    }
    std::fs::set_permissions(path("ada.key"), Permissions::from_mode(0o600)).unwrap();
    std::fs::write(path("ada.key"), ADA).unwrap();
    let (code, said) = program(&["check", &file], None).await;
    assert!(code == Some(0) && said.lines().count() == 1 && said.contains("would listen on"), "no warning: {said}");
}
