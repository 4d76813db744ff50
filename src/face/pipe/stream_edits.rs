//! Edits event streams: tool lists, arrays for clients that have none, events that only prime a stream, and what the
//! client must not be asked. Everything else goes by untouched.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};

use super::client_filter::ClientFilter;
use crate::face::fallback::FallbackToolService;
use crate::face::rewrite;
use crate::face::session::tasks::TaskSupportLookup;
use crate::upstream::raw_channel::RawBody;
use crate::wire::envelope::{is_batch, split_batch};
use crate::wire::framing::{EventGate, GateOutput, HoldPolicy, PrimerPolicy, read_event, with_data};
use crate::wire::{ProtocolVersion, RequestId, ScanLimits};

/// Most messages in one array.
const BATCH_MAX: usize = 1_000;

/// What is to be done with the messages of an answer.
#[derive(Clone)]
pub(super) struct StreamEdits {
    pub(super) primers: PrimerPolicy,
    /// Whether the client knows arrays of messages.
    pub(super) arrays: ArrayPolicy,
    /// The request whose answer is a tool list.
    pub(super) tool_list: Option<ToolListEdit>,
    /// What keeps out what the client must not be shown.
    sieve: ClientFilter,
}

/// A tool list on its way.
#[derive(Clone)]
pub(super) struct ToolListEdit {
    pub(super) id: RequestId,
    /// What is said of each tool; `None` says nothing.
    pub(super) support: Option<TaskSupportLookup>,
    /// The gateway's own tools, for clients that have them.
    pub(super) fallback: Option<Arc<FallbackToolService>>,
}

/// Arrays of messages, which a server of 2025-03-26 may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrayPolicy {
    /// None come, or the client takes them.
    Pass,
    Split,
}

impl StreamEdits {
    /// What the two versions of a session demand (GW-05, T-28).
    pub(super) fn between(client: ProtocolVersion, upstream: ProtocolVersion, sieve: ClientFilter) -> Self {
        let knows_primers = client >= ProtocolVersion::V2025_11_25;
        let may_send_arrays = upstream == ProtocolVersion::V2025_03_26 && client != upstream;
        Self {
            primers: if knows_primers { PrimerPolicy::Pass } else { PrimerPolicy::Withhold },
            arrays: if may_send_arrays { ArrayPolicy::Split } else { ArrayPolicy::Pass },
            tool_list: None,
            sieve,
        }
    }

    /// An event stream with these edits.
    pub(super) fn apply(self, source: RawBody, event_bytes_max: usize) -> RawBody {
        let whole = if self.tool_list.is_some() { HoldPolicy::Messages } else { HoldPolicy::Asking };
        let gate = EventGate::new(self.primers, whole, event_bytes_max);
        edited_events(source, gate, move |event| self.event(event))
    }

    /// A JSON body with these edits; nothing, if nothing of it is for the client.
    pub(super) fn text(&self, text: Bytes) -> Vec<Bytes> {
        let messages = match self.arrays {
            ArrayPolicy::Split if is_batch(&text) => {
                split_batch(&text, ScanLimits::UPSTREAM, BATCH_MAX).unwrap_or_else(|_| vec![text])
            }
            ArrayPolicy::Split | ArrayPolicy::Pass => vec![text],
        };
        let messages: Vec<Bytes> = messages.into_iter().filter_map(|message| self.sieve.text(message)).collect();
        let Some(ToolListEdit { id, support, fallback }) = &self.tool_list else { return messages };
        let support = support.as_ref().map(|support| &**support as &dyn Fn(&str) -> &'static str);
        let listed = |message: Bytes| {
            self.sieve.learn(&message);
            let message = rewrite::tool_list(&message, id, support).unwrap_or(message);
            fallback.as_ref().and_then(|desk| desk.listed_in(&message, id)).unwrap_or(message)
        };
        messages.into_iter().map(listed).collect()
    }

    /// Whatever an event is called, some client takes it for a message.
    fn event(&self, event: Bytes) -> Bytes {
        match read_event(&event) {
            Some(read) => edited(event, read.data, |text| self.text(text)),
            None => event,
        }
    }
}

/// An event with what its message becomes; itself where that stays the same, or it is no message.
pub(in crate::face) fn edited_event(event: Bytes, edit: impl FnOnce(Bytes) -> Vec<Bytes>) -> Bytes {
    match read_event(&event).filter(|read| read.name.as_deref().is_none_or(|name| name == "message")) {
        Some(read) => edited(event, read.data, edit),
        None => event,
    }
}

fn edited(event: Bytes, data: Bytes, edit: impl FnOnce(Bytes) -> Vec<Bytes>) -> Bytes {
    let messages = edit(data.clone());
    let is_same = matches!(messages.as_slice(), [only] if *only == data);
    if is_same { event } else { with_data(&event, &messages) }
}

/// An event stream in which the events that a gate hands over whole are edited.
pub(in crate::face) fn edited_events(
    source: RawBody,
    gate: EventGate,
    edit: impl Fn(Bytes) -> Bytes + Send + Unpin + 'static,
) -> RawBody {
    RawBody::new(EditedEvents { events: GatedBody::new(source, gate), edit })
}

struct EditedEvents<E> {
    events: GatedBody<RawBody>,
    edit: E,
}

impl<E: Fn(Bytes) -> Bytes + Send + Unpin> Body for EditedEvents<E> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let bytes = match ready!(this.events.poll_next(cx)) {
            Some(Ok(GateOutput::Through(bytes))) => bytes,
            Some(Ok(GateOutput::Event(event))) => (this.edit)(event),
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(this.events.gate.finish().map(|rest| Ok(Frame::data(rest)))),
        };
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

/// An event stream, cut by a gate into what passes and events as a whole.
pub(in crate::face) struct GatedBody<B> {
    source: B,
    gate: EventGate,
    /// What one piece of the source became.
    ready: VecDeque<GateOutput>,
}

impl<B: Body<Data = Bytes, Error = io::Error> + Unpin> GatedBody<B> {
    pub(in crate::face) const fn new(source: B, gate: EventGate) -> Self {
        Self { source, gate, ready: VecDeque::new() }
    }

    /// What comes next; `None` at the end of the source.
    ///
    /// Fails as the source does, and where the gate refuses an event.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<GateOutput>>> {
        loop {
            if let Some(passage) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(passage)));
            }
            let piece = match ready!(Pin::new(&mut self.source).poll_frame(cx)) {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
            match self.gate.feed(&piece) {
                Ok(passages) => self.ready.extend(passages),
                Err(error) => return Poll::Ready(Some(Err(io::Error::other(error)))),
            }
        }
    }

    /// The same. Cancel safe.
    pub(in crate::face) async fn next(&mut self) -> Option<io::Result<GateOutput>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}
