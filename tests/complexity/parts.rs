//! Texts that are cut or read without a gateway around them.

use std::collections::HashMap;
use std::sync::Arc;

use ::bytes::Bytes;
use futures_util::future::BoxFuture;
use taskgate::task::{
    AccessItem, AccessRule, AccessRules, AccessVerdict, Caller, Claims, DecisionArguments, ItemPatterns, Principal,
    PrincipalAccessTable, RuleItems, RuleWho,
};
use taskgate::upstream::header_annotations::{self, HeaderAnnotations};
use taskgate::wire::envelope::read_batch;
use taskgate::wire::framing::{EventGate, HoldPolicy, LineDecoder, PrimerPolicy, SseDecoder};
use taskgate::wire::{Object, Payload, ScanLimits, canonical as canonical_form};

use crate::bench::Act;

fn act(what: impl FnOnce() + Send + 'static) -> BoxFuture<'static, Act> {
    Box::pin(async move { Box::pin(async move { what() }) as Act })
}

/// A stream that comes byte by byte, through all that cuts streams.
pub(crate) fn pieces(bytes: usize) -> BoxFuture<'static, Act> {
    let text = Bytes::from(format!("data: {}\n\n", "x".repeat(bytes)));
    act(move || {
        let (mut events, mut lines) = (SseDecoder::new(usize::MAX), LineDecoder::new(usize::MAX));
        let mut gate = EventGate::new(PrimerPolicy::Withhold, HoldPolicy::Messages, usize::MAX);
        let (mut found, mut passed) = (0, 0);
        for at in 0..text.len() {
            let piece = text.slice(at..=at);
            found += events.feed(&piece).unwrap().len() + lines.feed(&piece).unwrap().len();
            passed += gate.feed(&piece).unwrap().len();
        }
        assert_eq!((found, passed), (2, 1));
    })
}

/// An event whose data is long in coming.
pub(crate) fn lead(bytes: usize) -> BoxFuture<'static, Act> {
    let text = Bytes::from(format!("data:{}x\n\n", " ".repeat(bytes)));
    act(move || {
        let mut gate = EventGate::new(PrimerPolicy::Withhold, HoldPolicy::Messages, usize::MAX);
        let passed: usize = (0..text.len()).map(|at| gate.feed(&text.slice(at..=at)).unwrap().len()).sum();
        assert_eq!(passed, 1);
    })
}

pub(crate) fn canonical(text: String) -> BoxFuture<'static, Act> {
    let value = Payload::parse(&Bytes::from(text), ScanLimits::CLIENT).unwrap();
    act(move || assert!(!canonical_form(&value).is_empty()))
}

/// The schema of the only tool of a list.
pub(crate) fn schema(tools: &str) -> BoxFuture<'static, Act> {
    let tool = Payload::parse(&Bytes::copy_from_slice(tools.as_bytes()), ScanLimits::UPSTREAM).unwrap().items().next();
    let schema = Object::of(&tool.unwrap()).unwrap().get("inputSchema").unwrap();
    act(move || assert_ne!(header_annotations::read(&schema), HeaderAnnotations::Valid(Vec::new())))
}

/// A decision about a call by so many rules, of which the last fits; an earlier call was decided in the same way.
pub(crate) fn decision(count: usize) -> BoxFuture<'static, Act> {
    let rule = |n| AccessRule {
        line: Arc::from(format!("gateway.toml:{n}")),
        who: RuleWho { groups: [Arc::from("team")].into(), ..RuleWho::default() },
        upstreams: Some([Arc::from("reports")].into()),
        items: RuleItems {
            tools: Some(ItemPatterns::new([Arc::from(format!("t{n}_*"))].into())),
            ..RuleItems::default()
        },
        arguments: Vec::new(),
        allow: true,
    };
    let rules = AccessRules { rules: (1..=count).map(rule).collect(), groups: Vec::new() };
    // Leaked, so that its end is not counted.
    let table = PrincipalAccessTable::new(HashMap::new(), rules, HashMap::new());
    let access: &'static PrincipalAccessTable = Box::leak(Box::new(table));
    let claims = Claims { groups: [Arc::from("team")].into(), ..Claims::default() };
    let caller = Caller { claims: Some(Arc::new(claims)), ..Caller::of(Principal::holding("ada")) };
    let tool = format!("t{count}_x");
    let decided =
        move || access.decision(&caller, "reports", AccessItem::Tool(&tool), DecisionArguments::These(None)).verdict;
    assert_eq!(decided(), AccessVerdict::Allowed);
    act(move || assert_eq!(decided(), AccessVerdict::Allowed))
}

pub(crate) fn batch(count: usize) -> BoxFuture<'static, Act> {
    let one = |n| format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"ping"}}"#);
    let text = Bytes::from(format!("[{}]", (0..count).map(one).collect::<Vec<_>>().join(",")));
    act(move || assert_eq!(read_batch(&text, ScanLimits::CLIENT, 1_000).unwrap().len(), count))
}
