//! Serves several upstreams at one path as one server. Each message goes to its upstream's endpoint in this process,
//! with its rules, limits and names. `routing` selects it, `names` and `messages` edit names, and `lists`, `merge`,
//! `listen` and `own_stream` merge responses.

mod admission;
mod listen;
mod lists;
mod member_answer;
mod member_request;
mod member_session;
mod merge;
mod messages;
mod names;
mod own_stream;
mod routing;
mod session;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::{HeaderName, HeaderValue};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::admission::AnswerScope;
use self::member_answer::MemberRefusal;
use self::member_request::EndpointClient;
use self::routing::RequestTarget;
use super::array_answer::ArrayItems;
use super::endpoint::UpstreamEndpoint;
use super::http::{Endpoint, FaceResponse, Inbound, MessageChannel, ending_with};
use super::intake::{PathContext, PathFaces};
use super::rates::UnknownTaskWatch;
use super::served::Served;
use super::{affinity, session as session_face};
use crate::dialect::RequestError;
use crate::dialect::fallback_tools::FallbackTools;
use crate::dialect::lifecycle::{completed_result, discover_result, own_identity};
use crate::dialect::negotiate::StatelessRequest;
use crate::face::answer::{Addressee, stateless_addressee};
use crate::face::catalog::CircularLists;
use crate::face::headers;
use crate::line_budget::LogLimit;
use crate::metric;
use crate::task::{Caller, Principal, WithheldBy};
use crate::upstream::reply::ReadLimits;
use crate::wire::envelope::Request;
use crate::wire::list_pages::sent_cursor;
use crate::wire::{Message, ProtocolVersion, RequestId, method, one_line};
use admission::REFUSALS_MAX;
use lists::ListOwners;
pub use member_session::CombinedSessions;
use merge::ServerDescription;
pub use names::{PrefixPolicy, prefixes_clash};

/// How long a description is valid for clients without sessions: another server with more capabilities may replace this one.
const DESCRIPTION_FRESH_FOR: Duration = Duration::from_secs(60);
/// The time for a list; then the upstream counts as unavailable.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The time for a handshake: clients wait 10 s for `server/discover`, then assume an endpoint with sessions.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// The time for an upstream that was late `LATE_TIMES_MIN` times in a row, so that it does not delay each list. Once is not
/// enough: a program is slow at its start.
const LATE_ANSWER_MAX: Duration = Duration::from_secs(1);
const LATE_TIMES_MIN: u32 = 2;
const ENDS_AT_ONCE: usize = 64;
/// After this time one request waits longer again.
const LATE_FOR: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CombinedSettings {
    pub path: Arc<str>,
    pub sse_path: String,
    /// The upstreams' names; the first wins if two offer the same item. Never empty, and without duplicates.
    pub upstreams: Vec<Arc<str>>,
    pub prefix: PrefixPolicy,
}

#[derive(Clone, Debug)]
pub struct EndpointMember {
    pub served: Arc<Served>,
    pub endpoint: Arc<UpstreamEndpoint>,
}

struct KnownMember {
    served: Arc<Served>,
    endpoint: Arc<UpstreamEndpoint>,
    offers_fallback: bool,
    /// The server's last description and its time, unless clients get different ones.
    description: RwLock<Option<(Arc<ServerDescription>, Instant)>>,
    circular: CircularLists,
    outage_log: LogLimit,
    dropped_logged: LogLimit,
    late: Mutex<Option<LateAnswers>>,
}

impl KnownMember {
    fn last_description(&self) -> Option<Arc<ServerDescription>> {
        self.description.read().as_ref().map(|(description, _)| Arc::clone(description))
    }

    /// Whether the server certainly does not declare this capability. A session keeps the description from its beginning.
    fn lacks(&self, capability: &str, client: &EndpointClient) -> bool {
        let description = if client.session.is_some() { self.last_description() } else { self.fresh_description() };
        description.is_some_and(|description| !description.has(capability))
    }

    fn fresh_description(&self) -> Option<Arc<ServerDescription>> {
        let description = self.description.read();
        let (description, _) = description.as_ref().filter(|(_, since)| since.elapsed() < DESCRIPTION_FRESH_FOR)?;
        Some(Arc::clone(description))
    }
}

#[derive(Clone, Copy)]
struct LateAnswers {
    times: u32,
    last: Instant,
}

pub struct CombinedEndpoint(Arc<CombinedUpstreams>);

struct CombinedUpstreams {
    settings: CombinedSettings,
    upstreams: Arc<Vec<Arc<str>>>,
    members: Vec<KnownMember>,
    sessions: Arc<CombinedSessions>,
    owners: ListOwners,
    misses: UnknownTaskWatch,
    /// Bounds the gateway's error responses to servers.
    refusals: Arc<Semaphore>,
    result_bytes_max: usize,
    /// Ends streams once another endpoint serves the path, or in a drain.
    streams_end: CancellationToken,
    /// As `streams_end`, for subscriptions: in a drain after the last call, since they may name tasks (F116).
    listens_end: CancellationToken,
}

