//! What operators see of the tasks, and the one thing that they can do to them: `/tasks`, `/tasks/REF`,
//! `/tasks/REF/cancel`, and a page that says how things stand.
//!
//! Shown are digests, names, states and times; never an id, an argument, a question or a result (B165).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use serde::Serialize;
use tokio::sync::Mutex;

use super::http::{Endpoint, Inbound, Response, empty_body, full_body};
use crate::cause::Chain;
use crate::dialect::faults::reason_key;
use crate::engine::{Engine, TaskError};
use crate::task::digest::{SHORT, principal_reference, task_reference};
use crate::task::{Failure, Outcome, Phase, Task, TaskId, TaskKey};
use crate::upstream::standing::Look;

/// Tasks on one page, if nothing else is asked for; and at most.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1_000;

/// The words for how a task stands.
const STATES: [&str; 6] = ["queued", "working", "input_required", "completed", "failed", "cancelled"];

const BELOW: &str = "/tasks/";
/// Where a task is looked up by its id.
const FIND: &str = "/tasks/find";

/// How the process stands.
#[derive(Clone, Debug, Serialize)]
pub struct Situation {
    pub version: &'static str,
    pub ready: bool,
    /// Why it is not.
    pub reasons: Vec<&'static str>,
    pub tasks: Kept,
    pub upstreams: Vec<Look>,
}

/// What is kept of tasks.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kept {
    pub kept: usize,
    pub bytes: usize,
    pub unsettled: usize,
    pub places_taken: usize,
}

impl std::fmt::Display for Situation {
    /// Lines of text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { version, reasons, tasks, upstreams, .. } = self;
        writeln!(f, "taskgate {version}")?;
        match reasons.as_slice() {
            [] => writeln!(f, "ready")?,
            reasons => writeln!(f, "not ready: {}", reasons.join(", "))?,
        }
        let Kept { kept, bytes, unsettled, places_taken } = tasks;
        writeln!(f, "tasks: {kept} kept in {bytes} bytes, {unsettled} unsettled, {places_taken} places taken\n")?;
        for upstream in upstreams {
            writeln!(f, "{upstream}")?;
        }
        writeln!(f, "\n/tasks /healthz /readyz /readyz?verbose /metrics")
    }
}

/// Says how the process stands.
pub type Standing = Box<dyn Fn() -> Situation + Send + Sync>;

/// The operators' endpoint, for `/`, `/tasks` and everything below that.
pub struct Operators {
    engine: Arc<Engine>,
    standing: Standing,
    /// Held by who goes through all tasks: one at a time.
    surveying: Mutex<()>,
}

impl std::fmt::Debug for Operators {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operators").finish_non_exhaustive()
    }
}

/// One task, as operators see it.
#[derive(Debug, Serialize)]
struct Entry {
    #[serde(rename = "ref")]
    reference: String,
    principal: String,
    upstream: String,
    tool: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    created_at: String,
    updated_at: String,
    expires_at: String,
}

impl Entry {
    fn of(task: &Task) -> Self {
        let (state, reason) = state(&task.phase);
        Self {
            reference: task_reference(&task.key),
            principal: principal_reference(&task.key.owner),
            upstream: task.origin.upstream.to_string(),
            tool: task.origin.tool.to_string(),
            state,
            reason,
            created_at: task.created_at.to_string(),
            updated_at: task.updated_at.to_string(),
            expires_at: task.expires_at().to_string(),
        }
    }
}

/// The word, and where the gateway itself had no answer, why.
const fn state(phase: &Phase) -> (&'static str, Option<&'static str>) {
    match phase {
        Phase::Queued => ("queued", None),
        Phase::Working => ("working", None),
        Phase::AwaitingInput(_) => ("input_required", None),
        Phase::Settled(Outcome::Returned { is_error: false, .. }) => ("completed", None),
        Phase::Settled(Outcome::Returned { is_error: true, .. }) => ("failed", Some("tool_error")),
        Phase::Settled(Outcome::Faulted(Failure::Upstream(_))) => ("failed", Some("upstream_error")),
        Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))) => ("failed", Some(reason_key(fault.reason))),
        Phase::Settled(Outcome::Cancelled) => ("cancelled", None),
    }
}

