//! Keeps this life's line: beats, looks at the lines of the others, and listens to their hints, on a connection of its own.
//!
//! A beat is a commit like any other, so it is at once the proof that the server still keeps what it acknowledges; and it says whether the
//! store is the one that acknowledged the beats before. Who is dead is judged elsewhere, by what is seen here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_postgres::{Error, Notification, Row, Statement};
use tokio_util::sync::CancellationToken;

use super::columns::{at, holder, holder_column};
use super::hints;
use super::open_error::PostgresOpenError;
use super::session::{DatabaseConnector, Session, back_off, in_words};
use super::state::{PostgresHealth, StoreState};
use super::sums::SumChange;
use super::transaction::{CommitFailure, PROMISE, transact};
use crate::replica::Incarnation;
use crate::store::tasks::StoreHint;
use crate::task::Clock;

/// How often the other lines are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Notifications that wait to be read; when there is no room, some are missed.
const NOTIFICATIONS_MAX: usize = 4_096;

const BEAT: &str =
    "UPDATE tg_replica SET beat = beat + 1, now_ms = $2, leaving = $3 WHERE incarnation = $1 AND NOT dead
    RETURNING beat, (SELECT generation::text FROM tg_meta)";
const LOOK: &str =
    "SELECT incarnation, name, address, version, record_reads, beat, now_ms, leaving, dead, config_digest, key_print
    FROM tg_replica ORDER BY incarnation";
/// The sums of all other lives. A line of zeros says nothing.
const OTHERS_SUMS: &str = "SELECT owner, sum(tasks)::int8, sum(unsettled)::int8, sum(bytes)::int8 FROM tg_usage
    WHERE incarnation <> $1 GROUP BY owner";

/// The line of one life, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReplica {
    pub holder: Incarnation,
    pub name: String,
    pub address: String,
    pub version: String,
    /// The newest format of records that it reads.
    pub record_reads: i32,
    pub beat: i64,
    /// Its clock of tasks.
    pub now_ms: i64,
    pub is_leaving: bool,
    pub is_dead: bool,
    pub config_digest: Vec<u8>,
    pub key_print: Vec<u8>,
}

impl StoredReplica {
    fn of(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            holder: holder(row.try_get(0)?),
            name: row.try_get(1)?,
            address: row.try_get(2)?,
            version: row.try_get(3)?,
            record_reads: row.try_get(4)?,
            beat: row.try_get(5)?,
            now_ms: row.try_get(6)?,
            is_leaving: row.try_get(7)?,
            is_dead: row.try_get(8)?,
            config_digest: row.try_get(9)?,
            key_print: row.try_get(10)?,
        })
    }
}

/// What was seen at a look.
#[derive(Clone, Debug, Default)]
pub struct ReplicaView {
    /// All lives, this one too.
    pub lines: Vec<StoredReplica>,
    /// When that was.
    pub seen: Option<Instant>,
    /// When the last acknowledged beat of this life was begun.
    pub beaten: Option<Instant>,
}

