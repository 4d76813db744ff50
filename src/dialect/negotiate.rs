//! Reads a peer's version and capabilities from its request, once. The result is a set of facts: no later code asks for
//! the version again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use super::faults::RequestError;
use super::subscriptions;
use crate::task::HandleSupport;
use crate::wire::meta::{CLIENT_CAPABILITIES, LOG_LEVEL, META, PROGRESS_TOKEN, PROTOCOL_VERSION, TASKS_EXTENSION};
use crate::wire::object::ObjectWriter;
use crate::wire::rpc_error::MISSING_CLIENT_CAPABILITY;
use crate::wire::{Object, Payload, ProtocolVersion, RequestId, RpcError, method};

/// Largest capabilities of a stateless request: keys of sessions and lists hold them. A session's must fit in its id.
const CAPABILITIES_BYTES_MAX: usize = 16 * 1024;

/// A stateless request's own `_meta` (MOD-19).
#[derive(Clone, Debug)]
pub struct StatelessRequest {
    pub version: ProtocolVersion,
    capabilities: Object,
    /// The capabilities declared to a session upstream, computed on first use.
    of_upstream: OnceLock<Payload>,
    takes_tasks: HandleSupport,
    /// The token for progress notifications, verbatim; absent if the client requests none (MOD-22).
    pub progress_token: Option<Payload>,
    /// Absent if the client requests no log messages (MOD-23).
    pub log_level: Option<LogLevel>,
}

pub fn names_version(params: Option<&Object>) -> bool {
    params.is_some_and(|params| params.get_str_in(META, PROTOCOL_VERSION).is_some())
}

impl StatelessRequest {
    pub fn meta_of(params: Option<&Object>) -> Result<Object, RequestError> {
        params.and_then(|params| params.get_object(META)).ok_or(RequestError::InvalidMetadata(Cow::Borrowed(
            "params._meta must be an object with the protocol version and the client's capabilities",
        )))
    }

