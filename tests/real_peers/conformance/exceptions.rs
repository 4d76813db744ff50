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
