//! Names the keys of `_meta`.

pub const META: &str = "_meta";
pub const PROGRESS_TOKEN: &str = "progressToken";
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";
/// Text for the model while a task runs, in a 2025-11-25 handle.
pub const IMMEDIATE_RESPONSE: &str = "io.modelcontextprotocol/model-immediate-response";
/// The client's key for a call, so that a repeated call finds the same task. The gateway's own, as the header `Idempotency-Key`.
pub const IDEMPOTENCY_KEY: &str = "io.taskgate/idempotency-key";
/// The outcomes of a task's parts so far. The gateway's own.
pub const SUBTASKS: &str = "io.taskgate/subtasks";
pub const DRAFT_TASK: &str = "modelcontextprotocol.io/task";
pub const DRAFT_RELATED_TASK: &str = "modelcontextprotocol.io/related-task";

pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Keys that concern one hop only, or another dialect of tasks: never sent to a legacy upstream.
pub const HOP_BY_HOP: [&str; 9] = [
    PROTOCOL_VERSION,
    CLIENT_INFO,
    CLIENT_CAPABILITIES,
    LOG_LEVEL,
    SUBSCRIPTION_ID,
    RELATED_TASK,
    IDEMPOTENCY_KEY,
    DRAFT_TASK,
    DRAFT_RELATED_TASK,
];
