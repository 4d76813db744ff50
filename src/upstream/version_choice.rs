//! Chooses the protocol version that is requested from an upstream. Every server with sessions answers `initialize`, so
//! no `server/discover` precedes it: some servers take a minute for that. A server without sessions refuses
//! `initialize` and names its versions; that error is forwarded ([`BeginError::Refused`]).

use parking_lot::Mutex;

use super::era::era_of_refusal;
use super::{BeginError, Era};
use crate::wire::rpc_error::METHOD_NOT_FOUND;
use crate::wire::{Object, ProtocolVersion};

/// The version to request, as far as it is known. One per upstream, shared by all its sessions.
#[derive(Debug)]
pub(crate) struct VersionChoice {
    fixed: Option<ProtocolVersion>,
    /// The version of the last handshake, requested next: a server that refuses newer ones gets two requests only once.
    agreed: Mutex<Option<ProtocolVersion>>,
}

impl VersionChoice {
    pub(crate) const fn new(fixed: Option<ProtocolVersion>) -> Self {
        Self { fixed, agreed: Mutex::new(None) }
    }

    pub(crate) const fn fixed(&self) -> Option<ProtocolVersion> {
        self.fixed
    }

    pub(crate) fn version_to_request(&self) -> ProtocolVersion {
        self.fixed.or_else(|| *self.agreed.lock()).unwrap_or(ProtocolVersion::NEWEST_SESSION)
    }

    /// Whether sessions of the upstream's chosen version are usable.
    pub(crate) fn accepts(&self, chosen: ProtocolVersion) -> bool {
        !chosen.is_stateless() && self.fixed.is_none_or(|fixed| fixed == chosen)
    }

    pub(crate) fn agreed(&self, version: ProtocolVersion) {
        *self.agreed.lock() = Some(version);
    }

    /// After a refusal: the newest again if it contradicts an earlier agreement, else an older version, if any is left.
    pub(crate) fn after_refusal(&self, asked: ProtocolVersion, refusal: &BeginError) -> Option<ProtocolVersion> {
        if self.fixed.is_some() || !may_be_about_version(refusal) {
            return None;
        }
        if self.agreed.lock().take().is_some() && asked < ProtocolVersion::NEWEST_SESSION {
            return Some(ProtocolVersion::NEWEST_SESSION);
        }
        self.older(asked, refusal)
    }

    /// The newest version older than `asked`, among the refusal's versions if it names any; none with a fixed version.
    /// A server may refuse a version in any form, so every refusal leads to the next older one.
    pub(crate) fn older(&self, asked: ProtocolVersion, refusal: &BeginError) -> Option<ProtocolVersion> {
        if self.fixed.is_some() || !may_be_about_version(refusal) {
            return None;
        }
        let is_older = |version: &ProtocolVersion| !version.is_stateless() && *version < asked;
        match supported(refusal) {
            Some(named) => named.iter().filter_map(|text| ProtocolVersion::parse(text)).filter(is_older).max(),
            None => ProtocolVersion::ALL.into_iter().filter(is_older).max(),
        }
    }
}

fn supported(refusal: &BeginError) -> Option<Vec<String>> {
    let BeginError::Refused(error) = refusal else { return None };
    Object::of(error.data.as_ref()?)?.get("supported")?.read().ok()
}

