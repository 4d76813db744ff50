//! Shows a server's tools, resources or prompts, in short or as listed.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::process::ExitCode;

use super::call::{CallExit, CallMode, FollowPolicy, InterruptPolicy, ResultForm};
use super::call_arguments::interrupts;
use super::called_server::CalledServer;
use super::dialog::{CallDialog, NoResultError};
use super::printable::{printable, shortened};
use super::server_address::ServerArguments;
use super::terminal::Terminal;
use super::tool_schema::ToolSchema;
use crate::wire::{Object, PagedList, Payload, RpcError, rpc_error};

#[derive(Debug, clap::Args)]
pub(super) struct OfferArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Print the server's list as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferKind {
    Tools,
    /// Includes resource templates.
    Resources,
    Prompts,
}

impl OfferKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Resources => "resources",
            Self::Prompts => "prompts",
        }
    }

    const fn lists(self) -> &'static [PagedList] {
        match self {
            Self::Tools => &[PagedList::Tools],
            Self::Resources => &[PagedList::Resources, PagedList::Templates],
            Self::Prompts => &[PagedList::Prompts],
        }
    }

    fn line(self, entry: &Object) -> String {
        let text = |name: &str| printable(&entry.get_lossy(name).unwrap_or_default()).into_owned();
        match self {
            Self::Tools => format!("{}{}", text("name"), ToolSchema::of(entry).signature()),
            Self::Resources => {
                let address = if entry.contains("uri") { text("uri") } else { text("uriTemplate") };
                format!("{address}  {} {}", text("name"), text("mimeType")).trim_end().to_owned()
            }
            Self::Prompts => {
                let arguments = entry.get("arguments");
                let arguments = arguments.iter().flat_map(Payload::items).filter_map(|argument| {
                    let argument = Object::of(&argument)?;
                    let is_required = argument.get("required").is_some_and(|flag| flag.as_str() == "true");
                    let name = argument.get_lossy("name")?;
                    Some(format!("{}{}", printable(&name), if is_required { "" } else { "?" }))
                });
                format!("{}({})", text("name"), arguments.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

pub(super) async fn run(arguments: OfferArguments, kind: OfferKind) -> ExitCode {
    let OfferArguments { server, json } = arguments;
    let server = match server.read() {
        Ok(server) => server,
        Err(why) => return super::refuse(why),
    };
    let result = ResultForm { is_json: json, out: None };
    let policy = FollowPolicy { interrupt: InterruptPolicy::Leaves, result, ..FollowPolicy::to_the_end() };
    let (mut ui, mut interrupts) = (Terminal::new(), interrupts());
    let mut dialog = CallDialog::new(&policy, &mut ui, &mut interrupts);
    let ended = match CalledServer::new(&server) {
        Ok(server) => match dialog.or_interrupt(Box::pin(offered(&server, kind))).await {
            Ok(offered) => offered.map(|offered| shown(&mut dialog, kind, offered)),
            Err(why) => Ok(dialog.given_up(why)),
        },
        Err(lost) => Err(lost),
    };
    ExitCode::from(dialog.ended(ended) as u8)
}

/// The entries; `None` if the server lacks the capability; the inner result is the server's error.
async fn offered(
    server: &CalledServer,
    kind: OfferKind,
) -> Result<Result<Option<Vec<Payload>>, RpcError>, NoResultError> {
    let (mode, handshake) = match server.discover().await? {
        Some(handshake) => (CallMode::EXTENSION, handshake),
        None => (CallMode::SESSION, server.open_session().await?),
    };
    let has_any = Object::of(&handshake.capabilities).is_some_and(|all| all.contains(kind.name()));
    let mut all = Vec::new();
    let mut refused = None;
    for list in kind.lists().iter().filter(|_| has_any) {
        let listed = server.pages(mode, *list, |page| {
            let entries = page.get(list.items());
            all.extend(entries.iter().flat_map(Payload::items));
            ControlFlow::Continue(())
        });
        // Some servers with resources have no templates.
        refused = refused.or(listed
            .await?
            .err()
            .filter(|error| error.code != rpc_error::METHOD_NOT_FOUND || *list != PagedList::Templates));
    }
    server.end_session().await;
    Ok(refused.map_or(Ok(has_any.then_some(all)), Err))
}

fn shown(dialog: &mut CallDialog<'_>, kind: OfferKind, offered: Result<Option<Vec<Payload>>, RpcError>) -> CallExit {
    let entries = match offered {
        Ok(entries) => entries,
        Err(error) => return dialog.fault(&error),
    };
    if entries.as_ref().is_none_or(Vec::is_empty) {
        dialog.note(&format!("the server offers no {}", kind.name()));
    }
    let entries = entries.unwrap_or_default();
    if dialog.policy.result.is_json {
        let entries: Vec<_> = entries.iter().map(Payload::as_str).collect();
        dialog.ui.output(&format!("[{}]", entries.join(",")));
    } else if !entries.is_empty() {
        let text = in_short(kind, entries.iter().filter_map(Object::of));
        dialog.ui.output(text.trim_end());
    }
    CallExit::Returned
}

/// A line per entry, with its description below.
fn in_short(kind: OfferKind, entries: impl Iterator<Item = Object>) -> String {
    let mut text = String::new();
    for entry in entries {
        let _ = writeln!(text, "{}", kind.line(&entry));
        let description = entry.get_lossy("description").or_else(|| entry.get_lossy("title")).unwrap_or_default();
        let description = shortened(description.trim().lines().next().unwrap_or_default());
        if !description.is_empty() {
            let _ = writeln!(text, "    {description}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_offer_is_a_line_with_its_description() {
        for (kind, entry, expected) in [
            (OfferKind::Tools, json!({ "name": "a\u{7}", "description": "b\nc" }), "a ()\n    b\n"),
            (
                OfferKind::Resources,
                json!({ "uri": "a:b", "name": "n", "mimeType": "text/plain" }),
                "a:b  n text/plain\n",
            ),
            (OfferKind::Resources, json!({ "uriTemplate": "a:{b}", "name": "n", "title": "t" }), "a:{b}  n\n    t\n"),
            (
                OfferKind::Prompts,
                json!({ "name": "p", "arguments": [{ "name": "x", "required": true }, { "name": "y" }] }),
                "p(x, y?)\n",
            ),
        ] {
            let entry = Object::of(&Payload::of(&entry)).unwrap();
            assert_eq!(in_short(kind, std::iter::once(entry)), expected);
        }
        let long = Object::of(&Payload::of(&json!({ "name": "t", "description": "ü".repeat(201) }))).unwrap();
        assert!(in_short(OfferKind::Tools, std::iter::once(long)).ends_with("ü...\n"));
    }
}
