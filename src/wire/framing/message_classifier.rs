//! Classifies a message in transit: whether it responds or may ask; reads its id. Reads names of members, the method
//! and the id, in one pass, and keeps nothing else. A message that it cannot classify for sure is
//! [`MessageClass::Asking`]: the caller then reads it whole and strictly.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::wire::{Payload, RequestId, ScanLimits, method, scan};

/// Longest member name or method that is compared, as written: `result` in escapes. No longer one matters.
const NAME_BYTES_MAX: usize = 36;
const ID_BYTES_MAX: usize = 256;
/// The member of a result that holds questions (2026-07-28).
const REQUESTS: &[u8] = b"inputRequests";
/// The member of such a result that the client sends back.
const STATE: &[u8] = b"requestState";
/// The member of a result that names its type (2026-07-28), the type that holds nothing more, and the other types of the version.
const TYPE: &[u8] = b"resultType";
const COMPLETE: &[u8] = b"complete";
const OTHER_TYPES: [&[u8]; 2] = [b"input_required", b"task"];
/// A server's methods that ask for the user's input or the client's own resources, or report a resource's update.
const JUDGED: [&str; 4] = [method::ELICIT, method::SAMPLE, method::ROOTS, method::RESOURCE_UPDATED];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageClass {
    Nothing,
    /// A response that is no error, or a method that asks nothing.
    Harmless,
    /// An error. Some are questions.
    Failing,
    /// A question, an update of a resource, a batch, or a message that readers may take for one of them.
    Asking,
}

#[derive(Clone, Debug, Default)]
pub struct MessageClassifier {
    depth: usize,
    string: Option<StringRole>,
    /// The bytes of a name as written, if it is short enough.
    name: NameBytes,
    length: usize,
    is_escaped: bool,
    after_backslash: bool,
    expects_name: bool,
    expects_method: bool,
    expects_id: bool,
    expects_outcome: Option<OutcomeMember>,
    in_result: bool,
    /// Whether a name, not a value, comes next in that object.
    expects_member: bool,
    /// The id as written, quotes included.
    id: SmallVec<[u8; 24]>,
    /// Whether an id was named, and whether some reader may take another value for it.
    has_id: bool,
    has_odd_id: bool,
    /// Whether the text is neither an object nor an array, and so no message.
    is_other: bool,
    /// Whether `result` or `error` was named, and which of them has a value that is not `null`.
    has_outcome: bool,
    is_answer: bool,
    is_error: bool,
    is_method: bool,
    is_asking: bool,
    has_requests: bool,
    has_state: bool,
    expects_type: bool,
    is_complete: bool,
    has_other_type: bool,
    has_type_of_extension: bool,
}

#[derive(Clone, Copy, Debug)]
struct NameBytes([u8; NAME_BYTES_MAX]);

