//! Finds out which of the two HTTP transports a server speaks.
//!
//! As the specification has it: what refuses a POST of `initialize` with 400, 404 or 405 is asked by GET for an event
//! stream that begins with an `endpoint` event. What was found is kept, and found out anew once it proves wrong:
//! servers are replaced.

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

/// Both ways to one server.
#[derive(Debug)]
pub(crate) struct TransportDetection {
    name: Arc<str>,
    http: HttpClient,
    sse: TransportAdapter,
    /// Which of them was right the last time; noted by the wire below `sse`.
    seen: SseDetected,
}

impl TransportDetection {
    /// Both ways; the wire below `sse` must share `seen`.
    pub(crate) const fn new(name: Arc<str>, http: HttpClient, sse: TransportAdapter, seen: SseDetected) -> Self {
        Self { name, http, sse, seen }
    }

    /// As [`Transport::send`](super::Transport::send).
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
    ) -> Result<Response<AnswerBody>, GatewayFault> {
        // Boxed: what most servers do not need is not part of every request in progress.
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
            // What takes no POST has no sessions any more, and did not look at the message.
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
        tracing::info!(upstream = %self.name, "the server speaks HTTP+SSE no more; streamable HTTP is tried");
        let response = self.http.send(outgoing, handed_over).await?;
        Ok(self.http.answer_of(outgoing, response))
    }

    /// Tries the other way after `initialize` was refused. If there is none, the refusal stands.
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
