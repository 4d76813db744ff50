//! Determines the protocol era of an upstream for stateless clients.
//!
//! An upstream of both eras is used in the client's era. Session clients send `initialize` without a probe: every
//! server with sessions answers it, and some hang on `server/discover`. The first stateless client causes one
//! `server/discover` for all of them, within a time limit. The verdict is kept until the upstream contradicts it
//! (UPC-22). Stateless clients that accept questions are served in sessions, if the server has any ([`QuestionEra`]).
//!
//! [`EraUpstream`] owns both halves and chooses for stateless clients; session clients use the session half itself.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{Either, ready};
use parking_lot::Mutex;
use tokio::sync::SetOnce;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::{
    BeginError, CallContext, ClientCredential, Era, Exchange, ForwardedHeaders, Handshake, ResumeToken, Upstream,
    UpstreamRequest,
};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::exchange::{EraLookup, NotificationResult, SubscriptionResult};
use crate::wire::meta::TASKS_EXTENSION;
use crate::wire::rpc_error::{
    HEADER_MISMATCH, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CLIENT_CAPABILITY, TRANSPORT_ERROR, UNSUPPORTED_VERSION,
};
use crate::wire::{Object, Payload, ProtocolVersion, RpcError};

/// How long the probe may take, connecting included.
pub(super) const PROBE_MAX: Duration = Duration::from_secs(3);
/// For a server that must be started first. Servers with sessions need not answer before `initialize`: silence is a verdict.
const START_MAX: Duration = Duration::from_secs(10);
/// How soon a probe or a handshake without a verdict is repeated.
const PROBE_AGAIN: Duration = Duration::from_secs(30);

/// Probes a server's era; with a client's credential if the server authenticates clients itself.
#[async_trait]
pub(super) trait EraDiscovery: Send + Sync {
    async fn discover(&self, credential: &ClientCredential) -> EraAnswer;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EraAnswer {
    Verdict(Era),
    /// A failure without a meaning for the era.
    NoVerdict,
    /// The server refused the client's credential: no verdict for other clients.
    CredentialRefused,
}

/// The era of a server that answers a stateless request so. Every unrecognised error is a session server's.
pub(super) fn era_of_refusal(error: &RpcError) -> Era {
    match error.code {
        HEADER_MISMATCH | MISSING_CLIENT_CAPABILITY => Era::Stateless,
        UNSUPPORTED_VERSION if names_stateless(error) => Era::Stateless,
        _ => Era::Session,
    }
}

/// Whether only a server without sessions refuses a request of a session so: it may have replaced another server.
pub fn denies_sessions(error: &RpcError) -> bool {
    error.code == METHOD_NOT_FOUND || era_of_refusal(error) == Era::Stateless
}

/// Whether a refusal of a stateless request excludes that era (UPC-22): none of our versions, or no JSON-RPC.
pub fn contradicts(http_status: Option<u16>, error: Option<&RpcError>) -> bool {
    match error {
        Some(error) if error.code == UNSUPPORTED_VERSION => era_of_refusal(error) == Era::Session,
        // Servers with sessions refuse a request without one like this.
        Some(error) => http_status == Some(400) && matches!(error.code, TRANSPORT_ERROR | INVALID_REQUEST),
        // Some servers refuse without JSON-RPC. The excluded statuses are about credentials or load.
        None => http_status.is_some_and(|status| {
            matches!(status, 400..=499 | 501) && !matches!(status, 401 | 403 | 407 | 408 | 425 | 429)
        }),
    }
}

fn names_stateless(error: &RpcError) -> bool {
    let data = error.data.as_ref().and_then(Object::of);
    let supported: Option<Vec<String>> = data.and_then(|data| data.get("supported")?.read().ok());
    supported.unwrap_or_default().iter().any(|text| is_served(text))
}

pub(super) fn is_served(version: &str) -> bool {
    ProtocolVersion::advertised_stateless().contains(&version)
}

#[derive(Debug)]
pub(super) struct EraCache {
    fixed: Option<Era>,
    ask_max: Duration,
    /// The verdict if no response comes in time.
    silence: Option<Era>,
    known: Mutex<EraKnowledge>,
    /// The route for clients that can be asked, at a server of both eras.
    questions: Mutex<QuestionEra>,
}

#[derive(Clone, Debug)]
enum EraKnowledge {
    Nothing,
    Verdict(Era),
    NoVerdict(Instant),
    /// A probe is in progress; set once it has ended.
    Asking(Arc<SetOnce<()>>),
}

impl EraCache {
    /// An unknown era. A `fixed` era is never probed.
    pub(super) fn new(fixed: Option<Era>) -> Self {
        let (known, questions) = (Mutex::new(EraKnowledge::Nothing), Mutex::default());
        Self { fixed, ask_max: PROBE_MAX, silence: None, known, questions }
    }

