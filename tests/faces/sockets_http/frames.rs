//! HTTP/2 by prior knowledge, frame by frame: writing frames, reading the answers, tables of both.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::column::{Column, MESSAGE};
use super::harness::{Client, Gate, PATIENCE, connect};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const NONE: u8 = 0;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Header fields as literals that are not indexed.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
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

pub(crate) const ORDINARY: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost"),
    (":path", "/mcp"),
    ("content-type", "application/json"),
];

/// The head of an ordinary POST with `more` fields, in one HEADERS frame.
pub(crate) fn head(flags: u8, stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(&[&ORDINARY, more].concat()))
}

pub(crate) fn posted(stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
    [head(NONE, stream, more), frame(DATA, END_STREAM, stream, MESSAGE.as_bytes())].concat()
}

/// A request of these fields alone.
pub(crate) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, 1, &block(fields)), frame(DATA, END_STREAM, 1, MESSAGE.as_bytes())].concat()
}

pub(crate) struct Http2 {
    pub(crate) client: Client,
}

/// One frame as it came.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn code(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

impl Http2 {
    pub(crate) async fn connect(gate: &Gate) -> Self {
        Self::connect_to(gate.running.local_addr()).await
    }

    pub(crate) async fn connect_to(address: SocketAddr) -> Self {
        let mut client = connect(address).await;
        // With a header table of no bytes each answer can be read by itself.
        client.send(&[PREFACE, &frame(SETTINGS, NONE, 0, &[0, 1, 0, 0, 0, 0])].concat()).await;
        Self { client }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.client.send(bytes).await;
    }

    /// `None` if the connection ended, in any way.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
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

    /// The end of `stream`: `200`, `reset 7`, `goaway 11 reason`, `end`.
    pub(crate) async fn fate(&mut self, stream: u32) -> String {
        loop {
            let Some(frame) = self.frame().await else {
                return "end".to_owned();
            };
            match frame.kind {
                HEADERS if frame.stream == stream => return status(&frame.payload),
                RST_STREAM if frame.stream == stream => return format!("reset {}", frame.code(0)),
                GOAWAY => {
                    let fate = format!("goaway {} {}", frame.code(4), String::from_utf8_lossy(&frame.payload[8..]));
                    // A GOAWAY without error waits for an acknowledgement that is not sent here.
                    while frame.code(4) != 0 && self.frame().await.is_some() {}
                    return fate.trim_end().to_owned();
                }
                _ => (),
            }
        }
    }

    /// Whether the connection still answers, without looking at a stream.
    pub(crate) async fn lives(&mut self) -> bool {
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
pub(crate) fn status(block: &[u8]) -> String {
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

/// The same frames, with more fields at the end of each header block.
pub(crate) fn dress(frames: &[u8], fields: &[(&str, &str)]) -> Vec<u8> {
    let (mut dressed, mut rest) = (Vec::new(), frames);
    while let Some((&[a, b, c, kind, flags, s1, s2, s3, s4], behind)) = rest.split_first_chunk() {
        let (payload, next) = behind.split_at(usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap());
        let ends = matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0;
        let more = if ends { block(fields) } else { Vec::new() };
        dressed.extend(frame(kind, flags, u32::from_be_bytes([s1, s2, s3, s4]), &[payload, &more].concat()));
        rest = next;
    }
    dressed
}

/// The frames after the settings, the end of stream 1, the number of admitted requests.
pub(crate) type Row<'a> = (&'a str, Vec<u8>, &'a str, usize);

/// Checks each row in each column, each on a connection of its own.
pub(crate) async fn check_rows(rows: Vec<Row<'_>>) {
    let mut wrong = Vec::new();
    for column in Column::all().await {
        for (name, sent, expected, reaches) in &rows {
            let before = column.reached();
            let mut http2 = Http2::connect_to(column.address).await;
            http2.send(&dress(sent, &column.fields())).await;
            let fate = http2.fate(1).await;
            let lives = !fate.starts_with("goaway") && http2.lives().await;
            let reached = column.reached() - before;
            if fate != *expected || lives == expected.starts_with("goaway") || reached > *reaches {
                let column = column.name;
                wrong.push(format!("{name}, {column}: {fate:?}, lives: {lives}, {reached} reached, not {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
