//! Takes a request to a server and returns the head of its answer.
//!
//! Everything above speaks streamable HTTP: one POST per message, GET for a stream, DELETE at the end of a session. A
//! server that speaks something else is put behind a `StreamableAdapter`, which behaves like a streamable HTTP server in its
//! place, so that sessions, routing, exchanges and the pipe are the same for all.

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

/// The way to one upstream.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each upstream")]
pub(crate) enum Transport {
    Http(HttpClient),
    /// HTTP, of which transport is to be found out.
    Either(Box<TransportDetection>),
    Adapted(Box<dyn StreamableAdapter>),
}

/// Stands in for a streamable HTTP server in front of one that speaks another transport.
#[async_trait]
pub(crate) trait StreamableAdapter: Send + Sync + fmt::Debug {
    /// Answers a request as a streamable HTTP server of the session era would: a request with an event stream or
    /// JSON, a notification or an answer with 202, GET with the session's own stream, DELETE with the session's end,
    /// a session that is gone with 404. `handed_over` is set before the first byte of a message can reach the server.
    /// Dropping the future, or the answer's body, says nothing to the server. A request of 2026-07-28, which has no
    /// session, is answered as a server of that version would: there dropping takes the request back.
    ///
    /// # Errors
    /// If there is no answer; the fault says whether the server may have run what it was sent.
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault>;

    /// Ends the sessions in which nothing is in progress.
    fn end_idle(&self);

    /// Ends every session; bounded in time.
    async fn close(&self);
}

impl Transport {
    /// Sends a request and waits for the head of its answer, which may take as long as the upstream likes. Dropping
    /// the future drops the request wherever it is.
    ///
    /// # Errors
    /// If there is no answer; the fault says whether the request may have arrived. A refusing status is an answer.
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

    /// Whether the server is reached over a wire.
    pub(crate) const fn is_adapted(&self) -> bool {
        matches!(self, Self::Adapted(_))
    }

    /// Ends what nothing is in progress in, and takes a place of the server's own: a connection, a process.
    pub(crate) fn end_idle(&self) {
        match self {
            Self::Http(_) | Self::Either(_) => (),
            Self::Adapted(adapter) => adapter.end_idle(),
        }
    }

    /// Ends what outlives single requests; bounded in time.
    pub(crate) async fn close(&self) {
        match self {
            Self::Http(_) => (),
            Self::Either(fallback) => fallback.close().await,
            Self::Adapted(adapter) => adapter.close().await,
        }
    }
}
