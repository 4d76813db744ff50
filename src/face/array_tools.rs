//! Shares the servers' tool names among the calls of one array.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// The tools of each server that the calls of an array name, listed once. At an endpoint the calls have several servers.
#[derive(Debug, Default)]
pub struct ArrayTools(Mutex<HashMap<Arc<str>, Arc<ServerTools>>>);

impl ArrayTools {
    pub(super) fn of(&self, upstream: &Arc<str>) -> Arc<ServerTools> {
        Arc::clone(self.0.lock().entry(Arc::clone(upstream)).or_default())
    }
}

/// A server's tools, listed at the first use.
pub(super) type ServerTools = OnceCell<ListedNames>;

/// Empty if the server returns no list.
#[derive(Debug, Default)]
pub(super) struct ListedNames {
    pub(super) names: HashSet<String>,
    pub(super) is_whole: bool,
}
