//! Writes `initialize`, `server/discover` and the members of every stateless result (MOD-11 to MOD-13, GW-12).

use bytes::Bytes;

use crate::wire::meta::{META, SERVER_INFO, TASKS_EXTENSION};
use crate::wire::object::{ObjectEdit, ObjectWriter};
use crate::wire::{ElicitationKinds, JsonPieces, Object, Payload, ProtocolVersion, RequestId, envelope, method};

#[derive(Clone, Debug)]
pub struct SessionServerDescription {
    pub capabilities: Payload,
    pub instructions: Option<Payload>,
    pub server_info: Payload,
}

pub fn discover_result(server: &SessionServerDescription) -> Payload {
    let versions = ProtocolVersion::advertised_stateless();
    ObjectWriter::new()
        .text("resultType", "complete")
        .member("supportedVersions", &Payload::of(&versions))
        .member("capabilities", &stateless_capabilities(&server.capabilities))
        .optional("instructions", server.instructions.as_ref())
        // Instructions and capabilities may depend on the client, so the response is private.
        .number("ttlMs", 0)
        .text("cacheScope", "private")
        .member(META, &server_meta(&server.server_info))
        .finish()
}

/// A session server's capabilities for stateless clients: without tasks of 2025-11-25 (EXT-60), and without `experimental`,
/// since its methods are not served; with the extension as exactly `{}` (EXT-01). `listChanged` and `subscribe` stay.
fn stateless_capabilities(capabilities: &Payload) -> Payload {
    let Some(object) = Object::of(capabilities) else {
        return ObjectWriter::new().member("extensions", &extensions(None)).finish();
    };
    let edit = object.edit().remove("tasks").remove("experimental");
    edit.set("extensions", extensions(object.get_object("extensions").as_ref())).finish()
}

fn extensions(declared: Option<&Object>) -> Payload {
    match declared {
        Some(declared) => declared.edit().set(TASKS_EXTENSION, Payload::empty_object()).finish(),
        None => ObjectWriter::new().member(TASKS_EXTENSION, &Payload::empty_object()).finish(),
    }
}

/// `_meta` with the server's identity, for the gateway's own results (MOD-13).
pub fn server_meta(server_info: &Payload) -> Payload {
    ObjectWriter::single(SERVER_INFO, server_info)
}

