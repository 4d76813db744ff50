//! Serves several upstreams at one path, as if they were one server.
//!
//! Nothing here speaks to a server. Each message is handed, in this process, to what serves the upstream at its own path,
//! in the words and the era of the client; so rules, limits, tasks, questions and translation are the upstream's, by its own
//! names. Here is decided whose a message is (`routing`), names are edited (`names`, `messages`), and what all upstreams
//! say is put together (`lists`, `merge`, `listen`, `own_stream`).

mod admission;
mod known_sessions;
mod listen;
mod lists;
mod member_answer;
mod member_request;
mod member_session;
mod merge;
mod messages;
mod names;
mod own_stream;
mod routed;
mod routing;
mod session;
mod stateless;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::call_stream::replay_buffer::read_event_id;
use super::endpoint::UpstreamEndpoint;
use super::fallback::FallbackToolService;
use super::http::{Endpoint, FaceResponse, Inbound};
use super::intake::{self, BatchItems, PathFaces};
use super::rates::UnknownTaskWatch;
use super::served::Served;
use crate::metric;
use crate::task::Principal;
use crate::upstream::circular_lists::CircularLists;
use crate::upstream::own_ids;
use crate::upstream::reply::ReadLimits;
use crate::wire::envelope::Request;
use crate::wire::{Message, RequestId, one_line};
use admission::REFUSALS_MAX;
use lists::ListOwners;
use member_answer::MemberRefusal;
use member_request::EndpointClient;
pub use member_session::CombinedSessions;
use merge::ServerSummary;
pub use names::{PrefixPolicy, prefixes_clash};

/// How often one upstream's absence is logged, and that it lies.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// How long an upstream may take to say what it has, before it is taken for one that is away.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The same for what it is. Clients wait ten seconds for `server/discover`, and then take the endpoint for one of sessions.
const INTRODUCTION_MAX: Duration = Duration::from_secs(5);
/// The same for one that took longer so often in a row: it need not keep everybody who asks for lists waiting. Once alone is
/// no sign: programs may take their time to start.
const LATE_ANSWER_MAX: Duration = Duration::from_secs(1);
const LATE_TIMES_MIN: u32 = 2;
/// How long that holds. Then one request waits again, so that a server that is only slow has its turn.
const LATE_FOR: Duration = Duration::from_secs(30);

/// Which upstreams are served at one path, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CombinedSettings {
    pub path: Arc<str>,
    /// The path that the transport of 2024-11-05 is served at.
    pub sse_path: String,
    /// Their names, in the order that decides where two offer the same. Never empty, and none twice.
    pub upstreams: Vec<Arc<str>>,
    pub prefix: PrefixPolicy,
}

/// One of the upstreams of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointMember {
    pub served: Arc<Served>,
    /// What serves it at its own path.
    pub endpoint: Arc<UpstreamEndpoint>,
}

/// What an endpoint knows of one of its upstreams.
struct KnownMember {
    served: Arc<Served>,
    endpoint: Arc<UpstreamEndpoint>,
    /// Whether it has the tools that stand for task methods.
    offers_fallback: bool,
    /// What it said of itself last, where it says the same to everybody.
    summary: RwLock<Option<Arc<ServerSummary>>>,
    circular: CircularLists,
    /// When it was logged that it is away, and that a message of it was dropped.
    away_logged: LogLimit,
    dropped_logged: LogLimit,
    /// Whether it took longer than it may when it was asked last.
    late: Mutex<Option<LateAnswers>>,
}

/// Has a line of the log written now and then, however often there is reason to.
#[derive(Default)]
struct LogLimit(Mutex<Option<Instant>>);

