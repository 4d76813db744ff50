//! Reads one JSON-RPC message in one pass, and writes one. Knows no MCP rule beyond the envelope's.

mod malformed;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::payload::write_string;
use super::scan::{self, LocatedMembers, Member, ObjectPlace};
use super::{Object, Payload, RequestId, RpcError, ScanError, ScanLimits, method, one_line};
pub use malformed::{MalformedMessage, asked_in, glimpse};

/// Longest method name in bytes, decoded (B95).
const METHOD_BYTES_MAX: usize = 128;

pub const BATCH_MAX: usize = 100;
/// Most messages of a batch that is forwarded or inspected. A longer one is not split.
pub const BATCH_READ_MAX: usize = 1_000;

#[derive(Clone, Debug)]
pub enum Message {
    Request(Request),
    Notification(Notification),
    Response(Response),
}

impl Message {
    pub const fn request(&self) -> Option<&Request> {
        if let Self::Request(request) = self { Some(request) } else { None }
    }
}

#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    /// Borrowed if it is one that clients often send.
    pub method: Cow<'static, str>,
    pub params: Params,
}

#[derive(Clone, Debug)]
pub struct Notification {
    pub method: String,
    pub params: Params,
}

impl Notification {
    /// The cancelled request's id, if this is `notifications/cancelled`.
    pub fn cancelled(&self) -> Option<RequestId> {
        let params = self.params.object().filter(|_| self.method == method::CANCELLED)?;
        RequestId::from_payload(&params.get("requestId")?)
    }

    /// Whether it refers to a request in progress, and so means nothing to a session without that request.
    pub fn is_about_a_request(&self) -> bool {
        matches!(&*self.method, method::CANCELLED | method::PROGRESS)
    }
}

#[derive(Clone, Debug)]
pub enum Params {
    Absent,
    Object(Object),
    /// Array, string, number, boolean or `null`.
    Other(Payload),
}

impl Params {
    pub const fn object(&self) -> Option<&Object> {
        if let Self::Object(object) = self { Some(object) } else { None }
    }
}

#[derive(Clone, Debug)]
pub struct Response {
    /// `None` where the id is `null` or unusable: such a response matches no request.
    pub id: Option<RequestId>,
    pub outcome: Result<Payload, RpcError>,
    /// The result with its members located in the same pass, if it is an object.
    pub result: Option<Object>,
}

impl Response {
    /// The outcome; the error is the response's, [bounded](RpcError::bounded). [`Object::of`] splits its result without another walk.
    pub fn into_outcome(self) -> Result<Payload, RpcError> {
        let located = |result| self.result.map_or(result, |object| object.located_payload());
        self.outcome.map(located).map_err(RpcError::bounded)
    }