    /// As [`Self::new`], for a server that must be started to be probed.
    pub(super) fn of_started(fixed: Option<Era>) -> Self {
        Self { ask_max: START_MAX, silence: Some(Era::Session), ..Self::new(fixed) }
    }

    /// The era, probed if needed. Without a verdict it is [`Era::Session`] for this request.
    fn era<'a>(
        self: &'a Arc<Self>,
        discover: &Arc<dyn EraDiscovery>,
        tracker: &TaskTracker,
        credential: ClientCredential,
    ) -> EraLookup<'a> {
        if let Some(fixed) = self.fixed {
            return Either::Left(ready(fixed));
        }
        let answered = {
            let mut known = self.known.lock();
            match &*known {
                EraKnowledge::Verdict(era) => return Either::Left(ready(*era)),
                EraKnowledge::NoVerdict(at) if at.elapsed() < PROBE_AGAIN => return Either::Left(ready(Era::Session)),
                EraKnowledge::Asking(answered) => Arc::clone(answered),
                EraKnowledge::Nothing | EraKnowledge::NoVerdict(_) => {
                    let answered = Arc::new(SetOnce::new());
                    *known = EraKnowledge::Asking(Arc::clone(&answered));
                    // In the background: the first client may leave while others still wait.
                    let (eras, discover) = (Arc::clone(self), Arc::clone(discover));
                    tracker.spawn(eras.probe(discover, credential, Arc::clone(&answered)));
                    answered
                }
            }
        };
        Either::Right(Box::pin(async move {
            // The probe is bounded in time, but a shutdown may end it earlier.
            let _ = tokio::time::timeout(self.ask_max, answered.wait()).await;
            match &*self.known.lock() {
                EraKnowledge::Verdict(era) => *era,
                EraKnowledge::Nothing | EraKnowledge::NoVerdict(_) | EraKnowledge::Asking(_) => Era::Session,
            }
        }))
    }

    async fn probe(
        self: Arc<Self>,
        discover: Arc<dyn EraDiscovery>,
        credential: ClientCredential,
        answered: Arc<SetOnce<()>>,
    ) {
        let silence = self.silence.map_or(EraAnswer::NoVerdict, EraAnswer::Verdict);
        let mut probe = EraProbe { eras: &self, answered, outcome: EraKnowledge::NoVerdict(Instant::now()) };
        let answer = tokio::time::timeout(self.ask_max, discover.discover(&credential)).await.unwrap_or(silence);
        probe.outcome = match answer {
            EraAnswer::Verdict(era) => EraKnowledge::Verdict(era),
            EraAnswer::NoVerdict => EraKnowledge::NoVerdict(Instant::now()),
            EraAnswer::CredentialRefused => EraKnowledge::Nothing,
        };
    }

    /// Discards a verdict, so that the next request probes again. Without one, the pause before the next probe stays:
    /// an upstream that hangs must not cost its time limit with every request.
    pub(super) fn discard_verdict(&self) {
        let mut known = self.known.lock();
        if matches!(*known, EraKnowledge::Verdict(_)) {
            *known = EraKnowledge::Nothing;
            // Another server may be at the address.
            self.questions.lock().sessions = SessionOffer::Unknown;
        }
    }

    pub(super) fn discovered(&self, capabilities: &Payload) {
        self.questions.lock().discovered(capabilities);
    }

    /// Records that the server answered a request of 2026-07-28 with an `InputRequiredResult`.
    pub(super) fn asked_in_result(&self) {
        self.questions.lock().asked();
    }

    fn record(&self, era: Era) {
        *self.known.lock() = EraKnowledge::Verdict(era);
    }
}

/// Records the outcome of a probe at its end, also after a panic.
struct EraProbe<'a> {
    eras: &'a EraCache,
    answered: Arc<SetOnce<()>>,
    outcome: EraKnowledge,
}

