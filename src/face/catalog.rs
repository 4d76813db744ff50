//! Fetches, rewrites and caches the tool lists of one upstream. Tools are listed often, and for each call (T-72). Lists
//! are cached by principal and capabilities (MOD-15, UPC-23).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use moka::policy::EvictionPolicy;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::unmatched_rules::UnmatchedRules;
use crate::dialect::relay_core_2025_11_25::ToolTaskSupport;
use crate::metric::{self, GaugeShare};
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::header_annotations::{self, HeaderAnnotations, HeaderArgument};
use crate::upstream::shared_lookups::SharedLookups;
use crate::upstream::{
    BeginError, CallContext, ClientCredential, NoResult, ServerNotification, TaskScope, Upstream, UpstreamRequest,
    UpstreamTaskMode, result_of,
};
use crate::wire::object::ObjectWriter;
use crate::wire::{ListEnd, ListPages, Object, PagedList, Payload, RpcError, method, one_line, rpc_error};

/// How long a list is fresh; a `list_changed` ends that at once.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// A list that was unused for this long is dropped, with its subscription to the upstream's session.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// A younger list is not fetched again for a missing name.
pub(super) const MISS_AFTER: Duration = Duration::from_secs(1);

const FETCH_MAX: Duration = Duration::from_secs(60);

/// The age of a fetch at which calls wait for it no longer, if they have a last list.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// A longer list is truncated (U35). A page has the limit of any result.
pub(super) const PAGES_MAX: usize = 200;
pub(super) const TOOLS_MAX: usize = 10_000;
pub(super) const BYTES_MAX: usize = 32 << 20;

/// The most lists in each of the two caches, and the most bytes of both; the least recently used list is evicted.
const LISTS_MAX: u64 = 1_000;
const ALL_BYTES_MAX: u64 = 64 << 20;
/// Memory of a tool beside its text.
const TOOL_BYTES: usize = 256;

/// The time since its last use during which a complete list replaces a truncated one.
const WHOLE_KEPT_FOR: Duration = Duration::from_secs(60 * 60);

pub struct Catalog {
    upstream: Arc<dyn Upstream>,
    unmatched_rules: Option<Arc<UnmatchedRules>>,
    lists: moka::future::Cache<ListKey, Arc<ToolList>>,
    /// The list that was found last: a lookup in the cache costs more than the rest of a call's check.
    last: Mutex<Option<(ListKey, Arc<ToolList>)>>,
    /// The last complete lists; they hold no session.
    whole: moka::future::Cache<ListKey, Arc<PublishedTools>>,
    /// The fetches that calls with a last list began.
    fetches: SharedLookups<ListKey, Result<Arc<ToolList>, CatalogError>, Principal>,
    cut_off: GaugeShare,
    circular: CircularLists,
}

debug_members!(Catalog, |catalog| upstream: catalog.upstream);

type ListKey = (Principal, ClientCredential, Payload);

/// A server may show each client another list, by any property that it knows.
fn list_key(context: &CallContext) -> ListKey {
    (context.principal.clone(), context.forwarded.credential(), context.client.capabilities.clone())
}

/// Counts capabilities, too: a client that varies them evicts others' lists, as fast as its rates allow.
fn weight_with((_, _, capabilities): &ListKey, list: &PublishedTools) -> u32 {
    list.weight().saturating_add(u32::try_from(capabilities.len()).unwrap_or(u32::MAX))
}

type Notifications = broadcast::Receiver<ServerNotification>;

#[derive(Debug)]
pub struct ToolList {
    published: Arc<PublishedTools>,
    fetched_at: Instant,
    /// `None` once a change was received: each later check reports it, too.
    changes: Mutex<Option<Notifications>>,
}

#[derive(Debug)]
struct PublishedTools {
    result: Payload,
    tools: HashMap<String, ListedTool>,
    /// When the last fetch of a newer list began.
    renewal_began: Mutex<Instant>,
}

impl PublishedTools {
    /// The bytes that it counts towards [`ALL_BYTES_MAX`].
    fn weight(&self) -> u32 {
        let of_tool = |(name, tool): (&String, &ListedTool)| {
            name.len() + tool.mirrored.iter().map(HeaderArgument::text_bytes).sum::<usize>() + TOOL_BYTES
        };
        let bytes = self.result.len() + self.tools.iter().map(of_tool).sum::<usize>();
        u32::try_from((bytes as u64).max(ALL_BYTES_MAX / LISTS_MAX)).unwrap_or(u32::MAX)
    }
}

