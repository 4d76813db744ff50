//! Caches the names of the tools that servers listed in each session. Calls as tasks are checked against them, and all
//! calls if some tools are hidden. A name that is not cached is looked up in the client's own session.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::session_cache::ClientSession;
use super::{SessionFaceState, refuse};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::face::answer::addressee;
use crate::face::catalog::Catalog;
use crate::face::http::{ArrayTools, FaceResponse, Inbound, ListedNames};
use crate::face::item_refusal::{AskedAccess, ItemRefusal, names_item};
use crate::face::named_item::tool_name;
use crate::face::reachable_tools::ReachableTools;
use crate::task::{Caller, Executed, GatewayFault, Principal, Reason};
use crate::upstream::recent_map::RecentMap;
use crate::wire::envelope::Request;
use crate::wire::{Object, RpcError, method};

/// The most sessions, and the bytes of their names (B238).
const SESSIONS_MAX: usize = 1_024;
const BYTES_MAX: usize = 32 << 20;
/// The bytes of one session's names. Others are looked up each time.
const SESSION_BYTES_MAX: usize = 256 << 10;
/// Memory of a name beside its text: a place in a table that is half full, and an allocation.
const NAME_BYTES: usize = 48;
/// A call's longest wait for the tool list.
const LOOK_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct KnownTools(RecentMap<Arc<Mutex<SessionTools>>>);

#[derive(Debug, Default)]
struct SessionTools {
    names: HashSet<Box<str>>,
    bytes: usize,
}

impl SessionTools {
    fn add(&mut self, names: impl Iterator<Item = String>) {
        for name in names {
            let bytes = self.bytes + name.len() + NAME_BYTES;
            if bytes > SESSION_BYTES_MAX {
                return;
            }
            if self.names.insert(name.into()) {
                self.bytes = bytes;
            }
        }
    }
}

impl KnownTools {
    fn add(&self, nonce: u128, counted_as: &Principal, names: impl Iterator<Item = String>) {
        let known = self.0.get_or_default(nonce, counted_as);
        let mut tools = known.lock();
        tools.add(names);
        // Under the lock, so that the last number of bytes counts.
        self.0.set_bytes(nonce, tools.bytes);
    }
}

