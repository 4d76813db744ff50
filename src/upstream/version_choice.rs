//! Chooses the protocol version that an upstream is asked for.
//!
//! Every server with a handshake answers `initialize`, those that also speak 2026-07-28 included, so it
//! is sent right away: no `server/discover` before it, which some servers take a minute to refuse. A
//! server that has no handshake at all refuses `initialize` with the versions that it does speak, and
//! that error is handed on ([`BeginError::Refused`](crate::upstream::BeginError::Refused)).

use parking_lot::Mutex;

use crate::wire::rpc_error::{INVALID_PARAMS, UNSUPPORTED_VERSION};
use crate::wire::{Object, ProtocolVersion, RpcError};

/// The version to ask for, as far as it is known. One per upstream, shared by all its sessions.
#[derive(Debug)]
pub(crate) struct VersionChoice {
    fixed: Option<ProtocolVersion>,
    /// What the last handshake agreed on. Asked for the next time, so that a server which refuses newer
    /// versions instead of naming its own is asked twice only once.
    agreed: Mutex<Option<ProtocolVersion>>,
}

impl VersionChoice {
    pub(crate) const fn new(fixed: Option<ProtocolVersion>) -> Self {
        Self { fixed, agreed: Mutex::new(None) }
    }

    /// The version that the operator fixed.
    pub(crate) const fn fixed(&self) -> Option<ProtocolVersion> {
        self.fixed
    }

    /// The version for the next handshake.
    pub(crate) fn ask(&self) -> ProtocolVersion {
        self.fixed.or_else(|| *self.agreed.lock()).unwrap_or(ProtocolVersion::NEWEST_SESSION)
    }

    /// Whether sessions of the version that the upstream chose are of use.
    pub(crate) fn accepts(&self, chosen: ProtocolVersion) -> bool {
        !chosen.is_stateless() && self.fixed.is_none_or(|fixed| fixed == chosen)
    }

    pub(crate) fn agreed(&self, version: ProtocolVersion) {
        *self.agreed.lock() = Some(version);
    }

    /// Which version to ask for after a refusal; `None` if there is nothing left to try.
    ///
    /// A refusal that contradicts an earlier agreement starts again from the newest version; otherwise
    /// the newest of those that the error names is tried, if it is older than what was refused.
    pub(crate) fn after_refusal(&self, asked: ProtocolVersion, error: &RpcError) -> Option<ProtocolVersion> {
        if self.fixed.is_some() || !is_about_version(error) {
            return None;
        }
        if self.agreed.lock().take().is_some() && asked < ProtocolVersion::NEWEST_SESSION {
            return Some(ProtocolVersion::NEWEST_SESSION);
        }
        self.named_by(asked, error)
    }

    /// The newest version older than `asked` that a refusal names; none beside a fixed one.
    pub(crate) fn named_by(&self, asked: ProtocolVersion, error: &RpcError) -> Option<ProtocolVersion> {
        if self.fixed.is_some() || !is_about_version(error) {
            return None;
        }
        let data = Object::of(error.data.as_ref()?)?;
        let supported: Vec<String> = data.get("supported")?.read().ok()?;
        let known = supported.iter().filter_map(|text| ProtocolVersion::parse(text));
        known.filter(|version| !version.is_stateless() && *version < asked).max()
    }
}

const fn is_about_version(error: &RpcError) -> bool {
    matches!(error.code, INVALID_PARAMS | UNSUPPORTED_VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: i64, supported: &[&str]) -> RpcError {
        RpcError::new(code, "unsupported protocol version").with_data(&serde_json::json!({ "supported": supported }))
    }

    #[track_caller]
    fn check(code: i64, supported: &[&str], expected: Option<ProtocolVersion>) {
        let choice = VersionChoice::new(None);
        let asked = choice.ask();
        assert_eq!(asked, ProtocolVersion::V2025_11_25);
        assert_eq!(choice.after_refusal(asked, &refusal(code, supported)), expected, "{code} {supported:?}");
    }

    #[test]
    fn a_refusal_that_names_an_older_version_is_followed() {
        check(INVALID_PARAMS, &["2025-03-26", "2025-06-18"], Some(ProtocolVersion::V2025_06_18));
        check(UNSUPPORTED_VERSION, &["2026-07-28", "2025-03-26"], Some(ProtocolVersion::V2025_03_26));
        check(UNSUPPORTED_VERSION, &["2026-07-28"], None);
        check(INVALID_PARAMS, &["2025-11-25"], None);
        check(INVALID_PARAMS, &["soon"], None);
        check(-32603, &["2025-06-18"], None);
    }

    #[test]
    fn a_contradiction_asks_for_the_newest_version_again() {
        let choice = VersionChoice::new(None);
        choice.agreed(ProtocolVersion::V2025_06_18);
        let asked = choice.ask();
        assert_eq!(asked, ProtocolVersion::V2025_06_18);
        let refused = refusal(INVALID_PARAMS, &[]);
        assert_eq!(choice.after_refusal(asked, &refused), Some(ProtocolVersion::V2025_11_25), "UPC-22");
    }

    #[test]
    fn a_fixed_version_wins() {
        let choice = VersionChoice::new(Some(ProtocolVersion::V2025_03_26));
        choice.agreed(ProtocolVersion::V2025_11_25);
        assert_eq!(choice.ask(), ProtocolVersion::V2025_03_26);
        assert!(!choice.accepts(ProtocolVersion::V2025_11_25));
        assert_eq!(choice.after_refusal(choice.ask(), &refusal(INVALID_PARAMS, &["2025-03-26"])), None);
    }
}
