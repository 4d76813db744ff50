//! Bad HTTP/2 (B31 to B48).

use std::time::Duration;

use taskgate::server::forwarded::AddressRange;
use taskgate::server::{DrainPlan, Drained, ListenSettings, ListenerLimits};
use taskgate::task::Principal;
use tokio::time::timeout;

use super::column::MESSAGE;
use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, NONE, ORDINARY, PING, PRIORITY,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, check_rows, fields, frame, head, posted, status,
};
use super::harness::{BODY_MAX, PATIENCE, gate, gate_with, settings};

#[tokio::test]
async fn bad_requests_cost_their_stream() {
    let long = "x".repeat(3_000);
    let fillers = ["x-a", "x-b", "x-c", "x-d", "x-e"].map(|name| (name, long.as_str()));
    let long_head = in_frames(END_STREAM, &block(&[&ORDINARY[..], &fillers, &fillers, &fillers[..3]].concat()));
    let without = |left_out: &str| ORDINARY.into_iter().filter(|(name, _)| *name != left_out).collect::<Vec<_>>();
    let with = |name: &'static str, value: &'static str| {
        ORDINARY.map(|(found, old)| if found == name { (name, value) } else { (found, old) })
    };
    let connect = [(":method", "CONNECT"), (":authority", "localhost:80")];
    let extended = [&with(":method", "CONNECT")[..], &[("content-type", "application/json")]].concat();
    let extended = [&[(":protocol", "websocket")], &extended[..]].concat();
    let large = (BODY_MAX + 1).to_string();
    check_rows(vec![
        ("a plain request", posted(1, &[]), "200", 1),
        ("B35", long_head, "431", 0),
        ("B37 connection", posted(1, &[("connection", "close")]), "reset 1", 0),
        ("B37 transfer-encoding", posted(1, &[("transfer-encoding", "chunked")]), "reset 1", 0),
        ("B37 te", posted(1, &[("te", "gzip")]), "reset 1", 0),
        ("B38 short", posted(1, &[("content-length", "41")]), "reset 1", 0),
        ("B38 long", posted(1, &[("content-length", "1")]), "reset 1", 0),
        ("B40 missing", fields(&without(":path")), "reset 1", 0),
        ("B40 no slash", fields(&with(":path", "mcp")), "reset 1", 0),
        ("B44", posted(1, &[("host", "gate.example")]), "400", 0),
        ("the same name twice", posted(1, &[("host", "localhost")]), "200", 1),
        ("B45", posted(1, &[("host", "localhost"), ("host", "localhost")]), "400", 0),
        ("no name", fields(&without(":authority")), "400", 0),
        ("host alone", fields(&[&without(":authority")[..], &[("host", "localhost")]].concat()), "200", 1),
        // h2 resets a request that was not offered (RFC 8441, 4) before a handler could answer 405.
        ("B46 extended", fields(&extended), "reset 1", 0),
        ("B55", fields(&connect), "405", 0),
        ("B70", head(NONE, 1, &[("content-length", &large)]), "413", 0),
        ("B72", head(END_STREAM, 1, &[]), "400", 0),
    ])
    .await;
}

/// Clients such as curl 7.88 show a reset stream as an error, and not the response that came before.
#[tokio::test]
async fn the_stream_of_a_refused_request_ends_after_its_body_or_soon() {
    let (gate, large) = (gate().await, (BODY_MAX + 1).to_string());
    for (refused, expected) in [
        (("origin", "http://foreign.example"), "403"),
        (("expect", "something"), "417"),
        (("content-length", &*large), "413"),
    ] {
        // A body of another length is malformed.
        for body_comes in [true, false].into_iter().filter(|comes| !comes || expected != "413") {
            let mut http2 = Http2::connect(&gate).await;
            http2.send(&head(NONE, 1, &[refused])).await;
            assert_eq!(http2.fate(1).await, expected);
            if body_comes {
                // The response's sentence is there before the request's body is.
                while http2.frame().await.is_some_and(|frame| frame.kind != DATA) {}
                http2.send(&frame(DATA, END_STREAM, 1, MESSAGE.as_bytes())).await;
            }
            let mut last = http2.frame().await.unwrap();
            while last.flags & END_STREAM == 0 || last.kind != DATA {
                assert_ne!(last.kind, RST_STREAM, "{refused:?}, the body comes: {body_comes}");
                last = http2.frame().await.unwrap();
            }
            assert!(http2.lives().await);
        }
    }
}

