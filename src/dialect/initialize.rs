//! Writes `initialize` requests.

use bytes::Bytes;

use crate::wire::object::ObjectWriter;
use crate::wire::{ElicitationKinds, Object, Payload, ProtocolVersion, RequestId, envelope, method};

/// Writes `initialize`. A client without a name gets the gateway's.
pub fn initialize_request(
    id: &RequestId,
    version: ProtocolVersion,
    capabilities: &Payload,
    client_info: Option<&Payload>,
) -> Bytes {
    let params = ObjectWriter::new()
        .text("protocolVersion", version.as_str())
        .member("capabilities", capabilities)
        .member("clientInfo", &client_info.cloned().unwrap_or_else(own_identity))
        .finish();
    envelope::request(id, method::INITIALIZE, Some(&params))
}

pub fn own_identity() -> Payload {
    ObjectWriter::new().text("name", "taskgate").text("version", env!("CARGO_PKG_VERSION")).finish()
}

/// Before 2025-11-25 elicitation was by form only, and its capability had no members (GW-05).
pub fn capabilities_in(version: ProtocolVersion, capabilities: &Payload) -> Payload {
    let unchanged = || capabilities.clone();
    if version.traits().elicitation == ElicitationKinds::FormAndUrl {
        return unchanged();
    }
    let Some(object) = Object::of(capabilities) else { return unchanged() };
    let Some(kinds) = object.get_object("elicitation").filter(|kinds| kinds.keys().next().is_some()) else {
        return unchanged();
    };
    if kinds.contains("url") && !kinds.contains("form") {
        return object.edit().remove("elicitation").finish();
    }
    object.edit().set("elicitation", ObjectWriter::new().finish()).finish()
}
