//! What bridged sessions have under way in this process: calls that can be cancelled, questions that wait for an
//! answer, and streams. All of it is bounded, and gone with the call that it belongs to.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::held::HeldCalls;
use super::log::Logs;
use super::turns::Turns;
use crate::task::{Answer, Executed, GatewayFault, InputKey, Reason};
use crate::wire::RequestId;

/// Requests under way; those above are refused.
const CALLS_MAX: usize = 16_384;
/// Questions that wait; those above are refused in the client's name.
const QUESTIONS_MAX: usize = 16_384;

/// By the session's nonce, so that no session reaches into another.
#[derive(Debug, Default)]
pub(in crate::face) struct Desk {
    calls: Mutex<Calls>,
    questions: Mutex<HashMap<String, Waiting>>,
    /// What calls say, for clients that lost their streams.
    pub(super) logs: Logs,
    /// The sessions' own streams.
    pub(super) turns: Arc<Turns>,
    /// Calls in the pipe whose streams can be taken up again.
    pub(super) held: Arc<HeldCalls>,
}

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    all: HashMap<u64, (u128, CancellationToken)>,
    /// A client may not use an id twice at a time; if it does, the newest is meant.
    by_id: HashMap<(u128, RequestId), u64>,
}

impl Calls {
    fn find(&self, nonce: u128, id: &RequestId) -> Option<&CancellationToken> {
        let number = self.by_id.get(&(nonce, id.clone()))?;
        self.all.get(number).map(|(_, cancelled)| cancelled)
    }
}

#[derive(Debug)]
struct Waiting {
    nonce: u128,
    key: InputKey,
    to: mpsc::Sender<(InputKey, Answer)>,
}

impl Desk {
    /// Takes up a request, which can be cancelled from here on until the entry is dropped.
    ///
    /// # Errors
    /// `QueueFull`: nothing was sent.
    pub(super) fn enter(self: &Arc<Self>, nonce: u128, id: &RequestId) -> Result<Entry, GatewayFault> {
        let mut calls = self.calls.lock();
        if calls.all.len() >= CALLS_MAX {
            return Err(GatewayFault::new(Reason::QueueFull, Executed::No));
        }
        calls.next += 1;
        let (number, cancelled) = (calls.next, CancellationToken::new());
        let key = (nonce, id.clone());
        calls.all.insert(number, (nonce, cancelled.clone()));
        calls.by_id.insert(key.clone(), number);
        Ok(Entry { desk: Arc::clone(self), key, number, cancelled })
    }

    /// Cancels a request. One that is not under way is left as it is: its answer may just have gone out.
    pub(super) fn cancel(&self, nonce: u128, id: &RequestId) {
        if let Some(cancelled) = self.calls.lock().find(nonce, id) {
            cancelled.cancel();
        }
    }

    /// Lets go of a call in the pipe that its client has cancelled. The upstream is told by the client itself.
    pub(in crate::face) fn let_go(&self, nonce: u128, id: &RequestId) {
        self.held.cancel(nonce, id);
    }

    /// Whether a request is under way here.
    pub(in crate::face::session) fn knows(&self, nonce: u128, id: &RequestId) -> bool {
        self.calls.lock().find(nonce, id).is_some()
    }

    /// Cancels all that a session has under way, and ends its streams.
    pub(in crate::face::session) fn end_session(&self, nonce: u128) {
        self.turns.end(nonce);
        self.logs.forget(nonce);
        self.held.end_session(nonce);
        for (of, cancelled) in self.calls.lock().all.values() {
            if *of == nonce {
                cancelled.cancel();
            }
        }
    }

    /// Registers a question under its request's id; `None` if too many wait. Its answer goes to `to`, once.
    pub(super) fn put(
        self: &Arc<Self>,
        nonce: u128,
        id: String,
        key: InputKey,
        to: mpsc::Sender<(InputKey, Answer)>,
    ) -> Option<Put> {
        let mut questions = self.questions.lock();
        if questions.len() >= QUESTIONS_MAX {
            return None;
        }
        questions.insert(id.clone(), Waiting { nonce, key, to });
        Some(Put { desk: Arc::clone(self), id })
    }

    /// Hands over an answer. One to a question of another session, or of none, is dropped.
    pub(super) fn answer(&self, nonce: u128, id: &str, answer: Answer) {
        let mut questions = self.questions.lock();
        if questions.get(id).is_some_and(|waiting| waiting.nonce == nonce)
            && let Some(waiting) = questions.remove(id)
        {
            // There is room for all that may be open; whoever asked may be gone.
            let _ = waiting.to.try_send((waiting.key, answer));
        }
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Entry {
    desk: Arc<Desk>,
    key: (u128, RequestId),
    number: u64,
    cancelled: CancellationToken,
}

impl Entry {
    /// Set once its client wants no answer any more.
    pub(super) const fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut calls = self.desk.calls.lock();
        calls.all.remove(&self.number);
        if calls.by_id.get(&self.key) == Some(&self.number) {
            calls.by_id.remove(&self.key);
        }
    }
}

/// A question that was put to the client.
#[derive(Debug)]
pub(super) struct Put {
    desk: Arc<Desk>,
    id: String,
}

impl Put {
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Put {
    fn drop(&mut self) {
        self.desk.questions.lock().remove(&self.id);
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
        let desk = Arc::new(Desk::default());
        let (to, mut answered) = mpsc::channel(4);
        let put = desk.put(1, "tg:a".to_owned(), InputKey(7), to).unwrap();
        desk.answer(2, "tg:a", answer());
        desk.answer(1, "tg:b", answer());
        assert!(answered.try_recv().is_err(), "another session's, and another question's");
        desk.answer(1, "tg:a", answer());
        desk.answer(1, "tg:a", answer());
        assert_eq!(answered.try_recv().unwrap(), (InputKey(7), answer()));
        assert!(answered.try_recv().is_err());
        drop(put);
        assert!(desk.questions.lock().is_empty());
    }

    #[test]
    fn a_cancel_ends_the_request_that_it_names_and_leaves_nothing_behind() {
        let desk = Arc::new(Desk::default());
        let id = RequestId::number(1);
        let entries = [1, 2].map(|nonce| desk.enter(nonce, &id).unwrap());
        desk.cancel(1, &RequestId::text("1"));
        desk.cancel(1, &id);
        assert_eq!(entries.each_ref().map(|entry| entry.cancelled().is_cancelled()), [true, false]);
        let again = desk.enter(1, &id).unwrap();
        drop(entries);
        desk.end_session(1);
        assert!(again.cancelled().is_cancelled(), "the older one took only its own entry along");
        drop(again);
        assert!(desk.calls.lock().by_id.is_empty() && desk.calls.lock().all.is_empty());
    }

    #[test]
    fn requests_of_one_id_are_as_many_as_there_are() {
        let desk = Arc::new(Desk::default());
        let id = RequestId::number(1);
        let mut entries: Vec<_> = (0..CALLS_MAX).map(|_| desk.enter(1, &id).unwrap()).collect();
        assert_eq!(desk.enter(1, &id).unwrap_err().reason, Reason::QueueFull);
        assert!(!entries.pop().unwrap().cancelled().is_cancelled());
        assert!(desk.enter(2, &id).is_ok(), "there is a place again");
        desk.end_session(1);
        assert!(entries.iter().all(|entry| entry.cancelled().is_cancelled()), "all end with their session");
        drop(entries);
        assert!(desk.calls.lock().by_id.is_empty() && desk.calls.lock().all.is_empty());
    }
}