/// A header block in as many frames as it needs.
fn in_frames(flags: u8, block: &[u8]) -> Vec<u8> {
    let pieces: Vec<&[u8]> = block.chunks(16 << 10).collect();
    let frames = pieces.iter().enumerate().map(|(at, piece)| {
        let (kind, flags) = if at == 0 { (HEADERS, flags) } else { (CONTINUATION, NONE) };
        let end = if at + 1 == pieces.len() { END_HEADERS } else { NONE };
        frame(kind, flags | end, 1, piece)
    });
    frames.collect::<Vec<_>>().concat()
}

/// As over HTTP/1.1: together they are larger than a header list of 16 KiB.
#[tokio::test]
async fn sec_59_a_token_and_a_proof_of_full_size_fit_over_http_2() {
    let (token, proof) = (format!("DPoP {}", "x".repeat(16 << 10)), "x".repeat(8 << 10));
    let head = block(&[&ORDINARY[..], &[("authorization", token.as_str()), ("dpop", proof.as_str())]].concat());
    let request = [in_frames(NONE, &head), frame(DATA, END_STREAM, 1, MESSAGE.as_bytes())].concat();
    check_rows(vec![("a token of 16 KiB and a proof of 8 KiB", request, "200", 1)]).await;
}

#[tokio::test]
async fn bad_frames_cost_the_connection() {
    let floods = |count: usize, frame: Vec<u8>| frame.repeat(count);
    let resets: Vec<u8> = (0..2_000u32)
        .flat_map(|at| {
            let stream = at * 2 + 1;
            [head(END_STREAM, stream, &[]), frame(RST_STREAM, NONE, stream, &[0, 0, 0, 8])].concat()
        })
        .collect();
    let made: Vec<u8> = (0..2_000u32)
        .flat_map(|at| {
            let stream = at * 2 + 1;
            [head(NONE, stream, &[]), frame(WINDOW_UPDATE, NONE, stream, &[0; 4])].concat()
        })
        .collect();
    let opened = frame(HEADERS, NONE, 1, &block(&ORDINARY));
    let empty = [opened.clone(), floods(5_000, frame(CONTINUATION, NONE, 1, &[]))].concat();
    let full =
        [opened, floods(5_000, frame(CONTINUATION, NONE, 1, &block(&[("x-filler", &"x".repeat(1_000))])))].concat();
    let upper = fields(&[&ORDINARY[..], &[("X-Upper", "1")]].concat());
    let overflow = [head(NONE, 1, &[]), frame(WINDOW_UPDATE, NONE, 0, &[0x7f, 0xff, 0xff, 0xff])].concat();
    let rows = vec![
        ("B31", resets, "goaway 11 too_many_resets", 21),
        ("B32", made, "goaway 1", 0),
        ("B33 empty", empty, "goaway 11 too_many_continuations", 0),
        ("B33 full", full, "goaway 11 too_many_continuations", 0),
        (
            "B34",
            [head(NONE, 1, &[]), floods(20_000, frame(DATA, NONE, 1, &[]))].concat(),
            "goaway 11 too_many_data_frames",
            0,
        ),
        ("B39 upper case", upper, "goaway 1", 0),
        ("B39 line end", posted(1, &[("x-a", "a\r\nb")]), "goaway 1", 0),
        ("B39 even stream", posted(2, &[]), "goaway 1", 0),
        ("B39 idle stream", frame(DATA, END_STREAM, 1, b"{}"), "goaway 1", 0),
        ("B39 window", overflow, "goaway 3", 0),
        ("B39 frame size", frame(DATA, NONE, 1, &[0; (16 << 10) + 1]), "goaway 6", 0),
        ("B41", floods(20_000, frame(PING, NONE, 0, b"01234567")), "goaway 11", 0),
        ("B42", floods(20_000, frame(SETTINGS, NONE, 0, &[])), "goaway 11", 0),
        ("B43", floods(20_000, frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 1])), "goaway 11", 0),
        ("B43 window", floods(20_000, frame(WINDOW_UPDATE, NONE, 0, &[0, 0, 0, 1])), "goaway 11", 0),
    ];
    check_rows(rows).await;
}

