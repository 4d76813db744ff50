//! Detects which of the two HTTP transports a server has.
//!
//! As specified: after `initialize` was refused with 400, 404 or 405, a GET requests an event stream that begins with
//! an `endpoint` event. The result is kept until it proves wrong, since servers are replaced.

use std::sync::Arc;

use http::{Method, Response, StatusCode};

use super::StreamableAdapter as _;
use super::adapter::TransportAdapter;
use super::failure_cause::{is_initialize, is_unlike_http};
use super::http_client::HttpClient;
use super::sse::SseDetected;
use crate::task::GatewayFault;
use crate::upstream::answer_body::AnswerBody;
use crate::upstream::outgoing::{HandedOver, OutgoingRequest};

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

    /// As [`Transport::send`](super::Transport::send).
    pub(crate) async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
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

    pub(crate) async fn close(&self) {
        self.sse.close().await;
    }

    async fn over_sse(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
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
    ) -> Result<Response<AnswerBody>, GatewayFault> {
        let answer = self.sse.send(outgoing, handed_over).await;
        if !self.seen.is() {
            self.http.note_failure(outgoing, &refused);
            return Ok(refused);
        }
        tracing::info!(upstream = %self.name, status = refused.status().as_u16(), "the server speaks HTTP+SSE");
        answer
    }
}
