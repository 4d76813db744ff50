//! Serves clients without a session id in front of a server that issues none.
//!
//! The server answers them directly, so the gateway does, too: each request has its own session.

use std::sync::atomic::{AtomicBool, Ordering};

use super::SessionFaceState;
use super::session_cache::ClientSession;
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::face::headers;
use crate::face::http::Inbound;
use crate::face::sealed::SessionToken;
use crate::upstream::raw_channel::SessionBinding;
use crate::wire::{Payload, ProtocolVersion};

/// Whether the server issued no id for the last opened session; false before the first.
#[derive(Debug, Default)]
pub(super) struct GivesNoIds(AtomicBool);

impl GivesNoIds {
    pub(super) fn note(&self, opened: &SessionBinding) {
        self.0.store(opened.session.is_none(), Ordering::Relaxed);
    }
}

/// `None` if the server issues ids, or the gateway keeps its sessions for it.
pub(super) fn session(shared: &SessionFaceState, inbound: &Inbound) -> Option<ClientSession> {
    let served = &shared.served;
    if !shared.gives_no_ids.0.load(Ordering::Relaxed) || served.channel.makes_streams() {
        return None;
    }
    let named = headers::single(&inbound.headers, &headers::PROTOCOL_VERSION).ok()?;
    // The version of a request without the header (2025-11-25, Transports).
    let version = named.map_or(Some(ProtocolVersion::V2025_03_26), ProtocolVersion::parse)?;
    let token = SessionToken {
        upstream: served.channel.name().to_string(),
        principal: inbound.principal.clone(),
        nonce: (served.random)(),
        client_version: version,
        upstream_version: version,
        capabilities: Payload::empty_object(),
        client_info: None,
        issued_at: served.clock.now(),
        replica: served.own_replica(),
        upstream_session: None,
        tasks: UpstreamTaskSupport::default(),
        declares_tasks: false,
    };
    (!version.is_stateless()).then(|| ClientSession::for_one_request(token, inbound.principal.clone()))
}
