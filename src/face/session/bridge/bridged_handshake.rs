//! Answers the handshake of a session that only the gateway knows.

use std::time::Duration;

use super::SessionFaceState;
use crate::dialect::faults::gateway_error;
use crate::dialect::initialize::own_identity;
use crate::dialect::lifecycle::SessionServerDescription;
use crate::dialect::session_results::{initialize_result, session_error};
use crate::face::rewrite::ClientInitialize;
use crate::face::session::bridged_client::BridgedClient;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::{BeginError, ForwardedHeaders};
use crate::wire::{Object, RpcError};

/// The server's time to describe itself.
const FACTS_MAX: Duration = Duration::from_secs(30);

/// The result of `initialize`, or an error for the client.
pub(in crate::face::session) async fn introduce(
    shared: &SessionFaceState,
    asker: (&Principal, &ForwardedHeaders),
    introduction: &ClientInitialize,
) -> Result<Object, RpcError> {
    let client = BridgedClient::of(introduction.version, &introduction.capabilities);
    let context = client.context(asker, &shared.served);
    let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
    let asking = tokio::time::timeout(FACTS_MAX, shared.served.stateless.facts(&context));
    let facts = match asking.await.unwrap_or(Err(BeginError::Gateway(late))) {
        Ok(facts) => facts,
        Err(BeginError::Gateway(fault)) => return Err(gateway_error(&fault)),
        Err(BeginError::Refused(error)) => return Err(session_error(&error, None)),
    };
    let description = SessionServerDescription {
        capabilities: &facts.capabilities,
        instructions: facts.instructions.as_ref(),
        server_info: &facts.server_info.clone().unwrap_or_else(own_identity),
    };
    let result = initialize_result(description, introduction.version);
    Object::of(&result).ok_or_else(|| gateway_error(&GatewayFault::new(Reason::Internal, Executed::No)))
}
