//! Checks the parts of a request head that need neither the host nor the path.

use http::header::{EXPECT, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Request};

use super::ListenerLimits;
use super::refusal::{Guard, Refusal};

/// Field syntax counted beside name and value: colon, blank, line end.
const FIELD_OVERHEAD: usize = 4;

/// The first guard: what is no request to a resource, or too large to look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadGuard {
    limits: ListenerLimits,
}

impl HeadGuard {
    pub(super) const fn new(limits: ListenerLimits) -> Self {
        Self { limits }
    }
}

impl Guard for HeadGuard {
    fn check<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        // CONNECT names an authority instead of a path: no later check would understand its target.
        if request.method() == Method::CONNECT {
            return Err(Refusal::Tunnel);
        }
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        if target > self.limits.target_bytes_max {
            return Err(Refusal::TargetTooLong);
        }
        // Counted here because hyper's own limit moves the header table from the stack to the heap.
        let headers = request.headers();
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum();
        if headers.len() > self.limits.headers_max || bytes + target > self.limits.head_bytes_max {
            return Err(Refusal::HeadTooLarge);
        }
        Ok(())
    }
}

/// `Expect` may ask for `100-continue` and nothing else (B24). hyper sends the 100 once the body is read.
pub(super) fn check_expectation(headers: &HeaderMap) -> Result<(), Refusal> {
    let met = headers.get_all(EXPECT).iter().all(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if met { Ok(()) } else { Err(Refusal::Expectation) }
}

/// Only plain `chunked`: hyper undoes the chunks and would hand over the inner coding as it is (B04).
pub(super) fn check_transfer_coding(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        (Some(_), _) => Err(Refusal::TransferCoding),
    }
}
