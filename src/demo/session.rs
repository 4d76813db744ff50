//! Keeps the demo server's sessions, with their calls and questions.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::wire::ProtocolVersion;

const SESSIONS_MAX: usize = 1024;
/// A session that was unused for this long, and runs nothing, is dropped.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);
const RUNS_MAX: usize = 256;

/// Messages to a client, in order. The stream ends when all senders are dropped.
pub(super) type DemoMessages = mpsc::Sender<Value>;

#[derive(Clone, Copy, Debug)]
pub(super) struct DemoClientCapabilities {
    pub(super) elicitation: bool,
    pub(super) sampling: bool,
}

/// One client, from `initialize` to DELETE.
#[derive(Debug)]
pub(super) struct DemoSession {
    pub(super) id: String,
    pub(super) version: ProtocolVersion,
    pub(super) abilities: DemoClientCapabilities,
    /// Ends with the session, and ends everything in it.
    pub(super) ended: CancellationToken,
    state: Mutex<DemoSessionState>,
}

#[derive(Debug)]
struct DemoSessionState {
    used_at: Instant,
    /// Keyed by the request id as JSON text: `1` is not `"1"`.
    runs: HashMap<String, CancellationToken>,
    questions: HashMap<String, oneshot::Sender<Result<Value, String>>>,
    questions_asked: u64,
    listening: Option<DemoMessages>,
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum CallStartError {
    #[error("this request id is in use")]
    IdInUse,
    #[error("too many calls are running in this session")]
    TooMany,
}

impl DemoSession {
    /// Registers a call, which `notifications/cancelled` can then find until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, id: &Value) -> Result<DemoCall, CallStartError> {
        let mut state = self.state.lock();
        if state.runs.len() >= RUNS_MAX {
            return Err(CallStartError::TooMany);
        }
        let Entry::Vacant(place) = state.runs.entry(id.to_string()) else { return Err(CallStartError::IdInUse) };
        let cancel = place.insert(self.ended.child_token()).clone();
        drop(state);
        Ok(DemoCall { key: id.to_string(), session: Arc::clone(self), cancel })
    }

    pub(super) fn cancel(&self, id: &Value) {
        if let Some(run) = self.state.lock().runs.get(&id.to_string()) {
            run.cancel();
        }
    }

    pub(super) fn question(self: &Arc<Self>) -> DemoQuestion {
        let (sender, answer) = oneshot::channel();
        let mut state = self.state.lock();
        state.questions_asked += 1;
        let id = format!("ask-{}", state.questions_asked);
        state.questions.insert(id.clone(), sender);
        drop(state);
        DemoQuestion { id, session: Arc::clone(self), answer }
    }

    /// Delivers a client's answer to the call that asked. Unknown answers are dropped.
    pub(super) fn answered(&self, id: &Value, outcome: Result<Value, String>) {
        let asked = id.as_str().and_then(|id| self.state.lock().questions.remove(id));
        if let Some(asked) = asked {
            // The call may have been cancelled meanwhile.
            let _ = asked.send(outcome);
        }
    }

    /// Registers the session's GET stream; an older one ends.
    pub(super) fn listen(&self, events: DemoMessages) {
        self.state.lock().listening = Some(events);
    }

    fn is_idle(&self, now: Instant) -> bool {
        let state = self.state.lock();
        let listening = state.listening.as_ref().is_some_and(|events| !events.is_closed());
        state.runs.is_empty() && !listening && now.duration_since(state.used_at) >= IDLE_MAX
    }
}

/// A call in progress. Dropping it unregisters the call.
#[derive(Debug)]
pub(super) struct DemoCall {
    key: String,
    pub(super) session: Arc<DemoSession>,
    pub(super) cancel: CancellationToken,
}

impl Drop for DemoCall {
    fn drop(&mut self) {
        let mut state = self.session.state.lock();
        state.runs.remove(&self.key);
        state.used_at = Instant::now();
    }
}

/// A question that waits for its answer. Dropping it unregisters the question.
#[derive(Debug)]
pub(super) struct DemoQuestion {
    pub(super) id: String,
    session: Arc<DemoSession>,
    answer: oneshot::Receiver<Result<Value, String>>,
}

