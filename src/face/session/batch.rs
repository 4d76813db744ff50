//! Serves batches, which only 2025-03-26 has, for a server with sessions.
//!
//! Each message is handled as if alone, and the responses are sent together.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use tokio::time::Instant;

use super::known_tools::ServerTools;
use super::message_check::vet;
use super::session_cache::ClientSession;
use super::{SessionFaceState, batch_item, bridge, fallback, pipe, upstream_tasks};
use crate::face::call_stream::replay::BatchedMessage;
use crate::face::http::{FaceResponse, Inbound};
use crate::upstream::own_ids::is_own;
use crate::wire::Message;
use crate::wire::envelope::EnvelopeError;

pub(super) async fn post(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    batch: Vec<(Result<Message, EnvelopeError>, Bytes)>,
    inbound: &Inbound,
) -> FaceResponse {
    let (mut items, mut driven) = (Vec::new(), Vec::new());
    // One deadline for all, however many calls wait for a server that does not list its tools.
    let (until, mut asked) = (Instant::now() + upstream_tasks::LOOK_MAX, ServerTools::default());
    for (read, bytes) in batch {
        if let Ok(Message::Request(request)) = &read
            && let Some(hidden) = Box::pin(shared.hidden(&session, &inbound.principal, request, &mut asked)).await
        {
            driven.push(stream::iter([BatchedMessage::Last(hidden.message(request))]).boxed());
            continue;
        }
        match read {
            Ok(Message::Request(request)) if fallback::called(shared, &session, &request).is_some() => {
                let Some(running) = fallback::in_batch(shared, &session, &request, &inbound.principal) else {
                    continue;
                };
                let last = async move { BatchedMessage::last(&request.id, &running.await) };
                driven.push(stream::once(last).boxed());
            }
            Ok(Message::Request(request))
                if upstream_tasks::may_drive(shared, &session, &request, &inbound.arrival)
                    || fallback::may_drive(shared, &session, &request) =>
            {
                let id = request.id.clone();
                let message = Message::Request(request.clone());
                let is_sound = vet(&message).is_ok();
                let drive = async {
                    if is_sound { upstream_tasks::drive(shared, &session, &request, inbound).await } else { None }
                };
                // Cached facts are available at once, even after the deadline.
                let begun = tokio::time::timeout_at(until, drive).await.unwrap_or_default();
                match begun {
                    Some(Ok(said)) => driven.push(said.sayings(id).boxed()),
                    Some(Err(error)) => driven.push(stream::iter([BatchedMessage::last(&id, &Err(error))]).boxed()),
                    None => items.push(batch_item(&shared.served.settings, Ok(message), (bytes, inbound.received_at))),
                }
            }
            Ok(message) if is_about_a_driven_call(shared, &session, &message) => {
                // A message without response has at most a status, and the batch has its own.
                let _ = bridge::post(shared, session.clone(), message, inbound).await;
                items.push(Ok(None));
            }
            read => items.push(batch_item(&shared.served.settings, read, (bytes, inbound.received_at))),
        }
    }
    pipe::post_batch(shared, session, (items, driven), inbound.accepted).await
}

/// Whether a message cancels a call that the gateway makes itself, or answers its question.
fn is_about_a_driven_call(shared: &SessionFaceState, session: &ClientSession, message: &Message) -> bool {
    match message {
        Message::Notification(notification) => upstream_tasks::is_about_a_driven_call(shared, session, notification),
        Message::Response(response) => response.id.as_ref().is_some_and(is_own),
        Message::Request(_) => false,
    }
}
