//! The checks that do not succeed behind this gateway, each with the reason.

const QUESTION: &str = "the tool asks its client in mid-call, which this version refuses";
const PROMPT_QUESTION: &str = "the prompt asks its client in mid-call, which this version refuses";
const KEY: &str = "no gateway can pass it: it wants the key `user_name`, which no message of a session upstream names";
const UNASKED: &str = "its answers belong to no question; the tool then asks in mid-call, which this version refuses";
const NO_LIST_CHANGES: &str = "optional: this version declares no list changes, so nothing can be subscribed to";
const SUITE: &str = "the suite always skips it: it does not yet read `subscriptions/listen` here";

/// Scenario, check, reason.
pub(crate) const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("input-required-result-basic-elicitation", "sep-2322-elicitation-incomplete", KEY),
    ("input-required-result-basic-list-roots", "sep-2322-list-roots-incomplete", QUESTION),
    ("input-required-result-basic-sampling", "sep-2322-sampling-incomplete", QUESTION),
    ("input-required-result-capability-check", "sep-2322-respect-client-capabilities", QUESTION),
    ("input-required-result-missing-input-response", "sep-2322-missing-response-rerequests", UNASKED),
    ("input-required-result-multi-round", "sep-2322-multi-round-r1", QUESTION),
    ("input-required-result-multiple-input-requests", "sep-2322-multiple-inputs-incomplete", QUESTION),
    ("input-required-result-non-tool-request", "sep-2322-non-tool-incomplete", PROMPT_QUESTION),
    ("input-required-result-request-state", "sep-2322-request-state-incomplete", QUESTION),
    ("input-required-result-result-type", "sep-2322-result-type-included", QUESTION),
    ("input-required-result-tampered-state", "sep-2322-reject-tampered-state", QUESTION),
    ("input-required-result-validate-input", "sep-2322-error-on-protocol-error", UNASKED),
    ("input-required-result-validate-input", "sep-2322-validate-input-responses", UNASKED),
    ("server-stateless", "sep-2575-server-honors-notification-filter", NO_LIST_CHANGES),
    ("server-stateless", "sep-2575-server-sends-prompts-list-changed-on-subscription", NO_LIST_CHANGES),
    ("server-stateless", "sep-2575-server-sends-subscription-ack", NO_LIST_CHANGES),
    ("server-stateless", "sep-2575-server-sends-tools-list-changed-on-subscription", NO_LIST_CHANGES),
    ("server-stateless", "sep-2575-server-tags-subscription-id", NO_LIST_CHANGES),
    ("tasks-mrtr-composition", "sep-2663-mrtr-synchronous-before-task-creation", QUESTION),
    ("tasks-mrtr-input", "sep-2663-tasks-get-status-input-required", QUESTION),
    ("tasks-mrtr-input", "tasks-mrtr-partial-fulfillment", QUESTION),
    ("tasks-status-notifications", "tasks-status-notifications", SUITE),
];

/// Why a check of `scenario` does not succeed, if that is known.
pub(crate) fn reason(scenario: &str, check: &str) -> Option<&'static str> {
    EXCEPTIONS.iter().find(|known| (known.0, known.1) == (scenario, check)).map(|known| known.2)
}
