//! Replica heartbeat: writes this replica's row, reads the others', and marks silent replicas dead. Receives hints. A
//! heartbeat is a commit, so it proves that the server kept its acknowledged writes, and is the same: [`Membership`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_postgres::{Error, Notification, Statement};
use tokio_util::sync::CancellationToken;

use super::columns::holder_column;
use super::health::PostgresHealth;
use super::hints;
use super::open_error::PostgresOpenError;
use super::replica_rows::{
    LOOK, SharedReplicaView, StoredReplica, declare_dead, generation_of, log_declared_dead, look_of, row_time,
};
use super::session::{DatabaseConnector, Session, back_off};
use super::state::StoreState;
use super::sums::SumChange;
use super::transaction::{CommitFailure, DURABILITY_PROOF, Parameters, transact};
use super::{SharedClock, boot_time};
use crate::metric;
use crate::replica::membership::LOOK_EVERY;
use crate::replica::{HeartbeatAnswer, Incarnation, Membership, OwnStanding};
use crate::store::tasks::StoreHint;
use crate::task::Clock as _;

const MEASURE_EVERY: Duration = Duration::from_secs(15);
/// Returns the age in seconds of the oldest transaction of other processes here, and the number of dead row versions in
/// `tg_task`. `$1` is the prefix of our connections' names. Only `pg_read_all_stats` sees other roles' transactions.
const GROWTH: &str = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8,
    coalesce(pg_stat_get_dead_tuples(to_regclass('tg_task')), 0)::float8
    FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
    AND NOT starts_with(application_name, $1)";

/// A hint that takes longer counts as undelivered.
const HINT_WITHIN: Duration = Duration::from_secs(2);

/// Further notifications are dropped, and the loss is detected.
const NOTIFICATIONS_MAX: usize = 4_096;

const HEARTBEAT: &str = "UPDATE tg_replica SET beat = beat + 1, now_ms = $2, leaving = $3, config_digest = $4
    WHERE incarnation = $1 AND NOT dead
    RETURNING beat, (SELECT generation::text FROM tg_meta)";
/// Reads this replica's row, after a heartbeat updated none.
const OWN_ROW: &str = "SELECT dead, beat FROM tg_replica WHERE incarnation = $1";
/// Returns the sums of all other incarnations and of incarnation 0, without zero sums.
pub(super) const OTHERS_SUMS: &str = "SELECT owner, sum(tasks)::int8, sum(unsettled)::int8, sum(bytes)::int8 FROM (
        SELECT * FROM tg_usage WHERE incarnation < $1 UNION ALL SELECT * FROM tg_usage WHERE incarnation > $1) AS others
    GROUP BY owner HAVING sum(tasks) <> 0 OR sum(unsettled) <> 0 OR sum(bytes) <> 0";

#[derive(Clone, Debug)]
pub(super) struct HeartbeatContent {
    pub(super) is_leaving: bool,
    pub(super) config_digest: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct ReplicaControl {
    pub(super) connector: Arc<DatabaseConnector>,
    pub(super) state: Arc<StoreState>,
    pub(super) view: SharedReplicaView,
    pub(super) clock: Arc<SharedClock>,
    pub(super) membership: Membership,
    pub(super) content: watch::Receiver<HeartbeatContent>,
    pub(super) end: CancellationToken,
    pub(super) has_warned: bool,
    pub(super) dead: BTreeSet<Incarnation>,
}

struct ControlLink {
    session: Session,
    notifications: mpsc::Receiver<Notification>,
    /// When a hint to this connection itself was sent.
    hinted: Option<Instant>,
    hears: bool,
    heartbeat: Statement,
    proof: Statement,
    look: Statement,
    others: Statement,
    growth: Statement,
}

impl ReplicaControl {
    /// Sends heartbeats until the store is closed or this incarnation is fenced.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        let end = self.end.clone();
        loop {
            let beating = async {
                let mut link = self.connect().await?;
                self.state.publish(StoreHint::Missed);
                self.heartbeats(&mut link, &mut failures).await
            };
            let Some(Err(trouble)) = end.run_until_cancelled(beating).await else { return };
            match self.standing() {
                OwnStanding::Fenced => return self.state.control_is(PostgresHealth::Fenced),
                OwnStanding::StoreLost(loss) => {
                    tracing::error!(error = %loss, "the database lost acknowledged writes: it is older, or another one");
                    return self.state.control_is(PostgresHealth::Lost);
                }
                OwnStanding::Member => self.state.control_is(trouble),
            }
            failures += 1;
            if end.run_until_cancelled(tokio::time::sleep(back_off(failures))).await.is_none() {
                return;
            }
        }
    }

    fn standing(&self) -> OwnStanding {
        let standing = self.membership.standing(boot_time());
        self.view.set_standing(standing);
        standing
    }

