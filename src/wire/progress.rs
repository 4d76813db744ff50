//! Writes `notifications/progress`.

use bytes::Bytes;

use super::object::ObjectWriter;
use super::{Payload, envelope, meta, method};

#[derive(Clone, Copy, Debug)]
pub struct ProgressView<'a> {
    pub progress: &'a Payload,
    pub total: Option<&'a Payload>,
    pub message: Option<&'a str>,
}

/// Writes the notification with a request's progress token; `related` is its `_meta`.
pub fn notification(token: &Payload, step: ProgressView<'_>, related: Option<&Payload>) -> Bytes {
    let params = ObjectWriter::new()
        .member(meta::PROGRESS_TOKEN, token)
        .member("progress", step.progress)
        .optional("total", step.total)
        .optional_text("message", step.message)
        .optional(meta::META, related);
    envelope::notification(method::PROGRESS, Some(&params.finish()))
}