impl Default for KnownTools {
    fn default() -> Self {
        Self(RecentMap::with_bytes(SESSIONS_MAX, BYTES_MAX))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolListing {
    Listed,
    Unlisted,
    NoList,
}

impl SessionFaceState {
    pub(in crate::face) fn record_tools(&self, session: &ClientSession, list: &Object) {
        self.served.unmatched_rules.look_at(list);
        let Some(tools) = list.get("tools") else { return };
        let names = tools.items().filter_map(|tool| Object::of(&tool)?.get_string("name"));
        self.record_names(session, names);
    }

    fn record_names(&self, session: &ClientSession, names: impl Iterator<Item = String>) {
        self.tools.add(session.token.nonce, session.counted_as(), names);
    }

    fn is_listed(&self, session: &ClientSession, tool: &str) -> bool {
        self.tools.0.get(session.token.nonce).is_some_and(|known| known.lock().names.contains(tool))
    }

    async fn listing_of(
        self: &Arc<Self>,
        session: &ClientSession,
        principal: &Principal,
        tool: &str,
        shared: Option<&ArrayTools>,
    ) -> ToolListing {
        if self.is_listed(session, tool) {
            return ToolListing::Listed;
        }
        let tools = shared.map(|shared| shared.of(self.served.upstream.name())).unwrap_or_default();
        let listing = tools.get_or_init(|| self.listing(session, principal)).await;
        match (listing.names.contains(tool), listing.is_whole) {
            (true, _) => ToolListing::Listed,
            (false, true) => ToolListing::Unlisted,
            (false, false) => ToolListing::NoList,
        }
    }

    async fn listing(self: &Arc<Self>, session: &ClientSession, principal: &Principal) -> ListedNames {
        let context = self.context(session, principal);
        let catalog = Catalog::new(self.upstream_of(session));
        match tokio::time::timeout(LOOK_MAX, catalog.names(&context)).await {
            Ok(Ok((names, is_whole))) => {
                self.record_names(session, names.iter().cloned());
                ListedNames { names: names.into_iter().collect(), is_whole }
            }
            Ok(Err(_)) | Err(_) => ListedNames::default(),
        }
    }

    pub(super) fn reachable_tools(&self, session: &ClientSession, caller: &Caller) -> ReachableTools {
        let access = self.served.engine.access().tools_of(caller, self.served.upstream.name());
        ReachableTools::new(access, self.fallback_for(session))
    }

    /// Whether a call as a task has a tool, checked before it gets a handle (T-72). True if the server returns no list.
    pub(super) async fn may_begin(
        self: &Arc<Self>,
        session: &ClientSession,
        principal: &Principal,
        tool: &str,
    ) -> bool {
        self.listing_of(session, principal, tool, None).await != ToolListing::Unlisted
    }

    /// Whether a request names an item, and its caller has no access to some items.
    pub(super) fn withholds_items(&self, caller: &Caller, request: &Request) -> bool {
        let is_call = request.method == method::TOOLS_CALL;
        let access = || self.served.engine.access().tools_of(caller, self.served.upstream.name());
        (is_call && self.served.channel.hides_tools())
            || ((is_call || names_item(&request.method)) && access().is_narrowed())
    }

    /// Refuses requests about items that this client may not use, and calls of unlisted tools if tools are filtered out
    /// for it: a server could match another spelling of such a tool, so only listed names reach it.
    pub(super) async fn hidden(
        self: &Arc<Self>,
        session: &ClientSession,
        inbound: &Inbound,
        request: &Request,
    ) -> Option<HiddenToolRefusal> {
        let caller = &inbound.caller;
        if !self.withholds_items(caller, request) {
            return None;
        }
        let asked = AskedAccess::new(&self.served.engine, caller, self.served.upstream.name());
        if request.method != method::TOOLS_CALL {
            let refusal = asked.refusal_of(&request.method, request.params.object());
            return refusal.map(HiddenToolRefusal::Item);
        }
        // The next check reports the fault.
        let tool = tool_name(request.params.object()).ok()?;
        if super::fallback::called(self, session, request).is_some() {
            return None;
        }
        if let Some(refusal) = asked.refusal_of(&request.method, request.params.object()) {
            return Some(HiddenToolRefusal::Item(refusal));
        }
        match self.listing_of(session, &caller.principal, &tool, inbound.array_tools.as_deref()).await {
            ToolListing::Listed => None,
            ToolListing::Unlisted => Some(HiddenToolRefusal::Unknown),
            ToolListing::NoList => Some(HiddenToolRefusal::NoList),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HiddenToolRefusal {
    Item(ItemRefusal),
    Unknown,
    /// Without a list, the tool may be a hidden one.
    NoList,
}

impl HiddenToolRefusal {
    pub(super) fn answer(self, request: &Request, inbound: &Inbound) -> FaceResponse {
        let addressee = addressee(Some(&request.id), inbound.accepted);
        match self {
            Self::Item(refusal) => refusal.answer(&addressee, |complaint| refuse(&addressee, complaint)),
            Self::Unknown => refuse(&addressee, &RequestError::unknown_tool(request.params.object())),
            Self::NoList => addressee.error(http::StatusCode::OK, &no_list()),
        }
    }
}

fn no_list() -> RpcError {
    gateway_error(&GatewayFault::new(Reason::UpstreamTimeout, Executed::No))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sessions_names_have_a_bound_in_bytes() {
        let mut tools = SessionTools::default();
        let long = |n: usize| format!("{n}{}", "x".repeat(SESSION_BYTES_MAX / 4));
        tools.add((0..100).map(long).chain(["short".to_owned()]));
        assert_eq!(tools.names.len(), 3);
        assert!(tools.bytes <= SESSION_BYTES_MAX);
        let known = tools.bytes;
        tools.add((0..3).map(long));
        assert_eq!((tools.names.len(), tools.bytes), (3, known), "known ones take no further bytes");
    }

    #[test]
    fn b238_the_names_of_all_sessions_have_a_bound_in_bytes_and_each_principal_a_share() {
        let (known, ada, mallory) = (KnownTools::default(), Principal::new("key:ada"), Principal::new("key:mallory"));
        let key = |number: u128| number << 64 | number;
        known.add(key(1), &ada, ["a".to_owned()].into_iter());
        let long = |n: usize| format!("{n}{}", "x".repeat(SESSION_BYTES_MAX / 4));
        for session in 2..SESSIONS_MAX as u128 {
            known.add(key(session), &mallory, (0..3).map(long));
        }
        let bytes = known.0.bytes();
        assert!((BYTES_MAX / 2..=BYTES_MAX).contains(&bytes), "{bytes}");
        assert!(known.0.contains(key(1)), "of the principal with few bytes");
    }
}
