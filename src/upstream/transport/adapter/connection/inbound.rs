//! Routes a server's messages over its connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::super::{call_table::DeliveryError, request_ids};
use super::{AdapterConnection, ConnectionPurpose};
use crate::answer_budget::FREE_BYTES;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::era::era_of_refusal;
use crate::upstream::exchange::Era;
use crate::upstream::outgoing::HandedOver;
use crate::wire::envelope::MalformedMessage;
use crate::wire::rpc_error::{INTERNAL_ERROR, PARSE_ERROR};
use crate::wire::{
    self, Message, MessageText, Notification, Object, Payload, Request, RpcError, ScanLimits, envelope, method,
};

/// Larger dropped messages are logged.
const LARGE_BYTES: usize = 256 * 1024;
const MALFORMED: GatewayFault = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
const UNPARSED: GatewayFault = GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown);

impl AdapterConnection {
    pub(super) fn take(self: &Arc<Self>, text: &Bytes) {
        if !envelope::is_batch(text) {
            return self.take_one(text);
        }
        match envelope::split_batch(text, ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX) {
            Ok(items) => items.iter().for_each(|item| self.take_one(item)),
            Err(_) => self.take_for_lost(text, MALFORMED),
        }
    }

    /// Handles the response to a request that the server refused to accept.
    pub(super) fn take_refusal(&self, text: &Bytes) {
        let Ok(message) = envelope::read(text, ScanLimits::UPSTREAM).map(Arc::new) else { return };
        if let Message::Response(response) = &*message {
            self.shared.health.answered();
            self.answer(response, &MessageText::with_message(text.clone(), Arc::clone(&message)));
        }
    }

    /// Handles a message that the budget refused: a kept outcome reaches its owner; others end the calls they answer.
    pub(super) fn take_unaffordable(self: &Arc<Self>, text: Bytes, fault: GatewayFault) {
        let is_kept = |seen: &MalformedMessage| {
            seen.is_answer && seen.id.as_ref().is_some_and(|id| self.table.lock().is_kept(id))
        };
        match envelope::glimpse(&text).iter().any(is_kept) {
            true => self.take(&self.share().rehold(text)),
            false => self.take_for_lost(&text, fault),
        }
    }

    fn take_one(self: &Arc<Self>, text: &Bytes) {
        let Ok(message) = envelope::read(text, ScanLimits::UPSTREAM) else {
            return self.take_for_lost(text, MALFORMED);
        };
        self.shared.health.answered();
        let message = Arc::new(message);
        let text = MessageText::with_message(text.clone(), Arc::clone(&message));
        let taken = match &*message {
            Message::Response(response) => return self.answer(response, &text),
            Message::Notification(notification) => self.note(notification, &text),
            Message::Request(request) => return self.receive_request(request, &text),
        };
        match taken {
            Ok(()) => (),
            Err(DeliveryError::NoReceiver) => self.shared.dropped("stray_notification"),
            Err(DeliveryError::Slow) => {
                self.shared.dropped("slow_reader");
                if text.len() > LARGE_BYTES {
                    let (upstream, bytes) = (&self.shared.name, text.len());
                    tracing::warn!(%upstream, bytes, "a large notification is dropped: its client does not keep up");
                }
            }
        }
    }

    /// Handles a response without a request. A malformed id may still show the call. Without an id, an unparsed request is
    /// taken for the only call (U97); other errors may be about a notification, and end nothing.
    fn take_foreign(&self, response: &wire::Response, text: &[u8]) {
        let meant = envelope::glimpse(text).into_iter().find_map(|seen| seen.id).filter(|_| response.id.is_none());
        let is_unparsed = matches!(&response.outcome, Err(error) if error.code == PARSE_ERROR) && response.id.is_none();
        let is_ended = match meant {
            Some(id) => self.table.lock().break_off(&id, MALFORMED),
            None => is_unparsed && self.table.lock().break_off_only(UNPARSED),
        };
        if !is_ended {
            self.shared.dropped("foreign_response");
        }
    }

    /// Ends the recognisable calls of an unreadable or refused text: nothing else will come. A response without a
    /// recognisable id belongs to the only call, if there is one. Other text, such as a log line, ends nothing.
    pub(super) fn take_for_lost(&self, text: &[u8], fault: GatewayFault) {
        let (mut is_ended, mut is_call) = (false, false);
        for seen in envelope::glimpse(text) {
            is_call |= seen.is_call;
            if seen.is_answer {
                let mut table = self.table.lock();
                is_ended |= match &seen.id {
                    Some(id) => table.break_off(id, fault),
                    None => table.break_off_only(fault),
                };
            }
        }
        if !is_ended {
            self.shared.dropped(if fault.reason == MALFORMED.reason { "malformed_event" } else { "slow_reader" });
        }
        if is_call {
            tracing::debug!(upstream = %self.shared.name, reason = fault.reason.key(), "a request or notification of the server is lost");
        }
    }

