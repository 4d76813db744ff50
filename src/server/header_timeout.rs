//! Ends HTTP/1 connections that are silent for too long: between requests, and inside a request head.
//!
//! hyper has one timer for both, made anew for each request. A client that keeps a connection for its next call
//! deserves more time than one that trickles a head; and a timer that is asked rarely costs a request nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

use super::ListenerLimits;
use super::connection_state::ConnectionState;

/// What the peer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderTimeoutStage {
    /// The first byte of a request.
    Idle,
    /// The rest of a head.
    Head,
}

/// The wait for the next request.
#[derive(Debug)]
pub(super) struct HeaderTimeout {
    trail: Arc<ConnectionState>,
    stage: HeaderTimeoutStage,
    since: Instant,
    /// How many requests had begun when the stage did: another count means that the stage is over.
    begun: u32,
    timer: Option<Pin<Box<Sleep>>>,
}

impl HeaderTimeout {
    pub(super) fn new(trail: Arc<ConnectionState>) -> Self {
        let begun = trail.begun();
        Self { trail, stage: HeaderTimeoutStage::Idle, since: Instant::now(), begun, timer: None }
    }

    /// Bytes have come; whether a head begins with them. Those of a body, or of a pipelined request, count as part of no
    /// head.
    pub(super) fn heard(&mut self) -> bool {
        let begins = self.stage == HeaderTimeoutStage::Idle && !self.trail.is_busy();
        if begins {
            self.enter(HeaderTimeoutStage::Head);
        }
        begins
    }

    /// Ready with the stage that took too long.
    ///
    /// hyper may stop reading while it is idle and is then woken by the timer alone, so one is always set.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, limits: &ListenerLimits) -> Poll<HeaderTimeoutStage> {
        loop {
            if self.trail.is_busy() || self.trail.begun() != self.begun {
                self.enter(HeaderTimeoutStage::Idle);
            }
            let ends_at = self.since
                + match self.stage {
                    HeaderTimeoutStage::Idle => limits.idle_deadline,
                    HeaderTimeoutStage::Head => limits.head_deadline,
                };
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(ends_at)));
            // A timer that fires too early is set again; only one that would fire too late is moved at once.
            if timer.deadline() > ends_at {
                timer.as_mut().reset(ends_at);
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= ends_at {
                return Poll::Ready(self.stage);
            }
            timer.as_mut().reset(ends_at);
        }
    }

    fn enter(&mut self, stage: HeaderTimeoutStage) {
        self.stage = stage;
        self.since = Instant::now();
        self.begun = self.trail.begun();
    }
}
