//! Asks a session client the questions of one round, and returns the answers together (GW-22). Questions are requests
//! on the call's stream. The engine holds the call, and limits how long a question stays open.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::BridgedCall;
use crate::cause::CauseChain;
use crate::dialect::inputs;
use crate::dialect::session_results::session_question;
use crate::engine::{CallStream, RoundRetry};
use crate::face::call_stream::Silence;
use crate::face::call_stream::replay_buffer::{CallResult, fault};
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
        let Ok(mut watcher) = self.shared.served.engine.watchers().watch(key) else {
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
            if !self.send_new_questions(&mut round, open).await {
                if let Err(error) = self.shared.served.engine.cancel_held(key).await {
                    tracing::warn!(error = %CauseChain(&error), "a held call could not be ended");
                }
                self.withdraw(&mut round, &nothing).await;
                return BridgedRoundOutcome::Over(self.cannot_be_asked(None));
            }
            if open.keys().all(|key| round.answers.contains_key(key)) {
                break;
            }
            tokio::select! {
                biased;
                () = cancelled.cancelled() => {
                    if !self.is_named && let Err(error) = self.shared.served.engine.cancel_held(key).await {
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
        match self.shared.served.engine.retry(key, RoundRetry { answers: round.answers, plan: self.plan, questions }) {
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
        self.shared.served.engine.load_any(key).await.map_err(|error| {
            tracing::error!(error = %CauseChain(&error), "a held call could not be read");
            fault(error.reason())
        })
    }

    /// Cancels questions that need no answer any more.
    async fn withdraw(&self, round: &mut BridgedRound, open: &BTreeMap<InputKey, Question>) {
        let over: Vec<InputKey> = round.questions.keys().filter(|key| !open.contains_key(key)).copied().collect();
        for guard in over.iter().filter_map(|key| round.questions.remove(key)) {
            let params =
                ObjectWriter::new().text("requestId", guard.id()).text("reason", "no answer is needed any more");
            self.send(BodyPart::message(envelope::notification(method::CANCELLED, Some(&params.finish())))).await;
        }
    }

    /// Asks new questions; false if the client cannot be asked one. Without a client they are declined (T-81).
    async fn send_new_questions(&self, round: &mut BridgedRound, open: &BTreeMap<InputKey, Question>) -> bool {
        let is_new = |key: &InputKey| !round.questions.contains_key(key) && !round.answers.contains_key(key);
        let new: Vec<_> = open.iter().filter(|(key, _)| is_new(key)).collect();
        if new.iter().any(|(_, one)| session_question(&one.request, self.version, "").is_none()) {
            return false;
        }
        for (key, question) in new {
            let id = self.shared.question_id();
            let elicitation = format!("{:032x}", (self.shared.served.random)());
            let asks = session_question(&question.request, self.version, &elicitation);
            let named = id.as_text().map(std::borrow::Cow::into_owned).unwrap_or_default();
            let question =
                BridgedQuestion { nonce: self.nonce, key: *key, tool: self.tool.clone(), to: round.to.clone() };
            let guard = self.shared.open.questions.insert(named, question);
            let (Some((name, params)), Some(guard)) = (asks, guard) else { return false };
            let text = self.notices.limits.rehold(envelope::request(&id, &name, params.as_ref()));
            if self.send_now(BodyPart::message(text)).await {
                round.questions.insert(*key, guard);
            } else {
                let nobody = RpcError::new(rpc_error::INTERNAL_ERROR, "the client could not be asked");
                round.answers.insert(*key, Answer::Error(nobody));
            }
        }
        true
    }
}

/// Open questions of all sessions at an upstream. A call that has one more fails: its client cannot be asked.
const QUESTIONS_MAX: usize = 16_384;

/// Entries name their session's nonce, so that sessions are isolated.
#[derive(Debug, Default)]
pub(in crate::face::session) struct BridgedQuestions(Mutex<HashMap<String, BridgedQuestion>>);

#[derive(Debug)]
pub(in crate::face::session) struct BridgedQuestion {
    nonce: u128,
    key: InputKey,
    /// Of the call that asks.
    pub(in crate::face::session) tool: Option<Arc<str>>,
    to: mpsc::Sender<(InputKey, Answer)>,
}

impl BridgedQuestion {
    pub(in crate::face::session) fn answer(self, answer: Answer) {
        // The channel has room for all open questions; the call may be gone.
        let _ = self.to.try_send((self.key, answer));
    }
}

impl BridgedQuestions {
    /// `None` if there are too many questions.
    fn insert(self: &Arc<Self>, id: String, question: BridgedQuestion) -> Option<BridgedQuestionGuard> {
        let mut questions = self.0.lock();
        if questions.len() >= QUESTIONS_MAX {
            return None;
        }
        questions.insert(id.clone(), question);
        Some(BridgedQuestionGuard { questions: Arc::clone(self), id })
    }

    /// A question that is answered now; `None` for an unknown one, and another session's.
    pub(in crate::face::session) fn take(&self, nonce: u128, id: &str) -> Option<BridgedQuestion> {
        let mut questions = self.0.lock();
        questions.get(id).filter(|waiting| waiting.nonce == nonce)?;
        questions.remove(id)
    }
}

#[derive(Debug)]
#[must_use]
struct BridgedQuestionGuard {
    questions: Arc<BridgedQuestions>,
    id: String,
}

impl BridgedQuestionGuard {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for BridgedQuestionGuard {
    fn drop(&mut self) {
        self.questions.0.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Payload;

    fn answer() -> Answer {
        Answer::Result(Payload::empty_object())
    }

    #[test]
    fn an_answer_reaches_the_question_of_its_own_session_once() {
        let questions = Arc::new(BridgedQuestions::default());
        let (to, mut answered) = mpsc::channel(4);
        let question = BridgedQuestion { nonce: 1, key: InputKey(7), tool: None, to };
        let guard = questions.insert("tg:a".to_owned(), question).unwrap();
        assert!(questions.take(2, "tg:a").is_none() && questions.take(1, "tg:b").is_none());
        questions.take(1, "tg:a").unwrap().answer(answer());
        assert!(questions.take(1, "tg:a").is_none(), "it is answered once");
        assert_eq!(answered.try_recv().unwrap(), (InputKey(7), answer()));
        assert!(answered.try_recv().is_err());
        drop(guard);
        assert!(questions.0.lock().is_empty());
    }
}
