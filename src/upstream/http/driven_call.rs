//! Polls one call's future for its owner, and yields its events in order.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::latencies::ExchangeClass;
use crate::upstream::outgoing::HandedOver;
use crate::upstream::session::UpstreamLink;
use crate::upstream::upstream_health::HealthMark;
use crate::upstream::{BeginError, ExchangeError, ExchangeEvent};

/// Returns the last event.
pub(super) type CallFuture = Pin<Box<dyn Future<Output = ExchangeEvent> + Send>>;

pub(super) struct DrivenCall {
    link: Arc<UpstreamLink>,
    queue: mpsc::Receiver<Box<ExchangeEvent>>,
    state: DrivenCallState,
    began: Instant,
    class: ExchangeClass,
    mark: HealthMark,
}

enum DrivenCallState {
    Running(CallFuture),
    /// The last event, after the events in the queue.
    Ended(ExchangeEvent),
}

impl DrivenCall {
    pub(super) fn new(
        link: &Arc<UpstreamLink>,
        class: ExchangeClass,
        began: Instant,
        queue: mpsc::Receiver<Box<ExchangeEvent>>,
        call: CallFuture,
    ) -> Self {
        let (link, mark) = (Arc::clone(link), link.health.mark());
        Self { link, queue, state: DrivenCallState::Running(call), began, class, mark }
    }

    pub(super) const fn is_running(&self) -> bool {
        matches!(self.state, DrivenCallState::Running(_))
    }

    /// Runs the call until a connection has taken it. On an error the call ended and nothing was sent.
    pub(super) async fn hand_over(&mut self, handed_over: &HandedOver) -> Result<(), BeginError> {
        let DrivenCallState::Running(call) = &mut self.state else { return Ok(()) };
        let last = tokio::select! {
            biased;
            _ = handed_over.wait() => return Ok(()),
            last = call => last,
        };
        self.link.ended(self.class, self.mark, &last);
        if let ExchangeEvent::Lost(ExchangeError(fault)) = last
            && !handed_over.initialized()
        {
            return Err(BeginError::Gateway(fault));
        }
        self.end(last);
        Ok(())
    }

    /// Runs a call that is to be cancelled, until `then` or its end. Events stay in the queue.
    pub(super) async fn run_until<T>(&mut self, then: impl Future<Output = T>) {
        let DrivenCallState::Running(call) = &mut self.state else { return };
        let last = tokio::select! {
            biased;
            last = call => last,
            _ = then => return,
        };
        self.end(last);
    }

    /// The next event; after the end, the last one repeatedly. Cancel safe.
    pub(super) async fn next(&mut self) -> ExchangeEvent {
        loop {
            if let Ok(event) = self.queue.try_recv() {
                return *event;
            }
            let last = match &mut self.state {
                DrivenCallState::Ended(last) => return last.clone(),
                DrivenCallState::Running(call) => tokio::select! {
                    biased;
                    Some(event) = self.queue.recv() => return *event,
                    last = call => last,
                },
            };
            self.link.ended(self.class, self.mark, &last);
            self.end(last);
        }
    }

    pub(super) fn abandon(&mut self) {
        self.end(ExchangeEvent::Lost(ExchangeError(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown))));
    }

    pub(super) fn end(&mut self, last: ExchangeEvent) {
        self.link.latencies.record(self.class, self.began.elapsed());
        self.state = DrivenCallState::Ended(last);
    }
}