impl LogLimit {
    fn is_due(&self) -> bool {
        let mut last = self.0.lock();
        let is_due = last.is_none_or(|last| last.elapsed() >= LOG_EVERY);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

/// How often in a row an upstream took too long, and when it did last.
#[derive(Clone, Copy)]
struct LateAnswers {
    times: u32,
    last: Instant,
}

/// One path that serves several upstreams.
pub struct CombinedEndpoint(Arc<CombinedUpstreams>);

/// The upstreams of one endpoint.
struct CombinedUpstreams {
    settings: CombinedSettings,
    /// In the order of the settings.
    members: Vec<KnownMember>,
    sessions: Arc<CombinedSessions>,
    owners: ListOwners,
    /// Look-ups of tasks that failed.
    misses: UnknownTaskWatch,
    /// For answers of the gateway's own to servers.
    refusals: Arc<Semaphore>,
    /// Largest result that any of the upstreams may give.
    result_bytes_max: usize,
    /// Ends the streams of those who listen, once something else serves the path.
    leaving: CancellationToken,
}

impl CombinedEndpoint {
    /// Serves these upstreams, which are those that the settings name, in this order; there is at least one. What
    /// `sessions` remembers may be of an endpoint that served the path before.
    #[must_use]
    pub fn new(
        settings: CombinedSettings,
        members: Vec<EndpointMember>,
        sessions: Arc<CombinedSessions>,
        leaving: CancellationToken,
    ) -> Self {
        let known = |EndpointMember { served, endpoint }| KnownMember {
            offers_fallback: FallbackToolService::new(&served.settings.rules).is_some(),
            served,
            endpoint,
            summary: RwLock::default(),
            circular: CircularLists::default(),
            away_logged: LogLimit::default(),
            dropped_logged: LogLimit::default(),
            late: Mutex::default(),
        };
        let members: Vec<KnownMember> = members.into_iter().map(known).collect();
        let results = members.iter().map(|member| member.served.settings.result_bytes_max);
        let result_bytes_max = results.max().unwrap_or_default();
        Self(Arc::new(CombinedUpstreams {
            settings,
            members,
            sessions,
            owners: ListOwners::new(),
            misses: UnknownTaskWatch::default(),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            result_bytes_max,
            leaving,
        }))
    }

    /// Whether it is served with just these settings by just these upstreams.
    #[must_use]
    pub fn is_made_of(&self, settings: &CombinedSettings, members: &[EndpointMember]) -> bool {
        let known = &self.0.members;
        let is_same = |(known, other): (&KnownMember, &EndpointMember)| Arc::ptr_eq(&known.endpoint, &other.endpoint);
        self.0.settings == *settings && known.len() == members.len() && known.iter().zip(members).all(is_same)
    }

    /// What its clients of the older transport are served with beside it.
    #[must_use]
    pub fn any_served(&self) -> &Arc<Served> {
        &self.0.members[0].served
    }

    /// Largest result that any of the upstreams may give.
    #[must_use]
    pub fn result_bytes_max(&self) -> usize {
        self.0.result_bytes_max
    }
}

impl CombinedUpstreams {
    /// What is the same for all upstreams: clock, keys, rates, the engine.
    fn common(&self) -> &Served {
        &self.members[0].served
    }

    /// The bounds on reading an answer of the upstream at `at`, within the principal's share of answers.
    fn read_limits(&self, at: usize, principal: &Principal) -> ReadLimits {
        let served = &self.members[at].served;
        ReadLimits::within(served.settings.result_bytes_max, served.engine.limits().answers_to(principal))
    }

    /// Whether a principal may use the upstream at `at`; to others it is not there.
    fn is_for(&self, at: usize, principal: &Principal) -> bool {
        self.members[at].endpoint.is_for(principal)
    }

    /// The upstreams that a principal may use.
    fn members_for(&self, principal: &Principal) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|at| self.is_for(*at, principal))
    }

    /// The upstream of this name, if a principal may use it: to others it is like a name that no upstream has.
    fn position(&self, upstream: &str, principal: &Principal) -> Option<usize> {
        let at = self.settings.upstreams.iter().position(|name| **name == *upstream);
        at.filter(|at| self.is_for(*at, principal))
    }

    /// Tells operators that an upstream is missing in what a client is shown, and remembers to tell the client once it is not.
    fn note_absence(&self, client: &EndpointClient, at: usize, why: &str) {
        let (path, upstream) = (&self.settings.path, &self.settings.upstreams[at]);
        if let Some(session) = &client.session {
            session.miss(upstream);
        }
        metrics::counter!(metric::ENDPOINT_ABSENCES, "upstream" => Arc::clone(upstream)).increment(1);
        if self.members[at].away_logged.is_due() {
            tracing::warn!(endpoint = %path, %upstream, why, "an upstream is away: what it offers is missing at the endpoint");
        }
    }