#[derive(Debug)]
pub struct ListedTool {
    pub mirrored: Vec<HeaderArgument>,
    pub task_support: ToolTaskSupport,
    /// Whether its annotations, which are hints, declare the tool safe to repeat.
    pub is_repeatable: bool,
}

/// A tool that no list contains, but its server may have.
static UNLISTED: ListedTool =
    ListedTool { mirrored: Vec::new(), task_support: ToolTaskSupport::Forbidden, is_repeatable: false };

impl ToolList {
    pub fn empty() -> Arc<Self> {
        let (result, renewal_began) = (Payload::empty_object(), Mutex::new(Instant::now()));
        Self::of(Arc::new(PublishedTools { result, tools: HashMap::new(), renewal_began }), None)
    }

    fn of(published: Arc<PublishedTools>, changes: Option<Notifications>) -> Arc<Self> {
        Arc::new(Self { published, fetched_at: Instant::now(), changes: Mutex::new(changes) })
    }

    /// The result of `tools/list`, with all pages in one.
    pub fn result(&self) -> &Payload {
        &self.published.result
    }

    pub fn tool(&self, name: &str) -> Option<&ListedTool> {
        self.published.tools.get(name)
    }

    /// An unlisted tool is left to the server, unless it could be a hidden tool in another spelling.
    pub fn tool_to_call(&self, name: &str, hides_some: bool) -> Option<&ListedTool> {
        self.tool(name).or_else(|| (!hides_some).then_some(&UNLISTED))
    }

    fn is_fresh(&self) -> bool {
        self.fetched_at.elapsed() < FRESH_FOR && !self.has_changed()
    }

    fn has_changed(&self) -> bool {
        let mut waiting = self.changes.lock();
        while let Some(changes) = &mut *waiting {
            match changes.try_recv() {
                Ok((notification, _)) if &*notification != method::TOOLS_CHANGED => (),
                // Lost messages may include a change.
                Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_) | broadcast::error::TryRecvError::Closed) => {
                    *waiting = None;
                }
                Err(broadcast::error::TryRecvError::Empty) => return false,
            }
        }
        true
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("the upstream gave no tool list: {}", .0.reason.key())]
    Gateway(GatewayFault),
    #[error("the upstream refused to list its tools: {}", .0.message)]
    Upstream(RpcError),
}

impl Catalog {
    pub fn new(upstream: Arc<dyn Upstream>) -> Self {
        // LRU: the list of a new client must be admitted, however often the others are looked up.
        let lists = moka::future::Cache::builder().max_capacity(ALL_BYTES_MAX).eviction_policy(EvictionPolicy::lru());
        let lists = lists.weigher(|key: &ListKey, list: &Arc<ToolList>| weight_with(key, &list.published));
        let whole = moka::future::Cache::builder().max_capacity(ALL_BYTES_MAX).eviction_policy(EvictionPolicy::lru());
        let whole = whole.weigher(|key: &ListKey, list: &Arc<PublishedTools>| weight_with(key, list));
        let (lists, whole) = (lists.time_to_idle(KEPT_FOR).build(), whole.time_to_idle(WHOLE_KEPT_FOR).build());
        let cut_off = metrics::gauge!(metric::TOOLS_CUT_OFF, "upstream" => Arc::clone(upstream.name()));
        Self {
            upstream,
            unmatched_rules: None,
            lists,
            last: Mutex::default(),
            whole,
            fetches: SharedLookups::default(),
            cut_off: GaugeShare::new(cut_off),
            circular: CircularLists::default(),
        }
    }

    #[must_use]
    pub fn compared_with(self, rules: &Arc<UnmatchedRules>) -> Self {
        Self { unmatched_rules: Some(Arc::clone(rules)), ..self }
    }

