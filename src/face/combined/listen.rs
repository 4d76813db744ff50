//! Serves `subscriptions/listen` for several upstreams: merges their streams into one. Each upstream gets the request
//! under the client's id. If one is unavailable or ends its stream, the request is repeated, and the client is notified
//! that all its subscriptions changed: notifications may have been missed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::StatusCode;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::admission::{AnswerScope, ServerVoice};
use super::member_answer::{MemberRefusal, read_result};
use super::member_request::EndpointClient;
use super::messages::kept_params;
use super::own_stream::is_event_stream;
use super::routing::RequestTarget;
use super::{ANSWER_MAX, CombinedUpstreams};
use crate::dialect::lifecycle::own_identity;
use crate::dialect::subscriptions::{Subscription, SubscriptionFilter, known_part};
use crate::face::answer::{Addressee, UnknownTaskMarker, bare, event_stream, missed};
use crate::face::call_stream::{CallMessage, CallMessages, stream};
use crate::face::http::{FaceResponse, Inbound, ResponseBody};
use crate::face::listen_permits::ListenPermit;
use crate::task::Reason;
use crate::upstream::reply::EventStream;
use crate::wire::envelope::{self, Params, Request};
use crate::wire::framing::BodyPart;
use crate::wire::{Message, Object, ScanLimits, method};

/// The first and the longest pause before an ended stream is reopened.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest pause after a refusal (U95): the next answer is rarely another one.
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(600);
/// The time of a client's request for all requests to one upstream.
const BEGINNING_MAX: Duration = Duration::from_secs(20);
/// A reopened stream that ends sooner without a notification has failed: no notice to the client, and a double pause.
const OPEN_MIN: Duration = Duration::from_secs(2);
const LAST_READ_MAX: Duration = Duration::from_secs(1);

struct MemberListen {
    at: usize,
    voice: ServerVoice,
    part: SubscriptionFilter,
    events: EventStream<ResponseBody>,
    has_missed: bool,
    pause: Duration,
    /// When it counts as reopened, if it does not yet.
    reopened_at: Option<Instant>,
}

enum ListenNews {
    Said(MemberListen, Bytes),
    Back(MemberListen, Option<Bytes>),
    Over { at: usize, part: SubscriptionFilter, pause: Duration },
}

/// The client's request, kept to reopen streams of upstreams that end.
#[derive(Clone)]
struct ListenRequest {
    client: EndpointClient,
    request: Arc<Request>,
}

impl ListenRequest {
    fn of(client: &EndpointClient, request: &Request) -> Self {
        let params = request.params.object().map(kept_params).and_then(|params| Object::of(&params));
        let params = params.map_or(Params::Absent, Params::Object);
        let request = Arc::new(Request { params, ..request.clone() });
        Self { client: client.without_metadata(), request }
    }

    /// Returns with the upstream's acknowledgement.
    async fn begin(
        &self,
        at: usize,
        part: &SubscriptionFilter,
    ) -> Result<(MemberListen, SubscriptionFilter), MemberRefusal> {
        let Some(params) = self.request.params.object() else { return Err(MemberRefusal::late()) };
        let params = params.edit().set("notifications", part.written()).finish();
        let beginning = async {
            let (client, request) = (self.client.clone(), Request::clone(&self.request));
            let answer = client.pass(at, request, Bytes::new(), Some(params)).await?;
            let limits = self.client.upstreams.read_limits(at, self.client.principal());
            if !is_event_stream(&answer) {
                return Err(read_result(answer, &limits).await.err().unwrap_or_else(MemberRefusal::malformed));
            }
            let has_missed = answer.extensions().get::<UnknownTaskMarker>().is_some();
            let events = EventStream::new(answer.into_body(), limits);
            let voice = self.client.voice(at, AnswerScope::of(&self.request));
            let part = part.clone();
            let mut member = MemberListen { at, voice, part, events, has_missed, pause: PAUSE_MIN, reopened_at: None };
            loop {
                let Some(text) = member.text().await else { return Err(MemberRefusal::fault(Reason::UpstreamClosed)) };
                if let Some(acknowledged) = acknowledged(&text) {
                    return acknowledged.map(|acknowledged| (member, acknowledged));
                }
            }
        };
        let begun = match part.concern_the_upstream() {
            true => self.client.upstreams.in_time(at, ANSWER_MAX, beginning).await,
            // The gateway itself answers this part: its delay shows no slow server.
            false => timeout(ANSWER_MAX, beginning).await.ok(),
        };
        begun.unwrap_or_else(|| Err(MemberRefusal::late()))
    }

