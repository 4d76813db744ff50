//! Routes an upstream's messages to their calls, and handles messages without a call. All messages on a call's own
//! stream belong to that call. On the session's stream a message goes to the call named by task or token, else to the
//! only running one, else to none (T-20): no client may see another call's question.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::UpstreamSession;
use super::calls::{AskRefusal, SessionCall};
use crate::dialect::plain::TOO_MANY_QUESTIONS;
use crate::dialect::relay_core_2025_11_25 as relay;
use crate::upstream::reply::ReadLimits;
use crate::upstream::{ExchangeEvent, Progress};
use crate::wire::envelope::Params;
use crate::wire::object::ObjectWriter;
use crate::wire::progress::{self, ProgressView};
use crate::wire::rpc_error::{INTERNAL_ERROR, METHOD_NOT_FOUND};
use crate::wire::{
    Message, Notification, Object, Payload, Request, RequestId, RpcError, envelope, meta, method, one_line,
};

const QUESTIONS: [&str; 3] = [method::ELICIT, method::SAMPLE, method::ROOTS];
/// Largest params of a notification that belongs to no call, and message of progress: queues keep hundreds.
const NEWS_BYTES_MAX: usize = 8 * 1024;

enum NotificationSubject {
    Progress(RequestId, Progress),
    Log,
    Withdrawn(Payload),
    TaskChanged(String),
    News,
    /// One of the kinds above, without a required member.
    Unusable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallMatch {
    /// It names the call or its task: other calls of the client may run in the session.
    Named,
    /// An unknown task may be this call's, if the call still waits for its own: no other call can have it.
    OnlyTask,
    /// There is no other call: unnamed requests are the only call's as well (T-20).
    OnlyOne,
    /// The session is the gateway's: unnamed log messages, too.
    Pooled,
}

impl UpstreamSession {
    pub(crate) async fn note_to(&self, call: &SessionCall, notification: Notification) {
        match read(&notification) {
            NotificationSubject::Progress(token, progress) if call.id == token => {
                call.queue(ExchangeEvent::Progress(progress)).await;
            }
            NotificationSubject::Log => call.queue(notified(&notification, &call.limits)).await,
            NotificationSubject::Withdrawn(ask) if call.withdraw(&ask) => {
                call.queue(ExchangeEvent::Withdrawn { ask }).await
            }
            // Released calls may have tasks that still change.
            NotificationSubject::TaskChanged(task) => match self.calls.by_task(&task) {
                Some(call) => call.hint.notify_one(),
                None => self.link.dropped("stray_notification"),
            },
            // In a client's own session that client is the only one to be notified (LEG-20).
            NotificationSubject::News if self.handshake().is_none() => {
                call.queue(notified(&notification, &call.limits)).await;
            }
            NotificationSubject::News => self.publish(notification),
            NotificationSubject::Progress(..) | NotificationSubject::Withdrawn(_) | NotificationSubject::Unusable => {
                self.link.dropped("stray_notification")
            }
        }
    }

    pub(crate) async fn receive_request_of(self: &Arc<Self>, call: &Arc<SessionCall>, request: Request) {
        if let Some(event) = self.admit(call, request) {
            call.queue(event).await;
        }
    }

    /// Routes a message on the session's own stream to its call, or returns it. Drops messages for a slow reader.
    pub(crate) fn route(self: &Arc<Self>, message: Message, matching: CallMatch) -> Option<Message> {
        match message {
            Message::Request(request) => match self.call_of_request(&request, matching) {
                Some(call) => {
                    self.try_receive_request_of(&call, request);
                    None
                }
                None => Some(Message::Request(request)),
            },
            Message::Notification(notification) => {
                let taken = self.deliver_to_call(&notification, matching);
                taken.is_none().then_some(Message::Notification(notification))
            }
            response @ Message::Response(_) => Some(response),
        }
    }

    pub(super) fn note(&self, notification: Notification) {
        if self.deliver_to_call(&notification, CallMatch::Pooled).is_some() {
            return;
        }
        if matches!(read(&notification), NotificationSubject::News) {
            self.publish(notification);
        } else {
            self.link.dropped("stray_notification");
        }
    }

