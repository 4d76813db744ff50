//! Resolves the limits of each principal: beside its key, else in `[limits]`.

use std::collections::HashMap;
use std::num::NonZeroU32;

use super::super::error::MistakeCollector;
use super::super::raw::{RawApiKey, RawConfig, RawPrincipalLimits};
use super::super::section::LocatedValue;
use super::{count, value_or};
use crate::task::{PermitShare, Principal, PrincipalLimitTable, PrincipalLimits};

pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> PrincipalLimitTable {
    let answer_bytes_max = raw.limits.answer_bytes_max.value;
    let default = PrincipalLimits { answer_bytes_max: answer_bytes_max / 2, ..PrincipalLimits::default() };
    let others = limits(&raw.principal_limits, &default);
    let mut own: HashMap<Principal, (PrincipalLimits, &RawApiKey)> = HashMap::new();
    for key in &raw.api_keys {
        let Some(id) = &key.values.id else { continue };
        let its = limits(&key.limits, &others);
        match own.get(&Principal::holding(&id.value)) {
            // During a rotation both keys belong to one principal, so their limits must be equal.
            Some((before, first)) if *before != its => {
                let line = first.location.line_seen_from(&key.location, &report.file());
                let message = format!("{:?} has a key in {line} with other limits; write the same at both", id.value);
                report.mistake(&key.location, message);
            }
            Some(_) => (),
            None => drop(own.insert(Principal::holding(&id.value), (its, key))),
        }
    }
    let own = own.into_iter().map(|(principal, (its, _))| (principal, its)).filter(|(_, its)| *its != others).collect();
    PrincipalLimitTable { answer_bytes_max, others, own }
}

fn limits(raw: &RawPrincipalLimits, others: &PrincipalLimits) -> PrincipalLimits {
    let rate = |raw: &Option<LocatedValue<u32>>, other| {
        raw.as_ref().and_then(|written| NonZeroU32::new(written.value)).unwrap_or(other)
    };
    let permits =
        raw.places_percent_max.as_ref().and_then(|written| PermitShare::percent(u8::try_from(written.value).ok()?));
    PrincipalLimits {
        requests_per_second: rate(&raw.requests_per_second, others.requests_per_second),
        requests_burst: rate(&raw.requests_burst, others.requests_burst),
        polls_per_task: rate(&raw.polls_per_task, others.polls_per_task),
        tasks_max: raw.tasks_per_principal_max.as_ref().map_or(others.tasks_max, |max| count(max.value)),
        stored_bytes_max: value_or(raw.stored_bytes_per_principal_max.as_ref(), others.stored_bytes_max),
        answer_bytes_max: value_or(raw.answer_bytes_per_principal_max.as_ref(), others.answer_bytes_max),
        streams_max: raw.streams_per_principal_max.as_ref().map_or(others.streams_max, |max| count(max.value)),
        permits: permits.unwrap_or(others.permits),
    }
}