    /// As [`Self::begin`], without the resources for which a server refuses the whole part.
    async fn begin_known(
        &self,
        at: usize,
        part: &SubscriptionFilter,
    ) -> Result<(MemberListen, SubscriptionFilter), MemberRefusal> {
        let search_end = Instant::now() + BEGINNING_MAX / 2;
        let refusal = match self.begin(at, part).await {
            Err(refusal) if refusal.may_name_resources() => refusal,
            begun => return begun,
        };
        let is_accepted = |some: SubscriptionFilter| async move {
            match self.begin(at, &some).await {
                Ok(_) => Ok(true),
                Err(refusal) if refusal.may_name_resources() => Ok(false),
                Err(refusal) => Err(refusal),
            }
        };
        match known_part(part, || Instant::now() >= search_end, is_accepted).await? {
            Some(known) => self.begin(at, &known).await,
            None => Err(refusal),
        }
    }

    /// Asks for the resources that the client may use now: a server refuses the whole part for one of the others.
    async fn again(self, at: usize, part: SubscriptionFilter, pause: Duration) -> ListenNews {
        sleep(pause).await;
        let allowed = self.allowed(at, &part);
        let again = if is_wanted(&allowed) { Some(Box::pin(self.begin_known(at, &allowed)).await) } else { None };
        match again {
            Some(Ok((member, _))) => {
                let (pause, reopened_at) = (PAUSE_MAX.min(pause * 2), Some(Instant::now() + OPEN_MIN));
                MemberListen { part, pause, reopened_at, ..member }.next().await
            }
            Some(Err(refusal)) if refusal.may_be_known_elsewhere() => {
                ListenNews::Over { at, part, pause: REFUSED_PAUSE_MAX.min(pause * 2) }
            }
            Some(Err(_)) | None => ListenNews::Over { at, part, pause: PAUSE_MAX.min(pause * 2) },
        }
    }

    fn allowed(&self, at: usize, part: &SubscriptionFilter) -> SubscriptionFilter {
        let (mut allowed, served) = (part.clone(), &self.client.upstreams.members[at].served);
        allowed.resources = allowed.resources.map(|all| served.visible(self.client.caller(), all));
        allowed
    }
}

impl MemberListen {
    async fn text(&mut self) -> Option<Bytes> {
        loop {
            let event = self.events.next().await.ok()??;
            let message = Some(event).filter(|event| event.is_message() && !event.data.is_empty());
            if let Some(admitted) = message.and_then(|event| self.voice.admit(event.data)) {
                return Some(admitted.into_bytes());
            }
        }
    }

    async fn next(mut self) -> ListenNews {
        loop {
            let text = match self.reopened_at {
                Some(reopened_at) => match timeout_at(reopened_at, self.text()).await {
                    Ok(text) => text,
                    Err(_) => return self.back(None),
                },
                None => self.text().await,
            };
            match text {
                Some(text) if !is_news(&text) => (),
                Some(text) if self.reopened_at.is_some() => return self.back(Some(text)),
                Some(text) => return ListenNews::Said(self, text),
                // The response ends the upstream's stream, not the client's.
                None => return ListenNews::Over { at: self.at, part: self.part, pause: self.pause },
            }
        }
    }

    fn back(self, first: Option<Bytes>) -> ListenNews {
        ListenNews::Back(Self { pause: PAUSE_MIN, reopened_at: None, ..self }, first)
    }
}

