//! Speaks to servers. An [`Upstream`] begins exchanges; an [`Exchange`] is one request in progress.
//!
//! Read [`exchange`] first: everything above it knows nothing else of upstreams. Then [`http`] for the
//! transport that there is, and [`era`] for how a server is spoken to. What is passed on as it came goes by
//! [`raw_channel`] instead.

pub(crate) mod breaker;
pub mod era;
pub mod exchange;
pub mod forwarding;
pub mod header_annotations;
pub mod http;
pub mod limits;
pub(crate) mod own_ids;
pub mod raw_channel;
mod request_transport;
mod session;
pub mod supervisor;
pub mod transport;
mod transport_detection;
pub mod upstream_health;
mod version_choice;

pub use era::{Era, EraUpstream};
pub use exchange::{
    Answer, BeginError, CallContext, ClientFacts, Exchange, ExchangeError, ExchangeEvent, NotificationSubscription,
    Progress, ResumeToken, SUBSCRIBE_MAX, ServerFacts, ServerNotification, TaskRequestError, Timeouts, Upstream,
    UpstreamRequest, UpstreamTaskEvent, UpstreamTaskMode,
};
pub use forwarding::{ForwardedHeaders, ForwardingRules};