impl ReplicaView {
    /// Whether rows may be there to be taken over.
    pub(super) fn has_dead(&self) -> bool {
        self.lines.iter().any(|line| line.is_dead)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct ReplicaControl {
    pub(super) connector: Arc<DatabaseConnector>,
    pub(super) state: Arc<StoreState>,
    pub(super) view: watch::Sender<ReplicaView>,
    /// Its clock of tasks.
    pub(super) clock: Arc<dyn Clock>,
    pub(super) is_leaving: watch::Receiver<bool>,
    /// As it was when the store was opened.
    pub(super) generation: String,
    pub(super) end: CancellationToken,
}

struct ControlLink {
    session: Session,
    notifications: mpsc::Receiver<Notification>,
    beat: Statement,
    look: Statement,
    others: Statement,
    promise: Statement,
}

/// Why beats end for good.
enum BeatsEnd {
    Dead,
    Lost,
}

impl ReplicaControl {
    /// Beats until the store is closed, or this life is dead.
    pub(super) async fn run(mut self) {
        let (mut failures, mut last_beat) = (0, 0);
        let end = self.end.clone();
        loop {
            let beating = async {
                let mut link = self.connect().await.map_err(PostgresHealth::Away)?;
                self.state.heard(StoreHint::Missed);
                self.beats(&mut link, &mut last_beat, &mut failures).await
            };
            let ended = tokio::select! {
                ended = beating => ended,
                () = end.cancelled() => return,
            };
            match ended {
                Ok(BeatsEnd::Dead) => return self.state.control_is(PostgresHealth::Fenced),
                Ok(BeatsEnd::Lost) => return self.state.control_is(PostgresHealth::Lost),
                Err(trouble) => self.state.control_is(trouble),
            }
            failures += 1;
            tokio::select! {
                () = tokio::time::sleep(back_off(failures)) => (),
                () = end.cancelled() => return,
            }
        }
    }

    async fn connect(&self) -> Result<ControlLink, String> {
        let words = |error: Error| in_words(&error);
        let (sender, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
        let session = self.connector.connect("control", Some(sender)).await;
        let session = session.map_err(|error: PostgresOpenError| error.to_string())?;
        let client = &session.client;
        let channel = hints::channel(&self.state.settings.schema);
        client.batch_execute(&format!("LISTEN {channel}")).await.map_err(words)?;
        let beat = client.prepare(BEAT).await.map_err(words)?;
        let look = client.prepare(LOOK).await.map_err(words)?;
        let others = client.prepare(OTHERS_SUMS).await.map_err(words)?;
        let promise = client.prepare(PROMISE).await.map_err(words)?;
        Ok(ControlLink { session, notifications, beat, look, others, promise })
    }

    async fn beats(
        &mut self,
        link: &mut ControlLink,
        last: &mut i64,
        failures: &mut u32,
    ) -> Result<BeatsEnd, PostgresHealth> {
        let within = self.state.settings.write_max;
        let slow = |_| PostgresHealth::Away("the database takes too long".to_owned());
        let mut beats = tokio::time::interval(self.state.settings.lease / 4);
        let mut looks = tokio::time::interval(LOOK_EVERY);
        for timer in [&mut beats, &mut looks] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        loop {
            tokio::select! {
                _ = beats.tick() => {
                    if let Some(end) = tokio::time::timeout(within, self.beat(link, last)).await.map_err(slow)?? {
                        return Ok(end);
                    }
                    *failures = 0;
                    self.state.control_is(PostgresHealth::Good);
                }
                Ok(()) = self.is_leaving.changed() => beats.reset_immediately(),
                _ = looks.tick() => {
                    let looked = tokio::time::timeout(within, self.look(link)).await.map_err(slow)?;
                    looked.map_err(|error| PostgresHealth::Away(in_words(&error)))?;
                }
                heard = link.notifications.recv() => {
                    let Some(heard) = heard else { return Err(PostgresHealth::Away("the connection ended".to_owned())) };
                    self.hear(link, &heard);
                }
            }
        }
    }

    /// What others say; if there was no room for all of it, some was missed.
    fn hear(&self, link: &ControlLink, heard: &Notification) {
        if link.notifications.len() + 1 >= NOTIFICATIONS_MAX {
            self.state.heard(StoreHint::Missed);
        }
        if let Some(hint) = hints::read(heard.payload(), self.state.holder) {
            self.state.heard(hint);
        }
    }

    async fn beat(&self, link: &ControlLink, last: &mut i64) -> Result<Option<BeatsEnd>, PostgresHealth> {
        let away = |error: Error| PostgresHealth::Away(in_words(&error));
        let begun = Instant::now();
        let (me, now, is_leaving) = (holder_column(self.state.holder), at(self.clock.now()), *self.is_leaving.borrow());
        let values: super::transaction::Parameters<'_> = vec![&me, &now, &is_leaving];
        let made =
            transact(&link.session, &link.promise, self.state.settings.durability, &[(&link.beat, values)]).await;
        let rows = made.map_err(|failure| match failure {
            CommitFailure::NoStandby => PostgresHealth::NoStandby,
            CommitFailure::NotMade(_) | CommitFailure::Unsure(_) => PostgresHealth::Away(failure.into_io().to_string()),
        })?;
        let Some(row) = rows.iter().flatten().next() else { return Ok(Some(BeatsEnd::Dead)) };
        let beat: i64 = row.try_get(0).map_err(away)?;
        let generation: String = row.try_get(1).map_err(away)?;
        // A beat of which nobody knows may have been made, so it may have gone on by more than one.
        if beat <= *last || generation != self.generation {
            return Ok(Some(BeatsEnd::Lost));
        }
        *last = beat;
        self.view.send_modify(|view| view.beaten = Some(begun));
        Ok(None)
    }

    async fn look(&self, link: &ControlLink) -> Result<(), Error> {
        let client = &link.session.client;
        let rows = client.query(&link.look, &[]).await?;
        let lines = rows.iter().map(StoredReplica::of).collect::<Result<Vec<_>, _>>()?;
        if lines.len() > 1 {
            let sums = client.query(&link.others, &[&holder_column(self.state.holder)]).await?;
            self.state.sums.reset_others(sums.iter().map(|row| SumChange::of(row, 0, 1)).collect::<Result<_, _>>()?);
        }
        self.view.send_modify(|view| (view.lines, view.seen) = (lines, Some(Instant::now())));
        Ok(())
    }
}

/// What a life writes of itself when it begins.
pub(super) const BEGIN: &str = "WITH line AS (
        INSERT INTO tg_replica (name, address, version, record_reads, config_digest, key_print, now_ms)
        VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING incarnation),
    lane AS (INSERT INTO tg_lane (incarnation, epoch) SELECT incarnation, 0 FROM line)
    SELECT incarnation, (SELECT generation::text FROM tg_meta) FROM line";

/// Declares a life dead, if it has not beaten since (7.3). Counts more than what it thinks of itself.
pub(super) const DECLARE_DEAD: &str =
    "UPDATE tg_replica SET dead = true, died = now() WHERE incarnation = $1 AND (beat = $2 OR $2 < 0) AND NOT dead";

/// Makes one look, and the sums of the others.
pub(super) async fn look_once(session: &Session, state: &StoreState) -> Result<ReplicaView, Error> {
    let rows = session.client.query(LOOK, &[]).await?;
    let lines = rows.iter().map(StoredReplica::of).collect::<Result<Vec<_>, _>>()?;
    let sums = session.client.query(OTHERS_SUMS, &[&holder_column(state.holder)]).await?;
    state.sums.reset_others(sums.iter().map(|row| SumChange::of(row, 0, 1)).collect::<Result<_, _>>()?);
    Ok(ReplicaView { lines, seen: Some(Instant::now()), beaten: None })
}