/// The granted part, or the fault in a response that came in place of the acknowledgement.
fn acknowledged(text: &Bytes) -> Option<Result<SubscriptionFilter, MemberRefusal>> {
    match envelope::read(text, ScanLimits::UPSTREAM).ok()? {
        Message::Notification(notification) if notification.method == method::LISTEN_ACKNOWLEDGED => {
            SubscriptionFilter::read(notification.params.object()?).ok().map(Ok)
        }
        Message::Response(response) => {
            Some(Err(response.into_outcome().map_or_else(MemberRefusal::of_error, |_| MemberRefusal::malformed())))
        }
        Message::Notification(_) | Message::Request(_) => None,
    }
}

fn is_news(text: &Bytes) -> bool {
    matches!(
        envelope::read(text, ScanLimits::UPSTREAM),
        Ok(Message::Notification(notification)) if notification.method != method::LISTEN_ACKNOWLEDGED
    )
}

fn is_wanted(part: &SubscriptionFilter) -> bool {
    part.concern_the_upstream() || part.tasks.is_some()
}

impl CombinedUpstreams {
    pub(super) async fn listen(
        &self,
        client: &EndpointClient,
        inbound: &Inbound,
        request: &Request,
        addressee: &Addressee,
    ) -> FaceResponse {
        if !inbound.accepted.takes_stream() {
            return addressee.needs_stream();
        }
        let empty = Object::of(&crate::wire::Payload::empty_object());
        let requested = match request.params.object().or(empty.as_ref()).map(SubscriptionFilter::read) {
            Some(Ok(requested)) => requested,
            Some(Err(complaint)) => return addressee.complaint(&complaint),
            None => return bare(StatusCode::BAD_REQUEST),
        };
        let listeners = &self.common().listeners;
        let permit = match listeners.take(&inbound.counted_as(), &self.settings.path) {
            Ok(permit) => permit,
            Err(fault) => return addressee.fault(&fault),
        };
        let parts = self.parts(client, requested).await;
        let asked = ListenRequest::of(client, request);
        let beginnings = parts.into_iter().map(|(at, part)| {
            let allowed = Some(asked.allowed(at, &part)).filter(is_wanted);
            let asked = &asked;
            // A part that has withheld resources alone is sent as it is: the upstream's own rules refuse it (B249).
            async move {
                let beginning = asked.begin_known(at, allowed.as_ref().unwrap_or(&part));
                let begun = timeout(BEGINNING_MAX, Box::pin(beginning)).await;
                (at, begun.unwrap_or_else(|_| Err(MemberRefusal::late())), part)
            }
        });
        let subscription = Subscription::new(request.id.clone());
        let waiting = FuturesUnordered::new();
        let (mut granted, mut refused, mut begun) = (SubscriptionFilter::default(), None, 0);
        let mut has_missed = false;
        for (at, beginning, part) in join_all(beginnings).await {
            match beginning {
                Ok((member, acknowledged)) => {
                    begun += 1;
                    has_missed |= member.has_missed;
                    granted.extend(&acknowledged);
                    granted.tasks = granted.tasks.take().or(acknowledged.tasks);
                    waiting.push(MemberListen { part, ..member }.next().boxed());
                }
                // Task subscriptions do not depend on a server.
                Err(refusal) if part.tasks.is_some() => return refusal.into_response(addressee),
                Err(refusal) => {
                    if !refusal.needs_scopes() && !refusal.may_be_known_elsewhere() {
                        self.note_absence(client, at, &refusal.message());
                    }
                    refused = refused.or(Some(refusal));
                    waiting.push(asked.clone().again(at, part, PAUSE_MIN).boxed());
                }
            }
        }
        if let (0, Some(refusal)) = (begun, refused) {
            return refusal.into_response(addressee);
        }
        let due = VecDeque::from([subscription.acknowledged(&granted)]);
        let merged = MergedListen { asked, subscription, waiting, due, has_ended: false, _permit: permit };
        let response = event_stream(stream(merged, addressee.clone(), None));
        if has_missed { missed(response) } else { response }
    }

