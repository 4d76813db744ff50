//! Writes a stateless server's description, results and errors for session clients (LEG-02, GW-05, GW-12, LEG-17).

use super::faults::{about_own_request, not_settled, session_failure_error, was_cancelled};
use super::lifecycle::SessionServerDescription;
use super::plain::with_single_content;
use super::related_task::RelatedTask;
use crate::task::{Executed, Outcome, Phase};
use crate::wire::meta::{META, SERVER_INFO, TASKS_EXTENSION};
use crate::wire::object::ObjectWriter;
use crate::wire::{ElicitationKinds, JsonPieces, Object, Payload, ProtocolVersion, RpcError, method, rpc_error};

pub(super) const STRUCTURED_CONTENT: &str = "structuredContent";

/// The result of `initialize`, for a server that has no handshake.
pub fn initialize_result(server: &SessionServerDescription, version: ProtocolVersion) -> Payload {
    ObjectWriter::new()
        .text("protocolVersion", version.as_str())
        .member("capabilities", &session_capabilities(&server.capabilities))
        .member("serverInfo", &server.server_info)
        .optional("instructions", server.instructions.as_ref())
        .finish()
}

/// Without the tasks extension (EXT-64). `listChanged` and `subscribe` stay, as the gateway subscribes for the session.
fn session_capabilities(capabilities: &Payload) -> Payload {
    let Some(object) = Object::of(capabilities) else { return Payload::empty_object() };
    let mut edit = object.edit().remove("tasks");
    if let Some(extensions) = object.get_object("extensions") {
        let kept = extensions.edit().remove(TASKS_EXTENSION).finish();
        edit = edit.set_unless_empty("extensions", kept);
    }
    edit.finish()
}

/// A stateless server's result for session clients: no newer members (LEG-17), structured content an object (T-77).
pub fn session_result(method: &str, result: &Payload) -> JsonPieces {
    let Some(object) = Object::of(result) else { return result.clone().into() };
    let edit = object.edit().remove("resultType").remove("ttlMs").remove("cacheScope");
    let mut edit = edit.remove_within(META, &[SERVER_INFO]);
    if method == method::TOOLS_CALL && has_odd_content(&object) {
        edit = edit.remove(STRUCTURED_CONTENT);
    }
    if method == method::TOOLS_LIST
        && let Some(tools) = object.get("tools")
    {
        let tools: Vec<Payload> = tools.items().map(|tool| session_tool(&tool)).collect();
        edit = edit.set("tools", Payload::of(&tools));
    }
    edit.finish_pieces()
}

/// Whether a tool's result has structured content that is no object: until 2025-11-25 it must be one (T-77).
fn has_odd_content(result: &Object) -> bool {
    result.get(STRUCTURED_CONTENT).is_some_and(|content| Object::of(&content).is_none())
}

/// The member of a task's result with such content (T-77): a stateless server may have returned it.
fn odd_content(result: &Payload) -> Option<&'static str> {
    Object::of(result).filter(has_odd_content).map(|_| STRUCTURED_CONTENT)
}

/// A tool without an output schema of another type than object.
fn session_tool(tool: &Payload) -> Payload {
    let Some(object) = Object::of(tool) else { return tool.clone() };
    let mut edit = object.edit().remove("execution");
    let schema = object.get_object("outputSchema");
    if schema.is_some_and(|schema| schema.get_string("type").as_deref() != Some("object")) {
        edit = edit.remove("outputSchema");
    }
    edit.finish()
}

/// A stateless server's error for session clients. `uri` is the requested resource.
pub fn session_error(error: &RpcError, uri: Option<&str>) -> RpcError {
    match about_own_request(error, Executed::No) {
        Some(instead) => instead,
        None if error.code == rpc_error::INVALID_PARAMS && uri.is_some() && uri == named_uri(error).as_deref() => {
            RpcError { code: rpc_error::RESOURCE_NOT_FOUND, ..error.clone() }
        }
        None => error.clone(),
    }
}

