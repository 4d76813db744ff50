//! Requests of 2026-07-28: each says by itself who sends it, and nothing is asked back but in an answer.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

use super::call::{Call, Verdict};
use super::client::{ClientError, Endpoint, Messages, Reply};
use super::question;
use super::talk::{CALL_MAX, Interrupted, REQUEST_MAX, Talk};
use super::tool::{self, PAGES_MAX, Search};
use super::ui::{Progress, Status, Steps};
use crate::face::headers;
use crate::upstream::mirrored;
use crate::wire::envelope::{self, Message};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, ProtocolVersion, RequestId, fault, meta, method};

const VERSION: ProtocolVersion = ProtocolVersion::V2026_07_28;
/// How often a server may ask within one call; official clients stop there too (GW-06).
const ROUNDS_MAX: usize = 10;

/// Speaks 2026-07-28 to one endpoint.
#[derive(Debug)]
pub(super) struct Stateless {
    endpoint: Endpoint,
    /// What every request says about its sender (UPC-15).
    meta: Value,
    next_id: AtomicI64,
}

/// A request on its way: what the headers repeat, and how long the answer may take.
pub(super) struct Outgoing<'a> {
    pub(super) method: &'static str,
    /// The tool or the task that it is about.
    pub(super) name: Option<&'a str>,
    /// All parameters but `_meta`.
    pub(super) params: ObjectWriter,
    /// The call that it makes, if it makes one.
    pub(super) call: Option<&'a Call>,
    pub(super) within: Duration,
}

/// What a round of questions adds to the next try of the call.
#[derive(Default)]
struct Round {
    responses: Option<BTreeMap<String, Value>>,
    /// JSON text, echoed as it came (UPC-14).
    state: Option<Payload>,
}

type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);

impl Stateless {
    /// `extensions` are declared on every request, beside answers to questions.
    pub(super) fn new(endpoint: Endpoint, extensions: Option<Value>) -> Self {
        let mut capabilities = json!({ "elicitation": question::capability() });
        if let Some(extensions) = extensions {
            capabilities["extensions"] = extensions;
        }
        let meta = json!({
            (meta::PROTOCOL_VERSION): VERSION.as_str(),
            (meta::CLIENT_INFO): { "name": "taskgate", "version": env!("CARGO_PKG_VERSION") },
            (meta::CLIENT_CAPABILITIES): capabilities,
        });
        Self { endpoint, meta, next_id: AtomicI64::new(1) }
    }

