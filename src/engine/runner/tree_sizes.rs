//! Keeps what runners know of subtasks that a server named: which have no task yet, and how many each tree has. One runner of
//! a tree adds to it at a time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::task::{TaskId, TaskKey};
use crate::upstream::UpstreamSubtask;

/// What a runner knows of the subtasks that its server named.
#[derive(Default)]
pub(super) struct NamedSubtasks {
    /// Those that have no row yet: their parent has none, or they came just now.
    pub(super) waiting: Vec<UpstreamSubtask>,
    /// Those whose rows, and whose names in their parent's, may be stored: nobody knows.
    pub(super) doubtful: HashSet<TaskId>,
    /// How many the whole tree has, once somebody counted.
    pub(super) size: Option<Arc<TreeSize>>,
    /// What the log has about those that were left out.
    pub(super) told: Vec<&'static str>,
}

/// How many subtasks a tree has; `None` until somebody counted.
pub(in crate::engine) type TreeSize = tokio::sync::Mutex<Option<usize>>;

/// The trees that somebody adds to, by the task at the top.
#[derive(Debug, Default)]
pub(in crate::engine) struct TreeSizes {
    by_top: Mutex<HashMap<TaskKey, Weak<TreeSize>>>,
}

impl TreeSizes {
    /// That of one tree, for as long as it is held.
    pub(super) fn of(&self, top: &TaskKey) -> Arc<TreeSize> {
        let mut by_top = self.by_top.lock();
        if let Some(size) = by_top.get(top).and_then(Weak::upgrade) {
            return size;
        }
        by_top.retain(|_, size| size.strong_count() > 0);
        let size = Arc::default();
        by_top.insert(top.clone(), Arc::downgrade(&size));
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract::task;

    #[tokio::test]
    async fn a_tree_is_counted_for_as_long_as_somebody_holds_it() {
        let sizes = TreeSizes::default();
        let [one, other] = [1, 2].map(|id| task("local", id).key);
        let held = sizes.of(&one);
        *held.lock().await = Some(3);
        assert_eq!(*sizes.of(&one).lock().await, Some(3));
        drop(held);
        assert_eq!(*sizes.of(&other).lock().await, None);
        assert_eq!((*sizes.of(&one).lock().await, sizes.by_top.lock().len()), (None, 1), "nothing is left behind");
    }
}
