//! Decides by an ordered list of rules which tools, prompts and resources a caller may use. The first rule that fits
//! decides; after the last rule, access is denied. The parts of rules that do not depend on a call are compared once:
//! for a caller at an upstream ([`CallerRules`]), and for each item there ([`ItemRules`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::item_patterns::ItemPatterns;
use super::{Caller, Principal};
use crate::wire::Object;

/// A longer argument counts as unclear.
const ARGUMENT_BYTES_MAX: usize = 4_096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    pub rules: Vec<AccessRule>,
    pub groups: Vec<GroupMembers>,
}

/// One group of the configuration. Its members have it beside the groups of their credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMembers {
    pub name: Arc<str>,
    pub ids: BTreeSet<Principal>,
    pub groups: BTreeSet<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// `FILE:LINE`, for operators.
    pub line: Arc<str>,
    pub who: RuleWho,
    /// `None` for all.
    pub upstreams: Option<BTreeSet<Arc<str>>>,
    pub items: RuleItems,
    /// All have to fit. The rule is then about tools alone.
    pub arguments: Vec<RuleArgument>,
    pub allow: bool,
}

/// The callers of a rule. An empty set of names is no condition; of others, the caller needs one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleWho {
    pub ids: BTreeSet<Principal>,
    pub issuers: BTreeSet<Arc<str>>,
    pub groups: BTreeSet<Arc<str>>,
    pub scopes: BTreeSet<Arc<str>>,
}

/// The items of a rule: every item if all three are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleItems {
    pub tools: Option<ItemPatterns>,
    pub prompts: Option<ItemPatterns>,
    pub resources: Option<ItemPatterns>,
}

