//! Bad metadata (B106 to B118): a request's own description, in `_meta` and again in its headers.

use serde_json::{Value, json};

use super::gate::{Ask, Gate, MODERN, Row, check_rows, meta, with_tasks};

fn greet() -> Ask {
    Ask::call("greet", json!({ "name": "Ada" }))
}

/// A call of `greet` with this `_meta`.
fn with_meta(meta: Value) -> Ask {
    Ask::new("tools/call", json!({ "name": "greet", "arguments": { "name": "Ada" }, "_meta": meta }))
}

fn lacking(key: &str) -> Value {
    let mut meta = meta(&with_tasks());
    meta.as_object_mut().unwrap().remove(key);
    meta
}

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// A request whose body and header both name this version.
fn naming(version: &str) -> Ask {
    let mut said = meta(&with_tasks());
    said[VERSION_KEY] = json!(version);
    with_meta(said).set("MCP-Protocol-Version", version)
}

/// MOD-03, B106: named by its key, also beside other errors.
#[tokio::test]
async fn metadata_must_be_there() {
    let meta_is = |value: Value| with_meta(value);
    let rows: &[Row<'_>] = &[
        ("B106 missing", greet().edit("\"_meta\"", "\"other\""), "400 -32602 id=7"),
        ("B106 null", meta_is(json!(null)), "400 -32602 id=7"),
        ("B106 text", meta_is(json!("x")), "400 -32602 id=7"),
        ("B106 no version", with_meta(lacking(VERSION_KEY)), "400 -32602 id=7"),
        ("B106 no capabilities", with_meta(lacking(CAPABILITIES_KEY)), "400 -32602 id=7"),
        ("B106 version 7", greet().edit("\"2026-07-28\"", "7"), "400 -32602 id=7"),
        ("clientInfo is optional", greet(), "200 ok id=7"),
        ("its own keys are kept out of the way", with_meta_and("x.example/k", json!(1)), "200 ok id=7"),
        ("MOD-36 loud", with_meta_and("io.modelcontextprotocol/logLevel", json!("loud")), "200 -32602 id=7"),
        ("token true", with_meta_and("progressToken", json!(true)), "200 -32602 id=7"),
    ];
    check_rows(rows).await;
}

fn with_meta_and(key: &str, value: Value) -> Ask {
    let mut said = meta(&with_tasks());
    said[key] = value;
    with_meta(said)
}

/// MOD-04, MOD-05, MOD-07, MOD-08, B107 to B110, T-16, T-17, T-80, GW-03: the first failure answers.
#[tokio::test]
async fn headers_repeat_the_version_and_the_method() {
    let mismatch = "400 -32020 id=7";
    let rows: &[Row<'_>] = &[
        ("B107", greet().without("MCP-Protocol-Version"), mismatch),
        ("B108", greet().set("MCP-Protocol-Version", "2025-11-25"), mismatch),
        ("B108 twice", greet().with("MCP-Protocol-Version", MODERN), mismatch),
        ("B108 before B109", naming("2099-01-01").set("MCP-Protocol-Version", MODERN), mismatch),
        ("B109", naming("2099-01-01"), "400 -32022 id=7"),
        ("B109 T-17", naming("2025-11-25"), "400 -32022 id=7"),
        ("B109 empty", naming(""), "400 -32022 id=7"),
        ("T-80", naming("2026-06-30"), "200 ok id=7"),
        ("B110 missing", greet().without("Mcp-Method"), mismatch),
        ("B110 different", greet().set("Mcp-Method", "tools/list"), mismatch),
        ("B110 case", greet().set("Mcp-Method", "Tools/Call"), mismatch),
        ("B110 twice", greet().with("Mcp-Method", "tools/call"), mismatch),
        ("MOD-07 names in any case", greet().without("Mcp-Method").with("mCP-mETHOD", "tools/call"), "200 ok id=7"),
        ("blanks around", greet().set("Mcp-Method", " \ttools/call \t"), "200 ok id=7"),
        (
            "neither says stateless",
            greet().edit("\"_meta\"", "\"other\"").without("MCP-Protocol-Version"),
            "400 -32600 id=7",
        ),
        ("B74", greet().with("Mcp-Session-Id", "s").with("Last-Event-ID", "1"), "200 ok id=7"),
        ("B75", greet().with("Cookie", "a=b"), "200 ok id=7"),
    ];
    check_rows(rows).await;
}

/// MOD-08, T-18: the answer names the served versions.
#[tokio::test]
async fn an_unknown_version_is_answered_with_those_that_are_served() {
    let gate = Gate::start().await;
    let error = gate.send(&naming("v999")).await.json()["error"].take();
    assert_eq!(error["data"], json!({ "supported": [MODERN], "requested": "v999" }));
}

