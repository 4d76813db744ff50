//! Towards servers. An [`Upstream`] begins exchanges; an [`Exchange`] is one request in progress.
//!
//! Read [`exchange`] first: everything above it knows nothing else of upstreams. Then [`http`] for the
//! transport that there is. A client with a session of its own goes by [`conduit`] instead.

pub mod conduit;
pub mod exchange;
pub mod http;
pub mod limits;
mod probe;
mod session;

pub use exchange::{
    Answer, BeginError, CallContext, ClientFacts, Exchange, ExchangeEvent, Lost, Progress, ResumeToken, ServerFacts,
    Timeouts, Upstream, UpstreamRequest,
};