    pub(super) fn receive_request(self: &Arc<Self>, request: Request) {
        if let Some(Message::Request(request)) = self.route(Message::Request(request), CallMatch::Pooled) {
            if request.method != method::PING {
                self.link.dropped("stray_request");
            }
            self.reply(unassigned_answer(&request));
        }
    }

    fn of_task(&self, task: &str, matching: CallMatch) -> Option<Arc<SessionCall>> {
        let call = self.calls.by_task(task)?;
        // Another call of this client may have made it.
        (matching != CallMatch::Named || call.task.get().is_some_and(|own| **own == *task)).then_some(call)
    }

    fn call_of_request(&self, request: &Request, matching: CallMatch) -> Option<Arc<SessionCall>> {
        match request.params.object().and_then(relay::related_task) {
            Some(task) => self.of_task(&task, matching),
            None => self.calls.only().filter(|_| matches!(matching, CallMatch::OnlyOne | CallMatch::Pooled)),
        }
    }

    /// Sends a notification to its call; `None` if there is none.
    fn deliver_to_call(&self, notification: &Notification, matching: CallMatch) -> Option<()> {
        let (call, event) = match read(notification) {
            NotificationSubject::TaskChanged(task) => {
                self.of_task(&task, matching)?.hint.notify_one();
                return Some(());
            }
            NotificationSubject::Progress(token, progress) => {
                (self.calls.by_token(&token)?, ExchangeEvent::Progress(progress))
            }
            NotificationSubject::Withdrawn(ask) => {
                let call = self.calls.by_question(&ask)?;
                call.withdraw(&ask);
                (call, ExchangeEvent::Withdrawn { ask })
            }
            NotificationSubject::Log => {
                let call = match matching {
                    CallMatch::Pooled => self.calls.only(),
                    CallMatch::Named | CallMatch::OnlyTask | CallMatch::OnlyOne => {
                        self.of_task(&relay::related_task(notification.params.object()?)?, matching)
                    }
                }?;
                let event = notified(notification, &call.limits);
                (call, event)
            }
            NotificationSubject::News | NotificationSubject::Unusable => return None,
        };
        if !call.try_queue(event) {
            self.link.dropped("slow_reader");
        }
        Some(())
    }

    pub(super) fn try_receive_request_of(self: &Arc<Self>, call: &Arc<SessionCall>, request: Request) {
        let id = request.id.clone();
        if let Some(event) = self.admit(call, request)
            && !call.try_queue(event)
        {
            call.close(&id.payload());
            self.link.dropped("slow_reader");
            self.refuse(&id, INTERNAL_ERROR, "the client does not keep up");
        }
    }

    /// Opens a question of a call; an invalid or excessive one is answered right here.
    fn admit(self: &Arc<Self>, call: &Arc<SessionCall>, request: Request) -> Option<ExchangeEvent> {
        if request.method == method::PING {
            self.reply(envelope::result(&request.id, &Payload::empty_object()));
            return None;
        }
        if !QUESTIONS.contains(&&*request.method) {
            self.link.dropped("unknown_request");
            self.refuse(&request.id, METHOD_NOT_FOUND, "method not found");
            return None;
        }
        match call.open_question(&request.id) {
            Ok(()) => {
                if let Some(task) = request.params.object().and_then(relay::related_task) {
                    call.relate(&request.id.payload(), Arc::from(task));
                }
                if let Some(patience) = QuestionKeepAlive::of(&request.id, &request.params) {
                    patience.keep(self, call);
                }
                Some(ExchangeEvent::Asked {
                    ask: request.id.payload(),
                    method: Arc::from(request.method),
                    params: unrelated(&request.params, &call.limits),
                })
            }
            Err(AskRefusal::Again) => {
                self.link.dropped("repeated_request");
                None
            }
            Err(AskRefusal::TooMany) => {
                self.link.dropped("request_flood");
                self.refuse(&request.id, INTERNAL_ERROR, TOO_MANY_QUESTIONS);
                None
            }
        }
    }

