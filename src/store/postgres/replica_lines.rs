//! Reads the lines that gateways keep of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use tokio_postgres::{Error, Row};

use super::columns::{at, holder, holder_column, time};
use super::session::Session;
use super::transaction::{CommitFailure, transact};
use crate::replica::{BootTime, Incarnation, LeaseTerms, OwnStanding, ReplicaLine, ReplicaLook, StoreGeneration};
use crate::store::clock_trust::ClockTrust;
use crate::store::record;
use crate::store::tasks::StoreError;
use crate::task::Timestamp;

/// All lines. A read alone: what it shows may be taken back, so nothing is lost by believing it.
pub(super) const LOOK: &str =
    "SELECT incarnation, name, address, version, record_reads, beat, now_ms, leaving, dead, config_digest, key_print
    FROM tg_replica ORDER BY incarnation";

/// The line of one life, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReplica {
    pub line: ReplicaLine,
    /// Whether its time is distrusted: its clock may have leapt ahead.
    pub(super) is_time_distrusted: bool,
    /// Of the program.
    pub version: String,
    pub config_digest: Vec<u8>,
    pub key_print: Vec<u8>,
}

/// A time as a line has it: below zero as long as it is distrusted, so that it counts among those that live, and for no later life.
pub(super) fn line_time(now: Timestamp, trust: ClockTrust) -> i64 {
    if trust.is_distrusted() { -at(now) } else { at(now) }
}

impl StoredReplica {
    fn of(row: &Row) -> Result<Self, Error> {
        let (address, now): (String, i64) = (row.try_get(2)?, row.try_get(6)?);
        let line = ReplicaLine {
            incarnation: holder(row.try_get(0)?),
            name: row.try_get(1)?,
            address: (!address.is_empty()).then_some(address),
            record_reads: u32::try_from(row.try_get::<_, i32>(4)?).unwrap_or(0),
            beat: u64::try_from(row.try_get::<_, i64>(5)?).unwrap_or(0),
            now: time(now.saturating_abs()),
            is_leaving: row.try_get(7)?,
            is_dead: row.try_get(8)?,
        };
        Ok(Self {
            line,
            is_time_distrusted: now < 0,
            version: row.try_get(3)?,
            config_digest: row.try_get(9)?,
            key_print: row.try_get(10)?,
        })
    }

    pub(super) fn all(rows: &[Row]) -> Result<Vec<Self>, Error> {
        rows.iter().map(Self::of).collect()
    }
}

/// What was seen of all lives last, and what that means for this one.
#[derive(Clone, Debug)]
pub struct ReplicaView {
    /// This life's too.
    pub lines: Vec<StoredReplica>,
    /// Since when the lines of others have the beats that they have.
    pub beats: BTreeMap<Incarnation, BootTime>,
    /// The last beat of this life that was acknowledged.
    pub(super) beat: u64,
    /// When it was sent, or this life's line was made.
    pub beaten: BootTime,
    /// What this life may do.
    pub standing: OwnStanding,
    /// The dead whose rows are anybody's.
    pub(super) given_up: Vec<Incarnation>,
}

impl ReplicaView {
    /// As this life begins, whose line was made at `beaten`.
    pub(super) fn of(lines: Vec<StoredReplica>, beaten: BootTime) -> Self {
        let (beats, given_up) = (BTreeMap::new(), Vec::new());
        Self { lines, beats, beat: 0, beaten, standing: OwnStanding::Member, given_up }
    }

    /// Whether this life may add rows. After seven eighths of the lease without an acknowledged beat it adds none: the others take it for
    /// dead, and its rows over, while its writer goes on. Those that it has it goes on with until it is replaced.
    ///
    /// # Errors
    /// `Io` if no beat was acknowledged for too long.
    pub(super) fn may_begin(&self, terms: LeaseTerms, now: BootTime) -> Result<(), StoreError> {
        if now.since(self.beaten) < terms.begin_max() {
            return Ok(());
        }
        Err(StoreError::Io(io::Error::other("no beat of this gateway's was acknowledged for too long")))
    }

    /// How many lives take something new, beside the one that looks: they keep limits together with it.
    #[must_use]
    pub fn taking_beside(&self, own: Incarnation) -> usize {
        let takes = |one: &&StoredReplica| {
            let ReplicaLine { incarnation, is_dead, is_leaving, .. } = one.line;
            incarnation != own && !is_dead && !is_leaving
        };
        self.lines.iter().filter(takes).count()
    }

    /// The newest version of records that all read who live, those that leave included.
    pub(super) fn record_format(&self) -> u16 {
        let living = self.lines.iter().filter(|one| !one.line.is_dead);
        let formats = living.map(|one| u16::try_from(one.line.record_reads).unwrap_or(u16::MAX));
        formats.fold(record::VERSION, u16::min)
    }

