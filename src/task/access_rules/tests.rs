//! Compares the decisions with an evaluator that reads every rule for every call.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::task::Claims;
use crate::wire::{Payload, ScanLimits};

fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn object(text: &str) -> Object {
    Object::of(&Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()).unwrap()
}

fn rule(allow: bool) -> AccessRule {
    let (who, items) = (RuleWho::default(), RuleItems::default());
    AccessRule { line: Arc::from("gateway.toml:1"), who, upstreams: None, items, arguments: Vec::new(), allow }
}

fn argument(name: &str, pattern: &str) -> RuleArgument {
    RuleArgument { name: Arc::from(name), patterns: ItemPatterns::new(names(&[pattern])) }
}

/// Rules over few names, so that they meet.
fn some_names(of: &'static [&'static str]) -> impl Strategy<Value = BTreeSet<Arc<str>>> {
    proptest::sample::subsequence(of, 0..=2).prop_map(|chosen| names(&chosen))
}

fn some_patterns() -> impl Strategy<Value = Option<ItemPatterns>> {
    proptest::option::of(some_names(&["*", "a*", "ab", "?b", "b"]).prop_map(ItemPatterns::new))
}

fn some_rule() -> impl Strategy<Value = AccessRule> {
    let who = (some_names(&["key:a", "key:b"]), some_names(&["i", "j"]), some_names(&["g", "h", "team"]));
    let who = (who, some_names(&["s", "t", "u"])).prop_map(|((ids, issuers, groups), scopes)| RuleWho {
        ids: ids.iter().map(|id| Principal::new(id)).collect(),
        issuers,
        groups,
        scopes,
    });
    let items = (some_patterns(), some_patterns(), some_patterns());
    let items = items.prop_map(|(tools, prompts, resources)| RuleItems { tools, prompts, resources });
    let chosen = (proptest::sample::select(vec!["x", "y"]), proptest::sample::select(vec!["1*", "2", "?"]));
    let arguments = proptest::collection::vec(chosen.prop_map(|(name, pattern)| argument(name, pattern)), 0..=2);
    let arguments = prop_oneof![Just(Vec::new()), arguments];
    let upstreams = proptest::option::of(some_names(&["one", "two"]));
    (who, upstreams, items, arguments, any::<bool>()).prop_map(|(who, upstreams, items, arguments, allow)| AccessRule {
        who,
        upstreams,
        items,
        arguments,
        ..rule(allow)
    })
}

fn some_caller() -> impl Strategy<Value = Caller> {
    let claims = (some_names(&["s", "t"]), some_names(&["g", "x", "team"]), proptest::option::of(Just(Arc::from("i"))));
    let claims = claims.prop_map(|(scopes, groups, issuer)| Claims { scopes, groups, issuer, ..Claims::default() });
    (proptest::sample::select(vec!["key:a", "key:b", "key:c"]), proptest::option::of(claims))
        .prop_map(|(id, claims)| Caller { claims: claims.map(Arc::new), ..Caller::of(Principal::new(id)) })
}

/// Decides by reading every rule in order; `None` for unknown arguments.
fn naive(
    rules: &AccessRules,
    caller: &Caller,
    upstream: &str,
    item: AccessItem<'_>,
    arguments: Option<&Object>,
) -> bool {
    let none = Claims::default();
    let claims = caller.claims.as_deref().unwrap_or(&none);
    let mut groups = claims.groups.clone();
    if claims.issuer.is_some() {
        groups.retain(|group| rules.groups.iter().all(|members| members.name != *group));
    }
    for group in &rules.groups {
        if group.ids.contains(&caller.principal) || group.groups.iter().any(|group| claims.groups.contains(group)) {
            groups.insert(Arc::clone(&group.name));
        }
    }
    for rule in &rules.rules {
        let who = (rule.who.ids.is_empty() || rule.who.ids.contains(&caller.principal))
            && (rule.who.issuers.is_empty() || claims.issuer.as_ref().is_some_and(|of| rule.who.issuers.contains(of)))
            && (rule.who.groups.is_empty()
                || !rule.who.groups.is_disjoint(&groups)
                || (!rule.allow && !rule.who.groups.is_disjoint(&claims.groups)))
            && (rule.who.scopes.is_empty() || !rule.who.scopes.is_disjoint(&claims.scopes));
        let here = rule.upstreams.as_ref().is_none_or(|names| names.contains(upstream));
        let (patterns, name) = match item {
            AccessItem::Tool(name) => (&rule.items.tools, name),
            AccessItem::Prompt(name) => (&rule.items.prompts, name),
            AccessItem::Resource(name) => (&rule.items.resources, name),
        };
        let is_tool = matches!(item, AccessItem::Tool(_));
        let of_all = [&rule.items.tools, &rule.items.prompts, &rule.items.resources].iter().all(|one| one.is_none());
        let about = match patterns {
            Some(patterns) => patterns.fit(name),
            None => of_all && (is_tool || rule.arguments.is_empty()),
        };
        let fits = rule.arguments.iter().all(|wanted| match arguments {
            Some(arguments) => arguments.get_str(&wanted.name).is_some_and(|text| wanted.patterns.fit(&text)),
            None => rule.allow,
        });
        if who && here && about && fits {
            return rule.allow;
        }
    }
    false
}

