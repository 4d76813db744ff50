//! Finds the call of a connection's message, and fills bounded queues without waiting. A slow reader delays no other
//! call: its progress is dropped, its question refused. The response has reserved room.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::request_ids::{self, OriginalRequest};
use crate::dialect::relay_core_2025_11_25::related_task;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::answer_body::{AnswerMessages, BodyBreakError};
use crate::upstream::outgoing::StreamPurpose;
use crate::wire::{MessageText, Notification, Object, Request, RequestId, meta, method, progress};

/// Messages for the reader of one stream, and their bytes, without the response. One may be as large as allowed.
const QUEUE_MAX: usize = 256;
const QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
const CALLS_MAX: usize = 4_096;
const QUESTIONS_MAX: usize = 64;
/// Notifications kept for the first listener.
const EARLY_MAX: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct MessageQueue {
    sender: mpsc::Sender<io::Result<MessageText>>,
    /// Queued bytes, without the response's.
    waiting: Arc<AtomicUsize>,
}

impl MessageQueue {
    fn new(capacity: usize) -> (Self, AnswerMessages) {
        let (sender, receiver) = mpsc::channel(capacity);
        let waiting = Arc::new(AtomicUsize::new(0));
        (Self { sender, waiting: Arc::clone(&waiting) }, AnswerMessages::new(receiver, waiting))
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Called under the table's lock, so the check and the send are atomic.
    fn push(&self, text: &MessageText) -> Result<(), DeliveryError> {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting > 0 && waiting.saturating_add(text.len()) > QUEUE_BYTES_MAX {
            return Err(if self.is_closed() { DeliveryError::NoReceiver } else { DeliveryError::Slow });
        }
        self.waiting.fetch_add(text.len(), Ordering::Relaxed);
        self.sender.try_send(Ok(text.clone())).map_err(|refused| {
            self.waiting.fetch_sub(text.len(), Ordering::Relaxed);
            match refused {
                mpsc::error::TrySendError::Full(_) => DeliveryError::Slow,
                mpsc::error::TrySendError::Closed(_) => DeliveryError::NoReceiver,
            }
        })
    }
}

#[derive(Debug)]
pub(super) struct CallTable {
    calls: HashMap<RequestId, CallEntry>,
    own: UnsolicitedStream,
    /// Since when, by the last check, the connection has had neither use nor listener.
    idle_since: Instant,
    /// The last use, regardless of listeners.
    used: Instant,
    /// Whether the server has made a task of a call, which may run without a request here.
    pub(super) has_task: bool,
}

#[derive(Debug)]
enum UnsolicitedStream {
    /// No listener yet.
    Early(Vec<MessageText>),
    Listening(MessageQueue, Option<StreamPurpose>),
}

/// How idle a connection without requests is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionIdleness {
    /// Time without use.
    pub(super) quiet: Duration,
    /// Time without use and without listener.
    pub(super) unused: Duration,
    pub(super) has_task: bool,
}

#[derive(Debug)]
pub(super) struct EnteredRequest {
    pub(super) messages: AnswerMessages,
    pub(super) first_message: Arc<Notify>,
    /// Cancelled once the request is not in the table any more.
    pub(super) request_ended: CancellationToken,
}

#[derive(Debug)]
struct CallEntry {
    queue: MessageQueue,
    first_message: Arc<Notify>,
    /// Room for the response.
    last: mpsc::OwnedPermit<io::Result<MessageText>>,
    is_tool: bool,
    /// It opens the session: earlier messages do not belong to it.
    is_first: bool,
    token: Option<RequestId>,
    /// The server's task that a `tasks/result` names.
    task: Option<String>,
    questions: Vec<RequestId>,
    terms: RequestTerms,
    _ended: DropGuard,
}

