//! The checks that do not succeed behind this gateway, each with the reason.

const KEY: &str = "no gateway can pass it: it wants the key `user_name`, which no message of a session upstream names";
const NO_LIST_CHANGES: &str = "optional: this version declares no list changes, so nothing can be subscribed to";
const SUITE: &str = "the suite always skips it: it does not yet read `subscriptions/listen` here";

/// Scenario, check, reason.
pub(crate) const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("input-required-result-basic-elicitation", "sep-2322-elicitation-incomplete", KEY),
    ("input-required-result-ignore-extra-params", "sep-2322-ignore-unexpected-params", KEY),
    ("server-stateless", "sep-2575-server-honors-notification-filter", NO_LIST_CHANGES),
    ("server-stateless", "sep-2575-server-sends-prompts-list-changed-on-subscription", NO_LIST_CHANGES),
    ("server-stateless", "sep-2575-server-sends-subscription-ack", NO_LIST_CHANGES),
    ("server-stateless", "sep-2575-server-sends-tools-list-changed-on-subscription", NO_LIST_CHANGES),
    ("server-stateless", "sep-2575-server-tags-subscription-id", NO_LIST_CHANGES),
    ("tasks-status-notifications", "tasks-status-notifications", SUITE),
];

/// Why a check of `scenario` does not succeed, if that is known.
pub(crate) fn reason(scenario: &str, check: &str) -> Option<&'static str> {
    EXCEPTIONS.iter().find(|known| (known.0, known.1) == (scenario, check)).map(|known| known.2)
}
