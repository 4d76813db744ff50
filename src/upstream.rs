//! Speaks to servers. An [`Upstream`] begins exchanges; an [`Exchange`] is one request in progress.
//!
//! Read [`exchange`] first: everything above it knows nothing else of upstreams. Then [`transport`] for how requests reach a
//! server, [`http`] for what is said in them, and [`era`] for how a server is spoken to. What is passed on as it came goes
//! by [`raw_channel`] instead.

pub mod answer_body;
pub(crate) mod body;
pub(crate) mod breaker;
pub(crate) mod circular_lists;
pub mod client_credential;
pub mod era;
pub mod exchange;
pub mod forwarding;
pub mod header_annotations;
pub mod http;
pub(crate) mod latencies;
pub mod limits;
pub(crate) mod outgoing;
pub(crate) mod own_ids;
pub mod raw_channel;
pub(crate) mod recent_map;
pub(crate) mod reply;
pub mod resource_metadata;
pub(crate) mod session;
pub mod supervisor;
pub mod transport;
pub mod upstream_health;
mod version_choice;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use client_credential::{ClientCredential, CredentialRefusal};
pub use era::EraUpstream;
pub use exchange::{
    Answer, BeginError, CallContext, ClientFacts, Era, Exchange, ExchangeError, ExchangeEvent,
    NotificationSubscription, Progress, ResumeToken, SUBSCRIBE_MAX, ServerFacts, ServerNotification, TaskRequestError,
    Timeouts, Upstream, UpstreamRequest, UpstreamSubtask, UpstreamTaskEvent, UpstreamTaskMode,
};
pub use forwarding::{ForwardedHeaders, ForwardingRules};
pub use outgoing::HandedOver;
pub use session::own::{OwnSessionChannel, SessionLease};

/// How long what runs in the background may run.
#[derive(Clone, Debug)]
pub struct TaskScope {
    /// Everything in the background is spawned here.
    pub tracker: TaskTracker,
    /// Ends everything in the background that would not end by itself.
    pub stop: CancellationToken,
}
