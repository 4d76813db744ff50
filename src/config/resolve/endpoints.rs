//! Resolves endpoints of several upstreams: their members and their paths.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::raw::RawEndpoint;
use super::paths::{self, TakenPaths};
use crate::face::combined::{CombinedSettings, prefixes_clash};

/// The most members of one endpoint: each list request goes to all of them.
const MEMBERS_MAX: usize = 64;

pub(super) fn resolve<'a>(
    raw: &'a [RawEndpoint],
    known: &BTreeSet<Arc<str>>,
    taken: &mut TakenPaths<'a>,
    report: &mut MistakeCollector,
) -> Vec<CombinedSettings> {
    let resolved = raw.iter().filter_map(|raw| {
        let members = members(raw, known, report);
        let path = raw.values.path.as_ref()?;
        let events = raw.values.sse_path.as_ref();
        let paths = paths::of_endpoint(&raw.location, path, events, taken, report);
        let prefix = raw.values.prefix.value;
        Some(CombinedSettings { path: Arc::from(paths.current), sse_path: paths.events, upstreams: members, prefix })
    });
    resolved.collect()
}

fn members(raw: &RawEndpoint, known: &BTreeSet<Arc<str>>, report: &mut MistakeCollector) -> Vec<Arc<str>> {
    let Some(named) = &raw.values.upstreams else {
        if !report.has_mistake(&format!("{}.upstreams", raw.location.key)) {
            let location = ConfigLocation::own(raw.location.line, format!("{}.upstreams", raw.location.key));
            report.mistake(&location, "is missing; write the names of upstreams, such as [\"reports\", \"files\"]");
        }
        return Vec::new();
    };
    if named.value.is_empty() && !report.has_mistake(&named.location.key) {
        report.mistake(&named.location, "names no upstream; write at least one, such as [\"reports\", \"files\"]");
    }
    if named.value.len() > MEMBERS_MAX {
        report.mistake(&named.location, format!("names more than {MEMBERS_MAX} upstreams; write several endpoints"));
    }
    let mut members: Vec<Arc<str>> = Vec::new();
    for name in &named.value {
        if members.iter().any(|other| **other == **name) {
            report.mistake(&named.location, format!("names `{name}` twice, and two upstreams cannot have one prefix"));
            continue;
        }
        if !known.contains(name.as_str()) {
            report.mistake(&named.location, unknown(name, known));
            continue;
        }
        if let Some(other) = members.iter().find(|other| prefixes_clash(other, name)) {
            let message = format!(
                "`{other}` and `{name}`: the prefixes `{other}__` and `{name}__` are ambiguous; give one of the two \
                 upstreams another name"
            );
            report.mistake(&named.location, message);
        }
        members.push(Arc::from(name.as_str()));
    }
    members
}

pub(super) fn unknown(name: &str, known: &BTreeSet<Arc<str>>) -> String {
    let names: Vec<&str> = known.iter().map(|name| &**name).take(8).collect();
    let more = if known.len() > names.len() { " and others" } else { "" };
    format!("there is no upstream `{name}`; there are {}{more}", names.join(", "))
}
