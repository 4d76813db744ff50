//! Decides the paths of an upstream: one for each of the two HTTP transports, all of them different.

use std::collections::BTreeMap;

use super::super::error::MistakeCollector;
use super::super::raw::RawUpstream;

/// What ends the path of the current transport, unless the file says otherwise.
const CURRENT: &str = "/mcp";
/// What ends that of the transport of 2024-11-05.
const EVENTS: &str = "/sse";

/// The paths of one upstream.
#[derive(Debug)]
pub(super) struct UpstreamPaths {
    pub(super) current: String,
    pub(super) events: String,
}

/// Whose a path is, for all paths that were decided.
#[derive(Debug, Default)]
pub(super) struct TakenPaths<'a>(BTreeMap<String, &'a str>);

/// Decides one upstream's paths, and notes those that somebody has already.
pub(super) fn resolve<'a>(
    raw: &'a RawUpstream,
    taken: &mut TakenPaths<'a>,
    report: &mut MistakeCollector,
) -> UpstreamPaths {
    let current = raw.path.as_ref().map_or_else(|| format!("/{}{CURRENT}", raw.name), |path| path.value.clone());
    let events = raw.sse_path.as_ref().map_or_else(|| beside(&current), |path| path.value.clone());
    let unknown = report.blames(&format!("{}.path", raw.place.key));
    let mut is_new = true;
    if !unknown && let Some(other) = taken.0.insert(current.clone(), &raw.name) {
        let place = raw.path.as_ref().map_or(&raw.place, |path| &path.place);
        report.mistake(place, format!("the upstream `{other}` has the same path; give one another `path`"));
        is_new = false;
    }
    // One that follows from a path that is wrong would be wrong for the same reason.
    let is_own = raw.sse_path.is_some();
    let is_known = !report.blames(&format!("{}.sse_path", raw.place.key)) && (is_own || (!unknown && is_new));
    if is_known && let Some(other) = taken.0.insert(events.clone(), &raw.name) {
        let place = raw.sse_path.as_ref().map_or(&raw.place, |path| &path.place);
        let message = match &raw.sse_path {
            Some(_) if other == raw.name => "is the `path` of the same upstream; give it another one".to_owned(),
            Some(_) => format!("the upstream `{other}` has the same path; give one of them another one"),
            None => format!("its path for HTTP+SSE, {events}, is one of the upstream `{other}`; write a `sse_path`"),
        };
        report.mistake(place, message);
    }
    UpstreamPaths { current, events }
}

/// The path for HTTP+SSE that belongs to one for the current transport.
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
