//! Speaks to servers. An [`Upstream`] begins exchanges; an [`Exchange`] is one request in progress.
//!
//! Read [`exchange`] first: everything above it knows nothing else of upstreams. Then [`http`] for the
//! transport that there is, and [`era`] for how a server is spoken to. What is passed on as it came goes by
//! [`conduit`] instead.

pub(crate) mod breaker;
mod carrier;
pub mod conduit;
pub mod era;
pub mod exchange;
mod fallback;
pub mod forwarding;
pub mod http;
pub mod limits;
pub mod mirrored;
pub(crate) mod own_ids;
mod probe;
mod session;
pub mod stand;
pub mod standing;
pub mod supervisor;

pub use era::{Era, EraUpstream};
pub use exchange::{
    Answer, BeginError, CallContext, ClientFacts, Exchange, ExchangeError, ExchangeEvent, NotificationSubscription,
    Progress, ResumeToken, SUBSCRIBE_MAX, ServerFacts, ServerNotification, TaskRequestError, Timeouts, Upstream,
    UpstreamRequest, UpstreamTaskEvent, UpstreamTaskMode,
};
pub use forwarding::{ForwardedHeaders, ForwardingRules};
