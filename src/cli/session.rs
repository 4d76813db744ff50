//! Sessions of 2025-11-25 and before: a handshake, then requests in both directions over several streams.
//!
//! Every answer, question and notification arrives as an [`Event`], whichever stream it came on, so that a
//! flavour is one loop over them. What is dropped ends its streams; nobody is told of it but by [`Session::end`].

mod link;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::client::{ClientError, Endpoint, Reply};
use super::question;
use super::talk::{Interrupted, REQUEST_MAX, Talk};
use super::tool::{self, PAGES_MAX, Search, Tool};
use super::ui::{Progress, Status, Steps};
use crate::wire::object::ObjectWriter;
use crate::wire::{Notification, Object, Payload, Request, RequestId, RpcError, fault, meta, method};
use link::Link;

/// Messages that wait for the loop; more wait in their streams.
const EVENTS_MAX: usize = 64;
/// Messages put aside while an answer is waited for. Beyond it notifications are lost: they only inform.
const BACKLOG_MAX: usize = 256;
/// How long the session's own stream may take to open before the call is made without it.
const LISTEN_MAX: Duration = Duration::from_secs(2);
/// How long the goodbye may take.
const END_MAX: Duration = Duration::from_secs(5);

/// What arrives.
#[derive(Debug)]
pub(super) enum Event {
    /// The end of a request of ours.
    Answered {
        id: RequestId,
        reply: Result<Reply, ClientError>,
    },
    Asked(Request),
    Told(Notification),
}

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    link: Arc<Link>,
    /// What the server says it can do.
    capabilities: Option<Object>,
    sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    backlog: VecDeque<Event>,
    /// One per stream. They end with the session.
    readers: JoinSet<()>,
    next_id: i64,
}

impl Session {
    /// Shakes hands, and opens the session's own stream if the server has one.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or names no version with sessions.
    pub(super) async fn open(endpoint: Endpoint) -> Result<Self, ClientError> {
        let id = RequestId::number(0);
        let capabilities = Payload::of(&json!({ "elicitation": question::capability() }));
        let (link, capabilities) = Link::open(endpoint, &id, &capabilities).await?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (link, mut readers) = (Arc::new(link), JoinSet::new());
        let opened = link::listen(&link, &sender, &mut readers);
        // A question must not be missed because its stream came too late; a server without one says so at once.
        let _ = tokio::time::timeout(LISTEN_MAX, opened).await;
        Ok(Self { link, capabilities, sender, events, backlog: VecDeque::new(), readers, next_id: 1 })
    }

    /// A member of the server's capabilities by its path; present and not `false` counts (GW-07).
    pub(super) fn offers(&self, path: &[&str]) -> bool {
        let value = path.split_last().and_then(|(last, outer)| {
            let object = outer.iter().try_fold(self.capabilities.clone()?, |object, key| object.get_object(key));
            object?.get(last)
        });
        value.is_some_and(|value| !matches!(value.as_str(), "false" | "null"))
    }

    /// An id for a request, which is also its progress token.
    pub(super) fn mint_id(&mut self) -> RequestId {
        let id = RequestId::number(self.next_id);
        self.next_id += 1;
        id
    }

    /// Sends a request; its end comes as [`Event::Answered`], within this time.
    pub(super) fn send(&mut self, id: &RequestId, method: &'static str, params: &Payload, within: Duration) {
        link::send(&self.link, &self.sender, &mut self.readers, (id, method, params), within);
    }

    /// The next event, those first that were put aside.
    pub(super) async fn next(&mut self) -> Event {
        match self.backlog.pop_front() {
            Some(event) => event,
            None => self.receive().await,
        }
    }

