//! Decides which upstreams, tools, prompts and resources a caller may use. The rules and the lists beside a key must
//! both allow a request. A tool may require scopes besides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::access_rules::{
    AccessItem, AccessRules, AccessVerdict, CallerRules, DecisionArguments, ItemRules, RuleDecision,
};
use super::item_patterns::ItemPatterns;
use super::{Caller, Claims, Principal};

/// The lists of one principal's keys. `None` allows all upstreams and tools, and denies no tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrincipalAccess {
    /// `FILE:LINE` of the first key, for operators.
    pub line: Arc<str>,
    pub upstreams: Option<BTreeSet<Arc<str>>>,
    pub tools: Option<ToolLists>,
    pub denied: Option<ToolLists>,
}

/// Patterns for client-visible tool names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolLists {
    Everywhere(ItemPatterns),
    /// Of an upstream without a list, no tool.
    ByUpstream(BTreeMap<Arc<str>, ItemPatterns>),
}

impl ToolLists {
    fn have(&self, upstream: &str, tool: &str) -> bool {
        match self {
            Self::Everywhere(patterns) => patterns.fit(tool),
            Self::ByUpstream(lists) => lists.get(upstream).is_some_and(|patterns| patterns.fit(tool)),
        }
    }
}

impl PrincipalAccess {
    pub fn has_lists_of(&self, other: &Self) -> bool {
        Self { line: Arc::clone(&other.line), ..self.clone() } == *other
    }

    const fn is_free(&self) -> bool {
        self.upstreams.is_none() && self.tools.is_none() && self.denied.is_none()
    }

    fn has_upstream(&self, upstream: &str) -> bool {
        self.upstreams.as_ref().is_none_or(|names| names.contains(upstream))
    }

    fn has_tool(&self, upstream: &str, tool: &str) -> bool {
        self.tools.as_ref().is_none_or(|lists| lists.have(upstream, tool))
            && !self.denied.as_ref().is_some_and(|lists| lists.have(upstream, tool))
    }
}

/// The scopes that calls of some tools require, all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolScopes {
    /// `FILE:LINE` of the block, for operators.
    pub line: Arc<str>,
    pub patterns: ItemPatterns,
    pub scopes: BTreeSet<Arc<str>>,
}

/// The reason for a decision, with the `FILE:LINE` that decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// There are no rules, and nothing is narrowed.
    Nothing,
    UnknownCaller,
    Rule(Arc<str>),
    EndOfRules,
    /// The lists beside the principal's keys.
    Key(Arc<str>),
    ToolScopes(Arc<str>),
}

impl DecidedBy {
    pub fn line(&self) -> Option<&str> {
        match self {
            Self::Rule(line) | Self::Key(line) | Self::ToolScopes(line) => Some(line),
            Self::Nothing | Self::UnknownCaller | Self::EndOfRules => None,
        }
    }
}