    /// Drops unused lists until stopped. The cache does so only when used, and a list keeps an upstream session busy.
    pub async fn evict_expired(&self, stop: &CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(KEPT_FOR)).await.is_some() {
            self.last.lock().take_if(|(_, list)| !list.is_fresh());
            self.lists.run_pending_tasks().await;
            self.whole.run_pending_tasks().await;
        }
    }

    async fn fresh(&self, key: &ListKey) -> Option<Arc<ToolList>> {
        let list = self.lists.get(key).await?;
        if !list.is_fresh() {
            self.lists.invalidate(key).await;
            return None;
        }
        *self.last.lock() = Some((key.clone(), Arc::clone(&list)));
        Some(list)
    }

    /// Concurrent requests share one fetch. Fails if the upstream returns none; nothing else was sent by then.
    pub async fn list(&self, context: &CallContext) -> Result<Arc<ToolList>, CatalogError> {
        let key = list_key(context);
        if let Some(list) = self.fresh(&key).await {
            return Ok(list);
        }
        // It may be older than the list that is fetched now.
        self.last.lock().take();
        // Boxed: most calls find a list, and need no memory for a fetch.
        let fetched = Box::pin(async move {
            let fetch = async {
                let fetching = tokio::time::timeout(FETCH_MAX, self.fetch(context)).await;
                fetching.map_err(|_| CatalogError::Gateway(GatewayFault::new(Reason::UpstreamTimeout, Executed::No)))?
            };
            self.lists.try_get_with(key, fetch).await
        });
        fetched.await.map_err(|shared| (*shared).clone())
    }

    /// The list of a client with these capabilities, if it is the one that was found last, is fresh and has this tool.
    #[must_use]
    pub fn last_with(
        &self,
        tool: &str,
        principal: &Principal,
        credential: &ClientCredential,
        capabilities: &Payload,
    ) -> Option<Arc<ToolList>> {
        let last = self.last.lock();
        let ((of, bearing, declaring), list) = last.as_ref()?;
        let is_its = of == principal && bearing == credential && declaring == capabilities;
        (is_its && list.tool(tool).is_some() && list.is_fresh()).then(|| Arc::clone(list))
    }

    /// The list with this tool, fetched again if the cached one lacks it. Fails as [`Catalog::list`].
    pub async fn list_with(&self, tool: &str, context: &CallContext) -> Result<Arc<ToolList>, CatalogError> {
        let list = self.list(context).await?;
        if list.tool(tool).is_some() || list.fetched_at.elapsed() < MISS_AFTER {
            return Ok(list);
        }
        self.lists.invalidate(&list_key(context)).await;
        self.list(context).await
    }

    /// As [`Self::list_with`]; from a server that lists nothing now, as while another call runs, the last complete list (U105).
    /// The fetch goes on without the call, once for all calls (U106): calls during it wait for at most the rest of `LOOK_MAX`.
    pub async fn list_to_call(
        self: &Arc<Self>,
        tool: &str,
        context: &CallContext,
        scope: &TaskScope,
    ) -> Result<Arc<ToolList>, CatalogError> {
        let key = list_key(context);
        let known = self.whole.get(&key).await.filter(|known| known.tools.contains_key(tool));
        let Some(published) = known else { return self.list_with(tool, context).await };
        if let Some(list) = self.fresh(&key).await {
            return Ok(list);
        }
        let begin = || {
            *published.renewal_began.lock() = Instant::now();
            let (catalog, context) = (Arc::clone(self), context.clone());
            async move { catalog.list(&context).await }
        };
        let late = async {
            let began = *published.renewal_began.lock();
            tokio::time::sleep_until(began + LOOK_MAX).await;
        };
        let fetched = tokio::select! {
            // In this order: the fetch begins before its age is read.
            biased;
            fetched = self.fetches.get(key, context.principal.clone(), scope, || None, begin) => fetched,
            () = late => None,
        };
        match fetched {
            Some(listed @ (Ok(_) | Err(CatalogError::Gateway(_)))) => listed,
            Some(Err(CatalogError::Upstream(_))) | None => Ok(ToolList::of(published, None)),
        }
    }

    async fn fetch(&self, context: &CallContext) -> Result<Arc<ToolList>, CatalogError> {
        // Subscribed before the first page, so that no change is missed in between.
        let changes = self.upstream.notifications(context).await.map_err(from_begin)?;
        let key = list_key(context);
        let ToolListPages { first, tools, is_whole, end } = self.pages(context).await?;
        self.circular.note(self.upstream.name(), PagedList::Tools, end);
        self.mark(!is_whole, tools.len());
        // The complete list has more tools than the truncated one.
        let known = if is_whole { None } else { self.whole.get(&key).await };
        let published = known.unwrap_or_else(|| Arc::new(publish(&first, &tools)));
        if is_whole {
            self.whole.insert(key, Arc::clone(&published)).await;
        }
        Ok(ToolList::of(published, Some(changes)))
    }

    async fn pages(&self, context: &CallContext) -> Result<ToolListPages, CatalogError> {
        let (mut tools, mut bytes, mut first) = (Vec::new(), 0, None);
        let mut pages = ListPages::new(PagedList::Tools, PAGES_MAX);
        while pages.end().is_none() && tools.len() < TOOLS_MAX && bytes < BYTES_MAX {
            let page = match self.page(pages.params(), context).await {
                Ok(page) => page,
                // Nothing is known of a page that is too large.
                Err(CatalogError::Gateway(GatewayFault { reason: Reason::ResultTooLarge, .. })) => {
                    let first = first.map_or_else(empty_list, Ok)?;
                    return Ok(ToolListPages { first, tools, is_whole: false, end: None });
                }
                Err(error) => return Err(error),
            };
            bytes += page.payload().as_str().len();
            let listed = page.get("tools").as_ref().and_then(items).ok_or(CatalogError::Gateway(MALFORMED))?;
            if pages.read(&page) {
                tools.extend(listed);
            }
            first.get_or_insert(page);
        }
        let is_read = matches!(pages.end(), Some(ListEnd::Complete | ListEnd::Circular));
        let is_whole = is_read && tools.len() <= TOOLS_MAX && bytes <= BYTES_MAX;
        tools.truncate(TOOLS_MAX);
        let first = first.ok_or(CatalogError::Gateway(MALFORMED))?;
        Ok(ToolListPages { first, tools, is_whole, end: pages.end() })
    }

    /// Fetches the names of all tools, uncached, and whether the list is complete. Fails without a list.
    pub async fn names(&self, context: &CallContext) -> Result<(Vec<String>, bool), CatalogError> {
        let ToolListPages { tools, is_whole, .. } = self.pages(context).await?;
        let names = tools.iter().filter_map(|tool| Object::of(tool)?.get_string("name")).collect();
        Ok((names, is_whole))
    }

    fn mark(&self, is_cut_off: bool, tools: usize) {
        let (has_changed, upstream) = (self.cut_off.set(u32::from(is_cut_off)), self.upstream.name());
        if has_changed && is_cut_off {
            tracing::warn!(%upstream, tools, "the tool list is too long: clients get its beginning, or the last complete list");
        } else if has_changed {
            tracing::info!(%upstream, tools, "the tool list is complete again");
        }
    }

    async fn page(&self, params: Option<Payload>, context: &CallContext) -> Result<Object, CatalogError> {
        let request = UpstreamRequest { method: Arc::from(method::TOOLS_LIST), params };
        let context =
            CallContext { progress: false, log_level: None, native_task: UpstreamTaskMode::Never, ..context.clone() };
        let mut exchange = self.upstream.begin(request, context).await.map_err(from_begin)?;
        let result = match result_of(&mut *exchange).await {
            Ok(result) => result,
            Err(NoResult::Faulted(error)) if error.code == rpc_error::METHOD_NOT_FOUND => return empty_list(),
            Err(NoResult::Faulted(error)) => return Err(CatalogError::Upstream(error)),
            Err(NoResult::Cancelled) => return Err(CatalogError::Gateway(MALFORMED)),
            // Listing tools has no side effect, so repeating it is always safe.
            Err(NoResult::Lost(fault)) => {
                return Err(CatalogError::Gateway(GatewayFault { executed: Executed::No, ..fault }));
            }
        };
        let page = Object::of(&result).ok_or(CatalogError::Gateway(MALFORMED))?;
        if let Some(rules) = &self.unmatched_rules {
            rules.look_at(&page);
        }
        Ok(page)
    }
}

