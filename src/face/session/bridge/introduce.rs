//! Answers the handshake of a session that only the gateway knows of.

use std::time::Duration;

use super::client::Client;
use super::{Bridge, Shared};
use crate::dialect::faults::gateway_error;
use crate::dialect::lifecycle::ServerWords;
use crate::dialect::reintroduction::{initialize_result, session_error};
use crate::face::rewrite::{Introduction, own_identity};
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::BeginError;
use crate::wire::{Object, RpcError};

/// How long the server may take to say what it is.
const FACTS_MAX: Duration = Duration::from_secs(30);

/// The result of `initialize` for a client of this server.
///
/// # Errors
/// Those that the client is to see.
pub(in crate::face::session) async fn introduce(
    shared: &Shared,
    bridge: &Bridge,
    principal: &Principal,
    introduction: &Introduction,
) -> Result<Object, RpcError> {
    let client = Client::of(introduction.version, &introduction.capabilities);
    let context = client.context(principal, shared.served.timeouts, shared.served.edited_bytes_max);
    let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
    let asking = tokio::time::timeout(FACTS_MAX, bridge.stateless.facts(&context));
    let facts = match asking.await.unwrap_or(Err(BeginError::Gateway(late))) {
        Ok(facts) => facts,
        Err(BeginError::Gateway(fault)) => return Err(gateway_error(&fault)),
        Err(BeginError::Refused(error)) => return Err(session_error(&error, None)),
    };
    let words = ServerWords {
        capabilities: &facts.capabilities,
        instructions: facts.instructions.as_ref(),
        server_info: &facts.server_info.clone().unwrap_or_else(own_identity),
    };
    let result = initialize_result(words, introduction.version);
    Object::of(&result).ok_or_else(|| gateway_error(&GatewayFault::new(Reason::Internal, Executed::No)))
}