    /// Sends a request that is no call.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn request(&self, outgoing: Outgoing<'_>) -> Result<Reply, ClientError> {
        self.send(outgoing, HeaderMap::new(), &mut |_| ()).await
    }

    /// Asks the server what it is. For a server of another era any answer is normal.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub(super) async fn discover(&self, within: Duration) -> Result<Reply, ClientError> {
        self.request(Outgoing { method: method::DISCOVER, name: None, params: ObjectWriter::new(), call: None, within })
            .await
    }

    /// Calls the tool, and answers what it asks before it has a result or a handle.
    ///
    /// Dropping the future closes the stream, which cancels a plain call.
    ///
    /// # Errors
    /// See [`ClientError`]. Whether the tool ran is then unknown.
    pub(super) async fn call(&self, talk: &mut Talk<'_>) -> Result<ControlFlow<Verdict, Object>, ClientError> {
        talk.calling();
        let Ok(headers) = talk.or_interrupt(self.mirrored(talk.call)).await else {
            return Ok(ControlFlow::Break(talk.cancelled("cancelled")));
        };
        let (mut headers, mut refreshed) = (headers?, false);
        let mut round = Round::default();
        for _ in 0..ROUNDS_MAX {
            let Ok(reply) = self.attempt(talk, headers.clone(), &round).await else {
                // Nothing more to send: on 2026-07-28 the closed stream is the cancellation.
                return Ok(ControlFlow::Break(talk.cancelled("cancelled")));
            };
            match reply?.outcome {
                // The list that the headers were made from may have been an old one (UPC-16).
                Err(error) if error.code == fault::HEADER_MISMATCH && !refreshed => {
                    refreshed = true;
                    headers = self.mirrored(talk.call).await?;
                }
                Err(error) => return Ok(ControlFlow::Break(talk.fault(&error))),
                Ok(result) if result.get_str("resultType").as_deref() == Some("input_required") => {
                    match answer(talk, &result).await? {
                        Ok(next) => round = next,
                        // Nothing runs at the server while it waits for a further try.
                        Err(Interrupted) => return Ok(ControlFlow::Break(talk.cancelled("cancelled"))),
                    }
                }
                Ok(result) => return Ok(ControlFlow::Continue(result)),
            }
        }
        Err(ClientError::Unintelligible("it asks again and again"))
    }

    async fn attempt(
        &self,
        talk: &mut Talk<'_>,
        headers: HeaderMap,
        round: &Round,
    ) -> Result<Result<Reply, ClientError>, Interrupted> {
        let Talk { call, ui, interrupts, .. } = talk;
        let mut params = ObjectWriter::new().text("name", &call.tool).member("arguments", &call.arguments);
        if let Some(responses) = &round.responses {
            params = params.member("inputResponses", &Payload::of(responses));
        }
        if let Some(state) = &round.state {
            params = params.member("requestState", state);
        }
        let mut on_progress = |progress: Progress| {
            let (message, steps) = (progress.message.as_deref(), Steps::of(&progress));
            ui.status(&Status { task_id: None, word: "calling", message, steps });
        };
        let outgoing =
            Outgoing { method: method::TOOLS_CALL, name: Some(&call.tool), params, call: Some(call), within: CALL_MAX };
        super::talk::or_interrupt(self.send(outgoing, headers, &mut on_progress), interrupts).await
    }

    /// The headers that repeat arguments of the call. Where there are no arguments, no list is needed.
    async fn mirrored(&self, call: &Call) -> Result<HeaderMap, ClientError> {
        let mut headers = HeaderMap::new();
        let Some(arguments) = Object::of(&call.arguments).filter(|arguments| arguments.keys().next().is_some()) else {
            return Ok(headers);
        };
        let mut cursor = None;
        for _ in 0..PAGES_MAX {
            let params = cursor.iter().fold(ObjectWriter::new(), |params, cursor| params.member("cursor", cursor));
            let outgoing = Outgoing { method: method::TOOLS_LIST, name: None, params, call: None, within: REQUEST_MAX };
            // A server that has no list may still have the tool, and judges the call itself.
            let Ok(page) = self.request(outgoing).await?.outcome else { return Ok(headers) };
            match tool::search(&page, &call.tool) {
                Search::Found(tool) => {
                    let why = "the tool's x-mcp-header annotations break the rules, so it must not be called";
                    let mirrored = tool.mirrored.ok_or(ClientError::Unintelligible(why))?;
                    headers.extend(mirrored::headers_of(&mirrored, Some(&arguments)));
                    return Ok(headers);
                }
                Search::Next(next) => cursor = Some(next),
                Search::Missing => return Ok(headers),
            }
        }
        Ok(headers)
    }

    async fn send(
        &self,
        outgoing: Outgoing<'_>,
        mut headers: HeaderMap,
        on_progress: OnProgress<'_>,
    ) -> Result<Reply, ClientError> {
        let id = RequestId::number(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut meta = self.meta.clone();
        if let Some(call) = outgoing.call {
            meta[meta::PROGRESS_TOKEN] = json!(id);
            call.mark(&mut meta);
        }
        let params = outgoing.params.member(meta::META, &Payload::of(&meta)).finish();
        headers.insert(headers::PROTOCOL_VERSION, HeaderValue::from_static(VERSION.as_str()));
        headers.insert(headers::METHOD, HeaderValue::from_static(outgoing.method));
        if let Some(name) = outgoing.name.and_then(mirrored::encode) {
            headers.insert(headers::NAME, name);
        }
        let body = envelope::request(&id, outgoing.method, Some(&params));
        let exchange = async {
            let mut messages = Messages::open(self.endpoint.post(&headers, body).await?)?;
            while let Some(message) = messages.next().await? {
                if let Some(reply) = messages.reply(&message, &id) {
                    return reply;
                }
                if let Some(progress) = progress(&message) {
                    on_progress(progress);
                }
            }
            Err(messages.ended())
        };
        let within = outgoing.within;
        tokio::time::timeout(within, exchange).await.unwrap_or(Err(ClientError::Late(within)))
    }
}

/// Answers what an `InputRequiredResult` asks, all of it: the call is only tried again as a whole.
async fn answer(talk: &mut Talk<'_>, result: &Object) -> Result<Result<Round, Interrupted>, ClientError> {
    let state = result.get("requestState");
    let Some(asked) = result.get_object("inputRequests") else {
        if state.is_none() {
            return Err(ClientError::Unintelligible("it asks for input and not for which"));
        }
        // Only a delay, by which a server sheds load.
        let pause = tokio::time::sleep(talk.call.retry.pause);
        return Ok(talk.or_interrupt(pause).await.map(|()| Round { responses: None, state }));
    };
    let mut responses = BTreeMap::new();
    for (key, entry) in asked.entries() {
        let params = elicitation(&entry)?;
        match talk.ask(params.as_ref()).await {
            Ok(answer) => responses.insert(key.into_owned(), answer),
            Err(interrupted) => return Ok(Err(interrupted)),
        };
    }
    Ok(Ok(Round { responses: Some(responses), state }))
}

/// The parameters of a question, one of those in `inputRequests`.
///
/// # Errors
/// If it is of a kind that was not declared.
pub(super) fn elicitation(entry: &Payload) -> Result<Option<Object>, ClientError> {
    let entry = Object::of(entry).filter(|entry| entry.get_str("method").as_deref() == Some(method::ELICIT));
    let entry = entry.ok_or(ClientError::Unintelligible("it asks for what this client never offered"))?;
    Ok(entry.get_object("params"))
}

/// The progress that a message reports.
pub(super) fn progress(message: &Message) -> Option<Progress> {
    match message {
        Message::Notification(notification) if notification.method == method::PROGRESS => {
            notification.params.object()?.payload().read().ok()
        }
        Message::Notification(_) | Message::Request(_) | Message::Response(_) => None,
    }
}
