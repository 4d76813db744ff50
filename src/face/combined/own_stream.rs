//! Forwards upstreams' streams to their endpoint's client, and merges the sessions' own streams.

use std::collections::{HashSet, VecDeque};
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::{HeaderValue, Method, StatusCode};
use hyper::body::{Body, Frame};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::CombinedUpstreams;
use super::admission::{AnswerScope, ServerVoice};
use super::member_answer::MemberRefusal;
use super::member_request::EndpointClient;
use super::member_session::CombinedSession;
use super::messages::{MarkedEvent, RequestMark, SentRequests as _};
use crate::dialect::faults::gateway_error;
use crate::dialect::subscriptions::{ListKind, untagged_notification};
use crate::face::answer::{Addressee, addressee, bare, event_stream, too_many};
use crate::face::call_stream::{CallMessage, CallMessages, stream};
use crate::face::headers;
pub(super) use crate::face::http::is_event_stream;
use crate::face::http::{
    AcceptedTypes, Endpoint as _, FaceResponse, Inbound, MessageChannel, ResponseBody, is_passing,
};
use crate::task::Reason;
use crate::upstream::answer_body::BodyBreakError;
use crate::upstream::body::{GatedBody, GatedPart};
use crate::upstream::reply::{BodyReadError, EventStream, ReadLimits};
use crate::wire::envelope;
use crate::wire::framing::{BodyPart, EventGate, HoldPolicy, PrimerPolicy, SseDecoder, StreamEvent};

/// The first and the longest pause before an ended stream is reopened.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The interval of attempts at upstreams that refused a session, while a client listens.
const RETRY_EVERY: Duration = Duration::from_secs(30);

pub(super) async fn shown(answer: FaceResponse, voice: ServerVoice, addressee: &Addressee) -> FaceResponse {
    let limits = voice.upstreams.read_limits(voice.at, &voice.principal).with_envelope();
    match is_event_stream(&answer) {
        true => answer.map(|source| ResponseBody::new(ShownEvents::new(source, voice, limits))),
        false => voice.admit_answer(answer, addressee).await,
    }
}

/// Marks event ids and questions. Each event is held whole and counted, as the upstream's stream may forward in pieces.
struct ShownEvents {
    source: GatedBody<ResponseBody>,
    decoder: SseDecoder,
    limits: ReadLimits,
    voice: ServerVoice,
    mark: Option<RequestMark>,
    ready: VecDeque<BodyPart>,
    is_over: bool,
}

impl ShownEvents {
    fn new(source: ResponseBody, voice: ServerVoice, limits: ReadLimits) -> Self {
        let gate = EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, limits.bytes_max);
        let source = GatedBody::new(source, gate).within(limits.share.clone());
        let decoder = SseDecoder::new(limits.bytes_max);
        Self { source, decoder, limits, voice, mark: None, ready: VecDeque::new(), is_over: false }
    }

    fn take(&mut self, part: BodyPart) -> io::Result<()> {
        if part.is_comment() && self.decoder.is_between_events() {
            self.ready.push_back(part);
            return Ok(());
        }
        let is_copied = matches!(part, BodyPart::Bytes(_));
        for mut event in self.decoder.take(&part).map_err(io::Error::other)? {
            event.id = event.id.and_then(|id| self.event_id(&id));
            // Some clients handle an event of any name as a message.
            if !event.data.is_empty() {
                // Before the edit, which passes these bytes on to its copy.
                let data = if is_copied { event.data.held_by(|text| self.limits.rehold(text)) } else { event.data };
                let Some(data) = self.voice.admit(data) else { continue };
                event.data = data;
            }
            self.ready.push_back(BodyPart::Event(StreamEvent::of(event)));
        }
        Ok(())
    }

    /// Ends the stream. If an answer found no room, the client gets that error.
    fn fail(&mut self, error: io::Error) -> io::Result<()> {
        self.is_over = true;
        let (fault, id) = BodyBreakError::known_in(&error).zip(self.voice.asked()).ok_or(error)?;
        self.ready.push_back(BodyPart::message(envelope::error(Some(id), &gateway_error(&fault))));
        Ok(())
    }

    fn event_id(&mut self, id: &str) -> Option<String> {
        self.mark = self.mark.take().or_else(|| self.voice.request.mark());
        Some(MarkedEvent::Answer(self.mark.clone()?, id).event_id(self.voice.upstream()))
    }
}

