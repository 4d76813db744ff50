//! Splits a call with a list argument by element, and combines the results.

use std::sync::Arc;

use serde::Serialize;

use super::plain::CanonicalResult;
use crate::task::SplitRule;
use crate::wire::object::ObjectWriter;
use crate::wire::one_line::first_text;
use crate::wire::{Object, Payload};

const ARGUMENTS: &str = "arguments";
const CONTENT: &str = "content";
const STRUCTURED_CONTENT: &str = "structuredContent";

#[derive(Clone, Debug)]
pub struct SplitCall {
    argument: Arc<str>,
    params: Object,
    arguments: Object,
    elements: Vec<Payload>,
}

pub fn elements_in(rule: &SplitRule, params: &Object) -> Option<usize> {
    let list = params.get_object(ARGUMENTS)?.get(&rule.argument)?;
    list.as_str().starts_with('[').then(|| list.items().count())
}

impl SplitCall {
    /// Reads the params of a `tools/call`. `None` for a plain call: the list is missing, empty, no array, or too long.
    pub fn read(rule: &SplitRule, params: &Object) -> Option<Self> {
        let arguments = params.get_object(ARGUMENTS)?;
        let list = arguments.get(&rule.argument).filter(|list| list.as_str().starts_with('['))?;
        let elements: Vec<Payload> = list.items().take(rule.max.get() + 1).collect();
        let is_split = (1..=rule.max.get()).contains(&elements.len());
        is_split.then(|| Self { argument: Arc::clone(&rule.argument), params: params.clone(), arguments, elements })
    }

    pub const fn len(&self) -> usize {
        self.elements.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The params of one call: the original params, with one element in the list.
    pub fn params_of(&self, index: usize) -> Option<Payload> {
        let element = self.elements.get(index)?;
        let arguments = self.arguments.edit().set(&self.argument, Payload::of(&[element])).finish();
        Some(self.params.edit().set(ARGUMENTS, arguments).finish())
    }

    pub const fn argument(&self) -> &Arc<str> {
        &self.argument
    }
}

/// The result of a split call: the contents of its elements in the order of the list. A failed element adds a text that
/// names it and the error. `isError` if all failed. Each element's result can be dropped once it is added.
#[derive(Debug)]
pub struct CombinedResult {
    argument: Arc<str>,
    contents: ObjectWriter,
    /// The structured contents, or `null`, of the elements so far.
    structured: ObjectWriter,
    has_structured: bool,
    added: usize,
    have_failed: bool,
}

impl CombinedResult {
    pub fn new(argument: &Arc<str>) -> Self {
        let (mut contents, mut structured) = (ObjectWriter::new(), ObjectWriter::new());
        contents.begin_array(CONTENT);
        structured.begin_array("results");
        let argument = Arc::clone(argument);
        Self { argument, contents, structured, has_structured: false, added: 0, have_failed: true }
    }

    /// Makes room for results of this size together, so that none is copied again.
    pub fn reserve(&mut self, bytes: usize) {
        self.contents.reserve(bytes);
    }

    pub fn add(&mut self, part: &SplitResult) {
        let structured = match part {
            SplitResult::Returned(CanonicalResult { result, is_error: false }) => {
                self.have_failed = false;
                let object = Object::of(result);
                let member = |name| object.as_ref().and_then(|object| object.get(name));
                if let Some(blocks) = member(CONTENT) {
                    blocks.items().for_each(|block| self.contents.element(&block));
                }
                member(STRUCTURED_CONTENT)
            }
            SplitResult::Returned(CanonicalResult { result, is_error: true }) => {
                let why = first_text(result);
                self.add_failure(why.as_deref().unwrap_or("the tool reported an error"));
                None
            }
            SplitResult::Failed(why) => {
                self.add_failure(why);
                None
            }
        };
        self.has_structured |= structured.is_some();
        self.structured.element(&structured.unwrap_or_else(|| Payload::of(&())));
        self.added += 1;
    }

    fn add_failure(&mut self, why: &str) {
        self.contents.element(&failure(&self.argument, self.added, why));
    }

    /// The bytes that are in memory twice when the result is finished.
    pub const fn structured_bytes(&self) -> usize {
        self.structured.written_bytes()
    }

    pub fn finish(self) -> Payload {
        let Self { mut contents, mut structured, has_structured, have_failed, .. } = self;
        contents.end_array();
        if has_structured {
            structured.end_array();
            contents = contents.member(STRUCTURED_CONTENT, &structured.finish());
        }
        if have_failed {
            contents = contents.member("isError", &Payload::of(&true));
        }
        contents.finish()
    }
}

fn failure(argument: &str, index: usize, why: &str) -> Payload {
    let text = format!("{argument}[{index}] failed: {why}");
    ObjectWriter::new().text("type", "text").text("text", &text).finish()
}

#[derive(Clone, Debug)]
pub enum SplitResult {
    Returned(CanonicalResult),
    Failed(String),
}

/// The name of one call's question among the questions of all calls.
pub fn question_of(index: usize, ask: &Payload) -> Payload {
    #[derive(Serialize)]
    struct QuestionName<'a>(usize, &'a Payload);
    Payload::of(&QuestionName(index, ask))
}

