//! Reads and writes JSON-RPC and MCP text: envelopes, verbatim payloads, the strict scan, event streams. Knows no
//! tokio, no http, no clock. Read [`scan`] first: a text that passes it reads the same in every JSON parser.

pub mod canonical;
pub mod dates;
pub mod envelope;
pub mod framing;
pub mod id;
pub mod list_pages;
pub mod meta;
pub mod method;
pub mod object;
pub mod one_line;
pub mod payload;
pub mod progress;
pub mod rpc_error;
pub mod scan;
pub mod version;
pub mod walk;

pub use canonical::canonical;
pub use envelope::{Message, MessageText, Notification, Request, Response};
pub use id::RequestId;
pub use list_pages::{ListEnd, ListPages, PagedList};
pub use object::Object;
pub use payload::{JsonPieces, Payload};
pub use rpc_error::RpcError;
pub use scan::{ScanError, ScanLimits};
pub use version::{ElicitationKinds, ProtocolVersion};
