//! Reads whether a call requests a task, and of which flavour.

use crate::dialect::RequestError;
use crate::dialect::core_2025_11_25::hybrid::HybridTasks;
use crate::dialect::core_2025_11_25::{CoreTasks, RequestedTtl};
use crate::dialect::draft_sep_1686::RequestedTask;
use crate::engine::ServiceSettings;
use crate::face::http::AcceptedTypes;
use crate::face::session::session_cache::ClientSession;
use crate::task::{Draft, TaskMode};
use crate::wire::Object;

#[derive(Debug)]
pub(in crate::face::session) enum TaskWish {
    Core(RequestedTtl),
    Draft(RequestedTask),
}

/// The task that a call requests, if tasks are offered or the draft is enabled. `None` without a readable tool name:
/// the call is refused later. A request of 2025-11-25 takes precedence over the draft's (T-37). An error if the tool
/// cannot be called this way.
pub(in crate::face::session) fn wish(
    settings: &ServiceSettings,
    session: &ClientSession,
    params: &Object,
    accepted: AcceptedTypes,
) -> Result<Option<TaskWish>, RequestError> {
    let (is_core, is_draft) = (session.has_tasks(), settings.drafts.has(Draft::Sep1686));
    if !is_core && !is_draft {
        return Ok(None);
    }
    let Some(mode) = params.get_str("name").map(|tool| settings.rules.mode_of(&tool)) else { return Ok(None) };
    // Without a stream the client could not be notified (T-38). A tool that only runs plainly has no task (D86-01).
    if is_draft
        && accepted.takes_stream()
        && mode != TaskMode::Never
        && !(is_core && RequestedTtl::read(params)?.is_some())
        && let Some(wish) = RequestedTask::read(params)?
    {
        return Ok(Some(TaskWish::Draft(wish)));
    }
    let wish = match is_draft {
        true => HybridTasks::wish(params, mode, session.token.client_version)?,
        false => CoreTasks::wish(params, mode)?,
    };
    Ok(wish.map(TaskWish::Core))
}
