//! Edits forwarded bodies: `initialize`, server descriptions, tool lists, and task members of calls. Pure. All other
//! bodies are forwarded byte for byte.

use std::sync::Arc;

use bytes::Bytes;

use crate::dialect::lifecycle::capabilities_in;
use crate::task::{Draft, Drafts};
use crate::wire::envelope::Request;
use crate::wire::meta::{DRAFT_TASK, META, TASKS_EXTENSION};
use crate::wire::object::ObjectWriter;
use crate::wire::{Message, Object, Payload, ProtocolVersion, RequestId, ScanLimits, envelope, method};

#[derive(Clone, Debug)]
pub struct ClientInitialize {
    /// The version to respond with: the requested one, at most 2025-11-25.
    pub version: ProtocolVersion,
    /// Without tasks of either flavour.
    pub capabilities: Payload,
    pub client_info: Option<Payload>,
    pub declares_tasks: bool,
    params: Object,
}

impl ClientInitialize {
    /// `None` if the params are no object with the required members.
    pub fn read(request: &Request) -> Option<Self> {
        let params = request.params.object()?;
        let version = session_version(&params.get_string("protocolVersion")?);
        let declared = params.get_object("capabilities")?;
        let (capabilities, declares_tasks) = (without_tasks(&declared), declared.contains("tasks"));
        let client_info = params.get("clientInfo");
        Some(Self { version, capabilities, client_info, declares_tasks, params: params.clone() })
    }

    /// The client's message with another version, and no capabilities that the gateway handles. Same bytes if equal.
    pub fn message(&self, id: &RequestId, version: ProtocolVersion, original: &Bytes) -> Bytes {
        let requested = self.params.get_string("protocolVersion");
        let capabilities = capabilities_in(version, &self.capabilities);
        if requested.as_deref() == Some(version.as_str())
            && self.params.get("capabilities").as_ref() == Some(&capabilities)
        {
            return original.clone();
        }
        let params = self
            .params
            .edit()
            .set("protocolVersion", Payload::of(version.as_str()))
            .set("capabilities", capabilities)
            .finish();
        envelope::request(id, method::INITIALIZE, Some(&params))
    }
}

/// For an unknown or stateless version, the newest with sessions (LEG-02).
pub fn session_version(requested: &str) -> ProtocolVersion {
    ProtocolVersion::parse(requested)
        .filter(|version| !version.is_stateless())
        .unwrap_or(ProtocolVersion::NEWEST_SESSION)
}

/// A server's name for each result: without icons, which may be large. The response of `server/discover` has them.
pub fn short_identity(info: &Payload) -> Payload {
    match Object::of(info) {
        Some(object) if object.contains("icons") => object.edit().remove("icons").finish(),
        Some(_) | None => info.clone(),
    }
}

/// The server's `initialize` result: the gateway's tasks replace the server's (GW-12).
pub fn edited_initialize(result: &Object, version: ProtocolVersion, tasks: Option<Payload>) -> Payload {
    let edit = result.edit().set("protocolVersion", Payload::of(version.as_str()));
    match result.get_object("capabilities") {
        Some(capabilities) => {
            let capabilities = without_tasks(&capabilities);
            let offered = tasks.and_then(|tasks| Some(Object::of(&capabilities)?.edit().set("tasks", tasks).finish()));
            edit.set("capabilities", offered.unwrap_or(capabilities)).finish()
        }
        None => edit.finish(),
    }
}

fn without_tasks(capabilities: &Object) -> Payload {
    capabilities.edit().remove("tasks").remove_within("extensions", &[TASKS_EXTENSION]).finish()
}

/// Sets each tool's task support; without `support` there is none (GW-13). `None` if nothing changes.
pub fn tool_list(message: &Bytes, id: &RequestId, support: Option<&dyn Fn(&str) -> &'static str>) -> Option<Bytes> {
    // Most lists have no tasks, and need not be parsed without additions.
    if support.is_none() {
        memchr::memmem::find(message, b"execution")?;
    }
    let Ok(Message::Response(response)) = envelope::read(message, ScanLimits::UPSTREAM) else { return None };
    let result = response.result.filter(|_| response.id.as_ref() == Some(id))?;
    tools(&result, support).map(|edited| envelope::result(id, &edited))
}

pub fn tools(result: &Object, support: Option<&dyn Fn(&str) -> &'static str>) -> Option<Payload> {
    let mut changed = false;
    let tools: Vec<Payload> = result
        .get("tools")?
        .items()
        .map(|tool| {
            let edited = Object::of(&tool).map(|object| match support.zip(object.get_str("name")) {
                Some((support, name)) => with_support(&object, support(&name)),
                None => object.edit().remove("execution").finish(),
            });
            let edited = edited.unwrap_or_else(|| tool.clone());
            changed |= edited != tool;
            edited
        })
        .collect();
    changed.then(|| result.edit().set("tools", Payload::of(&tools)).finish())
}

