//! Tracks the questions of one call: open, answered, or accepted by the upstream.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::stateless_sender::{RequestFailure, malformed};
use crate::dialect::relay_ext_tasks::{self as peer, ExtensionQuestion};
use crate::task::Executed;
use crate::upstream::{Answer, ExchangeEvent};
use crate::wire::{Object, Payload, RpcError, canonical};

/// Most open questions of one call, and most in all (U29).
const OPEN_MAX: usize = 32;
const ASKED_MAX: usize = 1_000;
/// Prefix of an `ask` of the upstream's task: round zero.
const OF_TASK: &str = "0/";
/// How long a server may return a task's state from before an answer, for example from a process that lags behind.
const STALE_MAX: Duration = Duration::from_secs(10);

/// The questions of one call, by the upstream's keys.
#[derive(Debug, Default)]
pub(super) struct InputRequests {
    /// Counts the rounds. Zero means the upstream's task: its questions have the same names in every process.
    round: u32,
    asked: usize,
    entries: BTreeMap<String, InputRequest>,
    /// Questions from an earlier process, until the task shows whether they are still open.
    earlier: Vec<String>,
    /// Answers to these, sent if the question is still open.
    early: BTreeMap<String, Answer>,
}

#[derive(Debug)]
struct InputRequest {
    method: Arc<str>,
    /// Distinguishes the question from a later one under its key.
    fingerprint: u64,
    state: InputRequestState,
    /// Since when the server no longer lists it.
    unlisted: Option<Instant>,
}

impl InputRequest {
    fn new(ExtensionQuestion { method, params }: &ExtensionQuestion) -> Self {
        let mut hasher = DefaultHasher::new();
        (method, params.as_ref().map(canonical)).hash(&mut hasher);
        let (fingerprint, state) = (hasher.finish(), InputRequestState::Open);
        Self { method: Arc::clone(method), fingerprint, state, unlisted: None }
    }

    /// Whether a listed question is this one. A key must not be used twice, but a server that does so waits for an answer.
    fn is_listed_again(&mut self, listed: &Self) -> bool {
        let is_same =
            self.fingerprint == listed.fingerprint && self.unlisted.is_none_or(|since| since.elapsed() < STALE_MAX);
        match self.state {
            InputRequestState::Open => true,
            InputRequestState::Answered(_) if is_same => {
                self.unlisted = None;
                true
            }
            InputRequestState::Answered(_) => self.unlisted.is_none(),
            InputRequestState::Closed => is_same,
            InputRequestState::Gone => false,
        }
    }

    /// The answer that the upstream has not accepted yet.
    const fn untaken(&self) -> Option<&Payload> {
        if let (InputRequestState::Answered(answer), None) = (&self.state, self.unlisted) { Some(answer) } else { None }
    }
}

#[derive(Debug)]
enum InputRequestState {
    Open,
    /// Not yet accepted by the upstream.
    Answered(Payload),
    Closed,
    /// Withdrawn before an answer.
    Gone,
}

impl InputRequests {
    /// Keys have a new meaning in each round.
    pub(super) fn next_round(&mut self) {
        self.round += 1;
        self.entries.clear();
    }

    pub(super) fn of_task(&mut self) {
        self.round = 0;
        self.entries.clear();
    }

    /// Records the open questions of a task that an earlier process followed.
    pub(super) fn reopen(&mut self, asks: &[Payload]) {
        let names = asks.iter().filter_map(|ask| ask.read::<String>().ok());
        self.earlier.extend(names.filter_map(|name| name.strip_prefix(OF_TASK).map(str::to_owned)));
    }