/// A member of a call's `arguments` that has to be a text, and match one of the patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleArgument {
    pub name: Arc<str>,
    pub patterns: ItemPatterns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessItem<'a> {
    Tool(&'a str),
    Prompt(&'a str),
    Resource(&'a str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    Allowed,
    Denied,
    /// A token with one of these scopes would be allowed.
    NeedsScopes(BTreeSet<Arc<str>>),
}

#[derive(Clone, Copy, Debug)]
pub enum DecisionArguments<'a> {
    /// Decides whether some arguments would be allowed.
    Any,
    These(Option<&'a Object>),
}

/// A verdict, and the line of the rule that decided; `None` after the last rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDecision {
    pub verdict: AccessVerdict,
    pub line: Option<Arc<str>>,
}

/// The rules at one upstream that fit a caller, or would fit if its token had a scope.
#[derive(Clone, Debug, Default)]
pub struct CallerRules(Vec<RuleCandidate>);

/// The rules of [`CallerRules`] about one item, up to the first that decides with any arguments.
#[derive(Clone, Debug, Default)]
pub struct ItemRules(Vec<RuleCandidate>);

#[derive(Clone, Copy, Debug)]
struct RuleCandidate {
    rule: usize,
    lacks_scope: bool,
}

enum ArgumentValue {
    Absent,
    Text(String),
    /// No text, too long, or beside a member that servers might read in its place.
    Unclear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerFit {
    Fits,
    LacksScope,
    Differs,
}

impl AccessRules {
    pub fn for_caller(&self, caller: &Caller, upstream: &str) -> CallerRules {
        let groups = self.groups_of(caller);
        let mut chosen = Vec::new();
        for (rule, tested) in self.rules.iter().enumerate() {
            if tested.upstreams.as_ref().is_some_and(|names| !names.contains(upstream)) {
                continue;
            }
            let fit = tested.who.fit(caller, &groups, tested.allow);
            if fit != CallerFit::Differs {
                chosen.push(RuleCandidate { rule, lacks_scope: fit == CallerFit::LacksScope });
            }
            if fit == CallerFit::Fits && tested.is_final() {
                break;
            }
        }
        CallerRules(chosen)
    }

    /// Whether these rules and others decide alike, even if they are written at other lines.
    pub fn decide_like(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&AccessRule, &AccessRule)| {
            AccessRule { line: Arc::clone(&other.line), ..one.clone() } == *other
        };
        self.groups == other.groups
            && self.rules.len() == other.rules.len()
            && self.rules.iter().zip(&other.rules).all(is_same)
    }

    /// The groups of a caller: from its credential, and from `[auth.groups]`. An issuer may have a group with the name of one of
    /// these, which has its listed members alone (SEC-96).
    fn groups_of<'a>(&'a self, caller: &'a Caller) -> BTreeSet<&'a str> {
        let claims = caller.claims.as_ref();
        let claimed = claims.map(|claims| &claims.groups);
        let has = |members: &&GroupMembers| {
            members.ids.contains(&caller.principal)
                || claimed.is_some_and(|claimed| !claimed.is_disjoint(&members.groups))
        };
        let named = self.groups.iter().filter(has).map(|members| &*members.name);
        let is_token = claims.is_some_and(|claims| claims.issuer.is_some());
        let listed: BTreeSet<_> = self.groups.iter().filter(|_| is_token).map(|members| &*members.name).collect();
        let own = claimed.into_iter().flatten().map(|group| &**group).filter(|group| !listed.contains(group));
        own.chain(named).collect()
    }

    fn decide(&self, candidates: &[RuleCandidate], mut fits: impl FnMut(&AccessRule) -> bool) -> RuleDecision {
        let (mut helpful, mut harmful) = (BTreeSet::new(), BTreeSet::new());
        for candidate in candidates {
            let rule = &self.rules[candidate.rule];
            if !fits(rule) {
                continue;
            }
            if candidate.lacks_scope {
                let scopes = rule.who.scopes.iter().filter(|scope| !harmful.contains(*scope)).cloned();
                if rule.allow {
                    helpful.extend(scopes)
                } else {
                    harmful.extend(scopes.collect::<Vec<_>>())
                }
                continue;
            }
            let verdict = if rule.allow { AccessVerdict::Allowed } else { denied(helpful) };
            return RuleDecision { verdict, line: Some(Arc::clone(&rule.line)) };
        }
        RuleDecision { verdict: denied(helpful), line: None }
    }
}

fn denied(helpful: BTreeSet<Arc<str>>) -> AccessVerdict {
    if helpful.is_empty() { AccessVerdict::Denied } else { AccessVerdict::NeedsScopes(helpful) }
}

impl CallerRules {
    pub fn upstream(&self, rules: &AccessRules) -> RuleDecision {
        rules.decide(&self.0, |rule| rule.allow || rule.is_final())
    }

    pub fn reads_arguments(&self, rules: &AccessRules) -> bool {
        self.0.iter().any(|candidate| !rules.rules[candidate.rule].arguments.is_empty())
    }

    pub fn about(&self, rules: &AccessRules, item: AccessItem<'_>) -> ItemRules {
        let mut chosen = Vec::new();
        for candidate in &self.0 {
            let rule = &rules.rules[candidate.rule];
            if rule.is_about(item) {
                chosen.push(*candidate);
                if !candidate.lacks_scope && rule.arguments.is_empty() {
                    break;
                }
            }
        }
        ItemRules(chosen)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl ItemRules {
    pub fn decide(&self, rules: &AccessRules, arguments: DecisionArguments<'_>) -> RuleDecision {
        let arguments = match arguments {
            DecisionArguments::Any => return rules.decide(&self.0, |rule| rule.allow || rule.arguments.is_empty()),
            DecisionArguments::These(arguments) => arguments,
        };
        // Many rules may be about one argument, which is read once.
        let mut read: Vec<(Arc<str>, ArgumentValue)> = Vec::new();
        rules.decide(&self.0, |rule| {
            rule.arguments.iter().all(|wanted| {
                let known = read.iter().position(|(name, _)| *name == wanted.name);
                let at = known.unwrap_or_else(|| {
                    read.push((Arc::clone(&wanted.name), ArgumentValue::read(arguments, &wanted.name)));
                    read.len() - 1
                });
                read[at].1.fits(&wanted.patterns, rule.allow)
            })
        })
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

impl AccessRule {
    /// Whether no later rule is read once this one fits its caller.
    fn is_final(&self) -> bool {
        self.arguments.is_empty() && self.items == RuleItems::default()
    }

    fn is_about(&self, item: AccessItem<'_>) -> bool {
        let RuleItems { tools, prompts, resources } = &self.items;
        let (patterns, is_tool) = match item {
            AccessItem::Tool(_) => (tools, true),
            AccessItem::Prompt(_) => (prompts, false),
            AccessItem::Resource(_) => (resources, false),
        };
        match (patterns, item) {
            (Some(patterns), AccessItem::Tool(name) | AccessItem::Prompt(name)) => {
                patterns.fit_in_rule(name, self.allow)
            }
            (Some(patterns), AccessItem::Resource(uri)) => patterns.fit_uri(uri, self.allow),
            (None, _) => self.items == RuleItems::default() && (is_tool || self.arguments.is_empty()),
        }
    }

    /// Whether this rule makes `later` unreachable, as far as their texts show.
    pub fn precludes(&self, later: &Self, groups: &[GroupMembers]) -> bool {
        let has_listed_group = || groups.iter().any(|members| self.who.groups.contains(&members.name));
        let items = |wide: &Option<ItemPatterns>, narrow: &Option<ItemPatterns>| match (wide, narrow) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(wide), Some(narrow)) => wide.cover(narrow),
        };
        let upstreams = match (&self.upstreams, &later.upstreams) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(wide), Some(narrow)) => wide.is_superset(narrow),
        };
        let all = RuleItems::default();
        let is_about_more = self.items == all
            || (later.items != all
                && items(&self.items.tools, &later.items.tools)
                && items(&self.items.prompts, &later.items.prompts)
                && items(&self.items.resources, &later.items.resources));
        upstreams
            && (self.arguments.is_empty() || (self.arguments == later.arguments && self.allow == later.allow))
            && self.who.covers(&later.who)
            && is_about_more
            && (!self.allow || later.allow || !has_listed_group())
    }
}

impl RuleWho {
    /// A rule that denies fits a token's own groups, too.
    fn fit(&self, caller: &Caller, groups: &BTreeSet<&str>, allows: bool) -> CallerFit {
        let claims = caller.claims.as_ref();
        let issuer = claims.and_then(|claims| claims.issuer.as_ref());
        let is_claimed = |group: &Arc<str>| !allows && claims.is_some_and(|claims| claims.groups.contains(group));
        let fits = (self.ids.is_empty() || self.ids.contains(&caller.principal))
            && (self.issuers.is_empty() || issuer.is_some_and(|issuer| self.issuers.contains(issuer)))
            && (self.groups.is_empty()
                || self.groups.iter().any(|group| groups.contains(&**group) || is_claimed(group)));
        let has_scope = self.scopes.is_empty() || self.scopes.iter().any(|scope| caller.has_scope(scope));
        match (fits, has_scope) {
            (true, true) => CallerFit::Fits,
            // Only the holder of a token can get another one.
            (true, false) if issuer.is_some() => CallerFit::LacksScope,
            (true | false, _) => CallerFit::Differs,
        }
    }

    fn covers(&self, other: &Self) -> bool {
        fn covers<T: Ord>(wide: &BTreeSet<T>, narrow: &BTreeSet<T>) -> bool {
            wide.is_empty() || (!narrow.is_empty() && wide.is_superset(narrow))
        }
        covers(&self.ids, &other.ids)
            && covers(&self.issuers, &other.issuers)
            && covers(&self.groups, &other.groups)
            && covers(&self.scopes, &other.scopes)
    }
}

impl ArgumentValue {
    fn read(arguments: Option<&Object>, name: &str) -> Self {
        let Some(arguments) = arguments else { return Self::Absent };
        if arguments.case_variant(&[name]).is_some() {
            return Self::Unclear;
        }
        match arguments.get_str(name) {
            Some(text) if text.len() <= ARGUMENT_BYTES_MAX => Self::Text(text.into_owned()),
            None if !arguments.contains(name) => Self::Absent,
            Some(_) | None => Self::Unclear,
        }
    }

    fn fits(&self, patterns: &ItemPatterns, allows: bool) -> bool {
        match self {
            Self::Absent => false,
            Self::Text(text) => patterns.fit(text),
            Self::Unclear => !allows,
        }
    }
}

#[cfg(test)]
mod tests;
