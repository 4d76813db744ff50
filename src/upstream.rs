//! Sends requests to MCP servers. An [`Upstream`] begins exchanges; an [`Exchange`] is one request in progress. Read
//! [`exchange`] first, then [`transport`], [`http`] and [`era`]. [`raw_channel`] forwards messages verbatim.

pub mod answer_body;
pub(crate) mod body;
pub(crate) mod breaker;
pub mod client_credential;
pub mod document;
pub mod era;
pub mod exchange;
pub mod forwarding;
pub mod header_annotations;
pub mod http;
pub mod issued_credential;
mod issued_token;
pub mod limits;
pub(crate) mod outgoing;
pub(crate) mod own_ids;
pub mod raw_channel;
pub(crate) mod recent_map;
pub(crate) mod reply;
pub mod resource_metadata;
pub(crate) mod session;
pub(crate) mod shared_lookups;
pub(crate) mod spare_headers;
pub mod subject_token;
#[cfg(unix)]
pub mod supervisor;
#[cfg(not(unix))]
pub mod supervisor {
    //! Refuses servers that are programs.

    use std::ffi::OsString;
    use std::io;
    use std::process::{Command, ExitCode};
    use std::time::Duration;

    use crate::system::ProgramLimits;

    pub(crate) const STOP_MAX: Duration = Duration::ZERO;
    const REFUSED: &str = "a server that is a program needs Linux or macOS; on this system name a server by its URL";

    pub(crate) fn command(_: &ProgramLimits, _: &str, _: &[String]) -> io::Result<Command> {
        Err(io::Error::new(io::ErrorKind::Unsupported, REFUSED))
    }

    pub fn run(_: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
        None
    }
}
pub mod token_client;
pub mod transport;
pub mod upstream_health;
mod version_choice;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use client_credential::{ClientCredential, CredentialRefusal};
pub use era::EraUpstream;
pub use exchange::{
    Answer, AnsweredBy, BeginError, CallContext, ClientFacts, Era, Exchange, ExchangeError, ExchangeEvent, Handshake,
    NoResult, NotificationSubscription, Progress, ResumeToken, SUBSCRIBE_MAX, ServerNotification, SubtaskQuota,
    TaskRequestError, Timeouts, Upstream, UpstreamRequest, UpstreamTaskEvent, UpstreamTaskMode, result_of,
};
pub use forwarding::{ForwardedHeaders, ForwardingRules};
pub use outgoing::HandedOver;
pub use session::own::{OwnSessionChannel, SessionLease, SessionMemories};

#[derive(Clone, Debug)]
pub struct TaskScope {
    pub tracker: TaskTracker,
    /// Stops background tasks that do not end by themselves.
    pub stop: CancellationToken,
}
