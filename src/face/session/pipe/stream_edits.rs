//! Edits event streams: tool lists, batches, priming events and filtered questions.

use std::sync::Arc;

use bytes::Bytes;

use super::SessionPipeEra;
use super::client_filter::{self, ClientFilter, PeekedAnswer};
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::fallback::FallbackListing;
use crate::face::http::{AcceptedTypes, events_body, full_body};
use crate::face::pipe::forward::{OpenedAnswer, PipeEra as _, ResponseEdits};
use crate::face::reachable_tools::ReachableTools;
use crate::face::rewrite::{self, TaskSupportLookup};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::body::edited_events;
use crate::upstream::raw_channel::RawBody;
use crate::upstream::reply;
use crate::upstream::reply::ReadLimits;
use crate::wire::envelope::{BATCH_READ_MAX, is_batch, split_batch};
use crate::wire::framing::{EventGate, HoldPolicy, PrimerPolicy};
use crate::wire::{MessageText, ProtocolVersion, RequestId, ScanLimits};

#[derive(Clone)]
pub(super) struct StreamEdits {
    pub(super) primers: PrimerPolicy,
    pub(super) arrays: ArrayPolicy,
    pub(super) tool_list: Option<ToolListEdit>,
    filter: ClientFilter,
    tools: ReachableTools,
}

#[derive(Clone)]
pub(super) struct ToolListEdit {
    pub(super) id: RequestId,
    /// The task support of each tool; `None` adds none.
    pub(super) support: Option<TaskSupportLookup>,
    /// For clients that get the gateway's own tools.
    pub(super) fallback: Option<FallbackListing>,
}

/// Only 2025-03-26 has batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrayPolicy {
    Pass,
    Split,
}

impl StreamEdits {
    /// The edits that the client's version needs (GW-05, T-28).
    pub(super) fn new(client: ProtocolVersion, filter: ClientFilter, tools: ReachableTools) -> Self {
        let knows_primers = client.traits().has_primers;
        Self {
            primers: if knows_primers { PrimerPolicy::Pass } else { PrimerPolicy::Withhold },
            // A server may send primers although its version has none.
            arrays: if client.traits().has_batches { ArrayPolicy::Pass } else { ArrayPolicy::Split },
            tool_list: None,
            filter,
            tools,
        }
    }

    pub(super) fn of_call(self, tool: Option<Arc<str>>) -> Self {
        Self { filter: self.filter.of_call(tool), ..self }
    }

    pub(super) fn apply(self, source: RawBody, limits: &ReadLimits) -> RawBody {
        let is_list = self.tool_list.is_some() || self.tools.are_narrowed();
        let whole = if is_list { HoldPolicy::Messages } else { HoldPolicy::Asking };
        let gate = EventGate::new(self.primers, whole, limits.bytes_max);
        // Some clients take an event with any name for a message.
        edited_events(source, gate, limits.share.clone(), move |event| self.text(event.data.clone()))
    }

    /// For a JSON body; empty if nothing of it is for the client.
    fn text(&self, text: MessageText) -> Vec<MessageText> {
        let messages = match self.arrays {
            ArrayPolicy::Split if is_batch(&text) => match split_batch(&text, ScanLimits::UPSTREAM, BATCH_READ_MAX) {
                Ok(messages) => messages.into_iter().map(MessageText::from).collect(),
                Err(_) => vec![text],
            },
            ArrayPolicy::Split | ArrayPolicy::Pass => vec![text],
        };
        // Rights may have changed since the stream began (SEC-48).
        let withholds = self.filter.withholds_updates();
        let judged = |message| if withholds { self.filter.without_updates(message) } else { Some(message) };
        let messages = messages.into_iter().filter_map(|message| self.filter.text(message).and_then(judged));
        match self.tool_list.is_none() && !self.tools.are_narrowed() {
            true => messages.collect(),
            false => messages.map(|message| self.listed(message)).collect(),
        }
    }

    fn listed(&self, message: MessageText) -> MessageText {
        let message = match &self.tool_list {
            Some(ToolListEdit { id, support, fallback }) => {
                let support = support.as_ref().map(|support| &**support as &dyn Fn(&str) -> &'static str);
                self.filter.record_tools(&message);
                let message = rewrite::tool_list(&message, id, support).map_or(message, MessageText::from);
                let fallback = fallback.as_ref().and_then(|fallback| fallback.listed_in(&message, id));
                fallback.map_or(message, MessageText::from)
            }
            None => message,
        };
        self.tools.listed_in(&message).map_or(message, MessageText::from)
    }
}

/// Edits that are built where a response needs them: most JSON is forwarded as it came.
pub(super) struct LateEdits;

impl ResponseEdits<SessionPipeEra> for LateEdits {
    async fn open(
        &self,
        era: &SessionPipeEra,
        body: RawBody,
        accepted: AcceptedTypes,
    ) -> Result<OpenedAnswer, GatewayFault> {
        let body = match era.awaits_list() {
            true => body,
            false => match client_filter::opened(body).await? {
                PeekedAnswer::Whole(text) => {
                    return Ok(OpenedAnswer::Whole(RequestAnswer::Json(full_body(text))));
                }
                PeekedAnswer::Plain(body) => return Ok(OpenedAnswer::Through(body)),
                PeekedAnswer::Odd(body) => body,
            },
        };
        // Boxed: most responses are forwarded as they arrive.
        let text = Box::pin(reply::read_whole(body, &era.read_limits())).await?;
        self.whole(era, text, accepted).map(OpenedAnswer::Whole)
    }

    fn whole(&self, era: &SessionPipeEra, text: Bytes, accepted: AcceptedTypes) -> Result<RequestAnswer, GatewayFault> {
        let limits = era.read_limits();
        let messages = era.edits().text(text.clone().into()).into_iter();
        let counted = |message: MessageText| message.held_by(|edited| limits.rehold_edited(edited, &text));
        several(messages.map(counted).collect(), accepted, era.id())
    }

    fn skip(&self, era: &SessionPipeEra, text: &MessageText) {
        era.edits().filter.refuse_questions(text);
    }

    fn events(self, era: &SessionPipeEra, source: RawBody) -> RawBody {
        era.edits().apply(source, &era.read_limits())
    }
}

/// Several messages become several events; a client that accepts no stream gets only the response.
fn several(
    mut messages: Vec<MessageText>,
    accepted: AcceptedTypes,
    id: &RequestId,
) -> Result<RequestAnswer, GatewayFault> {
    let malformed = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
    if messages.is_empty() {
        return Err(malformed);
    }
    if messages.len() == 1 {
        return Ok(RequestAnswer::Json(full_body(messages.swap_remove(0).into_bytes())));
    }
    if accepted == AcceptedTypes::Json {
        let answer = messages.into_iter().find(|message| reply::answer_in(message, id).is_some()).ok_or(malformed)?;
        return Ok(RequestAnswer::Json(full_body(answer.into_bytes())));
    }
    Ok(RequestAnswer::Events(events_body(messages)))
}
