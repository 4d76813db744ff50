//! The kinds of clients: their version, and whether they use tasks.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Session,
    Stateless,
    CoreTasks,
    ExtensionTasks,
    /// Chooses the ids of its tasks (SEP-1686).
    ChosenIds,
    /// Looks for its tasks by filters (SEP-1904).
    FilteredTasks,
    /// Reads subtasks (SEP-2268).
    Subtasks,
}

impl Kind {
    /// Those that any gateway serves.
    pub const WITHOUT_DRAFTS: [Self; 4] = [Self::Session, Self::Stateless, Self::CoreTasks, Self::ExtensionTasks];

    /// And those before a gateway whose upstream has their drafts on.
    pub const ALL: [Self; 7] = [
        Self::Session,
        Self::Stateless,
        Self::CoreTasks,
        Self::ExtensionTasks,
        Self::ChosenIds,
        Self::FilteredTasks,
        Self::Subtasks,
    ];

    pub const fn title(self) -> &'static str {
        match self {
            Self::Session => "2025-11-25",
            Self::Stateless => "2026-07-28",
            Self::CoreTasks => "2025-11-25 with tasks",
            Self::ExtensionTasks => "2026-07-28 with tasks",
            Self::ChosenIds => "2025-11-25 with SEP-1686",
            Self::FilteredTasks => "2025-11-25 with tasks and SEP-1904",
            Self::Subtasks => "2025-11-25 with tasks and SEP-2268",
        }
    }

    /// The draft that it uses, as the upstream's `drafts` names it.
    pub const fn draft(self) -> Option<&'static str> {
        match self {
            Self::ChosenIds => Some("sep-1686"),
            Self::FilteredTasks => Some("sep-1904"),
            Self::Subtasks => Some("sep-2268"),
            Self::Session | Self::Stateless | Self::CoreTasks | Self::ExtensionTasks => None,
        }
    }

    pub const fn is_stateless(self) -> bool {
        matches!(self, Self::Stateless | Self::ExtensionTasks)
    }

    /// Whether tasks of its version are offered to it.
    pub const fn has_tasks(self) -> bool {
        matches!(self, Self::CoreTasks | Self::ExtensionTasks | Self::FilteredTasks | Self::Subtasks)
    }
}
