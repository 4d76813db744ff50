//! Reads the member `task` of a call: the wish for a task, and its `ttl`.

use std::borrow::Cow;
use std::time::Duration;

use crate::dialect::RequestError;
use crate::dialect::face_dialect::milliseconds;
use crate::wire::Object;

/// A client's wish for a task (L25-57).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedTtl {
    Default,
    /// For this long after the task's creation.
    For(Duration),
    /// For the longest time to live of the gateway (`ttl: null`, T-69).
    Longest,
}

impl RequestedTtl {
    /// Reads `params.task`. A value that is no object asks for nothing (GW-10). `ttl` is null or a number of
    /// milliseconds.
    pub fn read(params: &Object) -> Result<Option<Self>, RequestError> {
        params.get_object("task").map(|task| Self::of(&task)).transpose()
    }

    pub(super) fn of(task: &Object) -> Result<Self, RequestError> {
        match task.get("ttl") {
            None => Ok(Self::Default),
            Some(ttl) if ttl.as_str() == "null" => Ok(Self::Longest),
            Some(ttl) => match milliseconds(&ttl) {
                Some(span) => Ok(Self::For(span)),
                None => {
                    Err(RequestError::Params(Cow::Borrowed("task.ttl must be a number of milliseconds, 0 or more")))
                }
            },
        }
    }

    /// How long the task is kept: the requested time, capped.
    #[must_use]
    pub fn ttl(self, default: Duration, max: Duration) -> Duration {
        match self {
            Self::Default => default,
            Self::For(span) => span.min(max),
            Self::Longest => max,
        }
    }
}
