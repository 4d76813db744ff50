//! Resolves the upstreams and tools of each key's holder; by default all.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::super::error::MistakeCollector;
use super::super::raw::{RawApiKey, RawApiKeyValues, RawConfig};
use super::super::section::LocatedValue;
use super::endpoints::unknown;
use crate::task::{Principal, PrincipalAccess, PrincipalAccessTable, ToolPatterns};

pub(super) fn resolve(
    raw: &RawConfig,
    known: &BTreeSet<Arc<str>>,
    report: &mut MistakeCollector,
) -> PrincipalAccessTable {
    let mut own: HashMap<Principal, (PrincipalAccess, &RawApiKey)> = HashMap::new();
    for key in &raw.api_keys {
        check_upstreams(&key.values, known, report);
        let Some(id) = &key.values.id else { continue };
        let its = access(&key.values);
        match own.get(&Principal::holding(&id.value)) {
            // During a rotation both keys belong to one principal, so their rights must be equal.
            Some((before, first)) if *before != its => {
                let line = first.location.line_seen_from(&key.location, &report.file());
                let message = format!(
                    "{:?} has a key in {line} with other `upstreams` or `tools`; write the same at both",
                    id.value
                );
                report.mistake(&key.location, message);
            }
            Some(_) => (),
            None => drop(own.insert(Principal::holding(&id.value), (its, key))),
        }
    }
    let own = own.into_iter().map(|(principal, (its, _))| (principal, its));
    PrincipalAccessTable { own: own.filter(|(_, its)| *its != PrincipalAccess::default()).collect() }
}

/// A misspelt name would lock a team out, or leave it an upstream that was meant to be withheld.
fn check_upstreams(raw: &RawApiKeyValues, known: &BTreeSet<Arc<str>>, report: &mut MistakeCollector) {
    if report.blames("upstreams") {
        return;
    }
    for named in raw.upstreams.iter().flat_map(|list| &list.value) {
        if !known.contains(named.value.as_str()) {
            report.mistake(&named.location, unknown(&named.value, known));
        }
    }
}

fn access(raw: &RawApiKeyValues) -> PrincipalAccess {
    let texts = |list: &LocatedValue<Vec<LocatedValue<String>>>| -> BTreeSet<Arc<str>> {
        list.value.iter().map(|one| Arc::from(one.value.as_str())).collect()
    };
    PrincipalAccess {
        upstreams: raw.upstreams.as_ref().map(texts),
        tools: raw.tools.as_ref().map(texts).map(|patterns| Arc::new(ToolPatterns::new(patterns))),
    }
}
