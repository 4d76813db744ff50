//! Tests the access of a caller: by the lists beside its key, the rules, and the scopes of tools.

use super::*;
use crate::task::{AccessRule, RuleItems, RuleWho};

fn texts(texts: &[&str]) -> BTreeSet<Arc<str>> {
    texts.iter().map(|text| Arc::from(*text)).collect()
}

fn table(own: PrincipalAccess, rules: Vec<AccessRule>, scopes: &[(&str, &[&str])]) -> PrincipalAccessTable {
    let blocks = scopes.iter().map(|(pattern, scopes)| ToolScopes {
        line: Arc::from(*pattern),
        patterns: ItemPatterns::new(texts(&[pattern])),
        scopes: texts(scopes),
    });
    let own = HashMap::from([(Principal::holding("ada"), own)]);
    let rules = AccessRules { rules, groups: Vec::new() };
    PrincipalAccessTable::new(own, rules, HashMap::from([(Arc::from("reports"), blocks.collect())]))
}

fn everywhere(patterns: &[&str]) -> ToolLists {
    ToolLists::Everywhere(ItemPatterns::new(texts(patterns)))
}

fn at(lists: &[(&str, &[&str])]) -> ToolLists {
    let lists = lists.iter().map(|(upstream, patterns)| (Arc::from(*upstream), ItemPatterns::new(texts(patterns))));
    ToolLists::ByUpstream(lists.collect())
}

fn ada(scopes: &[&str], issuer: Option<&str>) -> Caller {
    let claims = Claims { scopes: texts(scopes), issuer: issuer.map(Arc::from), ..Claims::default() };
    Caller { claims: Some(Arc::new(claims)), ..Caller::of(Principal::holding("ada")) }
}

/// A key's upstreams and tools; an upstream and a tool, and whether the key's holder may use both.
#[test]
fn the_lists_beside_a_key_narrow_its_principal_alone() {
    let caller = Caller::of(Principal::holding("ada"));
    let (reads, all) = (everywhere(&["read_*"]), everywhere(&["*"]));
    for (upstreams, tools, denied, upstream, tool, expected) in [
        (None, None, None, "reports", "write_x", true),
        (Some(["reports"].as_slice()), None, None, "reports", "write_x", true),
        (Some(&["reports"]), None, None, "files", "write_x", false),
        (Some(&["reports", "files"]), None, None, "files", "read_x", true),
        (None, Some(reads.clone()), None, "reports", "read_x", true),
        (None, Some(reads.clone()), None, "reports", "write_x", false),
        (None, Some(reads.clone()), None, "reports", "READ_x", false),
        (None, Some(reads.clone()), None, "reports", " read_x", false),
        (None, Some(everywhere(&["read_?", "write"])), None, "reports", "read_xy", false),
        (None, Some(everywhere(&["read_?", "write"])), None, "reports", "write", true),
        (Some(&["reports"]), Some(reads.clone()), None, "files", "read_x", false),
        (None, Some(all.clone()), None, "files", "", true),
        (None, Some(everywhere(&["nothing-of-the-kind"])), None, "files", "read_x", false),
        (None, Some(at(&[("reports", &["*"]), ("files", &["read_*"])])), None, "reports", "write_x", true),
        (None, Some(at(&[("reports", &["*"]), ("files", &["read_*"])])), None, "files", "write_x", false),
        (None, Some(at(&[("reports", &["*"])])), None, "files", "read_x", false),
        (None, None, Some(everywhere(&["delete_*"])), "files", "delete_x", false),
        (None, None, Some(everywhere(&["delete_*"])), "files", "read_x", true),
        (None, Some(all), Some(at(&[("files", &["*"])])), "files", "read_x", false),
        (None, Some(reads), Some(at(&[("files", &["*"])])), "reports", "read_x", true),
    ] {
        let said = format!("{upstreams:?} {tools:?} {denied:?} {upstream} {tool}");
        let table = table(
            PrincipalAccess { line: Arc::from("f:2"), upstreams: upstreams.map(texts), tools, denied },
            Vec::new(),
            &[],
        );
        assert_eq!(table.has_item(&caller, upstream, AccessItem::Tool(tool)), expected, "{said}");
        assert!(
            table.has_item(&Caller::of(Principal::holding("bob")), upstream, AccessItem::Tool(tool)),
            "others: {said}"
        );
    }
}