    /// Why the upstream at `at` failed last. `None` if it answers, and for remote clients: the cause may name files of
    /// this machine.
    fn cause_for(&self, client: &EndpointClient, at: usize) -> Option<String> {
        let health = self.members[at].served.channel.health().filter(|_| *client.principal() == Principal::local())?;
        health.look().is_failing().then(|| health.last()).flatten().map(|failure| one_line::name(&failure.cause))
    }

    /// Asks an upstream that failed last whether it is there again, before a call goes to it.
    ///
    /// # Errors
    /// The refusal for the client, if the upstream is not available.
    async fn check_available(self: &Arc<Self>, client: &EndpointClient, at: usize) -> Result<(), MemberRefusal> {
        if self.members[at].summary.read().is_some() || self.cause_for(client, at).is_none() {
            return Ok(());
        }
        let refusal = match self.in_time(at, INTRODUCTION_MAX, self.introduced(client, at)).await {
            None | Some(Ok(_)) => return Ok(()),
            Some(Err(refusal)) => refusal,
        };
        let name = &self.settings.upstreams[at];
        Err(match self.cause_for(client, at) {
            Some(cause) => refusal.saying(&format!("The server {name} is not available: {cause}")),
            None => refusal,
        })
    }

    /// Waits for what the upstream at `at` says of itself, for as long as it may take, `limit` at most; `None` if that is over.
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

    /// Learns what an upstream says of itself. One that tells its users apart may say another thing to each.
    fn learn(&self, at: usize, summary: &Arc<ServerSummary>) {
        let member = &self.members[at];
        if !member.served.settings.forwarding.has(&http::header::AUTHORIZATION) {
            *member.summary.write() = Some(Arc::clone(summary));
        }
    }
}

impl fmt::Debug for CombinedEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CombinedEndpoint").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

#[async_trait]
impl Endpoint for CombinedEndpoint {
    async fn serve(&self, inbound: Inbound) -> FaceResponse {
        intake::answer(&self.0, inbound).await
    }

    fn is_for(&self, principal: &Principal) -> bool {
        self.0.members.iter().any(|member| member.endpoint.is_for(principal))
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        self.0.members.iter().any(|member| member.endpoint.forwards(header))
    }

    fn allow(&self) -> HeaderValue {
        super::session::ALLOWED
    }
}

impl PathFaces for Arc<CombinedUpstreams> {
    fn served(&self) -> &Served {
        self.common()
    }

    async fn stateless(&self, inbound: &Inbound, request: Request) -> FaceResponse {
        self.serve_stateless(inbound, request).await
    }

    async fn post(&self, inbound: Box<Inbound>, message: Box<Message>) -> FaceResponse {
        Box::pin(self.post_in_session(inbound, message)).await
    }

    async fn post_batch(&self, inbound: &Inbound, batch: BatchItems) -> FaceResponse {
        self.post_batch_in_session(inbound, batch).await
    }

    async fn get(&self, inbound: &Inbound) -> FaceResponse {
        self.get_in_session(inbound).await
    }

    async fn delete(&self, inbound: &Inbound) -> FaceResponse {
        self.delete_in_session(inbound).await
    }

    fn has_under_way(&self, nonce: u128, id: &RequestId) -> bool {
        self.sessions.in_flight.knows_any(nonce, id)
            || self.members.iter().any(|member| member.endpoint.has_under_way(nonce, id))
    }

    fn is_asked_by_a_task(&self, id: &RequestId) -> bool {
        // All upstreams know the ids of all.
        messages::unmarked(id).is_some_and(|(_, own)| self.members[0].endpoint.is_asked_by_a_task(&own))
    }

    fn bits_of_question(&self, id: &RequestId) -> Option<u128> {
        own_ids::bits(&messages::unmarked(id)?.1)
    }

    fn bits_of_event(&self, id: &str) -> Option<u128> {
        // What upstreams say on a session's own stream bears their ids.
        match messages::EventPlace::read(id)? {
            (_, messages::EventPlace::Answer(_, id)) => read_event_id(id).map(|(stream, _)| stream),
            (_, messages::EventPlace::Own(_)) => None,
        }
    }

    fn listened_as(&self) -> &Arc<str> {
        &self.settings.path
    }

    fn streams_end(&self) -> impl Future<Output = ()> + Send + 'static {
        let (replaced, ending) = (self.leaving.clone(), self.common().leaving.clone());
        async move {
            tokio::select! {
                () = replaced.cancelled() => (),
                () = ending.cancelled() => (),
            }
        }
    }
}
