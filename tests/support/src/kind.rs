//! What a client speaks, and whether it has to do with tasks.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Session,
    Stateless,
    CoreTasks,
    ExtensionTasks,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Session, Self::Stateless, Self::CoreTasks, Self::ExtensionTasks];

    pub const fn title(self) -> &'static str {
        match self {
            Self::Session => "2025-11-25",
            Self::Stateless => "2026-07-28",
            Self::CoreTasks => "2025-11-25 with tasks",
            Self::ExtensionTasks => "2026-07-28 with tasks",
        }
    }

    pub const fn is_stateless(self) -> bool {
        matches!(self, Self::Stateless | Self::ExtensionTasks)
    }

    pub const fn has_tasks(self) -> bool {
        matches!(self, Self::CoreTasks | Self::ExtensionTasks)
    }
}