/// The configuration's part that withholds an upstream from a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WithheldBy {
    /// The lists of the caller's credential, or the lack of a configured credential.
    Lists,
    Rules,
    /// Rules, but not from a token with one of these scopes.
    Scopes(BTreeSet<Arc<str>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessDecision {
    pub verdict: AccessVerdict,
    pub by: DecidedBy,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrincipalAccessTable {
    pub own: HashMap<Principal, Arc<PrincipalAccess>>,
    rules: Arc<AccessRules>,
    /// By upstream; the first block that matches a tool counts.
    scopes: HashMap<Arc<str>, Arc<[ToolScopes]>>,
    /// Whether a list of `own` names upstreams.
    has_upstream_lists: bool,
    memo: AccessMemo,
}

#[derive(Clone, Debug, Default)]
pub struct ToolAccess {
    /// For `own`.
    upstream: Arc<str>,
    claims: Option<Arc<Claims>>,
    own: Option<Arc<PrincipalAccess>>,
    rules: Option<Arc<CallerAccess>>,
    scopes: Option<Arc<[ToolScopes]>>,
    /// Whether the configuration has no credential of the caller.
    is_unknown: bool,
}

impl PrincipalAccessTable {
    pub fn new(
        own: HashMap<Principal, PrincipalAccess>,
        rules: AccessRules,
        scopes: HashMap<Arc<str>, Vec<ToolScopes>>,
    ) -> Self {
        let has_upstream_lists = own.values().any(|its| its.upstreams.is_some());
        let own = own.into_iter().filter(|(_, its)| !its.is_free());
        let scopes = scopes.into_iter().filter(|(_, blocks)| !blocks.is_empty());
        Self {
            own: own.map(|(principal, its)| (principal, Arc::new(its))).collect(),
            rules: Arc::new(rules),
            scopes: scopes.map(|(upstream, blocks)| (upstream, blocks.into())).collect(),
            has_upstream_lists,
            memo: AccessMemo::default(),
        }
    }

    pub fn rules(&self) -> &AccessRules {
        &self.rules
    }

    /// Whether some callers may not use some item of a server that others may use.
    pub fn withholds_items(&self) -> bool {
        !self.rules.rules.is_empty() || self.has_upstream_lists
    }

    /// The same for a server's tools, which keys and scopes narrow besides.
    pub fn withholds_tools(&self, upstream: &str) -> bool {
        self.withholds_items() || !self.own.is_empty() || self.scopes.contains_key(upstream)
    }

    /// The scopes that a tool requires, or for which a rule allows something.
    pub fn scopes(&self) -> impl Iterator<Item = &Arc<str>> {
        let of_tools = self.scopes.values().flat_map(|blocks| blocks.iter()).flat_map(|block| &block.scopes);
        let of_rules = self.rules.rules.iter().filter(|rule| rule.allow).flat_map(|rule| &rule.who.scopes);
        of_tools.chain(of_rules)
    }

    pub fn has_upstream(&self, caller: &Caller, upstream: &str) -> bool {
        self.upstream_withheld_by(caller, upstream).is_none()
    }

    pub fn upstream_withheld_by(&self, caller: &Caller, upstream: &str) -> Option<WithheldBy> {
        let AccessDecision { verdict, by } = self.upstream(caller, upstream);
        match verdict {
            AccessVerdict::Allowed => None,
            AccessVerdict::NeedsScopes(scopes) => Some(WithheldBy::Scopes(scopes)),
            AccessVerdict::Denied if matches!(by, DecidedBy::Key(_)) => Some(WithheldBy::Lists),
            AccessVerdict::Denied => Some(WithheldBy::Rules),
        }
    }

    pub fn upstream(&self, caller: &Caller, upstream: &str) -> AccessDecision {
        if let Some(own) = self.own.get(&caller.principal).filter(|own| !own.has_upstream(upstream)) {
            return AccessDecision { verdict: AccessVerdict::Denied, by: DecidedBy::Key(Arc::clone(&own.line)) };
        }
        let rules = self.caller_access(caller, upstream);
        rules.map_or_else(AccessDecision::free, |rules| AccessDecision::of_rules(rules.upstream()))
    }

    pub fn tools_of(&self, caller: &Caller, upstream: &str) -> ToolAccess {
        let own = self.own.get(&caller.principal).cloned();
        ToolAccess {
            upstream: if own.is_some() { Arc::from(upstream) } else { Arc::default() },
            claims: caller.claims.clone(),
            own,
            rules: self.caller_access(caller, upstream),
            scopes: self.scopes.get(upstream).cloned(),
            is_unknown: false,
        }
    }

    /// Whether a caller may use an upstream and an item of it, with any arguments.
    pub fn has_item(&self, caller: &Caller, upstream: &str, item: AccessItem<'_>) -> bool {
        let decided = || self.tools_of(caller, upstream).decision(item, DecisionArguments::Any).verdict;
        self.has_upstream(caller, upstream) && decided() == AccessVerdict::Allowed
    }

    /// Decides about an item, and about its upstream.
    pub fn decision(
        &self,
        caller: &Caller,
        upstream: &str,
        item: AccessItem<'_>,
        arguments: DecisionArguments<'_>,
    ) -> AccessDecision {
        let at_upstream = self.upstream(caller, upstream);
        match at_upstream.verdict {
            AccessVerdict::Allowed => self.tools_of(caller, upstream).decision(item, arguments),
            AccessVerdict::Denied | AccessVerdict::NeedsScopes(_) => at_upstream,
        }
    }

    fn caller_access(&self, caller: &Caller, upstream: &str) -> Option<Arc<CallerAccess>> {
        (!self.rules.rules.is_empty()).then(|| self.memo.of(&self.rules, caller, upstream))
    }
}

impl AccessDecision {
    const fn free() -> Self {
        Self { verdict: AccessVerdict::Allowed, by: DecidedBy::Nothing }
    }

    /// For a principal that has no credential in the configuration.
    pub(crate) const fn unknown_caller() -> Self {
        Self { verdict: AccessVerdict::Denied, by: DecidedBy::UnknownCaller }
    }

    fn of_rules(decided: RuleDecision) -> Self {
        Self { verdict: decided.verdict, by: decided.line.map_or(DecidedBy::EndOfRules, DecidedBy::Rule) }
    }
}

impl ToolAccess {
    #[must_use]
    pub(crate) fn none() -> Self {
        Self { is_unknown: true, ..Self::default() }
    }

    /// Whether some tools are withheld, or require scopes: only listed names may then reach the server.
    pub fn is_narrowed(&self) -> bool {
        self.is_unknown
            || self.rules.is_some()
            || self.scopes.is_some()
            || self.own.as_ref().is_some_and(|own| own.tools.is_some() || own.denied.is_some())
    }

    /// Whether some prompts or resources are withheld.
    pub const fn narrows_others(&self) -> bool {
        self.is_unknown || self.rules.is_some()
    }

    /// Whether a decision may depend on the arguments of a call.
    pub fn reads_arguments(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.reads_arguments())
    }

    /// Whether a tool is listed: with some arguments, or with another token that has the tool's scopes.
    pub fn has(&self, tool: &str) -> bool {
        let decision = self.decision(AccessItem::Tool(tool), DecisionArguments::Any);
        match decision.verdict {
            AccessVerdict::Allowed => true,
            AccessVerdict::Denied => false,
            AccessVerdict::NeedsScopes(_) => matches!(decision.by, DecidedBy::ToolScopes(_)),
        }
    }

    pub fn has_prompt(&self, name: &str) -> bool {
        self.decision(AccessItem::Prompt(name), DecisionArguments::Any).verdict == AccessVerdict::Allowed
    }

    pub fn has_resource(&self, uri: &str) -> bool {
        self.decision(AccessItem::Resource(uri), DecisionArguments::Any).verdict == AccessVerdict::Allowed
    }

    /// Decides about an item of an upstream that the caller may use.
    pub fn decision(&self, item: AccessItem<'_>, arguments: DecisionArguments<'_>) -> AccessDecision {
        if self.is_unknown {
            return AccessDecision::unknown_caller();
        }
        if let (AccessItem::Tool(tool), Some(own)) = (item, &self.own)
            && !own.has_tool(&self.upstream, tool)
        {
            return AccessDecision { verdict: AccessVerdict::Denied, by: DecidedBy::Key(Arc::clone(&own.line)) };
        }
        let decided = match &self.rules {
            Some(rules) => AccessDecision::of_rules(rules.decision(item, arguments)),
            None => match &self.own {
                Some(own) => AccessDecision { by: DecidedBy::Key(Arc::clone(&own.line)), ..AccessDecision::free() },
                None => AccessDecision::free(),
            },
        };
        match (item, decided.verdict) {
            (AccessItem::Tool(tool), AccessVerdict::Allowed) => self.with_scopes(tool, decided.by),
            (AccessItem::Tool(tool), AccessVerdict::NeedsScopes(mut scopes)) => {
                scopes.extend(self.required(tool).into_iter().flat_map(|block| &block.scopes).cloned());
                AccessDecision { verdict: AccessVerdict::NeedsScopes(scopes), by: decided.by }
            }
            (_, verdict) => AccessDecision { verdict, by: decided.by },
        }
    }

    fn required(&self, tool: &str) -> Option<&ToolScopes> {
        let mut blocks = self.scopes.iter().flat_map(|blocks| blocks.iter());
        blocks.find(|block| block.patterns.fit(tool))
    }

    /// Allows a tool if the caller has all scopes of its block.
    fn with_scopes(&self, tool: &str, by: DecidedBy) -> AccessDecision {
        let held = self.claims.as_ref().map(|claims| &claims.scopes);
        let lacks = |block: &&ToolScopes| !held.is_some_and(|held| block.scopes.is_subset(held));
        let Some(block) = self.required(tool).filter(lacks) else {
            return AccessDecision { verdict: AccessVerdict::Allowed, by };
        };
        // Only the holder of a token can get another one.
        let is_token = self.claims.as_ref().is_some_and(|claims| claims.issuer.is_some());
        let verdict = if is_token { AccessVerdict::NeedsScopes(block.scopes.clone()) } else { AccessVerdict::Denied };
        AccessDecision { verdict, by: DecidedBy::ToolScopes(Arc::clone(&block.line)) }
    }
}

/// Approximate bound on the memory of all entries, beyond which all are dropped.
const BYTES_MAX: usize = 32 << 20;
const CALLER_BYTES: usize = 1_024;
const ITEM_BYTES: usize = 128;
/// The rules of longer names are chosen for each call.
const NAME_BYTES_MAX: usize = 256;

/// The entries by principal and credential, then by upstream.
type CallerEntries = HashMap<(Principal, usize), HashMap<Arc<str>, Arc<CallerAccess>>>;

/// Caches the rules about each caller and each item until the rules are replaced.
#[derive(Default)]
struct AccessMemo {
    callers: RwLock<CallerEntries>,
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct CallerAccess {
    rules: Arc<AccessRules>,
    own: CallerRules,
    upstream: RuleDecision,
    reads_arguments: bool,
    /// Held, so that no other claims get their address, which is part of the key.
    _claims: Option<Arc<Claims>>,
    tools: ItemEntries,
    prompts: ItemEntries,
    resources: ItemEntries,
    bytes: Arc<AtomicUsize>,
}

type ItemEntries = RwLock<HashMap<Box<str>, Arc<ItemRules>>>;

impl AccessMemo {
    fn of(&self, rules: &Arc<AccessRules>, caller: &Caller, upstream: &str) -> Arc<CallerAccess> {
        let claims = caller.claims.as_ref().map_or(0, |claims| Arc::as_ptr(claims).addr());
        let key = (caller.principal.clone(), claims);
        if let Some(known) = self.callers.read().get(&key).and_then(|here| here.get(upstream)) {
            return Arc::clone(known);
        }
        let own = rules.for_caller(caller, upstream);
        let of_claims = caller.claims.as_ref().map_or(0, |claims| claims.bytes());
        let size = CALLER_BYTES + of_claims + own.bytes();
        let made = Arc::new(CallerAccess {
            rules: Arc::clone(rules),
            upstream: own.upstream(rules),
            reads_arguments: own.reads_arguments(rules),
            own,
            _claims: caller.claims.clone(),
            tools: ItemEntries::default(),
            prompts: ItemEntries::default(),
            resources: ItemEntries::default(),
            bytes: Arc::clone(&self.bytes),
        });
        let mut callers = self.callers.write();
        if self.bytes.load(Ordering::Relaxed) + size > BYTES_MAX {
            callers.clear();
            self.bytes.store(0, Ordering::Relaxed);
        }
        self.bytes.fetch_add(size, Ordering::Relaxed);
        callers.entry(key).or_default().insert(Arc::from(upstream), Arc::clone(&made));
        made
    }
}

impl CallerAccess {
    fn upstream(&self) -> RuleDecision {
        self.upstream.clone()
    }

    const fn reads_arguments(&self) -> bool {
        self.reads_arguments
    }

    fn decision(&self, item: AccessItem<'_>, arguments: DecisionArguments<'_>) -> RuleDecision {
        let (entries, name) = match item {
            AccessItem::Tool(name) => (&self.tools, name),
            AccessItem::Prompt(name) => (&self.prompts, name),
            AccessItem::Resource(name) => (&self.resources, name),
        };
        if let Some(known) = entries.read().get(name) {
            return known.decide(&self.rules, arguments);
        }
        let made = self.own.about(&self.rules, item);
        let decision = made.decide(&self.rules, arguments);
        let size = ITEM_BYTES + name.len() + made.bytes();
        if name.len() <= NAME_BYTES_MAX && self.bytes.load(Ordering::Relaxed) + size <= BYTES_MAX {
            self.bytes.fetch_add(size, Ordering::Relaxed);
            entries.write().insert(name.into(), Arc::new(made));
        }
        decision
    }
}

/// A clone has the same rules and an empty cache.
impl Clone for AccessMemo {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for AccessMemo {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AccessMemo {}

debug_members!(AccessMemo);

#[cfg(test)]
mod tests;