fn with_support(tool: &Object, support: &str) -> Payload {
    let execution = match tool.get_object("execution") {
        Some(execution) => execution.edit().set("taskSupport", Payload::of(support)).finish(),
        None => ObjectWriter::new().text("taskSupport", support).finish(),
    };
    tool.edit().set("execution", execution).finish()
}

/// A stateless server's description with the gateway's extension and versions alone (GW-12). Cache settings are kept.
pub fn discovery(message: &Bytes, id: &RequestId) -> Option<Bytes> {
    let Ok(Message::Response(response)) = envelope::read(message, ScanLimits::UPSTREAM) else { return None };
    let result = response.result.filter(|_| response.id.as_ref() == Some(id))?;
    let capabilities = result.get_object("capabilities")?;
    let declared = capabilities.get_object("extensions");
    let extensions = match &declared {
        Some(declared) => declared.edit().set(TASKS_EXTENSION, Payload::empty_object()).finish(),
        None => ObjectWriter::new().member(TASKS_EXTENSION, &Payload::empty_object()).finish(),
    };
    let capabilities = capabilities.edit().remove("tasks").set("extensions", extensions).finish();
    let versions: Vec<String> = result.get("supportedVersions")?.read().ok()?;
    let spoken = ProtocolVersion::advertised_stateless();
    let both: Vec<&str> = spoken.into_iter().filter(|version| versions.iter().any(|one| one == version)).collect();
    let edit = result.edit().set("capabilities", capabilities).set("supportedVersions", Payload::of(&both));
    Some(envelope::result(id, &edit.finish()))
}

/// A call without its request for a task: a receiver that declared no tasks runs it as any other. `None` if it has
/// none. With SEP-1686 its key goes too: else a server with the draft creates a task that the gateway does not serve.
pub fn plain_call(request: &Request, drafts: Drafts) -> Option<Bytes> {
    let params = request.params.object()?;
    let meta = if drafts.has(Draft::Sep1686) { params.get_object(META) } else { None };
    let meta = meta.filter(|meta| meta.contains(DRAFT_TASK));
    if !params.contains("task") && meta.is_none() {
        return None;
    }
    let edit = params.edit().remove("task");
    let edit = match meta {
        Some(meta) => edit.set(META, meta.edit().remove(DRAFT_TASK).finish()),
        None => edit,
    };
    Some(envelope::request(&request.id, &request.method, Some(&edit.finish())))
}

