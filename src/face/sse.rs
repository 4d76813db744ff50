//! Serves the HTTP+SSE transport of 2024-11-05: one event stream, and a POST per message. An adapter, not a face:
//! messages go through [`stream_client`] to the faces, in any version (GW-01). A stream is the session, lives in this
//! process, and cannot be resumed; its tasks outlive it. Its owner replica counts messages.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::affinity::unanswered;
use super::answer::{accepted, addressee, bare, event_stream, too_many, too_often, unreadable};
use super::call_stream::{CallMessage, CallMessages, stream};
use super::http::{AcceptedTypes, Endpoint, FaceResponse, Inbound, ending_with};
use super::sealed::{GatewayId, IdKind};
use super::served::Served;
use super::session::refuse;
use super::session_owners::{ForwardReason, may_forward};
use super::stream_client::{self, ClientMessage, InputEnd};
use crate::metric;
use crate::replica::OwnerReplica;
use crate::shared_limits::SharedLimits;
use crate::task::{Caller, Executed, GatewayFault, Principal, PrincipalCounts, PrincipalLimits, Reason, WithheldBy};
use crate::wire::envelope::{self, is_batch};
use crate::wire::{ScanLimits, framing};

/// Unprocessed messages of one client. Further POSTs wait for their 202.
const RECEIVED_MAX: usize = 4;
/// Messages queued for the client. Later ones wait at their source.
const OUTGOING_MAX: usize = 8;
const ENVELOPE_BYTES: usize = 64 << 10;
const TAKEN_MAX: Duration = Duration::from_secs(30);
const STREAM: &str = "session_id";

#[derive(Clone, Debug)]
pub struct SseStreams(Arc<SseStreamTable<mpsc::Sender<ClientMessage>>>);

impl SseStreams {
    pub fn new(limits: SharedLimits) -> Self {
        Self(Arc::new(SseStreamTable::new(limits)))
    }
}

#[derive(Clone, Debug)]
pub struct SseServed {
    /// Used only for the state that all upstreams share.
    pub served: Arc<Served>,
    /// The upstream's name, or the endpoint's path.
    pub name: Arc<str>,
    pub result_bytes_max: usize,
    pub path: Arc<str>,
    pub streams: SseStreams,
    /// Once cancelled, each stream ends as soon as it has no request in progress.
    pub streams_end: CancellationToken,
}

pub struct SseEndpoint {
    sse: SseServed,
    endpoint: Arc<dyn Endpoint>,
}

debug_members!(SseEndpoint, |endpoint| sse: endpoint.sse);

impl SseEndpoint {
    pub const fn new(sse: SseServed, endpoint: Arc<dyn Endpoint>) -> Self {
        Self { sse, endpoint }
    }

    /// The first event is the URL for the client's messages.
    fn open(&self, inbound: Box<Inbound>) -> FaceResponse {
        if matches!(inbound.accepted, AcceptedTypes::Json | AcceptedTypes::Neither) {
            return bare(StatusCode::NOT_ACCEPTABLE);
        }
        let SseServed { served, name, result_bytes_max, path, streams, streams_end } = &self.sse;
        if streams_end.is_cancelled() {
            return bare(StatusCode::SERVICE_UNAVAILABLE);
        }
        let (key, caller) = (self.key(&inbound, (served.random)()), inbound.caller.clone());
        // A path: the gateway does not know the host and scheme that its clients use.
        let id = GatewayId::in_memory(IdKind::SseStream, served.own_replica(), key.nonce);
        let sealed =
            served.sealer.seal(&id, Some(&caller.principal), &[]).expect("an id without a payload has one length");
        let address = format!("{}?{STREAM}={sealed}", inbound.path);
        let (inlet, messages_in) = mpsc::channel(RECEIVED_MAX);
        let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
        let permit = match streams.0.open(key, inbound.counted_as(), || inlet) {
            Ok(permit) => permit,
            Err(fault) => return too_many(&fault),
        };
        let client = stream_client::StreamClient {
            endpoint: Arc::clone(&self.endpoint),
            upstream: Arc::clone(name),
            path: path.to_string(),
            caller: inbound.caller,
            address: inbound.client,
            limits: served.engine.limits().clone(),
            message_bytes_max: result_bytes_max.saturating_add(ENVELOPE_BYTES),
        };
        let (streams_end, input_end) = (streams_end.clone(), InputEnd::ClientLeft);
        let serving = stream_client::serve_to_input_end(client, messages_in, outgoing, streams_end, input_end);
        served.scope.tracker.spawn(serving);
        let address = framing::sse_endpoint(&address).into();
        let opened = event_stream(stream(
            SseEventStream::new(messages, permit),
            addressee(None, inbound.accepted),
            Some(address),
        ));
        ending_with(opened, || self.endpoint.withheld_from(&caller))
    }