/// The call's own result or error (L25-22, L25-24 to L25-28, D86-03).
pub(super) fn outcome(phase: &Phase, related: impl FnOnce() -> RelatedTask) -> Result<JsonPieces, RpcError> {
    match phase {
        Phase::Settled(Outcome::Returned { result, .. }) => Ok(related().on_shared(result, odd_content(result))),
        Phase::Settled(Outcome::Faulted(failure)) => Err(session_failure_error(failure)),
        Phase::Settled(Outcome::Cancelled) => Err(was_cancelled()),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => Err(not_settled()),
    }
}

/// Why a question was not sent to a session client (GW-23). `needed` are the capabilities that it did not declare.
pub fn not_askable(needed: Option<&Payload>, takes_stream: bool) -> String {
    let because = match (takes_stream, needed) {
        (false, _) => "it takes no event stream as the answer to this request".to_owned(),
        (true, Some(needed)) => format!("it did not declare the capability {}", needed.as_str()),
        (true, None) => "too many questions are open, or this client does not know this kind of question".to_owned(),
    };
    format!("The server asked a question that cannot be sent to this client: {because}. The call was ended.")
}

/// The result of a tool that failed, with the reason as its only text (T-51).
pub fn failed_result(why: &str) -> Payload {
    let block = ObjectWriter::new().text("type", "text").text("text", why).finish();
    let writer = ObjectWriter::new().member("content", &Payload::of(&[block]));
    writer.member("isError", &Payload::of(&true)).finish()
}

/// A session client's capabilities for a stateless request: the ones of its version (GW-05, LEG-16), no session features.
pub fn client_capabilities(capabilities: &Payload, version: ProtocolVersion) -> Payload {
    let Some(object) = Object::of(capabilities) else { return Payload::empty_object() };
    let mut edit = object.edit().remove("tasks");
    if let Some(roots) = object.get_object("roots") {
        edit = edit.set("roots", roots.edit().remove("listChanged").finish());
    }
    let knows = version.traits();
    if knows.elicitation != ElicitationKinds::FormAndUrl {
        let has_forms = knows.elicitation == ElicitationKinds::Form
            && object.get_object("elicitation").is_some_and(|kinds| kinds.contains("form") || !kinds.contains("url"));
        edit = if has_forms { edit.set("elicitation", Payload::empty_object()) } else { edit.remove("elicitation") };
    }
    if !knows.has_sampling_tools && object.contains("sampling") {
        edit = edit.set("sampling", Payload::empty_object());
    }
    edit.finish()
}

/// A question (`{method, params}`) for a client of this version: its method and params. Only 2025-11-25 uses `id`.
/// `None` if the version has no such form (GW-05).
pub fn session_question(question: &Payload, version: ProtocolVersion, id: &str) -> Option<(String, Option<Payload>)> {
    let question = Object::of(question)?;
    let name = question.get_string("method")?;
    let Some(params) = question.get_object("params") else { return Some((name, None)) };
    let params = question_params(&name, &params, version, id)?;
    Some((name, Some(params)))
}

/// As [`session_question`], for the params of a question with this method.
pub fn question_params(name: &str, params: &Object, version: ProtocolVersion, id: &str) -> Option<Payload> {
    let knows = version.traits();
    let is_url = || params.get_str("mode").is_some_and(|mode| mode == "url");
    Some(match name {
        method::SAMPLE if !knows.has_sampling_tools => with_single_contents(params),
        method::ELICIT if knows.elicitation != ElicitationKinds::FormAndUrl => older_form(params)?,
        method::ELICIT if is_url() => params.edit().set("elicitationId", Payload::of(id)).finish(),
        _ => params.payload().clone(),
    })
}

/// A form of 2025-06-18: it has no mode and no lists, and names the titles of choices in `enumNames`.
fn older_form(params: &Object) -> Option<Payload> {
    let edit = params.edit().remove("mode");
    let Some(schema) = params.get_object("requestedSchema") else { return Some(edit.finish()) };
    let Some(fields) = schema.get_object("properties") else { return Some(edit.finish()) };
    let (mut older, mut is_edited) = (ObjectWriter::new(), false);
    for (name, field) in fields.entries() {
        let read = Object::of(&field)?;
        if read.get_str("type").is_some_and(|kind| kind == "array") {
            return None;
        }
        let edited = older_choice(&read);
        is_edited |= edited.is_some();
        older = older.any_member(&name, &edited.unwrap_or(field));
    }
    let schema =
        if is_edited { schema.edit().set("properties", older.finish()).finish() } else { schema.payload().clone() };
    Some(edit.set("requestedSchema", schema).finish())
}

