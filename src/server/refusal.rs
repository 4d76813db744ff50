//! Lists every reason to refuse a request or a connection, with its response. A response has its status and one
//! sentence, as a JSON-RPC error without id, and no byte of the client's (GW-43).

use std::borrow::Cow;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{ALLOW, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Request, StatusCode, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

use super::client_certificates::CertificateRefusal;
use super::tokens::RefusalEvidence;
use super::tokens::claims::TokenError;
use super::tokens::dpop::ProofError;
use crate::face::answer::{ScopesNeeded, insufficient_scope, refused, retry_after};
use crate::face::http::{FaceResponse, ResponseBody};
use crate::metric;
use crate::task::{Principal, WithheldBy};
use crate::wire::framing::BodyPart;
use crate::wire::rpc_error;

/// In seconds: the interval at which an issuer's keys are fetched for tokens with unknown keys.
const RETRY_LATER: HeaderValue = HeaderValue::from_static("30");
const TOKEN_NEEDED: &str = "Unauthorized: send a valid access token as `Authorization: Bearer TOKEN`; the WWW-Authenticate \
                            header says where clients log in";
const NO_PATH: &str = "Not found: no server has this path; each has its own, such as /NAME/mcp, which the gateway's \
                       operator knows";
/// How long the body of a refused HTTP/2 request is read and discarded.
const REST_SPAN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// CONNECT: the gateway is no tunnel (B46, B55).
    ConnectMethod,
    HeadTooLarge,
    TargetTooLong,
    /// No host, two hosts, or two that disagree (B44, B45, B49, B50).
    HostAmbiguous,
    HostNotAllowed,
    OriginNotAllowed,
    /// Two credentials of one kind (B150).
    CredentialsAmbiguous,
    /// A key in its own header beside a token (B150).
    KeyAndToken,
    /// No credential, or an unknown one: the client does not learn which (B151).
    Unauthorized,
    /// No credential, where access tokens are accepted. Carries the challenge that starts the login.
    LoginRequired(HeaderValue),
    /// A token that is refused, or an unknown key beside tokens. Carries the challenge.
    CredentialRefused(HeaderValue, Option<TokenError>, RefusalEvidence),
    /// A proof of possession that is refused. Carries the challenge.
    ProofRefused(HeaderValue, ProofError),
    /// A proof that cannot be remembered, so that it could be repeated.
    ProofsFull,
    /// A certificate of no client, or of another than the credential beside it; or none at all. Carries the challenge.
    CertificateRefused(HeaderValue, CertificateRefusal, RefusalEvidence),
    /// A valid token without a scope that every request needs. Carries the challenge, and the token's owner.
    ScopesMissing(HeaderValue, Principal, RefusalEvidence),
    /// A token in the query, which is logged by servers and proxies on the way (RFC 6750, 5.3).
    TokenInQuery,
    /// The keys of the token's issuer cannot be fetched, or it does not say whether the token is active.
    IssuerUnavailable(RefusalEvidence),
    /// The client's network sent many inactive tokens. Carries the time until the next question.
    TooManyTokens(Duration),
    /// The paths of OAuth metadata and of client registration, which this gateway does not have (RFC 8414, 9728).
    NoMetadata,
    /// Carries the paths of servers, for a client that may know them; else it is empty.
    PathUnknown(String),
    /// The path exists but is withheld from this client, which gets the response for an unknown path, or the scopes that help.
    PathWithheld(WithheldBy),
    /// Carries the path's methods.
    MethodNotAllowed(HeaderValue),
    MediaType,
    ContentCoding,
    NotAcceptable,
    Expectation,
    /// Transfer codings that must be decoded before the body can be read (B04).
    TransferCoding,
    BodyTooLarge,
    BodyTooSlow,
    /// The framing of the body was truncated or malformed (B15).
    BodyBroken,
    /// Chunk extensions above hyper's limit (B16).
    ChunkExtensions,
    BodyEmpty,
    /// A request on the replica listener that no replica forwarded.
    NotForwarded(ForwardRefusal),
}

