//! Opens a session: `initialize`, `notifications/initialized`, then the session's own stream.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use super::{SessionKey, UpstreamLink, UpstreamSession, get_stream};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::outgoing::{HandedOver, SESSION_ID, SessionHeaders, StreamPurpose};
use crate::upstream::own_ids;
use crate::upstream::reply::{self, AcceptedResponse, ErrorAddressee, ReadLimits, ResponseRefusal};
use crate::upstream::{BeginError, ServerFacts};
use crate::wire::{Message, Object, Payload, ProtocolVersion, RequestId, ScanLimits, envelope, method};

/// How long a handshake may take in all; no tool runs in it.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);
/// Largest answer to `initialize`.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Longest session id (U39).
const SESSION_ID_BYTES_MAX: usize = 1024;

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams<'a> {
    protocol_version: &'static str,
    capabilities: &'a Payload,
    client_info: ClientInfo,
}

#[derive(serde::Serialize)]
struct ClientInfo {
    name: &'static str,
    version: &'static str,
}

/// Opens a session and its own stream. The capabilities declared are exactly those of the key (UPC-21).
///
/// # Errors
/// If no handshake succeeds within 30 seconds; no call was sent, whatever the reason.
pub(crate) async fn open(hop: &Arc<UpstreamLink>, key: &SessionKey) -> Result<Arc<UpstreamSession>, BeginError> {
    let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
    let session = match tokio::time::timeout(HANDSHAKE_MAX, agree(hop, key)).await {
        Ok(session) => session?,
        Err(_) => return Err(BeginError::Gateway(late)),
    };
    let held = Arc::downgrade(&session);
    // The pool alone has no use for it.
    get_stream::start(&session, Some(StreamPurpose::new(move || held.strong_count() > 1)));
    Ok(session)
}

/// Asks for versions until one is agreed on: at most once each, since every refusal leads to an older one
/// but the first, which may lead back to the newest.
async fn agree(hop: &Arc<UpstreamLink>, key: &SessionKey) -> Result<Arc<UpstreamSession>, BeginError> {
    let mut asked = hop.versions.ask();
    let (credentials, facts) = loop {
        match initialize(hop, key, asked).await {
            Ok(agreed) => break agreed,
            Err(BeginError::Refused(error)) => match hop.versions.after_refusal(asked, &error) {
                Some(other) => asked = other,
                None => return Err(BeginError::Refused(error)),
            },
            Err(error @ BeginError::Gateway(_)) => return Err(error),
        }
    };
    hop.versions.agreed(facts.version);
    let session = UpstreamSession::opened(hop, credentials, facts);
    session.tell(envelope::notification(method::INITIALIZED, None)).await.map_err(unsent)?;
    tracing::debug!(upstream = %hop.name, version = session.credentials.version.map(ProtocolVersion::as_str), "opened an upstream session");
    Ok(session)
}

async fn initialize(
    hop: &UpstreamLink,
    key: &SessionKey,
    asked: ProtocolVersion,
) -> Result<(SessionHeaders, ServerFacts), BeginError> {
    let id = own_ids::mint();
    let params = Payload::of(&InitializeParams {
        protocol_version: asked.as_str(),
        capabilities: &key.capabilities,
        client_info: ClientInfo { name: "taskgate", version: env!("CARGO_PKG_VERSION") },
    });
    let post = SessionHeaders::default()
        .post(envelope::request(&id, method::INITIALIZE, Some(&params)))
        .on_behalf_of(key.principal.clone());
    let response = hop.carrier.send(&post, &HandedOver::default()).await.map_err(unsent)?;
    let session = response.headers().get(SESSION_ID).cloned();
    let limits = ReadLimits { bytes_max: ANSWER_BYTES_MAX, idle: None };
    let reply = reply::open(response, ErrorAddressee::Handshake, limits).await.map_err(|refusal| match refusal {
        ResponseRefusal::Gateway(fault) => unsent(fault),
        ResponseRefusal::SessionLost => unsent(GatewayFault::new(Reason::UpstreamSessionLost, Executed::No)),
        ResponseRefusal::Rpc(error) => BeginError::Refused(error),
    })?;
    let result = result_in(reply, &id, limits).await?;
    let facts = facts_in(&result).ok_or_else(malformed)?;
    if !hop.versions.accepts(facts.version) {
        return Err(BeginError::Gateway(GatewayFault::new(Reason::UpstreamRefused, Executed::No)));
    }
    if session.as_ref().is_some_and(|id| !is_session_id(id)) {
        return Err(malformed());
    }
    Ok((SessionHeaders { session, version: Some(facts.version) }, facts))
}

/// The result in the answer to `initialize`, whichever form it has. Other messages before it are of no use
/// yet and are passed over.
async fn result_in(reply: AcceptedResponse, id: &RequestId, limits: ReadLimits) -> Result<Payload, BeginError> {
    match reply {
        AcceptedResponse::Json(body) => {
            let text = reply::read_whole(body, limits).await.map_err(unsent)?;
            answer_in(&text, id).ok_or_else(malformed)?
        }
        AcceptedResponse::Events(mut events) => loop {
            match events.next().await {
                Ok(Some(event)) => {
                    if let Some(answer) = reply::message_in(&event).and_then(|text| answer_in(text, id)) {
                        return answer;
                    }
                }
                Ok(None) => return Err(unsent(reply::BodyReadError::Closed.into_fault())),
                Err(broken) => return Err(unsent(broken.into_fault())),
            }
        },
    }
}

fn answer_in(text: &bytes::Bytes, id: &RequestId) -> Option<Result<Payload, BeginError>> {
    let messages = envelope::read_batch(text, ScanLimits::UPSTREAM, envelope::BATCH_MAX).ok()?;
    messages.into_iter().flatten().find_map(|message| match message {
        Message::Response(response) if response.id.as_ref() == Some(id) => {
            Some(response.outcome.map_err(BeginError::Refused))
        }
        Message::Response(_) | Message::Request(_) | Message::Notification(_) => None,
    })
}

fn facts_in(result: &Payload) -> Option<ServerFacts> {
    let result = Object::of(result)?;
    Some(ServerFacts {
        version: ProtocolVersion::parse(&result.get_string("protocolVersion")?)?,
        capabilities: result.get_object("capabilities")?.payload().detached(),
        server_info: result.get("serverInfo").map(|info| info.detached()),
        instructions: result.get("instructions").map(|text| text.detached()),
    })
}

/// Visible ASCII alone, and not too much of it (U39).
fn is_session_id(id: &HeaderValue) -> bool {
    (1..=SESSION_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

/// A fault of the handshake: the call itself was not sent.
const fn unsent(fault: GatewayFault) -> BeginError {
    BeginError::Gateway(GatewayFault { executed: Executed::No, ..fault })
}

fn malformed() -> BeginError {
    BeginError::Gateway(GatewayFault::new(Reason::UpstreamMalformed, Executed::No))
}

#[cfg(test)]
mod tests {
    use super::*;

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
