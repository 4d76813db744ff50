//! Routes messages of a client's own stream to the gateway's call in the same session: whoever carries the stream to
//! the client brings them here.

use std::sync::Arc;

use super::UpstreamSession;
use super::calls::SessionCall;
use super::route::{NotificationSubject, read};
use crate::dialect::relay_core_2025_11_25::related_task;
use crate::upstream::ExchangeEvent;
use crate::upstream::raw_channel::{CallMatch, CallMessageSink};
use crate::wire::envelope::Params;
use crate::wire::{Message, Notification, Request};

impl CallMessageSink for UpstreamSession {
    fn hear(self: Arc<Self>, message: Message, fit: CallMatch) -> Option<Message> {
        match message {
            Message::Request(request) => self.hear_request(request, fit).map(Message::Request),
            Message::Notification(notification) => {
                let heard = self.hear_notification(&notification, fit);
                heard.is_none().then_some(Message::Notification(notification))
            }
            response @ Message::Response(_) => Some(response),
        }
    }
}

impl UpstreamSession {
    /// The call that a task is that of.
    fn meant(&self, params: &Params, fit: CallMatch) -> Option<Arc<SessionCall>> {
        self.of_task(&related_task(params.object()?)?, fit)
    }

    fn of_task(&self, task: &str, fit: CallMatch) -> Option<Arc<SessionCall>> {
        let call = self.calls.by_task(task)?;
        // Another call of this client may have made it.
        (fit != CallMatch::Named || call.task.get().is_some_and(|own| **own == *task)).then_some(call)
    }

    fn hear_request(self: Arc<Self>, request: Request, fit: CallMatch) -> Option<Request> {
        let call = match request.params.object().and_then(related_task) {
            None if fit == CallMatch::OnlyOne => self.calls.only(),
            _ => self.meant(&request.params, fit),
        };
        let Some(call) = call else { return Some(request) };
        self.ask_of(&call, request);
        None
    }

    /// `None` for one that is about no call of this session. What is said to a slow reader is lost, as ever.
    fn hear_notification(&self, notification: &Notification, fit: CallMatch) -> Option<()> {
        let (call, event) = match read(notification) {
            NotificationSubject::TaskChanged(task) => {
                self.of_task(&task, fit)?.hint.notify_one();
                return Some(());
            }
            NotificationSubject::Progress(token, progress) => {
                (self.calls.by_token(&token)?, ExchangeEvent::Progress(progress))
            }
            NotificationSubject::Withdrawn(ask) => {
                let call = self.calls.by_question(&ask)?;
                call.close(&ask);
                (call, ExchangeEvent::Withdrawn { ask })
            }
            NotificationSubject::Log(params) => (self.meant(&notification.params, fit)?, ExchangeEvent::Log(params)),
            NotificationSubject::News | NotificationSubject::Unusable => return None,
        };
        if !call.try_tell(event) {
            self.hop.dropped("slow_reader");
        }
        Some(())
    }
}