pub(in crate::face) type TaskSupportLookup = Arc<dyn Fn(&str) -> &'static str + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::lifecycle::initialize_request;

    fn request(text: &str) -> (Request, Bytes) {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        match envelope::read(&bytes, ScanLimits::CLIENT) {
            Ok(Message::Request(request)) => (request, bytes),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check_initialize(params: &str, version: ProtocolVersion, sent: &str) {
        let (request, bytes) =
            request(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#));
        let initialize = ClientInitialize::read(&request).unwrap();
        let message = initialize.message(&request.id, version, &bytes);
        let expected = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{sent}}}"#);
        assert_eq!(String::from_utf8_lossy(&message), expected);
    }

    /// GW-12.
    #[test]
    fn initialize_is_forwarded_without_the_tasks_that_the_gateway_adds() {
        let newest = ProtocolVersion::V2025_11_25;
        let plain = r#"{"protocolVersion":"2025-11-25", "capabilities":{"roots":{ }},"clientInfo":{"v":1.10}}"#;
        check_initialize(plain, newest, plain);
        check_initialize(plain, ProtocolVersion::V2025_06_18, &plain.replace("2025-11-25", "2025-06-18"));
        check_initialize(
            r#"{"protocolVersion":"2026-07-28","capabilities":{"tasks":{},"elicitation":{}},"x":1}"#,
            newest,
            r#"{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"x":1}"#,
        );
        check_initialize(
            r#"{"protocolVersion":"2025-11-25","capabilities":{"extensions":{"a/b":{},"io.modelcontextprotocol/tasks":{}}}}"#,
            newest,
            r#"{"protocolVersion":"2025-11-25","capabilities":{"extensions":{"a/b":{}}}}"#,
        );
        check_initialize(
            r#"{"protocolVersion":"2025-11-25","capabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}"#,
            newest,
            r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#,
        );
    }

    /// GW-05.
    #[test]
    fn older_versions_hear_of_elicitation_by_form_alone() {
        let older = ProtocolVersion::V2025_06_18;
        for (said, sent) in [
            (r#"{"elicitation":{}}"#, r#"{"elicitation":{}}"#),
            (r#"{"elicitation":{"form":{},"url":{}},"roots":{"n":1.10}}"#, r#"{"elicitation":{},"roots":{"n":1.10}}"#),
            (r#"{"elicitation":{"form":{}}}"#, r#"{"elicitation":{}}"#),
            (r#"{"roots":{},"elicitation":{"url":{}}}"#, r#"{"roots":{}}"#),
        ] {
            let params =
                |version, capabilities| format!(r#"{{"protocolVersion":"{version}","capabilities":{capabilities}}}"#);
            check_initialize(&params("2025-11-25", said), ProtocolVersion::V2025_11_25, &params("2025-11-25", said));
            check_initialize(&params("2025-11-25", said), older, &params("2025-06-18", sent));
            let capabilities = Payload::parse(&Bytes::copy_from_slice(said.as_bytes()), ScanLimits::CLIENT).unwrap();
            let anew = initialize_request(&RequestId::number(1), older, &capabilities_in(older, &capabilities), None);
            assert!(
                String::from_utf8_lossy(&anew).contains(&format!("\"capabilities\":{sent}")),
                "opened anew: {said}"
            );
        }
    }

    /// LEG-02.
    #[test]
    fn a_version_without_sessions_is_answered_with_the_newest_that_has_them() {
        for (requested, answered) in [
            ("2024-11-05", ProtocolVersion::V2024_11_05),
            ("2025-06-18", ProtocolVersion::V2025_06_18),
            ("2026-07-28", ProtocolVersion::V2025_11_25),
            ("next", ProtocolVersion::V2025_11_25),
        ] {
            assert_eq!(session_version(requested), answered, "{requested}");
        }
    }

    #[test]
    fn an_initialize_request_without_its_members_is_none() {
        for params in
            ["[]", "{}", r#"{"protocolVersion":1,"capabilities":{}}"#, r#"{"protocolVersion":"v","capabilities":7}"#]
        {
            let (request, _) =
                request(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#));
            assert!(ClientInitialize::read(&request).is_none(), "{params}");
        }
    }

    /// EXT-01, EXT-60, GW-12.
    #[test]
    fn the_description_of_a_stateless_server_gains_the_extension() {
        let sent = r#"{"id":1,"jsonrpc":"2.0","result":{"supportedVersions":["2027-01-01","2026-07-28"],"ttlMs":5,
            "capabilities":{"tasks":{},"tools":{"listChanged":true},"extensions":{"a/b":{}}},"n":1.10}}"#;
        let shown = discovery(&Bytes::from_static(sent.as_bytes()), &RequestId::number(1)).unwrap();
        let result = r#"{"supportedVersions":["2026-07-28"],"ttlMs":5,
            "capabilities":{"tools":{"listChanged":true},"extensions":{"a/b":{},"io.modelcontextprotocol/tasks":{}}},"n":1.10}"#;
        let expected = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        assert_eq!(String::from_utf8_lossy(&shown), expected);
    }

    #[track_caller]
    fn check_list(sent: &'static str, shown: Option<&str>) {
        let edited = tool_list(&Bytes::from_static(sent.as_bytes()), &RequestId::number(1), None);
        assert_eq!(edited.as_deref(), shown.map(str::as_bytes), "{sent}");
    }

    /// GW-13.
    #[test]
    fn a_tool_list_loses_execution_and_nothing_else() {
        check_list(
            r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{},"tools":[ {"name":"a","execution":{}}, {"n":1.10} ]}}"#,
            Some(r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{},"tools":[{"name":"a"},{"n":1.10}]}}"#),
        );
        check_list(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"execution"}]}}"#, None);
        check_list(r#"{"jsonrpc":"2.0","id":2,"result":{"tools":[{"execution":{}}]}}"#, None);
        check_list(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"execution"}}"#, None);
        check_list("execution", None);
    }

    /// L25-65, GW-13: the gateway's own rules are shown in place of the server's.
    #[test]
    fn a_tool_list_shows_how_the_gateway_lets_tools_be_called() {
        let sent = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","execution":{"x":1.10,"taskSupport":"forbidden"}}, {"n":2.0, "name":"b"},{"execution":{}}],"nextCursor":"c"}}"#;
        let shown = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","execution":{"x":1.10,"taskSupport":"required"}},{"n":2.0, "name":"b","execution":{"taskSupport":"optional"}},{}],"nextCursor":"c"}}"#;
        let support = |name: &str| if name == "a" { "required" } else { "optional" };
        let list =
            |text: &str| tool_list(&Bytes::copy_from_slice(text.as_bytes()), &RequestId::number(1), Some(&support));
        assert_eq!(list(sent).as_deref(), Some(shown.as_bytes()));
        assert_eq!(list(&shown.replace(",{}]", "]")), None, "nothing is left to be changed");
    }
}