/// The answer to `/tasks`.
#[derive(Debug, Serialize)]
struct List {
    tasks: Vec<Entry>,
    /// What `after` of the next page is, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// What an operator did not get.
#[derive(Debug, Serialize)]
struct Refusal {
    error: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Entry>,
}

/// Why there is no answer to give.
enum Refused {
    Query(&'static str),
    Unknown,
    Ambiguous,
    Ended(Box<Entry>),
    Failed(TaskError),
}

impl From<TaskError> for Refused {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Unknown => Self::Unknown,
            other @ (TaskError::Contended | TaskError::Store(_)) => Self::Failed(other),
        }
    }
}

/// Place in a list, newest first: the complement of the time of creation, then the reference.
type Position = (u64, String);

/// What a list is to hold.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    upstream: Option<String>,
    state: Option<String>,
    reason: Option<String>,
    after: Option<Position>,
    limit: Option<usize>,
}

impl Wanted {
    fn read(query: Option<&str>) -> Result<Self, &'static str> {
        let mut wanted = Self::default();
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match name.as_ref() {
                "upstream" => wanted.upstream = Some(value.into_owned()),
                "state" if STATES.contains(&value.as_ref()) => wanted.state = Some(value.into_owned()),
                "state" => return Err("state is one of queued, working, input_required, completed, failed, cancelled"),
                "reason" => wanted.reason = Some(value.into_owned()),
                "after" => wanted.after = Some(position(&value).ok_or("after is the next of an earlier page")?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
                    wanted.limit = Some(limit.ok_or("limit is a number from 1 to 1000")?);
                }
                _ => return Err("a list takes upstream, state, reason, after and limit"),
            }
        }
        Ok(wanted)
    }

    fn fits(&self, task: &Task) -> bool {
        self.upstream.as_deref().is_none_or(|upstream| *upstream == *task.origin.upstream)
            && self.state.as_deref().is_none_or(|wanted| wanted == state(&task.phase).0)
            && self.reason.as_deref().is_none_or(|wanted| Some(wanted) == state(&task.phase).1)
    }
}

fn position(text: &str) -> Option<Position> {
    let (time, reference) = text.split_once('-')?;
    Some((time.parse().ok()?, is_reference(reference).then(|| reference.to_owned())?))
}