    /// Checks the shape of `_meta` (MOD-03); the error names the key. Returns the version that it names, served or not,
    /// which is checked after the headers (GW-03).
    pub fn check_shape(meta: &Object) -> Result<Cow<'_, str>, RequestError> {
        let complaint = |what: &'static str| RequestError::InvalidMetadata(Cow::Borrowed(what));
        let named = meta
            .get_str(PROTOCOL_VERSION)
            .ok_or_else(|| complaint("_meta[\"io.modelcontextprotocol/protocolVersion\"] must be a string"))?;
        let declared = meta.get(CLIENT_CAPABILITIES).filter(|declared| declared.bytes().starts_with(b"{"));
        let declared = declared
            .ok_or_else(|| complaint("_meta[\"io.modelcontextprotocol/clientCapabilities\"] must be an object"))?;
        if declared.len() > CAPABILITIES_BYTES_MAX {
            return Err(complaint("_meta[\"io.modelcontextprotocol/clientCapabilities\"] has more than 16384 bytes"));
        }
        Ok(named)
    }

    /// Reads the other members of a served version. Refuses an invalid progress token or log level (MOD-36).
    pub fn read(version: ProtocolVersion, meta: &Object) -> Result<Self, RequestError> {
        let capabilities = meta.get_object(CLIENT_CAPABILITIES).ok_or(RequestError::InvalidMetadata(Cow::Borrowed(
            "_meta[\"io.modelcontextprotocol/clientCapabilities\"] must be an object",
        )))?;
        let progress_token = match meta.get(PROGRESS_TOKEN) {
            Some(token) if RequestId::from_payload(&token).is_some() => Some(token.detached()),
            Some(_) => {
                return Err(RequestError::params("_meta.progressToken must be a string or a whole number"));
            }
            None => None,
        };
        let no_level = || RequestError::params("_meta[\"io.modelcontextprotocol/logLevel\"] must be a log level");
        let level = || meta.get_string(LOG_LEVEL).as_deref().and_then(LogLevel::parse).ok_or_else(no_level);
        let log_level = meta.get(LOG_LEVEL).map(|_| level()).transpose()?;
        let extensions = capabilities.get_object("extensions");
        let takes_tasks = match extensions.is_some_and(|all| all.has_object(TASKS_EXTENSION)) {
            true => HandleSupport::AfterGrace,
            false => HandleSupport::No,
        };
        Ok(Self { version, capabilities, of_upstream: OnceLock::new(), takes_tasks, progress_token, log_level })
    }

    /// Whether this request may get a task of the extension (EXT-02, EXT-62).
    pub const fn takes_tasks(&self) -> HandleSupport {
        self.takes_tasks
    }

    pub fn takes_questions(&self) -> bool {
        takes_questions(&self.capabilities)
    }

    /// Whether the client declares 2025-11-25 tasks: here it has none (EXT-62), but for tasks made in sessions (T-10).
    pub fn declares_session_tasks(&self) -> bool {
        self.capabilities.get("tasks").is_some_and(|tasks| !matches!(tasks.as_str(), "false" | "null"))
    }

    /// The error that this request must declare the extension (EXT-03, EXT-55).
    pub fn needs_extension() -> RequestError {
        let extension = ObjectWriter::new().member(TASKS_EXTENSION, &Payload::empty_object()).finish();
        RequestError::Capability(ObjectWriter::new().member("extensions", &extension).finish())
    }

    /// The capabilities declared to a session upstream: this request's without tasks of any dialect (UPC-21).
    pub fn upstream_capabilities(&self) -> Payload {
        self.of_upstream.get_or_init(|| self.less_tasks()).clone()
    }

    fn less_tasks(&self) -> Payload {
        // Many clients declare nothing: the constant needs no copy.
        if *self.capabilities.payload().bytes() == *"{}" {
            return Payload::empty_object();
        }
        if !self.capabilities.contains("extensions") && !self.capabilities.contains("tasks") {
            return self.capabilities.payload().detached();
        }
        let edit = self.capabilities.edit().remove("tasks");
        let edit = match self.capabilities.get_object("extensions") {
            Some(extensions) if extensions.keys().any(|key| key != TASKS_EXTENSION) => {
                edit.set("extensions", extensions.edit().remove(TASKS_EXTENSION).finish())
            }
            Some(_) => edit.remove("extensions"),
            None => edit,
        };
        edit.finish().detached()
    }

    /// The `ClientCapabilities` that these questions (`{method, params}`) need and the client lacks (EXT-41, MOD-27).
    pub fn missing<'q>(&self, questions: impl IntoIterator<Item = &'q Payload>) -> Option<Payload> {
        missing(&self.capabilities, questions)
    }

    /// All capabilities that questions need, as a copy: calls keep them to their end, and must not keep the request's body.
    pub fn of_questions(&self) -> Object {
        if self.takes_questions() { self.capabilities.detached() } else { Object::empty() }
    }

    /// Whether its stream may carry a notification: own progress, requested logs, or an unknown one (MOD-22, MOD-23).
    pub fn admits(&self, name: &str, params: Option<&Object>) -> bool {
        match name {
            method::PROGRESS => {
                let params = params.filter(|params| params.case_variant(&[PROGRESS_TOKEN]).is_none());
                let named = params.and_then(|params| RequestId::from_payload(&params.get(PROGRESS_TOKEN)?));
                let own = self.progress_token.as_ref().and_then(RequestId::from_payload);
                own.zip(named).is_some_and(|(own, named)| own == named)
            }
            method::LOG_MESSAGE => self.log_level.is_some_and(|wanted| LogLevel::of(params) >= Some(wanted)),
            _ => !subscriptions::is_reserved(name),
        }
    }

    /// Whether it declares extensions besides tasks, which may have results of their own types (MOD-11).
    pub fn declares_other_extensions(&self) -> bool {
        let extensions = self.capabilities.get_object("extensions");
        extensions.is_some_and(|all| all.keys().any(|name| name != TASKS_EXTENSION))
    }

    pub const fn declared(&self) -> &Object {
        &self.capabilities
    }

    /// Copies it out of its request, for a stream that outlives the request's body.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self { capabilities: self.capabilities.detached(), ..self.clone() }
    }

    /// Whether a server's error names capabilities of which any was not declared.
    pub fn is_lacking(&self, error: &RpcError) -> bool {
        let required = error.required_capabilities().filter(|_| error.code == MISSING_CLIENT_CAPABILITY);
        required.as_ref().and_then(Object::of).is_some_and(|required| lacks(&self.capabilities, &required))
    }
}

fn lacks(declared: &Object, required: &Object) -> bool {
    required.entries().any(|(key, wanted)| match (declared.get(&key), Object::of(&wanted)) {
        (None, _) => true,
        (Some(own), Some(wanted)) => Object::of(&own).is_none_or(|own| lacks(&own, &wanted)),
        (Some(_), None) => false,
    })
}

/// Whether a client with these capabilities (a `ClientCapabilities` object) can be asked this question (`{method, params}`).
pub fn can_be_asked(capabilities: &Object, question: &Payload) -> bool {
    missing(capabilities, [question]).is_none()
}

pub fn takes_questions(capabilities: &Object) -> bool {
    ["elicitation", "sampling", "roots"].into_iter().any(|capability| capabilities.has_object(capability))
}

