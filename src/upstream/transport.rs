//! Takes a request to a server and returns the head of its response.
//!
//! The layers above use streamable HTTP: POST for a message, GET for a stream, DELETE for a session's end. A
//! `StreamableAdapter` gives a server with another transport the same interface, so that sessions, exchanges and the
//! pipe need not differ.

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
    /// The transport is yet to be detected.
    Either(Box<TransportDetection>),
    Adapted(Box<dyn StreamableAdapter>),
}

#[async_trait]
pub(crate) trait StreamableAdapter: Send + Sync + fmt::Debug {
    /// Responds as a streamable HTTP server of the session era: to a request with an event stream or JSON, to a
    /// notification or an answer with 202, to GET with the session's own stream, to DELETE by ending the session, and
    /// for an unknown session with 404. Dropping the future, or the response's body, sends the server nothing. A
    /// request of 2026-07-28 gets the response of a server of that version; there dropping cancels the request.
    ///
    /// `handed_over` is set before a message's first byte can reach the server. A fault says whether the server may
    /// have run the request.
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault>;

    fn end_idle(&self);

    /// Bounded in time.
    async fn close(&self);
}

impl Transport {
    /// Returns with the response's head; has no time limit. Dropping the future drops the request. A refusing status is
    /// a response; a fault says whether the request may have arrived.
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

    pub(crate) const fn is_adapted(&self) -> bool {
        matches!(self, Self::Adapted(_))
    }

    /// Ends idle sessions that hold a permit for a connection or process.
    pub(crate) fn end_idle(&self) {
        match self {
            Self::Http(_) | Self::Either(_) => (),
            Self::Adapted(adapter) => adapter.end_idle(),
        }
    }

    /// Ends connections that outlive requests; bounded in time.
    pub(crate) async fn close(&self) {
        match self {
            Self::Http(_) => (),
            Self::Either(fallback) => fallback.close().await,
            Self::Adapted(adapter) => adapter.close().await,
        }
    }
}
