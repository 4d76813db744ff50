//! Writes the response to a request, alone or as a stream's last event.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::StatusCode;

use super::{CallMessage, CallMessages};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::face::answer::{Addressee, bare, event_stream, json};
use crate::face::call_stream::progress::LifeSigns;
use crate::face::http::{
    AcceptedTypes, FaceResponse, ResponseBody, SingleEventBody, empty_body, full_body, joined_body,
};
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::envelope::EnvelopeError;
use crate::wire::framing::BodyPart;
use crate::wire::{JsonPieces, Message, MessageText, RequestId, RpcError, ScanLimits, envelope};

pub(in crate::face) enum RequestAnswer {
    Json(ResponseBody),
    Events(ResponseBody),
    Result(JsonPieces),
    Error(RpcError),
    Refused(StatusCode, RpcError),
    Complaint(RequestError),
    Fault(GatewayFault),
    /// A status without a body, for a stream that does not exist.
    Status(FaceResponse),
}

impl RequestAnswer {
    pub(in crate::face) const fn outcome(&self) -> &'static str {
        match self {
            Self::Json(_) | Self::Events(_) | Self::Result(_) | Self::Status(_) => "answered",
            Self::Error(_) | Self::Refused(..) | Self::Complaint(_) => "upstream_error",
            Self::Fault(fault) => fault.reason.key(),
        }
    }

    pub(in crate::face) fn into_response(self, addressee: &Addressee) -> FaceResponse {
        match self {
            Self::Json(body) if addressee.accepted == AcceptedTypes::EventStream => {
                event_stream(ResponseBody::new(SingleEventBody::new(body, addressee.id.clone())))
            }
            Self::Json(body) => json(body),
            Self::Events(body) => event_stream(body),
            Self::Result(result) => addressee.result(result),
            Self::Error(error) => addressee.error(StatusCode::OK, &error),
            Self::Complaint(complaint) => addressee.complaint(&complaint),
            Self::Refused(status, error) => addressee.error(status, &error),
            Self::Fault(fault) => addressee.fault(&fault),
            Self::Status(response) => response,
        }
    }

    pub(in crate::face) fn into_events(self, addressee: &Addressee) -> Option<ResponseBody> {
        match self.written(addressee) {
            AnswerContent::Message(message) => Some(full_body(BodyPart::message(message))),
            AnswerContent::Json(body) => Some(ResponseBody::new(SingleEventBody::new(body, addressee.id.clone()))),
            AnswerContent::Events(body) => Some(body),
            AnswerContent::Nothing => None,
        }
    }

    pub(in crate::face) fn written(self, addressee: &Addressee) -> AnswerContent {
        let error = match (self, &addressee.id) {
            (Self::Json(body), _) => return AnswerContent::Json(body),
            (Self::Events(body), _) => return AnswerContent::Events(body),
            (Self::Status(_), _) => return AnswerContent::Nothing,
            (Self::Result(result), Some(id)) if result.is_large() => {
                return AnswerContent::Json(joined_body(envelope::result_of_pieces(id, result.into_pieces())));
            }
            (Self::Result(result), Some(id)) => return AnswerContent::Message(envelope::result(id, &result.whole())),
            // Every request has an id.
            (Self::Result(_), None) => gateway_error(&GatewayFault::new(Reason::Internal, Executed::Unknown)),
            (Self::Error(error) | Self::Refused(_, error), _) => error,
            (Self::Complaint(complaint), _) => complaint.to_error(addressee.version),
            (Self::Fault(fault), _) => gateway_error(&fault),
        };
        AnswerContent::Message(envelope::error(addressee.id.as_ref(), &error))
    }
}

pub(in crate::face) enum AnswerContent {
    Message(Bytes),
    /// One message, forwarded as it arrives.
    Json(ResponseBody),
    Events(ResponseBody),
    Nothing,
}

impl<T: Into<JsonPieces>> From<Result<T, RpcError>> for RequestAnswer {
    fn from(ending: Result<T, RpcError>) -> Self {
        ending.map_or_else(Self::Error, |result| Self::Result(result.into()))
    }
}

pub(in crate::face) struct LateAnswer {
    pub(in crate::face) answering: BoxFuture<'static, RequestAnswer>,
    pub(in crate::face) signs: Option<LifeSigns>,
}

impl CallMessages for LateAnswer {
    async fn next(&mut self) -> Option<CallMessage> {
        Some(CallMessage::Answer((&mut self.answering).await))
    }

    async fn life_sign(&mut self) -> BodyPart {
        self.signs.as_ref().map_or_else(BodyPart::comment, LifeSigns::life_sign)
    }
}

/// The HTTP response to a cancelled request, which has no JSON-RPC response (LEG-14).
pub(in crate::face) fn unanswered(accepted: AcceptedTypes) -> RequestAnswer {
    match accepted {
        AcceptedTypes::Json => status(StatusCode::ACCEPTED),
        AcceptedTypes::EventStream | AcceptedTypes::Both | AcceptedTypes::Neither => {
            RequestAnswer::Events(empty_body())
        }
    }
}

pub(in crate::face) fn status(status: StatusCode) -> RequestAnswer {
    RequestAnswer::Status(bare(status))
}

/// Whether a client would take a message for the response to `id`: clients differ, so any message with the id counts.
pub(in crate::face) fn brings_answer(text: &MessageText, id: &RequestId) -> bool {
    let is_answer = |message: &Message| match message {
        Message::Response(response) => response.id.as_ref() == Some(id),
        Message::Request(_) | Message::Notification(_) => false,
    };
    let bears_id = |error: &EnvelopeError| match error {
        EnvelopeError::Scan { id: found, .. } | EnvelopeError::Shape { id: found, .. } => found.as_ref() == Some(id),
        EnvelopeError::Batch => false,
    };
    match text.read_all(ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX) {
        Ok(messages) => messages.iter().any(|message| message.as_ref().map_or_else(bears_id, is_answer)),
        Err(error) => bears_id(&error),
    }
}
