//! A response to a client: the head with the moment at which it came, then the body as the client reads it.

use std::time::Duration;

use http::HeaderMap;
use http_body_util::BodyExt;
use serde_json::Value;
use taskgate::face::http::{FaceResponse, ResponseBody};
use tokio::time::Instant;

/// An answer whose head is there.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// When the head came, counted from the world's beginning.
    pub(crate) at: Duration,
    started: Instant,
    body: ResponseBody,
}

impl Answer {
    pub(crate) fn of(response: FaceResponse, started: Instant) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status.as_u16(), headers: head.headers, at: started.elapsed(), started, body }
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream")
    }

    /// The whole body as one JSON text.
    pub(crate) async fn text(self) -> String {
        assert!(!self.is_stream(), "the answer is a stream");
        let bytes = self.body.collect().await.unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    pub(crate) async fn json(self) -> Value {
        serde_json::from_str(&self.text().await).unwrap()
    }

    /// The next event of a stream with the moment at which it came: a message, or `null` for a comment.
    pub(crate) async fn event(&mut self) -> Option<(Duration, Value)> {
        assert!(self.is_stream(), "the answer is no stream");
        let frame = self.body.frame().await?.unwrap().into_data().unwrap();
        let text = String::from_utf8(frame.into_bytes().to_vec()).unwrap();
        let value = match text.rsplit_once("\ndata:") {
            Some((_, data)) if !matches!(data.trim(), "" | ":") => serde_json::from_str(data.trim()).unwrap(),
            Some(_) | None => Value::Null,
        };
        assert!(text.ends_with("\n\n") && (text.starts_with("id:") || !text.contains("\nid:")), "{text}");
        Some((self.started.elapsed(), value))
    }

    /// All events to the end.
    pub(crate) async fn events(mut self) -> Vec<(Duration, Value)> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }
}
