//! Defines the writer's requests.

use std::sync::Arc;

use super::columns::{EncodedRow, holder_column};
use crate::replica::Incarnation;
use crate::store::tasks::{Revision, WriteRole};
use crate::task::{TaskKey, Timestamp};

/// Below PostgreSQL's limit of one gigabyte for values and messages.
pub(super) const ROW_BYTES_MAX: usize = 512 << 20;

#[derive(Debug)]
pub(super) enum TaskWrite {
    Insert(Box<EncodedRow>),
    Replace {
        expected: Revision,
        role: WriteRole,
        row: Box<EncodedRow>,
    },
    Remove(TaskKey),
    /// Removes a row with a refused insert, if no write has followed.
    Withdraw(TaskKey),
    SweepOne {
        key: TaskKey,
        now: Timestamp,
    },
    Sweep {
        now: Timestamp,
        limit: usize,
    },
    Claim {
        limit: usize,
        rows: ClaimableRows,
    },
    /// Removes remains of long-dead incarnations; or of one dead incarnation, regardless of its age.
    Retire {
        incarnation: Option<Incarnation>,
    },
    /// Reassigns this replica's sums of these owners to incarnation 0.
    Merge {
        owners: Vec<Vec<u8>>,
    },
    /// Writes nothing; commits after all unresolved writes.
    Barrier,
}

#[derive(Debug)]
pub(super) struct ClaimableRows {
    /// Rows of calls at these upstreams.
    pub(super) upstreams: Vec<Vec<u8>>,
    /// All rows of these incarnations: replicas with their upstreams had time to claim them.
    pub(super) abandoned: Vec<i64>,
}

impl ClaimableRows {
    pub(super) fn of(upstreams: &[Arc<str>], abandoned: &[Incarnation]) -> Self {
        Self {
            upstreams: upstreams.iter().map(|name| name.as_bytes().to_vec()).collect(),
            abandoned: abandoned.iter().copied().map(holder_column).collect(),
        }
    }
}

impl TaskWrite {
    pub(super) fn row(&self) -> Option<&EncodedRow> {
        if let Self::Insert(row) | Self::Replace { row, .. } = self { Some(row) } else { None }
    }

    pub(super) fn key(&self) -> Option<&TaskKey> {
        match self {
            Self::Insert(row) | Self::Replace { row, .. } => Some(&row.key),
            Self::Remove(key) | Self::Withdraw(key) | Self::SweepOne { key, .. } => Some(key),
            Self::Sweep { .. } | Self::Claim { .. } | Self::Retire { .. } | Self::Merge { .. } | Self::Barrier => None,
        }
    }

    /// The row that it inserts, which is unresolved while the commit is unknown.
    pub(super) fn new_row(&self) -> Option<&EncodedRow> {
        if let Self::Insert(row) = self { Some(row) } else { None }
    }

    /// Whether it needs a statement to itself.
    pub(super) const fn is_alone(&self) -> bool {
        matches!(self, Self::Sweep { .. } | Self::Claim { .. } | Self::Retire { .. } | Self::Merge { .. })
    }
}
