//! What a face hands to the engine for one call, and what it gets back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::dialect::PeerDialect;
use crate::task::{Outcome, Plan, Principal, Task, ToolPolicy};
use crate::upstream::limits::Slots;
use crate::upstream::{CallContext, Progress, Upstream, UpstreamRequest};
use crate::wire::Payload;

/// Events on their way to a client that reads slowly; above that the upstream is read no further.
pub(super) const EVENTS_MAX: usize = 32;

/// One call, with everything that is known before it begins.
pub struct CallSpec {
    pub owner: Principal,
    pub upstream: Arc<dyn Upstream>,
    /// Places at the upstream; `None` for methods that need none.
    pub slots: Option<Arc<Slots>>,
    /// How long a call without a handle waits for a place.
    pub queue_deadline: Duration,
    pub peer: Arc<dyn PeerDialect>,
    pub request: UpstreamRequest,
    pub context: CallContext,
    /// The tool's name as the client wrote it.
    pub tool: Arc<str>,
    pub policy: ToolPolicy,
    pub plan: Plan,
    /// When the request arrived; a grace period counts from here.
    pub arrived: tokio::time::Instant,
    /// What this client can be asked.
    pub questions: Questions,
}

impl std::fmt::Debug for CallSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallSpec").field("tool", &self.tool).field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Says of a question, by its method, whether this client can be asked.
pub type Questions = Arc<dyn Fn(&str) -> Askable + Send + Sync>;

/// Whether a client can be asked something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Askable {
    /// It declared that it can.
    Declared,
    /// It did not; the question is refused and the call goes on.
    Undeclared,
    /// It did not, and a plain call cannot be served without: a `ClientCapabilities` object (MOD-10).
    Required(Payload),
}

/// What a client sees of a call, in order.
#[derive(Debug)]
pub enum CallEvent {
    Progress(Progress),
    /// `notifications/message`: its params.
    Log(Payload),
    /// The call cannot become a task any more: it is held to its end. At most once, before all that is shown.
    StaysPlain,
    /// The call became a task. Nothing follows.
    Created(Arc<Task>),
    /// The call ended. Nothing follows.
    Ended(CallEnd),
}

/// How a call that stayed plain ended.
#[derive(Debug)]
pub enum CallEnd {
    Outcome(Outcome),
    /// The upstream asked for what the client did not declare: a `ClientCapabilities` object (MOD-10).
    NeedsCapability(Payload),
}

/// A call in progress, as its client sees it. Dropping it means that the client left.
#[derive(Debug)]
pub struct CallStream {
    pub(super) events: mpsc::Receiver<CallEvent>,
    /// Set once a handle was taken over: until then nobody knows the task (T-27).
    pub(super) claimed: CancellationToken,
}

impl CallStream {
    /// The next event; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<CallEvent> {
        let event = self.events.recv().await;
        if matches!(event, Some(CallEvent::Created(_))) {
            self.claimed.cancel();
        }
        event
    }
}
