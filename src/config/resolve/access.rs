//! Resolves the rights of callers: `[[auth.rules]]`, `[auth.groups]`, the lists beside keys and the scopes of tools.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use wildmatch::WildMatch;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::raw::{AuthMode, RawAccessRule, RawApiKey, RawApiKeyValues, RawConfig, RawIssuer, RawUpstream};
use super::super::section::{ListOrTable, LocatedValue, NamedLists};
use super::unknown_upstream;
use crate::server::client_certificates::{CertificateBlock, block_of};
use crate::task::{
    AccessRule, AccessRules, GroupMembers, ItemPatterns, Principal, PrincipalAccess, PrincipalAccessTable,
    RuleArgument, RuleItems, RuleWho, ToolLists, ToolScopes,
};

/// The most rules: all are compared with each other, and with each new caller.
const RULES_MAX: usize = 1_000;
/// The prefix of a group of tokens in `[auth.groups]`.
const GROUP: &str = "group:";

/// The names that the file gives to upstreams and callers.
struct KnownNames<'a> {
    upstreams: &'a BTreeSet<Arc<str>>,
    keys: BTreeSet<Principal>,
    groups: BTreeSet<Arc<str>>,
    scopes: BTreeSet<Arc<str>>,
    certificates: Vec<CertificateBlock>,
    /// Whether callers may have tokens, with any scopes.
    has_tokens: bool,
    /// Whether those may have groups, which are then any.
    tokens_have_groups: bool,
    token_prefixes: Vec<Principal>,
    asks_for_credentials: bool,
}

pub(super) fn resolve(
    raw: &RawConfig,
    upstreams: &BTreeSet<Arc<str>>,
    certificates: &[CertificateBlock],
    report: &mut MistakeCollector,
) -> PrincipalAccessTable {
    let keys = raw.api_keys.iter().map(|key| &key.values);
    let blocks = raw.certificates.iter().map(|block| &block.values);
    let groups = keys.clone().flat_map(|key| texts(key.groups.as_ref()));
    let groups = groups.chain(blocks.clone().flat_map(|block| texts(block.groups.as_ref())));
    let named = raw.auth.groups.iter().flat_map(|groups| &groups.value).map(|group| Arc::from(group.value.0.as_str()));
    let token_prefix = |one: &RawIssuer| {
        let claim = one.values.owner_claim.as_ref().map(|claim| claim.value.as_str());
        Some(Principal::prefix_of_issuer(&one.values.issuer.as_ref()?.value, claim))
    };
    let has_tokens = raw.auth.mode.value.contains(&AuthMode::Tokens);
    let known = KnownNames {
        upstreams,
        keys: keys.clone().filter_map(|key| Some(Principal::holding(&key.id.as_ref()?.value))).collect(),
        groups: groups.chain(named).collect(),
        scopes: keys
            .flat_map(|key| texts(key.scopes.as_ref()))
            .chain(blocks.flat_map(|block| texts(block.scopes.as_ref())))
            .collect(),
        certificates: certificates.to_vec(),
        has_tokens,
        tokens_have_groups: has_tokens && raw.issuers.iter().any(|one| one.values.groups.is_some()),
        token_prefixes: raw.issuers.iter().filter_map(token_prefix).collect(),
        asks_for_credentials: !raw.auth.mode.value.contains(&AuthMode::None),
    };
    let groups = resolve_groups(raw, &known, report);
    let rules = AccessRules { rules: resolve_rules(raw, &known, &groups, report), groups };
    for key in &raw.api_keys {
        check_upstreams(&key.values, known.upstreams, report);
    }
    let read = |key: &RawApiKey, report: &MistakeCollector| PrincipalAccess {
        line: line(&key.location, report),
        ..lists(&key.values)
    };
    let named = "`upstreams`, `tools` or `deny`";
    let own = by_principal(&raw.api_keys, named, read, PrincipalAccess::has_lists_of, report);
    let scopes = raw.upstreams.iter().map(|raw| (Arc::from(raw.name.as_str()), tool_scopes(raw, &known, report)));
    PrincipalAccessTable::new(own, rules, scopes.collect())
}

pub(super) fn texts(list: Option<&LocatedValue<Vec<LocatedValue<String>>>>) -> BTreeSet<Arc<str>> {
    list.iter().flat_map(|list| &list.value).map(|one| Arc::from(one.value.as_str())).collect()
}