/// B36: the stream too many is refused, the others are served.
#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let gate = gate().await;
    let mut http2 = Http2::connect(&gate).await;
    // The limit holds once our acknowledgement of the settings has been read.
    http2.send(&frame(SETTINGS, ACK, 0, &[])).await;
    let on_hold = ORDINARY.map(|(name, value)| if name == ":path" { (name, "/hold") } else { (name, value) });
    for at in 0..65 {
        let head = frame(HEADERS, END_HEADERS, at * 2 + 1, &block(&on_hold));
        http2.send(&[head, frame(DATA, END_STREAM, at * 2 + 1, b"{}")].concat()).await;
    }
    assert_eq!(http2.fate(129).await, "reset 7");
    gate.arrivals(64).await;
    gate.recorder.released.add_permits(64);
    let mut answered = 0;
    while answered < 64 {
        let frame = http2.frame().await.unwrap();
        if frame.kind == HEADERS {
            assert_eq!(status(&frame.payload), "200");
            answered += 1;
        }
    }
}

/// GW-45: the stream is answered, then the connection is ended in order.
#[tokio::test]
async fn refusals_without_end_cost_the_connection() {
    let gate = gate_with(settings(), ListenerLimits { glitches_max: 1, ..ListenerLimits::default() }).await;
    let mut http2 = Http2::connect(&gate).await;
    for stream in [1, 3] {
        http2.send(&posted(stream, &[("origin", "null")])).await;
        assert_eq!(http2.fate(stream).await, "403");
    }
    assert_eq!(http2.fate(5).await, "goaway 0");
}

/// B47: the connection of a peer that no longer acknowledges pings is closed.
#[tokio::test]
async fn a_silent_peer_is_let_go() {
    let span = Duration::from_millis(100);
    let gate =
        gate_with(settings(), ListenerLimits { ping_interval: span, ping_timeout: span, ..ListenerLimits::default() })
            .await;
    let mut http2 = Http2::connect(&gate).await;
    let mut pinged = false;
    while let Some(frame) = http2.frame().await {
        pinged |= frame.kind == PING;
    }
    assert!(pinged);
}

/// B31: the connection of a trusted proxy carries the requests of many clients.
#[tokio::test]
async fn b31_clients_of_a_trusted_proxy_that_leave_at_once_do_not_cost_its_connection() {
    let proxy = AddressRange::parse("127.0.0.1").unwrap();
    let gate =
        gate_with(ListenSettings { trusted_proxies: vec![proxy], ..settings() }, ListenerLimits::default()).await;
    let mut http2 = Http2::connect(&gate).await;
    let resets = (0..100u32).map(|at| {
        let stream = at * 2 + 1;
        [head(END_STREAM, stream, &[]), frame(RST_STREAM, NONE, stream, &[0, 0, 0, 8])].concat()
    });
    http2.send(&resets.collect::<Vec<_>>().concat()).await;
    assert!(http2.lives().await);
}

/// B28: a window that stays closed, from the first byte of an answer, in the middle of it, or before its last
/// bytes. The stream is reset, and no other: behind a proxy, the connection's other streams are other clients'.
#[tokio::test]
async fn b28_a_stream_whose_window_stays_closed_costs_itself_alone() {
    let hasty = ListenerLimits { write_stall: Duration::from_millis(150), ..ListenerLimits::default() };
    for (name, window, path) in [("closed", 0u32, "/mcp"), ("used up", 65_535, "/flood"), ("too small", 1_500, "/page")]
    {
        let gate = gate_with(settings(), hasty).await;
        let mut http2 = Http2::connect(&gate).await;
        let window = [&[0, 4][..], &window.to_be_bytes()].concat();
        http2.send(&frame(SETTINGS, NONE, 0, &window)).await;
        http2
            .send(&fields(&ORDINARY.map(|(name, old)| if name == ":path" { (name, path) } else { (name, old) })))
            .await;
        assert_eq!(http2.fate(1).await, "200", "{name}");
        assert_eq!(http2.fate(1).await, "reset 8", "{name}");
        // The first answer has used up the window of the whole connection.
        let wider = frame(WINDOW_UPDATE, NONE, 0, &(1u32 << 20).to_be_bytes());
        http2.send(&[wider, posted(3, &[])].concat()).await;
        assert_eq!(http2.fate(3).await, "200", "{name}");
        assert!(http2.lives().await, "{name}");
    }
}

/// B28 is about answers: one that its handler holds back costs nothing.
#[tokio::test]
async fn an_answer_that_has_not_begun_is_not_unread() {
    let hasty = ListenerLimits { write_stall: Duration::from_millis(150), ..ListenerLimits::default() };
    let gate = gate_with(settings(), hasty).await;
    let mut http2 = Http2::connect(&gate).await;
    let on_hold = ORDINARY.map(|(name, value)| if name == ":path" { (name, "/hold") } else { (name, value) });
    http2.send(&fields(&on_hold)).await;
    gate.arrivals(1).await;
    while timeout(hasty.write_stall * 2, http2.frame()).await.is_ok() {}
    gate.recorder.released.add_permits(1);
    assert_eq!(http2.fate(1).await, "200");
    assert!(http2.lives().await);
}