    /// Accepts a message for a stream: 202 once it will be processed, with any outcome.
    async fn take(&self, inbound: Box<Inbound>) -> FaceResponse {
        let Some(sealed) = stream_named(inbound.query.as_deref()) else {
            // Shows a client that tries streamable HTTP first the older transport (transports, backwards compatibility).
            return not_allowed("GET");
        };
        let opened = self.sse.served.sealer.open(IdKind::SseStream, Some(&inbound.caller.principal), sealed);
        let stream = opened.map(|opened| opened.id);
        if let (Some(owners), Some(id)) = (&self.sse.served.owners, &stream)
            && let Some(OwnerReplica::There(peer)) = owners.named(id).filter(|_| may_forward(&inbound))
        {
            // Boxed, as a single gateway never needs it.
            let forwarded = Box::pin(owners.forward(&inbound, peer, ForwardReason::Stream)).await;
            return forwarded.unwrap_or_else(|fault| unanswered(&fault));
        }
        let key = stream.map(|id| self.key(&inbound, id.random));
        let Some(inlet) = key.and_then(|key| self.sse.streams.0.find(&key)) else {
            return self.refuse(&inbound, "stream_unknown", || bare(StatusCode::NOT_FOUND));
        };
        if !is_batch(&inbound.body)
            && let Err(error) = envelope::read(&inbound.body, ScanLimits::CLIENT)
            && let (None, complaint) = unreadable(error)
            && envelope::asked_in(&inbound.body).is_none()
        {
            // Without an id no response on the stream could refer to the message.
            let answer = || refuse(&addressee(None, AcceptedTypes::Json), &complaint);
            return self.refuse(&inbound, "message_unreadable", answer);
        }
        let messages_in = ClientMessage { text: inbound.body, headers: inbound.headers, caller: Some(inbound.caller) };
        match inlet.send_timeout(messages_in, TAKEN_MAX).await {
            Ok(()) => accepted(),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => bare(StatusCode::NOT_FOUND),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                metrics::counter!(metric::HTTP_REFUSED, "reason" => "stream_unread").increment(1);
                too_many(&GatewayFault::new(Reason::QueueFull, Executed::No))
            }
        }
    }

    /// Counts a message that never reaches the endpoint, which counts all others.
    fn refuse(&self, inbound: &Inbound, reason: &'static str, answer: impl FnOnce() -> FaceResponse) -> FaceResponse {
        metrics::counter!(metric::HTTP_REFUSED, "reason" => reason).increment(1);
        match self.sse.served.rates.admit(&inbound.counted_as(), 1) {
            Ok(()) => answer(),
            Err(refusal) => too_often(&refusal),
        }
    }

    fn key(&self, inbound: &Inbound, nonce: u128) -> SseStreamKey {
        SseStreamKey { owner: inbound.caller.principal.clone(), upstream: Arc::clone(&self.sse.name), nonce }
    }
}

#[async_trait]
impl Endpoint for SseEndpoint {
    async fn serve(&self, inbound: Box<Inbound>) -> FaceResponse {
        match inbound.method {
            Method::GET => match self.sse.served.rates.admit(&inbound.counted_as(), 1) {
                Ok(()) => self.open(inbound),
                Err(refusal) => too_often(&refusal),
            },
            Method::POST => self.take(inbound).await,
            _ => not_allowed("GET, POST"),
        }
    }

    fn withheld_by(&self, caller: &Caller) -> Option<WithheldBy> {
        self.endpoint.withheld_by(caller)
    }

