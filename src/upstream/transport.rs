//! Takes a request to a server and returns the head of its response.
//!
//! The layers above use streamable HTTP: one POST per message, GET for a stream, DELETE at the end of a session. A server with
//! another transport is put behind a `StreamableAdapter`, which behaves like a streamable HTTP server, so that sessions, routing,
//! exchanges and the pipe are the same for all.

pub mod adapter;
pub mod credential;
pub(crate) mod detection;
mod failure_cause;
pub(crate) mod http_client;
pub(crate) mod sse;
pub mod stdio;

use std::fmt;

use async_trait::async_trait;
use http::Response;

use super::answer_body::AnswerBody;
use super::outgoing::{HandedOver, OutgoingRequest};
use crate::task::GatewayFault;
use detection::TransportDetection;
use http_client::HttpClient;

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each upstream")]
pub(crate) enum Transport {
    Http(HttpClient),
    /// HTTP, with a transport to be detected.
    Either(Box<TransportDetection>),
    Adapted(Box<dyn StreamableAdapter>),
}

/// Adapts a server with another transport to streamable HTTP.
#[async_trait]
pub(crate) trait StreamableAdapter: Send + Sync + fmt::Debug {
    /// Responds to a request as a streamable HTTP server of the session era: to a request with an event stream or JSON, to a
    /// notification or an answer with 202, to GET with the session's own stream, to DELETE with the session's end, and for an
    /// unknown session with 404. `handed_over` is set before the first byte of a message can reach the server. Dropping the
    /// future, or the response's body, sends the server nothing. A request of 2026-07-28, which has no session, gets the response
    /// of a server of that version: there dropping cancels the request.
    ///
    /// # Errors
    /// If there is no response; the fault says whether the server may have run the request.
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault>;

    fn end_idle(&self);

    /// Ends every session; bounded in time.
    async fn close(&self);
}

impl Transport {
    /// Sends a request and waits for the response's head, without a time limit. Dropping the future drops the request.
    ///
    /// # Errors
    /// If there is no response; the fault says whether the request may have arrived. A refusing status is a response.
    pub(crate) async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
        match self {
            Self::Http(client) => {
                let response = client.send(outgoing, handed_over).await?;
                Ok(client.answer_of(outgoing, response))
            }
            Self::Either(fallback) => fallback.send(outgoing, handed_over).await,
            Self::Adapted(adapter) => adapter.send(outgoing, handed_over).await,
        }
    }

    /// Whether the server is behind an adapter.
    pub(crate) const fn is_adapted(&self) -> bool {
        matches!(self, Self::Adapted(_))
    }

    /// Ends idle sessions that hold a permit of the server: a connection, a process.
    pub(crate) fn end_idle(&self) {
        match self {
            Self::Http(_) | Self::Either(_) => (),
            Self::Adapted(adapter) => adapter.end_idle(),
        }
    }

    /// Ends connections that outlive single requests; bounded in time.
    pub(crate) async fn close(&self) {
        match self {
            Self::Http(_) => (),
            Self::Either(fallback) => fallback.close().await,
            Self::Adapted(adapter) => adapter.close().await,
        }
    }
}
