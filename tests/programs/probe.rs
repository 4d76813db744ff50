//! `taskgate probe` as a program: against the demo server over both of its transports, and where there is nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use support::ports::reserved_address;
use support::scripted as upstream;
use support::served;

use std::net::Ipv4Addr;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use served::Served;
use taskgate::config::{self, ServerSettings};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio_util::task::TaskTracker;

const PROGRAM: &str = env!("CARGO_BIN_EXE_taskgate");

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it happens in time")
}

async fn probe(arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("probe").args(arguments).env_remove("TASKGATE_LOG").stdin(Stdio::null()).kill_on_drop(true);
    in_time(command.output()).await.unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    })
}

async fn demo() -> (Child, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["demo-server", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = in_time(lines.next_line()).await.unwrap().unwrap();
    (child, url)
}

#[tokio::test]
async fn a_server_is_described_for_people_and_as_json_over_both_transports() {
    let (_demo, url) = demo().await;
    for (target, transport) in [(vec![url.as_str()], "streamable-http"), (vec!["--", PROGRAM, "demo-server"], "stdio")]
    {
        let output = probe(&[&["--json"][..], &target].concat()).await;
        assert_eq!(output.status.code(), Some(0));
        let json = report(&output);
        assert_eq!((&json["transport"], &json["version"]), (&json!(transport), &json!("2025-06-18")), "{json}");
        let named: Vec<_> =
            json["versions"].as_array().unwrap().iter().map(|one| (&one["version"], &one["served"])).collect();
        assert_eq!(named[0], (&json!("2026-07-28"), &json!(false)), "{json}");
        assert_eq!(named[1], (&json!("2025-11-25"), &json!(false)), "{json}");
        assert_eq!(named[2], (&json!("2025-06-18"), &json!(true)), "{json}");
        assert_eq!(json["tools"].as_array().unwrap().len(), 7, "{json}");
        assert!(json.get("call").is_none(), "no tool is called: {json}");
        let block = json["toml"].as_str().unwrap();
        let loaded = config::parse("block.toml", block, &|_| None).unwrap_or_else(|error| panic!("{error}\n{block}"));
        let is_stdio = matches!(loaded.config.upstreams[0].server, ServerSettings::Stdio(_));
        assert_eq!(is_stdio, transport == "stdio", "{block}");

        let text = String::from_utf8(probe(&target).await.stdout).unwrap();
        assert!(text.ends_with(block), "{text}");
        for part in ["2025-06-18  yes", "slow_report", "tools         7"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

/// Where the path is left out, servers are looked for where they usually are.
#[tokio::test]
async fn a_server_is_found_without_its_path() {
    let (_demo, url) = demo().await;
    let output = probe(&["--json", url.trim_end_matches("/mcp")]).await;
    let json = report(&output);
    assert_eq!((output.status.code(), &json["target"]), (Some(0), &json!(url)), "{json}");
}

/// The text of a server's refusal cannot control the terminal, and a redirected address is reported.
#[tokio::test]
async fn a_servers_refusal_reaches_the_terminal_as_plain_text() {
    let refusal = "\\u001b[2J\\u001b]0;owned\\u0007\\u009b1m\\u202egnp\\u2066\\u200b";
    let error = format!("{{\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":{{\"code\":-32000,\"message\":\"no {refusal}\"}}}}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    TaskTracker::new().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 64 * 1024];
            let read = stream.read(&mut request).await.unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let id = request.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next()).unwrap_or("null");
            let body = error.replace("ID", id);
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let output = probe(&[&url]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{said:?}");
    assert!(said.contains("no  [2J") && said.contains("gnp"), "{said:?}");
    let is_odd = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{2066}\u{200b}".contains(c);
    assert!(!said.chars().any(is_odd), "{said:?}");
}

/// A gateway is a server as any other, of both kinds.
#[tokio::test]
async fn a_gateway_is_described_with_the_tools_of_its_server() {
    let (_demo, url) = demo().await;
    let gateway = Served::before(&url, "").await;
    let output = probe(&["--json", &gateway.url]).await;
    let json = report(&output);
    assert_eq!(output.status.code(), Some(0), "{json}");
    assert_eq!(json["tools"].as_array().unwrap().len(), 7, "{json}");
}

#[tokio::test]
async fn a_call_is_made_where_one_is_wanted_and_its_end_is_the_exit_code() {
    let (_demo, url) = demo().await;
    for (call, code, outcome) in [
        (["greet", r#"{"name":"Ada"}"#], 0, "result"),
        (["slow_report", r#"{"seconds":0.3,"steps":3}"#], 0, "result"),
        (["no_such_tool", "{}"], 2, "error"),
    ] {
        let output = probe(&["--json", &url, "--call", call[0], call[1]]).await;
        let json = report(&output);
        assert_eq!((json["call"]["outcome"].as_str(), output.status.code()), (Some(outcome), Some(code)), "{json}");
        if call[0] == "slow_report" {
            assert!(json["call"]["seconds"].as_f64().unwrap() >= 0.3, "{json}");
            assert!(json["call"]["progress"].as_u64().unwrap() >= 1, "{json}");
        }
    }
}

#[tokio::test]
async fn a_call_that_does_not_end_is_given_up_in_time() {
    let (_demo, url) = demo().await;
    let output = probe(&["--json", &url, "--timeout", "6s", "--call", "slow_report", r#"{"seconds":600}"#]).await;
    let json = report(&output);
    assert_eq!((&json["call"]["outcome"], output.status.code()), (&json!("no_answer_in_time"), Some(69)), "{json}");
}

#[tokio::test]
async fn a_list_without_end_is_read_up_to_a_bound() {
    let (list, filling) = ("tools/list", "x".repeat(12 << 20));
    let pages = AtomicUsize::new(0);
    let server = upstream::ScriptedServer::start(move |seen| {
        let page = || {
            // Each page has a new name and a new cursor (UPC-04).
            let at = pages.fetch_add(1, Ordering::Relaxed);
            let tool = format!(r#"{{"name":"t{at}","description":"{filling}","inputSchema":{{"type":"object"}}}}"#);
            let result = format!(r#"{{"tools":[{tool}],"nextCursor":"on{at}"}}"#);
            upstream::json_text(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.body["id"]))
        };
        (seen.rpc() == list).then(page)
    })
    .await;
    let output = probe(&["--json", "--timeout", "50s", server.url().as_str()]).await;
    assert_eq!(server.world.count(list), 3, "the third page is over the bound");
    let json = report(&output);
    assert!(json.to_string().contains("the list has more than 32 MiB"), "{:.1000}", json.to_string());
}

#[tokio::test]
async fn where_nothing_speaks_mcp_the_exit_code_and_the_words_say_so() {
    let nobody = format!("http://{}/mcp", reserved_address());
    // Answers nothing at all.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let silence = format!("http://{}/mcp", silent.local_addr().unwrap());
    TaskTracker::new().spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = silent.accept().await {
            let _ = stream.read(&mut [0; 16]).await;
            held.push(stream);
        }
    });
    let (_demo, url) = demo().await;
    let elsewhere = url.replace("/mcp", "/nowhere");
    let silent_tls = url.replace("http://", "https://");
    for (arguments, words) in [
        (vec![nobody.as_str()], "cannot be reached"),
        (vec![silence.as_str(), "--timeout", "2s"], "no answer in time"),
        (vec![elsewhere.as_str()], "HTTP+SSE"),
        (vec![nobody.as_str()], "connection refused"),
        (vec![silent_tls.as_str(), "--timeout", "20s"], "does not speak TLS"),
        (vec!["--", "/nowhere/at/all"], "/nowhere/at/all: does not exist"),
        (vec!["--", "true"], "exit code 0"),
        (vec!["--timeout", "2s", "--", "sleep", "60"], "no answer in time"),
        (
            vec!["--timeout", "11s", "--", "sleep", "60"],
            "no answer yet after 10 s; the program has 11 s in all (--timeout)",
        ),
    ] {
        let output = probe(&arguments).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(69), "{arguments:?} {said}");
        assert!(said.contains(words), "{arguments:?} {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

/// A program that gives up prints its reason at last, which the user must see.
#[tokio::test]
async fn the_standard_error_of_a_failed_program_is_shown() {
    let script =
        "for n in $(seq 30); do echo \"line $n\" >&2; done; printf '\\033[2JAPI_TOKEN is not set\\n' >&2; exit 3";
    let output = probe(&["--", "sh", "-c", script]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("exit code 3") && said.contains("Its standard error ends with:\n  line 12\n"), "{said}");
    assert_eq!(said.matches("API_TOKEN is not set\n").count(), 1, "once, however often it was started: {said}");
    assert!(!said.contains("line 11\n") && !said.contains('\u{1b}'), "{said}");
}

/// An answer, and the message about it.
#[tokio::test]
async fn an_error_about_an_address_is_reported_once_with_its_cause() {
    for (head, expected) in [
        (
            "401 Unauthorized\r\nwww-authenticate: Bearer resource_metadata=\"/meta?x=1\"",
            "; its metadata: ORIGIN/meta?x=1",
        ),
        ("401 Unauthorized", "it asks for credentials, or for others (HTTP 401); put a key into TASKGATE_KEY\n"),
        ("200 OK\r\ncontent-type: text/html", "its answer is not MCP: content-type text/html\n"),
        (
            "308 Permanent Redirect\r\nlocation: https://other.example/mcp",
            "it points to https://other.example/mcp (HTTP 308)\n",
        ),
        ("404 Not Found", "HTTP+SSE: The upstream server answered with an HTTP error (HTTP 404)\n"),
        ("500 Internal Server Error\r\ncontent-type: text/html", "HTTP 500, content-type text/html\n"),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        TaskTracker::new().spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut vec![0; 64 * 1024]).await;
                let answer = format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n<>");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let output = probe(&[&format!("{origin}/mcp")]).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains(&expected.replace("ORIGIN", &origin)), "{head}: {said}");
        assert_eq!(said.matches("(HTTP 404)").count(), usize::from(head.starts_with("404")), "{said}");
    }
}

/// A server that speaks TLS alone answers a request without it by an alert.
#[tokio::test]
async fn an_address_without_tls_of_a_server_that_has_it_is_told_from_one_that_is_no_server() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    TaskTracker::new().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut vec![0; 64 * 1024]).await;
            let _ = stream.write_all(b"\x15\x03\x01\x00\x02\x02\x46").await;
        }
    });
    let said = String::from_utf8(probe(&[&url]).await.stderr).unwrap();
    assert!(said.contains("it does not speak HTTP here; over TLS an address begins with https://"), "{said}");
}

#[tokio::test]
async fn a_command_without_the_two_dashes_gets_a_hint() {
    for arguments in [&["npx"][..], &["npx", "-y", "server"]] {
        let output = probe(arguments).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains("a server's command stands after `--`: taskgate probe -- COMMAND"), "{said}");
    }
}

#[tokio::test]
async fn a_time_limit_that_no_clock_reaches_is_refused() {
    let output = probe(&["http://127.0.0.1:9/mcp", "--timeout", "500000000000y"]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("write a duration, such as 90s or 5m"), "{said}");
}

#[tokio::test]
async fn a_program_is_given_the_variables_that_are_named_and_the_block_names_them() {
    let server = format!("test -n \"$PROBED_KEY\" || {{ echo no key >&2; exit 1; }}; exec '{PROGRAM}' demo-server");
    let probe = async |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("probe").args(arguments).env("PROBED_KEY", "s3cret").env_remove("TASKGATE_LOG");
        let output = in_time(command.stdin(Stdio::null()).kill_on_drop(true).output()).await.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, block, _) = probe(&["--env", "PROBED_KEY", "--", "sh", "-c", &server]).await;
    assert_eq!(code, Some(0));
    assert!(block.contains("env = { PROBED_KEY = \"${PROBED_KEY}\" }") && !block.contains("s3cret"), "{block}");
    let (code, _, said) = probe(&["--", "sh", "-c", &server]).await;
    assert_eq!(code, Some(69));
    assert!(said.contains("no key") && said.contains("the variables of --env NAME"), "{said}");
    let (code, _, said) = probe(&["--", "nosuchprogram"]).await;
    let expected = "taskgate: nosuchprogram: is not found in PATH; install it, or write the path of its file\n";
    assert_eq!((code, said.as_str()), (Some(69), expected));
    for (arguments, expected) in [
        (["--env", "NO_SUCH_VARIABLE_HERE"], "--env NO_SUCH_VARIABLE_HERE: the environment has no such variable"),
        (["--env", "PROBED_KEY=s3cret"], "--env: write the name of a variable alone"),
    ] {
        let (code, _, said) = probe(&[&arguments[..], &["--", "true"]].concat()).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains(expected) && !said.contains("s3cret"), "{said}");
    }
}

/// Answers requests of both eras, and opens sessions; at 2026-07-28 it declares these extensions.
async fn server_of_both_eras(extensions: &'static str) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    TaskTracker::new().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 64 * 1024];
            let read = stream.read(&mut request).await.unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let id = request.split("\"id\":").nth(1).and_then(|rest| rest.split([',', '}']).next()).unwrap_or("null");
            let info = r#"{"name":"both","version":"1"}"#;
            let result = if request.contains("\"server/discover\"") {
                format!(r#"{{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{{"extensions":{extensions}}}}}"#)
            } else if request.contains("\"initialize\"") {
                format!(r#"{{"protocolVersion":"2025-11-25","capabilities":{{}},"serverInfo":{info}}}"#)
            } else {
                "{}".to_owned()
            };
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
            let head = "content-type: application/json\r\nmcp-session-id: s1\r\nconnection: close";
            let answer = match request.contains("notifications/") {
                true => "HTTP/1.1 202 Accepted\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_owned(),
                false => format!("HTTP/1.1 200 OK\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
            };
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

/// UPC-28.
#[tokio::test]
async fn the_report_says_in_which_era_a_server_of_both_can_ask_and_why() {
    for (extensions, era, why) in [
        ("{}", "session", "only in a session can this server ask its client a question during a call"),
        (r#"{"io.modelcontextprotocol/tasks":{}}"#, "2026-07-28", "the server declares the tasks extension there"),
    ] {
        let url = server_of_both_eras(extensions).await;
        let json = report(&probe(&["--json", &url]).await);
        assert_eq!(json["questions"], json!({"era": era, "why": why}), "{json}");
        let text = String::from_utf8(probe(&[&url]).await.stdout).unwrap();
        assert!(text.contains(&format!("questions     {era}: {why}; clients that declare")), "{text}");
    }
}
