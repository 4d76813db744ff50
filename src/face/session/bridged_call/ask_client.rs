//! Asks a session client the questions of one round, and returns the answers together (GW-22).
//!
//! Questions are requests on the call's stream; answers arrive in other requests. The engine holds the call meanwhile,
//! and limits how long a question stays open.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::BridgedCall;
use crate::cause::CauseChain;
use crate::dialect::inputs;
use crate::dialect::session_results::session_question;
use crate::engine::{CallStream, RoundRetry};
use crate::face::call_stream::replay_buffer::{CallResult, fault};
use crate::face::call_stream::silence::Silence;
use crate::face::session::bridged_questions::BridgedQuestionGuard;
use crate::task::{Answer, InputKey, Phase, Question, Reason, Task, TaskKey};
use crate::wire::framing::BodyPart;
use crate::wire::object::ObjectWriter;
use crate::wire::{RpcError, envelope, method, rpc_error};

/// Queued answers; no call has that many open questions.
const ANSWERS_MAX: usize = 64;

pub(super) enum BridgedRoundOutcome {
    Going(CallStream),
    Over(CallResult),
    Cancelled,
}

struct BridgedRound {
    questions: BTreeMap<InputKey, BridgedQuestionGuard>,
    answers: BTreeMap<InputKey, Answer>,
    to: mpsc::Sender<(InputKey, Answer)>,
}

impl BridgedCall {
    /// Asks a held call's open questions, and continues the call once all are answered.
    pub(super) async fn ask(&mut self, key: &TaskKey) -> BridgedRoundOutcome {
        let (to, mut answered) = mpsc::channel(ANSWERS_MAX);
        let mut round = BridgedRound { questions: BTreeMap::new(), answers: BTreeMap::new(), to };
        // Watched before the first check, so that no change is missed.
        let Ok(mut watcher) = self.engine.watchers().watch(key) else {
            return BridgedRoundOutcome::Over(fault(Reason::QueueFull));
        };
        let cancelled = self.cancelled().clone();
        let mut silence = Silence::begin();
        loop {
            let task = match self.held(key).await {
                Ok(task) => task,
                Err(ending) => return BridgedRoundOutcome::Over(ending),
            };
            let nothing = BTreeMap::new();
            let open = match &task.phase {
                Phase::AwaitingInput(open) => open,
                Phase::Queued | Phase::Working => &nothing,
                Phase::Settled(outcome) => return BridgedRoundOutcome::Over(self.ending(outcome.clone())),
            };
            self.withdraw(&mut round, open).await;
            if !self.put(&mut round, open).await {
                if let Err(error) = self.engine.let_go(key).await {
                    tracing::warn!(error = %CauseChain(&error), "a held call could not be ended");
                }
                return BridgedRoundOutcome::Over(self.cannot_be_asked(None));
            }
            if open.keys().all(|key| round.answers.contains_key(key)) {
                break;
            }
            tokio::select! {
                biased;
                () = cancelled.cancelled() => {
                    if !self.is_named && let Err(error) = self.engine.let_go(key).await {
                        tracing::warn!(error = %CauseChain(&error), "a held call could not be cancelled");
                    }
                    return BridgedRoundOutcome::Cancelled;
                }
                Some((key, answer)) = answered.recv() => {
                    let answer = inputs::fitting(open, key, answer);
                    round.questions.remove(&key);
                    round.answers.insert(key, answer);
                }
                () = watcher.changed() => (),
                () = sleep_until(silence.ends_at()) => {
                    self.life_sign().await;
                    silence.broken();
                }
            }
        }
        let questions = Arc::clone(&self.questions);
        match self.engine.retry(key, RoundRetry { answers: round.answers, plan: self.plan, questions }) {
            Ok(call) => BridgedRoundOutcome::Going(call),
            Err(_) => match self.held(key).await {
                Ok(task) => match &task.phase {
                    Phase::Settled(outcome) => BridgedRoundOutcome::Over(self.ending(outcome.clone())),
                    Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => {
                        BridgedRoundOutcome::Over(fault(Reason::QueueFull))
                    }
                },
                Err(ending) => BridgedRoundOutcome::Over(ending),
            },
        }
    }

    async fn held(&self, key: &TaskKey) -> Result<Arc<Task>, CallResult> {
        self.engine.held(key).await.map_err(|error| {
            tracing::error!(error = %CauseChain(&error), "a held call could not be read");
            fault(error.reason())
        })
    }

    /// Cancels questions that need no answer any more.
    async fn withdraw(&self, round: &mut BridgedRound, open: &BTreeMap<InputKey, Question>) {
        let over: Vec<InputKey> = round.questions.keys().filter(|key| !open.contains_key(key)).copied().collect();
        for put in over.iter().filter_map(|key| round.questions.remove(key)) {
            let params = ObjectWriter::new().text("requestId", put.id()).text("reason", "no answer is needed any more");
            self.send(BodyPart::message(envelope::notification(method::CANCELLED, Some(&params.finish())))).await;
        }
    }

    /// Asks the new questions; returns false if the client cannot be asked one. Questions to a disconnected client are
    /// declined on its behalf, in the form of their kind: the call continues (T-81).
    async fn put(&self, round: &mut BridgedRound, open: &BTreeMap<InputKey, Question>) -> bool {
        for (key, question) in open {
            if round.questions.contains_key(key) || round.answers.contains_key(key) {
                continue;
            }
            let id = self.shared.question_id();
            let elicitation = format!("{:032x}", (self.shared.served.random)());
            let asks = session_question(&question.request, self.version, &elicitation);
            let named = id.as_text().map(std::borrow::Cow::into_owned).unwrap_or_default();
            let put = self.shared.open.questions.put(self.nonce, named, *key, round.to.clone());
            let (Some((name, params)), Some(put)) = (asks, put) else { return false };
            if self.send_now(BodyPart::message(envelope::request(&id, &name, params.as_ref()))).await {
                round.questions.insert(*key, put);
            } else {
                let nobody = RpcError::new(rpc_error::INTERNAL_ERROR, "the client could not be asked");
                round.answers.insert(*key, Answer::Error(nobody));
            }
        }
        true
    }
}
