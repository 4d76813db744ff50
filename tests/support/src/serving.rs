//! Makes the parts that serve one upstream, for tests that put a face or an engine together by hand.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use taskgate::engine::{CallMaker, CallTarget, Engine, ServiceSettings};
use taskgate::face::http::Endpoint;
use taskgate::face::listen_permits::ListenPermits;
use taskgate::face::rates::Rates;
use taskgate::face::sealed::{Sealer, SealingKeys};
use taskgate::face::served::Served;
use taskgate::face::stream_client::StreamClient;
use taskgate::face::unmatched_rules::UnmatchedRules;
use taskgate::shared_limits::SharedLimits;
use taskgate::store::MemoryStore;
use taskgate::task::{
    AfterCrash, CallLimits, Caller, ClientKind, Drafts, EarlyInput, Executed, FallbackPolicy, GatewayFault,
    ManualClock, Principal, Reason, SubtaskLimits, TaskMode, ToolPolicy, ToolRules,
};
use taskgate::upstream::limits::{CallPermitSettings, CallPermits};
use taskgate::upstream::raw_channel::{RawChannel, RawRequest, RawResponse};
use taskgate::upstream::{
    BeginError, CallContext, Exchange, ForwardedHeaders, ForwardingRules, Handshake, OwnSessionChannel, ResumeToken,
    ServerNotification, SessionLease, TaskScope, Timeouts, Upstream, UpstreamRequest,
};
use taskgate::wire::Payload;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The rules of a tool whose tasks live for a minute, and whose calls may last for an hour.
pub fn policy(mode: TaskMode) -> ToolPolicy {
    let minute = Duration::from_secs(60);
    ToolPolicy {
        mode,
        grace: Duration::from_secs(2),
        ttl: minute,
        ttl_max: minute,
        keep_result_min: minute,
        poll_interval: Duration::from_secs(1),
        deadline: 60 * minute,
        early_input: EarlyInput::Task,
        after_crash: AfterCrash::Fail,
        input_deadline: 30 * minute,
        result_bytes_max: 1 << 20,
        immediate_response: None,
        limits: CallLimits::default(),
        fallback: FallbackPolicy::Hold,
        split: None,
    }
}

/// The local user's client of an endpoint over stdio.
pub fn stream_client(endpoint: Arc<dyn Endpoint>) -> StreamClient {
    StreamClient {
        endpoint,
        upstream: Arc::from("up"),
        path: "/mcp".to_owned(),
        caller: Caller::of(Principal::local()),
        address: None,
        limits: SharedLimits::default(),
        message_bytes_max: 1 << 20,
    }
}

/// Settings without timeouts: these rules hold for all tools.
pub fn settings(policy: ToolPolicy) -> ServiceSettings {
    ServiceSettings {
        rules: ToolRules { patterns: Vec::new(), default: policy },
        queue_deadline: Duration::from_secs(30),
        timeouts: Timeouts::default(),
        call_timeouts: Timeouts::default(),
        result_bytes_max: 1 << 20,
        life_signs: true,
        forwarding: ForwardingRules::default(),
        drafts: Drafts::default(),
        subtasks: SubtaskLimits::default(),
    }
}

/// The parts for one server: an empty store in memory, ten permits, a clock that stands still.
pub fn served(upstream: Arc<dyn Upstream>, channel: Arc<dyn OwnSessionChannel>) -> Served {
    let limits = SharedLimits::default();
    let (store, clock) = (Arc::new(MemoryStore::new(1 << 20)), Arc::new(ManualClock::default()));
    let permits = CallPermitSettings { in_flight_max: NonZeroUsize::new(10).expect("ten"), queue_max: 10 };
    let ending = CancellationToken::new();
    Served {
        settings: Arc::new(settings(policy(TaskMode::Auto))),
        unmatched_rules: Arc::new(UnmatchedRules::none(upstream.name())),
        engine: Engine::new(store, Arc::<ManualClock>::clone(&clock), Box::new(|| 7), 10, limits.clone()),
        permits: Arc::new(CallPermits::new(Arc::clone(upstream.name()), permits, limits.clone())),
        pool: Arc::clone(&upstream),
        stateless: Arc::clone(&upstream),
        upstream,
        channel,
        is_stateless: false,
        rates: Arc::new(Rates::new(limits.clone())),
        listeners: ListenPermits::new(ending.clone(), limits),
        sealer: Arc::new(Sealer::new(SealingKeys::ephemeral([7; 32]))),
        owners: None,
        clock,
        random: || 7,
        scope: TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() },
        memories: Arc::default(),
        streams_end: CancellationToken::new(),
        listens_end: ending,
    }
}

/// The maker of a tool call, a client of 2026-07-28.
pub fn maker(owner: &Principal, capabilities: Payload) -> CallMaker {
    CallMaker {
        principal: owner.clone(),
        kind: ClientKind::Stateless,
        capabilities,
        questions: Arc::new(|_| taskgate::engine::Askable::Declared),
        forwarded: ForwardedHeaders::default(),
        arrived: tokio::time::Instant::now(),
    }
}

/// A call's way to a server, with these settings.
pub fn target(upstream: Arc<dyn Upstream>, permits: &Arc<CallPermits>, settings: ServiceSettings) -> CallTarget {
    CallTarget { upstream, permits: Arc::clone(permits), settings: Arc::new(settings) }
}

/// A server of this name that cannot be reached.
#[derive(Debug)]
pub struct Unreachable(Arc<str>);

impl Unreachable {
    pub fn named(name: &str) -> Arc<Self> {
        Arc::new(Self(Arc::from(name)))
    }
}

const fn unreached() -> GatewayFault {
    GatewayFault::new(Reason::UpstreamUnreachable, Executed::No)
}

#[async_trait]
impl Upstream for Unreachable {
    fn name(&self) -> &Arc<str> {
        &self.0
    }

    async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        Err(BeginError::Gateway(unreached()))
    }

    async fn begin(&self, _: UpstreamRequest, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Err(BeginError::Gateway(unreached()))
    }

    async fn resume(&self, _: ResumeToken, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Err(BeginError::Gateway(unreached()))
    }

    async fn notifications(&self, _: &CallContext) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
        Err(BeginError::Gateway(unreached()))
    }
}

#[async_trait]
impl RawChannel for Unreachable {
    fn name(&self) -> &Arc<str> {
        &self.0
    }

    async fn send(&self, _: RawRequest) -> Result<RawResponse, GatewayFault> {
        Err(unreached())
    }
}

impl OwnSessionChannel for Unreachable {
    fn calls_in(&self, _: SessionLease) -> Arc<dyn Upstream> {
        unreachable!("no task runs in a session here")
    }
}
