//! Responds to a batch of messages with a JSON array.
//!
//! Small responses are collected and written in the order of their requests. From the first large one on each is sent when it is
//! ready, so that few of them are in memory.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;

use bytes::Bytes;
use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;

use super::answer::accepted;
use super::http::{FaceResponse, joined_body};
use crate::wire::framing::BodyPart;

/// The most bytes that wait for earlier responses.
pub(super) const WAITING_MAX: usize = 256 << 10;

/// Runs `answers` concurrently, and responds with the array of their results; a notification adds none.
pub(super) async fn respond<A>(answers: impl IntoIterator<Item = A>) -> FaceResponse
where
    A: Future<Output = Option<Bytes>> + Send + 'static,
{
    let numbered = answers.into_iter().enumerate().map(|(at, answer)| async move { (at, answer.await) });
    let mut running: FuturesUnordered<_> = numbered.collect();
    let (mut ready, mut bytes) = (BTreeMap::new(), 0);
    while bytes <= WAITING_MAX
        && let Some((at, answer)) = running.next().await
    {
        if let Some(text) = answer {
            bytes += text.len();
            ready.insert(at, text);
        }
    }
    if ready.is_empty() {
        return accepted();
    }
    let mut pieces = Vec::with_capacity(2 * ready.len() + 1);
    for text in ready.into_values() {
        pieces.extend([if pieces.is_empty() { Bytes::from_static(b"[") } else { Bytes::from_static(b",") }, text]);
    }
    let body = if running.is_empty() {
        pieces.push(Bytes::from_static(b"]"));
        joined_body(pieces)
    } else {
        let rest = running.filter_map(|(_, answer)| std::future::ready(answer));
        let rest = rest.flat_map(|text| stream::iter([Bytes::from_static(b","), text]));
        let parts = stream::iter(pieces).chain(rest).chain(stream::iter([Bytes::from_static(b"]")]));
        StreamBody::new(parts.map(|part| Ok::<_, io::Error>(Frame::data(BodyPart::Bytes(part))))).boxed_unsync()
    };
    let mut response = FaceResponse::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