    fn answer(&self, response: &wire::Response, text: &MessageText) {
        let outer = match (&self.kind, &response.id) {
            (ConnectionPurpose::Stateless, Some(id)) => self.table.lock().outer(id),
            (ConnectionPurpose::Session | ConnectionPurpose::Dedicated { .. }, _)
            | (ConnectionPurpose::Stateless, None) => None,
        };
        let is_tool = response.id.as_ref().is_some_and(|id| self.table.lock().is_tool(id));
        let is_probe = outer.as_ref().is_some_and(|outer| outer.is_probe);
        let text = outer.map_or_else(|| text.clone(), |outer| self.counted(response.under(&outer.id)));
        let is_result = response.outcome.is_ok();
        let taken = {
            let mut table = self.table.lock();
            if is_tool && is_result && response.result.as_ref().is_some_and(is_task) {
                // Before the call is over: a connection without calls and tasks may be evicted.
                table.has_task = true;
            }
            table.answer(response.id.as_ref(), &text)
        };
        if !taken {
            self.take_foreign(response, &text);
        }
        match &response.outcome {
            Ok(_) => {
                self.is_proven.store(true, Ordering::Relaxed);
                self.has_served.fetch_or(is_tool, Ordering::Relaxed);
            }
            Err(error) if is_probe && era_of_refusal(error) == Era::Session => self.end_after_probe(),
            Err(_) => (),
        }
    }

    fn counted(&self, copy: Bytes) -> MessageText {
        if copy.len() <= FREE_BYTES { copy.into() } else { self.share().rehold(copy).into() }
    }

    fn note(&self, notification: &Notification, text: &MessageText) -> Result<(), DeliveryError> {
        let mut table = self.table.lock();
        match &self.kind {
            ConnectionPurpose::Session => table.note(notification, text),
            ConnectionPurpose::Stateless if table.end_cancelled_subscription(notification) => Ok(()),
            ConnectionPurpose::Stateless => table.note_named(notification, |copy| self.counted(copy)),
            ConnectionPurpose::Dedicated { process } => match notification.cancelled() {
                Some(id) => {
                    let (notification, text) =
                        request_ids::withdrawal(notification, &request_ids::outward(process, &id));
                    table.note(&notification, &self.counted(text))
                }
                None => table.note(notification, text),
            },
        }
    }

    fn receive_request(self: &Arc<Self>, request: &Request, text: &MessageText) {
        let asked = match &self.kind {
            ConnectionPurpose::Session => self.table.lock().deliver_question(request, text),
            // Such servers ask in results only.
            ConnectionPurpose::Stateless => return self.shared.dropped("stray_request"),
            ConnectionPurpose::Dedicated { process } => {
                let (request, text) = request_ids::question(request, process);
                self.table.lock().deliver_question(&request, &self.counted(text))
            }
        };
        let why = match asked {
            Ok(()) => return,
            Err(DeliveryError::NoReceiver) if request.method == method::PING => {
                return self.reply(envelope::result(&request.id, &Payload::empty_object()));
            }
            Err(DeliveryError::NoReceiver) => "the request cannot be assigned to a single call",
            Err(DeliveryError::Slow) => "the client does not keep up",
        };
        self.shared.dropped("stray_request");
        self.reply(envelope::error(Some(&request.id), &RpcError::new(INTERNAL_ERROR, why)));
    }

    /// In the background; a flood of replies is dropped and counted.
    fn reply(self: &Arc<Self>, text: Bytes) {
        let Ok(permit) = Arc::clone(&self.replies).try_acquire_owned() else {
            return self.shared.dropped("reply_flood");
        };
        let session = Arc::clone(self);
        let outgoing = self.own(text);
        self.shared.scope.tracker.spawn(async move {
            let _permit = permit;
            if session.send(&outgoing, &HandedOver::default()).await.is_err() {
                session.shared.dropped("reply_failed");
            }
        });
    }
}

/// Whether a result is only a task handle, in either era.
fn is_task(result: &Object) -> bool {
    result.has_object("task") || result.get_str("resultType").as_deref() == Some("task")
}