impl CombinedEndpoint {
    /// `members`: at least one, in the order of the settings. `sessions` may come from an earlier endpoint of the path.
    pub fn new(
        settings: CombinedSettings,
        members: Vec<EndpointMember>,
        sessions: Arc<CombinedSessions>,
        streams_end: CancellationToken,
        listens_end: CancellationToken,
    ) -> Self {
        let known = |EndpointMember { served, endpoint }| KnownMember {
            offers_fallback: served.settings.rules.any_falls_back_to_tools(),
            served,
            endpoint,
            description: RwLock::default(),
            circular: CircularLists::default(),
            outage_log: LogLimit::default(),
            dropped_logged: LogLimit::default(),
            late: Mutex::default(),
        };
        let members: Vec<KnownMember> = members.into_iter().map(known).collect();
        let results = members.iter().map(|member| member.served.settings.result_bytes_max);
        let result_bytes_max = results.max().unwrap_or_default();
        let upstreams = Arc::new(members.iter().map(|member| Arc::clone(member.served.upstream.name())).collect());
        Self(Arc::new(CombinedUpstreams {
            settings,
            upstreams,
            members,
            sessions,
            owners: ListOwners::new(),
            misses: UnknownTaskWatch::default(),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            result_bytes_max,
            streams_end,
            listens_end,
        }))
    }

    pub fn is_made_of(&self, settings: &CombinedSettings, members: &[EndpointMember]) -> bool {
        let known = &self.0.members;
        let is_same = |(known, other): (&KnownMember, &EndpointMember)| Arc::ptr_eq(&known.endpoint, &other.endpoint);
        self.0.settings == *settings && known.len() == members.len() && known.iter().zip(members).all(is_same)
    }

    /// The `Served` for clients of the 2024-11-05 transport.
    pub fn any_served(&self) -> &Arc<Served> {
        &self.0.members[0].served
    }

    pub fn result_bytes_max(&self) -> usize {
        self.0.result_bytes_max
    }

    /// Ends the sessions of its clients at the upstreams: the next process does not know their ids (B257).
    pub async fn end_sessions(&self) {
        let sessions = stream::iter(self.0.sessions.known.by_nonce.values());
        sessions.for_each_concurrent(ENDS_AT_ONCE, |known| self.0.end_members(known)).await;
    }
}

impl CombinedUpstreams {
    /// The upstreams have the same clock, keys, rates and engine.
    fn common(&self) -> &Served {
        &self.members[0].served
    }

    fn read_limits(&self, at: usize, principal: &Principal) -> ReadLimits {
        let served = &self.members[at].served;
        ReadLimits::within(served.settings.result_bytes_max, served.engine.limits().answers_to(principal))
    }

    fn is_for(&self, at: usize, caller: &Caller) -> bool {
        self.members[at].endpoint.withheld_by(caller).is_none()
    }