impl Default for NameBytes {
    fn default() -> Self {
        Self([0; NAME_BYTES_MAX])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutcomeMember {
    Result,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringRole {
    Name,
    Method,
    Id,
    Member,
    Type,
    Other,
}

impl MessageClassifier {
    pub fn feed(&mut self, bytes: &[u8]) -> MessageClass {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = match self.string {
                Some(text) => self.in_string(text, rest),
                None if self.is_inside() => self.inside(rest),
                None => self.between(rest),
            };
        }
        self.shows()
    }

    pub const fn has_method(&self) -> bool {
        self.is_method
    }

    /// Whether it is a request or a notification, or readers may take it for one.
    pub const fn may_be_request(&self) -> bool {
        self.is_method || self.is_asking
    }

    /// Whether it is a response and nothing else, readable or not.
    pub const fn is_answer_alone(&self) -> bool {
        self.has_outcome && !self.is_method
    }

    /// Whether its result may hold a state to send back: a member `requestState` in any case, or one with an escaped name.
    pub const fn has_state(&self) -> bool {
        self.has_state
    }

    /// Whether readers may take it for more than a complete result: a request, or a result with questions or a type.
    pub const fn may_ask(&self) -> bool {
        self.may_ask_beyond_extensions() || self.has_type_of_extension
    }

    /// As [`Self::may_ask`], for a client that may get results of the types of extensions.
    pub const fn may_ask_beyond_extensions(&self) -> bool {
        self.has_requests || self.has_other_type || self.may_be_request()
    }

    /// Whether its result says that it is complete, and nothing else.
    pub const fn is_complete(&self) -> bool {
        self.is_complete && !self.has_other_type && !self.has_type_of_extension
    }

    /// Its id, once it was read whole; `None` if it has none that may be echoed.
    pub fn id(&self) -> Option<RequestId> {
        let text = Bytes::copy_from_slice(&self.id);
        RequestId::from_payload(&Payload::parse(&text, ScanLimits::CLIENT).ok()?)
    }

    /// Whether it answers a request: it has an id that is not `null`, usable or not.
    pub fn names_request(&self) -> bool {
        self.has_id && *self.id != *b"null"
    }

    /// Whether readers may differ about its id: it has two, or one spelt in another case.
    pub const fn has_odd_id(&self) -> bool {
        self.has_odd_id
    }

    pub const fn shows(&self) -> MessageClass {
        match (self.is_asking, self.is_error && !self.is_other, self.is_answer || self.is_method || self.is_other) {
            (true, ..) => MessageClass::Asking,
            (false, true, _) => MessageClass::Failing,
            (false, false, true) => MessageClass::Harmless,
            (false, false, false) => MessageClass::Nothing,
        }
    }

    /// Whether no name and no value decides here: below the members of the envelope or of a result.
    const fn is_inside(&self) -> bool {
        self.depth > 2 || (self.depth == 2 && !self.in_result && !self.expects_type)
    }

    /// Skips strings and brackets to the end of such an object or array, or to the end.
    fn inside<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            at += 1;
            match byte {
                b'"' => {
                    let rest = self.skip_string(&bytes[at..]);
                    at = bytes.len() - rest.len();
                }
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if !self.is_inside() {
                        return &bytes[at..];
                    }
                }
                _ => (),
            }
        }
        &[]
    }

    /// Advances to the next string, to values in which nothing decides, or to the end.
    fn between<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => {
                    let text = match (self.depth, self.expects_name) {
                        (1, true) => StringRole::Name,
                        (1, false) if self.expects_method => StringRole::Method,
                        (1, false) if self.expects_id => StringRole::Id,
                        (2, _) if self.in_result && self.expects_member => StringRole::Member,
                        (2, _) if std::mem::take(&mut self.expects_type) => StringRole::Type,
                        _ => StringRole::Other,
                    };
                    if self.depth == 1 && !self.expects_name {
                        self.outcome_begins(*byte);
                    }
                    self.keep(text, b"\"");
                    (self.string, self.length, self.is_escaped) = (Some(text), 0, false);
                    return &bytes[at + 1..];
                }
                b'{' | b'[' | b',' | b'}' if self.depth == 2 && std::mem::take(&mut self.expects_type) => {
                    // Its value is no string. The same byte is read again.
                    self.has_other_type = true;
                    return &bytes[at..];
                }
                b'{' | b'[' => {
                    self.is_asking |= self.depth == 0 && *byte == b'[';
                    if self.depth == 1 {
                        let outcome = self.outcome_begins(*byte);
                        self.in_result = outcome == Some(OutcomeMember::Result) && *byte == b'{';
                        self.expects_member = true;
                    }
                    self.depth += 1;
                    self.expects_name = self.depth == 1;
                    if self.is_inside() {
                        return &bytes[at + 1..];
                    }
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                // Some readers skip a byte order mark.
                b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf => (),
                _ if self.depth == 0 => self.is_other = true,
                b',' if self.depth == 1 => {
                    (self.expects_name, self.expects_method, self.expects_id) = (true, false, false);
                    self.expects_outcome = None;
                }
                b':' if self.depth == 1 => self.expects_name = false,
                b',' if self.depth == 2 => self.expects_member = true,
                b':' if self.depth == 2 => self.expects_member = false,
                b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' if self.expects_id && self.depth == 1 => {
                    self.keep(StringRole::Id, &[*byte]);
                }
                _ if self.depth == 1 && !self.expects_name => _ = self.outcome_begins(*byte),
                _ => (),
            }
        }
        &[]
    }

    /// Reads the first byte of a member's value; returns the outcome that it belongs to. A `null` outcome is absent.
    fn outcome_begins(&mut self, byte: u8) -> Option<OutcomeMember> {
        let outcome = self.expects_outcome.take()?;
        // `null`: no other value begins so.
        if byte != b'n' {
            self.is_answer |= outcome == OutcomeMember::Result;
            self.is_error |= outcome == OutcomeMember::Error;
            self.is_asking |= self.is_answer && self.is_error;
        }
        Some(outcome)
    }

    fn in_string<'b>(&mut self, text: StringRole, bytes: &'b [u8]) -> &'b [u8] {
        if std::mem::take(&mut self.after_backslash) {
            self.note(text, &bytes[..1]);
            return &bytes[1..];
        }
        if text == StringRole::Other {
            return self.skip_string(bytes);
        }
        let at = scan::mark(bytes, 0);
        if self.length == 0 && !self.is_escaped && bytes.get(at) == Some(&b'"') {
            // Most strings come in one piece, without escapes.
            self.keep(text, &bytes[..=at]);
            self.string = None;
            self.ended(text, &bytes[..at]);
            return &bytes[at + 1..];
        }
        self.note(text, &bytes[..at]);
        let Some((mark, rest)) = bytes[at..].split_first() else { return &[] };
        if *mark == b'"' {
            self.keep(text, b"\"");
            self.string = None;
            let name = self.name;
            self.ended(text, name.0.get(..self.length).unwrap_or_default());
            return rest;
        }
        self.note(text, &[*mark]);
        self.is_escaped = true;
        let Some((escaped, rest)) = rest.split_at_checked(1) else {
            self.after_backslash = true;
            return &[];
        };
        self.note(text, escaped);
        rest
    }

    /// Skips the rest of a string in which nothing decides.
    fn skip_string<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let end = scan::string_end(bytes, 0);
        self.string = (end > bytes.len()).then_some(StringRole::Other);
        // It continues in the next piece, perhaps with the second byte of an escape.
        self.after_backslash = end > bytes.len() + 1;
        bytes.get(end..).unwrap_or_default()
    }

    /// Keeps a part of the id. An id that is too long counts as none.
    fn keep(&mut self, text: StringRole, bytes: &[u8]) {
        if text == StringRole::Id && self.id.len() <= ID_BYTES_MAX {
            self.id.extend_from_slice(bytes);
        }
    }

    fn note(&mut self, text: StringRole, bytes: &[u8]) {
        self.keep(text, bytes);
        if matches!(text, StringRole::Other | StringRole::Id) {
            return;
        }
        if let Some(room) = self.name.0.get_mut(self.length..self.length + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.length = self.length.saturating_add(bytes.len());
    }

    fn ended(&mut self, text: StringRole, name: &[u8]) {
        match text {
            StringRole::Other | StringRole::Id => (),
            StringRole::Name if self.is_escaped => {
                match serde_json::from_slice::<String>(&[b"\"", name, b"\""].concat()) {
                    Ok(name) => self.named(name.as_bytes()),
                    Err(_) => self.is_asking = true,
                }
            }
            StringRole::Name => self.named(name),
            StringRole::Member => {
                self.has_requests |= self.is_escaped || name.eq_ignore_ascii_case(REQUESTS);
                self.has_state |= self.is_escaped || name.eq_ignore_ascii_case(STATE);
                self.expects_type = name == TYPE && !self.is_escaped;
                // Some readers ignore the case of a name.
                self.has_other_type |= !self.expects_type && name.eq_ignore_ascii_case(TYPE);
            }
            StringRole::Type => {
                let is_odd = self.is_complete || self.is_escaped;
                self.has_other_type |= is_odd || OTHER_TYPES.contains(&name);
                self.has_type_of_extension |= !is_odd && name != COMPLETE && !OTHER_TYPES.contains(&name);
                self.is_complete = true;
            }
            // Escapes in a method only serve to hide it.
            StringRole::Method if self.is_escaped => self.is_asking = true,
            StringRole::Method => {
                self.is_method = true;
                self.is_asking |= JUDGED.iter().any(|judged| judged.as_bytes() == name);
            }
        }
    }

    /// Records a member of the envelope. Some readers ignore the case of a name.
    fn named(&mut self, name: &[u8]) {
        self.expects_outcome = match () {
            () if name.eq_ignore_ascii_case(b"result") => Some(OutcomeMember::Result),
            () if name.eq_ignore_ascii_case(b"error") => Some(OutcomeMember::Error),
            () => None,
        };
        self.has_outcome |= self.expects_outcome.is_some();
        self.expects_method = name.eq_ignore_ascii_case(b"method");
        self.expects_id = name == b"id" && self.id.is_empty();
        if name.eq_ignore_ascii_case(b"id") {
            self.has_odd_id |= self.has_id || name != b"id";
            self.has_id = true;
        }
        self.is_asking |= (self.expects_method || self.has_outcome) && self.is_method;
        self.is_asking |= self.expects_method && self.has_outcome;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Message;

    #[track_caller]
    fn check(text: &str, shows: MessageClass) {
        for cut in 0..=text.len() {
            let mut classifier = MessageClassifier::default();
            classifier.feed(&text.as_bytes()[..cut]);
            assert_eq!(classifier.feed(&text.as_bytes()[cut..]), shows, "{text} cut at {cut}");
        }
    }

    /// U56.
    #[test]
    fn a_result_of_another_type_may_ask_and_a_complete_one_says_so() {
        for (result, is_complete, may_ask, beyond_extensions) in [
            (r#"{"resultType":"complete","a":{"resultType":"task"}}"#, true, false, false),
            (r#"{"a":["resultType"],"resultType" : "complete"}"#, true, false, false),
            ("{}", false, false, false),
            (r#"{"a":"resultType","b":{"resultType":"task"}}"#, false, false, false),
            (r#"{"resultType":"task"}"#, false, true, true),
            (r#"{"resultType":"input_required"}"#, false, true, true),
            (r#"{"resultType":"completed"}"#, false, true, false),
            (r#"{"resultType":"a type that is longer than any that the version has"}"#, false, true, false),
            (r#"{"resultType":"completed","resultType":"task"}"#, false, true, true),
            (r#"{"resultType":"\u0063omplete"}"#, false, true, true),
            (r#"{"resultType":7}"#, false, true, true),
            (r#"{"resultType":null,"a":"complete"}"#, false, true, true),
            (r#"{"resultType":{"a":"complete"}}"#, false, true, true),
            (r#"{"resultType":["complete"]}"#, false, true, true),
            (r#"{"resultType":"complete","resultType":"complete"}"#, false, true, true),
            (r#"{"resulttype":"complete"}"#, false, true, true),
            (r#"{"resultType":"complete","\u0061":1}"#, true, true, true),
        ] {
            let text = format!(r#"{{"id":1,"result":{result},"x":{{"resultType":"task"}}}}"#);
            for cut in 0..=text.len() {
                let mut look = MessageClassifier::default();
                look.feed(&text.as_bytes()[..cut]);
                look.feed(&text.as_bytes()[cut..]);
                assert_eq!((look.is_complete(), look.may_ask()), (is_complete, may_ask), "{text} cut at {cut}");
                assert_eq!(look.may_ask_beyond_extensions(), beyond_extensions, "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn answers_and_notifications_are_distinguished_from_questions() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"method":"elicitation/create","error":1}}"#,
            r#"{"result":{"a":["{\"method\":\"elicitation/create\"}"]},"id":1}"#,
            r#"{"method":"notifications/progress","params":{"method":"elicitation/create"}}"#,
            r#" { "method" : "ping" , "id" : 1 }"#,
            r#"{"id":1,"result":{},"error":null}"#,
            r#"{"id":1,"error" : null,"result":{"a":1},"\u0069d":2}"#,
            "7",
            "no message",
        ] {
            check(text, MessageClass::Harmless);
        }
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create"}"#,
            r#"{"params":{"method":"ping"},"method":"sampling/createMessage"}"#,
            r#"{"method":"roots/list"}"#,
            r#"{"method":"notifications/resources/updated","params":{"uri":"a:b"}}"#,
            r#"{"METHOD":"roots/list"}"#,
            r#"{"\u006dethod":"roots/list"}"#,
            r#"{"method":"roots\/list"}"#,
            r#"{"method":"ping","method":"roots/list"}"#,
            r#"{"result":{},"method":"x"}"#,
            r#"{"method":"x","result":{}}"#,
            r#"{"result":null,"method":"x"}"#,
            r#"[{"result":{}}]"#,
            r#"{"result":{},"error":{}}"#,
            r#"{"result":{},"\u0065rror":7}"#,
            r#"{"error":{},"method":"x"}"#,
        ] {
            check(text, MessageClass::Asking);
        }
        for text in [
            r#"{"id":1,"error":{"code":-32042,"data":{"method":"roots/list"}}}"#,
            r#"{"id":1,"result":null,"error":{"code":1}}"#,
            r#"{"\u0065rror":{}}"#,
        ] {
            check(text, MessageClass::Failing);
        }
        for text in [
            "",
            "   ",
            "{",
            r#"{"id":1,"params":{"method":"roots/list"}}"#,
            r#"{"method":{"roots/list":1}}"#,
            r#"{"id":1,"result":null}"#,
        ] {
            check(text, MessageClass::Nothing);
        }
    }

    #[test]
    fn a_result_that_may_hold_questions_is_told_from_others() {
        for (text, has_requests) in [
            (r#"{"id":1,"result":{"a":[{"inputRequests":1}],"inputRequests":{}}}"#, true),
            (r#"{"RESULT" : { "INPUTrequests" : {}}}"#, true),
            (r#"{"result":{"\u0069nputRequests":{}}}"#, true),
            (r#"{"result":{"resultType":"inputRequests","a":{"inputRequests":1},"b":["inputRequests"]}}"#, false),
            (r#"{"result":["inputRequests",{"inputRequests":1}]}"#, false),
            (r#"{"params":{"inputRequests":{}},"inputRequests":{},"error":{"inputRequests":1}}"#, false),
            (r#"{"result":{},"x":{"inputRequests":{}}}"#, false),
        ] {
            for cut in 0..=text.len() {
                let mut classifier = MessageClassifier::default();
                classifier.feed(&text.as_bytes()[..cut]);
                classifier.feed(&text.as_bytes()[cut..]);
                assert_eq!(classifier.has_requests, has_requests, "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_result_that_may_have_a_state_is_told_from_others() {
        for (text, has_state) in [
            (r#"{"id":1,"result":{"requestState":"s"}}"#, true),
            (r#"{"result":{"a":{},"REQUESTSTATE":1}}"#, true),
            (r#"{"result":{"request\u0053tate":1}}"#, true),
            (r#"{"result":{"a":"requestState","b":{"requestState":1}},"requestState":1}"#, false),
        ] {
            for cut in 0..=text.len() {
                let mut classifier = MessageClassifier::default();
                classifier.feed(&text.as_bytes()[..cut]);
                classifier.feed(&text.as_bytes()[cut..]);
                assert_eq!(classifier.has_state(), has_state, "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn the_id_is_read_as_it_goes_by() {
        for (text, id) in [
            (r#"{"id":7,"method":"x"}"#, Some("7")),
            (r#"{"method":"x","params":{"id":1},"id" : "a\"\u0062" }"#, Some(r#""a\"\u0062""#)),
            (r#"{"method":"x","id":-12}"#, Some("-12")),
            (r#"{"id":null}"#, None),
            (r#"{"id":1.5}"#, None),
            (r#"{"id":{"id":1}}"#, None),
            (r#"{"params":{"id":1}}"#, None),
        ] {
            for cut in 0..=text.len() {
                let mut classifier = MessageClassifier::default();
                classifier.feed(&text.as_bytes()[..cut]);
                classifier.feed(&text.as_bytes()[cut..]);
                assert_eq!(classifier.id().as_ref().map(RequestId::as_json), id, "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn an_id_about_which_readers_differ_is_odd() {
        for (text, names_request, is_odd) in [
            (r#"{"id":7,"result":{"id":8}}"#, true, false),
            (r#"{"result":{},"id":null}"#, false, false),
            (r#"{"result":{}}"#, false, false),
            (r#"{"id":1.5,"result":{}}"#, true, false),
            (r#"{"id":7,"result":{},"id":8}"#, true, true),
            (r#"{"id":7,"result":{},"ID":8}"#, true, true),
            (r#"{"Id":8,"result":{}}"#, true, true),
            (r#"{"id":7,"result":{}} {"id":8,"result":{}}"#, true, true),
        ] {
            for cut in 0..=text.len() {
                let mut classifier = MessageClassifier::default();
                classifier.feed(&text.as_bytes()[..cut]);
                classifier.feed(&text.as_bytes()[cut..]);
                assert_eq!(
                    (classifier.names_request(), classifier.has_odd_id()),
                    (names_request, is_odd),
                    "{text} cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn a_member_that_decides_the_kind_decides_at_once() {
        let mut classifier = MessageClassifier::default();
        assert_eq!(classifier.feed(br#"{"jsonrpc":"2.0","id":1"#), MessageClass::Nothing);
        assert_eq!(classifier.feed(br#","result":"#), MessageClass::Nothing);
        assert_eq!(classifier.feed(br#"{"content":["#), MessageClass::Harmless);
    }

    /// Members as servers write them, and as they must not.
    fn member() -> impl Strategy<Value = String> {
        let names =
            vec!["result", "error", "method", "id", "params", "Result", "x", r"\u0072esult", r"err\u006fr", r"\u0069d"];
        let values = vec![
            "null",
            "{}",
            r#"{"error":null}"#,
            "1",
            r#""x""#,
            r#""roots/list""#,
            "[]",
            r#"{"code":1,"message":"m"}"#,
        ];
        (prop::sample::select(names), prop::sample::select(values))
            .prop_map(|(name, value)| format!(r#""{name}" :{value}"#))
    }

    proptest! {
        /// A reader of pieces lets a message pass once it shows itself as harmless. So no message that the strict reader takes
        /// for an answer or a notification shows itself otherwise later, wherever it is cut.
        #[test]
        fn a_message_has_one_verdict_wherever_it_is_cut(
            members in prop::collection::vec(member(), 0..5),
            lead in prop::sample::select(vec!["", "", "", " ", "7 "]),
        ) {
            let text = format!(r#"{lead}{{"jsonrpc":"2.0",{}}}"#, members.join(","));
            let read = crate::wire::envelope::read(&Bytes::from(text.clone()), ScanLimits::UPSTREAM);
            let is_harmless = matches!(read, Ok(Message::Response(_) | Message::Notification(_)));
            for cut in 0..=text.len() {
                let mut look = MessageClassifier::default();
                let first = look.feed(&text.as_bytes()[..cut]);
                let last = look.feed(&text.as_bytes()[cut..]);
                let is_cut_off = first == MessageClass::Harmless && last != first;
                prop_assert!(!is_cut_off || (!is_harmless && last == MessageClass::Asking), "{text} cut at {cut}: {last:?}");
            }
        }
    }
}
