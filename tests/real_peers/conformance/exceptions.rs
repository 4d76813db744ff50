//! The checks that do not succeed behind this gateway, each with the reason.

const KEY: &str = "no gateway can pass it: it wants the key `user_name`, which no message of a session upstream names";
const SUITE: &str = "the suite always skips it: it does not yet read `subscriptions/listen` here";

/// Scenario, check, reason.
pub(crate) const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("input-required-result-basic-elicitation", "sep-2322-elicitation-incomplete", KEY),
    ("input-required-result-ignore-extra-params", "sep-2322-ignore-unexpected-params", KEY),
    ("tasks-status-notifications", "tasks-status-notifications", SUITE),
];

/// Why a check of `scenario` does not succeed, if that is known.
pub(crate) fn reason(scenario: &str, check: &str) -> Option<&'static str> {
    EXCEPTIONS.iter().find(|known| (known.0, known.1) == (scenario, check)).map(|known| known.2)
}

const LISTS: &str = "an endpoint answers lists itself, as JSON, where the server writes a stream";
const NOBODY: &str =
    "server-everything has no tool of that name, and a name that is nobody's is refused at an endpoint";

/// A check that may differ at an endpoint of several servers from the server's own path: scenario, reason.
pub(crate) type EndpointException = (&'static str, &'static str);

pub(crate) const AT_ENDPOINTS: &[EndpointException] = &[("server-sse-multiple-streams", LISTS)];

/// The same in front of server-everything.
pub(crate) const AT_ENDPOINTS_OF_EVERYTHING: &[EndpointException] = &[
    ("server-sse-multiple-streams", LISTS),
    ("server-sse-polling", NOBODY),
    ("tools-call-error", NOBODY),
    ("tools-call-simple-text", NOBODY),
];