fn resolve_groups(raw: &RawConfig, known: &KnownNames<'_>, report: &mut MistakeCollector) -> Vec<GroupMembers> {
    let mut groups = Vec::new();
    for LocatedValue { value: (name, members), .. } in raw.auth.groups.iter().flat_map(|groups| &groups.value) {
        let (mut ids, mut claimed) = (BTreeSet::new(), BTreeSet::new());
        for member in members {
            if let Some(group) = member.value.strip_prefix(GROUP) {
                claimed.insert(Arc::from(group));
            } else if let Some(id) = known.principal(member, report) {
                ids.insert(id);
            }
        }
        groups.push(GroupMembers { name: Arc::from(name.as_str()), ids, groups: claimed });
    }
    groups
}

fn resolve_rules(
    raw: &RawConfig,
    known: &KnownNames<'_>,
    groups: &[GroupMembers],
    report: &mut MistakeCollector,
) -> Vec<AccessRule> {
    if let Some(late) = raw.access_rules.get(RULES_MAX) {
        report.mistake(&late.location, format!("there are more than {RULES_MAX} rules; write patterns, or groups"));
        return Vec::new();
    }
    let rules: Vec<AccessRule> = raw.access_rules.iter().map(|raw| resolve_rule(raw, known, report)).collect();
    for (at, rule) in rules.iter().enumerate() {
        if let Some(early) = rules[..at].iter().position(|early| early.precludes(rule, groups)) {
            let line = raw.access_rules[early].location.line;
            report
                .warning(&raw.access_rules[at].location, format!("never decides: the rule in line {line} fits first"));
        }
    }
    if let Some(first) = raw.access_rules.first().filter(|_| rules.iter().all(|rule| !rule.allow)) {
        report.warning(&first.location, "no rule allows anything, so every request is denied");
    }
    rules
}

fn resolve_rule(raw: &RawAccessRule, known: &KnownNames<'_>, report: &mut MistakeCollector) -> AccessRule {
    let values = &raw.values;
    let place = raw.location.below("allow");
    if values.allow.is_none() && !report.has_mistake_at(&place) {
        let location = ConfigLocation { key: place.key, ..raw.location.clone() };
        report.mistake(&location, "is missing; write `true` or `false`");
    }
    let allow = values.allow.as_ref().is_some_and(|allow| allow.value);
    let patterns = |list: &Option<_>| list.as_ref().map(|list| ItemPatterns::new(texts(Some(list))));
    let resources = match allow {
        true => patterns(&values.resources),
        false => values.resources.as_ref().map(|list| ItemPatterns::in_any_case(texts(Some(list)))),
    };
    let items = RuleItems { tools: patterns(&values.tools), prompts: patterns(&values.prompts), resources };
    for list in [&values.prompts, &values.resources].into_iter().flatten().filter(|_| values.arguments.is_some()) {
        report.mistake(&list.location, "has no effect beside `arguments`, which tools alone have; write another rule");
    }
    AccessRule {
        line: line(&raw.location, report),
        who: resolve_who(raw, known, report),
        upstreams: values.upstreams.as_ref().map(|list| rule_upstreams(&list.value, known, report)),
        items,
        arguments: values.arguments.iter().flat_map(|lists| &lists.value).map(argument).collect(),
        allow,
    }
}

/// `FILE:LINE`
fn line(location: &ConfigLocation, report: &MistakeCollector) -> Arc<str> {
    let file = location.file.clone().unwrap_or_else(|| report.file());
    Arc::from(format!("{file}:{}", location.line))
}

fn argument(
    LocatedValue { value: (name, patterns), .. }: &LocatedValue<(String, Vec<LocatedValue<String>>)>,
) -> RuleArgument {
    let patterns = patterns.iter().map(|one| Arc::from(one.value.as_str())).collect();
    RuleArgument { name: Arc::from(name.as_str()), patterns: ItemPatterns::new(patterns) }
}

