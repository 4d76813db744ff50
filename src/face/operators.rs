//! Shows operators the tasks, and cancels one for them: `/tasks`, `/tasks/REF`, `/tasks/REF/cancel`, and a status page.
//!
//! Shown are digests, names, states and times; never an id, an argument, a question or a result (B165).

mod entry;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use serde::Serialize;

use super::http::{Endpoint, FaceResponse, Inbound, empty_body, full_body};
use crate::cause::CauseChain;
use crate::engine::{Engine, TaskError};
use crate::store::NewestCursor;
use crate::task::reference::principal_reference;
use crate::task::{ShortReference, Summary, Task, TaskId, Timestamp};
use crate::upstream::upstream_health::HealthReport;
use entry::{OperatorTaskDetails, OperatorTaskEntry, state};

/// Tasks on one page, if nothing else is asked for; and at most.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1_000;

/// Subtasks that are shown with one task.
const SUBTASKS_MAX: usize = 200;

/// The words for how a task stands.
const STATES: [&str; 6] = ["queued", "working", "input_required", "completed", "failed", "cancelled"];

const BELOW: &str = "/tasks/";
/// Where a task is looked up by its id.
const FIND: &str = "/tasks/find";

/// How the process stands.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessStatus {
    pub version: &'static str,
    pub ready: bool,
    /// Why it is not.
    pub reasons: Vec<&'static str>,
    pub tasks: TaskTotals,
    pub upstreams: Vec<HealthReport>,
}

/// What is kept of tasks.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TaskTotals {
    pub kept: usize,
    pub bytes: usize,
    pub unsettled: usize,
    pub places_taken: usize,
}

impl std::fmt::Display for ProcessStatus {
    /// Lines of text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { version, reasons, tasks, upstreams, .. } = self;
        writeln!(f, "taskgate {version}")?;
        match reasons.as_slice() {
            [] => writeln!(f, "ready")?,
            reasons => writeln!(f, "not ready: {}", reasons.join(", "))?,
        }
        let TaskTotals { kept, bytes, unsettled, places_taken } = tasks;
        writeln!(f, "tasks: {kept} kept in {bytes} bytes, {unsettled} unsettled, {places_taken} places taken\n")?;
        for upstream in upstreams {
            writeln!(f, "{upstream}")?;
        }
        writeln!(f, "\n/tasks /healthz /readyz /readyz?verbose /metrics")
    }
}

/// Says how the process stands.
pub type StatusSource = Box<dyn Fn() -> ProcessStatus + Send + Sync>;

/// The operators' endpoint, for `/`, `/tasks` and everything below that.
pub struct Operators {
    engine: Arc<Engine>,
    status: StatusSource,
}

impl std::fmt::Debug for Operators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operators").finish_non_exhaustive()
    }
}

/// The answer to `/tasks`.
#[derive(Debug, Serialize)]
struct OperatorTaskPage {
    tasks: Vec<OperatorTaskEntry>,
    /// What `after` of the next page is, if there is one. One request looks at a bounded number of tasks, so a page may
    /// have fewer than are wanted, or none, and not be the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// The answer to a question for a task by its id.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum OperatorTaskFinding {
    Found(Box<OperatorTaskDetails>),
    /// It is none of those that were looked at: the same question with this as `after` goes on.
    GoesOn {
        next: String,
    },
}

/// What an operator did not get.
#[derive(Debug, Serialize)]
struct OperatorRefusal {
    error: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<OperatorTaskEntry>,
}

/// Why there is no answer to give.
enum OperatorError {
    Query(&'static str),
    Unknown,
    Ambiguous,
    Ended(Box<OperatorTaskEntry>),
    Failed(TaskError),
}

impl From<TaskError> for OperatorError {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Unknown => Self::Unknown,
            other @ (TaskError::Contended | TaskError::Store(_)) => Self::Failed(other),
        }
    }
}

/// What a list is to hold.
#[derive(Debug, Default, PartialEq, Eq)]
struct OperatorTaskQuery {
    upstream: Option<String>,
    principal: Option<String>,
    state: Option<String>,
    reason: Option<String>,
    after: Option<NewestCursor>,
    limit: Option<usize>,
}

