//! Opens a session: sends `initialize` with one version after another until one is agreed on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use tokio::time::Instant;

use super::{DELETE_MAX, SessionKey, UpstreamLink, UpstreamSession, get_stream};
use crate::dialect::lifecycle::initialize_request;
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::outgoing::{SessionHeaders, StreamPurpose};
use crate::upstream::raw_channel::{RawChannel, RawMethod, RawRequest, RawResponse, SessionBinding};
use crate::upstream::reply::{self, ErrorAddressee, JudgedResponse, ReadLimits};
use crate::upstream::upstream_health::UpstreamHealth;
use crate::upstream::{BeginError, ForwardedHeaders, Handshake, own_ids};
use crate::wire::{Object, ProtocolVersion, RequestId, envelope, method};

/// A program downloaded before it starts (`npx`, `uvx`) takes longest; no tool runs in it, and clients wait 60 s.
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(55);
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const SESSION_ID_BYTES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOpener<'a> {
    pub(crate) owner: &'a Principal,
    pub(crate) forwarded: &'a ForwardedHeaders,
    pub(crate) addressee: ErrorAddressee<'static>,
}

#[derive(Debug)]
pub(crate) struct AgreedSession {
    pub(crate) session: Option<HeaderValue>,
    pub(crate) version: ProtocolVersion,
    pub(crate) result: Object,
}

impl AgreedSession {
    pub(crate) fn tasks(&self) -> UpstreamTaskSupport {
        let declared = self.result.get("capabilities");
        declared.map_or_else(UpstreamTaskSupport::default, |declared| UpstreamTaskSupport::declared(&declared))
    }

    pub(crate) fn binding(&self) -> SessionBinding {
        let tasks = self.tasks().within(self.version);
        SessionBinding { session: self.session.clone(), version: Some(self.version), tasks }
    }
}

/// Opens a session for the pool, and its own stream, within `HANDSHAKE_MAX`. Declares the key's capabilities (UPC-21).
pub(crate) async fn open(
    link: &Arc<UpstreamLink>,
    key: &SessionKey,
    forwarded: &ForwardedHeaders,
) -> Result<Arc<UpstreamSession>, BeginError> {
    let mark = link.health.mark();
    let opened = in_time(link, open_session(link, key, forwarded)).await;
    // The server is known to have sessions, or nothing is known of it.
    if let Err(BeginError::Gateway(fault)) = &opened
        && fault.reason == Reason::UpstreamMalformed
    {
        link.health.ended(mark, fault);
    }
    let session = opened?;
    let held = Arc::downgrade(&session);
    // The pool's reference alone is no use of it.
    let purpose = StreamPurpose::new(move || held.strong_count() > 1);
    get_stream::start(&session, &key.principal, Some(purpose));
    Ok(session)
}

async fn open_session(
    link: &Arc<UpstreamLink>,
    key: &SessionKey,
    forwarded: &ForwardedHeaders,
) -> Result<Arc<UpstreamSession>, BeginError> {
    let opener = SessionOpener { owner: &key.principal, forwarded, addressee: ErrorAddressee::Handshake };
    let message = |version| {
        let id = own_ids::mint();
        let message = initialize_request(&id, version, &key.capabilities, None);
        (id, message)
    };
    // Every refusal leads to an older version except the first, which may lead back to the newest.
    let next = |asked, refusal: &BeginError| link.versions.after_refusal(asked, refusal);
    let agreed = agree(link, opener, link.versions.version_to_request(), next, message).await?;
    let handshake = match handshake_in(&agreed) {
        Some(handshake) if link.versions.accepts(handshake.version) => handshake,
        unusable => {
            Box::pin(discard(link, forwarded, agreed.session)).await;
            let refused = BeginError::Gateway(GatewayFault::new(Reason::UpstreamRefused, Executed::No));
            return Err(unusable.map_or_else(malformed, |_| refused));
        }
    };
    link.versions.agreed(handshake.version);
    let client = key.credential.clone();
    let headers = SessionHeaders { session: agreed.session, version: Some(handshake.version), client };
    let session = UpstreamSession::opened(link, headers, handshake);
    if let Err(fault) = session.send_one_way(envelope::notification(method::INITIALIZED, None)).await {
        // No client gets the session (B268).
        Box::pin(session.end()).await;
        return Err(unsent(fault));
    }
    tracing::debug!(upstream = %link.name, version = session.credentials.version.map(ProtocolVersion::as_str), "opened an upstream session");
    Ok(session)
}

fn handshake_in(agreed: &AgreedSession) -> Option<Handshake> {
    let result = &agreed.result;
    Some(Handshake {
        version: agreed.version,
        capabilities: result.get_object("capabilities")?.payload().detached(),
        server_info: Handshake::identity_in(result, "serverInfo"),
        instructions: Handshake::instructions_in(result),
        has_session: agreed.session.is_some(),
    })
}

