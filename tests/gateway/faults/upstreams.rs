//! F26 to F32, F42 and F43: the outcome of a call when its upstream, or the network in between, fails.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use support::ports::reserved_address;

use super::certificates::{self, Authority};
use super::client::TestGateway;
use super::fault_proxy::{Fault, FaultProxy, Verb};
use super::setup::{Setup, end, wire};
use super::upstream::{ScriptedServer, in_time};

const CALL: &str = "\"tools/call\"";

/// F26: nothing was sent, and each client learns that.
#[tokio::test]
async fn f26_an_upstream_that_refuses_connections_ran_nothing() {
    let setup = Setup::new(false, "").await;
    let id = setup.start("before", json!({})).await;
    assert_eq!(end(&setup.settled(&id).await), "completed");
    let gate = TestGateway::with(reserved_address(), "[upstreams.up.tasks]\nmode = \"never\"").await;
    let call = json!({"name": "work", "arguments": {}});
    let answer = wire().ask(gate.gateway.address(), "tools/call", call).await;
    let data = answer.json()["error"]["data"].take();
    assert_eq!(
        (answer.status, &data["reason"], &data["executed"]),
        (Some(503), &json!("upstream_unreachable"), &json!("no"))
    );
}

/// F28 to F32: the gateway's error for an interrupted call, and the ledger's record of it.
#[tokio::test]
async fn f28_to_f32_an_interrupted_call_is_never_sent_again_and_its_task_says_whether_it_ran() {
    let (drip, delay) = (Duration::from_millis(2), Duration::from_millis(300));
    let cases = [
        ("F28 stalls", false, Fault::down(CALL, 0, Verb::Stall), "deadline_exceeded unknown"),
        ("F29 crashes", false, Fault::down(CALL, 0, Verb::Cut), "upstream_closed unknown"),
        ("F29 crashes in its answer", false, Fault::down(CALL, 200, Verb::Cut), "upstream_closed unknown"),
        ("F30 half-closes", false, Fault::down(CALL, 0, Verb::HalfClose), "upstream_closed unknown"),
        ("F30 half-closes in its answer", false, Fault::down(CALL, 200, Verb::HalfClose), "upstream_closed unknown"),
        ("F31 resets", false, Fault::down(CALL, 0, Verb::Reset), "upstream_closed unknown"),
        ("F31 resets in its answer", false, Fault::down(CALL, 200, Verb::Reset), "upstream_closed unknown"),
        ("F32 drips", false, Fault::down(CALL, 0, Verb::Drip(drip)), "completed"),
        ("is late", false, Fault::down(CALL, 150, Verb::Delay(delay)), "completed"),
        ("is cut, and taken up", true, Fault::down(CALL, 200, Verb::Cut), "completed"),
        ("is reset, and taken up", true, Fault::down(CALL, 250, Verb::Reset), "completed"),
    ];
    for (name, is_resumable, fault, expected) in cases {
        // Only the stalled call may meet its deadline: a busy machine drips slowly, too.
        let deadline = if fault.verb == Verb::Stall { "4s" } else { "60s" };
        let setup = Setup::new(is_resumable, &format!("deadline = \"{deadline}\"")).await;
        setup.network.set_times(fault, 1);
        let id = setup.start("n1x", json!({"ms": 60, "steps": 3})).await;
        in_time(setup.network.strikes()).await;
        let task = setup.settled(&id).await;
        assert_eq!(end(&task), expected, "{name}");
        assert_eq!(setup.calls("n1x"), 1, "{name}: L4");
        // A held call has it in its answer, under 200: no client may repeat the call by itself.
        if expected.ends_with("unknown") && fault.verb != Verb::Stall {
            setup.network.set_times(fault, 1);
            let answer = setup.call("work_auto", "n2x", json!({"ms": 60, "steps": 3})).await;
            let data = answer.json()["error"]["data"].take();
            assert_eq!((answer.status, &data["executed"]), (Some(200), &json!("unknown")), "{name}");
            assert_eq!(setup.calls("n2x"), 1, "{name}: L4");
        }
    }
}