impl OperatorTaskQuery {
    fn read(query: Option<&str>) -> Result<Self, &'static str> {
        let mut wanted = Self::default();
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match name.as_ref() {
                "upstream" => wanted.upstream = Some(value.into_owned()),
                "principal" => wanted.principal = Some(value.into_owned()),
                "state" if STATES.contains(&value.as_ref()) => wanted.state = Some(value.into_owned()),
                "state" => return Err("state is one of queued, working, input_required, completed, failed, cancelled"),
                "reason" => wanted.reason = Some(value.into_owned()),
                "after" => wanted.after = Some(position(&value).ok_or("after is the next of an earlier page")?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
                    wanted.limit = Some(limit.ok_or("limit is a number from 1 to 1000")?);
                }
                _ => return Err("a list takes upstream, principal, state, reason, after and limit"),
            }
        }
        Ok(wanted)
    }

    fn fits(&self, task: &Summary) -> bool {
        let (state, reason) = state(task.phase);
        // Where not asked for by how they stand, subtasks are a number beside their parent.
        let is_listed = task.tree.parent.is_none() || self.state.is_some() || self.reason.is_some();
        is_listed
            && self.upstream.as_deref().is_none_or(|upstream| *upstream == *task.origin.upstream)
            && self.state.as_deref().is_none_or(|wanted| wanted == state)
            && self.principal.as_deref().is_none_or(|wanted| wanted == principal_reference(&task.key.owner))
            && self.reason.as_deref().is_none_or(|wanted| Some(wanted) == reason)
    }
}

/// The name of a place, which sorts as the list does: the complement of the time of creation, then the reference.
fn place((time, reference): NewestCursor) -> String {
    format!("{}-{reference}", u64::MAX - time.as_millis())
}

fn position(text: &str) -> Option<NewestCursor> {
    let (time, reference) = text.split_once('-')?;
    let time = u64::MAX - time.parse::<u64>().ok()?;
    Some((Timestamp::from_millis(time), ShortReference::parse(reference)?))
}

impl Operators {
    #[must_use]
    pub fn new(engine: Arc<Engine>, status: StatusSource) -> Self {
        Self { engine, status }
    }

    async fn list(&self, query: Option<&str>) -> Result<OperatorTaskPage, OperatorError> {
        let wanted = OperatorTaskQuery::read(query).map_err(OperatorError::Query)?;
        let limit = wanted.limit.unwrap_or(PAGE);
        let mut page: Vec<OperatorTaskEntry> = Vec::new();
        let mut last = None;
        let mut has_more = false;
        let look = |task: &Summary| {
            if !wanted.fits(task) {
                return ControlFlow::Continue(());
            }
            // One more than is shown tells whether there is a next page.
            if page.len() == limit {
                has_more = true;
                return ControlFlow::Break(());
            }
            page.push(OperatorTaskEntry::of(task));
            last = Some((task.created_at, ShortReference::of(&task.key)));
            ControlFlow::Continue(())
        };
        let goes_on = self.engine.survey(wanted.after, look).await?;
        Ok(OperatorTaskPage { tasks: page, next: goes_on.or_else(|| last.filter(|_| has_more)).map(place) })
    }

    /// The one task that a reference names.
    async fn find(&self, reference: &str) -> Result<Arc<Task>, OperatorError> {
        let reference = ShortReference::parse(reference).ok_or(OperatorError::Unknown)?;
        let mut found = self.engine.named_by(reference).await?;
        match (found.pop(), found.is_empty()) {
            (None, _) => Err(OperatorError::Unknown),
            (Some(task), true) => Ok(task),
            (Some(_), false) => Err(OperatorError::Ambiguous),
        }
    }

