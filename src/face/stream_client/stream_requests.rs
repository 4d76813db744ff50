//! Runs a request until its response is complete, and reads the session's own stream.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::answer_relay::{RelayOutcome, RelayResumePoint};
use super::client_link::{ClientDisconnected, ClientLink};
use crate::face::http::Inbound;
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::RequestId;

/// The delay before a stream is resumed, if the server names none.
const RETRY: Duration = Duration::from_secs(1);
/// The longest delay that a server may request, and the longest after failures.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The limit of attempts in a row without a new event.
const ATTEMPTS_MAX: u32 = 10;

impl ClientLink {
    /// Resumes a stream that ends early, else sends an error, unless the client has `withdrawn` the request.
    pub(super) async fn ask(
        &self,
        inbound: Inbound,
        id: &RequestId,
        withdrawn: &CancellationToken,
    ) -> Result<(), ClientDisconnected> {
        let response = self.serve(inbound).await;
        let relayed = self.relay(response, Some(id)).await?;
        self.see_through(relayed, id, withdrawn).await
    }

    pub(super) async fn see_through(
        &self,
        mut relayed: RelayOutcome,
        id: &RequestId,
        withdrawn: &CancellationToken,
    ) -> Result<(), ClientDisconnected> {
        let mut attempts = 0;
        loop {
            let resume_point = match relayed {
                RelayOutcome::Whole => return Ok(()),
                RelayOutcome::Nothing => break,
                RelayOutcome::Short(resume_point) => resume_point,
            };
            attempts = if resume_point.moved { 1 } else { attempts + 1 };
            if attempts > ATTEMPTS_MAX || withdrawn.is_cancelled() {
                break;
            }
            let Some(rest) = resume_point.event.as_deref().and_then(|event| self.get(Some(event))) else { break };
            sleep(resume_point.retry.unwrap_or(RETRY).min(RETRY_MAX)).await;
            let response = self.serve(rest).await;
            relayed = match response.status() {
                StatusCode::OK => match self.relay(response, Some(id)).await? {
                    // There is no new event: the position remains.
                    RelayOutcome::Short(RelayResumePoint { event: None, retry, moved }) => {
                        RelayOutcome::Short(RelayResumePoint {
                            event: resume_point.event,
                            retry: retry.or(resume_point.retry),
                            moved,
                        })
                    }
                    other @ (RelayOutcome::Whole | RelayOutcome::Nothing | RelayOutcome::Short(_)) => other,
                },
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => {
                    RelayOutcome::Short(RelayResumePoint { moved: false, ..resume_point })
                }
                _ => break,
            };
        }
        if withdrawn.is_cancelled() {
            return Ok(());
        }
        self.send_fault(Some(id), &GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)).await
    }

    /// Relays the session's own stream. Ends if the server has none. `opening` is dropped at the first response.
    pub(super) async fn listen(self: Arc<Self>, opening: DropGuard) -> Result<(), ClientDisconnected> {
        let (mut event, mut pause, mut opening) = (None::<String>, RETRY, Some(opening));
        loop {
            let Some(get) = self.get(event.as_deref()) else { return Ok(()) };
            let response = self.serve(get).await;
            drop(opening.take());
            match response.status() {
                StatusCode::OK => match self.relay(response, None).await? {
                    RelayOutcome::Short(resume_point) => {
                        pause = resume_point.retry.unwrap_or(RETRY).min(RETRY_MAX);
                        event = resume_point.event.or(event);
                    }
                    RelayOutcome::Whole | RelayOutcome::Nothing => pause = RETRY,
                },
                // The server has no such stream, or the session has ended.
                StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => return Ok(()),
                // The position may be invalid: start again, at growing intervals.
                _ => {
                    event = None;
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
            sleep(pause).await;
        }
    }
}
