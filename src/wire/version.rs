//! Defines the protocol versions, a closed and ordered set, and their traits. A new version is a variant of
//! [`ProtocolVersion`] and a row of [`VersionTraits`], a constant of the same name.

use std::fmt;

use super::rpc_error::MISSING_CLIENT_CAPABILITY;

/// Generates the list of versions and the lookup of their traits from the enum: none can be missing.
macro_rules! versions {
    ($(#[$of_all:meta])* pub enum $All:ident { $($(#[$of_one:meta])* $One:ident,)+ }) => {
        $(#[$of_all])*
        pub enum $All { $($(#[$of_one])* $One,)+ }

        impl $All {
            pub const ALL: [Self; [$(Self::$One),+].len()] = [$(Self::$One),+];

            pub const fn traits(self) -> &'static VersionTraits {
                match self { $(Self::$One => &$One,)+ }
            }
        }
    };
}

versions! {
    /// A version of the Model Context Protocol, oldest first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ProtocolVersion {
        V2024_11_05,
        V2025_03_26,
        V2025_06_18,
        V2025_11_25,
        /// SEP-2663's name for the version released as 2026-07-28: accepted, never advertised (T-80).
        V2026_06_30,
        V2026_07_28,
    }
}

#[derive(Clone, Copy, Debug)]
pub struct VersionTraits {
    pub text: &'static str,
    /// Stored in tokens that outlive this program's version: no number is ever reused.
    pub number: u8,
    /// Per-request metadata instead of a session.
    pub is_stateless: bool,
    /// Whether clients, servers and operators see it in lists.
    pub is_advertised: bool,
    pub has_batches: bool,
    /// Whether a client resumes a stream by an event's id.
    pub has_event_ids: bool,
    /// Whether a stream begins with an event that has an id and no data; older clients read the data as JSON.
    pub has_primers: bool,
    /// Whether requests in a session name the version in a header.
    pub has_version_header: bool,
    pub elicitation: ElicitationKinds,
    pub has_sampling_tools: bool,
    pub has_session_tasks: bool,
    pub missing_capability: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElicitationKinds {
    None,
    Form,
    /// By form or by URL; both name the kind.
    FormAndUrl,
}

const V2024_11_05: VersionTraits = VersionTraits {
    text: "2024-11-05",
    number: 1,
    is_stateless: false,
    is_advertised: true,
    has_batches: false,
    has_event_ids: false,
    has_primers: false,
    has_version_header: false,
    elicitation: ElicitationKinds::None,
    has_sampling_tools: false,
    has_session_tasks: false,
    missing_capability: MISSING_CLIENT_CAPABILITY,
};

const V2025_03_26: VersionTraits =
    VersionTraits { text: "2025-03-26", number: 2, has_batches: true, has_event_ids: true, ..V2024_11_05 };

const V2025_06_18: VersionTraits = VersionTraits {
    text: "2025-06-18",
    number: 3,
    has_batches: false,
    has_version_header: true,
    elicitation: ElicitationKinds::Form,
    ..V2025_03_26
};

const V2025_11_25: VersionTraits = VersionTraits {
    text: "2025-11-25",
    number: 4,
    has_primers: true,
    elicitation: ElicitationKinds::FormAndUrl,
    has_sampling_tools: true,
    has_session_tasks: true,
    ..V2025_06_18
};

const V2026_06_30: VersionTraits =
    VersionTraits { text: "2026-06-30", number: 5, is_advertised: false, missing_capability: -32003, ..V2026_07_28 };

const V2026_07_28: VersionTraits = VersionTraits {
    text: "2026-07-28",
    number: 6,
    is_stateless: true,
    has_event_ids: false,
    has_primers: false,
    has_session_tasks: false,
    ..V2025_11_25
};

impl ProtocolVersion {
    /// The newest version with an `initialize` handshake.
    pub const NEWEST_SESSION: Self = Self::V2025_11_25;
    /// The version for servers without sessions, and in responses to stateless clients of an unknown version.
    pub const STATELESS: Self = Self::V2026_07_28;

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// The stateless versions that are advertised to clients and servers (`server/discover`, −32022).
    pub fn advertised_stateless() -> Vec<&'static str> {
        let all = Self::ALL.map(Self::traits).into_iter();
        all.filter(|of| of.is_advertised && of.is_stateless).map(|of| of.text).collect()
    }

    pub const fn as_str(self) -> &'static str {
        self.traits().text
    }

    pub const fn is_stateless(self) -> bool {
        self.traits().is_stateless
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
            assert!(pair[0].traits().number < pair[1].traits().number, "{}", pair[1]);
            assert_eq!(ProtocolVersion::parse(pair[0].as_str()), Some(pair[0]));
        }
        assert_eq!(ProtocolVersion::parse("2026-07-29"), None);
    }

    #[test]
    fn only_the_two_names_of_2026_07_28_are_stateless() {
        let stateless: Vec<_> = ProtocolVersion::ALL.into_iter().filter(|v| v.is_stateless()).collect();
        assert_eq!(stateless, [ProtocolVersion::V2026_06_30, ProtocolVersion::V2026_07_28]);
        assert_eq!(ProtocolVersion::advertised_stateless(), ["2026-07-28"]);
    }
}
