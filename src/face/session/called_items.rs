//! Records the tools, prompts and resources that each session asked its server for. If a client sends an event id, a
//! server may repeat events of any of these requests, and only the server knows which request an id belongs to. So the
//! gateway drops the event id of a client that lost access to one of the items.

use std::sync::Arc;

use parking_lot::Mutex;

use super::SessionFaceState;
use super::session_cache::ClientSession;
use crate::face::named_item::NamedItem;
use crate::task::{AccessVerdict, Caller, DecisionArguments, Principal};
use crate::upstream::recent_map::RecentMap;
use crate::wire::envelope::Request;

const SESSIONS_MAX: usize = 8_192;
/// Memory of one session's items, each with its name.
const SESSION_BYTES_MAX: usize = 4 << 10;
const ITEM_BYTES: usize = 48;

/// By the session's nonce. An absent session was opened elsewhere or before the first rules, or was removed for room.
#[derive(Debug)]
pub(super) struct CalledItems(RecentMap<Arc<Mutex<SessionItems>>>);

#[derive(Debug, Default)]
struct SessionItems {
    items: Vec<NamedItem>,
    bytes: usize,
    /// Whether items were left out for room.
    has_more: bool,
}

impl SessionItems {
    fn note(&mut self, item: NamedItem) {
        if self.items.contains(&item) {
            return;
        }
        let (NamedItem::Tool(name) | NamedItem::Prompt(name) | NamedItem::Resource(name)) = &item;
        let bytes = self.bytes + name.len() + ITEM_BYTES;
        match bytes <= SESSION_BYTES_MAX {
            true => {
                self.bytes = bytes;
                self.items.push(item);
            }
            false => self.has_more = true,
        }
    }
}

impl CalledItems {
    pub(super) fn new() -> Self {
        Self(RecentMap::new(SESSIONS_MAX))
    }

    /// A new session, which has called nothing.
    fn begin(&self, nonce: u128, counted_as: &Principal) {
        self.0.insert(nonce, counted_as, Arc::default());
    }

    fn note(&self, nonce: u128, item: impl FnOnce() -> Option<NamedItem>) {
        if let Some(session) = self.0.get(nonce)
            && let Some(item) = item()
        {
            session.lock().note(item);
        }
    }

    /// Whether all items of a session are known, and `fit`.
    fn all(&self, nonce: u128, fit: impl Fn(&NamedItem) -> bool) -> bool {
        self.0.get(nonce).is_some_and(|session| {
            let session = session.lock();
            !session.has_more && session.items.iter().all(fit)
        })
    }

    pub(super) fn remove(&self, nonce: u128) {
        self.0.remove(nonce);
    }
}

impl SessionFaceState {
    /// Remembers a new session's items, unless the caller has no credential and no rules: no right can be withdrawn.
    pub(super) fn keep_called(&self, nonce: u128, caller: &Caller, counted_as: &Principal) {
        if caller.has_credential() || self.served.engine.access().has_rules() {
            self.called.begin(nonce, counted_as);
        }
    }

    /// Notes an item whose events the server may keep.
    pub(super) fn note_called(&self, session: &ClientSession, request: &Request) {
        if session.is_bridged() || session.is_for_one_request {
            return;
        }
        self.called.note(session.token.nonce, || NamedItem::of(&request.method, request.params.object()?));
    }

    /// Whether a caller may have every event that the server may have kept for the session.
    pub(super) fn may_have_kept_events(&self, session: &ClientSession, caller: &Caller) -> bool {
        let access = self.served.engine.access().tools_of(caller, self.served.upstream.name());
        let may_have = |item: &NamedItem| {
            let decided = access.decision(item.as_access_item(), DecisionArguments::Any);
            decided.verdict == AccessVerdict::Allowed
        };
        !access.is_narrowed() || self.called.all(session.token.nonce, may_have)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> NamedItem {
        NamedItem::Tool(Arc::from(name))
    }

    #[test]
    fn a_session_of_an_earlier_process_and_one_with_too_many_items_are_unknown() {
        let (items, ada) = (CalledItems::new(), Principal::new("key:ada"));
        let note = |nonce, item| items.note(nonce, || Some(item));
        let all_but = |nonce, lost: &str| items.all(nonce, |item| *item != tool(lost));
        (1..=4).for_each(|nonce| items.begin(nonce, &ada));
        assert!(all_but(1, "a"), "it called nothing");
        note(5, tool("b"));
        assert!(!all_but(5, "a"), "an earlier process may know more");
        note(1, tool("a"));
        note(1, tool("a"));
        note(2, NamedItem::Prompt(Arc::from("a")));
        assert_eq!([1, 2].map(|nonce| all_but(nonce, "a")), [false, true]);
        note(2, tool(&"x".repeat(SESSION_BYTES_MAX)));
        // More than a narrowed client reads before it loses its stream.
        (0..64).for_each(|at| note(3, tool(&format!("b{at}"))));
        assert!(all_but(3, "a"), "64 items fit");
        (64..SESSION_BYTES_MAX / ITEM_BYTES).for_each(|at| note(3, tool(&format!("b{at}"))));
        assert_eq!([2, 3, 4].map(|nonce| all_but(nonce, "a")), [false, false, true]);
        items.remove(4);
        assert!(!all_but(4, "a"));
    }

    #[test]
    fn a_flood_of_one_principals_sessions_leaves_the_items_of_others() {
        let items = CalledItems(RecentMap::of_one_shard(100));
        items.begin(1, &Principal::new("key:ada"));
        (2..1_000).for_each(|nonce| items.begin(nonce, &Principal::new("key:bob")));
        assert!(items.all(1, |_| true), "of the principal with few sessions");
        assert!(!items.all(2, |_| true), "it was removed for room");
        assert_eq!(items.0.len(), 100);
    }
}