    /// The same response to the request `id`.
    pub fn under(&self, id: &RequestId) -> Bytes {
        match &self.outcome {
            Ok(own) => result(id, own),
            Err(own) => error(Some(id), own),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("{error}")]
    Scan { error: ScanError, id: Option<RequestId>, is_answer: bool },
    /// Well-formed JSON that is no JSON-RPC message; `what` names the member.
    #[error("{what}")]
    Shape { what: Cow<'static, str>, id: Option<RequestId>, is_answer: bool },
    #[error("a batch is not accepted here")]
    Batch,
}

/// Reads one message in one pass. The error has the id if it could be read and may be echoed (B80 to B95).
pub fn read(text: &Bytes, limits: ScanLimits) -> Result<Message, EnvelopeError> {
    let refused = |error| EnvelopeError::Scan { error, id: None, is_answer: false };
    let outline = scan::scan(text, limits).map_err(refused)?;
    let parts = EnvelopeParts::gather(text, &outline.members);
    let is_answer = || parts.method.is_none() && (parts.result.is_some() || parts.error.is_some());
    if let Some(error) = outline.flaw {
        return Err(EnvelopeError::Scan { error, id: parts.usable_id(), is_answer: is_answer() });
    }
    let shape = |what| EnvelopeError::Shape { what, id: parts.usable_id(), is_answer: is_answer() };
    match (text[outline.root.start], &parts.unknown) {
        (b'{', None) => parts.classify(&outline.members).map_err(|what| shape(Cow::Borrowed(what))),
        (b'{', Some(unknown)) => Err(shape(Cow::Owned(format!("an envelope has the unknown member `{unknown}`")))),
        (b'[', _) => Err(EnvelopeError::Batch),
        _ => Err(shape(Cow::Borrowed("the message is not a JSON object"))),
    }
}

#[derive(Debug)]
struct EnvelopeParts<'t> {
    text: &'t Bytes,
    jsonrpc: Option<Range<usize>>,
    id: Option<Range<usize>>,
    method: Option<Range<usize>>,
    params: Option<Range<usize>>,
    result: Option<Range<usize>>,
    error: Option<Range<usize>>,
    /// The first unknown member, cut so that an error may quote it.
    unknown: Option<String>,
}

impl<'t> EnvelopeParts<'t> {
    fn gather(text: &'t Bytes, members: &[Member]) -> Self {
        let mut parts = Self {
            text,
            jsonrpc: None,
            id: None,
            method: None,
            params: None,
            result: None,
            error: None,
            unknown: None,
        };
        for member in members.iter().filter(|member| member.place == ObjectPlace::Root) {
            let raw = &text[member.key.clone()];
            let decoded = || member.decode(std::str::from_utf8(raw).expect("scanned text is UTF-8")).into_owned();
            let key = if member.escaped { Cow::Owned(decoded().into_bytes()) } else { Cow::Borrowed(raw) };
            let part = match &*key {
                b"jsonrpc" => &mut parts.jsonrpc,
                b"id" => &mut parts.id,
                b"method" => &mut parts.method,
                b"params" => &mut parts.params,
                b"result" => &mut parts.result,
                b"error" => &mut parts.error,
                _ => {
                    parts.unknown.get_or_insert_with(|| one_line::name(&decoded()));
                    continue;
                }
            };
            *part = Some(member.value.clone());
        }
        parts
    }

    fn usable_id(&self) -> Option<RequestId> {
        self.id.clone().and_then(|id| RequestId::from_scanned(&self.text[id]))
    }

    fn classify(&self, members: &[Member]) -> Result<Message, &'static str> {
        let is_version = |raw: &[u8]| raw == b"\"2.0\"" || scan::decode_string(raw).is_some_and(|text| text == "2.0");
        if !self.jsonrpc.clone().is_some_and(|span| is_version(&self.text[span])) {
            return Err("`jsonrpc` is not \"2.0\"");
        }
        // Of `result` and `error` a null one counts as absent: SDKs read it so.
        let is_null = |span: &Range<usize>| &self.text[span.clone()] == b"null";
        let (result, error) = match (&self.result, &self.error) {
            (Some(result), Some(error)) if is_null(error) => (Some(result), None),
            (Some(result), Some(error)) if is_null(result) => (None, Some(error)),
            (result, error) => (result.as_ref(), error.as_ref()),
        };
        match (&self.method, &self.params, result, error) {
            (Some(method), params, None, None) => self.call(method.clone(), params.clone(), members),
            (None, None, Some(result), None) => Ok(Message::Response(self.returned(result.clone(), members))),
            (None, None, None, Some(error)) => {
                let fault = self.object(error.clone(), ObjectPlace::Error, members);
                let fault = fault.as_ref().and_then(RpcError::from_object);
                let fault = fault.ok_or("`error` is not an object with a whole `code` and a text `message`")?;
                Ok(Message::Response(Response { id: self.usable_id(), outcome: Err(fault), result: None }))
            }
            (None, _, None, None) => Err("`method` is missing"),
            (Some(_), ..) => Err("`method` and `result` or `error` are both present; send one"),
            (None, _, Some(_), Some(_)) => Err("`result` and `error` are both present; send one"),
            (None, Some(_), ..) => Err("`params` and `result` or `error` are both present; send one"),
        }
    }

