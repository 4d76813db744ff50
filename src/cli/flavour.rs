//! Makes the call of `taskgate call` in the requested or the best supported task flavour.

use tokio::sync::mpsc;

use super::call::{CallCommand, CallExit, CallMode, Flavour};
use super::called_server::CalledServer;
use super::dialog::{CallDialog, NoResultError};
use super::follow;
use super::server_address::ServerAddress;
use super::tool_arguments::ToolArguments;
use super::ui::Ui;
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::upstream::Handshake;
use crate::wire::{Object, Payload, meta};

/// The first interrupt cancels the call, a second one leaves at once. Dropping cancels only plain calls of 2026-07-28.
pub async fn run(
    server: &ServerAddress,
    call: &CallCommand,
    ui: &mut dyn Ui,
    interrupts: &mut mpsc::Receiver<()>,
) -> CallExit {
    let mut dialog = CallDialog::new(&call.following, ui, interrupts);
    let ended = match CalledServer::new(server) {
        Ok(server) => Box::pin(in_best_flavour(&server, call, &mut dialog)).await,
        Err(lost) => Err(lost),
    };
    dialog.ended(ended)
}

/// Tries the requested flavour, or the best that the server supports: the extension, the tasks of 2025-11-25, none.
async fn in_best_flavour(
    server: &CalledServer,
    call: &CallCommand,
    dialog: &mut CallDialog<'_>,
) -> Result<CallExit, NoResultError> {
    let mode = match dialog.or_interrupt(Box::pin(open(server, call))).await {
        Ok(mode) => mode?,
        Err(why) => return Ok(dialog.given_up(why)),
    };
    match (call.flavour, mode.flavour) {
        (None, Flavour::Extension) => dialog.note("flavour: extension"),
        (None, Flavour::Core) => dialog.note("flavour: core"),
        (None, Flavour::None) => dialog.note("flavour: none"),
        (Some(Flavour::Core), Flavour::None) => dialog.note("the server offers no task for this tool: a plain call"),
        (Some(_), _) => (),
    }
    let arguments = match dialog.or_interrupt(arguments(server, mode, call)).await {
        Ok(arguments) => arguments?,
        Err(why) => return Ok(dialog.given_up(why)),
    };
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(why) => {
            dialog.note(&why);
            return Ok(CallExit::Misused);
        }
    };
    dialog.calling();
    let key = call.idempotency_key.as_deref();
    dialog.has_key = key.is_some();
    match dialog.or_interrupt(server.begin(mode, &call.tool, &arguments, key)).await {
        Ok(begun) => follow::call(server, mode, begun?, dialog).await,
        Err(why) => Ok(dialog.given_up(why)),
    }
}

/// The tool's arguments, or why they are invalid. Without a session the tool is looked up, as headers repeat arguments.
async fn arguments(
    server: &CalledServer,
    mode: CallMode,
    call: &CallCommand,
) -> Result<Result<Payload, String>, NoResultError> {
    let tool = match &call.arguments {
        ToolArguments::Whole(arguments) => {
            let has_arguments = Object::of(arguments).is_some_and(|arguments| arguments.keys().next().is_some());
            if !mode.in_session && has_arguments { server.tool(mode, &call.tool).await? } else { None }
        }
        ToolArguments::Named(_) => server.tool(mode, &call.tool).await?,
    };
    if !mode.in_session && tool.as_ref().is_some_and(|tool| !tool.is_callable) {
        let why = "the tool's x-mcp-header annotations break the rules, so it must not be called";
        return Err(NoResultError::unintelligible(why));
    }
    Ok(call.arguments.as_payload(&call.tool, tool.as_ref().map(|tool| &tool.schema)))
}

async fn open(server: &CalledServer, call: &CallCommand) -> Result<CallMode, NoResultError> {
    match call.flavour {
        // Needs no discovery: a server without the extension answers plainly, or reports another version.
        Some(Flavour::Extension) => Ok(CallMode::EXTENSION),
        Some(Flavour::Core) => open_session(server, call).await,
        Some(Flavour::None) => match server.discover().await? {
            Some(_) => Ok(CallMode::STATELESS),
            None => server.open_session().await.map(|_| CallMode::SESSION),
        },
        None => match server.discover().await? {
            Some(discovered) if has_extension(&discovered) => Ok(CallMode::EXTENSION),
            // A server of both eras may support the tasks of 2025-11-25.
            Some(_) => match open_session(server, call).await {
                Ok(mode) if mode.flavour == Flavour::Core => Ok(mode),
                Ok(_) => {
                    server.end_session().await;
                    Ok(CallMode::STATELESS)
                }
                Err(_) => Ok(CallMode::STATELESS),
            },
            None => open_session(server, call).await,
        },
    }
}

/// Opens a session, and checks whether the tool supports tasks in it (UPC-05).
async fn open_session(server: &CalledServer, call: &CallCommand) -> Result<CallMode, NoResultError> {
    let handshake = server.open_session().await?;
    let takes_tasks = UpstreamTaskSupport::of(handshake.version, &handshake.capabilities).calls
        && server.tool(CallMode::SESSION, &call.tool).await?.is_some_and(|tool| tool.takes_tasks);
    Ok(if takes_tasks { CallMode::CORE } else { CallMode::SESSION })
}

pub(super) fn has_extension(handshake: &Handshake) -> bool {
    let extensions = Object::of(&handshake.capabilities).and_then(|own| own.get_object("extensions"));
    extensions.is_some_and(|all| all.has_object(meta::TASKS_EXTENSION))
}
