//! Reads which draft extensions an upstream enables, and their limits.

use super::super::section::{LocatedValue, Section};
use super::super::value::DRAFT;
use crate::task::Draft;

/// The largest limits for the depth of subtasks and for the subtasks of one tree.
const DEPTH_MAX: u32 = 32;
const COUNT_MAX: u32 = 10_000;

#[derive(Debug, Default)]
pub(in crate::config) struct RawDrafts {
    pub(in crate::config) on: Vec<Draft>,
    pub(in crate::config) subtasks_depth_max: Option<LocatedValue<u32>>,
    pub(in crate::config) subtasks_max: Option<LocatedValue<u32>>,
}

pub(super) fn read(tasks: &mut Section<'_, '_>) -> RawDrafts {
    RawDrafts {
        on: tasks.read_all("drafts", &DRAFT),
        subtasks_depth_max: tasks.count_in("subtasks_depth_max", 1..=DEPTH_MAX),
        subtasks_max: tasks.count_in("subtasks_max", 1..=COUNT_MAX),
    }
}
