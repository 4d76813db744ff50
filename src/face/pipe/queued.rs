//! Calls that wait for a place. A client that cancels one of them means that it is not to run: nothing was sent, so
//! there is nobody upstream who could be told.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Kind, note};
use crate::face::session::Shared;
use crate::face::session::sessions::Session;
use crate::task::GatewayFault;
use crate::upstream::limits::Slot;
use crate::wire::RequestId;

/// Calls by session and id. No more than may wait for a place.
#[derive(Debug, Default)]
pub(in crate::face) struct Queued(Mutex<HashMap<(u128, RequestId), CancellationToken>>);

impl Queued {
    /// Cancels a call that waits; false if none of this id does.
    pub(super) fn cancel(&self, session: &Session, id: &RequestId) -> bool {
        match self.0.lock().get(&(session.token.nonce, id.clone())) {
            Some(cancelled) => {
                cancelled.cancel();
                true
            }
            None => false,
        }
    }
}

/// Takes back a request: one that waits for a place was never sent, so the upstream hears nothing of it.
pub(super) async fn cancel(shared: &Arc<Shared>, session: &Session, id: &RequestId, bytes: Bytes) -> StatusCode {
    shared.desk.let_go(session.token.nonce, id);
    match shared.queued.cancel(session, id) {
        true => StatusCode::ACCEPTED,
        false => note(shared, session, bytes, Kind::Notification).await,
    }
}

/// A place for a call; `None` if its client has cancelled it meanwhile.
///
/// Cancel safe: a dropped wait gives its turn to the next.
///
/// # Errors
/// As [`crate::upstream::limits::Slots::acquire`].
pub(super) async fn place(shared: &Shared, session: &Session, id: &RequestId) -> Result<Option<Slot>, GatewayFault> {
    let served = &shared.served;
    if let Some(slot) = served.slots.try_acquire(&session.owner) {
        return Ok(Some(slot));
    }
    let (key, cancelled) = ((session.token.nonce, id.clone()), CancellationToken::new());
    let _entry = Entry { queued: &shared.queued, key: key.clone() };
    shared.queued.0.lock().insert(key, cancelled.clone());
    tokio::select! {
        biased;
        () = cancelled.cancelled() => Ok(None),
        slot = served.slots.acquire(&session.owner, Some(served.queue_deadline)) => slot.map(Some),
    }
}

/// Takes a call out when it waits no more. Of two with one id the first that leaves takes both out: a client may not
/// use an id twice at a time.
struct Entry<'a> {
    queued: &'a Queued,
    key: (u128, RequestId),
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.queued.0.lock().remove(&self.key);
    }
}