    fn refuse(self: &Arc<Self>, id: &RequestId, code: i64, message: &str) {
        self.reply(envelope::error(Some(id), &RpcError::new(code, message)));
    }

    fn publish(&self, notification: Notification) {
        let news = (Arc::from(notification.method), news_params(whole(notification.params)));
        if self.news.send(news).is_err() {
            self.link.dropped("no_listener");
        }
    }
}

/// The response to a request that belongs to no call (T-20).
pub(crate) fn unassigned_answer(request: &Request) -> Bytes {
    let refusal = RpcError::new(INTERNAL_ERROR, "the request cannot be assigned to a single call");
    match &*request.method {
        method::PING => envelope::result(&request.id, &Payload::empty_object()),
        _ => envelope::error(Some(&request.id), &refusal),
    }
}

/// The event in a notification on the stream of the request `id`; `None` if there is none.
pub(crate) fn about_call(notification: &Notification, id: &RequestId, limits: &ReadLimits) -> Option<ExchangeEvent> {
    match read(notification) {
        NotificationSubject::Progress(token, progress) => (token == *id).then_some(ExchangeEvent::Progress(progress)),
        NotificationSubject::Log => Some(notified(notification, limits)),
        NotificationSubject::Withdrawn(_)
        | NotificationSubject::TaskChanged(_)
        | NotificationSubject::News
        | NotificationSubject::Unusable => None,
    }
}

fn read(notification: &Notification) -> NotificationSubject {
    let params = notification.params.object();
    let subject = match notification.method.as_str() {
        method::PROGRESS => params.and_then(progress_in),
        method::LOG_MESSAGE => params.map(|_| NotificationSubject::Log),
        method::CANCELLED => params.and_then(|params| params.get("requestId")).map(NotificationSubject::Withdrawn),
        method::TASK_STATUS => params.and_then(relay::changed).map(NotificationSubject::TaskChanged),
        // Some readers check only the method.
        name => (!QUESTIONS.contains(&name)).then_some(NotificationSubject::News),
    };
    subject.unwrap_or(NotificationSubject::Unusable)
}

fn progress_in(params: &Object) -> Option<NotificationSubject> {
    let is_number = |value: &Payload| {
        value.len() <= NEWS_BYTES_MAX && value.as_str().starts_with(|c: char| c == '-' || c.is_ascii_digit())
    };
    // Detached: they would hold a large message.
    let number = |key| params.get(key).filter(is_number).map(|value| value.detached());
    let progress = Progress {
        progress: number("progress")?,
        total: number("total"),
        message: params.get_lossy("message").map(|words| Arc::from(one_line::beginning(&words, NEWS_BYTES_MAX))),
    };
    Some(NotificationSubject::Progress(RequestId::from_payload(&params.get(meta::PROGRESS_TOKEN)?)?, progress))
}

fn notified(notification: &Notification, limits: &ReadLimits) -> ExchangeEvent {
    ExchangeEvent::Notification((Arc::from(notification.method.as_str()), unrelated(&notification.params, limits)))
}

/// Params without the upstream's id of its task. A copy takes the bytes that the message held until now (B190).
fn unrelated(params: &Params, limits: &ReadLimits) -> Option<Payload> {
    let Params::Object(object) = params else { return whole(params.clone()) };
    let edited = relay::unrelated(object);
    Some(edited.held_by(|text| limits.rehold_edited(text, object.payload().bytes())))
}

fn whole(params: Params) -> Option<Payload> {
    match params {
        Params::Absent => None,
        Params::Object(object) => Some(object.payload().clone()),
        Params::Other(payload) => Some(payload),
    }
}

/// The params of a notification that belongs to no call, in a buffer of their own; of large ones, the resource alone.
pub(crate) fn news_params(params: Option<Payload>) -> Option<Payload> {
    let params = params?;
    if params.len() <= NEWS_BYTES_MAX {
        return Some(params.detached());
    }
    let uri = Object::of(&params)?.get_string("uri").filter(|uri| uri.len() <= NEWS_BYTES_MAX)?;
    Some(ObjectWriter::new().text("uri", &uri).finish())
}

/// The interval of progress: twice within the timeout of SDKs.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(20);

/// Sends an upstream progress while its question waits for a human (T-47): else servers time out after a minute or so.
struct QuestionKeepAlive {
    ask: Payload,
    token: Payload,
    /// The upstream's task that asks, which every message about it must name.
    related: Option<Payload>,
}

impl QuestionKeepAlive {
    fn of(id: &RequestId, params: &Params) -> Option<Self> {
        let question_meta = params.object()?.get_object(meta::META)?;
        let token = RequestId::from_payload(&question_meta.get(meta::PROGRESS_TOKEN)?)?;
        let related = question_meta.get(meta::RELATED_TASK).map(|related| related.detached());
        Some(Self { ask: id.payload(), token: token.payload(), related })
    }