    /// The one task with the id in `body`, whose it may be. The id may be a secret: it stands in no address and in no log.
    /// No index has it, so one request looks at some tasks, and says where the next one goes on.
    async fn find_by_id(&self, body: &[u8]) -> Result<OperatorTaskFinding, OperatorError> {
        #[derive(serde::Deserialize)]
        struct OperatorTaskLookup {
            id: String,
            after: Option<String>,
        }
        let wanted: OperatorTaskLookup = serde_json::from_slice(body).map_err(|_| {
            OperatorError::Query("write {\"id\": \"...\"}, and as \"after\" the next of an earlier answer")
        })?;
        let id = TaskId::parse(&wanted.id).ok_or(OperatorError::Unknown)?;
        let wrong = OperatorError::Query("after is the next of an earlier answer");
        let after = wanted.after.map(|after| position(&after).ok_or(wrong)).transpose()?;
        let mut found = None;
        let look = |task: &Summary| {
            if task.key.id == id {
                found = Some(task.key.clone());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let goes_on = self.engine.survey(after, look).await?;
        Ok(match (found, goes_on) {
            (Some(key), _) => {
                let task = self.engine.get(&key).await?;
                OperatorTaskFinding::Found(Box::new(self.details(&task).await?))
            }
            (None, Some(next)) => OperatorTaskFinding::GoesOn { next: place(next) },
            (None, None) => return Err(OperatorError::Unknown),
        })
    }

    async fn show(&self, reference: &str) -> Result<OperatorTaskDetails, OperatorError> {
        Ok(self.details(&*self.find(reference).await?).await?)
    }

    async fn details(&self, task: &Task) -> Result<OperatorTaskDetails, TaskError> {
        let below = self.engine.subtasks_of(&task.key.owner, &task.tree, SUBTASKS_MAX).await?;
        Ok(OperatorTaskDetails::of(task, &below))
    }

    async fn cancel(&self, reference: &str) -> Result<OperatorTaskEntry, OperatorError> {
        let task = self.find(reference).await?;
        let cancelled = self.engine.cancel_for_operator(&task.key).await?;
        let entry = OperatorTaskEntry::of(&Summary::of(&cancelled.task));
        if cancelled.was_settled { Err(OperatorError::Ended(Box::new(entry))) } else { Ok(entry) }
    }
}

#[async_trait]
impl Endpoint for Operators {
    async fn serve(&self, request: Inbound) -> FaceResponse {
        let below = request.path.strip_prefix(BELOW);
        let to_cancel = below.and_then(|rest| rest.strip_suffix("/cancel"));
        let is_post = to_cancel.is_some() || request.path == FIND;
        if to_cancel.is_some() && !request.principal.may_act() {
            return refusal(StatusCode::FORBIDDEN, "this token may look and not act; `may = \"act\"` lets one cancel");
        }
        let allowed = if is_post { Method::POST } else { Method::GET };
        if request.method != allowed && (is_post || request.method != Method::HEAD) {
            let mut response = FaceResponse::new(empty_body());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            let allowed = HeaderValue::from_static(if allowed == Method::POST { "POST" } else { "GET, HEAD" });
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        match (to_cancel, below) {
            _ if request.path == FIND => answer(self.find_by_id(&request.body).await),
            (Some(reference), _) => answer(self.cancel(reference).await),
            (None, Some(reference)) => answer(self.show(reference).await),
            (None, None) if request.path == "/tasks" => answer(self.list(request.query.as_deref()).await),
            (None, None) if wants_json(&request) => json(StatusCode::OK, &(self.status)()),
            (None, None) => whole(StatusCode::OK, "text/plain; charset=utf-8", (self.status)().to_string()),
        }
    }

    fn takes(&self, method: &Method) -> bool {
        [Method::GET, Method::HEAD, Method::POST].contains(method)
    }

    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static("GET, HEAD, POST")
    }
}

/// Whether a request for the page would rather have JSON.
fn wants_json(request: &Inbound) -> bool {
    let accepted = request.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|media| media.trim().starts_with("application/json"))
}

fn answer(answer: Result<impl Serialize, OperatorError>) -> FaceResponse {
    let (status, error, task) = match answer {
        Ok(answer) => return json(StatusCode::OK, &answer),
        Err(OperatorError::Query(what)) => (StatusCode::BAD_REQUEST, what, None),
        Err(OperatorError::Unknown) => (StatusCode::NOT_FOUND, "no task has this reference", None),
        Err(OperatorError::Ambiguous) => (StatusCode::CONFLICT, "more than one task has this reference", None),
        Err(OperatorError::Ended(task)) => (StatusCode::CONFLICT, "the task has ended", Some(*task)),
        Err(OperatorError::Failed(error)) => {
            tracing::error!(error = %CauseChain(&error), "an operator could not be served");
            (StatusCode::SERVICE_UNAVAILABLE, "the store failed", None)
        }
    };
    json(status, &OperatorRefusal { error, task })
}

fn refusal(status: StatusCode, error: &'static str) -> FaceResponse {
    json(status, &OperatorRefusal { error, task: None })
}

fn json(status: StatusCode, answer: &impl Serialize) -> FaceResponse {
    // Plain structs with text for keys: nothing of them can fail to be written.
    let mut body = serde_json::to_string(answer).unwrap_or_default();
    body.push('\n');
    whole(status, "application/json", body)
}

fn whole(status: StatusCode, content: &'static str, body: String) -> FaceResponse {
    let mut response = FaceResponse::new(full_body(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