/// [`can_be_asked`] for stored capabilities; if they are no object, nothing can be asked.
pub fn declared_by(capabilities: &Payload) -> impl Fn(&Payload) -> bool + Send + Sync + 'static {
    let declared = Object::of(capabilities);
    move |question| declared.as_ref().is_some_and(|all| can_be_asked(all, question))
}

/// As [`StatelessRequest::missing`].
pub fn missing<'q>(capabilities: &Object, questions: impl IntoIterator<Item = &'q Payload>) -> Option<Payload> {
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (capability, part) in questions.into_iter().filter_map(need_of) {
        if !has(capabilities, capability, part) {
            // An elicitation without modes means forms, unless another mode is declared.
            let is_named = |part: &&str| *part != FORM || capabilities.has_object(capability);
            missing.entry(capability).or_default().extend(part.filter(is_named));
        }
    }
    let write = |writer: ObjectWriter, (capability, parts): (&str, &BTreeSet<&str>)| {
        let each = |inner: ObjectWriter, part: &&str| inner.any_member(part, &Payload::empty_object());
        writer.any_member(capability, &parts.iter().fold(ObjectWriter::new(), each).finish())
    };
    let named = missing.iter().map(|(capability, parts)| (*capability, parts));
    (!missing.is_empty()).then(|| named.fold(ObjectWriter::new(), write).finish())
}

fn has(capabilities: &Object, capability: &str, part: Option<&str>) -> bool {
    let Some(declared) = capabilities.get_object(capability) else { return false };
    match part {
        // Clients that name no mode mean forms.
        Some(FORM) => declared.contains(FORM) || !declared.contains(URL),
        Some(part) => declared.has_object(part),
        None => true,
    }
}

const FORM: &str = "form";
const URL: &str = "url";

/// The client capability that an upstream's question needs, and the part of it.
fn need_of(question: &Payload) -> Option<(&'static str, Option<&'static str>)> {
    let question = Object::of(question)?;
    let params = question.get_object("params");
    match &*question.get_str("method")? {
        method::ELICIT => {
            let mode = params.as_ref().and_then(|params| params.get_str("mode"));
            Some(("elicitation", Some(if mode.as_deref() == Some(URL) { URL } else { FORM })))
        }
        method::SAMPLE => {
            let tools = params.is_some_and(|params| params.contains("tools") || params.contains("toolChoice"));
            Some(("sampling", tools.then_some("tools")))
        }
        method::ROOTS => Some(("roots", None)),
        _ => None,
    }
}

named_variants! {
    /// Severity of log messages, lowest first.
    #[derive(PartialOrd, Ord)]
    pub enum LogLevel, as_str {
        Debug = "debug",
        Info = "info",
        Notice = "notice",
        Warning = "warning",
        Error = "error",
        Critical = "critical",
        Alert = "alert",
        Emergency = "emergency",
    }
}