struct ToolListPages {
    first: Object,
    tools: Vec<Payload>,
    is_whole: bool,
    end: Option<ListEnd>,
}

fn empty_list() -> Result<Object, CatalogError> {
    let empty = ObjectWriter::new().member("tools", &Payload::of::<[u8; 0]>(&[])).finish();
    Object::of(&empty).ok_or(CatalogError::Gateway(MALFORMED))
}

const MALFORMED: GatewayFault = GatewayFault::new(Reason::UpstreamMalformed, Executed::No);

fn from_begin(error: BeginError) -> CatalogError {
    CatalogError::Gateway(error.into_fault())
}

fn items(array: &Payload) -> Option<Vec<Payload>> {
    let raw: Vec<&serde_json::value::RawValue> = array.read().ok()?;
    Some(raw.into_iter().map(Payload::of).collect())
}

fn publish(first: &Object, tools: &[Payload]) -> PublishedTools {
    let mut published = Vec::with_capacity(tools.len());
    let mut by_name = HashMap::with_capacity(tools.len());
    for tool in tools.iter().filter_map(Object::of) {
        let Some(name) = tool.get_string("name") else { continue };
        // The upstream's task support applies only to the gateway's own calls (GW-13).
        let mut edit = tool.edit().remove("execution");
        let mirrored = match tool.get("inputSchema").as_ref().map(header_annotations::read) {
            Some(HeaderAnnotations::Valid(mirrored)) => mirrored,
            Some(HeaderAnnotations::Stripped { schema, kept }) => {
                tracing::warn!(tool = %name, "invalid x-mcp-header annotations were removed from a tool");
                edit = edit.set("inputSchema", schema);
                kept
            }
            None => Vec::new(),
        };
        published.push(edit.finish());
        let is_repeatable = says_repeatable(&tool);
        by_name.insert(name, ListedTool { mirrored, task_support: ToolTaskSupport::of(&tool), is_repeatable });
    }
    let result = first.edit().remove("nextCursor").set("tools", Payload::of(&published)).finish();
    // Detached: the cached list must not retain the page's buffer.
    PublishedTools { result: result.detached(), tools: by_name, renewal_began: Mutex::new(Instant::now()) }
}

