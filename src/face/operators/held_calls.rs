//! Lists held calls for operators: calls that clients wait for, which no store has.

use std::fmt;

use serde::Serialize;
use tokio::time::Instant;

use crate::task::reference::principal_reference;
use crate::upstream::limits::CallPermitsByName;

/// The most calls in the list, and on the page: the oldest.
const LISTED_MAX: usize = 1_000;
const SHOWN_MAX: usize = 20;

#[derive(Clone, Debug, Default, Serialize)]
pub struct HeldCalls {
    pub count: usize,
    /// The oldest calls first; possibly not all.
    pub calls: Vec<HeldCallReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct HeldCallReport {
    pub upstream: String,
    pub tool: String,
    pub principal: String,
    pub age_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sign_seconds: Option<u64>,
}

impl HeldCalls {
    #[must_use]
    pub fn of(permits: &CallPermitsByName) -> Self {
        let (held, now) = (permits.held_calls(), Instant::now());
        let since = |then: Instant| now.duration_since(then).as_secs();
        let count = held.len();
        let calls = held.into_iter().take(LISTED_MAX).map(|(upstream, call)| HeldCallReport {
            upstream: upstream.to_string(),
            tool: call.tool.to_string(),
            principal: principal_reference(&call.owner),
            age_seconds: since(call.began),
            last_sign_seconds: call.last_sign.map(since),
        });
        Self { count, calls: calls.collect() }
    }
}

impl fmt::Display for HeldCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "calls: {} held for clients without tasks", self.count)?;
        self.calls.iter().take(SHOWN_MAX).try_for_each(|call| writeln!(f, "  {call}"))?;
        match self.count.checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
            Some(more) => writeln!(f, "  and {more} more, see /calls"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for HeldCallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, tool, principal, age_seconds, last_sign_seconds } = self;
        write!(f, "{upstream}  {}  {principal}  {age_seconds} s", tool.escape_debug())?;
        match last_sign_seconds {
            Some(seconds) => write!(f, ", last sign of life {seconds} s ago"),
            None => write!(f, ", no sign of life yet"),
        }
    }
}