fn older_choice(field: &Object) -> Option<Payload> {
    let choices = field.get("oneOf")?;
    let pair = |one: Payload| {
        let one = Object::of(&one)?;
        let value = one.get("const")?;
        Some((one.get("title").unwrap_or_else(|| value.clone()), value))
    };
    let (titles, values): (Vec<Payload>, Vec<Payload>) = choices.items().filter_map(pair).unzip();
    let edit = field.edit().remove("oneOf").set("enum", Payload::of(&values));
    Some(edit.set("enumNames", Payload::of(&titles)).finish())
}

fn with_single_contents(params: &Object) -> Payload {
    let Some(messages) = params.get("messages") else { return params.payload().clone() };
    let edited: Vec<Option<Payload>> =
        messages.items().map(|message| with_single_content(&Object::of(&message)?)).collect();
    if edited.iter().all(Option::is_none) {
        return params.payload().clone();
    }
    let messages: Vec<Payload> =
        messages.items().zip(edited).map(|(message, edited)| edited.unwrap_or(message)).collect();
    params.edit().set("messages", Payload::of(&messages)).finish()
}

fn named_uri(error: &RpcError) -> Option<String> {
    Object::of(error.data.as_ref()?)?.get_string("uri")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&bytes::Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
    }

    /// EXT-64.
    #[test]
    fn a_stateless_server_is_described_in_the_version_of_its_client() {
        let description = SessionServerDescription {
            capabilities: payload(
                r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#,
            ),
            instructions: Some(payload(r#""be kind""#)),
            server_info: payload(r#"{"name":"s","version":"1"}"#),
        };
        assert_eq!(
            initialize_result(&description, ProtocolVersion::V2025_06_18).as_str(),
            r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"},"instructions":"be kind"}"#
        );
    }

    /// LEG-16, GW-05.
    #[test]
    fn leg_16_a_client_is_asked_for_no_more_than_its_version_knows() {
        let all =
            r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{"listChanged":true},"tasks":{}}"#;
        for (declared, version, asked_for) in [
            (
                all,
                ProtocolVersion::V2025_11_25,
                r#"{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}"#,
            ),
            (all, ProtocolVersion::V2025_06_18, r#"{"elicitation":{},"sampling":{},"roots":{}}"#),
            (all, ProtocolVersion::V2025_03_26, r#"{"sampling":{},"roots":{}}"#),
            (r#"{"elicitation":{"url":{}}}"#, ProtocolVersion::V2025_06_18, "{}"),
            (r#"{"elicitation":{}}"#, ProtocolVersion::V2025_06_18, r#"{"elicitation":{}}"#),
            ("{}", ProtocolVersion::V2024_11_05, "{}"),
        ] {
            let shown = client_capabilities(&payload(declared), version);
            assert_eq!(shown.as_str(), asked_for, "{declared} {version}");
        }
    }

    #[test]
    fn questions_are_put_as_each_version_knows_them() {
        let url = r#"{"method":"elicitation/create","params":{"mode":"url","url":"https://a/"}}"#;
        let form = r#"{"method":"elicitation/create","params":{"mode":"form","n":1.10}}"#;
        let sample = r#"{"method":"sampling/createMessage","params":{"messages":[{"role":"user","content":[{"n":1.10}]},{"content":{"k":1}},{"content":[1,2]}],"maxTokens":1}}"#;
        let samples = Object::of(&payload(sample)).unwrap().get("params").unwrap();
        let older = r#"{"messages":[{"role":"user","content":{"n":1.10}},{"content":{"k":1}},{"content":[1,2]}],"maxTokens":1}"#;
        for (question, version, params) in [
            (url, ProtocolVersion::V2025_11_25, Some(r#"{"mode":"url","url":"https://a/","elicitationId":"id"}"#)),
            (form, ProtocolVersion::V2025_11_25, Some(r#"{"mode":"form","n":1.10}"#)),
            (form, ProtocolVersion::V2025_06_18, Some(r#"{"n":1.10}"#)),
            (sample, ProtocolVersion::V2025_11_25, Some(samples.as_str())),
            (sample, ProtocolVersion::V2025_06_18, Some(older)),
            (r#"{"method":"roots/list"}"#, ProtocolVersion::V2024_11_05, None),
        ] {
            let (_, put) = session_question(&payload(question), version, "id").unwrap();
            assert_eq!(put.as_ref().map(Payload::as_str), params, "{question} {version}");
        }
    }

    #[track_caller]
    fn check(method: &str, answer: &str, shown: &str) {
        assert_eq!(session_result(method, &payload(answer)).whole().as_str(), shown);
    }

    /// LEG-17, T-77, T-14: the rest stays as it came.
    #[test]
    fn results_lose_members_that_older_clients_lack_and_keep_the_rest() {
        check(
            method::TOOLS_CALL,
            r#"{"resultType":"complete","content":[], "n":1.10,"structuredContent":[1],"_meta":{"io.modelcontextprotocol/serverInfo":{}}}"#,
            r#"{"content":[], "n":1.10}"#,
        );
        check(
            method::TOOLS_CALL,
            r#"{"content":[],"structuredContent":{"n":1.10},"_meta":{"k":1,"io.modelcontextprotocol/serverInfo":{}}}"#,
            r#"{"content":[],"structuredContent":{"n":1.10},"_meta":{"k":1}}"#,
        );
        check(
            method::TOOLS_LIST,
            r#"{"ttlMs":5,"cacheScope":"public","tools":[{"name":"a","outputSchema":{"type":"array"}},{"name":"b","outputSchema":{"type":"object"}}]}"#,
            r#"{"tools":[{"name":"a"},{"name":"b","outputSchema":{"type":"object"}}]}"#,
        );
    }

    /// B190: a copy of a large result would hold no bytes of the answer budget.
    #[test]
    fn b190_a_large_result_without_its_odd_content_is_not_copied() {
        let content = "x".repeat(JsonPieces::SHARED_MIN);
        let result = payload(&format!(r#"{{"structuredContent":[1],"content":"{content}"}}"#));
        let is_within = |piece: &bytes::Bytes| result.bytes().as_ptr_range().contains(&piece.as_ptr());
        let related = RelatedTask::chosen(&"t".into());
        let pieces = related.on_shared(&result, odd_content(&result)).into_pieces();
        assert!(pieces.iter().any(|piece| piece.len() >= content.len() && is_within(piece)));
        let text = String::from_utf8(pieces.concat()).unwrap();
        assert!(!text.contains(STRUCTURED_CONTENT) && text.contains(r#""taskId":"t""#));
    }

    /// T-50.
    #[test]
    fn errors_about_the_gateways_own_request_are_not_passed_on() {
        let not_found = RpcError::new(-32602, "no").with_data(&serde_json::json!({"uri": "file:///a"}));
        for (error, uri, code) in [
            (RpcError::new(-32020, "header"), None, -32603),
            (RpcError::new(-32021, "capability"), None, -32603),
            (RpcError::new(-32022, "version"), None, -32603),
            (not_found.clone(), Some("file:///a"), -32002),
            (not_found.clone(), Some("file:///b"), -32602),
            (not_found, None, -32602),
            (RpcError::new(4711, "bad luck"), None, 4711),
        ] {
            assert_eq!(session_error(&error, uri).code, code, "{} {uri:?}", error.message);
        }
    }

    /// L4: servers check headers and version first; a missing capability may show in the middle of a call.
    #[test]
    fn l4_a_call_that_lacked_a_capability_may_have_run() {
        for (code, executed) in [(-32020, "no"), (-32021, "unknown"), (-32022, "no")] {
            let data = session_error(&RpcError::new(code, "m"), None).data.unwrap();
            assert_eq!(Object::of(&data).unwrap().get_string("executed").as_deref(), Some(executed), "{code}");
        }
    }
}