/// MOD-06, B111 to B115, EXT-53, T-15.
#[tokio::test]
async fn the_name_header_repeats_the_name_in_the_body() {
    let mismatch = "400 -32020 id=7";
    let prompt = Ask::new("prompts/get", json!({ "name": "p" }));
    let resource = Ask::new("resources/read", json!({ "uri": "file:///a" }));
    let id = "0123456789abcdef0123456789abcdef";
    let get = |method| Ask::new(method, json!({ "taskId": id, "inputResponses": {} }));
    let umlaut = Ask::call("späße", json!({})).at_odd();
    let mut rows: Vec<Row<'_>> = vec![
        ("B111 missing", greet().without("Mcp-Name"), mismatch),
        ("B111 different", greet().set("Mcp-Name", "fail"), mismatch),
        ("B111 case", greet().set("Mcp-Name", "Greet"), mismatch),
        ("B111 prompt missing", prompt.clone().without("Mcp-Name"), mismatch),
        ("B111 prompt different", prompt.set("Mcp-Name", "q"), mismatch),
        ("B111 resource missing", resource.clone().without("Mcp-Name"), mismatch),
        ("B111 resource different", resource.set("Mcp-Name", "file:///A"), mismatch),
        ("B112", greet().set("Mcp-Name", "  greet\t"), "200 ok id=7"),
        ("B113", greet().with("Mcp-Name", "greet"), mismatch),
        ("B114 alphabet", greet().set("Mcp-Name", "=?base64?Z3J*ZQ==?="), mismatch),
        ("B114 no UTF-8", greet().set("Mcp-Name", "=?base64?/w==?="), mismatch),
        ("B114 padding", greet().set("Mcp-Name", "=?base64?Z3JlZXQ?="), mismatch),
        ("B114 spare bits", greet().set("Mcp-Name", "=?base64?Z3JlZXR=?="), mismatch),
        ("encoded", greet().set("Mcp-Name", "=?base64?Z3JlZXQ=?="), "200 ok id=7"),
        ("encoded umlauts", umlaut.clone().set("Mcp-Name", "=?base64?c3DDpMOfZQ==?="), "200 ok id=7"),
        ("bare umlauts", umlaut.set("Mcp-Name", "späße"), mismatch),
        ("B115", Ask::call("=?base64?Z3JlZXQ=?=", json!({})).set("Mcp-Name", "=?base64?Z3JlZXQ=?="), mismatch),
        ("no name, no header", Ask::new("tools/list", json!({})).with("Mcp-Name", "x"), "200 ok id=7"),
    ];
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        rows.push(("B111 T-15 missing", get(method).without("Mcp-Name"), "200 -32602 id=7"));
        rows.push(("B111 different", get(method).set("Mcp-Name", "x"), mismatch));
    }
    check_rows(&rows).await;
}

fn mirrored(arguments: Value) -> Ask {
    Ask::call("mirrored", arguments).at_odd()
}

/// MOD-06, MOD-07, B76, B116, T-74.
#[tokio::test]
async fn arguments_that_a_tool_mirrors_are_compared_with_their_headers() {
    let mismatch = "400 -32020 id=7";
    let ok = "200 ok id=7";
    let region = || mirrored(json!({ "region": "eu" }));
    let rows: &[Row<'_>] = &[
        ("B116 missing", region(), mismatch),
        ("B116 different", region().with("Mcp-Param-Region", "us"), mismatch),
        ("B116 case of the value", region().with("Mcp-Param-Region", "EU"), mismatch),
        ("B116 twice", region().with("Mcp-Param-Region", "eu").with("Mcp-Param-Region", "eu"), mismatch),
        ("B116 bare umlaut", mirrored(json!({ "region": "ü" })).with("Mcp-Param-Region", "ü"), mismatch),
        ("B116 header alone", mirrored(json!({})).with("Mcp-Param-Region", "eu"), mismatch),
        ("same", region().with("mcp-param-REGION", "eu"), ok),
        ("encoded", mirrored(json!({ "region": "ü" })).with("Mcp-Param-Region", "=?base64?w7w=?="), ok),
        ("absent", mirrored(json!({})), ok),
        ("null is absent", mirrored(json!({ "region": null })), ok),
        ("integer", mirrored(json!({ "n": 7 })).with("Mcp-Param-Count", "7"), ok),
        ("integer as a number", mirrored(json!({ "n": 7.0 })).with("Mcp-Param-Count", "7"), ok),
        ("integer different", mirrored(json!({ "n": 7 })).with("Mcp-Param-Count", "8"), mismatch),
        ("boolean", mirrored(json!({ "dry": true })).with("Mcp-Param-Dry", "true"), ok),
        ("boolean in words", mirrored(json!({ "dry": true })).with("Mcp-Param-Dry", "True"), mismatch),
        ("B76", greet().with("Mcp-Param-Region", "eu"), ok),
        ("UPC-16 invalid annotations have no effect", Ask::call("badly-mirrored", json!({ "n": 1 })).at_odd(), ok),
    ];
    check_rows(rows).await;
}