/// Requests versions until one is agreed on; `message` builds each request with its id. Ends when `next` gives no
/// further version; then fails with the first refusal.
pub(super) async fn agree(
    channel: &dyn RawChannel,
    opener: SessionOpener<'_>,
    mut asked: ProtocolVersion,
    next: impl Fn(ProtocolVersion, &BeginError) -> Option<ProtocolVersion>,
    message: impl Fn(ProtocolVersion) -> (RequestId, Bytes),
) -> Result<AgreedSession, BeginError> {
    let mut first = None;
    loop {
        let (id, request) = message(asked);
        let refusal = match initialize(channel, opener, id, request).await {
            Ok(agreed) => return Ok(agreed),
            Err(refusal) => refusal,
        };
        let older = next(asked, &refusal);
        let first = first.get_or_insert(refusal);
        match older {
            Some(version) => asked = version,
            None => return Err(first.clone()),
        }
    }
}

/// Waits for a handshake within its time limit. One without a response is a failure of the upstream, as for a call.
pub(super) async fn in_time<T>(
    channel: &dyn RawChannel,
    opening: impl Future<Output = Result<T, BeginError>>,
) -> Result<T, BeginError> {
    let mut awaited = AwaitedHandshake { health: channel.health(), began: Instant::now() };
    let mark = awaited.health.map(UpstreamHealth::mark).unwrap_or_default();
    let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
    let opened = tokio::time::timeout(HANDSHAKE_MAX, opening).await.unwrap_or(Err(BeginError::Gateway(late)));
    if let (Some(health), Err(BeginError::Gateway(fault))) = (awaited.health.take(), &opened)
        // An unreadable response may come from a server without sessions: the caller decides.
        && fault.reason != Reason::UpstreamMalformed
    {
        health.ended(mark, fault);
    }
    opened
}

struct AwaitedHandshake<'a> {
    health: Option<&'a UpstreamHealth>,
    began: Instant,
}

impl Drop for AwaitedHandshake<'_> {
    fn drop(&mut self) {
        self.health.iter().for_each(|health| health.given_up(self.began));
    }
}

/// Sends `initialize`, and reads the response. Other messages before it are skipped.
async fn initialize(
    channel: &dyn RawChannel,
    opener: SessionOpener<'_>,
    id: RequestId,
    message: Bytes,
) -> Result<AgreedSession, BeginError> {
    let verb = RawMethod::PostWith { message: message.into(), headers: Vec::new(), principal: opener.owner.clone() };
    let request = RawRequest { binding: SessionBinding::default(), verb, forwarded: opener.forwarded.clone() };
    let response = channel.send(request).await.map_err(unsent)?;
    let session = response.session.clone();
    let response = match reply::judge(response, opener.addressee).await {
        JudgedResponse::Fine(response) => response,
        JudgedResponse::Refused { error: Some(error), .. } => return Err(BeginError::Refused(error)),
        JudgedResponse::Refused { fault, error: None, .. } => return Err(unsent(fault)),
        JudgedResponse::SessionLost => {
            return Err(unsent(GatewayFault::new(Reason::UpstreamSessionLost, Executed::No)));
        }
    };
    match agreement_in(response, &id).await {
        Ok((version, result)) if session.as_ref().is_none_or(is_session_id) => {
            Ok(AgreedSession { session, version, result })
        }
        unusable => {
            Box::pin(discard(channel, opener.forwarded, session)).await;
            Err(unusable.err().unwrap_or_else(malformed))
        }
    }
}

async fn agreement_in(response: RawResponse, id: &RequestId) -> Result<(ProtocolVersion, Object), BeginError> {
    let answer = reply::answer(response, id, &ReadLimits::of_bytes(ANSWER_BYTES_MAX)).await;
    let answer = answer.map_err(|fault| {
        let reason =
            if fault.reason == Reason::ResultTooLarge { Reason::InitializeResultTooLarge } else { fault.reason };
        unsent(GatewayFault { reason, ..fault })
    })?;
    answer.outcome.map_err(|error| BeginError::Refused(error.bounded()))?;
    let result = answer.result.ok_or_else(malformed)?;
    let version = result.get_string("protocolVersion").as_deref().and_then(ProtocolVersion::parse);
    Ok((version.ok_or_else(malformed)?, result))
}

/// Ends a session that no client gets (B268).
async fn discard(channel: &dyn RawChannel, forwarded: &ForwardedHeaders, session: Option<HeaderValue>) {
    if session.as_ref().is_some_and(is_session_id) {
        let binding = SessionBinding { session, ..SessionBinding::default() };
        let request = RawRequest { binding, verb: RawMethod::Delete, forwarded: forwarded.clone() };
        let _ = tokio::time::timeout(DELETE_MAX, channel.send(request)).await;
    }
}

