//! Caches the large lists of a server.

use async_trait::async_trait;
use serde_json::json;

use super::*;
use crate::upstream::{Answer, Exchange, ExchangeError, ExchangeEvent, Handshake, ResumeToken, Timeouts};

const LIST_BYTES: usize = 1 << 20;

/// A server with one tool, the description of which takes a megabyte.
#[derive(Debug)]
struct LargeUpstream {
    name: Arc<str>,
    changes: broadcast::Sender<(Arc<str>, Option<Payload>)>,
}

struct LargeList;

#[async_trait]
impl Upstream for LargeUpstream {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        unreachable!()
    }

    async fn begin(&self, _: UpstreamRequest, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Ok(Box::new(LargeList))
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

/// U52: a client gets another list with each set of capabilities.
#[tokio::test]
async fn u52_cached_lists_are_bounded_in_bytes_and_a_new_one_is_kept() {
    let upstream = LargeUpstream { name: Arc::from("up"), changes: broadcast::Sender::new(1) };
    let catalog = Catalog::new(Arc::new(upstream));
    let context = |n: u64| {
        let capabilities = Payload::of(&json!({ "experimental": { "n": n } }));
        CallContext::new(Principal::local(), capabilities, Timeouts::default(), 2 * LIST_BYTES)
    };
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
