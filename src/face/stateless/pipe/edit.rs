//! What is edited in the answers of a server without sessions: states are sealed, tool lists and what the
//! server says of itself are made the gateway's, errors about the gateway's own request are taken back.
//! Everything else leaves as it came.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::about_us;
use crate::dialect::faults::gateway_error;
use crate::dialect::negotiate::StatelessRequest;
use crate::face::fallback::FallbackDesk;
use crate::face::pipe::edit::{edited_event, edited_events};
use crate::face::pipe::read::{self, Resumed};
use crate::face::rewrite;
use crate::face::sealed::{Sealer, StateContent, StateScope, StateToken};
use crate::task::{Clock, Executed, GatewayFault, Principal, Reason};
use crate::upstream::conduit::ConduitBody;
use crate::wire::framing::{EventGate, Primers, Whole};
use crate::wire::{Message, Object, Payload, RequestId, RpcError, ScanLimits, envelope, method};

/// How much of an answer is looked at for what has to be edited. An answer that asks names what it asks for
/// before it goes into length, so whatever shows nothing by then goes on as it comes, however large it is.
/// Should one slip through all the same, its state is of no use to anybody: it does not open.
const SNIFF_BYTES_MAX: usize = 256 * 1024;

/// What stands in an answer that asks, or in an error about the gateway's own request.
const MARKS: [&[u8]; 4] = [b"requestState", b"inputRequests", b"input_required", b"-3202"];

/// What an answer is to its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Discovery,
    ToolList,
    Other,
}

impl Aim {
    pub(super) fn of(name: &str) -> Self {
        match name {
            method::DISCOVER => Self::Discovery,
            method::TOOLS_LIST => Self::ToolList,
            _ => Self::Other,
        }
    }
}

/// Who asked what. Few requests have a state, so what one is bound to is worked out when there is one.
pub(super) struct Asker {
    pub(super) upstream: Arc<str>,
    pub(super) principal: Principal,
    pub(super) method: String,
    pub(super) params: Object,
}

impl Asker {
    pub(super) fn scope(&self) -> StateScope {
        StateScope::of(&self.upstream, &self.principal, &self.method, &self.params)
    }
}

/// The edits of the answer to one request.
pub(super) struct Edits {
    pub(super) id: RequestId,
    pub(super) aim: Aim,
    pub(super) asker: Asker,
    pub(super) sealer: Arc<Sealer>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) said: StatelessRequest,
    /// The gateway's own tools, for a client that has them.
    pub(super) fallback: Option<Arc<FallbackDesk>>,
}

/// A JSON answer after a look at its beginning.
pub(super) enum Sniffed {
    /// Something in it may have to be edited, or it is short.
    Whole(Bytes),
    Through(ConduitBody),
}

impl Edits {
    /// A message as the client is to see it; itself where there is nothing to edit.
    pub(super) fn text(&self, text: Bytes) -> Bytes {
        let text = match self.aim {
            Aim::Discovery => rewrite::discovery(&text, &self.id).unwrap_or(text),
            Aim::ToolList => {
                let text = rewrite::tool_list(&text, &self.id, None).unwrap_or(text);
                self.fallback.as_ref().and_then(|desk| desk.listed_in(&text, &self.id)).unwrap_or(text)
            }
            Aim::Other => text,
        };
        if !is_of_interest(&text) {
            return text;
        }
        let Ok(Message::Response(response)) = envelope::read(&text, ScanLimits::UPSTREAM) else { return text };
        if !response.id.as_ref().is_some_and(|named| named.says(&self.id)) {
            return text;
        }
        match (&response.outcome, &response.result) {
            (Err(error), _) => match self.error(error) {
                Some(about_us) => envelope::error(Some(&self.id), &about_us),
                None => text,
            },
            (Ok(_), Some(result)) => match self.sealed(result) {
                None => text,
                Some(Ok(sealed)) => envelope::result(&self.id, &sealed),
                Some(Err(fault)) => envelope::error(Some(&self.id), &gateway_error(&fault)),
            },
            (Ok(_), None) => text,
        }
    }

    /// What the client is told instead of an error, if anything.
    pub(super) fn error(&self, error: &RpcError) -> Option<RpcError> {
        about_us(error, |required| self.said.lacks(required))
    }

    /// A result that asks, with its state sealed (T-24); `None` for every other one, and where there is none.
    fn sealed(&self, result: &Object) -> Option<Result<Payload, GatewayFault>> {
        let asks = result.get_str("resultType").is_some_and(|kind| kind == "input_required");
        let own = result.get("requestState").filter(|_| asks)?;
        let content = StateContent::Upstream(Some(own));
        let token = StateToken { scope: self.asker.scope(), issued_at: self.clock.now(), content };
        Some(match self.sealer.seal_state(&token) {
            Ok(sealed) => Ok(result.edit().set("requestState", Payload::of(&sealed)).finish()),
            Err(too_large) => {
                tracing::warn!(%too_large, "the upstream's requestState cannot be kept by the client");
                Err(GatewayFault::new(Reason::ResultTooLarge, Executed::Unknown))
            }
        })
    }

    /// An event stream with these edits.
    pub(super) fn events(self, source: ConduitBody, event_bytes_max: usize) -> ConduitBody {
        let gate = EventGate::new(Primers::Pass, Whole::Messages, event_bytes_max);
        let gate = match self.aim {
            Aim::Discovery | Aim::ToolList => gate,
            Aim::Other => gate.sniffing(SNIFF_BYTES_MAX, is_of_interest),
        };
        edited_events(source, gate, move |event| edited_event(event, |text| vec![self.text(text)]))
    }

    /// Looks at a JSON body.
    ///
    /// # Errors
    /// If it breaks, or is too large where it must be read whole.
    pub(super) async fn sniff(&self, mut body: ConduitBody, bytes_max: usize) -> Result<Sniffed, GatewayFault> {
        if self.aim != Aim::Other {
            return read::whole(body, bytes_max).await.map(Sniffed::Whole);
        }
        let (mut pieces, mut length) = (VecDeque::new(), 0);
        while length < SNIFF_BYTES_MAX {
            match read::next(&mut body).await? {
                Some(piece) => {
                    length += piece.len();
                    pieces.push_back(piece);
                }
                None if pieces.len() == 1 => return Ok(Sniffed::Whole(pieces.pop_front().unwrap_or_default())),
                None => return Ok(Sniffed::Whole(joined(&pieces))),
            }
        }
        let is_through = !is_of_interest(&joined(&pieces));
        let whole = ConduitBody::new(Resumed { pieces, rest: body });
        if is_through {
            return Ok(Sniffed::Through(whole));
        }
        read::whole(whole, bytes_max).await.map(Sniffed::Whole)
    }
}

fn is_of_interest(text: &[u8]) -> bool {
    MARKS.iter().any(|mark| memchr::memmem::find(text, mark).is_some())
}

fn joined(pieces: &VecDeque<Bytes>) -> Bytes {
    let mut whole = Vec::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
    whole.into()
}
