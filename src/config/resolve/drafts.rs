//! Resolves the limits of an upstream's draft extensions.

use super::super::raw::RawDrafts;
use super::{count_or, value_or};
use crate::task::SubtaskLimits;

pub(super) fn subtask_limits(raw: &RawDrafts) -> SubtaskLimits {
    let SubtaskLimits { depth_max, count_max } = SubtaskLimits::default();
    SubtaskLimits {
        depth_max: value_or(raw.subtasks_depth_max.as_ref(), depth_max),
        count_max: count_or(raw.subtasks_max.as_ref(), count_max),
    }
}
