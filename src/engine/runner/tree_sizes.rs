//! Counts the subtasks of each tree. One runner of a tree adds to it at a time.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::task::TaskKey;

/// The number of subtasks in a tree; `None` until it was counted.
pub(in crate::engine) type TreeSize = tokio::sync::Mutex<Option<usize>>;

#[derive(Debug, Default)]
pub(in crate::engine) struct TreeSizes {
    by_top: Mutex<HashMap<TaskKey, Weak<TreeSize>>>,
}

impl TreeSizes {
    /// The size of one tree, shared as long as a runner holds it.
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
    async fn a_tree_is_counted_for_as_long_as_it_has_a_holder() {
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