impl Drop for EraProbe<'_> {
    fn drop(&mut self) {
        let mut known = self.eras.known.lock();
        // A verdict that a request has recorded meanwhile stays.
        if matches!(&*known, EraKnowledge::Asking(asking) if Arc::ptr_eq(asking, &self.answered)) {
            *known = self.outcome.clone();
        }
        drop(known);
        let _ = self.answered.set(());
    }
}

pub struct EraUpstream {
    eras: Arc<EraCache>,
    discover: Arc<dyn EraDiscovery>,
    session: Arc<dyn Upstream>,
    stateless: Arc<dyn Upstream>,
    tracker: TaskTracker,
}

struct ChosenHalf<'a> {
    upstream: &'a Arc<dyn Upstream>,
    /// The session half at a server of 2026-07-28 was chosen.
    is_for_questions: bool,
}

debug_members!(EraUpstream, |upstream| name: upstream.session.name(), eras: upstream.eras);

impl EraUpstream {
    pub(super) fn new<S>(
        session: Arc<dyn Upstream>,
        stateless: Arc<S>,
        eras: Arc<EraCache>,
        tracker: TaskTracker,
    ) -> Self
    where
        S: Upstream + EraDiscovery + 'static,
    {
        Self { eras, discover: Arc::<S>::clone(&stateless), session, stateless, tracker }
    }

    /// The stateless half, for callers that know the server's era.
    pub fn stateless(&self) -> Arc<dyn Upstream> {
        Arc::clone(&self.stateless)
    }

    async fn half(&self, context: &CallContext) -> ChosenHalf<'_> {
        let era = self.era(&context.forwarded).await;
        let chosen = self.era_of_client(era, context).await;
        let upstream = if chosen == Era::Session { &self.session } else { &self.stateless };
        ChosenHalf { upstream, is_for_questions: chosen != era }
    }

    async fn era_of_client(&self, era: Era, context: &CallContext) -> Era {
        if era == Era::Session || self.eras.fixed.is_some() || !context.client.can_be_asked() {
            return era;
        }
        let mut route = self.eras.questions.lock().route(Instant::now());
        if route == QuestionRoute::Handshake {
            self.try_session(context).await;
            route = self.eras.questions.lock().route(Instant::now());
        }
        if route == QuestionRoute::Sessions { Era::Session } else { Era::Stateless }
    }

    async fn try_session(&self, context: &CallContext) {
        let credential = context.forwarded.credential();
        let context = CallContext { forwarded: ForwardedHeaders::bearing(&credential), ..context.clone() };
        let late = BeginError::Gateway(GatewayFault::new(Reason::UpstreamTimeout, Executed::No));
        let opened =
            tokio::time::timeout(self.eras.ask_max, self.session.handshake(&context)).await.unwrap_or(Err(late));
        if opened.is_err() && credential.is_clients() {
            // The refusal may be for this client only.
            return;
        }
        self.eras.questions.lock().handshake(opened.as_deref(), Instant::now());
        let offers_sessions = opened.is_ok();
        tracing::debug!(upstream = %self.session.name(), offers_sessions, "probed a server of 2026-07-28 for sessions");
    }

    /// The other half, after a half failed to begin and nothing was sent: a server without sessions refuses the handshake.
    fn other_half(&self, half: &ChosenHalf<'_>, error: &BeginError) -> Option<&Arc<dyn Upstream>> {
        if self.eras.fixed.is_some() {
            return None;
        }
        if half.is_for_questions {
            self.eras.questions.lock().handshake(Err(error), Instant::now());
            return matches!(error, BeginError::Refused(_)).then_some(&self.stateless);
        }
        let is_contradiction = match error {
            BeginError::Refused(error) if era_of_refusal(error) == Era::Stateless => {
                self.eras.record(Era::Stateless);
                return Some(&self.stateless);
            }
            BeginError::Refused(_) => true,
            BeginError::Gateway(fault) => contradicts(fault.http_status, None),
        };
        if is_contradiction {
            self.eras.discard_verdict();
        }
        None
    }
}

/// Calls the client's half, and the other one if [`EraUpstream::other_half`] names it.
macro_rules! on_half {
    ($era:ident, $context:expr, |$upstream:ident| $call:expr) => {{
        let half = $era.half($context).await;
        let $upstream = half.upstream;
        match $call.await {
            Err(error) => match $era.other_half(&half, &error) {
                Some($upstream) => $call.await,
                None => Err(error),
            },
            done => done,
        }
    }};
}

