//! Remembers the tools, prompts and resources that each session asked its server for.
//!
//! If a client sends an event id, a server may repeat events of any of these requests, and only the server knows which
//! request an id belongs to. So a client that lost access to one of the items may send no event id.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::SessionFaceState;
use super::session_cache::ClientSession;
use crate::task::{AccessItem, AccessVerdict, Caller, DecisionArguments, Timestamp};
use crate::wire::envelope::Request;
use crate::wire::method;

/// Items of all sessions. At this number all items are forgotten.
const ITEMS_MAX: usize = 100_000;
/// Items of one session.
const OF_SESSION_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CalledItem {
    Tool(Arc<str>),
    Prompt(Arc<str>),
    Resource(Arc<str>),
}

impl CalledItem {
    fn of(request: &Request) -> Option<Self> {
        let name = |key| request.params.object()?.get_str(key).map(|name| Arc::from(&*name));
        match &*request.method {
            method::TOOLS_CALL => name("name").map(Self::Tool),
            method::PROMPTS_GET => name("name").map(Self::Prompt),
            method::RESOURCES_READ => name("uri").map(Self::Resource),
            _ => None,
        }
    }

    fn as_access_item(&self) -> AccessItem<'_> {
        match self {
            Self::Tool(name) => AccessItem::Tool(name),
            Self::Prompt(name) => AccessItem::Prompt(name),
            Self::Resource(uri) => AccessItem::Resource(uri),
        }
    }
}

/// By session.
#[derive(Debug)]
pub(super) struct CalledItems(Mutex<KnownItems>);

#[derive(Debug)]
struct KnownItems {
    by_session: HashMap<u128, SessionItems>,
    count: usize,
    /// Some items of sessions that were opened before this time may be unknown.
    complete_since: Timestamp,
}

#[derive(Debug, Default)]
struct SessionItems {
    items: BTreeSet<CalledItem>,
    has_more: bool,
}

impl CalledItems {
    /// `began`: when this process did.
    pub(super) fn new(began: Timestamp) -> Self {
        Self(Mutex::new(KnownItems { by_session: HashMap::new(), count: 0, complete_since: began }))
    }

    fn note(&self, nonce: u128, item: CalledItem, now: Timestamp) {
        let mut known = self.0.lock();
        if known.count >= ITEMS_MAX {
            known.by_session.clear();
            known.count = 0;
            known.complete_since = now.after(std::time::Duration::from_millis(1));
        }
        let session = known.by_session.entry(nonce).or_default();
        if session.items.contains(&item) {
            return;
        }
        let (CalledItem::Tool(name) | CalledItem::Prompt(name) | CalledItem::Resource(name)) = &item;
        if name.len() > NAME_BYTES_MAX || session.items.len() >= OF_SESSION_MAX {
            // Counted as an item, so that sessions with such names alone are bounded, too.
            known.count += usize::from(!std::mem::replace(&mut session.has_more, true));
            return;
        }
        session.items.insert(item);
        known.count += 1;
    }

    /// Whether all items of a session are known, and all of them `fit`.
    fn all(&self, nonce: u128, opened_at: Timestamp, fit: impl Fn(&CalledItem) -> bool) -> bool {
        let known = self.0.lock();
        let session = known.by_session.get(&nonce);
        opened_at >= known.complete_since
            && session.is_none_or(|session| !session.has_more && session.items.iter().all(fit))
    }

    pub(super) fn forget(&self, nonce: u128) {
        let mut known = self.0.lock();
        let removed =
            known.by_session.remove(&nonce).map_or(0, |session| session.items.len() + usize::from(session.has_more));
        known.count -= removed;
    }
}

impl SessionFaceState {
    /// Notes an item whose events the server may keep.
    pub(super) fn note_called(&self, session: &ClientSession, request: &Request) {
        // A client without a credential has no right that could be withdrawn.
        if session.is_bridged() || session.is_for_one_request() || !session.own.caller.has_credential() {
            return;
        }
        if let Some(item) = CalledItem::of(request) {
            self.called.note(session.token.nonce, item, self.served.clock.now());
        }
    }

    /// Whether a caller may have every event that the server may have kept for the session.
    pub(super) fn may_have_kept_events(&self, session: &ClientSession, caller: &Caller) -> bool {
        let access = self.served.engine.access().tools_of(caller, self.served.upstream.name());
        if !access.is_narrowed() {
            return true;
        }
        let may_have = |item: &CalledItem| {
            let decided = access.decision(item.as_access_item(), DecisionArguments::Any);
            decided.verdict == AccessVerdict::Allowed
        };
        session.token.replica == self.served.own_replica()
            && self.called.all(session.token.nonce, session.token.issued_at, may_have)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: Timestamp = Timestamp::from_millis(1_000);

    fn tool(name: &str) -> CalledItem {
        CalledItem::Tool(Arc::from(name))
    }

    #[test]
    fn a_session_of_an_earlier_process_and_one_with_too_many_items_are_unknown() {
        let items = CalledItems::new(BEGAN);
        let all_but = |nonce, opened_at, lost: &str| items.all(nonce, opened_at, |item| *item != tool(lost));
        assert!(all_but(1, BEGAN, "a"), "it called nothing");
        assert!(!all_but(1, Timestamp::from_millis(999), "a"), "an earlier process may know more");
        items.note(1, tool("a"), BEGAN);
        items.note(1, tool("a"), BEGAN);
        items.note(2, tool("b"), BEGAN);
        assert_eq!([1, 2].map(|nonce| all_but(nonce, BEGAN, "a")), [false, true]);
        items.note(2, tool(&"x".repeat(NAME_BYTES_MAX + 1)), BEGAN);
        (0..=OF_SESSION_MAX).for_each(|at| items.note(3, tool(&at.to_string()), BEGAN));
        assert_eq!([2, 3].map(|nonce| all_but(nonce, BEGAN, "a")), [false, false]);
        [1, 2, 3].into_iter().for_each(|nonce| items.forget(nonce));
        assert_eq!(items.0.lock().count, 0);
    }

    #[test]
    fn sessions_whose_items_are_too_long_to_keep_are_bounded() {
        let (items, long) = (CalledItems::new(BEGAN), tool(&"x".repeat(NAME_BYTES_MAX + 1)));
        (0..=ITEMS_MAX as u128).for_each(|nonce| items.note(nonce, long.clone(), BEGAN));
        assert!(items.0.lock().by_session.len() <= ITEMS_MAX);
    }

    #[test]
    fn sessions_that_were_forgotten_for_room_are_unknown() {
        let items = CalledItems::new(BEGAN);
        (0..=ITEMS_MAX as u128).for_each(|nonce| items.note(nonce, tool("a"), BEGAN));
        assert!(items.0.lock().by_session.len() <= ITEMS_MAX);
        assert!(!items.all(0, BEGAN, |_| true), "it was forgotten");
        assert!(!items.all(ITEMS_MAX as u128, BEGAN, |_| true), "it may have called more before");
        assert!(items.all(1 << 64, Timestamp::from_millis(1_001), |_| true), "it was opened afterwards");
    }
}
