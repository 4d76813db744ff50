//! Takes a request to a server and returns the head of its response. The layers above use streamable HTTP: POST for a
//! message, GET for a stream, DELETE for a session's end. A `TransportAdapter` gives other transports that interface:
//! sessions, exchanges and pipe need not differ.

pub mod adapter;
pub mod credential;
mod failure_cause;
pub(crate) mod http_client;
pub(crate) mod sse;
pub mod stdio;

use std::sync::Arc;

use http::{Method, Response, StatusCode};

use super::answer_body::{AnswerBody, AnswerResult};
use super::outgoing::{HandedOver, OutgoingRequest};
use adapter::TransportAdapter;
use failure_cause::{is_initialize, is_unlike_http};
use http_client::HttpClient;
use sse::SseDetected;

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each upstream")]
pub(crate) enum Transport {
    Http(HttpClient),
    Either(Box<TransportDetection>),
    Adapted(Box<TransportAdapter>),
}

impl Transport {
    /// Returns with the response's head; no time limit. Dropping drops the request. Refusing statuses are responses.
    pub(crate) async fn send(&self, outgoing: &OutgoingRequest, handed_over: &HandedOver) -> AnswerResult {
        match self {
            Self::Http(client) => {
                let response = client.send(outgoing, handed_over).await?;
                Ok(client.answer_of(outgoing, response))
            }
            Self::Either(fallback) => fallback.send(outgoing, handed_over).await,
            // Boxed: most servers do not need it, so requests must not hold its memory.
            Self::Adapted(adapter) => Box::pin(adapter.send(outgoing, handed_over)).await,
        }
    }

    pub(crate) const fn is_adapted(&self) -> bool {
        matches!(self, Self::Adapted(_))
    }

    /// Ends idle sessions that hold a permit for a connection or process.
    pub(crate) fn end_idle(&self) {
        if let Self::Adapted(adapter) = self {
            adapter.end_idle();
        }
    }

    /// Ends the processes of a server that is a program; bounded in time.
    pub(crate) async fn restart(&self) {
        if let Self::Adapted(adapter) = self {
            adapter.restart().await;
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

/// Detects which of the two HTTP transports a server has. After a 400, 404 or 405 to `initialize`, a GET asks for a stream
/// with `endpoint` first. The result is kept until a request contradicts it.
#[derive(Debug)]
pub(crate) struct TransportDetection {
    name: Arc<str>,
    http: HttpClient,
    sse: TransportAdapter,
    /// Set by the adapter `sse`.
    seen: SseDetected,
}

impl TransportDetection {
    /// The transport below `sse` must share `seen`.
    pub(crate) const fn new(name: Arc<str>, http: HttpClient, sse: TransportAdapter, seen: SseDetected) -> Self {
        Self { name, http, sse, seen }
    }

    async fn send(&self, outgoing: &OutgoingRequest, handed_over: &HandedOver) -> AnswerResult {
        // Boxed: most servers do not need it, so requests must not hold its memory.
        if self.seen.is() {
            return Box::pin(self.over_sse(outgoing, handed_over)).await;
        }
        let is_first = outgoing.session().is_none() && outgoing.method() == Method::POST;
        let response = self.http.try_send(outgoing, handed_over).await?;
        let is_another = is_first && is_unlike_http(response.status()) && is_initialize(outgoing);
        if !is_another {
            self.http.note_failure(outgoing, &response);
        }
        let mut response = self.http.answer_of(outgoing, response);
        let is_in_session = outgoing.session().is_some() && outgoing.method() == Method::POST;
        if is_in_session && response.status() == StatusCode::METHOD_NOT_ALLOWED {
            // A server that takes no POST has no sessions, and did not process the message.
            *response.status_mut() = StatusCode::NOT_FOUND;
        } else if is_another {
            return Box::pin(self.instead_of(response, outgoing, handed_over)).await;
        }
        Ok(response)
    }

    async fn close(&self) {
        self.sse.close().await;
    }

    async fn over_sse(&self, outgoing: &OutgoingRequest, handed_over: &HandedOver) -> AnswerResult {
        let answer = self.sse.send(outgoing, handed_over).await;
        if answer.is_ok() || self.seen.is() || !is_initialize(outgoing) {
            return answer;
        }
        tracing::info!(upstream = %self.name, "the server no longer speaks HTTP+SSE; trying streamable HTTP");
        let response = self.http.send(outgoing, handed_over).await?;
        Ok(self.http.answer_of(outgoing, response))
    }

    /// After `initialize` was refused. If the other transport fails too, the refusal stands.
    async fn instead_of(
        &self,
        refused: Response<AnswerBody>,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> AnswerResult {
        let answer = self.sse.send(outgoing, handed_over).await;
        if !self.seen.is() {
            self.http.note_failure(outgoing, &refused);
            return Ok(refused);
        }
        tracing::info!(upstream = %self.name, status = refused.status().as_u16(), "the server speaks HTTP+SSE");
        answer
    }
}
