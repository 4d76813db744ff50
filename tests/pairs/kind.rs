//! What a client speaks, and whether it has to do with tasks.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Session,
    Stateless,
    CoreTasks,
    ExtensionTasks,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Session, Self::Stateless, Self::CoreTasks, Self::ExtensionTasks];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Session => "2025-11-25",
            Self::Stateless => "2026-07-28",
            Self::CoreTasks => "2025-11-25 with tasks",
            Self::ExtensionTasks => "2026-07-28 with tasks",
        }
    }

    pub(crate) const fn is_stateless(self) -> bool {
        matches!(self, Self::Stateless | Self::ExtensionTasks)
    }

    pub(crate) const fn has_tasks(self) -> bool {
        matches!(self, Self::CoreTasks | Self::ExtensionTasks)
    }
}