/// Keys narrow on top of rules, and a tool's scopes on top of both.
#[test]
fn a_call_needs_the_rules_the_keys_lists_and_the_tools_scopes() {
    let who = RuleWho { scopes: texts(&["read", "admin"]), ..RuleWho::default() };
    let items = RuleItems { tools: Some(ItemPatterns::new(texts(&["read_*", "delete_*"]))), ..RuleItems::default() };
    let rule = AccessRule { line: Arc::from("f:1"), who, upstreams: None, items, arguments: Vec::new(), allow: true };
    let denied = Some(everywhere(&["*_secret"]));
    let own = PrincipalAccess { line: Arc::from("f:2"), denied, ..PrincipalAccess::default() };
    let table = table(own, vec![rule], &[("delete_*", &["write", "read"]), ("*", &["unused"]), ("read_*", &[])]);
    let needs = |scopes: &[&str]| AccessVerdict::NeedsScopes(texts(scopes));
    let (allowed, denied) = (AccessVerdict::Allowed, AccessVerdict::Denied);
    let io = Some("https://login.example");
    let (rule, key) = (DecidedBy::Rule(Arc::from("f:1")), DecidedBy::Key(Arc::from("f:2")));
    let block = DecidedBy::ToolScopes(Arc::from("delete_*"));
    for (caller, upstream, tool, verdict, by, is_listed) in [
        (ada(&["read"], io), "files", "read_x", allowed.clone(), rule.clone(), true),
        (ada(&["read"], io), "files", "read_secret", denied.clone(), key.clone(), false),
        (ada(&["read"], io), "files", "other", denied.clone(), DecidedBy::EndOfRules, false),
        (ada(&[], io), "files", "read_x", needs(&["admin", "read"]), DecidedBy::EndOfRules, false),
        (ada(&[], io), "reports", "delete_x", needs(&["admin", "read", "write"]), DecidedBy::EndOfRules, false),
        (ada(&["read"], io), "reports", "delete_x", needs(&["read", "write"]), block.clone(), true),
        (ada(&["admin", "write"], io), "reports", "delete_x", needs(&["read", "write"]), block.clone(), true),
        (ada(&["read", "write"], io), "reports", "delete_x", allowed, rule.clone(), true),
        // The holder of a key cannot get another one.
        (ada(&[], None), "files", "read_x", denied.clone(), DecidedBy::EndOfRules, false),
        (ada(&["read"], None), "reports", "delete_x", denied, block.clone(), false),
    ] {
        let said = format!("{caller:?} {upstream} {tool}");
        let decision =
            table.tools_of(&caller, upstream).decision(AccessItem::Tool(tool), DecisionArguments::These(None));
        assert_eq!(decision, AccessDecision { verdict, by }, "{said}");
        assert_eq!(table.tools_of(&caller, upstream).has(tool), is_listed, "{said}");
    }
}

/// Two tokens of one person at the same table: the memory does not mix them up.
#[test]
fn the_cached_access_of_one_credential_is_not_anothers() {
    let who = RuleWho { scopes: texts(&["read"]), ..RuleWho::default() };
    let items = RuleItems { prompts: Some(ItemPatterns::new(texts(&["a*"]))), ..RuleItems::default() };
    let rule = AccessRule { line: Arc::from("f:1"), who, upstreams: None, items, arguments: Vec::new(), allow: true };
    let table = table(PrincipalAccess::default(), vec![rule], &[]);
    for round in 0..3 {
        let (wide, narrow) = (ada(&["read"], None), ada(&["write"], None));
        assert!(table.has_upstream(&wide, "reports") && !table.has_upstream(&narrow, "reports"), "{round}");
        let (wide, narrow) = (table.tools_of(&wide, "reports"), table.tools_of(&narrow, "reports"));
        for access in [&wide, &narrow] {
            assert!(!access.has("a") && !access.has_resource("a") && !access.has_prompt("b"), "{round}");
        }
        assert!(wide.has_prompt("a") && wide.has_prompt("ab") && !narrow.has_prompt("a"), "{round}");
    }
}
