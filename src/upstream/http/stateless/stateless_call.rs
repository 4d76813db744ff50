//! Drives one stateless request: sent, and sent again with answers, until a result.
//!
//! The exchange's owner polls one future. Events go into a queue; answers come from another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{SetOnce, mpsc};

use super::input_requests::InputRequests;
use super::stateless_sender::{DraftRequest, ExchangeEventSender, RequestFailure, StatelessSender, malformed};
use crate::dialect::faults::reason_key;
use crate::dialect::relay_ext_tasks::{self as peer, StatelessResult};
use crate::task::{Executed, Reason};
use crate::upstream::outgoing::HandedOver;
use crate::upstream::{Answer, ExchangeEvent};
use crate::wire::{Object, Payload};

/// Most rounds without a question, and the pause before the first, which doubles.
const SILENT_ROUNDS_MAX: u32 = 8;
const SILENT_PAUSE: Duration = Duration::from_millis(250);

pub(super) type AnswerReceiver = mpsc::Receiver<Box<(Payload, Answer)>>;

pub(super) struct StatelessCall {
    pub(super) line: StatelessSender,
    pub(super) events: ExchangeEventSender,
    pub(super) answers: AnswerReceiver,
    pub(super) questions: InputRequests,
    pub(super) task: UpstreamTaskCell,
    /// Whether the upstream has yet to accept answers.
    pub(super) untaken: Arc<AtomicBool>,
}

impl StatelessCall {
    pub(super) async fn run(mut self, request: RepeatableRequest, handed_over: HandedOver) -> ExchangeEvent {
        match self.rounds(request, &handed_over).await {
            Ok(result) => ExchangeEvent::Returned(result),
            Err(end) => end,
        }
    }

    async fn rounds(&mut self, request: RepeatableRequest, handed_over: &HandedOver) -> Result<Payload, ExchangeEvent> {
        let mut draft = request.first();
        let mut silent = 0;
        loop {
            let result = self.line.call(&draft, Some(&self.events), handed_over).await?;
            let round = match peer::answered(&request.method, &result) {
                StatelessResult::Complete => return Ok(result),
                // The request did not declare the extension (UPC-09).
                StatelessResult::Task(_) if !self.line.takes_tasks => return Err(malformed(Executed::Yes).into()),
                StatelessResult::Task(handle) => return Box::pin(self.follow(handle)).await,
                StatelessResult::Round(round) => {
                    self.line.asked_in_result();
                    round
                }
                StatelessResult::Misplaced => {
                    let (method, reason) = (&*request.method, reason_key(Reason::UpstreamMalformed));
                    tracing::warn!(method, reason, "invalid type of a result for its method");
                    return Err(malformed(Executed::Yes).into());
                }
                StatelessResult::Malformed => return Err(malformed(Executed::Yes).into()),
            };
            let responses = match &round.requests {
                Some(asked) => {
                    silent = 0;
                    self.put(asked).await?
                }
                None if round.state.is_none() || silent == SILENT_ROUNDS_MAX => {
                    return Err(malformed(Executed::Unknown).into());
                }
                None => {
                    tokio::time::sleep(SILENT_PAUSE * 2_u32.pow(silent)).await;
                    silent += 1;
                    None
                }
            };
            draft = request.again(responses, round.state);
        }
    }

    /// Sends a round's questions to the owner and waits for all answers: after a partial retry the upstream would ask
    /// again (UPC-14).
    async fn put(&mut self, asked: &Object) -> Result<Option<Payload>, RequestFailure> {
        self.questions.next_round();
        self.tell_all(asked).await?;
        while !self.questions.is_complete() {
            self.hear_answer().await?;
        }
        Ok(self.questions.responses())
    }

    pub(super) async fn tell_all(&mut self, asked: &Object) -> Result<(), RequestFailure> {
        for event in self.questions.take(asked)? {
            self.tell(event).await;
        }
        Ok(())
    }

    /// Drops the event without an owner.
    pub(super) async fn tell(&self, event: ExchangeEvent) {
        let _ = self.events.send(Box::new(event)).await;
    }

    /// Cancel safe.
    pub(super) async fn hear_answer(&mut self) -> Result<(), RequestFailure> {
        let Some(answered) = self.answers.recv().await else {
            // The exchange is gone; this future goes with it.
            return std::future::pending().await;
        };
        let (ask, answer) = *answered;
        let taken = self.questions.answer(&ask, answer).map_err(RequestFailure::Faulted);
        self.note_untaken();
        taken
    }

    pub(super) fn note_untaken(&self) {
        self.untaken.store(self.questions.has_untaken(), Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
pub(super) struct RepeatableRequest {
    pub(super) method: Arc<str>,
    pub(super) params: Option<Payload>,
    pub(super) progress: bool,
}

impl RepeatableRequest {
    fn first(&self) -> DraftRequest {
        DraftRequest::new(&self.method, self.params.clone()).with_progress(self.progress)
    }

    fn again(&self, responses: Option<Payload>, state: Option<Payload>) -> DraftRequest {
        let params = peer::repeated(self.params.as_ref(), responses, state);
        DraftRequest::new(&self.method, params).with_progress(self.progress)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct UpstreamTaskCell(Arc<SetOnce<Arc<str>>>);

impl UpstreamTaskCell {
    pub(super) fn get(&self) -> Option<Arc<str>> {
        self.0.get().cloned()
    }

    pub(super) async fn wait(&self) {
        self.0.wait().await;
    }

    pub(super) fn put(&self, id: &Arc<str>) {
        let _ = self.0.set(Arc::clone(id));
    }
}
