//! Forwards messages of a session client that have no response.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use crate::face::session::SessionFaceState;
use crate::face::session::in_flight::RequestStage;
use crate::face::session::session_cache::ClientSession;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::raw_channel::RawMethod;
use crate::upstream::reply::JudgedResponse;
use crate::wire::{MessageText, RequestId};

/// The longest wait until such a message is accepted.
const TELL_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::face::session) enum OneWayKind {
    Notification,
    /// About a request in progress; opens no session.
    AboutRequest,
    Response,
}

/// Forwards a cancel, unless the request is queued here or made by the gateway: the upstream does not know it.
pub(super) async fn cancel(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    id: &RequestId,
    text: MessageText,
) -> StatusCode {
    let (in_flight, nonce) = (&shared.open.in_flight, session.token.nonce);
    // Before the lookups, so that a request that is registered meanwhile sees it, and before the upstream is notified.
    in_flight.withdraw(nonce, id);
    in_flight.cancel(nonce, id, RequestStage::Held);
    let is_ours = [RequestStage::Queued, RequestStage::Driven].map(|stage| in_flight.cancel(nonce, id, stage));
    match is_ours.contains(&true) {
        true => StatusCode::ACCEPTED,
        false => note(shared, session, text, OneWayKind::AboutRequest).await,
    }
}

/// Forwards a message without response; returns its status (LEG-06).
pub(super) async fn note(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    text: MessageText,
    kind: OneWayKind,
) -> StatusCode {
    let counter = match kind {
        OneWayKind::Notification | OneWayKind::AboutRequest => &shared.meter.notifications,
        OneWayKind::Response => &shared.meter.responses,
    };
    counter.increment(1);
    let noting = async {
        let (own, method) = (&shared.own, RawMethod::Note(text));
        Ok(match kind {
            OneWayKind::Notification => verdict(&own.deliver(&session.own, method, || true).await?),
            OneWayKind::Response | OneWayKind::AboutRequest => {
                match own.send(&own.binding(&session.own), method, &session.own.forwarded).await? {
                    // A question has ended with its session; a request that waits for another session is not sent.
                    JudgedResponse::SessionLost => StatusCode::ACCEPTED,
                    judged @ (JudgedResponse::Fine(_) | JudgedResponse::Refused { .. }) => verdict(&judged),
                }
            }
        })
    };
    let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::Unknown);
    match tokio::time::timeout(TELL_MAX, noting).await.unwrap_or(Err(late)) {
        Ok(status) => status,
        Err(GatewayFault { executed: Executed::No, .. }) => StatusCode::SERVICE_UNAVAILABLE,
        // It may have arrived, and the client can do nothing about it.
        Err(_) => StatusCode::ACCEPTED,
    }
}

const fn verdict(judged: &JudgedResponse) -> StatusCode {
    match judged {
        JudgedResponse::Fine(_) => StatusCode::ACCEPTED,
        JudgedResponse::SessionLost | JudgedResponse::Refused { .. } => StatusCode::BAD_REQUEST,
    }
}