#[async_trait]
impl Upstream for EraUpstream {
    fn name(&self) -> &Arc<str> {
        self.session.name()
    }

    fn era(&self, forwarded: &ForwardedHeaders) -> EraLookup<'_> {
        self.eras.era(&self.discover, &self.tracker, forwarded.credential())
    }

    async fn era_for(&self, context: &CallContext) -> Era {
        let era = self.era(&context.forwarded).await;
        self.era_of_client(era, context).await
    }

    fn discard_era(&self) {
        self.eras.discard_verdict();
    }

    fn asked_in_result(&self) {
        self.eras.asked_in_result();
    }

    async fn handshake(&self, context: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        on_half!(self, context, |upstream| upstream.handshake(context))
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        on_half!(self, &context, |upstream| upstream.begin(request.clone(), context.clone()))
    }

    /// The halves write different tokens, so a token selects its half.
    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        match self.stateless.resume(token.clone(), context.clone()).await {
            Ok(exchange) => Ok(exchange),
            Err(_) => self.session.resume(token, context).await,
        }
    }

    async fn listen(&self, context: &CallContext, wishes: &SubscriptionFilter) -> SubscriptionResult {
        on_half!(self, context, |upstream| upstream.listen(context, wishes))
    }

    async fn notifications(&self, context: &CallContext) -> NotificationResult {
        on_half!(self, context, |upstream| upstream.notifications(context))
    }

    fn end_idle(&self) {
        self.session.end_idle();
    }

    async fn close(&self) {
        self.stateless.close().await;
        self.session.close().await;
    }
}