/// B28 is about peers that read nothing: one that reads a frame in time may go on for as long as it likes.
#[tokio::test]
async fn an_answer_that_is_read_slowly_is_not_unread() {
    const FRAME: u32 = 16 << 10;
    // All pauses together are longer; each has time for a busy machine.
    let hasty = ListenerLimits { write_stall: Duration::from_secs(4), ..ListenerLimits::default() };
    let gate = gate_with(settings(), hasty).await;
    let mut http2 = Http2::connect(&gate).await;
    let flood = ORDINARY.map(|(name, value)| if name == ":path" { (name, "/flood") } else { (name, value) });
    http2.send(&fields(&flood)).await;
    let mut owed: u32 = 65_535;
    for _ in 0..8 {
        while owed > 0 {
            let frame = http2.frame().await.expect("the answer goes on");
            if frame.kind == DATA {
                owed -= u32::try_from(frame.payload.len()).unwrap();
            }
        }
        tokio::time::sleep(hasty.write_stall / 6).await;
        owed = FRAME;
        let wider = |stream| frame(WINDOW_UPDATE, NONE, stream, &FRAME.to_be_bytes());
        http2.send(&[wider(0), wider(1)].concat()).await;
    }
}

/// B48: half a body costs its stream and nothing else.
#[tokio::test]
async fn half_a_body_is_answered_408_on_its_stream() {
    let gate = gate_with(
        settings(),
        ListenerLimits { body_deadline: Duration::from_millis(150), ..ListenerLimits::default() },
    )
    .await;
    let mut http2 = Http2::connect(&gate).await;
    http2.send(&[head(NONE, 1, &[]), frame(DATA, NONE, 1, b"{")].concat()).await;
    assert_eq!(http2.fate(1).await, "408");
    assert!(http2.lives().await);
    assert_eq!(gate.reached(), 0);
    http2.send(&posted(3, &[])).await;
    assert_eq!(http2.fate(3).await, "200");
    assert_eq!(gate.recorder.seen.lock()[0].caller.principal, Principal::local());
}

/// F64: a panic costs its stream.
#[tokio::test]
async fn a_panic_is_a_500_on_its_stream() {
    let gate = gate().await;
    let mut http2 = Http2::connect(&gate).await;
    let bad = ORDINARY.map(|(name, value)| if name == ":path" { (name, "/panic") } else { (name, value) });
    http2.send(&fields(&bad)).await;
    assert_eq!(http2.fate(1).await, "500");
    assert!(http2.lives().await);
}

/// A drain says GOAWAY and waits for the stream in flight.
#[tokio::test]
async fn a_drain_says_goaway_and_lets_streams_finish() {
    let gate = gate().await;
    let mut http2 = Http2::connect(&gate).await;
    let on_hold = ORDINARY.map(|(name, value)| if name == ":path" { (name, "/hold") } else { (name, value) });
    http2.send(&fields(&on_hold)).await;
    gate.arrivals(1).await;
    let recorder = gate.recorder;
    let client = async {
        let mut farewell = None;
        while farewell.is_none() {
            let frame = http2.frame().await.expect("a farewell before the end");
            match frame.kind {
                GOAWAY => farewell = Some(frame.code(4)),
                // hyper measures a round trip before it names the last stream.
                PING if frame.flags != ACK => http2.send(&self::frame(PING, ACK, 0, &frame.payload)).await,
                _ => (),
            }
        }
        assert_eq!(farewell, Some(0));
        recorder.released.add_permits(1);
        loop {
            let frame = http2.frame().await.expect("an answer before the end");
            match frame.kind {
                PING if frame.flags != ACK => http2.send(&self::frame(PING, ACK, 0, &frame.payload)).await,
                HEADERS => break assert_eq!(status(&frame.payload), "200"),
                _ => (),
            }
        }
        while http2.frame().await.is_some() {}
    };
    let drain = gate.running.drain(DrainPlan { has_substitute: true, ..DrainPlan::default() });
    let (drained, ()) = timeout(PATIENCE, async { tokio::join!(drain, client) }).await.unwrap();
    assert_eq!(drained, Drained { aborted: 0 });
}
