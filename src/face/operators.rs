//! Serves operators: the status page, tasks and their cancellation, and replicas. Paths: `/`, `/tasks`, `/tasks/REF`,
//! `/tasks/REF/cancel`; with a shared store also `/replicas`, `/replicas/NAME/forget`. Responses contain digests,
//! names, states and times; never an id, an argument, a question or a result (B165).

mod reports;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, StatusCode};
use serde::Serialize;

use super::http::{Endpoint, FaceResponse, Inbound, empty_body, full_body};
use crate::audit::{AuditAct, AuditEvent};
use crate::cause::CauseChain;
use crate::engine::{Engine, TaskError};
use crate::replica::Incarnation;
use crate::store::postgres::PostgresStore;
use crate::store::{NewestCursor, StoreError};
use crate::task::reference::principal_reference;
use crate::task::{Principal, ShortReference, Summary, Task, TaskId, TaskKey, Timestamp};
use crate::upstream::upstream_health::HealthReport;
use reports::{ForgottenReplica, OperatorReplicaList, state};
pub use reports::{HeldCallReport, HeldCalls, OperatorReplica, OperatorTask};

/// The default and the largest number of tasks on one page.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1_000;

const SUBTASKS_MAX: usize = 200;

const STATES: [&str; 6] = ["queued", "working", "input_required", "completed", "failed", "cancelled"];

const MAY_NOT_ACT: &str = "this token is read-only; a token with `may = \"act\"` may cancel and forget";
const NOT_RECORDED: &str = "the act cannot be recorded in the audit file, which is required";
const NOT_SHARED: &str = "this gateway shares its store with no other";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperatorRoute<'a> {
    Status,
    Tasks,
    Calls,
    /// Looks a task up by its id.
    Find,
    Show(&'a str),
    Cancel(&'a str),
    Replicas,
    Forget(&'a str),
    Nowhere,
}

impl<'a> OperatorRoute<'a> {
    fn of(path: &'a str) -> Self {
        match path.strip_prefix('/').unwrap_or_default().split_once('/') {
            None if path == "/tasks" => Self::Tasks,
            None if path == "/calls" => Self::Calls,
            None if path == "/replicas" => Self::Replicas,
            None => Self::Status,
            Some(("tasks", "find")) => Self::Find,
            Some(("tasks", task)) => task.strip_suffix("/cancel").map_or(Self::Show(task), Self::Cancel),
            Some(("replicas", replica)) => replica.strip_suffix("/forget").map_or(Self::Nowhere, Self::Forget),
            Some(_) => Self::Nowhere,
        }
    }

    const fn is_post(self) -> bool {
        matches!(self, Self::Find | Self::Cancel(_) | Self::Forget(_))
    }

    const fn acts(self) -> bool {
        matches!(self, Self::Cancel(_) | Self::Forget(_))
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct ProcessStatus {
    pub version: &'static str,
    pub ready: bool,
    pub reasons: Vec<&'static str>,
    /// Lines of `/readyz` that do not block readiness, such as `store full`.
    pub limits: Vec<&'static str>,
    pub tasks: TaskTotals,
    pub held_calls: HeldCalls,
    /// Empty for a single gateway.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<OperatorReplica>,
    pub upstreams: Vec<HealthReport>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct TaskTotals {
    pub kept: usize,
    pub bytes: usize,
    pub bytes_max: usize,
    pub unsettled: usize,
    pub permits_taken: usize,
}

impl std::fmt::Display for ProcessStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { version, ready, reasons, limits, tasks, replicas, upstreams, held_calls } = self;
        let state = if *ready { "ready" } else { "not ready" };
        let lines = [&[state][..], &reasons[..], &limits[..]].concat().join(", ");
        writeln!(f, "taskgate {version}\n{}", lines.replacen(", ", ": ", 1))?;
        let TaskTotals { kept, bytes, bytes_max, unsettled, permits_taken } = tasks;
        write!(f, "tasks: {kept} kept in {bytes} of {bytes_max} bytes, {unsettled} unsettled, ")?;
        writeln!(f, "{permits_taken} permits taken\n{held_calls}")?;
        for replica in replicas {
            writeln!(f, "{replica}")?;
        }
        for upstream in upstreams {
            writeln!(f, "{upstream}")?;
        }
        let page = if replicas.is_empty() { "" } else { "/replicas " };
        writeln!(f, "\n/tasks /calls {page}/healthz /readyz /readyz?verbose /metrics")
    }
}

pub type StatusSource = Box<dyn Fn() -> ProcessStatus + Send + Sync>;

/// The operators' endpoint, for `/`, `/tasks`, `/replicas` and all paths below.
pub struct Operators {
    engine: Arc<Engine>,
    status: StatusSource,
    shared: Option<Arc<PostgresStore>>,
}

/// Takes the place of [`Operators`] while the store is not open: responds with the reasons against readiness.
pub struct UnopenedOperators(Box<dyn Fn() -> Vec<&'static str> + Send + Sync>);

impl UnopenedOperators {
    pub fn new(reasons: Box<dyn Fn() -> Vec<&'static str> + Send + Sync>) -> Self {
        Self(reasons)
    }
}

#[async_trait]
impl Endpoint for UnopenedOperators {
    async fn serve(&self, _: Box<Inbound>) -> FaceResponse {
        let error = format!("the store is not open yet: {}", (self.0)().join(", ")).into();
        json(StatusCode::SERVICE_UNAVAILABLE, &OperatorRefusal { error, task: None })
    }

    fn takes(&self, _: &Method) -> bool {
        true
    }
}

debug_members!(UnopenedOperators);

debug_members!(Operators);

#[derive(Debug, Serialize)]
struct OperatorTaskPage {
    tasks: Vec<OperatorTask>,
    /// The `after` of the next page. A request examines a limited number of tasks: a short page may have a next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum OperatorTaskFinding {
    Found(Box<OperatorTask>),
    /// Not among the examined tasks: the same request with this as `after` continues.
    GoesOn {
        next: String,
    },
}

#[derive(Debug, Serialize)]
struct OperatorRefusal {
    error: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<OperatorTask>,
}

enum OperatorError {
    Query(&'static str),
    Unknown,
    Ambiguous,
    Ended(Box<OperatorTask>),
    Failed(TaskError),
    Other(StatusCode, String),
}

impl From<StoreError> for OperatorError {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<TaskError> for OperatorError {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Unknown => Self::Unknown,
            other @ (TaskError::Contended | TaskError::Store(_)) => Self::Failed(other),
        }
    }
}

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
                "state" => {
                    return Err(
                        "state is unknown: send queued, working, input_required, completed, failed or cancelled",
                    );
                }
                "reason" => wanted.reason = Some(value.into_owned()),
                "after" => {
                    wanted.after = Some(position(&value).ok_or("after is invalid: send the next of an earlier page")?)
                }
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
                    wanted.limit = Some(limit.ok_or("limit is invalid: send a number from 1 to 1000")?);
                }
                _ => return Err("unknown filter; a list takes upstream, principal, state, reason, after and limit"),
            }
        }
        Ok(wanted)
    }

    fn fits(&self, task: &Summary) -> bool {
        let (state, reason) = state(task.phase);
        // Without a filter by state or reason, subtasks appear only as a number beside their parent.
        let is_listed = task.tree.parent.is_none() || self.state.is_some() || self.reason.is_some();
        is_listed
            && self.upstream.as_deref().is_none_or(|upstream| *upstream == *task.origin.upstream)
            && self.state.as_deref().is_none_or(|wanted| wanted == state)
            && self.principal.as_deref().is_none_or(|wanted| is_named(&task.key.owner, wanted))
            && self.reason.as_deref().is_none_or(|wanted| Some(wanted) == reason)
    }
}

