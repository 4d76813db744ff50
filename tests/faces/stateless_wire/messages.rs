//! Bad JSON and JSON-RPC (B78 to B105). Each row is answered on its own connection; a refused request never goes
//! upstream.

use serde_json::json;

use super::gate::{Ask, Gate, Row, check_rows, meta, with_tasks};

/// A call of `greet` whose body is changed in one place.
fn greet(from: &str, to: &str) -> Ask {
    Ask::call("greet", json!({ "name": "Ada" })).edit(from, to)
}

/// A call of `greet` around this body.
fn body(body: impl Into<Vec<u8>>) -> Ask {
    Ask { body: body.into(), ..Ask::call("greet", json!({})) }
}

/// A call with one more argument, as JSON text.
fn argument(json: &str) -> Ask {
    greet(r#""name":"Ada""#, &format!(r#""name":"Ada","more":{json}"#))
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[tokio::test]
async fn text_that_is_no_json_is_refused_without_an_id() {
    let whole = String::from_utf8(Ask::call("greet", json!({ "name": "Ada" })).body).unwrap();
    let invalid = |bytes: &[u8]| {
        let at = whole.find("Ada").unwrap();
        body([&whole.as_bytes()[..at], bytes, &whole.as_bytes()[at..]].concat())
    };
    let none = "400 -32700";
    let rows: &[Row<'_>] = &[
        ("B72 empty", body(""), none),
        ("B78 truncated", body(&whole[..whole.len() - 1]), none),
        ("B78 trailing garbage", body(format!("{whole}x")), none),
        ("B78 two documents", body(format!("{whole}{whole}")), none),
        ("B78 byte order mark", body(format!("\u{feff}{whole}")), none),
        ("B78 comment", greet("{\"name", "/* */{\"name"), none),
        ("B78 NaN", argument("NaN"), none),
        ("B78 single quotes", argument("'x'"), none),
        ("B79 invalid UTF-8", invalid(b"\xff"), none),
        ("B79 overlong UTF-8", invalid(b"\xc0\xaf"), none),
        ("B79 surrogate in UTF-8", invalid(b"\xed\xa0\x80"), none),
        ("B79 raw control character", invalid(b"\x01"), none),
        // As the value of an argument it goes on; the server behind this gateway is one that cannot read it.
        ("B80 high surrogate", argument(r#""\ud800""#), "200 -32603 id=7"),
        ("B80 low surrogate", argument(r#""\udc00""#), "200 -32603 id=7"),
        ("B80 deep inside", argument(r#"{"a":[{"b":"\ud800x"}]}"#), "200 -32603 id=7"),
        ("B80 in a key", argument(r#"{"\udfff":1}"#), "400 -32700 id=7"),
        ("B80 in a method", greet("\"tools/call\"", r#""tools/call\ud800""#), "400 -32600 id=7"),
        ("B80 in an id", greet("\"id\":7", r#""id":"\ud800""#), "400 -32600"),
        ("B80 in a name", greet("\"greet\"", r#""greet\ud800""#), "200 -32602 id=7"),
    ];
    check_rows(rows).await;
}

/// B82, B84, B86, B88: the reason is there for machines too.
#[tokio::test]
async fn json_beyond_the_bounds_is_refused_with_a_reason() {
    let gate = Gate::start().await;
    let keys: Vec<_> = (0..10_001).map(|n| format!("\"k{n}\":0")).collect();
    for (text, reason) in [
        (nested(62), "too_deep"),
        (r#"{"a":1,"a":1}"#.to_owned(), "duplicate_key"),
        ("1e400".to_owned(), "number_range"),
        (format!("{{{}}}", keys.join(",")), "too_many_nodes"),
    ] {
        let error = gate.send(&argument(&text)).await.json()["error"].take();
        assert_eq!(error["data"], json!({ "reason": reason }));
    }
}

#[tokio::test]
async fn json_beyond_the_bounds_is_refused() {
    let many_keys = |count| {
        let members: Vec<_> = (0..count).map(|n| format!("\"k{n}\":0")).collect();
        argument(&format!("{{{}}}", members.join(",")))
    };
    let rows: &[Row<'_>] = &[
        ("B82 just deep enough", argument(&nested(61)), "200 ok id=7"),
        ("B82 65", argument(&nested(62)), "400 -32600"),
        ("B82 128", argument(&nested(128)), "400 -32600"),
        ("B82 100,000", argument(&nested(100_000)), "400 -32600"),
        ("B82 2,000,000", argument(&nested(2_000_000)), "400 -32600"),
        ("B83 method", greet("{\"id\"", "{\"method\":\"tools/call\",\"id\""), "400 -32600"),
        ("B83 id", greet("{\"id\"", "{\"id\":8,\"id\""), "400 -32600"),
        ("B83 params", greet("{\"id\"", "{\"params\":{},\"id\""), "400 -32600"),
        ("B84 params", greet("\"arguments\"", "\"name\":\"greet\",\"arguments\""), "400 -32600 id=7"),
        ("B84 _meta", greet("\"_meta\":{", "\"_meta\":{\"k\":1,\"k\":1,"), "400 -32600 id=7"),
        ("B84 arguments", argument(r#"{"a":[{"k":1,"\u006b":2}]}"#), "400 -32600 id=7"),
        ("B86", argument("1e400"), "400 -32600 id=7"),
        ("B86 negative", argument("[-1e999]"), "400 -32600 id=7"),
        ("B87 64 digits", argument(&"9".repeat(64)), "200 ok id=7"),
        ("B87 65 digits", argument(&"9".repeat(65)), "400 -32600 id=7"),
        ("B87 1,000 digits", argument(&"9".repeat(1000)), "400 -32600 id=7"),
        ("B88 10,000 keys", many_keys(10_000), "200 ok id=7"),
        ("B88 10,001 keys", many_keys(10_001), "400 -32600 id=7"),
        ("B88 1,000,001 items", argument(&format!("[{}0]", "0,".repeat(1_000_000))), "400 -32600 id=7"),
        ("B88 200,001 nodes", argument(&format!("[{}0]", "0,".repeat(200_000))), "400 -32600 id=7"),
    ];
    check_rows(rows).await;
}

/// B85, SEC-07: a spelling that another parser might take for the member.
#[tokio::test]
async fn members_that_differ_in_case_alone_are_refused() {
    let update = Ask::new("tasks/update", json!({ "taskId": "x", "inputResponses": {} }));
    let prompt = Ask::new("resources/read", json!({ "uri": "a:b" }));
    let rows: &[Row<'_>] = &[
        ("B85 Method beside", greet("{\"id\"", "{\"Method\":\"x\",\"id\""), "400 -32600 id=7"),
        ("B85 METHOD instead", greet("\"method\"", "\"METHOD\""), "400 -32600 id=7"),
        ("B85 paramſ", greet("{\"id\"", "{\"paramſ\":{},\"id\""), "400 -32600 id=7"),
        ("B85 Name beside", greet("\"arguments\"", "\"Name\":\"x\",\"arguments\""), "200 -32602 id=7"),
        ("B85 argumentſ beside", greet("\"arguments\"", "\"argumentſ\":{},\"arguments\""), "200 -32602 id=7"),
        ("B85 Arguments instead", greet("\"arguments\"", "\"Arguments\""), "200 -32602 id=7"),
        ("B85 TASKID", update.clone().edit("\"taskId\"", "\"TASKID\":0,\"taskId\""), "200 -32602 id=7"),
        ("B85 inputresponses", update.edit("\"inputResponses\"", "\"inputresponses\""), "200 -32602 id=7"),
        ("B85 URI", prompt.edit("\"uri\"", "\"URI\":0,\"uri\""), "200 -32602 id=7"),
        ("B85 _Meta beside", greet("\"arguments\"", "\"_Meta\":{},\"arguments\""), "400 -32602 id=7"),
        ("B85 _META instead", greet("\"_meta\"", "\"_META\""), "400 -32602 id=7"),
        ("another member is its owner's", greet("\"arguments\"", "\"extra\":1,\"arguments\""), "200 ok id=7"),
    ];
    check_rows(rows).await;
}

#[tokio::test]
async fn ids_are_echoed_exactly_or_left_out() {
    let id = |json: &str| greet("\"id\":7", &format!("\"id\":{json}"));
    let long = format!("\"{}\"", "x".repeat(254));
    let rows: &[Row<'_>] = &[
        ("zero", id("0"), "200 ok id=0"),
        ("T-62 text", id("\"7\""), "200 ok id=\"7\""),
        ("empty text", id("\"\""), "200 ok id=\"\""),
        ("negative", id("-1"), "200 ok id=-1"),
        ("negative zero", id("-0"), "200 ok id=-0"),
        ("largest", id("9223372036854775807"), "200 ok id=9223372036854775807"),
        ("escapes", id(r#""\u0041\/\n\"é""#), r#"200 ok id="\u0041\/\n\"é""#),
        ("longest", id(&long), &format!("200 ok id={long}")),
        ("B93 null", id("null"), "400 -32600"),
        ("B93 true", id("true"), "400 -32600"),
        ("B93 object", id("{}"), "400 -32600"),
        ("B93 array", id("[1]"), "400 -32600"),
        ("B93 1.5", id("1.5"), "400 -32600"),
        ("B93 1.0", id("1.0"), "400 -32600"),
        ("B93 1e3", id("1e3"), "400 -32600"),
        ("B81 null character", id(r#""a\u0000""#), "400 -32600"),
        ("B93 too long", id(&format!("\"{}\"", "x".repeat(255))), "400 -32600"),
        ("B94", id("123456789012345678901234567890"), "400 -32600"),
        ("B94 one too many", id("9223372036854775808"), "400 -32600"),
    ];
    check_rows(rows).await;
}

#[tokio::test]
async fn a_body_that_is_no_request_is_refused() {
    let call = String::from_utf8(Ask::call("greet", json!({ "name": "Ada" })).body).unwrap();
    let long = format!("\"method\":\"{}\"", "x".repeat(129));
    let method = "\"method\":\"tools/call\"";
    let get = Ask::new("tasks/get", json!({ "taskId": "x" })).edit("\"id\":7,", "");
    let rows: &[Row<'_>] = &[
        ("B90 empty batch", body("[]"), "400 -32600"),
        ("B90 batch", body(format!("[{call}]")), "400 -32600"),
        ("B91 text", body("\"tools/call\""), "400 -32600"),
        ("B91 number", body("7"), "400 -32600"),
        ("B91 null", body("null"), "400 -32600"),
        ("B92 missing", greet("\"jsonrpc\":\"2.0\",", ""), "400 -32600 id=7"),
        ("B92 1.0", greet("\"2.0\"", "\"1.0\""), "400 -32600 id=7"),
        ("B92 number", greet("\"2.0\"", "2.0"), "400 -32600 id=7"),
        ("B95 missing", greet("\"method\":\"tools/call\",", ""), "400 -32600 id=7"),
        ("B95 number", greet(method, "\"method\":1"), "400 -32600 id=7"),
        ("B95 empty", greet(method, "\"method\":\"\""), "400 -32600 id=7"),
        ("B95 too long", greet(method, &long), "400 -32600 id=7"),
        ("B95 control character", greet(method, r#""method":"tools/call\n""#), "400 -32600 id=7"),
        ("B96 result", body(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#), "400 -32600"),
        ("B96 error", body(r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m"}}"#), "400 -32600"),
        ("B97", greet("{\"id\"", "{\"result\":{},\"id\""), "400 -32600 id=7"),
        ("B98 array", Ask { body: no_params("[]"), ..Ask::call("greet", json!({})) }, "400 -32602 id=7"),
        ("B98 text", Ask { body: no_params("\"x\""), ..Ask::call("greet", json!({})) }, "400 -32602 id=7"),
        ("B98 null", Ask { body: no_params("null"), ..Ask::call("greet", json!({})) }, "400 -32602 id=7"),
        ("B104", get, "400 -32600"),
    ];
    check_rows(rows).await;
}

fn no_params(params: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#).into_bytes()
}

/// MOD-09, EXT-57, EXT-58, B99 to B103, MOD-18, MOD-26: an unknown method is refused before any other check.
#[tokio::test]
async fn unknown_methods_are_404_and_notifications_are_taken_in_silence() {
    let unknown = [
        ("B99", "tools/destroy"),
        ("B99 case", "Tools/call"),
        ("B99 ours in the draft", "tasks/delete"),
        ("B100", "initialize"),
        ("B100", "ping"),
        ("B100", "logging/setLevel"),
        ("B100", "resources/subscribe"),
        ("B100", "resources/unsubscribe"),
        ("B101 EXT-58", "tasks/list"),
        ("B101 EXT-57", "tasks/result"),
    ];
    let mut rows: Vec<Row<'_>> =
        unknown.iter().map(|(name, method)| (*name, Ask::new(method, json!({})), "404 -32601 id=7")).collect();
    for (name, method) in [
        ("B102", "notifications/cancelled"),
        ("B103", "notifications/unknown"),
        ("initialized", "notifications/initialized"),
    ] {
        rows.push((name, Ask::new(method, json!({ "requestId": 7 })).edit("\"id\":7,", ""), "202∅"));
        let bare = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
        rows.push(("T-71 no headers", Ask::raw(method, bare).without("Mcp-Method"), "202∅"));
    }
    check_rows(&rows).await;
    let gate = Gate::start().await;
    let error = gate.send(&Ask::new("initialize", json!({}))).await.json()["error"].take();
    assert_eq!(error["data"], json!({ "supported": ["2026-07-28"] }), "B100: the served versions are named");
    let error = gate.send(&Ask::new("tasks/result", json!({}))).await.json()["error"].take();
    assert_eq!(error["message"], "Method not found: tasks/result; in 2026-07-28 `tasks/get` has the result");
}

/// B81: accepted where it is data, refused where it names something.
#[tokio::test]
async fn null_characters_are_data_and_never_names() {
    let named = |name: &str, member: &str, method: &str| {
        let params = json!({ member: "a\u{0}", "_meta": meta(&with_tasks()) });
        (name.to_owned(), Ask::new(method, params).with("Mcp-Name", "=?base64?YQA=?="))
    };
    let rows = [
        named("tool", "name", "tools/call"),
        named("prompt", "name", "prompts/get"),
        named("resource", "uri", "resources/read"),
        named("task", "taskId", "tasks/get"),
        (
            "mirrored argument".to_owned(),
            Ask::call("mirrored", json!({ "region": "a\u{0}" })).at_odd().with("Mcp-Param-Region", "=?base64?YQA=?="),
        ),
    ];
    let rows: Vec<Row<'_>> = rows.iter().map(|(name, ask)| (name.as_str(), ask.clone(), "200 -32602 id=7")).collect();
    check_rows(&rows).await;
    let gate = Gate::start().await;
    let result = gate.result(&Ask::call("greet", json!({ "name": "A\u{0}a" }))).await;
    assert_eq!(result["content"][0]["text"], "Hello, A\u{0}a!");
}

/// B87: numbers reach the upstream digit for digit.
#[tokio::test]
async fn arguments_reach_the_upstream_as_they_were_written() {
    let gate = Gate::start().await;
    let odd = r#"{"b":1.10, "a":12345678901234567890123,"z":-0,"e":1E5,"one":1.0,"t":"\u00e9\/","":null}"#;
    let ask = Ask::call("members", json!({ "here": 1 })).at_odd().edit(r#"{"here":1}"#, odd);
    assert_eq!(gate.send(&ask).await.summary(), "200 ok id=7");
    let calls = gate.odd.calls();
    assert_eq!(calls.len(), 1);
    assert!(calls[0].contains(odd), "{}", calls[0]);
    // UPC-05, UPC-20, UPC-21: nothing of the other hop.
    assert!(!calls[0].contains("io.modelcontextprotocol"), "{}", calls[0]);
}
