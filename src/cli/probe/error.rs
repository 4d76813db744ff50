//! Explains in a sentence why a server cannot be probed.

use url::Url;

use crate::dialect::faults::session_failure_error;
use crate::task::{Failure, GatewayFault, ProcessExit, Reason};
use crate::upstream::BeginError;
use crate::upstream::http::SessionUpstream;
use crate::upstream::upstream_health::UpstreamFailure;
use crate::wire::RpcError;

#[derive(Clone, Debug)]
pub(super) enum ProbeError {
    Fault(GatewayFault),
    Trouble(Box<(GatewayFault, UpstreamFailure)>),
    Refused(RpcError),
    Late,
    Unusable(String),
    NotOverThis,
}

impl ProbeError {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Refused(error) => format!("{} {}", error.code, error.message),
            Self::Late => "no answer in time".to_owned(),
            Self::Unusable(text) => text.clone(),
            Self::NotOverThis => "not over this transport".to_owned(),
            Self::Fault(fault) => fault_text(fault),
            Self::Trouble(known) => trouble_text(&known.0, &known.1),
        }
    }

    /// Adds the transport's details.
    pub(super) fn explained(self, upstream: &SessionUpstream) -> Self {
        match (self, upstream.health().last()) {
            (Self::Fault(fault), Some(trouble)) if fault.reason == trouble.reason => {
                Self::Trouble(Box::new((fault, trouble)))
            }
            (other, _) => other,
        }
    }

    pub(super) const fn reason(&self) -> Option<Reason> {
        match self {
            Self::Fault(fault) => Some(fault.reason),
            Self::Trouble(known) => Some(known.0.reason),
            Self::Refused(_) | Self::Late | Self::Unusable(_) | Self::NotOverThis => None,
        }
    }

    pub(super) fn redirect(&self) -> Option<&Url> {
        let Self::Trouble(known) = self else { return None };
        known.1.location.as_ref().filter(|_| known.0.reason == Reason::UpstreamRedirect)
    }

    /// Whether another transport at the same address would fail, too.
    pub(super) const fn is_of_the_place(&self) -> bool {
        match self {
            Self::Fault(_) | Self::Trouble(_) => {
                matches!(self.reason(), Some(Reason::UpstreamUnreachable | Reason::UpstreamTls | Reason::UpstreamAuth))
            }
            Self::Late | Self::Unusable(_) => true,
            Self::Refused(_) | Self::NotOverThis => false,
        }
    }
}

/// The fault in a sentence, if its cause is known.
fn trouble_text(fault: &GatewayFault, trouble: &UpstreamFailure) -> String {
    let cause = &trouble.cause;
    let is = |reason| fault.reason == reason;
    if is(Reason::UpstreamUnreachable) && fault.exit.is_none() {
        format!("it cannot be reached: {cause}")
    } else if is(Reason::UpstreamAuth) {
        let metadata = trouble.location.as_ref().map(|url| format!("; its metadata: {url}")).unwrap_or_default();
        format!("it asks for credentials, or for others ({cause}); put a key into TASKGATE_KEY{metadata}")
    } else if let Some(to) = &trouble.location {
        format!("it points to {to} (HTTP {})", fault.http_status.unwrap_or_default())
    } else if is(Reason::UpstreamMalformed) {
        format!("its answer is not MCP: {cause}")
    } else if is(Reason::UpstreamTls) || is(Reason::UpstreamHttpStatus) || is(Reason::UpstreamRedirect) {
        cause.clone()
    } else {
        fault_text(fault)
    }
}

pub(super) fn fault_text(fault: &GatewayFault) -> String {
    let without_exit = GatewayFault { exit: None, ..*fault };
    let mut text = session_failure_error(&Failure::Gateway(without_exit)).message;
    // Some texts contain it already.
    let status = fault.http_status.map(|status| format!(" (HTTP {status})"));
    if let Some(status) = status.filter(|status| !text.ends_with(status)) {
        text.push_str(&status);
    }
    match fault.exit {
        Some(ProcessExit::Code(127)) => {
            text.push_str(
                " (it ended with exit code 127, which means that the program, or one that it starts, is not found)",
            );
        }
        Some(ProcessExit::Code(code)) => text.push_str(&format!(" (it ended with exit code {code})")),
        Some(ProcessExit::Signal(signal)) => text.push_str(&format!(" (signal {signal} ended it)")),
        None => (),
    }
    text
}

impl From<BeginError> for ProbeError {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::Gateway(fault) => Self::Fault(fault),
            BeginError::Refused(error) => Self::Refused(error),
        }
    }
}