/// By its name in lists and in the log, or by its whole name, as in rules and in the audit.
fn is_named(principal: &Principal, name: &str) -> bool {
    principal.as_str() == name || principal_reference(principal) == name
}

/// Sorts as the list does: the complement of the creation time, then the reference.
fn position_text((time, reference): NewestCursor) -> String {
    format!("{}-{reference}", u64::MAX - time.as_millis())
}

fn position(text: &str) -> Option<NewestCursor> {
    let (time, reference) = text.split_once('-')?;
    let time = u64::MAX - time.parse::<u64>().ok()?;
    Some((Timestamp::from_millis(time), ShortReference::parse(reference)?))
}

impl Operators {
    pub fn new(engine: Arc<Engine>, status: StatusSource) -> Self {
        Self { engine, status, shared: None }
    }

    #[must_use]
    pub fn sharing(self, store: Arc<PostgresStore>) -> Self {
        Self { shared: Some(store), ..self }
    }

    fn store(&self) -> Result<&PostgresStore, OperatorError> {
        self.shared.as_deref().ok_or_else(|| OperatorError::Other(StatusCode::NOT_FOUND, NOT_SHARED.to_owned()))
    }

    async fn forget(&self, name: &str) -> Result<ForgottenReplica, OperatorError> {
        let outcome = self.store()?.forget(name).await?;
        ForgottenReplica::of(name, outcome).map_err(|(status, why)| OperatorError::Other(status, why))
    }

