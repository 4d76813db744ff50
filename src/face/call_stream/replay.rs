//! Sends a call's replay buffer to its client, also from `Last-Event-ID` on.

use bytes::Bytes;

use super::replay_buffer::{CallResult, ReplayBuffers, ReplayItem, ReplayReader};
use crate::dialect::faults::gateway_error;
use crate::face::answer::{Addressee, addressee, event_stream};
use crate::face::call_stream::request_answer::{RequestAnswer, unanswered};
use crate::face::call_stream::{self, CallMessage, CallMessages};
use crate::face::http::{AcceptedTypes, FaceResponse, ResponseBody, SingleEventBody, joined_body};
use crate::face::named_item::NamedItem;
use crate::face::sealed::{IdKind, SessionToken, event_id, read_event_id};
use crate::face::served::Served;
use crate::task::{Caller, Executed, GatewayFault, Reason};
use crate::wire::framing::BodyPart;
use crate::wire::{ProtocolVersion, RequestId, envelope};

/// The client's end of a call. Dropping it does not affect the call.
pub(in crate::face) struct ReplayStream {
    reader: ReplayReader,
    /// Absent if the events have no ids.
    sealed: Option<String>,
    request: Option<RequestId>,
    item: Option<NamedItem>,
}

impl ReplayStream {
    pub(in crate::face) const fn new(reader: ReplayReader, item: Option<NamedItem>) -> Self {
        Self { reader, sealed: None, request: None, item }
    }

    /// Responds with JSON if no event precedes the result in time.
    pub(in crate::face) async fn respond(
        mut self,
        replays: &ReplayBuffers,
        served: &Served,
        token: &SessionToken,
        addressee: Addressee,
    ) -> FaceResponse {
        match self.reader.next().await {
            Some(ReplayItem::Event(event, number)) => self.begin(replays, served, token, addressee, event, number),
            Some(ReplayItem::Last(ending, _)) => RequestAnswer::from(ending).into_response(&addressee),
            Some(ReplayItem::Rest(rest)) => event_stream(rest),
            None => unanswered(addressee.accepted).into_response(&addressee),
        }
    }

    /// Begins the response. The stream can be resumed if its events have ids and the item's name is short.
    pub(in crate::face) fn begin(
        mut self,
        replays: &ReplayBuffers,
        served: &Served,
        token: &SessionToken,
        addressee: Addressee,
        event: BodyPart,
        number: Option<u64>,
    ) -> FaceResponse {
        let mut primer = String::new();
        // The name is kept as long as the events.
        let is_kept = can_resume(token.client_version) && self.item.as_ref().is_none_or(NamedItem::is_short);
        if let Some(id) = addressee.id.clone().filter(|_| is_kept) {
            let sealed = served.seal_own(IdKind::EventStream, self.reader.stream());
            replays.keep(token.nonce, id, self.item.clone(), &self.reader);
            if token.client_version.traits().has_primers {
                primer = format!("id: {}\ndata:\n\n", event_id(&sealed, 0));
            }
            self.sealed = Some(sealed);
        }
        let first = match self.named(event, number) {
            BodyPart::Event(event) => BodyPart::Event(event.after(primer.as_bytes())),
            BodyPart::Bytes(bytes) => BodyPart::Bytes([primer.as_bytes(), &bytes].concat().into()),
        };
        self.request.clone_from(&addressee.id);
        event_stream(call_stream::stream(self, addressee, Some(first)))
    }

    fn named(&self, part: BodyPart, number: Option<u64>) -> BodyPart {
        let (Some(number), Some(sealed)) = (number, &self.sealed) else { return part };
        let id = event_id(sealed, number);
        match part {
            BodyPart::Event(event) => BodyPart::Event(event.named(id)),
            BodyPart::Bytes(bytes) => BodyPart::Bytes([format!("id: {id}\n").as_bytes(), &bytes].concat().into()),
        }
    }
}

impl CallMessages for ReplayStream {
    /// The buffer contains life signs.
    const NEEDS_LIFE_SIGNS: bool = false;

    async fn next(&mut self) -> Option<CallMessage> {
        Some(match self.reader.next().await? {
            ReplayItem::Event(event, number) => CallMessage::Event(self.named(event, number)),
            ReplayItem::Last(Ok(result), number) if result.is_large() && self.request.is_some() => {
                let id = self.sealed.as_ref().map(|sealed| event_id(sealed, number));
                let message =
                    self.request.as_ref().map(|request| envelope::result_of_pieces(request, result.into_pieces()));
                let body = SingleEventBody::new(joined_body(message.into_iter().flatten()), None).named(id);
                CallMessage::Answer(RequestAnswer::Events(ResponseBody::new(body)))
            }
            ReplayItem::Last(ending, number) => {
                let message = last_message(self.request.as_ref(), &ending);
                CallMessage::Event(self.named(BodyPart::message(message), Some(number)))
            }
            ReplayItem::Rest(rest) => CallMessage::Answer(RequestAnswer::Events(rest)),
        })
    }
}

pub(in crate::face) fn can_resume(version: ProtocolVersion) -> bool {
    version.traits().has_event_ids
}

/// Resumes a request's stream after this event (LEG-09); `None` if it is unknown or no longer buffered, or `caller` may not use the
/// tool, prompt or resource of the request any more.
pub(in crate::face) fn resume_replay(
    replays: &ReplayBuffers,
    served: &Served,
    token: &SessionToken,
    caller: &Caller,
    last_event: &str,
) -> Option<FaceResponse> {
    let (sealed, number) = read_event_id(last_event)?;
    let stream = served.sealer.open(IdKind::EventStream, None, sealed)?.id.random;
    let stream = replays.find(token.nonce, stream)?;
    let access = served.engine.access();
    let is_lost = |item: &NamedItem| !access.has_item(caller, served.upstream.name(), item.as_access_item());
    if stream.item.as_ref().is_some_and(is_lost) {
        return None;
    }
    let reader = stream.read_after(number);
    let replay =
        ReplayStream { reader, sealed: Some(sealed.to_owned()), request: Some(stream.request), item: stream.item };
    Some(event_stream(call_stream::stream(replay, addressee(None, AcceptedTypes::EventStream), None)))
}

fn last_message(id: Option<&RequestId>, ending: &CallResult) -> Bytes {
    match (id, ending) {
        (Some(id), Ok(result)) => envelope::result(id, &result.clone().whole()),
        (_, Err(error)) => envelope::error(id, error),
        (None, Ok(_)) => envelope::error(None, &gateway_error(&GatewayFault::new(Reason::Internal, Executed::Unknown))),
    }
}