impl Body for ShownEvents {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        let this = self.get_mut();
        loop {
            if let Some(part) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
            if this.is_over {
                return Poll::Ready(None);
            }
            let taken = match ready!(this.source.poll_next(cx)) {
                Some(Ok(GatedPart::Through(part) | GatedPart::Event(part))) => this.take(part),
                Some(Err(error)) => this.fail(error),
                None => return Poll::Ready(None),
            };
            if let Err(error) = taken {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

/// Opens the session's own stream, which merges all upstreams with a session, now or later; or resumes that of one.
pub(super) async fn open(
    upstreams: &Arc<CombinedUpstreams>,
    client: EndpointClient,
    session: Arc<CombinedSession>,
    inbound: &Inbound,
) -> FaceResponse {
    let last = inbound.headers.get(headers::LAST_EVENT_ID).map(|last| {
        let (upstream, id) = MarkedEvent::read(last.to_str().ok()?)?;
        Some((upstreams.position(upstream, &inbound.caller)?, id))
    });
    if matches!(last, Some(None)) {
        // Not 404, which means that the session has ended.
        return bare(StatusCode::BAD_REQUEST);
    }
    let permit = match inbound.is_counted || inbound.carriage == MessageChannel::Stream {
        true => None,
        false => match upstreams.common().listeners.take(&inbound.counted_as(), &upstreams.settings.path) {
            Ok(permit) => Some(permit),
            Err(fault) if fault.reason == Reason::Draining => return bare(StatusCode::SERVICE_UNAVAILABLE),
            Err(fault) => return too_many(&fault),
        },
    };
    let response = match last.flatten() {
        Some((at, MarkedEvent::Answer(mark, id))) => {
            let refused = |refusal: MemberRefusal| refusal.into_response(&addressee(None, AcceptedTypes::Both));
            let answer = reopened(&client, at, Some(id)).await.unwrap_or_else(refused);
            if answer.status() == StatusCode::NOT_FOUND {
                // The 404 concerns the session at this upstream; the client's session continues.
                return bare(StatusCode::BAD_REQUEST);
            }
            let voice = client.voice(at, AnswerScope::Resumed(mark));
            shown(answer, voice, &addressee(None, AcceptedTypes::Both)).await
        }
        Some((at, MarkedEvent::Own(id))) => {
            event_stream(MergedStream::begin(client, session, Some((at, id.to_owned()))))
        }
        None => event_stream(MergedStream::begin(client, session, None)),
    };
    if let Some(permit) = permit { response.map(|body| permit.keep(body)) } else { response }
}

async fn reopened(client: &EndpointClient, at: usize, last_event: Option<&str>) -> Result<FaceResponse, MemberRefusal> {
    let inbound = client.inbound(at, bytes::Bytes::new()).await?;
    let mut inbound = Inbound { method: Method::GET, accepted: AcceptedTypes::EventStream, ..inbound };
    inbound.headers.remove(headers::LAST_EVENT_ID);
    // An empty id is no position.
    if let Some(id) = last_event.filter(|id| !id.is_empty()).and_then(|id| HeaderValue::from_str(id).ok()) {
        inbound.headers.insert(headers::LAST_EVENT_ID, id);
    }
    Ok(client.upstreams.members[at].endpoint.serve(Box::new(inbound)).await)
}

struct MemberStream {
    at: usize,
    voice: ServerVoice,
    last_event: Option<String>,
    pause: Duration,
    events: EventStream<ResponseBody>,
}

enum MemberNews {
    Said(Box<MemberStream>, BodyPart),
    /// `pause` is the delay before the stream is reopened, if it can be, after `last_event`.
    Over {
        at: usize,
        last_event: Option<String>,
        pause: Option<Duration>,
    },
    /// The session `asked` has ended, or none could be opened: the stream of the next one is read once that is open.
    SessionOver {
        at: usize,
        asked: Option<HeaderValue>,
    },
    Retried,
}

/// Polls the upstreams only while its client reads.
struct MergedStream {
    client: EndpointClient,
    session: Arc<CombinedSession>,
    openings: watch::Receiver<()>,
    /// The upstreams with a stream that is read, or about to be.
    read: HashSet<usize>,
    waiting: FuturesUnordered<BoxFuture<'static, MemberNews>>,
    due: VecDeque<BodyPart>,
    retry_at: Instant,
}

impl MergedStream {
    fn begin(client: EndpointClient, session: Arc<CombinedSession>, resumed: Option<(usize, String)>) -> ResponseBody {
        let mut merged = Self {
            client,
            openings: session.opened.subscribe(),
            session,
            read: HashSet::new(),
            waiting: FuturesUnordered::new(),
            due: VecDeque::new(),
            retry_at: Instant::now() + RETRY_EVERY,
        };
        if let Some((at, id)) = resumed {
            merged.read(at, Some(id), Duration::ZERO, PAUSE_MIN);
        }
        if !merged.session.is_begun_here.load(Ordering::Relaxed) {
            let all: Vec<usize> = merged.client.upstreams.members_for(merged.client.caller()).collect();
            all.into_iter().for_each(|at| merged.read(at, None, Duration::ZERO, PAUSE_MIN));
        }
        merged.read_all_open();
        stream(merged, addressee(None, AcceptedTypes::Both), None)
    }

    /// Also notifies the client if a missing upstream has become available.
    fn read_all_open(&mut self) {
        for (upstream, _) in self.session.open_members() {
            if let Some(at) = self.client.upstreams.position(&upstream, self.client.caller()) {
                self.read(at, None, Duration::ZERO, PAUSE_MIN);
            }
        }
        if self.session.take_became_available() {
            let changed = ListKind::ALL.into_iter().map(|list| untagged_notification(list.notification(), None));
            self.due.extend(changed.map(BodyPart::message));
        }
    }

    fn read(&mut self, at: usize, last_event: Option<String>, wait: Duration, pause: Duration) {
        if !self.read.insert(at) {
            return;
        }
        let (client, session) = (self.client.clone(), Arc::clone(&self.session));
        let opening = async move {
            let upstreams = &client.upstreams;
            if !wait.is_zero() {
                sleep(wait).await;
            }
            let asked = session.open_member(&upstreams.settings.upstreams[at]);
            let Ok(answer) = reopened(&client, at, last_event.as_deref()).await else {
                return MemberNews::SessionOver { at, asked: None };
            };
            if is_event_stream(&answer) {
                let events = EventStream::new(answer.into_body(), upstreams.read_limits(at, client.principal()));
                let stream = MemberStream { at, voice: client.voice(at, AnswerScope::None), last_event, pause, events };
                return stream.next(upstreams).await;
            }
            match answer.status() {
                StatusCode::NOT_FOUND => MemberNews::SessionOver { at, asked },
                // A server without such a stream never gets one.
                StatusCode::METHOD_NOT_ALLOWED => MemberNews::Over { at, last_event: None, pause: None },
                status => {
                    let last_event = last_event.filter(|_| is_passing(status));
                    MemberNews::Over { at, last_event, pause: Some(pause) }
                }
            }
        };
        self.waiting.push(opening.boxed());
    }

    fn receive(&mut self, news: MemberNews) {
        match news {
            MemberNews::Said(member, part) => {
                self.due.push_back(part);
                let upstreams = Arc::clone(&self.client.upstreams);
                self.waiting.push(async move { member.next(&upstreams).await }.boxed());
            }
            MemberNews::Over { at, last_event, pause: Some(pause) } => {
                self.read.remove(&at);
                self.read(at, last_event, pause, PAUSE_MAX.min(pause * 2));
            }
            MemberNews::SessionOver { at, asked } => {
                self.read.remove(&at);
                let open = self.session.open_member(&self.client.upstreams.settings.upstreams[at]);
                // A new session may have been opened since the request.
                if open.is_some() && open != asked {
                    self.read(at, None, Duration::ZERO, PAUSE_MIN);
                }
            }
            // The upstream stays in `read`, so it is not requested again.
            MemberNews::Over { pause: None, .. } | MemberNews::Retried => (),
        }
    }

    fn retry(&mut self) {
        let refused = self.session.refused_members();
        self.retry_at = Instant::now() + RETRY_EVERY;
        if refused.is_empty() {
            return;
        }
        let client = self.client.clone();
        let retrying = async move {
            for at in refused.iter().filter_map(|upstream| client.upstreams.position(upstream, client.caller())) {
                let _ = client.opened(at).await;
            }
            MemberNews::Retried
        };
        self.waiting.push(retrying.boxed());
    }
}

impl MemberStream {
    async fn next(mut self, upstreams: &CombinedUpstreams) -> MemberNews {
        loop {
            let mut event = match self.events.next().await {
                Ok(Some(event)) => event,
                Err(BodyReadError::TooLarge) => {
                    return MemberNews::Over { at: self.at, last_event: None, pause: Some(PAUSE_MAX) };
                }
                Ok(None) | Err(_) => {
                    return MemberNews::Over { at: self.at, last_event: self.last_event, pause: Some(self.pause) };
                }
            };
            self.last_event = event.id.clone().or(self.last_event);
            // A stream with an event is healthy.
            self.pause = PAUSE_MIN;
            event.id = event.id.map(|id| MarkedEvent::Own(&id).event_id(&upstreams.settings.upstreams[self.at]));
            event.retry_ms = None;
            let data = Some(event.data).filter(|data| !data.is_empty()).and_then(|data| self.voice.admit(data));
            if let Some(data) = data {
                event.data = data;
                return MemberNews::Said(Box::new(self), BodyPart::Event(StreamEvent::of(event)));
            }
        }
    }
}

impl CallMessages for MergedStream {
    async fn next(&mut self) -> Option<CallMessage> {
        loop {
            if let Some(part) = self.due.pop_front() {
                return Some(CallMessage::Event(part));
            }
            tokio::select! {
                biased;
                () = self.client.upstreams.streams_end.cancelled() => return None,
                () = self.session.ended.cancelled() => return None,
                Some(news) = self.waiting.next(), if !self.waiting.is_empty() => self.receive(news),
                opened = self.openings.changed() => match opened {
                    Ok(()) => self.read_all_open(),
                    Err(_) => pending::<()>().await,
                },
                () = sleep_until(self.retry_at) => self.retry(),
            }
        }
    }
}