/// Whether a refusal of `initialize` may be about the version. Without versions, an error of a server without sessions
/// is about the handshake; the excluded statuses are about credentials, the address or the server's load.
fn may_be_about_version(refusal: &BeginError) -> bool {
    match refusal {
        // A server without `initialize` has it in no version; a gateway has asked its server for older versions itself.
        BeginError::Refused(error) => {
            let is_final = error.code == METHOD_NOT_FOUND || error.is_gateways();
            supported(refusal).is_some() || (!is_final && era_of_refusal(error) == Era::Session)
        }
        BeginError::Gateway(fault) => fault.http_status.is_some_and(|status| {
            status >= 400 && !matches!(status, 401 | 403 | 404 | 405 | 408 | 425 | 429 | 502 | 503 | 504)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Executed, GatewayFault, Reason};
    use crate::wire::RpcError;
    use crate::wire::rpc_error::{INVALID_PARAMS, UNSUPPORTED_VERSION};

    fn refusal(code: i64, supported: &[&str]) -> BeginError {
        let error = RpcError::new(code, "unsupported protocol version");
        BeginError::Refused(error.with_data(&serde_json::json!({ "supported": supported })))
    }

    fn status(status: u16) -> BeginError {
        let fault = GatewayFault::new(Reason::UpstreamHttpStatus, Executed::No);
        BeginError::Gateway(GatewayFault { http_status: Some(status), ..fault })
    }

    #[track_caller]
    fn check(refusal: &BeginError, expected: Option<ProtocolVersion>) {
        let choice = VersionChoice::new(None);
        let asked = choice.version_to_request();
        assert_eq!(asked, ProtocolVersion::V2025_11_25);
        assert_eq!(choice.after_refusal(asked, refusal), expected, "{refusal:?}");
    }

    #[test]
    fn a_refusal_that_names_an_older_version_is_followed() {
        check(&refusal(INVALID_PARAMS, &["2025-03-26", "2025-06-18"]), Some(ProtocolVersion::V2025_06_18));
        check(&refusal(-32603, &["2025-03-26"]), Some(ProtocolVersion::V2025_03_26));
        check(&refusal(UNSUPPORTED_VERSION, &["2026-07-28", "2025-03-26"]), Some(ProtocolVersion::V2025_03_26));
        check(&refusal(UNSUPPORTED_VERSION, &["2026-07-28"]), None);
        check(&refusal(INVALID_PARAMS, &["2025-11-25"]), None);
        check(&refusal(INVALID_PARAMS, &["soon"]), None);
    }

    #[test]
    fn a_refusal_in_any_other_words_leads_to_each_older_version_in_turn() {
        let words = BeginError::Refused(RpcError::new(
            -32_000,
            "Bad Request: Unsupported protocol version (supported versions: 2025-03-26)",
        ));
        let choice = VersionChoice::new(None);
        for refusal in [&words, &status(400), &status(500)] {
            let mut asked = choice.version_to_request();
            let mut tried = Vec::new();
            while let Some(next) = choice.after_refusal(asked, refusal) {
                tried.push(next.as_str());
                asked = next;
            }
            assert_eq!(tried, ["2025-06-18", "2025-03-26", "2024-11-05"], "UPC-22: {refusal:?}");
        }
        check(&BeginError::Refused(RpcError::new(METHOD_NOT_FOUND, "Method not found: initialize")), None);
        for about_another in [401, 403, 404, 405, 429, 503] {
            check(&status(about_another), None);
        }
        let died = RpcError::new(-32603, "The upstream server closed the connection");
        let died = died.with_data(&serde_json::json!({ "source": "gateway", "reason": "upstream_closed" }));
        check(&BeginError::Refused(died), None);
    }

    #[test]
    fn a_contradiction_asks_for_the_newest_version_again() {
        let choice = VersionChoice::new(None);
        choice.agreed(ProtocolVersion::V2025_06_18);
        let asked = choice.version_to_request();
        assert_eq!(asked, ProtocolVersion::V2025_06_18);
        let refused = refusal(INVALID_PARAMS, &[]);
        assert_eq!(choice.after_refusal(asked, &refused), Some(ProtocolVersion::V2025_11_25), "UPC-22");
    }

    #[test]
    fn a_fixed_version_wins() {
        let choice = VersionChoice::new(Some(ProtocolVersion::V2025_03_26));
        choice.agreed(ProtocolVersion::V2025_11_25);
        assert_eq!(choice.version_to_request(), ProtocolVersion::V2025_03_26);
        assert!(!choice.accepts(ProtocolVersion::V2025_11_25));
        assert_eq!(choice.after_refusal(choice.version_to_request(), &refusal(INVALID_PARAMS, &["2025-03-26"])), None);
    }
}
