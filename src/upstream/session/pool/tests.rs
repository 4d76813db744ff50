//! Eviction from the pool, without a network.

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::metric::tests::shown;
use crate::shared_limits::SharedLimits;
use crate::task::Principal;
use crate::upstream::ClientCredential;
use crate::upstream::exchange::ExchangeLatencies;
use crate::upstream::limits::CallPermits;
use crate::upstream::session::POLLS;
use crate::upstream::transport::Transport;
use crate::upstream::transport::http_client::{ClientTls, HttpClient, ProxySettings};
use crate::upstream::version_choice::VersionChoice;
use crate::wire::Payload;

fn pool() -> Arc<SessionPool> {
    let url = "http://127.0.0.1:9/mcp".parse().unwrap();
    let client = HttpClient::new(
        &Arc::from("reports"),
        &url,
        Duration::from_secs(1),
        ClientTls::default(),
        &ProxySettings::Direct,
    )
    .unwrap();
    let link = UpstreamLink {
        name: Arc::from("reports"),
        health: Arc::clone(client.health()),
        transport: Transport::Http(client),
        latencies: ExchangeLatencies::of(&Arc::from("reports")),
        versions: VersionChoice::new(None),
        tracker: TaskTracker::new(),
        stop: CancellationToken::new(),
        polls: CallPermits::unmetered(POLLS, SharedLimits::default()),
        limits: SharedLimits::default(),
    };
    SessionPool::new(Arc::new(link))
}

fn key(n: usize) -> SessionKey {
    SessionKey {
        principal: Principal::new(&format!("key:{n}")),
        capabilities: Payload::empty_object(),
        credential: ClientCredential::default(),
    }
}

impl SessionPool {
    /// Inserts a session after its handshake.
    fn insert(&self, key: SessionKey, used: Instant) -> Arc<UpstreamSession> {
        let session = UpstreamSession::adopted(&self.link, SessionHeaders::default(), UpstreamTaskSupport::default());
        let opened = Ok(Arc::clone(&session));
        let opening = async move { opened }.boxed().shared();
        assert!(opening.clone().now_or_never().is_some());
        self.pooled.lock().insert(key, PooledSession { opening, forwarded: ForwardedHeaders::default(), used });
        session
    }

    fn count(&self) -> usize {
        self.pooled.lock().len()
    }
}

#[tokio::test]
async fn a_session_is_kept_for_five_minutes_after_its_last_use() {
    let pool = pool();
    let start = Instant::now();
    let held = pool.insert(key(0), start);
    let news = pool.insert(key(1), start).subscribe();
    drop(pool.insert(key(2), start));
    pool.sweep(start + IDLE_MAX - Duration::from_secs(1));
    assert_eq!(pool.count(), 3);
    pool.sweep(start + IDLE_MAX);
    assert_eq!(pool.count(), 2, "a session with a call or a subscriber is in use");
    drop((held, news));
    pool.sweep(start + IDLE_MAX + IDLE_MAX - Duration::from_secs(1));
    assert_eq!(pool.count(), 2, "its time begins when it is no longer used");
    pool.sweep(start + IDLE_MAX + IDLE_MAX);
    assert_eq!(pool.count(), 0);
}

#[tokio::test]
async fn a_session_whose_requests_are_refused_is_not_kept_by_them() {
    let pool = pool();
    let start = Instant::now() - IDLE_MAX;
    let session = pool.insert(key(0), start);
    assert!(session.refusals.count().is_none(), "one refusal asks nothing");
    assert!(pool.opening(&key(0)).is_ok());
    pool.sweep(start + IDLE_MAX);
    assert_eq!(pool.count(), 1, "a call runs in it");
    drop(session);
    pool.sweep(start + IDLE_MAX);
    assert_eq!(pool.count(), 0);
}

#[tokio::test]
async fn a_full_pool_lets_go_of_the_idle_session_that_was_used_longest_ago() {
    let pool = pool();
    let start = Instant::now();
    let held: Vec<_> = (0..SESSIONS_MAX)
        .map(|n| pool.insert(key(n), start + Duration::from_millis(u64::try_from(n).unwrap())))
        .collect();
    let refused = pool.opening(&key(SESSIONS_MAX)).err();
    let full = GatewayFault::new(Reason::QueueFull, Executed::No);
    assert!(matches!(refused, Some(BeginError::Gateway(fault)) if fault == full), "none is idle");
    // The first stays in use; of the idle ones the second is the least recently used.
    let first = held.into_iter().next();
    assert!(pool.opening(&key(SESSIONS_MAX)).is_ok());
    let pooled = pool.pooled.lock();
    let kept: Vec<_> = [0, 1, 2, SESSIONS_MAX].map(|n| pooled.contains_key(&key(n))).into();
    assert_eq!(kept, [true, false, true, true]);
    assert_eq!((pooled.len(), first.is_some()), (SESSIONS_MAX, true));
}

#[tokio::test]
async fn a_handshake_that_failed_after_all_had_left_is_forgotten() {
    let pool = pool();
    let failed = BeginError::Gateway(GatewayFault::new(Reason::UpstreamUnreachable, Executed::No));
    let opening = async move { Err(failed) }.boxed().shared();
    pool.pooled
        .lock()
        .insert(key(0), PooledSession { opening, forwarded: ForwardedHeaders::default(), used: Instant::now() });
    pool.sweep(Instant::now());
    assert_eq!(pool.count(), 0);
}

#[tokio::test]
async fn a_pool_that_is_closed_or_gone_has_no_open_sessions_and_takes_none_from_another() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let open = || shown(&recorder, "taskgate_upstream_sessions{upstream=\"reports\"}");
    let now = Instant::now();
    let pools = [pool(), pool(), pool()];
    let held: Vec<_> = pools.iter().flat_map(|pool| (0..2).map(|n| pool.insert(key(n), now))).collect();
    pools.iter().for_each(|pool| pool.sweep(now));
    assert_eq!(open(), 6.0);
    let [closed, gone, other] = pools;
    drop(held);
    closed.close().await;
    assert_eq!(open(), 4.0);
    drop((closed, gone));
    assert_eq!((open(), other.count()), (2.0, 2));
}
