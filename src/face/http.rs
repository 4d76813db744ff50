//! What every face speaks in: HTTP requests whose guard work is done, HTTP responses with a body of any kind.

use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderValue;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use tokio::time::Instant;

use crate::task::principal::Principal;

/// The body of an answer: whole, or a stream of events. An error cuts the connection.
pub type ResponseBody = UnsyncBoxBody<Bytes, io::Error>;

/// An answer to a client.
pub type Response = http::Response<ResponseBody>;

/// No body at all.
#[must_use]
pub fn empty_body() -> ResponseBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A whole body.
#[must_use]
pub fn full_body(bytes: Bytes) -> ResponseBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A request whose HTTP guards are done: its path is the endpoint's, its host and origin are welcome.
///
/// A POST carries `application/json`, unencoded, whole, within bounds and not empty. GET and DELETE carry an
/// empty body. Other methods never arrive.
#[derive(Clone, Debug)]
pub struct Inbound {
    pub method: http::Method,
    pub path: String,
    /// As they came, hop-by-hop fields included: what is forwarded is chosen by an allow-list.
    pub headers: http::HeaderMap,
    pub body: Bytes,
    pub principal: Principal,
    pub accepted: AcceptedTypes,
    /// When the head had been read.
    pub received_at: Instant,
}

/// The types of answer that `Accept` admits (B69). For a POST never [`AcceptedTypes::Neither`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedTypes {
    Json,
    EventStream,
    Both,
    Neither,
}

/// One path that is served.
#[async_trait]
pub trait Endpoint: Send + Sync {
    /// Answers one request. Dropped where the client leaves: whatever must survive that runs elsewhere.
    async fn serve(&self, request: Inbound) -> Response;

    /// The methods named by a 405 that is given before this endpoint is asked.
    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static("POST")
    }
}