#[derive(Debug, Default)]
pub(super) struct RequestTerms {
    /// The client's names, if the server has others.
    pub(super) outer: Option<OriginalRequest>,
    /// Whether an owner keeps the outcome.
    pub(super) is_kept: bool,
    /// Dropped after the request's last message was queued.
    pub(super) _done: Option<DropGuard>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStartError {
    IdInUse,
    TooMany,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryError {
    NoReceiver,
    Slow,
}

impl CallTable {
    pub(super) fn new() -> Self {
        let (idle_since, used) = (Instant::now(), Instant::now());
        Self { calls: HashMap::new(), own: UnsolicitedStream::Early(Vec::new()), idle_since, used, has_task: false }
    }

    pub(super) fn begin_on(
        &mut self,
        request: &Request,
        terms: RequestTerms,
    ) -> Result<EnteredRequest, RequestStartError> {
        if self.calls.contains_key(&request.id) {
            return Err(RequestStartError::IdInUse);
        }
        if self.calls.len() >= CALLS_MAX {
            // Requests without a reader make room.
            self.calls.retain(|_, call| !call.queue.is_closed());
        }
        if self.calls.len() >= CALLS_MAX {
            return Err(RequestStartError::TooMany);
        }
        let (queue, messages) = MessageQueue::new(QUEUE_MAX + 1);
        let last = queue.sender.clone().try_reserve_owned().map_err(|_| RequestStartError::TooMany)?;
        let params = request.params.object();
        let (first_message, request_ended) = (Arc::new(Notify::new()), CancellationToken::new());
        let call = CallEntry {
            queue,
            first_message: Arc::clone(&first_message),
            last,
            is_tool: request.method == method::TOOLS_CALL,
            is_first: request.method == method::INITIALIZE,
            token: params.and_then(progress::token),
            task: params
                .filter(|_| request.method == method::TASKS_RESULT)
                .and_then(|params| params.get_string("taskId")),
            questions: Vec::new(),
            terms,
            _ended: request_ended.clone().drop_guard(),
        };
        self.calls.insert(request.id.clone(), call);
        self.touch();
        Ok(EnteredRequest { messages, first_message, request_ended })
    }

    pub(super) fn answer(&mut self, id: Option<&RequestId>, text: &MessageText) -> bool {
        let Some(call) = id.and_then(|id| self.remove(id)) else { return false };
        call.last.send(Ok(text.clone()));
        call.first_message.notify_one();
        true
    }

    pub(super) fn break_off(&mut self, id: &RequestId, fault: GatewayFault) -> bool {
        let Some(call) = self.remove(id) else { return false };
        call.last.send(Err(io::Error::other(BodyBreakError(fault))));
        call.first_message.notify_one();
        true
    }

    pub(super) fn break_off_only(&mut self, fault: GatewayFault) -> bool {
        let mut all = self.calls.keys();
        let (Some(only), None) = (all.next().cloned(), all.next()) else { return false };
        self.break_off(&only, fault)
    }

    /// Breaks all requests off, and ends the stream of unsolicited messages.
    pub(super) fn end(&mut self, fault: GatewayFault) {
        let fault = self.for_each_call(fault);
        for (_, call) in self.calls.drain() {
            call.last.send(Err(io::Error::other(BodyBreakError(fault))));
        }
        self.own = UnsolicitedStream::Early(Vec::new());
    }

    /// An oversized response may be any call's: then it is unknown whether a call was executed.
    fn for_each_call(&self, fault: GatewayFault) -> GatewayFault {
        let whose = fault.reason == Reason::ResultTooLarge && self.calls.len() > 1;
        let executed = if whose { Executed::Unknown } else { fault.executed };
        GatewayFault { executed, ..fault }
    }

    pub(super) fn cancel(&mut self, id: &RequestId) -> bool {
        self.remove(id).is_some()
    }

    pub(super) fn has(&self, id: &RequestId) -> bool {
        self.calls.contains_key(id)
    }

    /// Whether a store keeps the response, so that no client must read it.
    pub(super) fn is_kept(&self, id: &RequestId) -> bool {
        self.calls.get(id).is_some_and(|call| call.terms.is_kept)
    }

    pub(super) fn is_tool(&self, id: &RequestId) -> bool {
        self.calls.get(id).is_some_and(|call| call.is_tool)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn answered(&mut self, question: &RequestId) {
        self.calls.values_mut().for_each(|call| call.questions.retain(|open| open != question));
    }

    /// Delivers to the call that the notification names, else the only possible, else the unsolicited stream (T-20).
    pub(super) fn note(&mut self, notification: &Notification, text: &MessageText) -> Result<(), DeliveryError> {
        let params = notification.params.object();
        let call = match notification.method.as_str() {
            method::PROGRESS => {
                let token = params.and_then(|params| RequestId::from_payload(&params.get(meta::PROGRESS_TOKEN)?));
                self.calls.values().find(|call| token.is_some() && call.token == token)
            }
            method::LOG_MESSAGE => self.related(params).or_else(|| self.only()),
            method::CANCELLED => {
                notification.cancelled().and_then(|id| self.calls.values().find(|call| call.questions.contains(&id)))
            }
            _ => None,
        };
        match call {
            Some(call) => {
                call.first_message.notify_one();
                call.queue.push(text)
            }
            None => self.note_to_all(text),
        }
    }

    /// Delivers to the call that the question names, else to the only one, else to the unsolicited stream.
    pub(super) fn deliver_question(&mut self, request: &Request, text: &MessageText) -> Result<(), DeliveryError> {
        let names_a_task = request.params.object().and_then(related_task).is_some();
        let id = match self.related(request.params.object()) {
            None if names_a_task => None,
            None => self.only().map(|call| call.queue.clone()),
            Some(call) => Some(call.queue.clone()),
        };
        let Some(queue) = id else {
            return match &self.own {
                UnsolicitedStream::Early(_) => Err(DeliveryError::NoReceiver),
                UnsolicitedStream::Listening(queue, _) => queue.push(text),
            };
        };
        queue.push(text)?;
        let call = self.calls.values_mut().find(|call| call.queue.sender.same_channel(&queue.sender));
        if let Some(call) = &call {
            call.first_message.notify_one();
        }
        if let Some(call) = call.filter(|call| call.questions.len() < QUESTIONS_MAX) {
            call.questions.push(request.id.clone());
        }
        Ok(())
    }

    /// Opens the unsolicited stream; an older one ends.
    pub(super) fn listen(&mut self, purpose: Option<StreamPurpose>) -> AnswerMessages {
        let (queue, messages) = MessageQueue::new(QUEUE_MAX);
        if let UnsolicitedStream::Early(early) =
            std::mem::replace(&mut self.own, UnsolicitedStream::Listening(queue.clone(), purpose))
        {
            for text in early {
                let _ = queue.push(&text);
            }
        }
        messages
    }

    /// `None` while a request is in progress.
    pub(super) fn idle(&mut self) -> Option<ConnectionIdleness> {
        if !self.calls.is_empty() {
            return None;
        }
        let unused = self.left_for();
        // Only the reader of a gateway's stream knows whether its session is in use.
        let is_served = matches!(&self.own, UnsolicitedStream::Listening(queue, Some(purpose)) if !queue.is_closed() && purpose.is_served());
        Some(ConnectionIdleness { quiet: self.used.elapsed(), unused, has_task: self.has_task || is_served })
    }

    /// Time without a waiting reader; a call without one may still run.
    pub(super) fn left_for(&mut self) -> Duration {
        let listens = match &self.own {
            UnsolicitedStream::Early(_) => false,
            UnsolicitedStream::Listening(queue, purpose) => {
                !queue.is_closed() && purpose.as_ref().is_none_or(StreamPurpose::is_served)
            }
        };
        if listens || self.calls.values().any(|call| !call.queue.is_closed()) {
            self.idle_since = Instant::now();
        }
        self.idle_since.elapsed()
    }

    pub(super) fn touch(&mut self) {
        (self.idle_since, self.used) = (Instant::now(), Instant::now());
    }

    fn remove(&mut self, id: &RequestId) -> Option<CallEntry> {
        self.touch();
        self.calls.remove(id)
    }

    fn note_to_all(&mut self, text: &MessageText) -> Result<(), DeliveryError> {
        match &mut self.own {
            UnsolicitedStream::Early(early)
                if early.len() < EARLY_MAX
                    && early.iter().map(|text| text.len()).sum::<usize>() + text.len() <= QUEUE_BYTES_MAX =>
            {
                early.push(text.clone());
                Ok(())
            }
            UnsolicitedStream::Early(_) => Err(DeliveryError::NoReceiver),
            UnsolicitedStream::Listening(queue, _) => queue.push(text),
        }
    }

    fn related(&self, params: Option<&Object>) -> Option<&CallEntry> {
        let task = related_task(params?)?;
        self.calls.values().find(|call| call.task.as_ref() == Some(&task))
    }

    /// The only tool call; without any, the only request.
    fn only(&self) -> Option<&CallEntry> {
        let sole = |tools: bool| {
            let mut all = self.calls.values().filter(|call| call.is_tool || !(tools || call.is_first));
            (all.next(), all.next())
        };
        match sole(true) {
            (Some(call), None) => Some(call),
            (Some(_), Some(_)) => None,
            (None, _) => match sole(false) {
                (Some(call), None) => Some(call),
                (Some(_) | None, _) => None,
            },
        }
    }
}

/// For stateless clients' shared connection: ids and tokens are the adapter's. Messages without a request are dropped.
impl CallTable {
    pub(super) fn outer(&self, id: &RequestId) -> Option<OriginalRequest> {
        self.calls.get(id)?.terms.outer.clone()
    }

    /// Delivers to the named request. Log messages name none: they go to the only one that requested them (MOD-23).
    pub(super) fn note_named(
        &mut self,
        notification: &Notification,
        counted: impl FnOnce(Bytes) -> MessageText,
    ) -> Result<(), DeliveryError> {
        let (call, text) = self.named(notification).ok_or(DeliveryError::NoReceiver)?;
        call.queue.push(&counted(text))
    }

    /// Ends a subscription that the server cancels, so that listeners open another (U83). Other requests go on.
    pub(super) fn end_cancelled_subscription(&mut self, notification: &Notification) -> bool {
        let Some(id) = notification.cancelled() else { return false };
        self.outer(&id).is_some_and(|outer| outer.is_subscription) && self.cancel(&id)
    }

    fn named(&self, notification: &Notification) -> Option<(&CallEntry, Bytes)> {
        let params = notification.params.object();
        let subscription = params
            .and_then(|params| params.get_object(meta::META)?.get(meta::SUBSCRIPTION_ID))
            .and_then(|id| RequestId::from_payload(&id));
        if let Some(id) = subscription {
            let call = self.calls.get(&id)?;
            let outer = call.terms.outer.as_ref()?;
            return Some((call, request_ids::notification_for(notification, &outer.id)));
        }
        match notification.method.as_str() {
            method::PROGRESS => {
                let call = self.calls.get(&RequestId::from_payload(&params?.get(meta::PROGRESS_TOKEN)?)?)?;
                let token = call.terms.outer.as_ref()?.token.as_ref()?;
                Some((call, request_ids::progress_of(notification, token)))
            }
            method::LOG_MESSAGE => {
                let wants = |call: &&CallEntry| call.terms.outer.as_ref().is_some_and(|outer| outer.wants_logs);
                let mut all = self.calls.values().filter(wants);
                let (only, None) = (all.next()?, all.next()) else { return None };
                Some((only, request_ids::verbatim(notification)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
