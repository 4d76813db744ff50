//! Which tools a session's server has, as far as anybody has listed them: for a call that is to be a task, and for every call
//! where the operator hides tools.
//!
//! Lists that go by are remembered. A name that stands in none is asked for in the client's own session, so that no server
//! is opened a second time for it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::bridged_client::BridgedClient;
use super::message_check::tool_of;
use super::session_cache::ClientSession;
use super::{SessionFaceState, refuse};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::dialect::plain::PlainUpstream;
use crate::face::answer::addressee;
use crate::face::catalog::Catalog;
use crate::face::http::{FaceResponse, Inbound};
use crate::face::reachable_tools::ReachableTools;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::recent_map::RecentMap;
use crate::wire::envelope::Request;
use crate::wire::{Object, ProtocolVersion, RpcError, envelope, method};

/// Sessions whose tools are remembered; the one used longest ago falls out.
const SESSIONS_MAX: usize = 1_024;
/// Names of one session.
const NAMES_MAX: usize = 10_000;
/// How long a call waits to learn of its tool.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// The names that clients know tools by, by session.
#[derive(Debug)]
pub(super) struct KnownTools(RecentMap<Arc<Mutex<HashSet<Box<str>>>>>);

impl Default for KnownTools {
    fn default() -> Self {
        Self(RecentMap::new(SESSIONS_MAX))
    }
}

/// What a server lists when it is asked. It is asked once, however many calls an array has.
#[derive(Debug, Default)]
pub(super) struct ServerTools(Option<ListedNames>);

/// Nothing, where the server does not say.
#[derive(Debug, Default)]
struct ListedNames {
    names: HashSet<String>,
    is_whole: bool,
}

/// What is known of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ToolListing {
    Listed,
    Unlisted,
    /// The server does not say.
    Untold,
}

impl SessionFaceState {
    /// Remembers the names in the result of `tools/list`, which goes to a client.
    pub(in crate::face) fn learn_tools(&self, session: &ClientSession, list: &Object) {
        self.served.unmatched_rules.look_at(list);
        let Some(tools) = list.get("tools") else { return };
        let names = tools.items().filter_map(|tool| Object::of(&tool)?.get_string("name"));
        self.learn(session, names);
    }

    fn learn(&self, session: &ClientSession, names: impl Iterator<Item = String>) {
        let known = self.tools.0.get_or_default(session.token.nonce);
        let mut known = known.lock();
        for name in names {
            if known.len() >= NAMES_MAX {
                return;
            }
            known.insert(name.into());
        }
    }

    fn is_listed(&self, session: &ClientSession, tool: &str) -> bool {
        self.tools.0.get(session.token.nonce).is_some_and(|known| known.lock().contains(tool))
    }

    async fn listing_of(
        self: &Arc<Self>,
        session: &ClientSession,
        principal: &Principal,
        tool: &str,
        asked: &mut ServerTools,
    ) -> ToolListing {
        if self.is_listed(session, tool) {
            return ToolListing::Listed;
        }
        let listing = match &asked.0 {
            Some(listing) => listing,
            None => asked.0.insert(self.listing(session, principal).await),
        };
        match (listing.names.contains(tool), listing.is_whole) {
            (true, _) => ToolListing::Listed,
            (false, true) => ToolListing::Unlisted,
            (false, false) => ToolListing::Untold,
        }
    }

    /// Asks the server for its tools.
    async fn listing(self: &Arc<Self>, session: &ClientSession, principal: &Principal) -> ListedNames {
        let client = BridgedClient::of(session.token.client_version, &session.token.capabilities);
        let context = client.context((principal, &session.own.forwarded), &self.served);
        let catalog = Catalog::new(self.upstream_of(session), Arc::new(PlainUpstream));
        match tokio::time::timeout(LOOK_MAX, catalog.names(&context)).await {
            Ok(Ok((names, is_whole))) => {
                self.learn(session, names.iter().cloned());
                ListedNames { names: names.into_iter().collect(), is_whole }
            }
            Ok(Err(_)) | Err(_) => ListedNames::default(),
        }
    }

    /// What of the upstream's tools a session's client may use, and see.
    pub(super) fn reachable_tools(&self, session: &ClientSession, principal: &Principal) -> ReachableTools {
        ReachableTools::new(self.served.engine.access().tools_of(principal), self.fallback_for(session))
    }

    /// Whether a call that is to be a task has a tool, before it gets a handle (T-72). Where the server does not say, it has.
    pub(super) async fn may_begin(
        self: &Arc<Self>,
        session: &ClientSession,
        principal: &Principal,
        tool: &str,
    ) -> bool {
        self.listing_of(session, principal, tool, &mut ServerTools::default()).await != ToolListing::Unlisted
    }

    /// What is wrong with a call where tools are hidden, from everybody or from this caller: a server may take another spelling
    /// of a hidden name for that name, so only names of its list go to it.
    pub(super) async fn hidden(
        self: &Arc<Self>,
        session: &ClientSession,
        principal: &Principal,
        request: &Request,
        asked: &mut ServerTools,
    ) -> Option<HiddenToolRefusal> {
        if request.method != method::TOOLS_CALL {
            return None;
        }
        let access = self.served.engine.access().tools_of(principal);
        if !access.is_narrowed() && !self.served.channel.hides_tools() {
            return None;
        }
        // Whoever reads it next says what is wrong with it.
        let tool = tool_of(request.params.object()).ok()?;
        if super::fallback::called(self, session, request).is_some() {
            return None;
        }
        if !access.has(&tool) {
            return Some(HiddenToolRefusal::Unknown);
        }
        match self.listing_of(session, principal, &tool, asked).await {
            ToolListing::Listed => None,
            ToolListing::Unlisted => Some(HiddenToolRefusal::Unknown),
            ToolListing::Untold => Some(HiddenToolRefusal::Untold),
        }
    }
}

/// Why a call goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HiddenToolRefusal {
    Unknown,
    /// Nobody can tell whether its tool is a hidden one.
    Untold,
}

impl HiddenToolRefusal {
    pub(super) fn answer(self, request: &Request, inbound: &Inbound) -> FaceResponse {
        let addressee = addressee(Some(&request.id), inbound.accepted);
        match self {
            Self::Unknown => refuse(&addressee, &RequestError::unknown_tool(request.params.object())),
            Self::Untold => addressee.error(http::StatusCode::OK, &untold()),
        }
    }

    /// The answer as a message of an array.
    pub(super) fn message(self, request: &Request) -> Bytes {
        let error = match self {
            Self::Unknown => {
                RequestError::unknown_tool(request.params.object()).to_error(ProtocolVersion::NEWEST_SESSION)
            }
            Self::Untold => untold(),
        };
        envelope::error(Some(&request.id), &error)
    }
}

fn untold() -> RpcError {
    gateway_error(&GatewayFault::new(Reason::UpstreamTimeout, Executed::No))
}
