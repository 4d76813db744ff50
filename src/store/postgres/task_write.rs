//! Defines what is asked of the writer.

use std::sync::Arc;

use super::columns::{EncodedRow, holder_column};
use crate::replica::Incarnation;
use crate::store::tasks::{Revision, WriteRole};
use crate::task::{TaskKey, Timestamp};

/// PostgreSQL takes no larger value than a gigabyte, and no larger message.
pub(super) const ROW_BYTES_MAX: usize = 512 << 20;

/// What is asked of the writer.
#[derive(Debug)]
pub(super) enum TaskWrite {
    Insert(Box<EncodedRow>),
    Replace {
        expected: Revision,
        role: WriteRole,
        row: Box<EncodedRow>,
    },
    Remove(TaskKey),
    /// Removes a row whose insert was refused, if nobody has written it since.
    Withdraw(TaskKey),
    /// Frees a row, if it is gone by then.
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
    /// What lives have left that are long dead; or what one has that is dead, however long.
    Retire {
        life: Option<Incarnation>,
    },
    /// Makes this life's sums of these owners nobody's.
    Merge {
        owners: Vec<Vec<u8>>,
    },
    /// Nothing, behind all that was in doubt.
    Barrier,
}

/// Which rows of the dead a life takes over.
#[derive(Debug)]
pub(super) struct ClaimableRows {
    /// Of calls at these.
    pub(super) upstreams: Vec<Vec<u8>>,
    /// All that these lives hold: whoever knew more of their upstreams had time to take them.
    pub(super) given_up: Vec<i64>,
}

impl ClaimableRows {
    pub(super) fn of(upstreams: &[Arc<str>], given_up: &[Incarnation]) -> Self {
        Self {
            upstreams: upstreams.iter().map(|name| name.as_bytes().to_vec()).collect(),
            given_up: given_up.iter().copied().map(holder_column).collect(),
        }
    }
}

impl TaskWrite {
    pub(super) fn row(&self) -> Option<&EncodedRow> {
        match self {
            Self::Insert(row) | Self::Replace { row, .. } => Some(row),
            Self::Remove(_)
            | Self::Withdraw(_)
            | Self::SweepOne { .. }
            | Self::Sweep { .. }
            | Self::Claim { .. }
            | Self::Retire { .. }
            | Self::Merge { .. }
            | Self::Barrier => None,
        }
    }

    pub(super) fn key(&self) -> Option<&TaskKey> {
        match self {
            Self::Insert(row) | Self::Replace { row, .. } => Some(&row.key),
            Self::Remove(key) | Self::Withdraw(key) | Self::SweepOne { key, .. } => Some(key),
            Self::Sweep { .. } | Self::Claim { .. } | Self::Retire { .. } | Self::Merge { .. } | Self::Barrier => None,
        }
    }

    /// The row that it inserts, which is in doubt while it is not known whether it was made.
    pub(super) fn new_row(&self) -> Option<&EncodedRow> {
        if let Self::Insert(row) = self { Some(row) } else { None }
    }

    /// Whether it has a statement of its own.
    pub(super) const fn is_alone(&self) -> bool {
        matches!(self, Self::Sweep { .. } | Self::Claim { .. } | Self::Retire { .. } | Self::Merge { .. })
    }
}
