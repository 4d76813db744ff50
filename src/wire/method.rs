//! Names the methods.

pub const INITIALIZE: &str = "initialize";
pub const INITIALIZED: &str = "notifications/initialized";
pub const PING: &str = "ping";
pub const DISCOVER: &str = "server/discover";
pub const TOOLS_LIST: &str = "tools/list";
pub const TOOLS_CALL: &str = "tools/call";
pub const PROMPTS_LIST: &str = "prompts/list";
pub const PROMPTS_GET: &str = "prompts/get";
pub const RESOURCES_LIST: &str = "resources/list";
pub const RESOURCES_TEMPLATES_LIST: &str = "resources/templates/list";
pub const RESOURCES_READ: &str = "resources/read";
pub const RESOURCES_SUBSCRIBE: &str = "resources/subscribe";
pub const RESOURCES_UNSUBSCRIBE: &str = "resources/unsubscribe";
pub const COMPLETE: &str = "completion/complete";
pub const SET_LEVEL: &str = "logging/setLevel";
pub const LISTEN: &str = "subscriptions/listen";
pub const TASKS_GET: &str = "tasks/get";
pub const TASKS_UPDATE: &str = "tasks/update";
pub const TASKS_CANCEL: &str = "tasks/cancel";
pub const TASKS_RESULT: &str = "tasks/result";
pub const TASKS_LIST: &str = "tasks/list";
/// Of SEP-1686, as the next one.
pub const TASKS_DELETE: &str = "tasks/delete";
pub const TASK_CREATED: &str = "notifications/tasks/created";
pub const ELICIT: &str = "elicitation/create";
pub const SAMPLE: &str = "sampling/createMessage";
pub const ROOTS: &str = "roots/list";
pub const CANCELLED: &str = "notifications/cancelled";
pub const PROGRESS: &str = "notifications/progress";
pub const LOG_MESSAGE: &str = "notifications/message";
/// Of the 2025-11-25 dialect; the next one is of the extension.
pub const TASK_STATUS: &str = "notifications/tasks/status";
pub const TASKS_CHANGED: &str = "notifications/tasks";
pub const LISTEN_ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";

const FREQUENT: [&str; 7] = [TOOLS_CALL, TASKS_GET, TASKS_RESULT, TOOLS_LIST, PING, RESOURCES_READ, PROMPTS_GET];

/// The constant of a method that clients often send.
pub(in crate::wire) fn frequent(name: &str) -> Option<&'static str> {
    FREQUENT.into_iter().find(|frequent| *frequent == name)
}

/// Whether the result may hold questions, after which the client repeats its request (MOD-26).
pub fn may_ask(name: &str) -> bool {
    [TOOLS_CALL, PROMPTS_GET, RESOURCES_READ].contains(&name)
}
