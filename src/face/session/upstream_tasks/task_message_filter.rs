//! Filters a client's GET stream at a server with tasks of its own: messages about such a task go to the call that made
//! it, the others to the client. No client learns the id of a server's task (T-67).

use std::sync::Arc;

use bytes::Bytes;

use super::session_stream_reader::ClientReaderGuard;
use crate::dialect::relay_core_2025_11_25::{self as relay, MessageConcern};
use crate::face::session::SessionFaceState;
use crate::face::session::session_cache::ClientSession;
use crate::upstream::body::{edited_event, edited_events};
use crate::upstream::raw_channel::{CallMatch, RawBody};
use crate::wire::framing::{EventGate, HoldPolicy, PrimerPolicy};
use crate::wire::{Message, Payload, Request, RpcError, ScanLimits, envelope, method, rpc_error};

/// A session's own stream as its client is to see it.
pub(super) fn sifted(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    source: RawBody,
    carried: Option<ClientReaderGuard>,
) -> RawBody {
    match carried {
        Some(carried) => sift_for(shared, session, source, StreamConsumer::Client { _stream: carried }),
        // The server has no tasks.
        None => source,
    }
}

/// Who reads a session's own stream.
#[derive(Debug)]
pub(super) enum StreamConsumer {
    Client {
        _stream: ClientReaderGuard,
    },
    /// The gateway, for the calls in it, while the client does not.
    Gateway,
}

pub(super) fn sift_for(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    source: RawBody,
    reader: StreamConsumer,
) -> RawBody {
    let gate = EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, shared.served.settings.result_bytes_max);
    let (shared, session) = (Arc::clone(shared), session.clone());
    edited_events(source, gate, move |event| edited_event(event, |text| shared.sift(&session, text, &reader)))
}

impl SessionFaceState {
    /// What the client is to see of a message: itself or nothing.
    fn sift(self: &Arc<Self>, session: &ClientSession, text: Bytes, reader: &StreamConsumer) -> Vec<Bytes> {
        // An array comes from servers of a version without tasks alone.
        let Ok(message) = envelope::read(&text, ScanLimits::UPSTREAM) else {
            return if relay::concerns_a_task(&text) { Vec::new() } else { vec![text] };
        };
        let concern = relay::concern(&message);
        let is_for_client = matches!(reader, StreamConsumer::Client { .. }) && concern != MessageConcern::Task;
        if is_for_client && concern == MessageConcern::Client {
            return vec![text];
        }
        let ears = self.tasks.ears(session);
        let fit = match (ears.len(), reader) {
            (1, StreamConsumer::Gateway) => CallMatch::OnlyOne,
            (1, StreamConsumer::Client { .. }) => CallMatch::OnlyTask,
            _ => CallMatch::Named,
        };
        let mut left = Some(message);
        for ear in ears {
            left = left.and_then(|message| ear.hear(message, fit));
        }
        match left {
            None => Vec::new(),
            Some(_) if is_for_client => vec![text],
            Some(Message::Request(request)) => {
                self.answer_for_nobody(session, &request);
                Vec::new()
            }
            Some(Message::Notification(_) | Message::Response(_)) => {
                self.dropped("stray_notification");
                Vec::new()
            }
        }
    }

    /// Answers a request that nobody can take (T-20). In the background, best effort.
    fn answer_for_nobody(self: &Arc<Self>, session: &ClientSession, request: &Request) {
        let refusal = RpcError::new(rpc_error::INTERNAL_ERROR, "no single call that this can belong to");
        let message = match request.method.as_str() {
            method::PING => envelope::result(&request.id, &Payload::empty_object()),
            _ => envelope::error(Some(&request.id), &refusal),
        };
        self.reply(session, message);
    }
}
