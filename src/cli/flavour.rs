//! The flavours of tasks, from a client's side, and which of them a call is made with.
//!
//! Each flavour is one file that knows no other; here alone they stand side by side.

mod core;
mod extension;
mod none;

use std::time::Duration;

use clap::ValueEnum;

use super::call::{Call, Verdict};
use super::client::{ClientError, Endpoint};
use super::session::Session;
use super::stateless::Stateless;
use super::talk::Talk;
use crate::wire::{Object, ProtocolVersion};

/// How long a server may take to say which era it is of. One that stays silent is an old one (UPC-22).
const DISCOVER_MAX: Duration = Duration::from_secs(10);

/// A flavour of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flavour {
    /// The tasks extension of 2026-07-28.
    Extension,
    /// The tasks of 2025-11-25.
    Core,
    /// A plain call, of 2026-07-28 or in a session.
    None,
}

/// Makes the call in the flavour that it asks for, or in the best that the server offers: the extension, then the
/// tasks of 2025-11-25, then none.
///
/// # Errors
/// See [`ClientError`].
pub(super) async fn run(endpoint: Endpoint, talk: &mut Talk<'_>) -> Result<Verdict, ClientError> {
    let Ok(opened) = talk.or_interrupt(Box::pin(open(endpoint, talk.call))).await else {
        return Ok(talk.cancelled("cancelled"));
    };
    let opened = opened?;
    match (talk.call.flavour, opened.flavour()) {
        (None, Flavour::Extension) => talk.note("flavour: extension"),
        (None, Flavour::Core) => talk.note("flavour: core"),
        (None, Flavour::None) => talk.note("flavour: none"),
        (Some(Flavour::Core), Flavour::None) => talk.note("the server offers no task for this tool: a plain call"),
        (Some(_), _) => (),
    }
    match opened {
        Opened::Extension(client) => extension::run(&client, talk).await,
        Opened::Core(session) => core::run(session, talk).await,
        Opened::Stateless(client) => none::call(&client, talk).await,
        Opened::Session(session) => none::call_in_session(session, talk).await,
    }
}

/// What the call is made with.
enum Opened {
    Extension(Stateless),
    Core(Session),
    /// A plain call of 2026-07-28.
    Stateless(Stateless),
    /// A plain call in a session.
    Session(Session),
}

impl Opened {
    const fn flavour(&self) -> Flavour {
        match self {
            Self::Extension(_) => Flavour::Extension,
            Self::Core(_) => Flavour::Core,
            Self::Stateless(_) | Self::Session(_) => Flavour::None,
        }
    }
}

async fn open(endpoint: Endpoint, call: &Call) -> Result<Opened, ClientError> {
    match call.flavour {
        // Needs no look around: a server without it answers plainly, or says that it is of another era.
        Some(Flavour::Extension) => Ok(Opened::Extension(extension::client(endpoint))),
        Some(Flavour::Core) => open_session(endpoint, call).await,
        Some(Flavour::None) => match discover(&endpoint).await? {
            Some(_) => Ok(Opened::Stateless(none::client(endpoint))),
            None => Session::open(endpoint).await.map(Opened::Session),
        },
        None => match discover(&endpoint).await? {
            Some(discovered) if extension::is_offered(&discovered) => {
                Ok(Opened::Extension(extension::client(endpoint)))
            }
            // A server of both eras may have the tasks of the older one.
            Some(_) => match open_session(endpoint.clone(), call).await {
                Ok(Opened::Core(session)) => Ok(Opened::Core(session)),
                Ok(Opened::Session(session)) => {
                    session.end().await;
                    Ok(Opened::Stateless(none::client(endpoint)))
                }
                Ok(Opened::Extension(_) | Opened::Stateless(_)) | Err(_) => {
                    Ok(Opened::Stateless(none::client(endpoint)))
                }
            },
            None => open_session(endpoint, call).await,
        },
    }
}

/// Opens a session, and finds out whether the tool can be called as a task in it.
async fn open_session(endpoint: Endpoint, call: &Call) -> Result<Opened, ClientError> {
    let mut session = Session::open(endpoint).await?;
    match core::is_offered(&mut session, &call.tool).await? {
        true => Ok(Opened::Core(session)),
        false => Ok(Opened::Session(session)),
    }
}

/// What a server of 2026-07-28 says of itself; `None` for one of sessions alone. The fallback hangs on no
/// particular code (UPC-22), only on an answer or on silence.
async fn discover(endpoint: &Endpoint) -> Result<Option<Object>, ClientError> {
    let client = none::client(endpoint.clone());
    match client.discover(DISCOVER_MAX).await {
        Ok(reply) => Ok(reply.outcome.ok().filter(speaks_stateless)),
        Err(ClientError::Unreachable(error)) if error.is_connect() => Err(ClientError::Unreachable(error)),
        Err(error @ (ClientError::Tls(_) | ClientError::Address(_))) => Err(error),
        Err(
            ClientError::Unreachable(_)
            | ClientError::Broken(_)
            | ClientError::Late(_)
            | ClientError::Status { .. }
            | ClientError::Refused { .. }
            | ClientError::Unintelligible(_),
        ) => Ok(None),
    }
}

fn speaks_stateless(discovered: &Object) -> bool {
    let versions = discovered.get("supportedVersions");
    let versions = versions.and_then(|versions| versions.read::<Vec<String>>().ok()).unwrap_or_default();
    versions.iter().any(|version| version == ProtocolVersion::V2026_07_28.as_str())
}