    fn upstreams(&self) -> Arc<Vec<Arc<str>>> {
        self.endpoint.upstreams()
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        self.endpoint.forwards(header)
    }

    fn exchanges_tokens(&self) -> bool {
        self.endpoint.exchanges_tokens()
    }

    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static("GET, POST")
    }
}

fn stream_named(query: Option<&str>) -> Option<&str> {
    query?.split('&').find_map(|member| member.strip_prefix(STREAM)?.strip_prefix('='))
}

fn not_allowed(allowed: &'static str) -> FaceResponse {
    let mut response = bare(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Dropping it, as its connection ends, releases its permit and closes its queue.
struct SseEventStream {
    messages: mpsc::Receiver<Bytes>,
    _permit: SseStreamPermit<mpsc::Sender<ClientMessage>>,
}

impl SseEventStream {
    const fn new(messages: mpsc::Receiver<Bytes>, permit: SseStreamPermit<mpsc::Sender<ClientMessage>>) -> Self {
        Self { messages, _permit: permit }
    }
}

impl CallMessages for SseEventStream {
    async fn next(&mut self) -> Option<CallMessage> {
        Some(CallMessage::event(self.messages.recv().await?))
    }
}

pub const STREAMS_MAX: usize = 4_096;

/// A message finds neither another principal's nor another upstream's stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SseStreamKey {
    owner: Principal,
    upstream: Arc<str>,
    /// 128 random bits.
    nonce: u128,
}

/// The open streams, within limits, with their owners and their inlets.
struct SseStreamTable<I> {
    open: Mutex<OpenSseStreams<I>>,
    limits: SharedLimits,
}

struct OpenSseStreams<I> {
    inlets: HashMap<SseStreamKey, I>,
    counts: PrincipalCounts,
}

impl<I> SseStreamTable<I> {
    fn new(limits: SharedLimits) -> Self {
        let open = OpenSseStreams { inlets: HashMap::new(), counts: PrincipalCounts::default() };
        Self { open: Mutex::new(open), limits }
    }
}

impl<I> fmt::Debug for SseStreamTable<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SseStreamTable").field("streams", &self.open.lock().inlets.len()).finish_non_exhaustive()
    }
}

impl<I: Clone> SseStreamTable<I> {
    /// Registers a stream within the principal's limit, then the total (SEC-11); else `TooManyListeners`.
    fn open(
        self: &Arc<Self>,
        key: SseStreamKey,
        counted_as: Principal,
        inlet: impl FnOnce() -> I,
    ) -> Result<SseStreamPermit<I>, GatewayFault> {
        let upstream = Arc::clone(&key.upstream);
        let own_max = PrincipalLimits::SSE_STREAMS.saturating_mul(self.limits.of(&counted_as).streams_max);
        let mut open = self.open.lock();
        if open.counts.of(&counted_as) >= own_max || open.counts.all() >= STREAMS_MAX {
            metrics::counter!(metric::SSE_STREAMS_REFUSED, "upstream" => upstream).increment(1);
            if open.counts.of(&counted_as) >= own_max {
                self.limits.refused(&counted_as, "streams_per_principal_max", &own_max);
            }
            return Err(GatewayFault::new(Reason::TooManyListeners, Executed::No));
        }
        open.counts.add(&counted_as);
        open.inlets.insert(key.clone(), inlet());
        metrics::gauge!(metric::SSE_STREAMS, "upstream" => upstream).increment(1.0);
        Ok(SseStreamPermit { table: Arc::clone(self), key, counted_as })
    }

    /// `None` unless the stream is open and this principal's.
    fn find(&self, key: &SseStreamKey) -> Option<I> {
        self.open.lock().inlets.get(key).cloned()
    }
}

/// Dropping it releases the permit and unregisters the stream.
#[must_use]
struct SseStreamPermit<I> {
    table: Arc<SseStreamTable<I>>,
    key: SseStreamKey,
    counted_as: Principal,
}

