//! Group 2: HTTP/2 by prior knowledge, frame by frame.

use std::time::Duration;

use taskgate::server::{DrainPlan, Drained, Limits};
use taskgate::task::Principal;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::harness::{BODY_MAX, Client, Gate, PATIENCE, gate, gate_with, settings};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const NONE: u8 = 0;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Header fields as literals that are not indexed.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // An integer with a prefix of 7 bits (RFC 7541, 5.1).
            let mut length = text.len();
            if length < 127 {
                block.push(u8::try_from(length).unwrap());
            } else {
                block.push(127);
                length -= 127;
                while length >= 128 {
                    block.push(u8::try_from(length % 128).unwrap() | 128);
                    length /= 128;
                }
                block.push(u8::try_from(length).unwrap());
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

const ORDINARY: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost"),
    (":path", "/mcp"),
    ("content-type", "application/json"),
];

/// The head of an ordinary POST with `more` fields, in one HEADERS frame.
fn head(flags: u8, stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(&[&ORDINARY, more].concat()))
}

fn posted(stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    [head(NONE, stream, more), frame(DATA, END_STREAM, stream, b"{}")].concat()
}

/// A request of these fields alone.
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, 1, &block(fields)), frame(DATA, END_STREAM, 1, b"{}")].concat()
}

struct Http2 {
    client: Client,
}

/// One frame as it came.
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn code(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

impl Http2 {
    async fn connect(gate: &Gate) -> Self {
        let mut client = gate.connect().await;
        // With a header table of no bytes each answer can be read by itself.
        client.send(&[PREFACE, &frame(SETTINGS, NONE, 0, &[0, 1, 0, 0, 0, 0])].concat()).await;
        Self { client }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.client.send(bytes).await;
    }

    /// `None` where the connection ended, by whatever means.
    async fn frame(&mut self) -> Option<Frame> {
        let read = async {
            let stream = &mut self.client.stream;
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.ok()?;
            let [a, b, c, kind, flags, id @ ..] = head;
            let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
            stream.read_exact(&mut payload).await.ok()?;
            Some(Frame { kind, flags, stream: u32::from_be_bytes(id), payload })
        };
        timeout(PATIENCE, read).await.expect("a frame or an end")
    }

    /// What becomes of `stream`: `200`, `reset 7`, `goaway 11 reason`, `end`.
    async fn fate(&mut self, stream: u32) -> String {
        loop {
            let Some(frame) = self.frame().await else {
                return "end".to_owned();
            };
            match frame.kind {
                HEADERS if frame.stream == stream => return status(&frame.payload),
                RST_STREAM if frame.stream == stream => return format!("reset {}", frame.code(0)),
                GOAWAY => {
                    let fate = format!("goaway {} {}", frame.code(4), String::from_utf8_lossy(&frame.payload[8..]));
                    // A farewell without error waits for an acknowledgement that is not sent here.
                    while frame.code(4) != 0 && self.frame().await.is_some() {}
                    return fate.trim_end().to_owned();
                }
                _ => (),
            }
        }
    }

    /// Whether the connection still answers, without looking at a stream.
    async fn lives(&mut self) -> bool {
        self.send(&frame(PING, NONE, 0, b"sentinel")).await;
        while let Some(frame) = self.frame().await {
            if frame.kind == PING && frame.flags == ACK {
                return true;
            }
        }
        false
    }
}

/// The status in front of a header block: indexed, or a literal whose digits are in the Huffman code of RFC 7541.
fn status(block: &[u8]) -> String {
    // A change of the table size may stand in front.
    let block = if block[0] & 0xe0 == 0x20 { &block[1..] } else { block };
    match block[0] {
        0x88 => "200".to_owned(),
        0x8c => "400".to_owned(),
        0x8d => "404".to_owned(),
        0x8e => "500".to_owned(),
        _ => {
            let bytes = &block[2..2 + usize::from(block[1] & 0x7f)];
            let mut bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1));
            let mut take = |count: usize| bits.by_ref().take(count).fold(0, |value, bit| value << 1 | bit);
            let digits = (0..3).map(|_| match take(5) {
                low @ 0..=2 => low,
                high => (high << 1 | take(1)) - 0b01_1001 + 3,
            });
            digits.map(|digit| char::from(b'0' + digit)).collect()
        }
    }
}

/// What is sent after the settings, what becomes of stream 1, how many requests reach the endpoint at most.
type Row<'a> = (&'a str, Vec<u8>, &'a str, usize);

