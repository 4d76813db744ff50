//! Defines the JSON-RPC error object and the codes in use (MOD-30).

use super::{Object, Payload};

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
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    #[must_use]
    pub fn with_data<T: serde::Serialize + ?Sized>(mut self, data: &T) -> Self {
        self.data = Some(Payload::of(data));
        self
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
