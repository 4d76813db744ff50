//! Reads a file for `taskgate wrap`, which serves one user at its standard streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::command_line::choose_ports;
use super::error::{ConfigLocation, MistakeCollector};
use super::keys::KeyField as _;
use super::raw::{RawConfig, RawEndpoint, RawEndpointValues, RawUpstream, StoreKind};
use super::section::LocatedValue;
use crate::server::api_keys::KeyPlace;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilePurpose {
    Listeners,
    /// To serve the host that started the program.
    Host,
}

/// Tables without meaning for a host, and why.
const OF_LISTENERS: [(&str, &str); 6] = [
    ("listen", "`taskgate wrap` has no listener, its host speaks over stdin and stdout"),
    ("admin", "`taskgate wrap` has no listener for operators"),
    ("metrics", "`taskgate wrap` has no listener for metrics"),
    ("replica", "`taskgate wrap` shares its tasks with no other gateway"),
    ("audit", "`taskgate wrap` has one client, and keeps no audit"),
    ("auth", "`taskgate wrap` serves only the host that started it"),
];

/// The path of the endpoint, which no client requests.
const NO_PATH: &str = "/wrap/several/mcp";

/// Notes the tables of listeners. `lines` has the line of each key.
pub(super) fn check(lines: &BTreeMap<KeyPlace, usize>, report: &mut MistakeCollector) {
    for (table, why) in OF_LISTENERS {
        if let Some(line) = lines.get(&KeyPlace::from(table.to_owned())) {
            let location = ConfigLocation::own(*line, table.to_owned());
            report.mistake(&location, format!("{why}; leave it out, or serve the file by `taskgate serve`"));
        }
    }
}

/// Removes servers with unset variables, and returns the reasons by name. If no server is left, they remain mistakes.
pub(super) fn set_aside(raw: &mut RawConfig, report: &mut MistakeCollector) -> BTreeMap<String, Arc<str>> {
    let mut aside = BTreeMap::new();
    if raw.upstreams.iter().all(|upstream| report.has_unset(&upstream.location.key)) {
        return aside;
    }
    for upstream in &mut raw.upstreams {
        let Some(why) = report.set_aside(&upstream.location.key) else { continue };
        let mut unreached = RawUpstream::unreached(&upstream.name, upstream.location.clone());
        let location = upstream.location.clone();
        unreached.own.command = Some(LocatedValue { value: vec![upstream.name.clone()], location });
        unreached.tools = std::mem::take(&mut upstream.tools);
        unreached.rules = upstream.rules.clone();
        aside.insert(upstream.name.clone(), Arc::from(why));
        *upstream = unreached;
    }
    aside
}

/// Applies the defaults for a host: tasks in memory, and one endpoint for all upstreams.
pub(super) fn complete(raw: &mut RawConfig, report: &mut MistakeCollector) {
    // No listener is bound, so no upstream's address is the gateway's.
    choose_ports(raw, None);
    let store = &mut raw.store;
    if store.path.location().is_none() && store.kind.location().is_none() {
        store.kind.value = StoreKind::Memory;
    }
    if let Some(location) = store.kind.location().filter(|_| store.kind.value == StoreKind::Postgres) {
        report.mistake(location, "is for gateways that listen; write \"memory\" or \"disk\" for `taskgate wrap`");
    }
    match raw.endpoints.as_slice() {
        [] if raw.upstreams.len() > 1 => raw.endpoints.push(of_all(raw)),
        [] => (),
        [only] => warn_of_others(raw, only, report),
        [_, others @ ..] => {
            for other in others {
                report.mistake(&other.location, "a host is served one endpoint; leave the others out");
            }
        }
    }
}

fn of_all(raw: &RawConfig) -> RawEndpoint {
    let mut all: Vec<_> = raw.upstreams.iter().collect();
    all.sort_by_key(|upstream| upstream.location.line);
    let location = ConfigLocation::own(all.first().map_or(0, |first| first.location.line), "upstreams".to_owned());
    let names = all.iter().map(|upstream| upstream.name.clone()).collect();
    let values = RawEndpointValues {
        path: Some(LocatedValue { value: NO_PATH.to_owned(), location: location.clone() }),
        upstreams: Some(LocatedValue { value: names, location: location.clone() }),
        ..RawEndpointValues::default()
    };
    RawEndpoint { location, values }
}

fn warn_of_others(raw: &RawConfig, only: &RawEndpoint, report: &mut MistakeCollector) {
    let Some(named) = &only.values.upstreams else { return };
    for upstream in raw.upstreams.iter().filter(|upstream| !named.value.contains(&upstream.name)) {
        report.warning(&upstream.location, "is in no endpoint, so the host does not get it");
    }
}