/// The index of a question's call, and the question's name there.
pub fn question_named(name: &Payload) -> Option<(usize, Payload)> {
    let mut items = name.items();
    let index = items.next()?.read().ok()?;
    Some((index, items.next()?))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&bytes::Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
    }

    fn rule() -> SplitRule {
        let number = |number| NonZeroUsize::new(number).unwrap();
        SplitRule { argument: Arc::from("urls"), parallel: number(2), max: number(3) }
    }

    fn read(arguments: &str) -> Option<SplitCall> {
        let params = payload(&format!(r#"{{"name":"t","arguments":{arguments},"_meta":{{"a":1}}}}"#));
        SplitCall::read(&rule(), &Object::of(&params).unwrap())
    }

    fn returned(result: &str, is_error: bool) -> SplitResult {
        SplitResult::Returned(CanonicalResult { result: payload(result), is_error })
    }

    #[test]
    fn each_call_has_one_element_and_everything_else_as_it_came() {
        let call = read(r#"{"n":1.10,"urls":["a", {"b":[1, 2]}, "\ud83d"],"z":{}}"#).unwrap();
        assert_eq!(call.len(), 3);
        for (index, list) in [r#"["a"]"#, r#"[{"b":[1, 2]}]"#, r#"["\ud83d"]"#].into_iter().enumerate() {
            let expected =
                format!(r#"{{"name":"t","arguments":{{"n":1.10,"urls":{list},"z":{{}}}},"_meta":{{"a":1}}}}"#);
            assert_eq!(call.params_of(index).unwrap().as_str(), expected);
        }
        assert!(call.params_of(3).is_none());
    }

    #[test]
    fn a_call_without_a_list_or_with_one_that_is_empty_or_too_long_is_plain() {
        for (arguments, elements) in [
            ("{}", None),
            ("7", None),
            (r#"{"urls":"a"}"#, None),
            (r#"{"urls":null}"#, None),
            (r#"{"urls":{"0":"a"}}"#, None),
            (r#"{"urls":[]}"#, Some(0)),
            (r#"{"urls":[1,2,3,4]}"#, Some(4)),
        ] {
            assert!(read(arguments).is_none(), "{arguments}");
            let params = payload(&format!(r#"{{"name":"t","arguments":{arguments}}}"#));
            assert_eq!(elements_in(&rule(), &Object::of(&params).unwrap()), elements, "{arguments}");
        }
        assert!(SplitCall::read(&rule(), &Object::of(&payload(r#"{"name":"t"}"#)).unwrap()).is_none());
    }

    #[test]
    fn results_stand_in_the_order_of_the_list_and_failures_name_their_element() {
        let call = read(r#"{"urls":["a","b","c"]}"#).unwrap();
        let text = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
        let plain = |words: &str| returned(&format!(r#"{{"content":[{}],"_meta":{{"k":1}}}}"#, text(words)), false);
        let check = |parts: &[SplitResult], expected: String| {
            let mut combined = CombinedResult::new(call.argument());
            parts.iter().for_each(|part| combined.add(part));
            assert_eq!(combined.finish().as_str(), expected);
        };
        check(
            &[plain("1"), plain("2"), plain("3")],
            format!(r#"{{"content":[{},{},{}]}}"#, text("1"), text("2"), text("3")),
        );
        check(
            &[
                returned(r#"{"content":[],"structuredContent":{"x":1.50}}"#, false),
                returned(&format!(r#"{{"content":[{}],"isError":true,"structuredContent":{{}}}}"#, text("no")), true),
                SplitResult::Failed("the server is away".to_owned()),
            ],
            format!(
                r#"{{"content":[{},{}],"structuredContent":{{"results":[{{"x":1.50}},null,null]}}}}"#,
                text("urls[1] failed: no"),
                text("urls[2] failed: the server is away")
            ),
        );
        let away = || SplitResult::Failed("away".to_owned());
        check(
            &[away(), returned(r#"{"content":[]}"#, true), away()],
            format!(
                r#"{{"content":[{},{},{}],"isError":true}}"#,
                text("urls[0] failed: away"),
                text("urls[1] failed: the tool reported an error"),
                text("urls[2] failed: away")
            ),
        );
    }

    #[test]
    fn a_question_leads_back_to_its_call() {
        let ask = payload(r#"{"id":[1,"x"]}"#);
        assert_eq!(question_named(&question_of(7, &ask)), Some((7, ask)));
        for odd in ["[]", "[1]", r#"["a",1]"#, "{}", "3"] {
            assert_eq!(question_named(&payload(odd)), None, "{odd}");
        }
    }
}