fn resolve_who(raw: &RawAccessRule, known: &KnownNames<'_>, report: &mut MistakeCollector) -> RuleWho {
    let who = &raw.who;
    let is_empty = who.ids.is_none() && who.groups.is_none() && who.scopes.is_none() && who.issuer.is_none();
    // A key that could not be read makes it look empty.
    let is_misread =
        |location: &ConfigLocation| report.has_mistake_in(&raw.location.key) || report.has_mistake_below(&location.key);
    if let Some(location) = raw.who_location.as_ref().filter(|location| is_empty && !is_misread(location)) {
        report.mistake(location, "is empty; leave it out for a rule about every caller");
    }
    let ids = who.ids.iter().flat_map(|list| &list.value);
    let ids = ids.filter_map(|id| known.principal(id, report)).collect();
    for group in who.groups.iter().flat_map(|list| &list.value) {
        if !known.tokens_have_groups && !known.groups.contains(group.value.as_str()) {
            let nor_issuer = if known.has_tokens { ", and no issuer has `groups`" } else { "" };
            let name = &group.value;
            let message = format!("never fits: no key has the group {name:?}, and [auth.groups] has none{nor_issuer}");
            report.mistake(&group.location, message);
        }
    }
    for scope in who.scopes.iter().flat_map(|list| &list.value) {
        known.check_scope(scope, report);
    }
    let is_foreign = |issuer: &&String| !known.token_prefixes.iter().any(|owner| owner.is_of(issuer));
    if let Some(issuer) = who.issuer.as_ref().filter(|_| !known.has_tokens) {
        report.warning(&issuer.location, "never fits: callers have no tokens");
    } else if let Some(list) = &who.issuer
        && let Some(other) = list.value.iter().find(is_foreign)
    {
        let message = format!("never fits: no [[auth.issuers]] has the issuer {other:?}, byte for byte");
        report.mistake(&list.location, message);
    }
    let issuers = who.issuer.iter().flat_map(|list| &list.value).map(|one| Arc::from(one.as_str())).collect();
    RuleWho { ids, issuers, groups: texts(who.groups.as_ref()), scopes: texts(who.scopes.as_ref()) }
}

impl KnownNames<'_> {
    /// A principal; `None` for a key, a certificate or an issuer that does not exist, which is noted.
    fn principal(&self, id: &LocatedValue<String>, report: &mut MistakeCollector) -> Option<Principal> {
        let principal = Principal::new(&id.value);
        if principal.key_id().is_some() && !self.keys.contains(&principal) {
            report.mistake(&id.location, format!("there is no key with the id of {:?}", id.value));
            return None;
        }
        if let Some(name) = principal.certificate_name()
            && block_of(&self.certificates, name).is_none()
        {
            report.mistake(&id.location, format!("never fits: no `san` in [[auth.certificates]] matches {name:?}"));
            return None;
        }
        if principal.has_token() && !self.has_tokens {
            report.warning(&id.location, "never fits: callers have no tokens");
        } else if principal.has_token()
            && let Some(first) = self.token_prefixes.first()
            && !self.token_prefixes.iter().any(|owner| principal.as_str().starts_with(owner.as_str()))
        {
            // A rule that denies would deny to no one (SEC-97).
            let of_issuer = self.token_prefixes.iter().find(|owner| owner.issuer() == principal.issuer());
            let begins = of_issuer.unwrap_or(first).as_str();
            report.mistake(&id.location, format!("never fits: no issuer's tokens belong to it; write `{begins}NAME`"));
            return None;
        } else if self.asks_for_credentials && !principal.has_credential() {
            report.warning(&id.location, "never fits: each caller needs a credential of `auth.mode`");
        }
        Some(principal)
    }

    fn check_scope(&self, scope: &LocatedValue<String>, report: &mut MistakeCollector) {
        if !self.has_tokens && !self.scopes.contains(scope.value.as_str()) {
            let message = format!("never fits: no key has the scope {:?}; write `scopes` beside a key", scope.value);
            report.mistake(&scope.location, message);
        }
    }
}

fn rule_upstreams(
    patterns: &[LocatedValue<String>],
    known: &KnownNames<'_>,
    report: &mut MistakeCollector,
) -> BTreeSet<Arc<str>> {
    let mut found = BTreeSet::new();
    for pattern in patterns {
        let fits = WildMatch::new(&pattern.value);
        let before = found.len();
        found.extend(known.upstreams.iter().filter(|name| fits.matches(name)).cloned());
        if found.len() == before && !known.upstreams.iter().any(|name| fits.matches(name)) {
            report.mistake(&pattern.location, unknown_upstream(&pattern.value, known.upstreams));
        }
    }
    found
}

