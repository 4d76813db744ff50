//! Reads the subtasks below a task, to the depth and size that a caller requests.

use std::sync::Arc;

use super::change::HeldRow;
use super::{Engine, TaskError};
use crate::task::{Principal, Summary, Task, TaskId, TaskKey, TreeLinks};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubtaskTree {
    pub task: Summary,
    /// In order; incomplete where a limit was reached.
    pub below: Vec<Self>,
}

impl Engine {
    /// The subtasks below a task with this `tree`, at most `limit`, nearest first, also unseen ones. Cancel safe.
    pub async fn subtasks_of(
        self: &Arc<Self>,
        owner: &Principal,
        tree: &TreeLinks,
        limit: usize,
    ) -> Result<Vec<SubtaskTree>, TaskError> {
        // Each with its parent's index; `None` for direct children of the task.
        let mut rows: Vec<(Option<usize>, SubtaskTree)> = Vec::new();
        let mut wanted: Vec<(Option<usize>, TaskId)> = tree.children.iter().map(|child| (None, *child)).collect();
        let mut next = 0;
        while next < wanted.len() && rows.len() < limit {
            let (parent, id) = wanted[next];
            next += 1;
            match self.load_any(&TaskKey { owner: owner.clone(), id }).await {
                Ok(child) => {
                    wanted.extend(child.tree.children.iter().map(|below| (Some(rows.len()), *below)));
                    rows.push((parent, SubtaskTree { task: Summary::of(&child), below: Vec::new() }));
                }
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        let mut nearest = Vec::new();
        while let Some((parent, mut row)) = rows.pop() {
            row.below.reverse();
            match parent {
                Some(parent) => rows[parent].1.below.push(row),
                None => nearest.push(row),
            }
        }
        nearest.reverse();
        Ok(nearest)
    }

    /// A task without the subtasks that its owner does not see. Cancel safe.
    pub async fn as_seen(self: &Arc<Self>, task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
        if task.tree.children.is_empty() {
            return Ok(task);
        }
        let tree = self.seen_tree(&task.key.owner, &task.tree).await?;
        Ok(if tree == task.tree { task } else { Arc::new(Task { tree, ..Task::clone(&task) }) })
    }

    /// The part of `tree` that its owner sees: no subtasks that are parts of the task (SUB-06, T-40). Cancel safe.
    pub async fn seen_tree(self: &Arc<Self>, owner: &Principal, tree: &TreeLinks) -> Result<TreeLinks, TaskError> {
        // All children of one task have the same visibility.
        let Some(first) = tree.children.first() else { return Ok(tree.clone()) };
        match self.load_visible(&TaskKey { owner: owner.clone(), id: *first }).await {
            Ok(_) => Ok(tree.clone()),
            Err(TaskError::Unknown) => Ok(TreeLinks { parent: tree.parent, ..TreeLinks::default() }),
            Err(error) => Err(error),
        }
    }

    /// The settled direct subtasks with their index, also unseen ones, but none beyond `bytes_max`. Cancel safe.
    pub async fn settled_subtasks(
        self: &Arc<Self>,
        owner: &Principal,
        tree: &TreeLinks,
        bytes_max: usize,
    ) -> Result<Vec<(usize, Arc<Task>)>, TaskError> {
        let (mut settled, mut bytes) = (Vec::new(), 0);
        for (index, id) in tree.children.iter().enumerate() {
            let room = bytes_max.saturating_sub(bytes);
            let child = match self.load_within(&TaskKey { owner: owner.clone(), id: *id }, room).await {
                Ok(HeldRow::Read(child)) if child.is_settled() => child,
                Ok(HeldRow::Read(_) | HeldRow::Large { .. }) | Err(TaskError::Unknown) => continue,
                Err(error) => return Err(error),
            };
            if child.stored_bytes() <= room {
                bytes += child.stored_bytes();
                settled.push((index, child));
            }
        }
        Ok(settled)
    }
}
