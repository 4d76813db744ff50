//! Checks the parts of a request head that depend on neither host nor path.

use http::header::{EXPECT, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Request};

use super::ListenerLimits;
use super::refusal::Refusal;

/// Syntax of a field besides name and value: colon, space, line end.
const FIELD_OVERHEAD: usize = 4;

/// The first guard: refuses CONNECT, and heads that are too large.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadGuard {
    limits: ListenerLimits,
}

impl HeadGuard {
    pub(super) const fn new(limits: ListenerLimits) -> Self {
        Self { limits }
    }

    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        // CONNECT has an authority instead of a path, which no later check handles.
        if request.method() == Method::CONNECT {
            return Err(Refusal::ConnectMethod);
        }
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        if target > self.limits.target_bytes_max {
            return Err(Refusal::TargetTooLong);
        }
        // Counted here, because hyper's own limit moves the header table from the stack to the heap.
        let headers = request.headers();
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum();
        if headers.len() > self.limits.headers_max || bytes + target > self.limits.head_bytes_max {
            return Err(Refusal::HeadTooLarge);
        }
        Ok(())
    }
}

/// `Expect` allows only `100-continue` (B24). hyper sends the 100 when the body is read.
pub(super) fn check_expectation(headers: &HeaderMap) -> Result<(), Refusal> {
    let met = headers.get_all(EXPECT).iter().all(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if met { Ok(()) } else { Err(Refusal::Expectation) }
}

/// Allows only plain `chunked`: hyper removes the chunks and would deliver the inner coding as it is (B04).
pub(super) fn check_transfer_coding(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        (Some(_), _) => Err(Refusal::TransferCoding),
    }
}
