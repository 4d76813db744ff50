//! Remembers which rules are about a caller, and about each item, until the rules are replaced.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::access_rules::{AccessItem, AccessRules, CallerRules, DecisionArguments, ItemRules, RuleDecision};
use super::{Caller, Claims, Principal};

/// The memory of all entries with the claims that they hold, about. When it is full, all entries are dropped, and are made
/// again when they are needed: a principal that fills it with names costs others that.
const BYTES_MAX: usize = 32 << 20;
const CALLER_BYTES: usize = 1_024;
const ITEM_BYTES: usize = 128;
const CANDIDATE_BYTES: usize = 16;
/// The rules of longer names are chosen for each call.
const NAME_BYTES_MAX: usize = 256;

/// The entries by principal and credential, then by upstream.
type CallerEntries = HashMap<(Principal, usize), HashMap<Arc<str>, Arc<CallerAccess>>>;

#[derive(Default)]
pub(super) struct AccessMemo {
    callers: RwLock<CallerEntries>,
    bytes: Arc<AtomicUsize>,
}

/// The rules about a caller at one upstream.
#[derive(Debug)]
pub(super) struct CallerAccess {
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
    pub(super) fn of(&self, rules: &Arc<AccessRules>, caller: &Caller, upstream: &str) -> Arc<CallerAccess> {
        let claims = caller.claims.as_ref().map_or(0, |claims| Arc::as_ptr(claims).addr());
        let key = (caller.principal.clone(), claims);
        if let Some(known) = self.callers.read().get(&key).and_then(|here| here.get(upstream)) {
            return Arc::clone(known);
        }
        let own = rules.for_caller(caller, upstream);
        let of_claims = caller.claims.as_ref().map_or(0, |claims| claims.bytes());
        let size = CALLER_BYTES + of_claims + own.len() * CANDIDATE_BYTES;
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
    pub(super) fn upstream(&self) -> RuleDecision {
        self.upstream.clone()
    }

    pub(super) const fn reads_arguments(&self) -> bool {
        self.reads_arguments
    }

    pub(super) fn decision(&self, item: AccessItem<'_>, arguments: DecisionArguments<'_>) -> RuleDecision {
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
        let size = ITEM_BYTES + name.len() + made.len() * CANDIDATE_BYTES;
        if name.len() <= NAME_BYTES_MAX && self.bytes.load(Ordering::Relaxed) + size <= BYTES_MAX {
            self.bytes.fetch_add(size, Ordering::Relaxed);
            entries.write().insert(name.into(), Arc::new(made));
        }
        decision
    }
}

/// A copy decides alike, and begins without entries.
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