    /// Records present questions; returns events for new (UPC-11) and withdrawn ones. Fails for invalid or too many.
    pub(super) fn take(&mut self, requests: &Object) -> Result<Vec<ExchangeEvent>, RequestFailure> {
        let mut events = self.withdraw_all_but(Some(requests));
        for (key, entry) in requests.entries() {
            // The event is sent once more: a resuming process knows the question by its name.
            self.earlier.retain(|earlier| *earlier != *key);
            let question = peer::question(&key, &entry).ok_or(malformed(Executed::Unknown))?;
            let request = InputRequest::new(&question);
            if self.entries.get_mut(&*key).is_some_and(|known| known.is_listed_again(&request)) {
                continue;
            }
            let open = self.entries.values().filter(|entry| matches!(entry.state, InputRequestState::Open)).count();
            if open >= OPEN_MAX || self.asked >= ASKED_MAX {
                return Err(malformed(Executed::Unknown));
            }
            self.asked += 1;
            let ask = self.ask(&key);
            self.entries.insert(key.clone().into_owned(), request);
            if let Some(answer) = self.early.remove(&*key) {
                self.answer(&ask, answer).map_err(RequestFailure::Faulted)?;
                // The call's owner need not ask it again.
                events.push(ExchangeEvent::Withdrawn { ask });
                continue;
            }
            let ExtensionQuestion { method, params } = question;
            events.push(ExchangeEvent::Asked { ask, method, params });
        }
        Ok(events)
    }

    pub(super) fn withdraw_all_but(&mut self, requests: Option<&Object>) -> Vec<ExchangeEvent> {
        let asked: HashSet<_> = requests.into_iter().flat_map(Object::keys).collect();
        let gone = self.earlier.extract_if(.., |key| !asked.contains(key.as_str()));
        let mut withdrawn: Vec<_> = gone.collect();
        self.early.retain(|key, _| asked.contains(key.as_str()));
        for (key, entry) in self.entries.iter_mut().filter(|(key, _)| !asked.contains(key.as_str())) {
            if matches!(entry.state, InputRequestState::Open) {
                entry.state = InputRequestState::Gone;
                withdrawn.push(key.clone());
            }
            entry.unlisted.get_or_insert_with(Instant::now);
        }
        withdrawn.iter().map(|key| ExchangeEvent::Withdrawn { ask: self.ask(key) }).collect()
    }

