//! Caches the large lists of a server.

use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use serde_json::json;
use tokio_util::task::TaskTracker;

use super::*;
use crate::upstream::{Answer, Exchange, ExchangeError, ExchangeEvent, Handshake, ResumeToken, Timeouts};

const LIST_BYTES: usize = 1 << 20;

/// A server with one tool, the description of which takes a megabyte.
#[derive(Debug)]
struct LargeUpstream {
    name: Arc<str>,
    changes: broadcast::Sender<(Arc<str>, Option<Payload>)>,
    /// From now on.
    lists: Mutex<Listing>,
    asked: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
enum Listing {
    Whole,
    After(Duration),
    Never,
    Refused,
}

struct LargeList(Listing);

#[async_trait]
impl Upstream for LargeUpstream {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        unreachable!()
    }

    async fn begin(&self, _: UpstreamRequest, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(LargeList(*self.lists.lock())))
    }

    async fn resume(&self, _: ResumeToken, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        unreachable!()
    }

    async fn notifications(&self, _: &CallContext) -> Result<Notifications, BeginError> {
        Ok(self.changes.subscribe())
    }
}

#[async_trait]
impl Exchange for LargeList {
    async fn next(&mut self) -> ExchangeEvent {
        match self.0 {
            Listing::Whole => (),
            Listing::After(long) => tokio::time::sleep(long).await,
            Listing::Never => std::future::pending().await,
            Listing::Refused => return ExchangeEvent::Faulted(RpcError::new(-32602, "no such cursor")),
        }
        let tool = json!({ "name": "t", "description": "x".repeat(LIST_BYTES) });
        ExchangeEvent::Returned(Payload::of(&json!({ "tools": [tool] })))
    }

    async fn answer(&mut self, _: &Payload, _: Answer) -> Result<(), ExchangeError> {
        unreachable!()
    }

    async fn cancel(&mut self, _: &str) {}

    fn resume_token(&self) -> Option<ResumeToken> {
        None
    }
}

fn large_upstream() -> Arc<LargeUpstream> {
    let (name, changes, lists) = (Arc::from("up"), broadcast::Sender::new(1), Mutex::new(Listing::Whole));
    Arc::new(LargeUpstream { name, changes, lists, asked: AtomicUsize::new(0) })
}

fn scope() -> TaskScope {
    TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() }
}

/// The catalog of a server that has listed its tools once, and from now on does so in this way.
async fn listed_once(listing: Listing) -> (Arc<LargeUpstream>, Arc<Catalog>, TaskScope) {
    let (upstream, scope) = (large_upstream(), scope());
    let catalog = Arc::new(Catalog::new(Arc::clone(&upstream) as Arc<dyn Upstream>));
    assert!(catalog.list_to_call("t", &context(0), &scope).await.unwrap().tool("t").is_some());
    *upstream.lists.lock() = listing;
    tokio::time::advance(FRESH_FOR).await;
    (upstream, catalog, scope)
}

/// Of a client with other capabilities for each number.
fn context(n: u64) -> CallContext {
    let capabilities = Payload::of(&json!({ "experimental": { "n": n } }));
    CallContext::new(Principal::local(), capabilities, Timeouts::default(), 2 * LIST_BYTES)
}

/// A synchronous program lists nothing while it runs a call, and its tools stay the same.
#[tokio::test(start_paused = true)]
async fn u105_a_call_needs_no_new_list_if_the_last_one_has_its_tool() {
    for listing in [Listing::Never, Listing::Refused] {
        let (_, catalog, scope) = listed_once(listing).await;
        let known = catalog.list_to_call("t", &context(0), &scope).await.unwrap();
        assert!(known.tool("t").is_some() && !known.is_fresh(), "{listing:?}");
        for (tool, n) in [("other", 0), ("t", 1)] {
            let listed = catalog.list_to_call(tool, &context(n), &scope).await;
            listed.expect_err("no list has this tool for this client");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn u106_a_fetch_goes_on_without_the_calls_that_waited_for_it_and_its_list_is_kept() {
    let (upstream, catalog, scope) = listed_once(Listing::After(Duration::from_secs(30))).await;
    let (began, context) = (Instant::now(), context(0));
    let call_at = |second| {
        let call = catalog.list_to_call("t", &context, &scope);
        async move {
            tokio::time::sleep_until(began + Duration::from_secs(second)).await;
            let is_fresh = call.await.unwrap().is_fresh();
            (is_fresh, began.elapsed().as_secs())
        }
    };
    let answers = tokio::join!(call_at(0), call_at(3), call_at(7), call_at(29), call_at(32));
    let (last, newest) = (|at| (false, at), |at| (true, at));
    assert_eq!(answers, (last(5), last(5), last(7), last(29), newest(32)), "none waits again");
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 2, "all calls share one fetch");
}

#[tokio::test(start_paused = true)]
async fn u106_a_fetch_ends_with_its_upstream_and_after_its_own_bound() {
    for is_removed in [true, false] {
        let (_, catalog, scope) = listed_once(Listing::Never).await;
        catalog.list_to_call("t", &context(0), &scope).await.unwrap();
        let left = Instant::now();
        assert_eq!(scope.tracker.len(), 1, "the fetch goes on");
        if is_removed {
            scope.stop.cancel();
        }
        scope.tracker.close();
        scope.tracker.wait().await;
        assert_eq!(left.elapsed() < Duration::from_secs(1), is_removed);
    }
}

#[test]
fn u108_lists_lose_invalid_tools_alone_and_warnings_are_bounded() {
    let tool = |name: String, header: &str| {
        let schema = json!({ "properties": { "r": { "type": "string", "x-mcp-header": header } } });
        json!({ "name": name, "inputSchema": schema })
    };
    let page = |tools: Vec<serde_json::Value>| Object::of(&Payload::of(&json!({ "tools": tools, "n": 1 }))).unwrap();
    let tools = InvalidTools::default();
    let valid = tool("valid".to_owned(), "Region");
    assert!(tools.left_out("up", &page(vec![valid.clone(), json!(7)])).is_none());
    for round in 0..2 {
        let invalid = (0..=WARNED_MAX).map(|n| tool(n.to_string(), "a b"));
        let left = tools.left_out("up", &page(invalid.chain([valid.clone()]).collect())).unwrap();
        assert_eq!(left, *page(vec![valid.clone()]).payload(), "{round}");
        assert_eq!(tools.0.lock().len(), WARNED_MAX, "{round}");
    }
}

/// U52: a client gets another list with each set of capabilities.
#[tokio::test]
async fn u52_cached_lists_are_bounded_in_bytes_and_a_new_one_is_kept() {
    let catalog = Catalog::new(large_upstream());
    let lists = ALL_BYTES_MAX * 5 / 4 / LIST_BYTES as u64;
    for n in 0..lists {
        catalog.list(&context(n)).await.unwrap();
        catalog.lists.run_pending_tasks().await;
        catalog.whole.run_pending_tasks().await;
        assert!(catalog.lists.contains_key(&list_key(&context(n))), "{n}");
    }
    assert!(catalog.lists.weighted_size() <= ALL_BYTES_MAX && catalog.whole.weighted_size() <= ALL_BYTES_MAX);
    assert!(catalog.lists.entry_count() > 0 && !catalog.lists.contains_key(&list_key(&context(0))));
}
