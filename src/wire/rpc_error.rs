//! Defines the JSON-RPC error object and the codes in use (MOD-30).

use super::{Object, Payload, one_line};

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
/// For a missing resource, until 2025-11-25.
pub const RESOURCE_NOT_FOUND: i64 = -32002;
/// The code of SDKs for errors of HTTP or the session, not of the message.
pub const TRANSPORT_ERROR: i64 = -32000;
/// TypeScript's SDK and hosts read it as an unknown session, under 404.
pub const SESSION_NOT_FOUND: i64 = -32001;
pub const HEADER_MISMATCH: i64 = -32020;
pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
pub const UNSUPPORTED_VERSION: i64 = -32022;

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Payload>,
}

impl RpcError {
    /// The most bytes of a server's error that is kept: errors take no bytes of the answer budget (B190).
    pub const BYTES_MAX: usize = 64 << 10;
    const CUT_MESSAGE_BYTES_MAX: usize = 16 << 10;

    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    #[must_use]
    pub fn with_data<T: serde::Serialize + ?Sized>(mut self, data: &T) -> Self {
        self.data = Some(Payload::of(data));
        self
    }

    pub fn bytes(&self) -> usize {
        self.message.len() + self.data.as_ref().map_or(0, Payload::len)
    }

    /// Copies a server's error out of the buffer of its message. A large error loses its data and the end of its text (B190).
    #[must_use]
    pub fn bounded(self) -> Self {
        let bytes = self.bytes();
        if bytes <= Self::BYTES_MAX {
            return Self { data: self.data.map(|data| data.detached()), ..self };
        }
        let kept = one_line::beginning(&self.message, Self::CUT_MESSAGE_BYTES_MAX);
        Self::new(self.code, format!("{kept} (the gateway left out the rest of this error of {bytes} bytes)"))
    }

    /// Whether a gateway made it, not a server.
    pub fn is_gateways(&self) -> bool {
        let data = self.data.as_ref().and_then(Object::of);
        data.is_some_and(|data| data.get_str("source").as_deref() == Some("gateway"))
    }

    pub fn required_capabilities(&self) -> Option<Payload> {
        Object::of(self.data.as_ref()?)?.get("requiredCapabilities")
    }

    /// Reads an error object from an upstream; `None` unless it has a whole `code` and a text `message`.
    pub fn from_object(object: &Object) -> Option<Self> {
        Some(Self {
            code: object.get("code")?.as_str().parse().ok()?,
            message: object.get_lossy("message")?,
            data: object.get("data"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B190: a copy of a large error would hold no bytes of the answer budget.
    #[test]
    fn b190_a_large_error_loses_its_data_and_the_end_of_its_message() {
        let data = |length: usize| Some(Payload::text(&"d".repeat(length)));
        let small = RpcError { code: -1, message: "m".repeat(60 << 10), data: data(1_000) };
        assert_eq!(small.clone().bounded(), small);
        for (message, data, kept) in [
            ("m".to_owned(), data(RpcError::BYTES_MAX), "m"),
            ("é".repeat(RpcError::BYTES_MAX), None, &*"é".repeat(8 << 10)),
            (format!("m{}", "é".repeat(RpcError::BYTES_MAX)), data(1), &*format!("m{}", "é".repeat((8 << 10) - 1))),
        ] {
            let large = RpcError { code: -32_077, message, data };
            let bytes = large.bytes();
            let cut = large.bounded();
            let sentence = format!("{kept} (the gateway left out the rest of this error of {bytes} bytes)");
            assert_eq!(cut, RpcError::new(-32_077, sentence), "{bytes} bytes");
        }
    }
}