    fn members_for(&self, caller: &Caller) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|at| self.is_for(*at, caller))
    }

    /// `None` also for an upstream that the caller may not use.
    fn position(&self, upstream: &str, caller: &Caller) -> Option<usize> {
        self.index(upstream).filter(|at| self.is_for(*at, caller))
    }

    fn index(&self, upstream: &str) -> Option<usize> {
        self.settings.upstreams.iter().position(|name| **name == *upstream)
    }

    /// Logs the absence, and marks it so that the client is notified once the upstream returns.
    fn note_absence(&self, client: &EndpointClient, at: usize, why: &str) {
        let (path, upstream) = (&self.settings.path, &self.settings.upstreams[at]);
        if let Some(session) = &client.session {
            session.miss(upstream);
        }
        metrics::counter!(metric::ENDPOINT_ABSENCES, "upstream" => Arc::clone(upstream)).increment(1);
        if self.members[at].outage_log.is_due() {
            let failing = self.members[at].served.channel.health().filter(|health| health.look().is_failing());
            let cause = failing.and_then(|health| Some(one_line::name(&health.last()?.cause)));
            tracing::warn!(endpoint = %path, %upstream, why, cause, "an upstream is unavailable: its tools, prompts and resources are missing at the endpoint");
        }
    }

    /// The last failure's cause, for local clients only: it may contain file names of this machine.
    fn cause_for(&self, client: &EndpointClient, at: usize) -> Option<String> {
        let health = self.members[at].served.channel.health().filter(|_| client.principal().is_local())?;
        health.look().is_failing().then(|| health.last()).flatten().map(|failure| one_line::name(&failure.cause))
    }

    /// Asks an upstream that failed last whether it is available again, before a call. Fails with the client's refusal.
    async fn check_available(&self, client: &EndpointClient, at: usize) -> Result<(), MemberRefusal> {
        if self.members[at].description.read().is_some() || self.cause_for(client, at).is_none() {
            return Ok(());
        }
        let refusal = match self.in_time(at, HANDSHAKE_MAX, self.fetch_description(client, at)).await {
            None | Some(Ok(_)) => return Ok(()),
            Some(Err(refusal)) => refusal.before_a_request(),
        };
        let name = &self.settings.upstreams[at];
        Err(match self.cause_for(client, at) {
            Some(cause) => refusal.with_message(&format!("The server {name} is not available: {cause}")),
            None => refusal,
        })
    }

    /// `None` after `limit`, or sooner if the upstream was late before.
    async fn in_time<T>(&self, at: usize, limit: Duration, asking: impl Future<Output = T>) -> Option<T> {
        let late = &self.members[at].late;
        let before = *late.lock();
        let is_late = before.is_some_and(|late| late.times >= LATE_TIMES_MIN && late.last.elapsed() < LATE_FOR);
        let answer = timeout(if is_late { LATE_ANSWER_MAX } else { limit }, asking).await.ok();
        match answer {
            Some(_) => *late.lock() = None,
            None if is_late => (),
            None => {
                let times = before.map_or(1, |late| late.times.saturating_add(1));
                *late.lock() = Some(LateAnswers { times, last: Instant::now() });
            }
        }
        answer
    }

    /// Caches an upstream's description, unless it may differ between users.
    fn cache_description(&self, at: usize, description: &Arc<ServerDescription>) {
        let member = &self.members[at];
        if !member.served.settings.forwarding.is_per_client() {
            *member.description.write() = Some((Arc::clone(description), Instant::now()));
        }
    }
}

debug_members!(CombinedEndpoint, |endpoint| settings: endpoint.0.settings);

#[async_trait]
impl Endpoint for CombinedEndpoint {
    async fn serve(&self, inbound: Box<Inbound>) -> FaceResponse {
        let holder = inbound.caller.clone();
        let response = affinity::answer(&self.0, inbound).await;
        ending_with(response, || self.withheld_from(&holder))
    }

    /// If no member is for the caller: scopes that open one, else the reason of the first one.
    fn withheld_by(&self, caller: &Caller) -> Option<WithheldBy> {
        let mut reasons = self.0.members.iter().map(|member| member.endpoint.withheld_by(caller));
        let first = reasons.next()??;
        reasons.try_fold(first, |known, reason| {
            reason.map(|reason| if matches!(reason, WithheldBy::Scopes(_)) { reason } else { known })
        })
    }

    /// Once it may use no upstream any more: the streams of each upstream end by themselves.
    fn withheld_from(&self, caller: &Caller) -> BoxFuture<'static, ()> {
        let upstreams = self.0.members.iter().map(|member| Arc::clone(member.served.upstream.name())).collect();
        self.0.common().engine.access().upstreams_lost(caller, upstreams).boxed()
    }

    fn upstreams(&self) -> Arc<Vec<Arc<str>>> {
        Arc::clone(&self.0.upstreams)
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        self.0.members.iter().any(|member| member.endpoint.forwards(header))
    }

    fn exchanges_tokens(&self) -> bool {
        self.0.members.iter().any(|member| member.endpoint.exchanges_tokens())
    }

    fn allow(&self) -> HeaderValue {
        session_face::ALLOWED
    }
}

impl PathFaces for Arc<CombinedUpstreams> {
    fn path(&self) -> PathContext<'_> {
        PathContext { served: self.common(), name: &self.settings.path, streams_end: &self.streams_end }
    }

    async fn stateless(&self, inbound: &Inbound, request: &Request) -> FaceResponse {
        Box::pin(self.serve_stateless(inbound, request.clone())).await
    }

    async fn post(&self, inbound: Box<Inbound>, message: Box<Message>) -> FaceResponse {
        Box::pin(self.post_in_session(inbound, message)).await
    }

    async fn post_batch(&self, inbound: &Inbound, items: ArrayItems) -> FaceResponse {
        match session_face::refusal_of_array(CombinedUpstreams::client_version(self, inbound), inbound) {
            Some(refusal) => refusal,
            None => self.post_batch_in_session(inbound, items).await,
        }
    }

    async fn get(&self, inbound: &Inbound) -> FaceResponse {
        self.get_in_session(inbound).await
    }

    async fn delete(&self, inbound: &Inbound) -> FaceResponse {
        self.delete_in_session(inbound).await
    }

    fn has_in_flight(&self, nonce: u128, id: &RequestId) -> bool {
        self.sessions.in_flight.knows_any(nonce, id)
            || self.members.iter().any(|member| member.endpoint.has_in_flight(nonce, id))
    }
}