const fn complete() -> Payload {
    Payload::constant(r#""complete""#)
}

/// The cache hints of a result that is stale at once and private.
const fn hints() -> [(&'static str, Payload); 2] {
    [("ttlMs", Payload::constant("0")), ("cacheScope", Payload::constant(r#""private""#))]
}

/// Adds the members required by 2026-07-28 (MOD-11, MOD-13, MOD-14). Session results are stale at once, and private.
pub fn stateless_result(method: &str, result: &Payload, server_info: &Payload) -> Payload {
    completed(method, result, server_info, |edit| edit.finish()).unwrap_or_else(|| result.clone())
}

/// As [`stateless_result`], in pieces, without copying large ones.
pub fn completed_result(method: &str, result: &Payload, server_info: &Payload) -> JsonPieces {
    completed(method, result, server_info, |edit| edit.finish_pieces()).unwrap_or_else(|| result.clone().into())
}

/// As [`stateless_result`], in consecutive pieces: unchanged parts of at least `large` bytes are not copied.
pub fn stateless_result_in_pieces(method: &str, result: &Payload, server_info: &Payload, large: usize) -> Vec<Bytes> {
    let pieces = completed(method, result, server_info, |edit| edit.pieces(large));
    pieces.unwrap_or_else(|| vec![result.bytes().clone()])
}

fn completed<T>(
    method: &str,
    result: &Payload,
    server_info: &Payload,
    finish: impl FnOnce(ObjectEdit<'_>) -> T,
) -> Option<T> {
    let object = Object::of(result)?;
    let meta = object
        .get_object(META)
        .map_or_else(|| server_meta(server_info), |meta| meta.edit().set(SERVER_INFO, server_info.clone()).finish());
    let mut edit = object.edit().set("resultType", complete());
    if is_cacheable(method) {
        edit = hints().into_iter().fold(edit, |edit, (name, value)| edit.set(name, value));
    }
    Some(finish(edit.set(META, meta)))
}

/// The callers that may read a cached copy of a server's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheReaders {
    /// The callers that the server says.
    AsStated,
    /// The caller of the request alone, because the gateway shows others another result (MOD-15, U82).
    Caller,
}

/// Adds the type and cache hints that a server of 2026-07-28 left out (MOD-11, MOD-14). `None` if nothing changes.
pub fn with_required(method: &str, result: &Object, readers: CacheReaders) -> Option<Payload> {
    let required = [("resultType", complete())].into_iter();
    let required = required.chain(is_cacheable(method).then(hints).into_iter().flatten());
    let is_shared = |name: &str| {
        readers == CacheReaders::Caller && name == "cacheScope" && result.get_str(name).as_deref() != Some("private")
    };
    let missing: Vec<_> = required.filter(|(name, _)| !result.contains(name) || is_shared(name)).collect();
    if missing.is_empty() {
        return None;
    }
    let mut edit = result.edit();
    for (name, value) in missing {
        edit = edit.set(name, value);
    }
    Some(edit.finish())
}

/// Whether a message has the names of the cache hints that [`with_required`] adds.
pub fn names_hints(method: &str, message: &[u8]) -> bool {
    let is_named = |name: &&[u8]| memchr::memmem::find(message, name).is_some();
    !is_cacheable(method) || [&b"ttlMs"[..], b"cacheScope"].iter().all(is_named)
}

/// The methods with cache hints in their results (MOD-14).
pub fn is_cacheable(method: &str) -> bool {
    matches!(
        method,
        method::DISCOVER
            | method::TOOLS_LIST
            | method::PROMPTS_LIST
            | method::RESOURCES_LIST
            | method::RESOURCES_TEMPLATES_LIST
            | method::RESOURCES_READ
    )
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
    }

    #[track_caller]
    fn check_capabilities(server: &str, client_reads: &str) {
        assert_eq!(stateless_capabilities(&payload(server)).as_str(), client_reads);
    }

    /// EXT-01, EXT-60, EXT-61: exactly `{}`, and no tasks of 2025-11-25.
    #[test]
    fn capabilities_offer_the_extension_and_the_notifications_for_listeners() {
        check_capabilities("{}", r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#);
        check_capabilities(
            r#"{"tools":{"listChanged":true},"tasks":{"list":{}},"resources":{"subscribe":true,"x":1},"logging":{},"experimental":{"x":{}},"completions":{}}"#,
            r#"{"tools":{"listChanged":true},"resources":{"subscribe":true,"x":1},"logging":{},"completions":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
        );
        check_capabilities(
            r#"{"extensions":{"a/b":{"k":1},"io.modelcontextprotocol/tasks":{"odd":true}}}"#,
            r#"{"extensions":{"a/b":{"k":1},"io.modelcontextprotocol/tasks":{}}}"#,
        );
    }

    /// MOD-11, MOD-14.
    #[test]
    fn results_of_a_stateless_server_gain_only_missing_members() {
        let added = |method: &str, text: &str| {
            let added = with_required(method, &Object::of(&payload(text)).unwrap(), CacheReaders::AsStated);
            assert_eq!(added.is_none(), text.contains("resultType") && names_hints(method, text.as_bytes()), "{text}");
            added.map(|result| result.as_str().to_owned())
        };
        for (method, text, expected) in [
            (method::TOOLS_CALL, r#"{"resultType":"complete"}"#, None),
            (method::TOOLS_CALL, r#"{"n":1.10}"#, Some(r#"{"n":1.10,"resultType":"complete"}"#)),
            (method::PROMPTS_LIST, r#"{"ttlMs":1,"resultType":"complete","cacheScope":"public"}"#, None),
            (
                method::RESOURCES_READ,
                r#"{"ttlMs":1}"#,
                Some(r#"{"ttlMs":1,"resultType":"complete","cacheScope":"private"}"#),
            ),
        ] {
            assert_eq!(added(method, text).as_deref(), expected, "{method} {text}");
        }
    }

    /// U82, MOD-15.
    #[test]
    fn u82_a_result_for_one_caller_is_private() {
        for (method, text, expected) in [
            (method::TOOLS_LIST, r#"{"resultType":"complete","ttlMs":1,"cacheScope":"private"}"#, None),
            (
                method::RESOURCES_READ,
                r#"{"resultType":"complete","cacheScope":"public","ttlMs":1}"#,
                Some(r#"{"resultType":"complete","cacheScope":"private","ttlMs":1}"#),
            ),
            (
                method::PROMPTS_LIST,
                r#"{"resultType":"complete","ttlMs":1,"cacheScope":null}"#,
                Some(r#"{"resultType":"complete","ttlMs":1,"cacheScope":"private"}"#),
            ),
            (method::TOOLS_CALL, r#"{"resultType":"complete","cacheScope":"public"}"#, None),
        ] {
            let private = with_required(method, &Object::of(&payload(text)).unwrap(), CacheReaders::Caller);
            assert_eq!(private.as_ref().map(Payload::as_str), expected, "{method} {text}");
        }
    }

    /// MOD-12, MOD-13, MOD-14.
    #[test]
    fn discover_lists_the_stateless_version_and_is_private() {
        let description = SessionServerDescription {
            capabilities: payload(r#"{"tools":{}}"#),
            instructions: Some(payload(r#""be kind""#)),
            server_info: payload(r#"{"name":"s","version":"1"}"#),
        };
        assert_eq!(
            discover_result(&description).as_str(),
            r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"be kind","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}}}"#
        );
    }

    /// MOD-11, MOD-14, T-14: the rest of the result is verbatim.
    #[test]
    fn results_gain_the_members_of_2026_07_28_and_keep_the_rest() {
        let info = payload(r#"{"name":"s"}"#);
        assert_eq!(
            stateless_result(method::TOOLS_CALL, &payload(r#"{"content":[], "n":1.10}"#), &info).as_str(),
            r#"{"content":[], "n":1.10,"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}"#
        );
        assert_eq!(
            stateless_result(method::PROMPTS_LIST, &payload(r#"{"prompts":[],"_meta":{"k":1}}"#), &info).as_str(),
            r#"{"prompts":[],"_meta":{"k":1,"io.modelcontextprotocol/serverInfo":{"name":"s"}},"resultType":"complete","ttlMs":0,"cacheScope":"private"}"#
        );
    }
}