    async fn connect(&self) -> Result<ControlLink, PostgresHealth> {
        let (sender, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
        let session = self.connector.connect("control", Some(sender)).await;
        let session = session.map_err(|error: PostgresOpenError| error.health())?;
        // A server that falls silent here must not delay the discovery that this replica is fenced.
        let within = self.state.settings.access.write_max;
        tokio::time::timeout(within, self.prepare(session, notifications)).await.unwrap_or(Err(PostgresHealth::slow()))
    }

    async fn prepare(
        &self,
        session: Session,
        notifications: mpsc::Receiver<Notification>,
    ) -> Result<ControlLink, PostgresHealth> {
        let client = &session.client;
        let channel = hints::channel(&self.state.settings.access.schema);
        client.batch_execute(&format!("LISTEN {channel}")).await.map_err(unavailable)?;
        let heartbeat = client.prepare(HEARTBEAT).await.map_err(unavailable)?;
        let look = client.prepare(LOOK).await.map_err(unavailable)?;
        let others = client.prepare(OTHERS_SUMS).await.map_err(unavailable)?;
        let proof = client.prepare(DURABILITY_PROOF).await.map_err(unavailable)?;
        let growth = client.prepare(GROWTH).await.map_err(unavailable)?;
        Ok(ControlLink { session, notifications, hinted: None, hears: false, heartbeat, proof, look, others, growth })
    }

    /// Sends heartbeats until a failure or until this replica is fenced. Never returns `Ok`.
    async fn heartbeats(&mut self, link: &mut ControlLink, failures: &mut u32) -> Result<(), PostgresHealth> {
        let within = self.state.settings.access.write_max;
        let slow = |_| PostgresHealth::slow();
        let mut heartbeats = tokio::time::interval(self.state.settings.terms.heartbeat_interval());
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let mut measures = tokio::time::interval(MEASURE_EVERY);
        for timer in [&mut heartbeats, &mut looks, &mut measures] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                _ = heartbeats.tick() => {
                    tokio::time::timeout(within * 2, self.heartbeat(link)).await.map_err(slow)??;
                    self.goes_on()?;
                    *failures = 0;
                    self.state.control_is(PostgresHealth::Good);
                    if link.hinted.is_none() {
                        tokio::time::timeout(within, self.hint_at_itself(link)).await.map_err(slow)??;
                    }
                }
                Ok(()) = self.content.changed() => heartbeats.reset_immediately(),
                _ = looks.tick() => {
                    tokio::time::timeout(within, self.look(link)).await.map_err(slow)??;
                    self.keep_nothing_unnotified(link);
                }
                _ = measures.tick() => tokio::time::timeout(within, self.measure_growth(link)).await.map_err(slow)??,
                received = link.notifications.recv() => {
                    link.hears = true;
                    let Some(received) = received else { return Err(PostgresHealth::Unavailable("the connection ended".to_owned())) };
                    self.receive(link, &received);
                }
            }
            self.goes_on()?;
        }
    }

    fn goes_on(&self) -> Result<(), PostgresHealth> {
        match self.standing() {
            OwnStanding::Member => Ok(()),
            OwnStanding::Fenced | OwnStanding::StoreLost(_) => Err(PostgresHealth::Fenced),
        }
    }

    /// Tests whether hints arrive. The `NOTIFY` is a commit, so a heartbeat goes first.
    async fn hint_at_itself(&self, link: &mut ControlLink) -> Result<(), PostgresHealth> {
        let (channel, text) = (hints::channel(&self.state.settings.access.schema), hints::keyless(self.state.holder));
        link.session.client.batch_execute(&format!("NOTIFY {channel}, '{text}'")).await.map_err(unavailable)?;
        link.hinted = Some(Instant::now());
        Ok(())
    }

    /// Empties the cache of settled rows while hints do not arrive, as through poolers: it would miss removals.
    fn keep_nothing_unnotified(&mut self, link: &ControlLink) {
        if link.hears || link.hinted.is_none_or(|at| at.elapsed() < HINT_WITHIN) {
            return;
        }
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "notifications of the database do not arrive, as through some poolers: no settled task is kept in memory"
            );
        }
        self.state.settled.clear();
    }

    /// Publishes a received hint, or a missed one if the channel was full.
    fn receive(&self, link: &ControlLink, received: &Notification) {
        if link.notifications.len() + 1 >= NOTIFICATIONS_MAX {
            self.state.publish(StoreHint::Missed);
        }
        if let Some(hint) = hints::read(received.payload(), self.state.holder) {
            self.state.publish(hint);
        }
    }

    async fn heartbeat(&mut self, link: &ControlLink) -> Result<(), PostgresHealth> {
        let sent = boot_time();
        let (me, now) = (holder_column(self.state.holder), row_time(self.clock.now(), self.state.clock_trust));
        let HeartbeatContent { is_leaving, config_digest } = self.content.borrow().clone();
        let values: Parameters<'_> = vec![&me, &now, &is_leaving, &config_digest];
        // The reason for a heartbeat that updated no row is read after a barrier.
        let made = transact(&link.session, &[(&link.heartbeat, values), (&link.proof, vec![])]).await;
        let made = made.map_err(|failure: CommitFailure| failure.health())?;
        self.state.settled.write_passed(link.session.server, made.sent);
        let answer = match made.rows.first().and_then(|rows| rows.first()) {
            Some(row) => {
                let (heartbeat, generation): (i64, String) =
                    (row.try_get(0).map_err(unavailable)?, row.try_get(1).map_err(unavailable)?);
                let unreadable = || PostgresHealth::Unavailable("its generation cannot be read".to_owned());
                HeartbeatAnswer::Acknowledged {
                    heartbeat: u64::try_from(heartbeat).unwrap_or(0),
                    generation: generation_of(&generation).ok_or_else(unreadable)?,
                }
            }
            None => self.unwritten(link, me).await?,
        };
        let was_acknowledged = matches!(answer, HeartbeatAnswer::Acknowledged { .. });
        self.membership.heartbeat_answered(answer, sent, boot_time());
        if was_acknowledged {
            metrics::counter!(metric::REPLICA_HEARTBEATS).increment(1);
            let heartbeat = self.membership.acknowledged_heartbeat();
            self.view.change(|view| (view.heartbeat, view.heartbeat_sent) = (heartbeat, sent));
        }
        Ok(())
    }

    async fn unwritten(&self, link: &ControlLink, me: i64) -> Result<HeartbeatAnswer, PostgresHealth> {
        let row = link.session.client.query_opt(OWN_ROW, &[&me]).await.map_err(unavailable)?;
        let Some(row) = row else { return Ok(HeartbeatAnswer::Missing) };
        let (is_dead, heartbeat): (bool, i64) =
            (row.try_get(0).map_err(unavailable)?, row.try_get(1).map_err(unavailable)?);
        if is_dead {
            return Ok(HeartbeatAnswer::Dead { heartbeat: u64::try_from(heartbeat).unwrap_or(0) });
        }
        Err(PostgresHealth::Unavailable("a heartbeat was not written".to_owned()))
    }

    async fn look(&mut self, link: &ControlLink) -> Result<(), PostgresHealth> {
        let (client, sent) = (&link.session.client, boot_time());
        let rows = client.query(&link.look, &[]).await.map_err(unavailable)?;
        let received = boot_time();
        let rows = StoredReplica::all(&rows).map_err(unavailable)?;
        // Also without other replicas: the sums read last may have been reassigned to this one.
        let sums = client.query(&link.others, &[&holder_column(self.state.holder)]).await.map_err(unavailable)?;
        self.state.sums.reset_others(SumChange::all(&sums).map_err(unavailable)?);
        let silent = self.membership.apply_look(look_of(&rows, sent, received));
        if let Some(highest) = self.membership.highest_now() {
            self.clock.steer(highest, received);
        }
        let dead = rows.iter().filter(|one| one.row.is_dead).map(|one| one.row.incarnation).collect();
        if !BTreeSet::is_subset(&dead, &self.dead) {
            // The dead replicas may have sent no hints for their last writes.
            self.state.publish(StoreHint::Missed);
        }
        self.dead = dead;
        let living = rows.iter().filter(|one| !one.row.is_dead).count();
        metrics::gauge!(metric::REPLICAS_LIVING).set(f64::from(u32::try_from(living).unwrap_or(u32::MAX)));
        let incarnations = rows.iter().map(|one| one.row.incarnation);
        let heartbeats = incarnations
            .filter_map(|incarnation| Some((incarnation, self.membership.heartbeat_seen_at(incarnation)?)))
            .collect();
        let abandoned = self.membership.abandoned(received).collect();
        self.view.change(|view| {
            view.apply_look(rows);
            (view.heartbeats, view.abandoned) = (heartbeats, abandoned);
        });
        for claim in silent {
            let declared = declare_dead(&link.session, claim.incarnation, Some(claim.heartbeat)).await;
            if declared.map_err(|failure| failure.health())? {
                if let Some(one) = self.view.now().rows.iter().find(|one| one.row.incarnation == claim.incarnation) {
                    log_declared_dead(&one.row);
                }
                self.view.change(|view| view.declared_dead(claim.incarnation));
            }
        }
        Ok(())
    }

    /// Measures dead row versions, and transactions of other processes that keep the server from freeing them.
    async fn measure_growth(&self, link: &ControlLink) -> Result<(), PostgresHealth> {
        let own = self.connector.name_of_connections();
        let row = match link.session.client.query_one(&link.growth, &[&own]).await {
            Ok(row) => row,
            // Without the right to read these views there are no values.
            Err(error) if error.as_db_error().is_some() && !link.session.client.is_closed() => return Ok(()),
            Err(error) => return Err(unavailable(error)),
        };
        metrics::gauge!(metric::DATABASE_OLDEST_TRANSACTION).set(row.try_get::<_, f64>(0).map_err(unavailable)?);
        metrics::gauge!(metric::DATABASE_DEAD_ROWS).set(row.try_get::<_, f64>(1).map_err(unavailable)?);
        Ok(())
    }
}

fn unavailable(error: Error) -> PostgresHealth {
    PostgresHealth::of(&error)
}
