//! Messages of a session client that want no answer.

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

/// How long such a message may take to be accepted.
const TELL_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::face::session) enum OneWayKind {
    Notification,
    /// It is about a request that is under way, and opens no session.
    AboutRequest,
    Response,
}

/// Takes back a request. One that waits to be sent, or that the gateway drives itself, the upstream does not know under its id; of any
/// other the client tells it itself.
pub(super) async fn cancel(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    id: &RequestId,
    text: MessageText,
) -> StatusCode {
    let (in_flight, nonce) = (&shared.open.in_flight, session.token.nonce);
    // Before anything is looked for, so that what comes to stand there meanwhile sees it; and before the upstream hears of it.
    in_flight.take_back(nonce, id);
    in_flight.cancel(nonce, id, RequestStage::Held);
    let is_ours = [RequestStage::Queued, RequestStage::Driven].map(|stage| in_flight.cancel(nonce, id, stage));
    match is_ours.contains(&true) {
        true => StatusCode::ACCEPTED,
        false => note(shared, session, text, OneWayKind::AboutRequest).await,
    }
}

/// Passes on something that wants no answer; the status is all there is to say (LEG-06).
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
                    // A question has gone with its session; a request that waits for another one is not sent there.
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
        // It may well have arrived, and there is nothing that a client could do about it.
        Err(_) => StatusCode::ACCEPTED,
    }
}

const fn verdict(judged: &JudgedResponse) -> StatusCode {
    match judged {
        JudgedResponse::Fine(_) => StatusCode::ACCEPTED,
        JudgedResponse::SessionLost | JudgedResponse::Refused { .. } => StatusCode::BAD_REQUEST,
    }
}