/// EXT-02, EXT-03, EXT-55, EXT-62, EXT-72, MOD-10, MOD-19, B117, B118.
#[tokio::test]
async fn a_request_that_needs_the_extension_names_it_in_its_refusal() {
    let gate = Gate::start().await;
    let id = "0123456789abcdef0123456789abcdef";
    let legacy = json!({ "tasks": { "list": {}, "requests": { "tools": { "call": {} } } } });
    let odd = json!({ "extensions": { "io.modelcontextprotocol/tasks": true } });
    for capabilities in [json!({}), legacy, odd] {
        let mut asks: Vec<Ask> = ["tasks/get", "tasks/update", "tasks/cancel"]
            .map(|method| Ask::new(method, json!({ "taskId": id, "_meta": meta(&capabilities) })))
            .to_vec();
        let delete = json!({ "name": "confirm_delete", "arguments": { "path": "x" }, "_meta": meta(&capabilities) });
        asks.push(Ask::new("tools/call", delete));
        for ask in asks {
            let answer = gate.send(&ask).await;
            assert_eq!(answer.summary(), "400 -32021 id=7", "{}", answer.text());
            assert_eq!(answer.json()["error"]["data"], json!({ "requiredCapabilities": with_tasks() }));
        }
    }
    // T-80: the draft's name of the version keeps the draft's code.
    let draft = json!({ VERSION_KEY: "2026-06-30", CAPABILITIES_KEY: {} });
    let ask = Ask::new("tasks/get", json!({ "taskId": id, "_meta": draft })).set("MCP-Protocol-Version", "2026-06-30");
    assert_eq!(gate.send(&ask).await.summary(), "400 -32003 id=7");
}

/// LEG-04, GW-02: a request of another version belongs to a session, and only `initialize` opens one.
#[tokio::test]
async fn requests_of_session_versions_need_a_session() {
    let session = |method: &str, params: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        Ask::raw(method, body.to_string()).without("Mcp-Method").set("MCP-Protocol-Version", "2025-11-25")
    };
    let initialize = session("initialize", json!({ "protocolVersion": "2025-11-25", "capabilities": {} }));
    let rows: &[Row<'_>] = &[
        ("with our header", initialize.set("MCP-Protocol-Version", MODERN), "400 -32020 id=7"),
        ("tools/list", session("tools/list", json!({})), "400 -32600 id=7"),
        ("ping", session("ping", json!({})).without("MCP-Protocol-Version"), "400 -32600 id=7"),
        ("not ours", session("ping", json!({})).with("Mcp-Session-Id", "s"), "404 -32001 id=7"),
    ];
    check_rows(rows).await;
}

/// MOD-02, B60, B66: before anything is read, with or without a session.
#[tokio::test]
async fn pages_from_elsewhere_are_not_served() {
    let rows: &[Row<'_>] = &[
        ("B60", greet().with("Origin", "http://evil.example"), "403 -32600"),
        ("B61", greet().with("Origin", "null"), "403 -32600"),
        ("B58", greet().set("Host", "evil.example"), "403 -32600"),
        ("loopback", greet().with("Origin", "http://localhost:3000"), "200 ok id=7"),
    ];
    check_rows(rows).await;
}

/// MOD-01, B53.
#[tokio::test]
async fn stateless_clients_only_post() {
    let gate = Gate::start().await;
    for (method, lines, summary) in [
        ("GET", "Accept: text/event-stream\r\n", "405 -32600"),
        ("DELETE", "", "405 -32600"),
        ("GET", "Accept: text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Session-Id: s\r\n", "405 -32600"),
        ("GET", "Accept: text/event-stream\r\nMcp-Session-Id: s\r\n", "404 -32001"),
        ("DELETE", "Mcp-Session-Id: s\r\n", "404 -32001"),
    ] {
        let head = format!("{method} /demo/mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n");
        let answer = gate.exchange(head.as_bytes()).await;
        assert_eq!(answer.summary(), summary, "{head}");
        assert_eq!(answer.header("allow"), summary.starts_with("405").then_some("POST"));
    }
}