/// F28: the upstream gets a cancel at the deadline.
#[tokio::test]
async fn f28_an_upstream_that_never_answers_is_told_at_the_deadline() {
    // Long enough for the call to reach it.
    let setup = Setup::new(false, "deadline = \"10s\"").await;
    let id = setup.start("n1x", json!({"ms": 60_000, "steps": 1})).await;
    assert_eq!(end(&setup.settled(&id).await), "deadline_exceeded unknown");
    in_time(setup.ledger.state.reached("cancelled", 1)).await;
}

/// F42: a tenth of the upstreams hangs, and the others do not notice.
#[tokio::test]
async fn f42_an_upstream_that_hangs_with_all_its_places_taken_holds_up_no_other() {
    let (hanging, well) = (Setup::new(false, "").await, ScriptedServer::polite().await);
    hanging.network.set(Some(Fault::down(CALL, 0, Verb::Stall)));
    let keys = format!(
        "in_flight_max = 2\nqueue_max = 2\nqueue_deadline = \"1h\"\n[upstreams.up.tasks]\nmode = \"never\"\n\
         [upstreams.other]\nurl = \"http://{}/mcp\"\npath = \"/other\"\n[upstreams.other.tasks]\nmode = \"never\"",
        well.address
    );
    let gate = TestGateway::with(hanging.network.address, &keys).await;
    let address = gate.gateway.address();
    let (tracker, patient) = (TaskTracker::new(), gate.client().await);
    for id in 1..=4 {
        let (client, body) = (patient.clone(), super::client::call(id));
        let request = client.request("POST").header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        // They stay as long as the test takes, so that a client in the queue gets no answer.
        tracker.spawn(async move { client.send_patiently(request).await.unwrap().try_text().await });
    }
    // One more than has a place or a seat in the queue: it is refused at once, and nothing was sent.
    let hasty = wire();
    let refused = in_time(async {
        loop {
            let call = hasty.ask(address, "tools/call", json!({"name": "work", "arguments": {}}));
            // One that found a place or a seat leaves again.
            match tokio::time::timeout(Duration::from_millis(300), call).await {
                Ok(answer) if answer.status.is_some() => return answer,
                Ok(_) | Err(_) => (),
            }
        }
    })
    .await;
    assert_eq!(refused.status, Some(503), "{refused:?}");
    let mut other = super::wire_client::WireClient { path: "/other", ..wire() };
    other.flavour = super::wire_client::Flavour::Core(None);
    assert!(other.open(address).await);
    for n in 0..50 {
        let answer = other.ask(address, "tools/call", json!({"name": "t", "arguments": {"n": n}})).await;
        assert_eq!(answer.json()["result"]["n"], n, "{answer:?}");
    }
    assert_eq!(tracker.len(), 4, "all of its places are taken still");
}

