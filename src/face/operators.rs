//! Shows operators the tasks, and cancels one for them: `/tasks`, `/tasks/REF`, `/tasks/REF/cancel`, and a status page.
//!
//! Shown are digests, names, states and times; never an id, an argument, a question or a result (B165).

mod entry;

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

    fn fits(&self, task: &Summary) -> bool {
        let (state, reason) = state(task.phase);
        // Where not asked for by how they stand, subtasks are a number beside their parent.
        let is_listed = task.tree.parent.is_none() || self.state.is_some() || self.reason.is_some();
        is_listed
            && self.upstream.as_deref().is_none_or(|upstream| *upstream == *task.origin.upstream)
            && self.state.as_deref().is_none_or(|wanted| wanted == state)
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
        let allowed = if is_post { Method::POST } else { Method::GET };
        if request.method != allowed && (is_post || request.method != Method::HEAD) {
            let mut response = FaceResponse::new(empty_body());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            let allowed = HeaderValue::from_static(if allowed == Method::POST { "POST" } else { "GET" });
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

    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static("GET, POST")
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::{AdmissionLimits, SURVEY_MAX};
    use crate::store::{MemoryStore, TaskStore as _, contract};
    use crate::task::{ManualClock, Outcome, Phase, TreePlace};

    /// An endpoint in front of so many tasks, of which the first is the oldest.
    async fn operators(tasks: usize) -> Operators {
        let store = Arc::new(MemoryStore::new(1 << 30));
        for number in 0..tasks {
            let task = contract::task("key:ada", number as u128);
            let created_at = task.created_at.after(Duration::from_millis(number as u64));
            store.insert(&Task { created_at, ..task }).await.unwrap();
        }
        over(store)
    }

    fn over(store: Arc<MemoryStore>) -> Operators {
        let limits =
            AdmissionLimits { tasks_max: 1, tasks_per_principal_max: 1, stored_bytes_per_principal_max: usize::MAX };
        let clock = Arc::new(ManualClock::at(contract::task("key:ada", 0).created_at));
        let engine = Engine::new(store, clock, Box::new(|| 7), limits);
        Operators::new(engine, Box::new(|| unreachable!("nobody asks how the process stands")))
    }

    /// A filter that fits hardly anything, and an id, make no request look at the whole store.
    #[tokio::test]
    async fn one_request_looks_at_a_bounded_number_of_tasks_and_says_where_to_go_on() {
        let operators = operators(SURVEY_MAX + 1).await;
        let Ok(page) = operators.list(Some("state=failed")).await else { panic!("a page") };
        assert!(page.tasks.is_empty());
        let Ok(page) = operators.list(Some(&format!("after={}", page.next.unwrap()))).await else { panic!("a page") };
        assert_eq!((page.tasks.len(), page.next), (1, None), "the oldest is left");
        let id = contract::task("key:ada", 0).key.id.to_string();
        let found = async |after: serde_json::Value| {
            let body = serde_json::json!({ "id": id, "after": after });
            serde_json::to_value(operators.find_by_id(body.to_string().as_bytes()).await.ok()).unwrap()
        };
        let first = found(serde_json::Value::Null).await;
        assert!(first["next"].is_string() && first["ref"].is_null(), "{first}");
        let second = found(first["next"].clone()).await;
        assert!(second["ref"].is_string() && second["next"].is_null(), "{second}");
    }

    /// Four tasks of one owner: 1 has 2 and 3 below it, and 3 has 4.
    async fn with_a_tree() -> Operators {
        let store = Arc::new(MemoryStore::new(1 << 30));
        let rows: [(u128, Option<u128>, &[u128]); 4] =
            [(1, None, &[2, 3]), (2, Some(1), &[]), (3, Some(1), &[4]), (4, Some(3), &[])];
        for (number, parent, children) in rows {
            let id = TaskId::from_bits;
            let tree =
                TreePlace { parent: parent.map(id), children: children.iter().map(|child| id(*child)).collect() };
            let phase = if number == 2 { Phase::Settled(Outcome::Cancelled) } else { Phase::Working };
            store.insert(&Task { tree, phase, ..contract::task("key:ada", number) }).await.unwrap();
        }
        over(store)
    }

    #[tokio::test]
    async fn a_task_is_shown_with_its_tree_and_a_list_has_subtasks_once() {
        let operators = with_a_tree().await;
        let json = |answer: Result<_, OperatorError>| match answer {
            Ok(answer) => serde_json::to_value(answer).unwrap(),
            Err(_) => panic!("an answer"),
        };
        let [top, second, third, fourth] =
            [1, 2, 3, 4].map(|id| ShortReference::of(&contract::task("key:ada", id).key).to_string());
        let shown = json(operators.show(&top).await);
        assert_eq!(
            (&shown["ref"], &shown["children"], &shown["client"]),
            (&top.as_str().into(), &2.into(), &"stateless".into())
        );
        let below: Vec<_> =
            shown["subtasks"].as_array().unwrap().iter().map(|row| (&row["ref"], &row["state"])).collect();
        assert_eq!(below, [(&second.into(), &"cancelled".into()), (&third.as_str().into(), &"working".into())]);
        assert_eq!(shown["subtasks"][1]["subtasks"][0]["ref"], fourth);
        assert_eq!(shown["subtasks"][1]["subtasks"][0]["parent"], third);
        let listed = async |query| {
            let page = match operators.list(query).await {
                Ok(page) => serde_json::to_value(page).unwrap(),
                Err(_) => panic!("a page"),
            };
            page["tasks"].as_array().unwrap().iter().map(|row| row["children"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(listed(None).await, [2]);
        assert_eq!(listed(Some("upstream=demo")).await.len(), 1);
        assert_eq!(listed(Some("state=working")).await.len(), 3, "by how they stand each is found");
    }

    #[tokio::test]
    async fn a_tree_is_shown_as_far_as_there_is_room_the_nearest_first() {
        let operators = with_a_tree().await;
        let task = operators.engine.get(&contract::task("key:ada", 1).key).await.unwrap();
        let refs = async |limit| {
            let below = operators.engine.subtasks_of(&task.key.owner, &task.tree, limit).await.unwrap();
            below.iter().map(|node| (node.task.key.id.bits(), node.below.len())).collect::<Vec<_>>()
        };
        assert_eq!(refs(1).await, [(2, 0)]);
        assert_eq!(refs(2).await, [(2, 0), (3, 0)]);
        assert_eq!(refs(9).await, [(2, 0), (3, 1)]);
    }

    #[tokio::test]
    async fn settled_subtasks_keep_their_places_and_those_that_do_not_fit_are_left_out() {
        let operators = with_a_tree().await;
        let task = operators.engine.get(&contract::task("key:ada", 1).key).await.unwrap();
        let [found, none] =
            [usize::MAX, 0].map(|bytes_max| operators.engine.settled_subtasks(&task.key.owner, &task.tree, bytes_max));
        let found: Vec<_> = found.await.unwrap().iter().map(|(index, task)| (*index, task.key.id.bits())).collect();
        assert_eq!(found, [(0, 2)]);
        assert!(none.await.unwrap().is_empty());
    }

    #[test]
    fn a_query_is_read_whole_or_refused() {
        let after = Some((Timestamp::from_millis(5), ShortReference([0, 0, 0, 0, 0, 10])));
        let limit = Some(1000);
        let wanted = OperatorTaskQuery::read(Some(
            "upstream=a%20b&state=failed&reason=poison&limit=1000&after=18446744073709551610-00000000000a",
        ));
        let upstream = Some("a b".to_owned());
        assert_eq!(
            wanted,
            Ok(OperatorTaskQuery {
                upstream,
                state: Some("failed".to_owned()),
                reason: Some("poison".to_owned()),
                after,
                limit
            })
        );
        assert_eq!(after.map(place).as_deref(), Some("18446744073709551610-00000000000a"));
        assert_eq!(OperatorTaskQuery::read(None), Ok(OperatorTaskQuery::default()));
        for wrong in
            ["state=done", "limit=0", "limit=1001", "limit=x", "after=5", "after=5-x", "id=1", "after=x-00000000000a"]
        {
            assert!(OperatorTaskQuery::read(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
