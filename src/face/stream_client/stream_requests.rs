//! Runs one request from its message to its answer, and the session's own stream: the GETs that a streamable HTTP
//! client would make, made on the client's behalf.

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

/// How long a stream is left alone before it is taken up, where the server names no time.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time that a server may ask for, and longest pause after failures.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Attempts in a row that bring nothing new.
const ATTEMPTS_MAX: u32 = 10;

impl ClientLink {
    /// Asks, and says the answer. Where the stream ends before it, and can be taken up, that is done; else an error is
    /// said in its place, unless the client has `withdrawn` its request meanwhile.
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

    /// From what there is of an answer to its end.
    pub(super) async fn see_through(
        &self,
        mut relayed: RelayOutcome,
        id: &RequestId,
        withdrawn: &CancellationToken,
    ) -> Result<(), ClientDisconnected> {
        let mut attempts = 0;
        loop {
            let place = match relayed {
                RelayOutcome::Whole => return Ok(()),
                RelayOutcome::Nothing => break,
                RelayOutcome::Short(place) => place,
            };
            attempts = if place.moved { 1 } else { attempts + 1 };
            if attempts > ATTEMPTS_MAX || withdrawn.is_cancelled() {
                break;
            }
            let Some(rest) = place.event.as_deref().and_then(|event| self.get(Some(event))) else { break };
            sleep(place.retry.unwrap_or(RETRY).min(RETRY_MAX)).await;
            let response = self.serve(rest).await;
            relayed = match response.status() {
                StatusCode::OK => match self.relay(response, Some(id)).await? {
                    // Nothing new: the same place again.
                    RelayOutcome::Short(RelayResumePoint { event: None, retry, moved }) => {
                        RelayOutcome::Short(RelayResumePoint {
                            event: place.event,
                            retry: retry.or(place.retry),
                            moved,
                        })
                    }
                    other @ (RelayOutcome::Whole | RelayOutcome::Nothing | RelayOutcome::Short(_)) => other,
                },
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => {
                    RelayOutcome::Short(RelayResumePoint { moved: false, ..place })
                }
                _ => break,
            };
        }
        if withdrawn.is_cancelled() {
            return Ok(());
        }
        self.say_fault(Some(id), &GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)).await
    }

    /// Keeps the session's own stream open, and says what comes on it. Ends where there is none to be had. `opening` is
    /// dropped once it is known whether there is one.
    pub(super) async fn listen(self: Arc<Self>, opening: DropGuard) -> Result<(), ClientDisconnected> {
        let (mut event, mut pause, mut opening) = (None::<String>, RETRY, Some(opening));
        loop {
            let Some(get) = self.get(event.as_deref()) else { return Ok(()) };
            let response = self.serve(get).await;
            drop(opening.take());
            match response.status() {
                StatusCode::OK => match self.relay(response, None).await? {
                    RelayOutcome::Short(place) => {
                        pause = place.retry.unwrap_or(RETRY).min(RETRY_MAX);
                        event = place.event.or(event);
                    }
                    RelayOutcome::Whole | RelayOutcome::Nothing => pause = RETRY,
                },
                // The server has no such stream, or the session is over.
                StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => return Ok(()),
                // What a place stood for may be gone: anew, and ever more rarely.
                _ => {
                    event = None;
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
            sleep(pause).await;
        }
    }
}