    /// Ignores an answer to a question that is not open. An error that no answer can express ends the call (T-48).
    pub(super) fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), RpcError> {
        let prefix = format!("{}/", self.round);
        let named: Option<String> = ask.read().ok();
        let Some(key) = named.as_deref().and_then(|named| named.strip_prefix(&prefix)) else { return Ok(()) };
        if self.round == 0 && !self.entries.contains_key(key) && self.early.len() < OPEN_MAX {
            self.early.insert(key.to_owned(), answer);
            return Ok(());
        }
        let Some(entry) = self.entries.get_mut(key).filter(|entry| matches!(entry.state, InputRequestState::Open))
        else {
            return Ok(());
        };
        entry.state = InputRequestState::Answered(peer::response(&entry.method, answer)?);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.entries.values().all(|entry| !matches!(entry.state, InputRequestState::Open))
    }

    /// Answers that the upstream has not accepted yet, by its keys.
    pub(super) fn responses(&self) -> Option<Payload> {
        peer::responses(self.entries.iter().filter_map(|(key, entry)| Some((key.as_str(), entry.untaken()?))))
    }

    pub(super) fn has_untaken(&self) -> bool {
        !self.early.is_empty() || self.entries.values().any(|entry| entry.untaken().is_some())
    }

    /// The upstream accepted all of [`InputRequests::responses`].
    pub(super) fn taken(&mut self) {
        for entry in self.entries.values_mut() {
            if entry.untaken().is_some() {
                entry.state = InputRequestState::Closed;
            }
        }
    }

    fn ask(&self, key: &str) -> Payload {
        Payload::of(&format!("{}/{key}", self.round))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::wire::{ScanLimits, method};

    fn requests(keys: &[(&str, &str)]) -> Object {
        let all: serde_json::Map<String, serde_json::Value> =
            keys.iter().map(|(key, method)| ((*key).to_owned(), json!({ "method": method, "params": {} }))).collect();
        Object::of(&Payload::of(&all)).unwrap()
    }

    fn lines(events: Vec<ExchangeEvent>) -> Vec<String> {
        let line = |event| {
            if let ExchangeEvent::Withdrawn { ask } = &event {
                return format!("withdrawn {}", ask.as_str());
            }
            let ExchangeEvent::Asked { ask, method, .. } = &event else { panic!("{event:?}") };
            format!("asked {} {method}", ask.as_str())
        };
        events.into_iter().map(line).collect()
    }

    fn ask(text: &str) -> Payload {
        Payload::of(text)
    }

    /// UPC-11.
    #[test]
    fn upc11_a_key_is_asked_once_and_withdrawn_when_it_vanishes_unanswered() {
        let mut questions = InputRequests::default();
        let both = requests(&[("a", method::ELICIT), ("b", method::ROOTS)]);
        assert_eq!(
            lines(questions.take(&both).unwrap()),
            ["asked \"0/a\" elicitation/create", "asked \"0/b\" roots/list"]
        );
        assert_eq!(lines(questions.take(&both).unwrap()), [""; 0]);
        questions.answer(&ask("0/a"), Answer::Result(Payload::of(&json!({ "n": 1 })))).unwrap();
        assert!(!questions.is_complete());
        assert_eq!(questions.responses().unwrap().as_str(), r#"{"a":{"n":1}}"#);
        questions.taken();
        assert_eq!(questions.responses(), None);
        assert_eq!(lines(questions.take(&requests(&[])).unwrap()), ["withdrawn \"0/b\""]);
        assert!(questions.is_complete());
        questions.answer(&ask("0/b"), Answer::Result(Payload::empty_object())).unwrap();
        assert_eq!(questions.responses(), None, "an answer that came too late is dropped");
        questions.next_round();
        assert_eq!(
            lines(questions.take(&requests(&[("a", method::SAMPLE)])).unwrap()),
            ["asked \"1/a\" sampling/createMessage"]
        );
    }

    /// UPC-11: the task would wait for an answer that no client is asked for.
    #[tokio::test(start_paused = true)]
    async fn upc11_a_key_that_its_server_uses_again_is_another_question() {
        let asked = ["asked \"0/a\" elicitation/create"];
        let yes = || Answer::Result(Payload::of(&json!({ "action": "accept" })));
        let under_a = |message: &str| {
            let params = json!({ "message": message });
            Object::of(&Payload::of(&json!({ "a": { "method": method::ELICIT, "params": params } }))).unwrap()
        };
        let mut questions = InputRequests::default();
        assert_eq!(lines(questions.take(&under_a("one?")).unwrap()), asked);
        questions.answer(&ask("0/a"), yes()).unwrap();
        assert_eq!(lines(questions.take(&under_a("two?")).unwrap()), [""; 0], "not before the server has the answer");
        questions.taken();
        assert_eq!(lines(questions.take(&under_a("one?")).unwrap()), [""; 0], "the server has not processed it yet");
        assert_eq!(lines(questions.take(&under_a("two?")).unwrap()), asked);
        questions.answer(&ask("0/a"), yes()).unwrap();
        assert!(questions.responses().is_some());
        questions.taken();
        assert_eq!(lines(questions.withdraw_all_but(None)), [""; 0]);
        tokio::time::advance(STALE_MAX).await;
        assert_eq!(lines(questions.take(&under_a("two?")).unwrap()), asked, "asked again later");
    }

    /// UPC-11: for example if one of the server's processes has received the answer, and another has not.
    #[tokio::test(start_paused = true)]
    async fn upc11_an_outdated_state_of_a_task_asks_no_question_again() {
        let both = requests(&[("a", method::ELICIT), ("b", method::ROOTS)]);
        let mut questions = InputRequests::default();
        questions.take(&both).unwrap();
        questions.answer(&ask("0/a"), Answer::Result(Payload::of(&json!({ "n": 1 })))).unwrap();
        assert_eq!(lines(questions.take(&requests(&[("b", method::ROOTS)])).unwrap()), [""; 0]);
        assert_eq!(questions.responses(), None, "the server asks for no answer");
        assert_eq!(lines(questions.take(&both).unwrap()), [""; 0]);
        assert_eq!(questions.responses().unwrap().as_str(), r#"{"a":{"n":1}}"#, "the server lacks the answer");
        questions.taken();
        for _ in 0..2 {
            assert_eq!(lines(questions.take(&requests(&[("b", method::ROOTS)])).unwrap()), [""; 0]);
            assert_eq!(lines(questions.take(&both).unwrap()), [""; 0]);
            tokio::time::advance(STALE_MAX / 3).await;
        }
        assert_eq!(questions.responses(), None);
        tokio::time::advance(STALE_MAX / 3 + Duration::from_millis(1)).await;
        assert_eq!(lines(questions.take(&both).unwrap()), ["asked \"0/a\" elicitation/create"], "it is meant");
    }

    /// A question that is still asked gets one more event under its name; another is withdrawn, even one of an earlier process.
    #[test]
    fn a_question_of_an_earlier_process_is_withdrawn_unless_it_is_still_open() {
        let earlier = || {
            let mut questions = InputRequests::default();
            questions.of_task();
            questions.reopen(&[ask("0/a"), ask("0/b"), ask("1/of a round")]);
            questions
        };
        let mut questions = earlier();
        let still = requests(&[("b", method::ROOTS)]);
        assert_eq!(lines(questions.take(&still).unwrap()), ["withdrawn \"0/a\"", "asked \"0/b\" roots/list"]);
        assert_eq!(lines(questions.withdraw_all_but(None)), ["withdrawn \"0/b\""]);
        let mut questions = earlier();
        questions.answer(&ask("0/a"), Answer::Result(Payload::empty_object())).unwrap();
        assert!(questions.has_untaken(), "until the task shows whether it wants it");
        assert_eq!(lines(questions.withdraw_all_but(None)), ["withdrawn \"0/a\"", "withdrawn \"0/b\""]);
        assert!(!questions.has_untaken(), "the question was withdrawn");
        let mut questions = earlier();
        questions.answer(&ask("0/b"), Answer::Result(Payload::empty_object())).unwrap();
        assert_eq!(lines(questions.take(&still).unwrap()), ["withdrawn \"0/a\"", "withdrawn \"0/b\""]);
        assert!(questions.has_untaken());
        assert_eq!(questions.responses().unwrap().as_str(), r#"{"b":{}}"#);
        questions.taken();
        assert!(!questions.has_untaken());
    }

    #[test]
    fn t_48_errors_that_cannot_be_expressed_become_refusals_or_end_the_call() {
        let mut questions = InputRequests::default();
        questions.take(&requests(&[("e", method::ELICIT), ("r", method::ROOTS), ("s", method::SAMPLE)])).unwrap();
        let error = || RpcError::new(-1, "no");
        questions.answer(&ask("0/e"), Answer::Error(error())).unwrap();
        questions.answer(&ask("0/r"), Answer::Error(error())).unwrap();
        assert_eq!(questions.responses().unwrap().as_str(), r#"{"e":{"action":"cancel"},"r":{"roots":[]}}"#);
        assert_eq!(questions.answer(&ask("0/s"), Answer::Error(error())), Err(error()));
    }

    /// U29, MOD-27.
    #[test]
    fn an_invalid_question_and_the_33rd_open_one_are_refused() {
        assert!(InputRequests::default().take(&requests(&[("a", "ping")])).is_err());
        let text = Bytes::from_static(br#"{"a":1}"#);
        let odd = Object::of(&Payload::parse(&text, ScanLimits::UPSTREAM).unwrap()).unwrap();
        assert!(InputRequests::default().take(&odd).is_err());
        let keys: Vec<String> = (0..33).map(|n| n.to_string()).collect();
        let many: Vec<_> = keys.iter().map(|key| (key.as_str(), method::ROOTS)).collect();
        assert!(InputRequests::default().take(&requests(&many[..32])).is_ok());
        assert!(InputRequests::default().take(&requests(&many)).is_err());
    }
}