/// F40: certificates are looked at per connection.
#[tokio::test]
async fn f40_an_untrusted_certificate_fails_new_calls_and_no_held_one() {
    let (ours, foreign) = (Authority::new(), Authority::new());
    let slow = |seen: &super::upstream::SeenRequest| {
        if seen.rpc() == "tools/list" {
            let tools = json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]});
            return Some(super::upstream::answer(seen, &tools));
        }
        seen.is_call().then(|| {
            let (events, reply) = super::upstream::BodySender::open();
            let seen = seen.clone();
            TaskTracker::new().spawn(async move {
                let span = seen.body["params"]["arguments"]["ms"].as_u64().unwrap_or_default();
                tokio::time::sleep(Duration::from_millis(span)).await;
                events.result(&seen, &json!({"content": []}));
            });
            reply
        })
    };
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = |authority: &Authority| authority.vouch(|_| ()).server(&["http/1.1"], None);
    let good = ScriptedServer::start_at(free, Some(server(&ours)), slow).await;
    let bad = ScriptedServer::start_at(free, Some(server(&foreign)), slow).await;
    let network = FaultProxy::start(good.address).await;
    let folder = tempfile::tempdir().unwrap();
    let ca = certificates::write(folder.path(), "ca", "CERTIFICATE", ours.certificate());
    let url = format!("https://localhost:{}/mcp", network.address.port());
    let keys = format!("[upstreams.up.tls]\nca = \"{}\"\n[upstreams.up.tasks]\nmode = \"never\"", ca.display());
    let gate = TestGateway::open("", &url, &keys).await;
    let address = gate.gateway.address();
    let call =
        |ms: u32| async move { wire().ask(address, "tools/call", json!({"name": "t", "arguments": {"ms": ms}})).await };
    let is_well = |answer: &super::wire_client::Answer| answer.json()["result"]["content"] == json!([]);
    let first = call(0).await;
    assert!(is_well(&first), "{first:?}");
    let held = call(1_500);
    let others = async {
        good.world.nth(1, super::upstream::SeenRequest::is_call).await;
        network.retarget(bad.address);
        // Connections that are open go on until they are not needed any more.
        let refused = in_time(async {
            loop {
                let answers = futures_util::future::join_all((0..4).map(|_| call(50))).await;
                if let Some(refused) = answers.into_iter().find(|answer| !is_well(answer)) {
                    return refused;
                }
            }
        })
        .await;
        let data = refused.json()["error"]["data"].take();
        assert_eq!((&data["reason"], &data["executed"]), (&json!("upstream_tls"), &json!("no")), "{refused:?}");
        network.retarget(good.address);
        assert!(is_well(&call(0).await), "it recovers without a restart");
    };
    let (held, ()) = tokio::join!(held, others);
    assert!(is_well(&held), "{held:?}");
}

/// F43: an answer that comes before the question was read to its end is an answer.
#[tokio::test]
async fn f43_an_answer_that_comes_before_all_of_the_request_was_read_is_used() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let tracker = TaskTracker::new();
    let connections = tracker.clone();
    tracker.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(hasty(stream));
        }
    });
    let gate = TestGateway::with(address, "[upstreams.up.tasks]\nmode = \"never\"").await;
    let arguments = json!({"padding": "x".repeat(3 << 20)});
    let call = json!({"name": "work", "arguments": arguments});
    let answer = wire().ask(gate.gateway.address(), "tools/call", call).await;
    assert_eq!(answer.json()["result"]["content"], json!([]), "{:?} {}", answer.status, answer.text);
}

/// Answers each request once its head is read, however much of it is still to come.
async fn hasty(mut stream: TcpStream) {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let Ok(count @ 1..) = stream.read(&mut buffer).await else { return };
        read.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&read);
        let member = |name: &str| {
            let rest = text.split_once(&format!("\"{name}\":"))?.1.trim_start();
            let end = rest.find([',', '}'])?;
            Some(rest[..end].to_owned())
        };
        let (Some(method), id) = (member("method"), member("id")) else { continue };
        let result: Value = match method.as_str() {
            "\"initialize\"" => {
                json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}})
            }
            "\"tools/list\"" => json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}),
            "\"tools/call\"" => json!({"content": []}),
            _ => json!({}),
        };
        let (status, body) = match id {
            Some(id) if method != "\"server/discover\"" => {
                ("200 OK", format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}"))
            }
            Some(id) => (
                "400 Bad Request",
                format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32601,\"message\":\"no\"}}}}"),
            ),
            None => ("202 Accepted", String::new()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if stream.write_all((head + &body).as_bytes()).await.is_err() {
            return;
        }
        if method == "\"tools/call\"" {
            // The rest of the request stays unread, and the connection open.
            return std::future::pending().await;
        }
        return;
    }
}
