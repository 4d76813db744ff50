//! Ends HTTP/1 connections that are idle too long, or too slow with a request head. hyper's one timer is created for
//! each request. Here idling may last longer than a head, and a timer is rarely reset.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, Sleep, sleep_until};

use super::ListenerLimits;
use super::connection_state::ConnectionState;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderTimeoutStage {
    /// The first byte of a request.
    Idle,
    Head,
}

#[derive(Debug)]
pub(super) struct HeaderTimeout {
    trail: Arc<ConnectionState>,
    stage: HeaderTimeoutStage,
    since: Instant,
    /// The number of requests when the stage began: another number means that the stage is over.
    begun: u32,
    timer: Option<Pin<Box<Sleep>>>,
    woken: Option<Waker>,
}

impl HeaderTimeout {
    pub(super) fn new(trail: Arc<ConnectionState>) -> Self {
        let begun = trail.begun();
        Self { trail, stage: HeaderTimeoutStage::Idle, since: Instant::now(), begun, timer: None, woken: None }
    }

    /// Records received bytes. Returns whether a head begins with them; bytes of a body or a pipelined request begin none.
    pub(super) fn note_bytes(&mut self) -> bool {
        let begins = self.stage == HeaderTimeoutStage::Idle && !self.trail.is_busy();
        if begins {
            self.enter(HeaderTimeoutStage::Head);
        }
        begins
    }

    /// Ready with the stage that timed out. A timer is always set: when hyper stops reading, only the timer wakes it.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, limits: &ListenerLimits) -> Poll<HeaderTimeoutStage> {
        if self.trail.is_busy() {
            // The stage begins when the request is over: the clock is read then.
            (self.stage, self.begun) = (HeaderTimeoutStage::Idle, self.trail.begun().wrapping_sub(1));
            if self.is_armed_for(context) {
                return Poll::Pending;
            }
        }
        loop {
            if self.trail.is_busy() || self.trail.begun() != self.begun {
                self.enter(HeaderTimeoutStage::Idle);
            }
            let ends_at = self.since
                + match self.stage {
                    HeaderTimeoutStage::Idle => limits.idle_deadline,
                    HeaderTimeoutStage::Head => limits.head_deadline,
                };
            let is_armed = self.is_armed_for(context);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(ends_at)));
            // A timer that fires too early is set again; only a timer that would fire too late is moved at once.
            if timer.deadline() > ends_at {
                timer.as_mut().reset(ends_at);
            } else if is_armed {
                return Poll::Pending;
            }
            self.woken = Some(context.waker().clone());
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= ends_at {
                return Poll::Ready(self.stage);
            }
            // One that has fired wakes no task until it is polled again.
            self.woken = None;
            timer.as_mut().reset(ends_at);
        }
    }

    /// Whether the timer will wake this task.
    fn is_armed_for(&self, context: &Context<'_>) -> bool {
        self.timer.as_ref().is_some_and(|timer| !timer.is_elapsed())
            && self.woken.as_ref().is_some_and(|task| task.will_wake(context.waker()))
    }

    fn enter(&mut self, stage: HeaderTimeoutStage) {
        self.stage = stage;
        self.since = Instant::now();
        self.begun = self.trail.begun();
    }
}