    fn call(
        &self,
        method: Range<usize>,
        params: Option<Range<usize>>,
        members: &[Member],
    ) -> Result<Message, &'static str> {
        let id = self.usable_id();
        if self.id.is_some() && id.is_none() {
            return Err("`id` is neither a string without null characters nor a whole number of 64 bits, or too long");
        }
        let method = self.string(method).ok_or("`method` is not a string")?;
        let known = method::frequent(&method);
        let is_empty_or_long = method.is_empty() || method.len() > METHOD_BYTES_MAX;
        if known.is_none() && (is_empty_or_long || method.contains(char::is_control)) {
            return Err("`method` is empty, too long or holds control characters");
        }
        let params = match params {
            None => Params::Absent,
            Some(span) => match self.object(span.clone(), ObjectPlace::Params, members) {
                Some(object) => Params::Object(object),
                None => Params::Other(self.payload(span)),
            },
        };
        Ok(match id {
            Some(id) => {
                let method = known.map_or_else(|| Cow::Owned(method.into_owned()), Cow::Borrowed);
                Message::Request(Request { id, method, params })
            }
            None => Message::Notification(Notification { method: method.into_owned(), params }),
        })
    }

    fn returned(&self, result: Range<usize>, members: &[Member]) -> Response {
        let object = self.object(result.clone(), ObjectPlace::Result, members);
        Response { id: self.usable_id(), outcome: Ok(self.payload(result)), result: object }
    }

    fn payload(&self, span: Range<usize>) -> Payload {
        Payload::from_scanned(self.text.slice(span))
    }

    fn string(&self, span: Range<usize>) -> Option<Cow<'_, str>> {
        scan::decode_string(&self.text[span])
    }

    fn object(&self, span: Range<usize>, place: ObjectPlace, members: &[Member]) -> Option<Object> {
        let base = span.start;
        let located = || LocatedMembers { base, place, members: Arc::from(members) };
        (self.text[base] == b'{').then(|| Object::located(self.payload(span), located()))
    }
}

pub fn request(id: &RequestId, method: &str, params: Option<&Payload>) -> Bytes {
    call(Some(id), method, params)
}

pub fn notification(method: &str, params: Option<&Payload>) -> Bytes {
    call(None, method, params)
}

pub fn result(id: &RequestId, result: &Payload) -> Bytes {
    result_with_text(id, result.bytes())
}

/// As [`result`], for the text of a small result. The caller guarantees that it is one JSON value.
pub fn result_with_text(id: &RequestId, result: &[u8]) -> Bytes {
    let mut out = open(Some(id), member_room("result") + result.len());
    put(&mut out, "result", result);
    close(out)
}

/// As [`result`], for a result in pieces; returns consecutive pieces.
pub fn result_of_pieces(id: &RequestId, result: Vec<Bytes>) -> impl Iterator<Item = Bytes> {
    let mut head = open(Some(id), member_room("result"));
    put(&mut head, "result", b"");
    std::iter::once(head.into()).chain(result).chain([Bytes::from_static(b"}")])
}

/// As [`result`], in two pieces. The second is the result's own text if its buffer is not shared.
pub fn result_in_pieces(id: &RequestId, result: Payload) -> (Bytes, Bytes) {
    let mut head = open(Some(id), member_room("result"));
    put(&mut head, "result", b"");
    let mut tail = BytesMut::from(result.into_bytes());
    tail.extend_from_slice(b"}");
    (head.into(), tail.freeze())
}

/// Writes an error response; without an id the member is left out (MCP has no null id).
pub fn error(id: Option<&RequestId>, error: &RpcError) -> Bytes {
    let mut out = open(id, error.message.len() + error.data.as_ref().map_or(0, Payload::len) + 64);
    put(&mut out, "error", b"{\"code\":");
    out.extend_from_slice(error.code.to_string().as_bytes());
    put(&mut out, "message", b"");
    write_string(&mut out, &error.message);
    if let Some(data) = &error.data {
        put(&mut out, "data", data.bytes());
    }
    out.push(b'}');
    close(out)
}

fn call(id: Option<&RequestId>, method: &str, params: Option<&Payload>) -> Bytes {
    let params_room = params.map_or(0, |params| member_room("params") + params.len());
    let mut out = open(id, member_room("method") + method.len() + 2 + params_room);
    put(&mut out, "method", b"");
    write_string(&mut out, method);
    if let Some(params) = params {
        put(&mut out, "params", params.bytes());
    }
    close(out)
}

const OPENING: &[u8] = b"{\"jsonrpc\":\"2.0\"";

/// Begins an envelope with `room` for bytes before the closing brace: `Bytes` takes a full vector as it is.
fn open(id: Option<&RequestId>, room: usize) -> Vec<u8> {
    let id_room = id.map_or(0, |id| member_room("id") + id.as_json().len());
    let mut out = Vec::with_capacity(OPENING.len() + id_room + room + 1);
    out.extend_from_slice(OPENING);
    if let Some(id) = id {
        put(&mut out, "id", id.as_json().as_bytes());
    }
    out
}

