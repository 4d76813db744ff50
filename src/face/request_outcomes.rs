//! Counts the requests of one upstream's clients by outcome.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use metrics::Counter;

use super::answer::ErrorAnswerMarker;
use super::http::FaceResponse;
use crate::metric;

pub(super) struct RequestOutcomes {
    answered: Counter,
    stream: Counter,
    accepted: Counter,
    error: Counter,
    refused: Counter,
}

impl RequestOutcomes {
    /// The metrics recorder must be installed before.
    pub(super) fn of(upstream: &Arc<str>) -> Self {
        let counter = |outcome: &'static str| metrics::counter!(metric::REQUESTS, "upstream" => Arc::clone(upstream), "outcome" => outcome);
        Self {
            answered: counter("answered"),
            stream: counter("stream"),
            accepted: counter("accepted"),
            error: counter("error"),
            refused: counter("refused"),
        }
    }

    /// Counts a request by its response head.
    pub(super) fn count(&self, response: &FaceResponse) {
        let status = response.status();
        let counter = if status.is_client_error() || status.is_server_error() {
            &self.refused
        } else if status == StatusCode::ACCEPTED {
            &self.accepted
        } else if response.extensions().get::<ErrorAnswerMarker>().is_some() {
            &self.error
        } else if response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
        {
            &self.stream
        } else {
            &self.answered
        };
        counter.increment(1);
    }
}

impl fmt::Debug for RequestOutcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestOutcomes").finish_non_exhaustive()
    }
}
