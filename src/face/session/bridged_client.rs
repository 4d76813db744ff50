//! Describes a session's client in the form of a stateless request.

use std::sync::Arc;

use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::session_results::client_capabilities;
use crate::engine::{Askable, QuestionFilter};
use crate::face::served::Served;
use crate::task::Principal;
use crate::upstream::{CallContext, ForwardedHeaders};
use crate::wire::meta::CLIENT_CAPABILITIES;
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, ProtocolVersion};

/// A session client's capabilities, as far as its version defines them.
#[derive(Clone, Debug)]
pub(in crate::face::session) struct BridgedClient {
    metadata: StatelessRequest,
}

impl BridgedClient {
    pub(in crate::face::session) fn of(version: ProtocolVersion, capabilities: &Payload) -> Self {
        let declared = client_capabilities(capabilities, version);
        let meta = ObjectWriter::new().member(CLIENT_CAPABILITIES, &declared).finish();
        let meta = Object::of(&meta).expect("a written object is one");
        let metadata = StatelessRequest::read(ProtocolVersion::STATELESS, &meta);
        Self { metadata: metadata.expect("metadata with capabilities alone is valid") }
    }

    pub(super) fn capabilities(&self) -> Payload {
        self.metadata.upstream_capabilities()
    }

    /// For requests other than calls: without progress and log messages.
    pub(in crate::face::session) fn context(
        &self,
        (principal, forwarded): (&Principal, &ForwardedHeaders),
        served: &Served,
    ) -> CallContext {
        let settings = &served.settings;
        let share = Some(served.engine.limits().answers_to(principal));
        let (timeouts, result_bytes_max) = (settings.timeouts, settings.result_bytes_max);
        let context = CallContext::new(principal.clone(), self.capabilities(), timeouts, result_bytes_max);
        CallContext { forwarded: forwarded.of_credential(), share, ..context }
    }

    /// The questions that the client can answer on a call's stream (LEG-16). A call that needs others fails (GW-23).
    pub(super) fn questions(&self) -> QuestionFilter {
        let metadata = self.metadata.clone();
        Arc::new(move |question| match metadata.missing([question]) {
            None => Askable::Declared,
            Some(needed) => Askable::Required(needed),
        })
    }

    /// As [`Self::questions`], for a client without a stream, which can answer none.
    pub(super) fn questions_without_stream(version: ProtocolVersion) -> QuestionFilter {
        Self::of(version, &Payload::empty_object()).questions()
    }
}
