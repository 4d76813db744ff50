//! Texts that grow, and requests around them.

use crate::bench::{MODERN, Setup};

/// `{"k0":0,"k1":0}`
pub(crate) fn keys(count: usize) -> String {
    object((0..count).map(|n| format!(r#""k{n}":0"#)))
}

/// The same with each key written with an escape.
pub(crate) fn escaped_keys(count: usize) -> String {
    object((0..count).map(|n| format!(r#""\u006b{n}":0"#)))
}

/// Answers to unknown questions, under keys as the gateway makes them, escaped.
pub(crate) fn answers(count: usize) -> String {
    object((0..count).map(|n| format!(r#""\u0072{n}":{{"action":"accept"}}"#)))
}

/// Objects nested so deep, as often as makes some 1,800 of them, in no order of keys.
pub(crate) fn nested(depth: usize) -> String {
    let one = format!("{}0{}", r#"{"b":1,"a":"#.repeat(depth), "}".repeat(depth));
    format!(r#"{{"x":[{}]}}"#, vec![one; 1_800 / depth].join(","))
}

pub(crate) fn items(count: usize) -> String {
    format!(r#"{{"x":[{}]}}"#, vec!["0"; count].join(","))
}

pub(crate) fn text(bytes: usize) -> String {
    format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes))
}

pub(crate) fn escapes(count: usize) -> String {
    format!(r#"{{"x":"{}"}}"#, r"\u00e4\n".repeat(count))
}

/// An object of ready members.
pub(crate) fn object(members: impl Iterator<Item = String>) -> String {
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

/// An HTTP request.
pub(crate) fn post(path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    format!("{head}\r\n{body}").into_bytes()
}

/// A request of a client without a session; `params` are members that stand beside `_meta`.
pub(crate) fn modern(path: &str, method: &str, name: Option<&str>, params: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let comma = if params.is_empty() { "" } else { "," };
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{MODERN}","io.modelcontextprotocol/clientCapabilities":{{"elicitation":{{"form":{{}}}},"extensions":{{"io.modelcontextprotocol/tasks":{{}}}}}}}}{comma}{params}}}}}"#
    );
    let mut headers = vec![("MCP-Protocol-Version", MODERN), ("Mcp-Method", method)];
    headers.extend(name.map(|name| ("Mcp-Name", name)));
    headers.extend(more);
    post(path, &headers, &body)
}

pub(crate) fn modern_call(path: &str, arguments: &str, more: &[(&str, &str)]) -> Vec<u8> {
    modern(path, "tools/call", Some("t"), &format!(r#""name":"t","arguments":{arguments}"#), more)
}

/// A session of a client.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    id: String,
    version: &'static str,
}

impl Session {
    pub(crate) async fn open(setup: &Setup, version: &'static str) -> Self {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{}},"clientInfo":{{"name":"c","version":"1"}}}}}}"#
        );
        let answer = setup.send(&post("/up/mcp", &[], &body)).await;
        let id = answer.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = Self { id: id.unwrap_or_else(|| panic!("no session: {answer}")).trim().to_owned(), version };
        setup.send(&session.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#, &[])).await;
        session
    }

    pub(crate) fn post(&self, body: &str, more: &[(&str, &str)]) -> Vec<u8> {
        let mut headers = vec![("Mcp-Session-Id", self.id.as_str())];
        if self.version > "2025-03-26" {
            headers.push(("MCP-Protocol-Version", self.version));
        }
        headers.extend(more);
        post("/up/mcp", &headers, body)
    }

    pub(crate) fn ask(&self, method: &str, params: &str, more: &[(&str, &str)]) -> Vec<u8> {
        self.post(&format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#), more)
    }

    pub(crate) fn call(&self, arguments: &str, more: &[(&str, &str)]) -> Vec<u8> {
        self.ask("tools/call", &format!(r#"{{"name":"t","arguments":{arguments}}}"#), more)
    }
}