    /// Whether rows may be there to be taken over.
    pub(super) fn has_dead(&self) -> bool {
        self.lines.iter().any(|one| one.line.is_dead)
    }

    /// Takes what a look showed. A death that was declared stays declared: the look may have been sent before it.
    pub(super) fn looked(&mut self, lines: Vec<StoredReplica>) {
        let dead = self.lines.iter().filter(|one| one.line.is_dead).map(|one| one.line.incarnation);
        let dead: BTreeSet<Incarnation> = dead.collect();
        self.lines = lines;
        for one in &mut self.lines {
            one.line.is_dead |= dead.contains(&one.line.incarnation);
        }
    }

    pub(super) fn declared_dead(&mut self, life: Incarnation) {
        for one in self.lines.iter_mut().filter(|one| one.line.incarnation == life) {
            one.line.is_dead = true;
        }
    }
}

/// The look that lines are, for who judges by it.
pub(super) fn look_of(lines: &[StoredReplica], (sent, received): (BootTime, BootTime)) -> ReplicaLook {
    ReplicaLook { sent, received, lines: lines.iter().map(|one| one.line.clone()).collect() }
}

/// Reads all lines.
///
/// # Errors
/// Whatever the server says.
pub(super) async fn read_lines(session: &Session) -> Result<Vec<StoredReplica>, Error> {
    StoredReplica::all(&session.client.query(LOOK, &[]).await?)
}

/// The generation of a store as a column's text; `None` if it is no such text.
pub(super) fn generation_of(text: &str) -> Option<StoreGeneration> {
    uuid::Uuid::parse_str(text).ok().map(|read| StoreGeneration(read.as_u128()))
}

/// As an operator writes it.
pub(super) fn generation_text(generation: StoreGeneration) -> String {
    uuid::Uuid::from_u128(generation.0).to_string()
}

/// Declares a life dead: if it has not beaten since it was seen at `beat` (7.3), as it is silent; without one, whatever it has done. Counts
/// more than what that life thinks of itself. Whether it was declared so now: one that was not is dead already, or beats, and nobody
/// rests on which.
///
/// # Errors
/// See [`CommitFailure`].
pub(super) async fn declare_dead(
    session: &Session,
    life: Incarnation,
    beat: Option<u64>,
) -> Result<bool, CommitFailure> {
    let sql = "UPDATE tg_replica SET dead = true, died = now() WHERE incarnation = $1 AND (beat = $2 OR $2 IS NULL) AND NOT dead RETURNING 1";
    let statement = session.client.prepare(sql).await.map_err(CommitFailure::NotMade)?;
    let (life_column, beat) = (holder_column(life), beat.map(|beat| i64::try_from(beat).unwrap_or(i64::MAX)));
    let made = transact(session, &[(&statement, vec![&life_column, &beat])]).await;
    if made.as_ref().is_err_and(CommitFailure::wrote_nothing) {
        return Ok(false);
    }
    made?;
    if beat.is_some() {
        tracing::warn!(%life, "a gateway is silent, and was declared dead; its tasks are taken over");
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line(life: u64, is_dead: bool) -> StoredReplica {
        let line = ReplicaLine {
            incarnation: Incarnation(life),
            name: String::new(),
            address: None,
            record_reads: 1,
            beat: 1,
            now: Timestamp::from_millis(0),
            is_leaving: false,
            is_dead,
        };
        StoredReplica {
            line,
            is_time_distrusted: false,
            version: String::new(),
            config_digest: Vec::new(),
            key_print: Vec::new(),
        }
    }

    #[test]
    fn a_life_adds_no_rows_once_its_beats_are_unanswered() {
        let after = |millis| BootTime(Duration::from_millis(millis));
        let view = ReplicaView::of(Vec::new(), after(2_000));
        assert!(view.may_begin(LeaseTerms::default(), after(8_999)).is_ok());
        assert!(view.may_begin(LeaseTerms::default(), after(9_000)).is_err());
    }

    #[test]
    fn a_look_that_was_sent_before_a_death_does_not_take_it_back() {
        let mut view = ReplicaView::of(vec![line(1, false), line(2, false), line(3, false)], BootTime::default());
        view.declared_dead(Incarnation(1));
        view.looked(vec![line(1, false), line(2, false), line(3, true)]);
        let dead = |view: &ReplicaView| view.lines.iter().map(|one| one.line.is_dead).collect::<Vec<_>>();
        assert_eq!(dead(&view), [true, false, true]);
        view.looked(vec![line(2, false), line(3, true)]);
        assert_eq!(dead(&view), [false, true], "a line that is gone is gone");
    }
}