async fn check_rows(rows: Vec<Row<'_>>) {
    let mut wrong = Vec::new();
    for (name, sent, expected, reaches) in rows {
        let gate = gate().await;
        let mut http2 = Http2::connect(&gate).await;
        http2.send(&sent).await;
        let fate = http2.fate(1).await;
        let lives = !fate.starts_with("goaway") && http2.lives().await;
        if fate != expected || lives == expected.starts_with("goaway") || gate.reached() > reaches {
            wrong.push(format!("{name}: {fate:?}, lives: {lives}, {} reached, not {expected:?}", gate.reached()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn bad_requests_cost_their_stream() {
    let long = "x".repeat(3_000);
    let fillers = ["x-a", "x-b", "x-c", "x-d", "x-e"].map(|name| (name, long.as_str()));
    let long_block = block(&[&ORDINARY[..], &fillers, &fillers[..1]].concat());
    let (front, rest) = long_block.split_at(16 << 10);
    let long_head = [frame(HEADERS, END_STREAM, 1, front), frame(CONTINUATION, END_HEADERS, 1, rest)].concat();
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
        ("B38 short", posted(1, &[("content-length", "3")]), "reset 1", 0),
        ("B38 long", posted(1, &[("content-length", "1")]), "reset 1", 0),
        ("B40 missing", fields(&without(":path")), "reset 1", 0),
        ("B40 no slash", fields(&with(":path", "mcp")), "reset 1", 0),
        ("B44", posted(1, &[("host", "gate.example")]), "400", 0),
        ("the same name twice", posted(1, &[("host", "localhost")]), "200", 1),
        ("B45", posted(1, &[("host", "localhost"), ("host", "localhost")]), "400", 0),
        ("no name", fields(&without(":authority")), "400", 0),
        ("host alone", fields(&[&without(":authority")[..], &[("host", "localhost")]].concat()), "200", 1),
        // h2 resets what was not offered (RFC 8441, 4) before anybody could answer 405.
        ("B46 extended", fields(&extended), "reset 1", 0),
        ("B55", fields(&connect), "405", 0),
        ("B58", fields(&with(":authority", "evil.example")), "403", 0),
        ("B60", posted(1, &[("origin", "http://evil.example")]), "403", 0),
        ("B56", fields(&with(":path", "/mcp/")), "404", 0),
        ("B54", fields(&with(":method", "PUT")), "405", 0),
        ("B67", fields(&without("content-type")), "415", 0),
        ("B70", head(NONE, 1, &[("content-length", &large)]), "413", 0),
        ("B72", head(END_STREAM, 1, &[]), "400", 0),
    ])
    .await;
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
        ("B33 empty", empty, "goaway 11 too_many_continuations", 0),
        ("B33 full", full, "goaway 11 too_many_continuations", 0),
        (
            "B34",
            [head(NONE, 1, &[]), floods(20_000, frame(DATA, NONE, 1, &[]))].concat(),
            "goaway 11 too_many_data_frames",
            0,
        ),
        ("B39 upper case", upper, "goaway 1", 0),
        ("B39 even stream", posted(2, &[]), "goaway 1", 0),
        ("B39 idle stream", frame(DATA, END_STREAM, 1, b"{}"), "goaway 1", 0),
        ("B39 window", overflow, "goaway 3", 0),
        ("B39 frame size", frame(DATA, NONE, 1, &[0; (16 << 10) + 1]), "goaway 6", 0),
        ("B41", floods(20_000, frame(PING, NONE, 0, b"01234567")), "goaway 11", 0),
        ("B42", floods(20_000, frame(SETTINGS, NONE, 0, &[])), "goaway 11", 0),
        ("B43", floods(20_000, frame(PRIORITY, NONE, 1, &[0, 0, 0, 0, 1])), "goaway 11", 0),
    ];
    check_rows(rows).await;

    let gate = gate().await;
    let mut http2 = Http2::connect(&gate).await;
    http2.send(&made).await;
    assert!(http2.fate(u32::MAX).await.starts_with("goaway"), "B32");
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

/// b.3, rule 6: the stream is answered, then the connection is ended in order.
#[tokio::test]
async fn refusals_without_end_cost_the_connection() {
    let gate = gate_with(settings(), Limits { glitches_max: 1, ..Limits::default() }).await;
    let mut http2 = Http2::connect(&gate).await;
    for stream in [1, 3] {
        http2.send(&posted(stream, &[("origin", "null")])).await;
        assert_eq!(http2.fate(stream).await, "403");
    }
    assert_eq!(http2.fate(5).await, "goaway 0");
}

/// B47: a peer that no longer acknowledges pings is let go.
#[tokio::test]
async fn a_silent_peer_is_let_go() {
    let span = Duration::from_millis(100);
    let gate = gate_with(settings(), Limits { ping_interval: span, ping_timeout: span, ..Limits::default() }).await;
    let mut http2 = Http2::connect(&gate).await;
    let mut pinged = false;
    while let Some(frame) = http2.frame().await {
        pinged |= frame.kind == PING;
    }
    assert!(pinged);
}

/// B48: half a body costs its stream and nothing else.
#[tokio::test]
async fn half_a_body_is_answered_408_on_its_stream() {
    let gate = gate_with(settings(), Limits { body_deadline: Duration::from_millis(150), ..Limits::default() }).await;
    let mut http2 = Http2::connect(&gate).await;
    http2.send(&[head(NONE, 1, &[]), frame(DATA, NONE, 1, b"{")].concat()).await;
    assert_eq!(http2.fate(1).await, "408");
    assert!(http2.lives().await);
    assert_eq!(gate.reached(), 0);
    http2.send(&posted(3, &[])).await;
    assert_eq!(http2.fate(3).await, "200");
    assert_eq!(gate.recorder.seen.lock()[0].principal, Principal::local());
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
    let drain = gate.running.drain(DrainPlan { notice: Duration::ZERO, max: PATIENCE });
    let (drained, ()) = timeout(PATIENCE, async { tokio::join!(drain, client) }).await.unwrap();
    assert_eq!(drained, Drained { aborted: 0 });
}
