//! Reads the whole response of an upstream, or the reason why there is none.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::response::Parts;
use http::{HeaderMap, StatusCode};

use crate::dialect::faults::gateway_error;
use crate::face::answer::{Addressee, ScopesNeeded};
use crate::face::http::{FaceResponse, ResponseBody};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::reply::{ReadLimits, read_whole};
use crate::wire::{Message, Object, RpcError, ScanLimits, envelope, one_line, rpc_error};

#[derive(Clone, Debug)]
pub(super) struct MemberRefusal(Arc<RefusedAnswer>);

#[derive(Clone, Debug)]
struct RefusedAnswer {
    status: StatusCode,
    headers: HeaderMap,
    error: Option<RpcError>,
    /// Set if the client's token lacks a scope.
    needed: Option<ScopesNeeded>,
}

impl MemberRefusal {
    fn of(status: StatusCode, headers: HeaderMap, error: Option<RpcError>) -> Self {
        Self(Arc::new(RefusedAnswer { status, headers, error, needed: None }))
    }

    fn in_response(mut head: Parts, error: Option<RpcError>) -> Self {
        let needed = head.extensions.remove();
        Self(Arc::new(RefusedAnswer { status: head.status, headers: head.headers, error, needed }))
    }

    /// The refusal of an unsent request without a session: the error is about the gateway's own `initialize` (GW-29).
    pub(super) fn before_a_request(self) -> Self {
        if self.0.error.as_ref().is_none_or(RpcError::is_gateways) {
            return self;
        }
        let error = gateway_error(&GatewayFault::new(Reason::UpstreamRefused, Executed::No));
        Self(Arc::new(RefusedAnswer { error: Some(error), ..RefusedAnswer::clone(&self.0) }))
    }

    pub(super) fn with_message(&self, message: &str) -> Self {
        let error = self.0.error.as_ref().map(|error| RpcError { message: message.into(), ..error.clone() });
        Self::of(self.0.status, self.0.headers.clone(), error)
    }

    pub(super) fn of_error(error: RpcError) -> Self {
        Self::of(StatusCode::OK, HeaderMap::new(), Some(error))
    }

    pub(super) fn fault(reason: Reason) -> Self {
        Self::of_error(gateway_error(&GatewayFault::new(reason, Executed::No)))
    }

    pub(super) fn late() -> Self {
        Self::fault(Reason::UpstreamTimeout)
    }

    pub(super) fn malformed() -> Self {
        Self::fault(Reason::UpstreamMalformed)
    }

    pub(super) fn is_unknown_method(&self) -> bool {
        self.0.error.as_ref().is_some_and(|error| error.code == rpc_error::METHOD_NOT_FOUND)
    }

    pub(super) fn may_be_known_elsewhere(&self) -> bool {
        let codes = [rpc_error::RESOURCE_NOT_FOUND, rpc_error::INVALID_PARAMS, rpc_error::METHOD_NOT_FOUND];
        self.0.error.as_ref().is_some_and(|error| codes.contains(&error.code))
    }

    pub(super) fn may_name_resources(&self) -> bool {
        self.may_be_known_elsewhere() && !self.is_unknown_method()
    }

    pub(super) fn needs_scopes(&self) -> bool {
        self.0.needed.is_some()
    }

    pub(super) fn is_about_params(&self) -> bool {
        self.0.error.as_ref().is_some_and(|error| error.code == rpc_error::INVALID_PARAMS)
    }

    pub(super) fn message(&self) -> String {
        match &self.0.error {
            Some(error) => one_line::name(&error.message),
            None => format!("HTTP {}", self.0.status.as_u16()),
        }
    }

    pub(super) fn into_response(self, addressee: &Addressee) -> FaceResponse {
        let error = self
            .0
            .error
            .clone()
            .unwrap_or_else(|| gateway_error(&GatewayFault::new(Reason::UpstreamRefused, Executed::No)));
        let mut response = addressee.error(self.0.status, &error);
        for name in [WWW_AUTHENTICATE, RETRY_AFTER] {
            for value in self.0.headers.get_all(&name) {
                response.headers_mut().append(name.clone(), value.clone());
            }
        }
        if let Some(needed) = &self.0.needed {
            response.extensions_mut().insert(needed.clone());
        }
        response
    }
}

/// Fails if the response holds no result.
pub(super) async fn read_result(answer: FaceResponse, limits: &ReadLimits) -> Result<Object, MemberRefusal> {
    let (head, body) = answer.into_parts();
    let Some(text) = whole(body, limits).await else { return Err(MemberRefusal::malformed()) };
    let outcome = match envelope::read(&text, ScanLimits::UPSTREAM) {
        Ok(Message::Response(response)) => response.into_outcome(),
        Ok(Message::Request(_) | Message::Notification(_)) | Err(_) if head.status.is_success() => {
            return Err(MemberRefusal::malformed());
        }
        Ok(Message::Request(_) | Message::Notification(_)) | Err(_) => {
            return Err(MemberRefusal::in_response(head, None));
        }
    };
    match outcome {
        Ok(result) => Object::of(&result).ok_or_else(MemberRefusal::malformed),
        Err(error) => Err(MemberRefusal::in_response(head, Some(error))),
    }
}

pub(super) async fn whole(body: ResponseBody, limits: &ReadLimits) -> Option<Bytes> {
    read_whole(body, &limits.clone().with_envelope()).await.ok()
}