proptest! {
    #[test]
    fn sec_26_the_first_rule_that_fits_decides_and_scopes_that_help_are_named(
        rules in proptest::collection::vec(some_rule(), 0..8),
        caller in some_caller(),
        upstream in proptest::sample::select(vec!["one", "two", "three"]),
        name in proptest::sample::select(vec!["a", "ab", "b", ""]),
        kind in 0..3_u8,
        arguments in proptest::sample::select(vec![None, Some("{}"), Some(r#"{"x":"1"}"#), Some(r#"{"x":"12","y":"2"}"#)]),
    ) {
        let team = GroupMembers { name: Arc::from("team"), ids: [Principal::new("key:b")].into(), groups: names(&["g"]) };
        let rules = rules.into_iter().enumerate();
        let rules = rules.map(|(at, rule)| AccessRule { line: Arc::from(at.to_string()), ..rule }).collect();
        let rules = AccessRules { rules, groups: vec![team] };
        let item = match kind {
            0 => AccessItem::Tool(name),
            1 => AccessItem::Prompt(name),
            _ => AccessItem::Resource(name),
        };
        let arguments = arguments.map(object);
        let decide = |caller: &Caller| {
            let about = rules.for_caller(caller, upstream).about(&rules, item);
            about.decide(&rules, arguments.as_ref().map_or(DecisionArguments::Any, |these| DecisionArguments::These(Some(these))))
        };
        let decided = decide(&caller);
        let allows = |caller: &Caller| naive(&rules, caller, upstream, item, arguments.as_ref());
        let mut helpful = BTreeSet::new();
        if let Some(claims) = caller.claims.as_ref().filter(|claims| claims.issuer.is_some()) {
            for scope in ["s", "t", "u"] {
                let mut wider = Claims::clone(claims);
                wider.scopes.insert(Arc::from(scope));
                if allows(&Caller { claims: Some(Arc::new(wider)), ..caller.clone() }) {
                    helpful.insert(Arc::from(scope));
                }
            }
        }
        let expected = match allows(&caller) {
            true => AccessVerdict::Allowed,
            false if helpful.is_empty() => AccessVerdict::Denied,
            false => AccessVerdict::NeedsScopes(helpful),
        };
        prop_assert_eq!(&decided.verdict, &expected);
        let index = decided.line.as_ref().map(|line| line.parse::<usize>().unwrap());
        if let Some(index) = index {
            prop_assert_eq!(rules.rules[index].allow, expected == AccessVerdict::Allowed);
        }
        if expected == AccessVerdict::Allowed {
            prop_assert_eq!(rules.for_caller(&caller, upstream).upstream(&rules).verdict, AccessVerdict::Allowed);
        }
        // A rule that is called superfluous never decides.
        for (at, late) in rules.rules.iter().enumerate() {
            if rules.rules[..at].iter().any(|early| early.precludes(late, &rules.groups)) {
                prop_assert_ne!(index, Some(at));
            }
        }
    }
}

/// Everyone who may name groups at an issuer could else join a group of the configuration.
#[test]
fn sec_96_an_issuers_group_is_not_the_group_of_that_name_in_the_configuration() {
    let team = GroupMembers { name: Arc::from("team"), ids: BTreeSet::new(), groups: names(&["g"]) };
    let rules = |allow| {
        let who = RuleWho { groups: names(&["team"]), ..RuleWho::default() };
        let of_team = AccessRule { who, ..rule(allow) };
        AccessRules { rules: vec![of_team, rule(!allow)], groups: vec![team.clone()] }
    };
    for (group, issuer, is_allowed, is_denied) in [
        ("team", Some("i"), false, true),
        ("g", Some("i"), true, true),
        ("x", Some("i"), false, false),
        // The configuration gives this one to a key.
        ("team", None, true, true),
    ] {
        let claims = Claims { groups: names(&[group]), issuer: issuer.map(Arc::from), ..Claims::default() };
        let caller = Caller { claims: Some(Arc::new(claims)), ..Caller::of(Principal::new("key:a")) };
        let allows = |rules: &AccessRules| {
            let about = rules.for_caller(&caller, "one").about(rules, AccessItem::Tool("t"));
            about.decide(rules, DecisionArguments::Any).verdict == AccessVerdict::Allowed
        };
        assert_eq!((allows(&rules(true)), !allows(&rules(false))), (is_allowed, is_denied), "{group} of {issuer:?}");
    }
}

#[test]
fn sec_28_an_argument_that_servers_may_read_otherwise_fails_both_kinds_of_rules() {
    let staging = |allow| AccessRule { arguments: vec![argument("env", "staging*")], ..rule(allow) };
    let allows = AccessRules { rules: vec![staging(true)], groups: Vec::new() };
    let denies = AccessRules { rules: vec![staging(false), rule(true)], groups: Vec::new() };
    let long = format!(r#"{{"env":"staging{}"}}"#, "x".repeat(ARGUMENT_BYTES_MAX));
    for (arguments, allowed, denied) in [
        (r#"{"env":"staging-1"}"#, true, true),
        (r#"{"\u0065nv":"\u0073taging"}"#, true, true),
        (r#"{"env":"prod"}"#, false, false),
        (r#"{"env":null}"#, false, true),
        (r#"{"env":["staging"]}"#, false, true),
        (r#"{"env":7}"#, false, true),
        (r#"{"env":"staging","ENV":"prod"}"#, false, true),
        (r#"{"Env":"staging"}"#, false, true),
        (r#"{"x":{"env":"staging"}}"#, false, false),
        ("{}", false, false),
        (long.as_str(), false, true),
    ] {
        let (caller, arguments) = (Caller::of(Principal::holding("ada")), object(arguments));
        let is_allowed = |rules: &AccessRules| {
            let about = rules.for_caller(&caller, "one").about(rules, AccessItem::Tool("t"));
            about.decide(rules, DecisionArguments::These(Some(&arguments))).verdict == AccessVerdict::Allowed
        };
        assert_eq!((is_allowed(&allows), !is_allowed(&denies)), (allowed, denied), "{arguments:?}");
    }
}