impl DemoQuestion {
    /// Waits for the client's result, or its error text. Unbounded: the caller sets the limit.
    pub(super) async fn answer(mut self) -> Result<Value, String> {
        (&mut self.answer).await.unwrap_or_else(|_| Err("the session has ended".to_owned()))
    }
}

impl Drop for DemoQuestion {
    fn drop(&mut self) {
        self.session.state.lock().questions.remove(&self.id);
    }
}

#[derive(Debug)]
pub(super) struct DemoSessions {
    table: Mutex<HashMap<String, Arc<DemoSession>>>,
    ended: CancellationToken,
}

impl DemoSessions {
    /// All sessions end when `ended` does.
    pub(super) fn new(ended: CancellationToken) -> Self {
        Self { table: Mutex::default(), ended }
    }

    /// Opens a session and drops idle ones; `None` if there are too many or no randomness.
    pub(super) fn open(&self, version: ProtocolVersion, abilities: DemoClientCapabilities) -> Option<Arc<DemoSession>> {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).ok()?;
        let now = Instant::now();
        let mut table = self.table.lock();
        table.retain(|_, session| !session.is_idle(now));
        if table.len() >= SESSIONS_MAX {
            return None;
        }
        let session = Arc::new(DemoSession {
            id: Uuid::from_bytes(bits).simple().to_string(),
            version,
            abilities,
            ended: self.ended.child_token(),
            state: Mutex::new(DemoSessionState {
                used_at: now,
                runs: HashMap::new(),
                questions: HashMap::new(),
                questions_asked: 0,
                listening: None,
            }),
        });
        table.insert(session.id.clone(), Arc::clone(&session));
        Some(session)
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<DemoSession>> {
        let session = self.table.lock().get(id).cloned()?;
        session.state.lock().used_at = Instant::now();
        Some(session)
    }

    pub(super) fn close(&self, id: &str) {
        if let Some(session) = self.table.lock().remove(id) {
            session.ended.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: DemoClientCapabilities = DemoClientCapabilities { elicitation: false, sampling: false };

    fn open(sessions: &DemoSessions) -> Option<Arc<DemoSession>> {
        sessions.open(ProtocolVersion::V2025_06_18, NOTHING)
    }

    #[tokio::test(start_paused = true)]
    async fn idle_sessions_make_room_and_busy_ones_stay() {
        let sessions = DemoSessions::new(CancellationToken::new());
        let calling = open(&sessions).unwrap();
        let run = calling.begin(&Value::from(1)).unwrap();
        let listening = open(&sessions).unwrap();
        let (events, _stream) = mpsc::channel(1);
        listening.listen(events);
        let idle = open(&sessions).unwrap();
        while sessions.table.lock().len() < SESSIONS_MAX {
            open(&sessions).unwrap();
        }
        assert!(open(&sessions).is_none(), "no place is left");

        tokio::time::advance(IDLE_MAX).await;
        assert!(open(&sessions).is_some());
        assert!(sessions.find(&calling.id).is_some() && sessions.find(&listening.id).is_some());
        assert!(sessions.find(&idle.id).is_none());
        drop(run);
    }

    #[test]
    fn a_request_id_is_free_again_once_its_call_ended() {
        let sessions = DemoSessions::new(CancellationToken::new());
        let session = open(&sessions).unwrap();
        let run = session.begin(&Value::from(1)).unwrap();
        assert!(matches!(session.begin(&Value::from(1)), Err(CallStartError::IdInUse)));
        assert!(session.begin(&Value::from("1")).is_ok(), "1 is not \"1\" (T-62)");
        drop(run);
        assert!(session.begin(&Value::from(1)).is_ok());
    }

    #[test]
    fn a_session_runs_a_bounded_number_of_calls() {
        let sessions = DemoSessions::new(CancellationToken::new());
        let session = open(&sessions).unwrap();
        let runs: Vec<_> = (0..RUNS_MAX).map(|id| session.begin(&Value::from(id)).unwrap()).collect();
        assert!(matches!(session.begin(&Value::from("one more")), Err(CallStartError::TooMany)));
        drop(runs);
    }
}
