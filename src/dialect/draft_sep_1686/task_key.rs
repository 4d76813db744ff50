//! Reads a call's wish for a task: the chosen id and `keepAlive`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::dialect::RequestError;
use crate::dialect::face_dialect::milliseconds;
use crate::wire::Object;
use crate::wire::meta::{DRAFT_TASK, META};

/// Longest id, in characters.
const ID_CHARS_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedTask {
    pub text: Arc<str>,
    keep_alive: KeepAlive,
}

/// How long a result is kept, counted from the end of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeepAlive {
    Default,
    For(Duration),
    Longest,
}

impl RequestedTask {
    /// Reads the member of a call's `_meta`. One without an id, or that is no object, asks for nothing (T-37).
    pub fn read(params: &Object) -> Result<Option<Self>, RequestError> {
        let wish = params.get_object(META).and_then(|meta| meta.get_object(DRAFT_TASK));
        let Some(wish) = wish.filter(|wish| wish.contains("taskId")) else { return Ok(None) };
        let text = chosen_text(&wish)?;
        let keep_alive = match wish.get("keepAlive") {
            None => KeepAlive::Default,
            Some(span) if span.as_str() == "null" => KeepAlive::Longest,
            Some(span) => KeepAlive::For(milliseconds(&span).ok_or_else(bad_keep_alive)?),
        };
        Ok(Some(Self { text, keep_alive }))
    }

    /// How long the result is kept: the requested time, capped (D86-29).
    #[must_use]
    pub fn keep_alive(&self, default: Duration, max: Duration) -> Duration {
        match self.keep_alive {
            KeepAlive::Default => default,
            KeepAlive::For(span) => span.min(max),
            KeepAlive::Longest => max,
        }
    }
}

const fn bad_keep_alive() -> RequestError {
    RequestError::Params(Cow::Borrowed("keepAlive must be a number of milliseconds, 0 or more, or null"))
}

/// The id in the params of a task method, or in a call's wish (D86-04).
pub fn chosen_text(params: &Object) -> Result<Arc<str>, RequestError> {
    let usable = |text: &String| (1..=ID_CHARS_MAX).contains(&text.chars().count()) && !text.contains(char::is_control);
    let text = params.get_string("taskId").filter(usable);
    text.map(Arc::from).ok_or(RequestError::Params(Cow::Borrowed(
        "taskId must be a string of 1 to 256 characters without control characters",
    )))
}
