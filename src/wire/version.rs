//! Defines protocol versions: a closed, ordered set.

use std::fmt;

/// A version of the Model Context Protocol, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolVersion {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    /// The name that SEP-2663 uses for what was released as 2026-07-28: accepted, never advertised (T-80).
    V2026_06_30,
    V2026_07_28,
}

impl ProtocolVersion {
    /// The newest version with an `initialize` handshake.
    pub const NEWEST_SESSION: Self = Self::V2025_11_25;
    /// What stateless clients are told (`server/discover`, −32022).
    pub const ADVERTISED_STATELESS: [Self; 1] = [Self::V2026_07_28];

    /// Every version, oldest first.
    pub const ALL: [Self; 6] = [
        Self::V2024_11_05,
        Self::V2025_03_26,
        Self::V2025_06_18,
        Self::V2025_11_25,
        Self::V2026_06_30,
        Self::V2026_07_28,
    ];

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_06_30 => "2026-06-30",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// Per-request metadata instead of a session.
    #[must_use]
    pub fn is_stateless(self) -> bool {
        self >= Self::V2026_06_30
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_reads_back_and_stands_in_order() {
        for pair in ProtocolVersion::ALL.windows(2) {
            assert!(pair[0] < pair[1], "{} < {}", pair[0], pair[1]);
            assert_eq!(ProtocolVersion::parse(pair[0].as_str()), Some(pair[0]));
        }
        assert_eq!(ProtocolVersion::parse("2026-07-29"), None);
    }

    #[test]
    fn only_the_two_names_of_2026_07_28_are_stateless() {
        let stateless: Vec<_> = ProtocolVersion::ALL.into_iter().filter(|v| v.is_stateless()).collect();
        assert_eq!(stateless, [ProtocolVersion::V2026_06_30, ProtocolVersion::V2026_07_28]);
    }
}
