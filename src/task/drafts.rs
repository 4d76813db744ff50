//! The protocol drafts that an operator can enable for an upstream.

named_variants! {
    pub enum Draft, as_str {
        /// Tasks with client-chosen ids.
        Sep1686 = "sep-1686",
        /// Subtasks.
        Sep2268 = "sep-2268",
        /// Filtered task lists.
        Sep1904 = "sep-1904",
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    on: [bool; Draft::ALL.len()],
}

impl Drafts {
    pub fn has(self, draft: Draft) -> bool {
        self.on[draft as usize]
    }
}

/// Limits on the trees of a server's subtasks that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubtaskLimits {
    /// Maximum depth below the top task.
    pub depth_max: u32,
    pub count_max: usize,
}

impl SubtaskLimits {
    /// With one name too many, the tree is known to be larger.
    pub const fn names_max(self) -> usize {
        self.count_max.saturating_add(1)
    }
}

impl Default for SubtaskLimits {
    fn default() -> Self {
        Self { depth_max: 8, count_max: 1_000 }
    }
}

impl FromIterator<Draft> for Drafts {
    fn from_iter<I: IntoIterator<Item = Draft>>(drafts: I) -> Self {
        let mut all = Self::default();
        for draft in drafts {
            all.on[draft as usize] = true;
        }
        all
    }
}
