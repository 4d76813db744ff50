//! Progress as a sign of life, for requests that are passed on and want progress.
//!
//! The bytes go by as they came; they are only looked at, to know which value the client saw last. One kind of
//! event is changed: progress of the upstream's that would not rise above the signs that stand before it.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::progress::MonotonicProgress;
use crate::wire::framing::{SseEvent, sse_comment, sse_message, with_data};
use crate::wire::{Message, Notification, Object, Payload, RequestId, ScanLimits, envelope, meta, method};

/// Largest event that is looked into. What is larger is an answer, after which nothing is to be shown.
const EVENT_BYTES_MAX: usize = 16 * 1024;

/// The signs of one call, shared by whatever writes parts of its answer.
#[derive(Clone)]
pub(in crate::face) struct Signs(Arc<Mutex<Watch>>);

struct Watch {
    rising: MonotonicProgress,
    id: RequestId,
    /// Whether progress has no place any more, or nobody can tell.
    is_over: bool,
}

impl Signs {
    /// For the call `id`, whose progress bears `token`.
    pub(in crate::face) fn new(id: RequestId, token: Payload) -> Self {
        Self(Arc::new(Mutex::new(Watch { rising: MonotonicProgress::new(token), id, is_over: false })))
    }

    /// The next sign, to be written between two events.
    pub(in crate::face) fn sign(&self) -> Bytes {
        let mut watch = self.0.lock();
        if watch.is_over { sse_comment() } else { sse_message(&watch.rising.sign()) }
    }

    /// Looks at bytes that pass with the `events` that end in them, `None` once one was too large, and tells whether they
    /// say anything: a comment shows that the connection lives, but a client that waits for progress never sees it.
    /// `is_whole` says that they begin and end between two events.
    pub(in crate::face) fn pass(&self, bytes: Bytes, events: Option<&[SseEvent]>, is_whole: bool) -> (Bytes, bool) {
        let mut watch = self.0.lock();
        let is_looked_into = |events: &&[SseEvent]| events.iter().all(|event| event.data.len() <= EVENT_BYTES_MAX);
        let Some(events) = events.filter(is_looked_into).filter(|_| !watch.is_over) else {
            watch.is_over = true;
            return (bytes, true);
        };
        let says = !events.is_empty();
        let is_single = is_whole && events.len() == 1;
        let mut passed = bytes;
        for event in events {
            match envelope::read(&event.data, ScanLimits::UPSTREAM) {
                Ok(Message::Notification(notification)) if notification.method == method::PROGRESS => {
                    let raised = watch.raised(&notification).filter(|_| is_single);
                    if let Some(text) = raised.and_then(|value| with_progress(&event.data, &value)) {
                        passed = with_data(&passed, &[text]);
                    }
                }
                // Progress ends with the answer (MOD-22).
                Ok(Message::Response(response)) if response.id.as_ref() == Some(&watch.id) => watch.is_over = true,
                Ok(Message::Notification(_) | Message::Request(_) | Message::Response(_)) | Err(_) => (),
            }
        }
        (passed, says)
    }
}

impl Watch {
    /// What to show in place of the upstream's progress, if its own value would not rise.
    fn raised(&mut self, notification: &Notification) -> Option<Payload> {
        let params = notification.params.object()?;
        let (token, value) = (params.get(meta::PROGRESS_TOKEN)?, params.get("progress")?);
        // The same text may be spelt in another way.
        let decoded = |token: &Payload| token.read::<serde_json::Value>().ok();
        if token != *self.rising.token() && decoded(&token) != decoded(self.rising.token()) {
            return None;
        }
        let was_ahead = self.rising.is_ahead();
        let shown = self.rising.real(&value, params.get("total").as_ref())?;
        (was_ahead && shown != value).then_some(shown)
    }
}

fn with_progress(message: &Bytes, value: &Payload) -> Option<Bytes> {
    let message = Object::of(&Payload::parse(message, ScanLimits::UPSTREAM).ok()?)?;
    let params = message.get_object("params")?.edit().set("progress", value.clone()).finish();
    Some(message.edit().set("params", params).finish().into_bytes())
}