    /// Adds the holder of each task, if the store is shared.
    async fn with_holders(&self, tasks: &mut [(TaskKey, OperatorTask)]) -> Result<(), TaskError> {
        let Some(store) = &self.shared else { return Ok(()) };
        let keys: Vec<TaskKey> = tasks.iter().map(|(key, _)| key.clone()).collect();
        let holders = self.engine.holders(&keys).await?;
        let replicas = OperatorReplica::all(store);
        let name =
            |holder: Incarnation| replicas.iter().find(|one| one.incarnation == holder.0).map(|one| one.name.clone());
        for ((_, entry), holder) in tasks.iter_mut().zip(holders) {
            if let Some(holder) = holder {
                entry.held_by(name(holder), holder);
            }
        }
        Ok(())
    }

    async fn list(&self, query: Option<&str>) -> Result<OperatorTaskPage, OperatorError> {
        let wanted = OperatorTaskQuery::read(query).map_err(OperatorError::Query)?;
        let limit = wanted.limit.unwrap_or(PAGE);
        let mut page: Vec<(TaskKey, OperatorTask)> = Vec::new();
        let mut last = None;
        let mut has_more = false;
        let look = |task: &Summary| {
            if !wanted.fits(task) {
                return ControlFlow::Continue(());
            }
            // One more than is shown: if it is found, there is a next page.
            if page.len() == limit {
                has_more = true;
                return ControlFlow::Break(());
            }
            page.push((task.key.clone(), OperatorTask::of(task)));
            last = Some((task.created_at, ShortReference::of(&task.key)));
            ControlFlow::Continue(())
        };
        let goes_on = self.engine.survey(wanted.after, look).await?;
        self.with_holders(&mut page).await?;
        let tasks = page.into_iter().map(|(_, entry)| entry).collect();
        Ok(OperatorTaskPage { tasks, next: goes_on.or_else(|| last.filter(|_| has_more)).map(position_text) })
    }

    async fn find(&self, reference: &str) -> Result<Arc<Task>, OperatorError> {
        let reference = ShortReference::parse(reference).ok_or(OperatorError::Unknown)?;
        let mut found = self.engine.named_by(reference).await?;
        match (found.pop(), found.is_empty()) {
            (None, _) => Err(OperatorError::Unknown),
            (Some(task), true) => Ok(task),
            (Some(_), false) => Err(OperatorError::Ambiguous),
        }
    }

    /// Finds any principal's task by its id, which may be secret and so is in the body, never in a URL or the log. One
    /// request examines a limited number of tasks.
    async fn find_by_id(&self, body: &[u8]) -> Result<OperatorTaskFinding, OperatorError> {
        #[derive(serde::Deserialize)]
        struct OperatorTaskLookup {
            id: String,
            after: Option<String>,
        }
        let wanted: OperatorTaskLookup = serde_json::from_slice(body).map_err(|_| {
            OperatorError::Query("write {\"id\": \"...\"}, and as \"after\" the next of an earlier response")
        })?;
        let id = TaskId::parse(&wanted.id).ok_or(OperatorError::Unknown)?;
        let wrong = OperatorError::Query("after is invalid: send the next of an earlier response");
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
                let task = self.engine.load_visible(&key).await?;
                OperatorTaskFinding::Found(Box::new(self.details(&task).await?))
            }
            (None, Some(next)) => OperatorTaskFinding::GoesOn { next: position_text(next) },
            (None, None) => return Err(OperatorError::Unknown),
        })
    }

    async fn show(&self, reference: &str) -> Result<OperatorTask, OperatorError> {
        Ok(self.details(&*self.find(reference).await?).await?)
    }

    async fn details(&self, task: &Task) -> Result<OperatorTask, TaskError> {
        let below = self.engine.subtasks_of(&task.key.owner, &task.tree, SUBTASKS_MAX).await?;
        let mut entry = [(task.key.clone(), OperatorTask::of(&Summary::of(task)))];
        self.with_holders(&mut entry).await?;
        let [(_, entry)] = entry;
        Ok(entry.with_details(task, &below))
    }

    async fn cancel(&self, reference: &str) -> Result<OperatorTask, OperatorError> {
        let task = self.find(reference).await?;
        let cancelled = self.engine.cancel_for_operator(&task.key).await?;
        let entry = OperatorTask::of(&Summary::of(&cancelled.task));
        if cancelled.was_settled { Err(OperatorError::Ended(Box::new(entry))) } else { Ok(entry) }
    }
}

