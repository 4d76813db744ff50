//! Lists the keys for a principal's limits, in `[limits]` or beside an API key.

use super::super::section::{LocatedValue, Section};
use super::super::value::SIZE;

#[derive(Debug, Default)]
pub(in crate::config) struct RawPrincipalLimits {
    pub(in crate::config) requests_per_second: Option<LocatedValue<u32>>,
    pub(in crate::config) requests_burst: Option<LocatedValue<u32>>,
    pub(in crate::config) polls_per_task: Option<LocatedValue<u32>>,
    pub(in crate::config) tasks_max: Option<LocatedValue<u32>>,
    pub(in crate::config) stored_bytes_max: Option<LocatedValue<usize>>,
    pub(in crate::config) answer_bytes_max: Option<LocatedValue<usize>>,
    pub(in crate::config) streams_max: Option<LocatedValue<u32>>,
    pub(in crate::config) places_percent: Option<LocatedValue<u32>>,
}

impl RawPrincipalLimits {
    pub(super) fn read(section: &mut Section<'_, '_>) -> Self {
        Self {
            requests_per_second: section.count("requests_per_second", 1),
            requests_burst: section.count("requests_burst", 1),
            polls_per_task: section.count("polls_per_task", 1),
            tasks_max: section.count("tasks_per_principal_max", 1),
            stored_bytes_max: section.read("stored_bytes_per_principal_max", &SIZE),
            answer_bytes_max: section.read("answer_bytes_per_principal_max", &SIZE),
            streams_max: section.count("streams_per_principal_max", 1),
            places_percent: section.count_in("places_percent_max", 1..=100),
        }
    }
}