fn is_reference(text: &str) -> bool {
    text.len() == SHORT && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl Operators {
    #[must_use]
    pub fn new(engine: Arc<Engine>, standing: Standing) -> Self {
        Self { engine, standing, surveying: Mutex::default() }
    }

    async fn list(&self, query: Option<&str>) -> Result<List, Refused> {
        let wanted = Wanted::read(query).map_err(Refused::Query)?;
        let limit = wanted.limit.unwrap_or(PAGE);
        let mut page = BTreeMap::<Position, Entry>::new();
        let _one_at_a_time = self.surveying.lock().await;
        let look = |task: &Task| {
            let newest_first = u64::MAX - task.created_at.as_millis();
            let is_in_time =
                page.len() <= limit || page.last_key_value().is_none_or(|(last, _)| newest_first <= last.0);
            let may_follow = wanted.after.as_ref().is_none_or(|after| newest_first >= after.0);
            if is_in_time && may_follow && wanted.fits(task) {
                let at = (newest_first, task_reference(&task.key));
                if wanted.after.as_ref().is_none_or(|after| at > *after) {
                    page.insert(at, Entry::of(task));
                    // One more than is shown tells whether there is a next page.
                    if page.len() > limit + 1 {
                        page.pop_last();
                    }
                }
            }
            ControlFlow::Continue(())
        };
        self.engine.survey(look).await?;
        let has_more = page.len() > limit;
        if has_more {
            page.pop_last();
        }
        let last = page.last_key_value().filter(|_| has_more);
        let next = last.map(|((time, reference), _)| format!("{time}-{reference}"));
        Ok(List { tasks: page.into_values().collect(), next })
    }

    /// The one task that a reference names.
    async fn find(&self, reference: &str) -> Result<Arc<Task>, Refused> {
        if !is_reference(reference) {
            return Err(Refused::Unknown);
        }
        let mut found: Vec<TaskKey> = Vec::new();
        {
            let _one_at_a_time = self.surveying.lock().await;
            let look = |task: &Task| {
                if task_reference(&task.key) == reference {
                    found.push(task.key.clone());
                }
                if found.len() > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            self.engine.survey(look).await?;
        }
        match found.as_slice() {
            [] => Err(Refused::Unknown),
            [key] => Ok(self.engine.get(key).await?),
            [_, _, ..] => Err(Refused::Ambiguous),
        }
    }

    /// The one task with the id in `body`, whose it may be. The id may be a secret: it stands in no address and in no log.
    async fn find_by_id(&self, body: &[u8]) -> Result<Arc<Task>, Refused> {
        #[derive(serde::Deserialize)]
        struct Wanted {
            id: String,
        }
        let wanted: Wanted = serde_json::from_slice(body).map_err(|_| Refused::Query("write {\"id\": \"...\"}"))?;
        let id = TaskId::parse(&wanted.id).ok_or(Refused::Unknown)?;
        let mut found = None;
        {
            let _one_at_a_time = self.surveying.lock().await;
            let look = |task: &Task| {
                if task.key.id == id {
                    found = Some(task.key.clone());
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            };
            self.engine.survey(look).await?;
        }
        Ok(self.engine.get(&found.ok_or(Refused::Unknown)?).await?)
    }

    async fn cancel(&self, reference: &str) -> Result<Entry, Refused> {
        let task = self.find(reference).await?;
        let cancelled = self.engine.cancel_for_operator(&task.key).await?;
        let entry = Entry::of(&cancelled.task);
        if cancelled.was_settled { Err(Refused::Ended(Box::new(entry))) } else { Ok(entry) }
    }
}

#[async_trait]
impl Endpoint for Operators {
    async fn serve(&self, request: Inbound) -> Response {
        let below = request.path.strip_prefix(BELOW);
        let to_cancel = below.and_then(|rest| rest.strip_suffix("/cancel"));
        let is_post = to_cancel.is_some() || request.path == FIND;
        let allowed = if is_post { Method::POST } else { Method::GET };
        if request.method != allowed && (is_post || request.method != Method::HEAD) {
            let mut response = Response::new(empty_body());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            let allowed = HeaderValue::from_static(if allowed == Method::POST { "POST" } else { "GET" });
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        match (to_cancel, below) {
            _ if request.path == FIND => answer(self.find_by_id(&request.body).await.map(|task| Entry::of(&task))),
            (Some(reference), _) => answer(self.cancel(reference).await),
            (None, Some(reference)) => answer(self.find(reference).await.map(|task| Entry::of(&task))),
            (None, None) if request.path == "/tasks" => answer(self.list(request.query.as_deref()).await),
            (None, None) if wants_json(&request) => json(StatusCode::OK, &(self.standing)()),
            (None, None) => whole(StatusCode::OK, "text/plain; charset=utf-8", (self.standing)().to_string()),
        }
    }

    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static("GET, POST")
    }
}

/// Whether a request for the page would rather have JSON.
fn wants_json(request: &Inbound) -> bool {
    let accepted = request.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|media| media.trim().starts_with("application/json"))
}

fn answer(answer: Result<impl Serialize, Refused>) -> Response {
    let (status, error, task) = match answer {
        Ok(answer) => return json(StatusCode::OK, &answer),
        Err(Refused::Query(what)) => (StatusCode::BAD_REQUEST, what, None),
        Err(Refused::Unknown) => (StatusCode::NOT_FOUND, "no task has this reference", None),
        Err(Refused::Ambiguous) => (StatusCode::CONFLICT, "more than one task has this reference", None),
        Err(Refused::Ended(task)) => (StatusCode::CONFLICT, "the task has ended", Some(*task)),
        Err(Refused::Failed(error)) => {
            tracing::error!(error = %Chain(&error), "an operator could not be served");
            (StatusCode::SERVICE_UNAVAILABLE, "the store failed", None)
        }
    };
    json(status, &Refusal { error, task })
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    // Plain structs with text for keys: nothing of them can fail to be written.
    let mut body = serde_json::to_string(answer).unwrap_or_default();
    body.push('\n');
    whole(status, "application/json", body)
}

fn whole(status: StatusCode, content: &'static str, body: String) -> Response {
    let mut response = Response::new(full_body(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_whole_or_refused() {
        let after = Some((5, "00000000000a".to_owned()));
        let limit = Some(1000);
        let wanted = Wanted::read(Some("upstream=a%20b&state=failed&reason=poison&limit=1000&after=5-00000000000a"));
        let upstream = Some("a b".to_owned());
        assert_eq!(
            wanted,
            Ok(Wanted { upstream, state: Some("failed".to_owned()), reason: Some("poison".to_owned()), after, limit })
        );
        assert_eq!(Wanted::read(None), Ok(Wanted::default()));
        for wrong in
            ["state=done", "limit=0", "limit=1001", "limit=x", "after=5", "after=5-x", "id=1", "after=x-00000000000a"]
        {
            assert!(Wanted::read(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