    /// Sends a request and waits for its answer. What else comes is put aside.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn request(&mut self, method: &'static str, params: &Payload) -> Result<Reply, ClientError> {
        let id = self.mint_id();
        self.send(&id, method, params, REQUEST_MAX);
        loop {
            match self.receive().await {
                Event::Answered { id: answered, reply } if answered == id => return reply,
                event @ (Event::Answered { .. } | Event::Asked(_) | Event::Told(_)) => self.put_aside(event),
            }
        }
    }

    /// Looks a tool up; `None` if the server does not list it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn tool(&mut self, name: &str) -> Result<Option<Tool>, ClientError> {
        let mut cursor = None;
        for _ in 0..PAGES_MAX {
            let params = cursor.iter().fold(ObjectWriter::new(), |params, cursor| params.member("cursor", cursor));
            let Ok(page) = self.request(method::TOOLS_LIST, &params.finish()).await?.outcome else { return Ok(None) };
            match tool::search(&page, name) {
                Search::Found(tool) => return Ok(Some(tool)),
                Search::Next(next) => cursor = Some(next),
                Search::Missing => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Tells the server something, as far as it listens.
    pub(super) async fn notify(&self, method: &str, params: &Payload) {
        if let Err(error) = self.link.notify(method, Some(params)).await {
            tracing::debug!(%error, method, "a notification was not taken");
        }
    }

    /// Deals with a request of the server: questions go to the user, all else is answered or refused here.
    ///
    /// A question is withdrawn when the server says so, and when one of `ends` is answered: then nobody waits for
    /// it any more.
    ///
    /// # Errors
    /// If the user wants to leave.
    pub(super) async fn serve(
        &mut self,
        talk: &mut Talk<'_>,
        request: Request,
        ends: &[&RequestId],
    ) -> Result<(), Interrupted> {
        if request.method != method::ELICIT {
            self.refuse(request).await;
            return Ok(());
        }
        let answer = {
            let asking = talk.ask(request.params.object());
            tokio::pin!(asking);
            loop {
                tokio::select! {
                    biased;
                    answer = &mut asking => break Some(answer?),
                    event = self.receive() => {
                        let is_end = withdraws(&event, &request.id, ends);
                        self.meanwhile(event).await;
                        if is_end {
                            break None;
                        }
                    }
                }
            }
        };
        match answer {
            Some(mut answer) => {
                // UPC-08.
                if let Some(task) = related_task(&request) {
                    answer[meta::META] = json!({ (meta::RELATED_TASK): task });
                }
                if let Err(error) = self.link.answer(&request.id, Ok(&Payload::of(&answer))).await {
                    talk.note(&format!("the answer may be lost: {}", super::client::chain(&error)));
                }
            }
            None => talk.note("the question was withdrawn"),
        }
        Ok(())
    }

    /// Waits for the answer to a call, and deals with what else comes before it.
    ///
    /// # Errors
    /// If the user wants to leave. The call goes on, and may be waited for again.
    pub(super) async fn converse(
        &mut self,
        talk: &mut Talk<'_>,
        call: &RequestId,
    ) -> Result<Result<Reply, ClientError>, Interrupted> {
        loop {
            match talk.or_interrupt(self.next()).await? {
                Event::Answered { id, reply } if id == *call => return Ok(reply),
                Event::Answered { .. } => (),
                Event::Asked(request) => self.serve(talk, request, &[call]).await?,
                Event::Told(told) => {
                    if let Some(progress) = progress_of(&told, call) {
                        let (message, steps) = (progress.message.as_deref(), Steps::of(&progress));
                        talk.ui.status(&Status { task_id: None, word: "calling", message, steps });
                    }
                }
            }
        }
    }

    /// Says goodbye.
    pub(super) async fn end(self) {
        let _ = tokio::time::timeout(END_MAX, self.link.end()).await;
    }

    async fn receive(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            // Not to be reached: this session holds a sender too.
            None => std::future::pending().await,
        }
    }

    fn put_aside(&mut self, event: Event) {
        if self.backlog.len() < BACKLOG_MAX || matches!(event, Event::Answered { .. }) {
            self.backlog.push_back(event);
        }
    }

    /// Deals with what comes while a question is open.
    async fn meanwhile(&mut self, event: Event) {
        match event {
            Event::Asked(request) if request.method != method::ELICIT => self.refuse(request).await,
            event @ (Event::Asked(_) | Event::Answered { .. } | Event::Told(_)) => self.put_aside(event),
        }
    }

    /// Answers what needs no user. What was never declared is refused (GW-16).
    async fn refuse(&self, request: Request) {
        let empty = Payload::empty_object();
        let unknown = RpcError::new(fault::METHOD_NOT_FOUND, format!("unknown method: {}", request.method));
        let outcome = if request.method == method::PING { Ok(&empty) } else { Err(&unknown) };
        if let Err(error) = self.link.answer(&request.id, outcome).await {
            tracing::debug!(%error, method = request.method, "an answer was not taken");
        }
    }
}

/// The progress that a notification reports of the call with this id, which is its token too.
pub(super) fn progress_of(told: &Notification, call: &RequestId) -> Option<Progress> {
    let params = told.params.object().filter(|_| told.method == method::PROGRESS)?;
    let is_ours = params.get(meta::PROGRESS_TOKEN).as_ref() == Some(call.payload());
    is_ours.then(|| params.payload().read().ok())?
}

/// Whether nobody waits for the answer to `question` any more.
fn withdraws(event: &Event, question: &RequestId, ends: &[&RequestId]) -> bool {
    match event {
        Event::Answered { id, .. } => ends.contains(&id),
        Event::Told(told) if told.method == method::CANCELLED => {
            told.params.object().and_then(|params| params.get("requestId")).as_ref() == Some(question.payload())
        }
        Event::Told(_) | Event::Asked(_) => false,
    }
}

/// The task that a request of the server belongs to, verbatim.
fn related_task(request: &Request) -> Option<Value> {
    let meta = request.params.object()?.get_object(meta::META)?;
    meta.get_object(meta::RELATED_TASK)?.payload().read().ok()
}
