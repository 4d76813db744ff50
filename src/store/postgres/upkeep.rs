//! Removes the remains of dead incarnations, and sums that cancel out: periodically in portions, or on request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_postgres::Error;
use tokio_util::sync::CancellationToken;

use super::PostgresStore;
use super::batch::RETIRED_SUMS_MAX;
use super::columns::{count, holder_column};
use super::readers::ReaderLink;
use super::replica_rows::{LOOK, StoredReplica, declare_dead};
use super::state::StoreState;
use super::sums::StoreSums;
use super::task_write::TaskWrite;
use super::writer::PendingWrite;
use crate::replica::Incarnation;
use crate::store::tasks::StoreError;

const PASS_EVERY: Duration = Duration::from_secs(60);
const PORTIONS_MAX: usize = 16;

pub(super) async fn run(queue: mpsc::Sender<PendingWrite>, state: Arc<StoreState>, end: CancellationToken) {
    let mut passes = tokio::time::interval(PASS_EVERY);
    passes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first interval ends at once, while the caller of `open` is still busy.
    passes.reset();
    loop {
        let making = async {
            passes.tick().await;
            // The server's clock decides when rows of dead replicas are deleted, and they record when the store was last used.
            if state.clock_trust.is_distrusted() {
                return Ok(());
            }
            pass(&queue, None).await?;
            merge(&queue, &state.sums).await
        };
        let Some(made) = end.run_until_cancelled(making).await else { return };
        if let Err(error) = made {
            tracing::debug!(%error, "the rows of dead incarnations, and the sums of owners without tasks, stay for now");
        }
    }
}

/// Removes portions until one is not full: of all long-dead incarnations, or of one dead incarnation.
pub(super) async fn pass(
    queue: &mpsc::Sender<PendingWrite>,
    incarnation: Option<Incarnation>,
) -> Result<(), StoreError> {
    for _ in 0..PORTIONS_MAX {
        if write(queue, TaskWrite::Retire { incarnation }).await? < count(RETIRED_SUMS_MAX) {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) async fn merge(queue: &mpsc::Sender<PendingWrite>, sums: &StoreSums) -> Result<(), StoreError> {
    for _ in 0..PORTIONS_MAX {
        let even = sums.even(count(RETIRED_SUMS_MAX));
        let is_last = even.len() < count(RETIRED_SUMS_MAX);
        if !even.is_empty() {
            let owners = even.iter().map(|owner| owner.as_str().as_bytes().to_vec()).collect();
            write(queue, TaskWrite::Merge { owners }).await?;
        }
        if is_last {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the number of affected sums.
async fn write(queue: &mpsc::Sender<PendingWrite>, write: TaskWrite) -> Result<usize, StoreError> {
    let (reply, outcome) = oneshot::channel();
    queue.send((write, reply)).await.map_err(|_| StoreError::closed())?;
    outcome.await.map_err(|_| StoreError::closed())??.count()
}

const HELD: &str = "SELECT count(*) FROM tg_task WHERE holder = ANY ($1)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaForgetting {
    /// The number of removed incarnations.
    Forgotten(usize),
    Unknown,
    /// None of its incarnations is dead.
    Alive,
    /// The number of rows that still have it as their holder.
    Holding(usize),
    /// Its last write has not ended yet, or it left too much for one pass.
    Unfinished,
}

impl PostgresStore {
    /// Declares an incarnation dead: others may claim its rows, and it can no longer write. After `Io` it may be dead or not.
    pub async fn declare_dead(&self, incarnation: Incarnation) -> Result<bool, StoreError> {
        let declare = async {
            let session = self.connector.connect("declaring", None).await.map_err(|error| error.to_string())?;
            declare_dead(&session, incarnation, None).await.map_err(|failure| failure.to_string())
        };
        let declared = tokio::time::timeout(self.state.settings.access.write_max * 2, declare).await;
        let declared = declared.unwrap_or_else(|_| Err("the database takes too long".to_owned()));
        let is_done = declared.map_err(|why: String| StoreError::Io(io::Error::other(why)))?;
        if is_done {
            self.view.change(|view| view.declared_dead(incarnation));
        }
        Ok(is_done)
    }

    /// Removes all dead incarnations of a replica with their remains, unless one holds rows. A removed one that was
    /// only paused concludes that the store lost writes. After `Io`, it may have happened in part; it can be repeated.
    pub async fn forget(&self, name: &str) -> Result<ReplicaForgetting, StoreError> {
        let named = self.incarnations_of(name).await?;
        let dead: Vec<Incarnation> =
            named.iter().filter(|one| one.row.is_dead).map(|one| one.row.incarnation).collect();
        if dead.is_empty() {
            return Ok(if named.is_empty() { ReplicaForgetting::Unknown } else { ReplicaForgetting::Alive });
        }
        let held = self.held_by(&dead).await?;
        if held > 0 {
            return Ok(ReplicaForgetting::Holding(held));
        }
        for incarnation in &dead {
            pass(&self.queue, Some(*incarnation)).await?;
        }
        let left = self.incarnations_of(name).await?;
        if left.iter().any(|one| dead.contains(&one.row.incarnation)) {
            // A dead incarnation may have written a row in the meantime.
            let held = self.held_by(&dead).await?;
            return Ok(if held > 0 { ReplicaForgetting::Holding(held) } else { ReplicaForgetting::Unfinished });
        }
        self.view.change(|view| view.rows.retain(|one| !dead.contains(&one.row.incarnation)));
        tracing::warn!(replica = name, incarnations = dead.len(), "a dead replica was removed from the list");
        Ok(ReplicaForgetting::Forgotten(dead.len()))
    }

    async fn incarnations_of(&self, name: &str) -> Result<Vec<StoredReplica>, StoreError> {
        let read = async |link: &mut ReaderLink| StoredReplica::all(&link.query(LOOK, &vec![]).await?);
        let mut rows = self.lists.reader()?.read(read).await?;
        rows.retain(|one| one.row.name == name);
        Ok(rows)
    }

    async fn held_by(&self, incarnations: &[Incarnation]) -> Result<usize, StoreError> {
        let incarnations: Vec<i64> = incarnations.iter().map(|incarnation| holder_column(*incarnation)).collect();
        let read = async |link: &mut ReaderLink| -> Result<i64, Error> {
            link.query(HELD, &vec![&incarnations]).await?.first().map_or(Ok(0), |row| row.try_get(0))
        };
        self.lists.reader()?.read(read).await.map(count)
    }
}