impl LogLevel {
    pub fn of(params: Option<&Object>) -> Option<Self> {
        params?.get_string("level").as_deref().and_then(Self::parse)
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ScanLimits;

    fn request(meta: &str) -> Result<StatelessRequest, RequestError> {
        let text = format!(r#"{{"_meta":{meta}}}"#);
        let payload = Payload::parse(&bytes::Bytes::from(text), ScanLimits::CLIENT).unwrap();
        let params = Object::of(&payload).unwrap();
        let meta = StatelessRequest::meta_of(Some(&params))?;
        StatelessRequest::read(ProtocolVersion::parse(&StatelessRequest::check_shape(&meta)?).unwrap(), &meta)
    }

    fn with_capabilities(capabilities: &str) -> StatelessRequest {
        request(&format!(
            r#"{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{capabilities}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn facts_that_outlive_a_request_do_not_hold_its_body() {
        let request = with_capabilities(r#"{"elicitation":{}}"#);
        assert!(!request.declared().payload().is_exact());
        let kept = request.detached();
        assert!(kept.declared().payload().is_exact() && kept.takes_questions());
        let asked = request.of_questions();
        assert!(asked.payload().is_exact() && asked.has_object("elicitation"));
        let unasked = with_capabilities(r#"{"extensions":{"a/b":{}},"sampling":7}"#).of_questions();
        assert_eq!(unasked.payload(), &Payload::empty_object());
    }

    /// EXT-02, EXT-62: only the extension in this request's own capabilities counts.
    #[test]
    fn only_the_extension_declared_on_this_request_takes_tasks() {
        for (capabilities, takes) in [
            (r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#, HandleSupport::AfterGrace),
            (r#"{"extensions":{"io.modelcontextprotocol/other":{}}}"#, HandleSupport::No),
            (r#"{"tasks":{"requests":{"tools":{"call":{}}}}}"#, HandleSupport::No),
            ("{}", HandleSupport::No),
        ] {
            assert_eq!(with_capabilities(capabilities).takes_tasks(), takes, "{capabilities}");
        }
    }

    /// UPC-21.
    #[test]
    fn upstreams_are_told_this_requests_capabilities_less_tasks() {
        for (declared, upstream) in [
            (r#"{"sampling":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#, r#"{"sampling":{}}"#),
            (r#"{"tasks":{},"elicitation":{"url":{}}}"#, r#"{"elicitation":{"url":{}}}"#),
            (r#"{"extensions":{"a/b":{},"io.modelcontextprotocol/tasks":{}}}"#, r#"{"extensions":{"a/b":{}}}"#),
            ("{}", "{}"),
        ] {
            assert_eq!(with_capabilities(declared).upstream_capabilities().as_str(), upstream);
        }
    }

    /// MOD-03.
    #[test]
    fn missing_metadata_is_named() {
        for (meta, named) in [
            ("7", "params._meta"),
            (r#"{"io.modelcontextprotocol/clientCapabilities":{}}"#, "protocolVersion"),
            (
                r#"{"io.modelcontextprotocol/protocolVersion":7,"io.modelcontextprotocol/clientCapabilities":{}}"#,
                "protocolVersion",
            ),
            (r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#, "clientCapabilities"),
            (
                r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":null}"#,
                "clientCapabilities",
            ),
        ] {
            let Err(RequestError::InvalidMetadata(what)) = request(meta) else { panic!("{meta} was accepted") };
            assert!(what.contains(named), "{what}");
        }
    }

    #[test]
    fn b195_capabilities_have_a_bound_in_bytes() {
        let meta = |pad: usize| {
            let capabilities = format!(r#"{{"x":"{}"}}"#, "y".repeat(pad));
            format!(
                r#"{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{capabilities}}}"#
            )
        };
        let most = CAPABILITIES_BYTES_MAX - r#"{"x":""}"#.len();
        assert!(request(&meta(most)).is_ok());
        let Err(RequestError::InvalidMetadata(what)) = request(&meta(most + 1)) else { panic!("they were accepted") };
        assert!(what.contains("clientCapabilities"), "{what}");
    }

    /// MOD-36.
    #[test]
    fn an_unknown_log_level_is_refused() {
        let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"loud"}"#;
        assert!(matches!(request(meta), Err(RequestError::Params(_))));
    }

    /// MOD-10, EXT-41: by mode of elicitation and use of tools.
    #[test]
    fn questions_of_an_undeclared_kind_name_the_missing_capabilities() {
        const FORM: &str = r#"{"method":"elicitation/create","params":{"message":"?"}}"#;
        const URL: &str = r#"{"method":"elicitation/create","params":{"mode":"url"}}"#;
        const SAMPLE: &str = r#"{"method":"sampling/createMessage","params":{}}"#;
        const TOOLS: &str = r#"{"method":"sampling/createMessage","params":{"tools":[]}}"#;
        const ROOTS: &str = r#"{"method":"roots/list"}"#;
        for (capabilities, questions, missing) in [
            (r#"{"elicitation":{}}"#, &[FORM][..], None),
            (r#"{"elicitation":{}}"#, &[URL], Some(r#"{"elicitation":{"url":{}}}"#)),
            (r#"{"elicitation":{"url":{}}}"#, &[URL], None),
            (r#"{"elicitation":{"url":{}}}"#, &[FORM], Some(r#"{"elicitation":{"form":{}}}"#)),
            (r#"{"elicitation":{"url":{},"form":{}}}"#, &[FORM, URL], None),
            (r#"{"sampling":{}}"#, &[SAMPLE], None),
            (r#"{"sampling":{}}"#, &[TOOLS], Some(r#"{"sampling":{"tools":{}}}"#)),
            (r#"{"sampling":{"tools":{}}}"#, &[TOOLS, SAMPLE], None),
            (r#"{"roots":{}}"#, &[ROOTS], None),
            ("{}", &[FORM, TOOLS, ROOTS, SAMPLE], Some(r#"{"elicitation":{},"roots":{},"sampling":{"tools":{}}}"#)),
            ("{}", &[r#"{"method":"custom/question"}"#], None),
            (r#"{"sampling":7}"#, &[SAMPLE], Some(r#"{"sampling":{}}"#)),
        ] {
            let texts: Vec<_> = questions
                .iter()
                .map(|text| Payload::parse(&bytes::Bytes::from_static(text.as_bytes()), ScanLimits::UPSTREAM).unwrap())
                .collect();
            let request = with_capabilities(capabilities);
            let data = request.missing(&texts);
            assert_eq!(super::missing(&request.of_questions(), &texts), data, "{capabilities} {questions:?}");
            assert_eq!(data.as_ref().map(Payload::as_str), missing, "{capabilities} {questions:?}");
        }
    }
}