/// How a server of 2026-07-28 can ask a call's client: chooses the era for clients that can be asked, at a server of
/// both eras. Tools of today's SDKs ask during a call (`elicitation/create`), which works in sessions only. So clients
/// that can be asked are served in sessions, unless the server is known to ask at 2026-07-28: it declares the tasks
/// extension, or has answered an `InputRequiredResult`. Only a handshake shows whether there are sessions (UPC-28).
#[derive(Clone, Copy, Debug, Default)]
pub struct QuestionEra {
    declares_tasks: bool,
    has_asked: bool,
    sessions: SessionOffer,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SessionOffer {
    #[default]
    Unknown,
    NoVerdict(Instant),
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionRoute {
    /// In sessions: only there may a call ask.
    Sessions,
    Stateless(StatelessReason),
    Handshake,
}

named_variants! {
    pub enum StatelessReason, text {
        DeclaresTasks = "the server declares the tasks extension there",
        HasAsked = "the server has asked by an InputRequiredResult there",
        NoSessions = "the server offers no sessions",
        NoVerdict = "the server gave no verdict on sessions",
    }
}

impl QuestionEra {
    pub fn discovered(&mut self, capabilities: &Payload) {
        let extensions = Object::of(capabilities).and_then(|all| all.get_object("extensions"));
        self.declares_tasks = extensions.is_some_and(|all| all.has_object(TASKS_EXTENSION));
    }

    /// Records that the server answered a request with an `InputRequiredResult`.
    const fn asked(&mut self) {
        self.has_asked = true;
    }

    /// A server that offered sessions before may be failing: its refusal is no verdict until the next one repeats it.
    pub fn handshake(&mut self, outcome: Result<&Handshake, &BeginError>, now: Instant) {
        self.sessions = match (outcome, self.sessions) {
            (Ok(handshake), _) if handshake.has_session => SessionOffer::Yes,
            // The answer to a question of such a server could not be routed.
            (Ok(_), _) => SessionOffer::No,
            (Err(error), SessionOffer::Yes) if is_for_good(error) => SessionOffer::Unknown,
            (Err(_), SessionOffer::Yes) => SessionOffer::Yes,
            (Err(error), _) if is_for_good(error) => SessionOffer::No,
            (Err(_), _) => SessionOffer::NoVerdict(now),
        };
    }

    pub fn route(&self, now: Instant) -> QuestionRoute {
        match self.sessions {
            _ if self.declares_tasks => QuestionRoute::Stateless(StatelessReason::DeclaresTasks),
            _ if self.has_asked => QuestionRoute::Stateless(StatelessReason::HasAsked),
            SessionOffer::Yes => QuestionRoute::Sessions,
            SessionOffer::No => QuestionRoute::Stateless(StatelessReason::NoSessions),
            SessionOffer::NoVerdict(at) if now.duration_since(at) < PROBE_AGAIN => {
                QuestionRoute::Stateless(StatelessReason::NoVerdict)
            }
            SessionOffer::Unknown | SessionOffer::NoVerdict(_) => QuestionRoute::Handshake,
        }
    }
}

/// Whether an error means that the server has no sessions, rather than a temporary state.
pub fn is_for_good(error: &BeginError) -> bool {
    match error {
        BeginError::Refused(_) => true,
        BeginError::Gateway(GatewayFault { reason: Reason::UpstreamMalformed | Reason::UpstreamRefused, .. }) => true,
        BeginError::Gateway(fault) => fault.http_status.is_some() && contradicts(fault.http_status, None),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::task::Executed;
    use crate::wire::{ProtocolVersion, RpcError};

    /// Responds after a delay, and counts the probes.
    struct ScriptedDiscovery {
        after: Duration,
        answer: EraAnswer,
        panics: bool,
        count: AtomicUsize,
    }

    #[async_trait]
    impl EraDiscovery for ScriptedDiscovery {
        async fn discover(&self, _: &ClientCredential) -> EraAnswer {
            self.count.fetch_add(1, Ordering::SeqCst);
            assert!(!self.panics, "a bug");
            tokio::time::sleep(self.after).await;
            self.answer
        }
    }

    struct EraFixture {
        eras: Arc<EraCache>,
        asked: Arc<ScriptedDiscovery>,
        tracker: TaskTracker,
    }

    impl EraFixture {
        fn new(after: Duration, answer: EraAnswer) -> Self {
            let eras = Arc::new(EraCache::new(None));
            let asked = Arc::new(ScriptedDiscovery { after, answer, panics: false, count: AtomicUsize::new(0) });
            Self { eras, asked, tracker: TaskTracker::new() }
        }

        async fn era(&self) -> Era {
            let discover: Arc<dyn EraDiscovery> = Arc::<ScriptedDiscovery>::clone(&self.asked);
            self.eras.era(&discover, &self.tracker, ClientCredential::default()).await
        }

        fn count(&self) -> usize {
            self.asked.count.load(Ordering::SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_that_is_recorded_during_a_probe_stays() {
        let probe = EraFixture::new(Duration::from_millis(10), EraAnswer::NoVerdict);
        let recorded = async { probe.eras.record(Era::Stateless) };
        assert_eq!(tokio::join!(probe.era(), recorded).0, Era::Stateless);
        assert_eq!((probe.era().await, probe.count()), (Era::Stateless, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn no_client_waits_for_a_probe_that_panicked() {
        let mut probe = EraFixture::new(Duration::ZERO, EraAnswer::NoVerdict);
        probe.asked = Arc::new(ScriptedDiscovery { panics: true, ..Arc::into_inner(probe.asked).unwrap() });
        let began = Instant::now();
        assert_eq!((probe.era().await, probe.era().await, probe.count()), (Era::Session, Era::Session, 1));
        assert!(began.elapsed() < PROBE_MAX, "{:?}", began.elapsed());
    }

    /// UPC-22.
    #[tokio::test(start_paused = true)]
    async fn upc22_a_verdict_is_asked_for_once_and_again_after_a_contradiction() {
        let probe = EraFixture::new(Duration::from_millis(10), EraAnswer::Verdict(Era::Stateless));
        let many = tokio::join!(probe.era(), probe.era(), probe.era());
        assert_eq!(many, (Era::Stateless, Era::Stateless, Era::Stateless));
        assert_eq!((probe.era().await, probe.count()), (Era::Stateless, 1));
        probe.eras.discard_verdict();
        assert_eq!((probe.era().await, probe.count()), (Era::Stateless, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_hangs_costs_the_bound_once_in_a_while() {
        let probe = EraFixture::new(Duration::from_secs(3600), EraAnswer::NoVerdict);
        let began = Instant::now();
        // The first client leaves; the second one does not restart the wait.
        let left = tokio::time::timeout(Duration::from_secs(2), probe.era()).await;
        assert!(left.is_err());
        assert_eq!(probe.era().await, Era::Session);
        assert_eq!(began.elapsed(), PROBE_MAX);
        assert_eq!((probe.era().await, probe.count()), (Era::Session, 1));
        assert_eq!(began.elapsed(), PROBE_MAX, "no client waits again");
        tokio::time::sleep(PROBE_AGAIN).await;
        assert_eq!((probe.era().await, probe.count()), (Era::Session, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_not_let_in_settles_nothing_for_others() {
        let probe = EraFixture::new(Duration::from_millis(10), EraAnswer::CredentialRefused);
        assert_eq!((probe.era().await, probe.era().await, probe.count()), (Era::Session, Era::Session, 2));
    }

    #[test]
    fn upc22_errors_that_only_stateless_servers_have_are_recognised() {
        let supported = |versions: &[&str]| {
            RpcError::new(UNSUPPORTED_VERSION, "m").with_data(&serde_json::json!({ "supported": versions }))
        };
        for (error, era) in [
            (RpcError::new(HEADER_MISMATCH, "m"), Era::Stateless),
            (RpcError::new(MISSING_CLIENT_CAPABILITY, "m"), Era::Stateless),
            (supported(&["2025-11-25", "2026-07-28"]), Era::Stateless),
            (supported(&["2025-11-25"]), Era::Session),
            (RpcError::new(UNSUPPORTED_VERSION, "m"), Era::Session),
            (RpcError::new(-32601, "m"), Era::Session),
            (RpcError::new(-32600, "m"), Era::Session),
        ] {
            assert_eq!(era_of_refusal(&error), era, "{error:?}");
        }
    }

    fn handshake(has_session: bool) -> Handshake {
        let (version, capabilities) = (ProtocolVersion::V2025_11_25, Payload::empty_object());
        Handshake { version, capabilities, server_info: None, instructions: None, has_session }
    }

    fn fault(reason: Reason, http_status: Option<u16>) -> BeginError {
        BeginError::Gateway(GatewayFault { http_status, ..GatewayFault::new(reason, Executed::No) })
    }

    /// UPC-28.
    #[tokio::test(start_paused = true)]
    async fn upc28_sessions_are_for_servers_that_do_not_ask_at_2026_07_28() {
        use QuestionRoute::{Handshake, Sessions, Stateless};
        let now = Instant::now();
        let refused = BeginError::Refused(RpcError::new(-32601, "m"));
        let (gone, status) = (Reason::UpstreamUnreachable, Reason::UpstreamHttpStatus);
        for (what, outcome, expected) in [
            ("nothing is known", None, Handshake),
            ("a session", Some(Ok(handshake(true))), Sessions),
            ("a handshake without a session", Some(Ok(handshake(false))), Stateless(StatelessReason::NoSessions)),
            ("a refusal", Some(Err(refused.clone())), Stateless(StatelessReason::NoSessions)),
            ("404", Some(Err(fault(status, Some(404)))), Stateless(StatelessReason::NoSessions)),
            ("no MCP", Some(Err(fault(Reason::UpstreamMalformed, None))), Stateless(StatelessReason::NoSessions)),
            ("503", Some(Err(fault(status, Some(503)))), Stateless(StatelessReason::NoVerdict)),
            ("no connection", Some(Err(fault(gone, None))), Stateless(StatelessReason::NoVerdict)),
        ] {
            let mut era = QuestionEra::default();
            if let Some(outcome) = &outcome {
                era.handshake(outcome.as_ref(), now);
            }
            assert_eq!(era.route(now), expected, "{what}");
            let later = if expected == Stateless(StatelessReason::NoVerdict) { Handshake } else { expected };
            assert_eq!(era.route(now + PROBE_AGAIN), later, "{what}, later");

            let mut asks = era;
            asks.asked();
            assert_eq!(asks.route(now), Stateless(StatelessReason::HasAsked), "{what}");

            era.discovered(&Payload::of(&serde_json::json!({ "extensions": { TASKS_EXTENSION: {} } })));
            assert_eq!(era.route(now), Stateless(StatelessReason::DeclaresTasks), "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_takes_no_sessions_from_a_server_that_offered_them() {
        let now = Instant::now();
        let refused = BeginError::Refused(RpcError::new(-32601, "m"));
        let mut era = QuestionEra::default();
        era.handshake(Ok(&handshake(true)), now);
        era.handshake(Err(&fault(Reason::UpstreamUnreachable, None)), now);
        assert_eq!(era.route(now), QuestionRoute::Sessions);
        era.handshake(Err(&refused), now);
        assert_eq!(era.route(now), QuestionRoute::Handshake, "another handshake decides");
        era.handshake(Err(&refused), now);
        assert_eq!(era.route(now), QuestionRoute::Stateless(StatelessReason::NoSessions));
    }
}