#[async_trait]
impl Endpoint for Operators {
    async fn serve(&self, request: Box<Inbound>) -> FaceResponse {
        let route = OperatorRoute::of(&request.path);
        if route.acts() && !request.caller.principal.may_act() {
            self.record(route, &request.caller.principal, StatusCode::FORBIDDEN);
            return refusal(StatusCode::FORBIDDEN, MAY_NOT_ACT);
        }
        let allowed = if route.is_post() { Method::POST } else { Method::GET };
        if request.method != allowed && (route.is_post() || request.method != Method::HEAD) {
            let mut response = FaceResponse::new(empty_body());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            let allowed = HeaderValue::from_static(if allowed == Method::POST { "POST" } else { "GET, HEAD" });
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        if route.acts() && self.engine.audit().is_some_and(|audit| !audit.is_available()) {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, NOT_RECORDED);
        }
        let response = self.respond(route, &request).await;
        self.record(route, &request.caller.principal, response.status());
        response
    }

    fn takes(&self, method: &Method) -> bool {
        [Method::GET, Method::HEAD, Method::POST].contains(method)
    }

    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static("GET, HEAD, POST")
    }
}

impl Operators {
    async fn respond(&self, route: OperatorRoute<'_>, request: &Inbound) -> FaceResponse {
        match route {
            OperatorRoute::Find => answer(self.find_by_id(&request.body).await),
            OperatorRoute::Cancel(reference) => answer(self.cancel(reference).await),
            OperatorRoute::Show(reference) => answer(self.show(reference).await),
            OperatorRoute::Tasks => answer(self.list(request.query.as_deref()).await),
            OperatorRoute::Forget(name) => answer(self.forget(name).await),
            OperatorRoute::Replicas => {
                let all = self.store().map(|store| OperatorReplicaList { replicas: OperatorReplica::all(store) });
                answer(all)
            }
            OperatorRoute::Calls => json(StatusCode::OK, &(self.status)().held_calls),
            OperatorRoute::Status if wants_json(request) => json(StatusCode::OK, &(self.status)()),
            OperatorRoute::Status => whole(StatusCode::OK, "text/plain; charset=utf-8", (self.status)().to_string()),
            OperatorRoute::Nowhere => refusal(StatusCode::NOT_FOUND, "unknown path; docs/operating.md lists them"),
        }
    }

    fn record(&self, route: OperatorRoute<'_>, who: &Principal, status: StatusCode) {
        let (OperatorRoute::Cancel(item) | OperatorRoute::Forget(item)) = route else { return };
        let is_cancel = matches!(route, OperatorRoute::Cancel(_));
        let act = if is_cancel { AuditAct::OperatorCancelled } else { AuditAct::OperatorForgot };
        if let Some(audit) = self.engine.audit() {
            let outcome = Some(status.as_str());
            audit.record(&AuditEvent { who: Some(who), item: Some(item), outcome, ..AuditEvent::new(act) });
        }
    }
}

fn wants_json(request: &Inbound) -> bool {
    let accepted = request.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|media| media.trim().starts_with("application/json"))
}

fn answer(answer: Result<impl Serialize, OperatorError>) -> FaceResponse {
    let (status, error, task) = match answer {
        Ok(answer) => return json(StatusCode::OK, &answer),
        Err(OperatorError::Query(what)) => (StatusCode::BAD_REQUEST, what.into(), None),
        Err(OperatorError::Unknown) => (StatusCode::NOT_FOUND, "no task has this reference".into(), None),
        Err(OperatorError::Ambiguous) => (StatusCode::CONFLICT, "more than one task has this reference".into(), None),
        Err(OperatorError::Ended(task)) => (StatusCode::CONFLICT, "the task has ended".into(), Some(*task)),
        Err(OperatorError::Failed(error)) => {
            tracing::error!(error = %CauseChain(&error), "an operator's request failed at the store");
            (StatusCode::SERVICE_UNAVAILABLE, "the task store failed; the gateway's log has the cause".into(), None)
        }
        Err(OperatorError::Other(status, why)) => (status, why.into(), None),
    };
    json(status, &OperatorRefusal { error, task })
}

fn refusal(status: StatusCode, error: &'static str) -> FaceResponse {
    json(status, &OperatorRefusal { error: error.into(), task: None })
}

fn json(status: StatusCode, answer: &impl Serialize) -> FaceResponse {
    // Plain structs with text keys always serialize.
    let mut body = serde_json::to_string(answer).unwrap_or_default();
    body.push('\n');
    whole(status, "application/json", body)
}

fn whole(status: StatusCode, content: &'static str, body: String) -> FaceResponse {
    let mut response = FaceResponse::new(full_body(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