reasons! {
    /// Why the replica listener, which serves forwarded requests only, refuses a request.
    pub(super) enum ForwardRefusal {
        /// Without the seal of a key that this replica knows.
        Unsealed: "forward_unsealed",
            "Unauthorized: only replicas with the same `seal.key` may forward requests to this listener";
        /// Sealed for another replica, or an earlier process of this one.
        Misdirected: "forward_misdirected",
            "Misdirected request: it was forwarded to another replica, or to an earlier process of this one";
        Altered: "forward_altered", "Invalid seal: it was made for another request";
        /// Sealed too long ago, or with a future time.
        Untimely: "forward_untimely",
            "Expired seal: the request was forwarded too long ago, or the clocks of the replicas differ";
        /// Received before, or too long after later requests.
        Repeated: "forward_repeated", "Repeated request: it was received before";
        TooManySenders: "forward_crowded", "Too many replicas forward requests: try again later";
    }
}

/// Marks the response to a refused request, so that its connection can count it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusalMarker;

struct RefusalResponse {
    status: StatusCode,
    reason: &'static str,
    connection: ConnectionAction,
    /// The sentence for the client: the fault, then the remedy, with the operator's key where one decides.
    sentence: &'static str,
}

/// The effect on an HTTP/1 connection that has received the whole request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionAction {
    GoesOn,
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefusalAdvice {
    pub(super) reason: &'static str,
    pub(super) key: &'static str,
    /// The event, and the effect of the key.
    pub(super) sentence: &'static str,
    /// The part of the request that shows the value to allow.
    pub(super) shown: HeadPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadPart {
    Host,
    Origin,
    Length,
    Path,
    /// The part may be a secret.
    Nothing,
}

/// Declares the response to each refusal: status, label, effect on the connection, and sentence.
macro_rules! responses {
    ($($refusal:pat => $status:ident, $reason:expr, $connection:ident, $sentence:expr;)*) => {
        const fn response(&self) -> RefusalResponse {
            match self {
                $($refusal => RefusalResponse {
                    status: StatusCode::$status,
                    reason: $reason,
                    connection: ConnectionAction::$connection,
                    sentence: $sentence,
                },)*
            }
        }
    };
}

/// Declares the advice for the operator: first the refusals without any, then those that a configuration key decides.
macro_rules! advice {
    ($silent:pat => None; $($refusal:pat => $key:literal, $shown:ident, $sentence:expr;)*) => {
        pub(super) const fn advice(&self) -> Option<RefusalAdvice> {
            let (key, shown, sentence) = match self {
                $silent => return None,
                $($refusal => ($key, HeadPart::$shown, $sentence),)*
            };
            Some(RefusalAdvice { reason: self.response().reason, key, sentence, shown })
        }
    };
}

impl Refusal {
    responses! {
        Self::ConnectMethod => METHOD_NOT_ALLOWED, "connect", Ends,
            "Method not allowed: the gateway is not a proxy and serves no CONNECT";
        Self::HeadTooLarge => REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", Ends,
            "Request headers too large: send at most 32 KiB in 64 fields";
        Self::TargetTooLong => URI_TOO_LONG, "target_too_long", Ends, "Request target too long: send at most 8 KiB";
        Self::HostAmbiguous => BAD_REQUEST, "host_unclear", GoesOn, "Bad request: exactly one Host header is required";
        Self::HostNotAllowed => FORBIDDEN, "host_foreign", GoesOn,
            "Host not allowed: the gateway's operator can add it to `listen.allowed_hosts`";
        Self::OriginNotAllowed => FORBIDDEN, "origin_foreign", GoesOn,
            "Origin not allowed: the gateway's operator can add it to `listen.allowed_origins`";
        Self::CredentialsAmbiguous => BAD_REQUEST, "credentials_unclear", GoesOn,
            "Bad request: send at most one Authorization header and one X-Taskgate-Key header";
        Self::KeyAndToken => BAD_REQUEST, "credentials_unclear", GoesOn,
            "Bad request: send an Authorization header or an X-Taskgate-Key header, not both";
        Self::Unauthorized => UNAUTHORIZED, "unauthorized", GoesOn,
            "Unauthorized: send an API key as `Authorization: Bearer tg_ID_SECRET` or `X-Taskgate-Key: tg_ID_SECRET`; \
             the gateway's operator issues keys";
        Self::LoginRequired(_) => UNAUTHORIZED, "login_required", GoesOn, TOKEN_NEEDED;
        Self::CredentialRefused(_, Some(error), _) => UNAUTHORIZED, error.label(), GoesOn, TOKEN_NEEDED;
        Self::CredentialRefused(_, None, _) => UNAUTHORIZED, "unauthorized", GoesOn,
            "Unauthorized: the API key is unknown; send a valid one, or an access token: the WWW-Authenticate header says \
             where clients log in";
        Self::ProofRefused(_, why) => UNAUTHORIZED, why.label(), GoesOn,
            "Unauthorized: send a new DPoP proof with each request, made for its method, its address and its access token";
        Self::ProofsFull => SERVICE_UNAVAILABLE, "proofs_full", GoesOn,
            "Service unavailable: too many DPoP proofs were sent lately; nothing was done, try again later";
        Self::CertificateRefused(_, why, _) => UNAUTHORIZED, why.label(), GoesOn,
            "Unauthorized: connect with a client certificate that this gateway accepts, and send no other client's key or \
             token beside it; the gateway's operator knows the accepted names";
        Self::ScopesMissing(..) | Self::PathWithheld(WithheldBy::Scopes(_)) => FORBIDDEN, "insufficient_scope", GoesOn,
            "Forbidden: the access token lacks a scope; the WWW-Authenticate header lists all that are needed";
        Self::TokenInQuery => BAD_REQUEST, "token_in_query", GoesOn,
            "Bad request: send the access token in the Authorization header, never in the query";
        Self::IssuerUnavailable(_) => SERVICE_UNAVAILABLE, "issuer_unavailable", GoesOn,
            "Service unavailable: the issuer of the token, or its keys, cannot be asked; nothing was done, try again later";
        Self::TooManyTokens(_) => TOO_MANY_REQUESTS, "tokens_too_many", GoesOn,
            "Too many requests: this address sent many access tokens that are not active; nothing was done, try again later";
        Self::NoMetadata => NOT_FOUND, "path_unknown", GoesOn,
            "Not found: there is no OAuth metadata at this path, and the gateway registers no clients";
        Self::PathUnknown(_) => NOT_FOUND, "path_unknown", GoesOn, NO_PATH;
        Self::PathWithheld(WithheldBy::Lists | WithheldBy::Rules) => NOT_FOUND, "path_withheld", GoesOn, NO_PATH;
        Self::MethodNotAllowed(_) => METHOD_NOT_ALLOWED, "method_unknown", GoesOn,
            "Method not allowed: use one that the Allow header lists";
        Self::MediaType => UNSUPPORTED_MEDIA_TYPE, "media_type", GoesOn,
            "Unsupported media type: send `Content-Type: application/json`, UTF-8";
        Self::ContentCoding => UNSUPPORTED_MEDIA_TYPE, "content_coding", GoesOn,
            "Unsupported content coding: send the body without Content-Encoding";
        Self::NotAcceptable => NOT_ACCEPTABLE, "not_acceptable", GoesOn,
            "Not acceptable: send `Accept: application/json, text/event-stream`";
        Self::Expectation => EXPECTATION_FAILED, "expectation", GoesOn,
            "Expectation failed: only `Expect: 100-continue` is supported";
        Self::TransferCoding => NOT_IMPLEMENTED, "transfer_coding", Ends,
            "Unsupported transfer coding: only `Transfer-Encoding: chunked` is supported";
        Self::BodyTooLarge => PAYLOAD_TOO_LARGE, "body_too_large", Ends,
            "Body too large: the gateway's operator can raise `limits.body_bytes_max`";
        Self::BodyTooSlow => REQUEST_TIMEOUT, "body_too_slow", Ends, "Request timeout: the body arrived too slowly";
        Self::ChunkExtensions => BAD_REQUEST, "chunk_extensions", Ends,
            "Bad request: the chunks of the body have too many extensions";
        Self::BodyBroken => BAD_REQUEST, "body_broken", Ends, "Bad request: the body is truncated or malformed";
        Self::BodyEmpty => BAD_REQUEST, "body_empty", GoesOn, "Bad request: the body is empty";
        Self::NotForwarded(why @ ForwardRefusal::Unsealed) => UNAUTHORIZED, why.label(), GoesOn, why.sentence();
        Self::NotForwarded(why @ ForwardRefusal::TooManySenders) =>
            SERVICE_UNAVAILABLE, why.label(), GoesOn, why.sentence();
        Self::NotForwarded(why) => FORBIDDEN, why.label(), GoesOn, why.sentence();
    }

    pub(super) const fn status(&self) -> (StatusCode, &'static str) {
        let RefusalResponse { status, reason, .. } = self.response();
        (status, reason)
    }

    /// The sender of the request, if its credential is valid.
    pub(super) const fn principal(&self) -> Option<&Principal> {
        if let Self::ScopesMissing(_, principal, _) = self { Some(principal) } else { None }
    }

    pub(super) const fn evidence(&self) -> Option<&RefusalEvidence> {
        if let Self::CredentialRefused(.., found)
        | Self::CertificateRefused(.., found)
        | Self::ScopesMissing(.., found)
        | Self::IssuerUnavailable(found) = self
        {
            return Some(found);
        }
        None
    }

    /// Advice for the operator about a request that the admin listener refuses.
    pub(super) fn advice_to_operators(&self) -> Option<RefusalAdvice> {
        (*self == Self::Unauthorized).then(|| RefusalAdvice {
            reason: self.response().reason,
            key: "admin.tokens",
            sentence: "the request has none of these operators' tokens",
            shown: HeadPart::Nothing,
        })
    }

    advice! {
        Self::ConnectMethod | Self::HeadTooLarge | Self::TargetTooLong | Self::HostAmbiguous | Self::CredentialsAmbiguous
            | Self::KeyAndToken | Self::LoginRequired(_) | Self::TokenInQuery | Self::NoMetadata | Self::MethodNotAllowed(_)
            | Self::MediaType | Self::ContentCoding | Self::NotAcceptable | Self::Expectation | Self::TransferCoding
            | Self::BodyTooSlow | Self::BodyBroken | Self::ChunkExtensions | Self::BodyEmpty | Self::NotForwarded(_) => None;
        Self::HostNotAllowed => "listen.allowed_hosts", Host,
            "the host is not allowed; add it to this key if it is yours";
        Self::OriginNotAllowed => "listen.allowed_origins", Origin,
            "the origin is not allowed; add it to this key if its pages may call";
        Self::CredentialRefused(_, Some(error), _) => "auth.issuers", Nothing, error.sentence();
        Self::Unauthorized | Self::CredentialRefused(_, None, _) => "auth.api_keys", Nothing,
            "the request has none of these API keys";
        Self::ProofRefused(_, why) => "auth.dpop", Nothing, why.sentence();
        Self::ProofsFull => "auth.dpop", Nothing,
            "a request is refused: too many DPoP proofs of its principal, or of all, are remembered";
        Self::CertificateRefused(_, why, _) => "auth.certificates", Nothing, why.sentence();
        Self::ScopesMissing(..) => "auth.scopes", Nothing, "an access token lacks a scope of this key";
        Self::IssuerUnavailable(_) => "auth.issuers", Nothing,
            "a token's issuer does not answer about it, or its keys are unknown and cannot be fetched";
        Self::TooManyTokens(_) => "listen.trusted_proxies", Nothing,
            "an address sent too many inactive tokens; if it is a proxy, name it in this key";
        Self::BodyTooLarge => "limits.body_bytes_max", Length, "the body is too large; raise this key to accept it";
        Self::PathUnknown(_) => "upstreams.NAME.path", Path, "no upstream has the requested path";
        Self::PathWithheld(WithheldBy::Lists) => "auth.api_keys.upstreams", Path,
            "the API key may not use this upstream; add the upstream to this key if it should";
        Self::PathWithheld(WithheldBy::Rules | WithheldBy::Scopes(_)) => "auth.rules", Path,
            "no rule allows the caller anything at this upstream, with its scopes; add a rule or scopes if it should";
    }

    pub(super) fn answer(self, stream: StreamPosition) -> FaceResponse {
        let RefusalResponse { status, reason, connection, sentence } = self.response();
        metrics::counter!(metric::HTTP_REFUSED, "reason" => reason).increment(1);
        tracing::debug!(reason, "request refused");
        let is_text = matches!(self, Self::BodyBroken | Self::BodyEmpty);
        let code = if is_text { rpc_error::PARSE_ERROR } else { rpc_error::INVALID_REQUEST };
        let mut sentence = Cow::from(sentence);
        if let Self::PathUnknown(paths) = &self
            && !paths.is_empty()
        {
            sentence = Cow::from(format!("Not found: no server has this path; there are servers at {paths}"));
        }
        let is_about_scopes = reason == "insufficient_scope";
        let mut response =
            if is_about_scopes { insufficient_scope(&sentence) } else { refused(status, code, &sentence) };
        if let Self::PathWithheld(WithheldBy::Scopes(needed)) = &self {
            response.extensions_mut().insert(ScopesNeeded(needed.iter().cloned().collect()));
        }
        response.extensions_mut().insert(RefusalMarker);
        let ends = match stream {
            StreamPosition::Multiplexed => false,
            StreamPosition::Unread => true,
            StreamPosition::Known => connection == ConnectionAction::Ends,
        };
        if ends {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self == Self::Unauthorized {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(self, Self::IssuerUnavailable(_) | Self::ProofsFull) {
            response.headers_mut().insert(RETRY_AFTER, RETRY_LATER);
        }
        if let Self::TooManyTokens(wait) = self {
            response.headers_mut().insert(RETRY_AFTER, retry_after(Some(wait)));
        }
        if let Self::LoginRequired(challenge)
        | Self::CredentialRefused(challenge, ..)
        | Self::CertificateRefused(challenge, ..)
        | Self::ProofRefused(challenge, _)
        | Self::ScopesMissing(challenge, ..) = self
        {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            return response;
        }
        if let Self::MethodNotAllowed(allow) = self {
            response.headers_mut().insert(ALLOW, allow);
        }
        response
    }
}

/// The position of the byte stream when a request is answered before its body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamPosition {
    /// HTTP/2: only the stream ends, and `Connection` must not be sent.
    Multiplexed,
    /// HTTP/1 with unread body bytes: they must be read before the next request.
    Unread,
    /// HTTP/1 at the end of a message.
    Known,
}

/// The response of a refused request with an unread rest of its body. Over HTTP/2 its stream stays open until the client has
/// sent that rest: clients such as curl 7.88 show a reset stream as an error, and not the response that came before.
pub(super) fn keep_open(response: FaceResponse, request: Request<Incoming>) -> FaceResponse {
    if StreamPosition::of(&request) != StreamPosition::Multiplexed || request.body().is_end_stream() {
        return response;
    }
    let (rest, until) = (request.into_body(), Box::pin(sleep(REST_SPAN)));
    response.map(|sentence| ResponseBody::new(RefusedBody { sentence, rest, until }))
}

struct RefusedBody {
    sentence: ResponseBody,
    rest: Incoming,
    until: Pin<Box<Sleep>>,
}

impl Body for RefusedBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        if let frame @ Some(_) = ready!(Pin::new(&mut self.sentence).poll_frame(cx)) {
            return Poll::Ready(frame);
        }
        while let Poll::Ready(frame) = Pin::new(&mut self.rest).poll_frame(cx) {
            if !matches!(frame, Some(Ok(_))) {
                return Poll::Ready(None);
            }
        }
        self.until.as_mut().poll(cx).map(|()| None)
    }

    fn size_hint(&self) -> SizeHint {
        self.sentence.size_hint()
    }
}

impl StreamPosition {
    pub(super) fn of<B: Body>(request: &Request<B>) -> Self {
        if request.version() > Version::HTTP_11 {
            Self::Multiplexed
        } else if request.body().is_end_stream() {
            Self::Known
        } else {
            Self::Unread
        }
    }

    /// The position once the body was read, or abandoned in a way that ends the connection.
    pub(super) const fn after_body(self) -> Self {
        match self {
            Self::Multiplexed => Self::Multiplexed,
            Self::Unread | Self::Known => Self::Known,
        }
    }
}