impl<I> Drop for SseStreamPermit<I> {
    fn drop(&mut self) {
        metrics::gauge!(metric::SSE_STREAMS, "upstream" => Arc::clone(&self.key.upstream)).decrement(1.0);
        let mut open = self.table.open.lock();
        let inlet = open.inlets.remove(&self.key);
        open.counts.remove(&self.counted_as);
        drop(open);
        // Outside the lock: its drop may run any code.
        drop(inlet);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::time::Instant;

    use super::*;
    use crate::face::call_stream::LIFE_SIGN as SIGN;
    use crate::face::http::ResponseBody;
    use crate::task::Principal;

    fn open() -> (mpsc::Sender<Bytes>, ResponseBody) {
        let key = SseStreamKey { owner: Principal::local(), upstream: Arc::from("up"), nonce: 1 };
        let table = Arc::new(SseStreamTable::new(SharedLimits::default()));
        let permit = table.open(key, Principal::local(), || mpsc::channel(1).0).unwrap();
        let (sender, messages) = mpsc::channel(4);
        let first = Some(Bytes::from_static(b"address").into());
        (sender, stream(SseEventStream::new(messages, permit), addressee(None, AcceptedTypes::EventStream), first))
    }

    async fn next(body: &mut ResponseBody) -> Option<Bytes> {
        Some(body.frame().await?.unwrap().into_data().unwrap().into_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn a_comment_stands_where_nothing_was_said_for_long() {
        let (sender, mut body) = open();
        assert_eq!(next(&mut body).await.unwrap(), "address");
        let began = Instant::now();
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert_eq!(began.elapsed(), SIGN);
        tokio::time::sleep(SIGN / 2).await;
        sender.send(Bytes::from_static(b"{}")).await.unwrap();
        assert_eq!(next(&mut body).await.unwrap(), "event: message\ndata: {}\n\n");
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert_eq!(began.elapsed(), SIGN * 5 / 2, "counted from the message");
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_once_all_that_was_said_is_written() {
        let (sender, mut body) = open();
        sender.send(Bytes::from_static(b"1")).await.unwrap();
        sender.send(Bytes::from_static(b"2")).await.unwrap();
        drop(sender);
        let mut written = Vec::new();
        while let Some(bytes) = next(&mut body).await {
            written.push(bytes);
        }
        assert_eq!(written.len(), 3, "{written:?}");
    }

    fn key(owner: &str, nonce: u128) -> SseStreamKey {
        SseStreamKey { owner: Principal::new(owner), upstream: Arc::from("reports"), nonce }
    }

    #[test]
    fn sec_02_a_stream_is_found_by_its_owner_at_its_upstream_while_it_is_open() {
        let table = Arc::new(SseStreamTable::<u8>::new(SharedLimits::default()));
        let permit = table.open(key("key:ada", 7), Principal::new("key:ada"), || 1).unwrap();
        assert_eq!(table.find(&key("key:ada", 7)), Some(1));
        let elsewhere = SseStreamKey { upstream: Arc::from("letters"), ..key("key:ada", 7) };
        for foreign in [key("key:bob", 7), key("key:ada", 8), elsewhere] {
            assert_eq!(table.find(&foreign), None, "{foreign:?}");
        }
        drop(permit);
        assert_eq!(table.find(&key("key:ada", 7)), None);
    }

    #[test]
    fn a_principal_meets_its_own_bound_and_all_meet_theirs() {
        let table = Arc::new(SseStreamTable::<()>::new(SharedLimits::default()));
        let of_each = PrincipalLimits::SSE_STREAMS * PrincipalLimits::default().streams_max;
        let owners = STREAMS_MAX / of_each;
        let keys =
            (0..owners).flat_map(|owner| (0..of_each).map(move |nonce| key(&format!("key:{owner}"), nonce as u128)));
        let open = |key: SseStreamKey| table.open(key.clone(), key.owner, || ());
        let mut permits: Vec<_> = keys.map(|key| open(key).unwrap()).collect();
        let refused = |owner: &str| open(key(owner, u128::MAX)).map(drop).unwrap_err().reason;
        assert_eq!((permits.len(), refused("key:another")), (STREAMS_MAX, Reason::TooManyListeners));
        permits.pop();
        assert_eq!(refused("key:0"), Reason::TooManyListeners, "its own bound");
        drop(open(key("key:another", 1)).unwrap());
        permits.clear();
        let open = table.open.lock();
        assert!(open.counts.is_empty() && open.inlets.is_empty());
    }
}