/// The scopes of an upstream's tools; of several blocks that match a tool, the first counts.
fn tool_scopes(raw: &RawUpstream, known: &KnownNames<'_>, report: &mut MistakeCollector) -> Vec<ToolScopes> {
    let mut blocks = Vec::new();
    for tool in raw.tools.iter().filter(|tool| !tool.own.hide.value) {
        let (Some(scopes), Some(pattern)) = (&tool.own.scopes, &tool.own.pattern) else { continue };
        for scope in &scopes.value {
            known.check_scope(scope, report);
        }
        // Clients see the new name.
        let name = tool.own.rename.as_ref().unwrap_or(pattern);
        let patterns = ItemPatterns::new([Arc::from(name.value.as_str())].into());
        blocks.push(ToolScopes { line: line(&tool.location, report), patterns, scopes: texts(Some(scopes)) });
    }
    blocks
}

/// The settings of each principal with a key. During a rotation two keys belong to one principal, so theirs must agree.
pub(super) fn by_principal<T>(
    keys: &[RawApiKey],
    settings: &str,
    read: impl Fn(&RawApiKey, &MistakeCollector) -> T,
    agree: impl Fn(&T, &T) -> bool,
    report: &mut MistakeCollector,
) -> HashMap<Principal, T> {
    let mut own: HashMap<Principal, (T, &RawApiKey)> = HashMap::new();
    for key in keys {
        let Some(id) = &key.values.id else { continue };
        let its = read(key, report);
        match own.get(&Principal::holding(&id.value)) {
            Some((before, first)) if !agree(before, &its) => {
                let line = first.location.line_seen_from(&key.location, &report.file());
                let message =
                    format!("{:?} has a key in {line} with other {settings}; write the same at both", id.value);
                report.mistake(&key.location, message);
            }
            Some(_) => (),
            None => drop(own.insert(Principal::holding(&id.value), (its, key))),
        }
    }
    own.into_iter().map(|(principal, (its, _))| (principal, its)).collect()
}

/// A misspelt name would lock a team out, or leave it an upstream that was meant to be withheld.
fn check_upstreams(raw: &RawApiKeyValues, known: &BTreeSet<Arc<str>>, report: &mut MistakeCollector) {
    if report.has_mistake("upstreams") {
        return;
    }
    for named in raw.upstreams.iter().flat_map(|list| &list.value) {
        if !known.contains(named.value.as_str()) {
            report.mistake(&named.location, unknown_upstream(&named.value, known));
        }
    }
    let own = raw.upstreams.as_ref().map(|list| texts(Some(list)));
    for LocatedValue { value: (name, _), location } in tables(raw) {
        if !known.contains(name.as_str()) {
            report.mistake(location, unknown_upstream(name, known));
        } else if own.as_ref().is_some_and(|own| !own.contains(name.as_str())) {
            report.mistake(location, format!("never applies: `{name}` is not among the `upstreams` of the key"));
        }
    }
}

fn tables(raw: &RawApiKeyValues) -> impl Iterator<Item = &LocatedValue<(String, Vec<LocatedValue<String>>)>> {
    [&raw.tools, &raw.deny].into_iter().flatten().flat_map(|written| match &written.value {
        ListOrTable::Table(lists) => lists.as_slice(),
        ListOrTable::List(_) => &[],
    })
}

fn lists(raw: &RawApiKeyValues) -> PrincipalAccess {
    let patterns = |list: &[LocatedValue<String>]| {
        ItemPatterns::new(list.iter().map(|one| Arc::from(one.value.as_str())).collect())
    };
    let by_upstream = |lists: &NamedLists| -> BTreeMap<Arc<str>, ItemPatterns> {
        lists.iter().map(|one| (Arc::from(one.value.0.as_str()), patterns(&one.value.1))).collect()
    };
    let resolved = |written: &Option<LocatedValue<ListOrTable>>| {
        written.as_ref().map(|written| match &written.value {
            ListOrTable::List(list) => ToolLists::Everywhere(patterns(list)),
            ListOrTable::Table(lists) => ToolLists::ByUpstream(by_upstream(lists)),
        })
    };
    PrincipalAccess {
        line: Arc::default(),
        upstreams: raw.upstreams.as_ref().map(|list| texts(Some(list))),
        tools: resolved(&raw.tools),
        denied: resolved(&raw.deny),
    }
}
