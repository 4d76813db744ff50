//! Plain calls: the answer is waited for on the call's own stream, of 2026-07-28 or in a session.

use std::ops::ControlFlow;

use serde_json::json;

use crate::cli::call::Verdict;
use crate::cli::client::{ClientError, Endpoint};
use crate::cli::session::Session;
use crate::cli::stateless::Stateless;
use crate::cli::talk::{CALL_MAX, Interrupted, Talk};
use crate::wire::object::ObjectWriter;
use crate::wire::{Payload, meta, method};

/// A client of 2026-07-28 that can answer questions, and declares no tasks.
pub(super) fn client(endpoint: Endpoint) -> Stateless {
    Stateless::new(endpoint, None)
}

/// # Errors
/// See [`ClientError`].
pub(super) async fn call(client: &Stateless, talk: &mut Talk<'_>) -> Result<Verdict, ClientError> {
    let result = match client.call(talk).await? {
        ControlFlow::Continue(result) => result,
        ControlFlow::Break(verdict) => return Ok(verdict),
    };
    match result.get_str("resultType").as_deref() {
        None | Some("complete") => talk.print(&result),
        // UPC-09: also a handle, which nobody said we could use.
        Some(_) => Err(ClientError::Unintelligible("its resultType was not to be expected")),
    }
}

/// Calls the tool in a session, which ends with the call.
///
/// # Errors
/// See [`ClientError`].
pub(super) async fn call_in_session(mut session: Session, talk: &mut Talk<'_>) -> Result<Verdict, ClientError> {
    talk.calling();
    let id = session.mint_id();
    let mut meta = json!({ (meta::PROGRESS_TOKEN): id });
    talk.call.mark(&mut meta);
    let params = ObjectWriter::new()
        .text("name", &talk.call.tool)
        .member("arguments", &talk.call.arguments)
        .member(meta::META, &Payload::of(&meta))
        .finish();
    session.send(&id, method::TOOLS_CALL, &params, CALL_MAX);
    let ended = match session.converse(talk, &id).await {
        Ok(Ok(reply)) => match reply.outcome {
            Ok(result) => talk.print(&result),
            Err(error) => Ok(talk.fault(&error)),
        },
        Ok(Err(error)) => Err(error),
        Err(Interrupted) => {
            let params = json!({ "requestId": id, "reason": "the user pressed Ctrl-C" });
            session.notify(method::CANCELLED, &Payload::of(&params)).await;
            Ok(talk.cancelled("cancelled"))
        }
    };
    session.end().await;
    ended
}
