//! Resolves an upstream's or endpoint's paths: one per HTTP transport, all unique.

use std::collections::BTreeMap;
use std::fmt;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::raw::RawUpstream;
use super::super::section::LocatedValue;

const CURRENT: &str = "/mcp";
/// The default suffix for the HTTP+SSE transport of 2024-11-05.
const EVENTS: &str = "/sse";

#[derive(Debug)]
pub(super) struct UpstreamPaths {
    pub(super) current: String,
    pub(super) events: String,
}

#[derive(Debug, Default)]
pub(super) struct TakenPaths<'a>(BTreeMap<String, PathOwner<'a>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathOwner<'a> {
    Upstream(&'a str),
    /// Identified by its path for streamable HTTP.
    Endpoint(&'a str),
}

impl fmt::Display for PathOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upstream(name) => write!(f, "upstream `{name}`"),
            Self::Endpoint(path) => write!(f, "endpoint `{path}`"),
        }
    }
}

struct WrittenPaths<'a> {
    owner: PathOwner<'a>,
    location: &'a ConfigLocation,
    current: Option<&'a LocatedValue<String>>,
    events: Option<&'a LocatedValue<String>>,
}

pub(super) fn resolve<'a>(
    raw: &'a RawUpstream,
    taken: &mut TakenPaths<'a>,
    report: &mut MistakeCollector,
) -> UpstreamPaths {
    let owner = PathOwner::Upstream(&raw.name);
    let (current, events) = (raw.own.path.as_ref(), raw.own.sse_path.as_ref());
    decide(&WrittenPaths { owner, location: &raw.location, current, events }, &raw.name, taken, report)
}

/// As [`resolve`], for an endpoint, which has an explicit path.
pub(super) fn of_endpoint<'a>(
    location: &'a ConfigLocation,
    path: &'a LocatedValue<String>,
    events: Option<&'a LocatedValue<String>>,
    taken: &mut TakenPaths<'a>,
    report: &mut MistakeCollector,
) -> UpstreamPaths {
    let owner = PathOwner::Endpoint(&path.value);
    decide(&WrittenPaths { owner, location, current: Some(path), events }, "", taken, report)
}

fn decide<'a>(
    raw: &WrittenPaths<'a>,
    name: &str,
    taken: &mut TakenPaths<'a>,
    report: &mut MistakeCollector,
) -> UpstreamPaths {
    let current = raw.current.map_or_else(|| format!("/{name}{CURRENT}"), |path| path.value.clone());
    let events = raw.events.map_or_else(|| beside(&current), |path| path.value.clone());
    let unknown = report.has_mistake(&format!("{}.path", raw.location.key));
    let mut is_new = true;
    if !unknown && let Some(other) = taken.0.insert(current.clone(), raw.owner) {
        let location = raw.current.map_or(raw.location, |path| &path.location);
        report.mistake(location, format!("the {other} has the same path; give one of them a different `path`"));
        is_new = false;
    }
    // A path derived from a faulty one would repeat its mistake.
    let is_own = raw.events.is_some();
    let is_known = !report.has_mistake(&format!("{}.sse_path", raw.location.key)) && (is_own || (!unknown && is_new));
    if is_known && let Some(other) = taken.0.insert(events.clone(), raw.owner) {
        let location = raw.events.map_or(raw.location, |path| &path.location);
        let message = match raw.events {
            Some(_) if other == raw.owner => match other {
                PathOwner::Upstream(_) => "is the `path` of the same upstream; give it another one".to_owned(),
                PathOwner::Endpoint(_) => "is the `path` of the same endpoint; give it another one".to_owned(),
            },
            Some(_) => format!("the {other} has the same path; give one of them a different path"),
            None => format!("its path for HTTP+SSE, {events}, is one of the {other}; write a `sse_path`"),
        };
        report.mistake(location, message);
    }
    UpstreamPaths { current, events }
}

/// The HTTP+SSE path that belongs to a path for streamable HTTP.
fn beside(current: &str) -> String {
    let stem = current.strip_suffix(CURRENT).unwrap_or(current).trim_end_matches('/');
    format!("{stem}{EVENTS}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_the_older_transport_stands_beside_that_of_the_current_one() {
        for (current, events) in [
            ("/reports/mcp", "/reports/sse"),
            ("/mcp", "/sse"),
            ("/", "/sse"),
            ("/reports", "/reports/sse"),
            ("/mcp/v1", "/mcp/v1/sse"),
        ] {
            assert_eq!(beside(current), events);
        }
    }
}