    /// Sends progress in the background until the question is closed, or its call or session is gone.
    fn keep(self, session: &Arc<UpstreamSession>, call: &Arc<SessionCall>) {
        let (link, session_ended) = (Arc::clone(&session.link), session.ended().clone());
        let (session, call) = (Arc::downgrade(session), Arc::downgrade(call));
        let showing = async move {
            for count in 1_u32.. {
                tokio::time::sleep(KEEP_ALIVE_EVERY).await;
                let Some(session) = session.upgrade() else { break };
                if !call.upgrade().is_some_and(|call| call.is_open(&self.ask)) {
                    break;
                }
                // An upstream that refuses it has lost the session, or will report the fault elsewhere.
                if session.send_one_way(self.sign(count)).await.is_err() {
                    break;
                }
            }
        };
        link.tracker.spawn(session_ended.run_until_cancelled_owned(Box::pin(showing)));
    }

    fn sign(&self, count: u32) -> Bytes {
        let related = self.related.as_ref().map(|task| ObjectWriter::new().member(meta::RELATED_TASK, task).finish());
        let step = ProgressView { progress: &Payload::of(&count), total: None, message: Some("waiting for an answer") };
        progress::notification(&self.token, step, related.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_budget::{AnswerBudget, FREE_BYTES};
    use crate::task::Principal;
    use crate::wire::ScanLimits;

    fn params(text: Bytes) -> Params {
        let read = Payload::parse(&text, ScanLimits::UPSTREAM).unwrap();
        Params::Object(Object::of(&read).unwrap())
    }

    /// B190: a message without its task's id is a copy.
    #[test]
    fn b190_a_message_holds_its_bytes_whether_it_names_its_task_or_not() {
        let data = "x".repeat(2 * FREE_BYTES);
        for members in ["", r#","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"u-1"}}"#] {
            let budget = AnswerBudget::default();
            let share = budget.share(&Principal::local(), usize::MAX);
            let text = share.hold(Bytes::from(format!(r#"{{"data":"{data}"{members}}}"#))).unwrap();
            let shown = unrelated(&params(text), &ReadLimits::within(usize::MAX, share)).unwrap();
            assert_eq!(budget.in_use(), shown.len(), "{members}");
            drop(shown);
            assert_eq!(budget.in_use(), 0, "{members}");
        }
    }

    /// B190: its copies hold no bytes of the answer budget.
    #[test]
    fn b190_the_message_of_progress_is_cut() {
        for (sent, kept) in [(10, 10), (NEWS_BYTES_MAX + 1, NEWS_BYTES_MAX)] {
            let words = "x".repeat(sent);
            let text = format!(r#"{{"progressToken":1,"progress":2,"message":"{words}"}}"#);
            let params = params(text.into());
            let Some(NotificationSubject::Progress(_, progress)) = params.object().and_then(progress_in) else {
                panic!("{sent} bytes");
            };
            assert_eq!(progress.message.map(|words| words.len()), Some(kept));
        }
    }
}