/// `readOnlyHint` or `idempotentHint` (GW-39).
fn says_repeatable(tool: &Object) -> bool {
    let annotations = tool.get_object("annotations");
    let says = |hint| annotations.as_ref().and_then(|all| all.get(hint)).is_some_and(|value| value.as_str() == "true");
    says("readOnlyHint") || says("idempotentHint")
}

/// A list always has one page, so the gateway issues no cursors.
pub const fn no_such_cursor() -> crate::dialect::RequestError {
    crate::dialect::RequestError::params("cursor is unknown: this list has one page")
}

#[derive(Debug, Default)]
pub(crate) struct CircularLists(AtomicU8);

impl CircularLists {
    /// Records how a list ended. Logs one line when it starts to be circular.
    pub(crate) fn note(&self, upstream: &str, list: PagedList, end: Option<ListEnd>) {
        let bit = 1 << list as u8;
        let before = match end {
            Some(ListEnd::Circular) => self.0.fetch_or(bit, Ordering::Relaxed),
            Some(ListEnd::Complete | ListEnd::TooManyPages) => self.0.fetch_and(!bit, Ordering::Relaxed),
            None => return,
        };
        if end == Some(ListEnd::Circular) && before & bit == 0 {
            let list = list.method();
            tracing::warn!(
                upstream,
                list,
                "the server's list cursors are circular; the list ends at the first page without new items"
            );
        }
    }
}

/// The most tools of an upstream with a warning each.
const WARNED_MAX: usize = 32;

/// Leaves tools with an invalid `x-mcp-header` out of lists, and warns of each once (U108).
#[derive(Debug, Default)]
pub(super) struct InvalidTools(Mutex<HashSet<String>>);

impl InvalidTools {
    pub(super) fn left_out(&self, upstream: &str, page: &Object) -> Option<Payload> {
        let is_valid = |tool: &Payload| Object::of(tool).is_none_or(|tool| header_annotations::are_valid(&tool));
        let (kept, invalid): (Vec<Payload>, Vec<Payload>) = page.get("tools")?.items().partition(is_valid);
        for name in invalid.iter().filter_map(|tool| Object::of(tool)?.get_string("name")) {
            let (tool, mut warned) = (one_line::name(&name), self.0.lock());
            if warned.len() < WARNED_MAX && warned.insert(tool.clone()) {
                tracing::warn!(upstream, %tool, "left a tool out of lists: its `x-mcp-header` annotations are invalid");
            }
        }
        (!invalid.is_empty()).then(|| page.edit().set("tools", Payload::of(&kept)).finish())
    }
}

#[cfg(test)]
mod tests;
