//! Reads the members of a piped request that the gateway needs besides the text.

use std::sync::Arc;

use super::PipedRequest;
use crate::face::call_stream::progress::LifeSigns;
use crate::wire::RequestId;

impl PipedRequest {
    /// The life signs of a request with a valid progress token.
    pub(super) fn signs(&self) -> Option<LifeSigns> {
        let token = self.progress_token.as_ref().and_then(RequestId::from_payload)?;
        Some(LifeSigns::new(self.id.clone(), token.payload().clone()))
    }

    /// The tool of a call; empty for other requests.
    pub(super) fn tool_name(&self) -> Arc<str> {
        self.tool.clone().unwrap_or_default()
    }
}