/// Visible ASCII only, up to the limit (U39).
fn is_session_id(id: &HeaderValue) -> bool {
    (1..=SESSION_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

/// A fault of the handshake: the call itself was not sent.
pub(super) const fn unsent(fault: GatewayFault) -> BeginError {
    BeginError::Gateway(GatewayFault { executed: Executed::No, ..fault })
}

pub(super) fn malformed() -> BeginError {
    BeginError::Gateway(GatewayFault::new(Reason::UpstreamMalformed, Executed::No))
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;

    /// A server that accepts every message, and never sends one.
    #[derive(Debug)]
    struct SilentChannel(Arc<str>, UpstreamHealth);

    #[async_trait]
    impl RawChannel for SilentChannel {
        fn name(&self) -> &Arc<str> {
            &self.0
        }

        async fn send(&self, _: RawRequest) -> Result<RawResponse, GatewayFault> {
            std::future::pending().await
        }

        fn health(&self) -> Option<&UpstreamHealth> {
            Some(&self.1)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_gets_no_answer_is_a_failure_of_the_upstream() {
        let name: Arc<str> = Arc::from("up");
        let channel = SilentChannel(Arc::clone(&name), UpstreamHealth::new(&name, "http://127.0.0.1:1"));
        let (owner, forwarded) = (Principal::local(), ForwardedHeaders::default());
        let opener = SessionOpener { owner: &owner, forwarded: &forwarded, addressee: ErrorAddressee::Handshake };
        let newest = ProtocolVersion::NEWEST_SESSION;
        let message = |_| (RequestId::number(1), Bytes::new());
        let failed = in_time(&channel, agree(&channel, opener, newest, |_, _| None, message)).await;
        assert!(matches!(failed, Err(BeginError::Gateway(fault)) if fault.reason == Reason::UpstreamTimeout));
        let look = channel.1.look();
        assert_eq!((look.state, look.last_failure.unwrap().reason), ("failing", "upstream_timeout"));
        let unreadable = in_time(&channel, async { Err::<(), _>(malformed()) }).await;
        assert!(unreadable.is_err() && channel.1.look().last_failure.unwrap().reason == "upstream_timeout");
    }

    /// B254: a client that leaves before `HANDSHAKE_MAX`, as most do.
    #[tokio::test(start_paused = true)]
    async fn b254_a_handshake_whose_client_leaves_is_a_failure_of_the_upstream() {
        let name: Arc<str> = Arc::from("up");
        let channel = SilentChannel(Arc::clone(&name), UpstreamHealth::new(&name, "http://127.0.0.1:1"));
        let handshake = in_time(&channel, std::future::pending::<Result<(), _>>());
        assert!(tokio::time::timeout(Duration::from_secs(30), handshake).await.is_err());
        let look = channel.1.look();
        assert_eq!((look.state, look.last_failure.unwrap().reason), ("failing", "upstream_timeout"));
    }

    /// The gateway repeats them in its own results, where clients allow no other types.
    #[test]
    fn instructions_are_a_text_and_an_identity_is_an_object() {
        for (members, expected) in [
            (r#""serverInfo":{"name":"s"},"instructions":"be kind""#, (Some(r#"{"name":"s"}"#), Some(r#""be kind""#))),
            (r#""serverInfo":null,"instructions":null"#, (None, None)),
            (r#""serverInfo":"s","instructions":{}"#, (None, None)),
            (r#""x":1"#, (None, None)),
        ] {
            let text = format!(r#"{{"capabilities":{{}},{members}}}"#);
            let result = crate::wire::Payload::parse(&text.into(), crate::wire::ScanLimits::UPSTREAM).unwrap();
            let result = Object::of(&result).unwrap();
            let agreed = AgreedSession { session: None, version: ProtocolVersion::V2025_11_25, result };
            let handshake = handshake_in(&agreed).unwrap();
            let told = (handshake.server_info.as_ref(), handshake.instructions.as_ref());
            assert_eq!((told.0.map(|info| info.as_str()), told.1.map(|text| text.as_str())), expected, "{members}");
        }
    }

    #[test]
    fn a_session_id_is_visible_ascii_of_at_most_1024_bytes() {
        for (id, expected) in [("!~abc", true), ("a b", false), ("", false), ("caf\u{e9}", false)] {
            assert_eq!(is_session_id(&HeaderValue::from_bytes(id.as_bytes()).unwrap()), expected, "{id:?} (U39)");
        }
        for (len, expected) in [(1024, true), (1025, false)] {
            assert_eq!(is_session_id(&HeaderValue::from_str(&"x".repeat(len)).unwrap()), expected, "{len} (U39)");
        }
    }
}