    /// Tasks are the gateway's: any upstream's endpoint reports them, in a separate stream: servers may be unavailable.
    async fn parts(&self, client: &EndpointClient, requested: SubscriptionFilter) -> Vec<(usize, SubscriptionFilter)> {
        let lists = SubscriptionFilter { lists: requested.lists, ..SubscriptionFilter::default() };
        let mut parts = vec![lists; self.members.len()];
        for uri in requested.resources.into_iter().flatten() {
            let asked = match self.at_address(client, &uri).await {
                RequestTarget::Member(at, _) => vec![at],
                // The owner is unknown; each of these may report the resource.
                RequestTarget::Unlisted(some) => some,
                RequestTarget::List(_) | RequestTarget::OwnTool(_) => vec![self.any_open(client)],
            };
            for at in asked {
                parts[at].resources.get_or_insert_default().insert(uri.clone());
            }
        }
        let tasks = SubscriptionFilter { tasks: requested.tasks, ..SubscriptionFilter::default() };
        let parts = parts.into_iter().enumerate().chain([(self.any_open(client), tasks)]);
        parts.filter(|(at, part)| self.is_for(*at, client.caller()) && is_wanted(part)).collect()
    }
}

/// Polls the upstreams only while its client reads.
struct MergedListen {
    asked: ListenRequest,
    subscription: Subscription,
    waiting: FuturesUnordered<BoxFuture<'static, ListenNews>>,
    due: VecDeque<Bytes>,
    has_ended: bool,
    _permit: ListenPermit,
}

impl MergedListen {
    /// Reads the last outcomes of tasks, after which the members' streams end in a drain. Cancel safe.
    async fn read_last(&mut self) {
        while let Some(news) = self.waiting.next().await {
            if !matches!(news, ListenNews::Over { .. }) {
                self.take(news);
            }
        }
    }

    fn take(&mut self, news: ListenNews) {
        match news {
            ListenNews::Said(member, text) => {
                self.due.push_back(text);
                self.waiting.push(member.next().boxed());
            }
            ListenNews::Back(member, first) => {
                let allowed = self.asked.allowed(member.at, &member.part);
                self.due.extend(self.subscription.anything(&allowed).chain(first));
                self.waiting.push(member.next().boxed());
            }
            ListenNews::Over { at, part, pause } => {
                self.waiting.push(self.asked.clone().again(at, part, pause).boxed());
            }
        }
    }
}

impl CallMessages for MergedListen {
    async fn next(&mut self) -> Option<CallMessage> {
        loop {
            if let Some(message) = self.due.pop_front() {
                return Some(CallMessage::Event(BodyPart::message(message)));
            }
            if self.has_ended {
                return None;
            }
            tokio::select! {
                biased;
                () = self.asked.client.upstreams.listens_end.cancelled() => {
                    let _ = timeout(LAST_READ_MAX, self.read_last()).await;
                    self.has_ended = true;
                    self.due.push_back(self.subscription.ended(&own_identity()));
                }
                Some(news) = self.waiting.next(), if !self.waiting.is_empty() => self.take(news),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::body::Body as _;

    use super::*;
    use crate::face::answer::addressee;
    use crate::face::http::AcceptedTypes;
    use crate::wire::{RequestId, RpcError};

    /// B190: it waits for the other upstreams, and holds no bytes of the answer budget.
    #[test]
    fn b190_a_large_error_in_place_of_an_acknowledgement_is_cut() {
        let error = RpcError::new(-32_077, "x".repeat(2 * RpcError::BYTES_MAX));
        let text = envelope::error(Some(&RequestId::number(1)), &error);
        let Some(Err(refusal)) = acknowledged(&text) else { panic!("no refusal") };
        let answer = refusal.into_response(&addressee(None, AcceptedTypes::Json));
        let bytes = answer.body().size_hint().exact().unwrap();
        assert!((1..RpcError::BYTES_MAX as u64).contains(&bytes), "{bytes}");
    }
}
