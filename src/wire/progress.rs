//! Writes `notifications/progress`.

use bytes::Bytes;

use super::object::ObjectWriter;
use super::{Object, Payload, RequestId, envelope, meta, method};

#[derive(Clone, Copy, Debug)]
pub struct ProgressView<'a> {
    pub progress: &'a Payload,
    pub total: Option<&'a Payload>,
    pub message: Option<&'a str>,
}

/// The token in a request's params; an invalid one is none.
pub fn token(params: &Object) -> Option<RequestId> {
    RequestId::from_payload(&params.get_object(meta::META)?.get(meta::PROGRESS_TOKEN)?)
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