/// The bytes of a member without its value, as [`put`] writes them.
const fn member_room(key: &str) -> usize {
    key.len() + 4
}

/// Appends a member; `key` needs no escapes.
fn put(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
    out.extend_from_slice(value);
}

fn close(mut out: Vec<u8>) -> Bytes {
    out.push(b'}');
    out.into()
}

/// Reads a batch, which only 2025-03-26 has (LEG-12), or one message as a batch of one. An invalid item does not affect the others. Fails if the text is
/// refused as a whole, is an empty array or has more than `messages_max` items.
pub fn read_batch(
    text: &Bytes,
    limits: ScanLimits,
    messages_max: usize,
) -> Result<Vec<Result<Message, EnvelopeError>>, EnvelopeError> {
    if !is_batch(text) {
        return read(text, limits).map(|message| vec![Ok(message)]);
    }
    Ok(split_batch(text, limits, messages_max)?.iter().map(|item| read(item, limits)).collect())
}

pub fn is_batch(text: &Bytes) -> bool {
    text.trim_ascii_start().starts_with(b"[")
}

/// The items of a batch, verbatim and unparsed. Fails as [`read_batch`].
pub fn split_batch(text: &Bytes, limits: ScanLimits, messages_max: usize) -> Result<Vec<Bytes>, EnvelopeError> {
    let refused = |error| EnvelopeError::Scan { error, id: None, is_answer: false };
    let array_limits = ScanLimits { depth_max: limits.depth_max + 1, ..limits };
    let outline = scan::scan(text, array_limits).and_then(scan::ObjectOutline::flawless).map_err(refused)?;
    let array = text.slice(outline.root);
    let spans: Vec<_> = scan::items(&array).take(messages_max.saturating_add(1)).collect();
    if spans.is_empty() {
        return Err(EnvelopeError::Shape { what: Cow::Borrowed("a batch is empty"), id: None, is_answer: false });
    }
    if spans.len() > messages_max {
        return Err(refused(ScanError::TooManyNodes { at: spans[messages_max].start }));
    }
    Ok(spans.into_iter().map(|span| array.slice(span)).collect())
}

/// The batch of these messages; `None` without any, for no batch is empty.
pub fn batch(messages: &[Bytes]) -> Option<Bytes> {
    (!messages.is_empty()).then(|| [b"[", messages.join(&b',').as_slice(), b"]"].concat().into())
}

/// A message's text with its parsed form, so that it is parsed once. Compared as text.
#[derive(Clone, Debug, Default)]
pub struct MessageText {
    text: Bytes,
    message: Option<Arc<Message>>,
}

impl MessageText {
    pub const fn with_message(text: Bytes, message: Arc<Message>) -> Self {
        Self { text, message: Some(message) }
    }

    pub fn message(&self) -> Option<&Message> {
        self.message.as_deref()
    }

    /// The message; reads it unless it was read before. Fails as [`read`].
    pub fn read(&self, limits: ScanLimits) -> Result<Arc<Message>, EnvelopeError> {
        match &self.message {
            Some(message) => Ok(Arc::clone(message)),
            None => read(&self.text, limits).map(Arc::new),
        }
    }

    /// The message, or the messages of a batch. Fails as [`read_batch`].
    pub fn read_all(
        &self,
        limits: ScanLimits,
        items_max: usize,
    ) -> Result<Vec<Result<Message, EnvelopeError>>, EnvelopeError> {
        match self.message() {
            Some(message) => Ok(vec![Ok(message.clone())]),
            None => read_batch(&self.text, limits, items_max),
        }
    }

    /// The text in another buffer, unparsed: the parsed parts refer to the old buffer.
    pub(crate) fn held_by(self, attach: impl FnOnce(Bytes) -> Bytes) -> Self {
        attach(self.text).into()
    }

    pub fn into_bytes(self) -> Bytes {
        self.text
    }
}

impl Deref for MessageText {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.text
    }
}

impl From<Bytes> for MessageText {
    fn from(text: Bytes) -> Self {
        Self { text, message: None }
    }
}

compared_by!(MessageText, |message| message.text);