impl CombinedUpstreams {
    async fn serve_stateless(self: &Arc<Self>, inbound: &Inbound, request: Request) -> FaceResponse {
        let addressee = stateless_addressee(inbound, Some(request.id.clone()));
        if let Err(complaint) = check_headers(inbound, &request) {
            return addressee.complaint(&complaint);
        }
        let client = EndpointClient::stateless(self, inbound, request.params.object());
        let asked = match &*request.method {
            method::DISCOVER => self.discover(&client, &addressee).await,
            method::LISTEN => return self.listen(&client, inbound, &request, &addressee).await,
            _ => self.asked_alone(client, request, inbound.body.clone(), &addressee).await,
        };
        asked.unwrap_or_else(|refusal| refusal.into_response(&addressee))
    }

    async fn discover(&self, client: &EndpointClient, addressee: &Addressee) -> Result<FaceResponse, MemberRefusal> {
        let merged = merge::described(&self.descriptions(client).await?);
        Ok(addressee.result(discover_result(&merged)))
    }

    async fn asked_alone(
        &self,
        client: EndpointClient,
        request: Request,
        text: Bytes,
        addressee: &Addressee,
    ) -> Result<FaceResponse, MemberRefusal> {
        let target = match self.target(&client, &request).await {
            Ok(target) => target,
            Err(complaint) => return Ok(addressee.complaint(&complaint)),
        };
        if let (RequestTarget::Member(at, _), method::TOOLS_CALL) = (&target, &*request.method) {
            self.check_available(&client, *at).await?;
        }
        match target {
            RequestTarget::List(list) => {
                let cursor = request.params.object().and_then(sent_cursor);
                Ok(match self.page(&client, list, cursor.as_ref()).await? {
                    Ok(page) => addressee.result(completed_result(&request.method, &page, &own_identity())),
                    Err(complaint) => addressee.complaint(&complaint),
                })
            }
            RequestTarget::Member(at, params) => {
                let voice = client.voice(at, AnswerScope::of(&request));
                let answer = client.pass(at, request, text, params).await?;
                Ok(own_stream::shown(answer, voice, addressee).await)
            }
            RequestTarget::OwnTool(tool) => {
                let words = FallbackTools::for_stateless(0, own_identity());
                Ok(self.own_tool(client.caller(), tool, &request, words, addressee).await)
            }
            RequestTarget::Unlisted(some) => self.first_that_knows(&client, &some, &request, addressee).await,
        }
    }
}

/// Checks version (MOD-08) and headers (MOD-04 to MOD-06) before names are edited; the endpoint checks the rest.
fn check_headers(inbound: &Inbound, request: &Request) -> Result<(), RequestError> {
    let params = request.params.object();
    let meta = StatelessRequest::meta_of(params)?;
    let named = StatelessRequest::check_shape(&meta)?;
    let has_headers = inbound.carriage != MessageChannel::Stream;
    if has_headers {
        headers::check_request(&inbound.headers, &named, &request.method)?;
    }
    if ProtocolVersion::parse(&named).is_none_or(|version| !version.is_stateless()) {
        return Err(RequestError::Version { requested: named.into_owned() });
    }
    if !has_headers {
        return Ok(());
    }
    headers::check_name(&inbound.headers, &request.method, headers::named_in(&request.method, params).as_deref())
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::task::{Caller, Principal};
    use crate::wire::meta::{CLIENT_CAPABILITIES, META, PROTOCOL_VERSION};
    use crate::wire::{Message, ScanLimits, envelope};

    /// MOD-08.
    #[test]
    fn a_message_on_a_stream_names_a_version_that_is_served_and_needs_no_header() {
        for (version, expected) in [("2026-07-28", None), ("2025-11-25", Some(-32022)), ("2099-01-01", Some(-32022))] {
            let params = json!({ META: { PROTOCOL_VERSION: version, CLIENT_CAPABILITIES: {} } });
            let text = json!({ "jsonrpc": "2.0", "id": 1, "method": method::DISCOVER, "params": params }).to_string();
            let Ok(Message::Request(request)) = envelope::read(&text.into(), ScanLimits::CLIENT) else {
                panic!("no request")
            };
            let caller = Caller::of(Principal::local());
            let inbound = Inbound { carriage: MessageChannel::Stream, ..Inbound::new(Method::POST, "/mcp", caller) };
            let refused = check_headers(&inbound, &request).err();
            let code = refused.map(|complaint| complaint.to_error(ProtocolVersion::V2026_07_28).code);
            assert_eq!(code, expected, "{version}");
        }
    }
}
