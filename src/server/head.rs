//! Checks the parts of a request head that depend on neither host nor path.

use http::header::{EXPECT, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method, Request};

use super::ListenerLimits;
use super::refusal::Refusal;

/// Syntax of a field besides name and value: colon, space, line end.
const FIELD_OVERHEAD: usize = 4;

/// Fields that few requests have, and that the guards look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RareField {
    Origin,
    Expect,
    TransferEncoding,
    ContentEncoding,
    Proxy,
}

impl RareField {
    fn named(name: &HeaderName) -> Option<Self> {
        match name.as_str() {
            "origin" => Some(Self::Origin),
            "expect" => Some(Self::Expect),
            "transfer-encoding" => Some(Self::TransferEncoding),
            "content-encoding" => Some(Self::ContentEncoding),
            "forwarded" | "via" | "x-real-ip" => Some(Self::Proxy),
            name => name.starts_with("x-forwarded-").then_some(Self::Proxy),
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The rare fields of a head, found in one walk: a lookup of each costs more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RareFields(u8);

impl RareFields {
    pub(super) fn has(self, field: RareField) -> bool {
        self.0 & field.bit() != 0
    }
}

/// The first guard: refuses CONNECT, and heads that are too large.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadGuard {
    limits: ListenerLimits,
}

impl HeadGuard {
    pub(super) const fn new(limits: ListenerLimits) -> Self {
        Self { limits }
    }

    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<RareFields, Refusal> {
        // CONNECT has an authority instead of a path, which no later check handles.
        if request.method() == Method::CONNECT {
            return Err(Refusal::ConnectMethod);
        }
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        if target > self.limits.target_bytes_max {
            return Err(Refusal::TargetTooLong);
        }
        // Counted here, because hyper's own limit moves the header table from the stack to the heap.
        let (headers, mut bytes, mut rare) = (request.headers(), target, 0);
        for (name, value) in headers {
            bytes += name.as_str().len() + value.len() + FIELD_OVERHEAD;
            rare |= RareField::named(name).map_or(0, RareField::bit);
        }
        if headers.len() > self.limits.headers_max || bytes > self.limits.head_bytes_max {
            return Err(Refusal::HeadTooLarge);
        }
        Ok(RareFields(rare))
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
