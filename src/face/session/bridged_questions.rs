//! Registers the open questions of bridged sessions. Each ends with its call.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::task::{Answer, InputKey};

/// Further questions are declined on the client's behalf.
const QUESTIONS_MAX: usize = 16_384;

/// Entries name their session's nonce, so that sessions are isolated.
#[derive(Debug, Default)]
pub(in crate::face) struct BridgedQuestions(Mutex<HashMap<String, BridgedQuestion>>);

#[derive(Debug)]
struct BridgedQuestion {
    nonce: u128,
    key: InputKey,
    to: mpsc::Sender<(InputKey, Answer)>,
}

impl BridgedQuestions {
    /// `None` if there are too many questions. The answer is sent to `to`, once.
    pub(super) fn put(
        self: &Arc<Self>,
        nonce: u128,
        id: String,
        key: InputKey,
        to: mpsc::Sender<(InputKey, Answer)>,
    ) -> Option<BridgedQuestionGuard> {
        let mut questions = self.0.lock();
        if questions.len() >= QUESTIONS_MAX {
            return None;
        }
        questions.insert(id.clone(), BridgedQuestion { nonce, key, to });
        Some(BridgedQuestionGuard { questions: Arc::clone(self), id })
    }

    /// Drops an answer to an unknown question, or another session's.
    pub(super) fn answer(&self, nonce: u128, id: &str, answer: Answer) {
        let mut questions = self.0.lock();
        if questions.get(id).is_some_and(|waiting| waiting.nonce == nonce)
            && let Some(waiting) = questions.remove(id)
        {
            // The channel has room for all open questions; the call may be gone.
            let _ = waiting.to.try_send((waiting.key, answer));
        }
    }
}

#[derive(Debug)]
pub(super) struct BridgedQuestionGuard {
    questions: Arc<BridgedQuestions>,
    id: String,
}

impl BridgedQuestionGuard {
    pub(super) fn id(&self) -> &str {
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
        let put = questions.put(1, "tg:a".to_owned(), InputKey(7), to).unwrap();
        questions.answer(2, "tg:a", answer());
        questions.answer(1, "tg:b", answer());
        assert!(answered.try_recv().is_err(), "another session's, and another question's");
        questions.answer(1, "tg:a", answer());
        questions.answer(1, "tg:a", answer());
        assert_eq!(answered.try_recv().unwrap(), (InputKey(7), answer()));
        assert!(answered.try_recv().is_err());
        drop(put);
        assert!(questions.0.lock().is_empty());
    }
}
