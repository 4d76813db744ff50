//! Reads what a call asks for: a task of 2025-11-25, one under an id of its client's own, or none.

use crate::dialect::RequestError;
use crate::dialect::core_2025_11_25::hybrid::HybridTasks;
use crate::dialect::core_2025_11_25::{CoreTasks, RequestedTtl};
use crate::dialect::draft_sep_1686::RequestedTask;
use crate::engine::ServiceSettings;
use crate::face::http::AcceptedTypes;
use crate::face::session::session_cache::ClientSession;
use crate::task::{Draft, TaskMode};
use crate::wire::Object;

/// What a call says of its task.
#[derive(Debug)]
pub(in crate::face::session) enum TaskWish {
    Core(RequestedTtl),
    /// Under an id of the client's own.
    Draft(RequestedTask),
}

/// What a call asks for, where tasks are offered or the draft is on. One whose tool cannot be told asks for nothing, and is
/// refused by whoever reads it next. Of both kinds of wishes that of 2025-11-25 counts (T-37).
///
/// # Errors
/// If the tool cannot be called this way.
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
    // Without a stream nobody could be told of the task (T-38), and what runs only plainly has none (D86-01).
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
