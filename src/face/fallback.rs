//! Serves the three tools that give clients without tasks access to theirs.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::StatusCode;
use tokio::time::{Instant, timeout_at};

use super::answer::{Addressee, missed};
use super::call_stream;
use super::call_stream::progress::{LifeSigns, progress_token};
use super::call_stream::request_answer::{LateAnswer, RequestAnswer, unanswered};
use super::catalog::Catalog;
use super::http::FaceResponse;
use super::list_walks::{ListReader, ListWalks};
use super::rates::UnknownTaskWatch;
use crate::cause::CauseChain;
use crate::dialect::fallback_tools::{FallbackTool, FallbackToolArguments, FallbackTools, LEVELS};
use crate::dialect::faults::gateway_error;
use crate::dialect::{FaceDialect, TaskReply};
use crate::engine::{Engine, TaskError};
use crate::task::{Caller, Executed, GatewayFault, Principal, Task, TaskId, ToolRules};
use crate::upstream::CallContext;
use crate::waits::or_pending;
use crate::wire::envelope::Request;
use crate::wire::list_pages::next_cursor;
use crate::wire::{JsonPieces, Message, Object, Payload, RequestId, RpcError, ScanLimits, envelope};

const EMPTY_CURSOR: &str = "\"\"";

/// How long a call waits for an upstream's tool names that are unknown. Then the name counts as the gateway's tool.
const LOOK_MAX: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct FallbackToolService {
    rules: ToolRules,
    /// A bit for each of the names that an upstream's list has had: until a restart, these name the upstream's tools.
    taken: AtomicU16,
    has_complete_list: AtomicBool,
    walks: ListWalks,
}

impl FallbackToolService {
    /// `None` if no tool's rules require it.
    pub(super) fn new(upstream: &Arc<str>, rules: &ToolRules) -> Option<Arc<Self>> {
        let walks = rules.any_falls_back_to_tools().then(|| ListWalks::new(upstream))?;
        let (taken, has_complete_list) = (AtomicU16::new(0), AtomicBool::new(false));
        Some(Arc::new(Self { rules: rules.clone(), taken, has_complete_list, walks }))
    }

    pub(super) fn covers(&self, tool: &str) -> bool {
        self.rules.falls_back_to_tools(tool)
    }

    /// The first level at which the upstream has none of the names: all three tools share it.
    pub(super) fn level(&self) -> usize {
        let taken = self.taken.load(Ordering::Relaxed);
        (0..LEVELS).find(|level| taken & (0b111 << (3 * level)) == 0).unwrap_or(LEVELS - 1)
    }

    /// `None` for an upstream's tool. Other levels' names are accepted, too, because clients cache them.
    pub(super) fn named(&self, name: &str) -> Option<FallbackTool> {
        let named = FallbackTool::named(name)?;
        (self.taken.load(Ordering::Relaxed) & bit(named.tool, named.level) == 0).then_some(named.tool)
    }

    /// Fetches the upstream's names, unless its complete list was seen.
    pub(super) async fn learn_names(&self, catalog: &Catalog, context: impl FnOnce() -> CallContext) {
        if !self.has_complete_list.load(Ordering::Relaxed)
            && let Ok(Ok(list)) = tokio::time::timeout(LOOK_MAX, catalog.list(&context())).await
            && let Some(list) = Object::of(list.result())
        {
            self.record_names(&list);
        }
    }

    pub(super) fn record_names(&self, list: &Object) {
        let Some(tools) = list.get("tools") else { return };
        for tool in tools.items().filter_map(|tool| Object::of(&tool)) {
            if let Some(named) = tool.get_str("name").and_then(|name| FallbackTool::named(&name)) {
                self.taken.fetch_or(bit(named.tool, named.level), Ordering::Relaxed);
            }
        }
        if next_cursor(list).is_none() {
            self.has_complete_list.store(true, Ordering::Relaxed);
        }
    }

    /// The reader of a list without a session. `who` has every value by which the server may distinguish clients.
    pub(super) fn reader(&self, who: impl Hash, counted_as: Principal) -> ListReader {
        self.walks.reader(who, counted_as)
    }

    /// The edits of a page for a client without tasks, which sent this cursor. A list of one page has no reader.
    pub(super) fn listing(self: &Arc<Self>, reader: Option<ListReader>, sent: Option<Payload>) -> FallbackListing {
        FallbackListing { service: Arc::clone(self), reader, sent }
    }

    fn shown(&self, tool: &Payload) -> Payload {
        let covered = Object::of(tool).filter(|object| object.contains("outputSchema")).filter(|object| {
            let name = object.get_str("name").unwrap_or(Cow::Borrowed(""));
            self.covers(&name)
        });
        covered.map_or_else(|| tool.clone(), |object| object.edit().remove("outputSchema").finish())
    }
}

#[derive(Clone, Debug)]
pub(super) struct FallbackListing {
    service: Arc<FallbackToolService>,
    reader: Option<ListReader>,
    sent: Option<Payload>,
}

impl FallbackListing {
    /// The result of `tools/list` for a client without tasks. The tools end the last page, when all of the upstream's
    /// names are known, and a page with an empty cursor, which many clients take for the end. A page without a new name
    /// ends the list, and so does a cursor that was sent before. A tool loses its output schema if its calls may be
    /// answered with a task id: a client would validate that text.
    pub(super) fn listed(&self, list: &Object) -> Option<Payload> {
        let service = &self.service;
        service.record_names(list);
        let tools = list.get("tools")?;
        let (sent, next) = (self.sent.as_ref().map(Payload::as_str), next_cursor(list));
        let end = self.reader.as_ref().and_then(|reader| service.walks.read(reader, self.sent.as_ref(), list));
        let is_cut = next.is_some() && end.is_some();
        if is_cut {
            service.has_complete_list.store(true, Ordering::Relaxed);
        }
        let mut shown: Vec<Payload> = tools.items().map(|tool| service.shown(&tool)).collect();
        let is_last = next.as_ref().is_none_or(|next| next.as_str() == EMPTY_CURSOR) || is_cut;
        // The page before the empty cursor had the tools.
        if is_last && sent != Some(EMPTY_CURSOR) {
            let level = service.level();
            shown.extend(FallbackTool::ALL.map(|tool| tool.definition(level)));
        }
        let edit = list.edit().set("tools", Payload::of(&shown));
        Some(if is_cut { edit.remove("nextCursor") } else { edit }.finish())
    }

    /// For the response to the request `id`; `None` for any other message.
    pub(super) fn listed_in(&self, message: &Bytes, id: &RequestId) -> Option<Bytes> {
        let Ok(Message::Response(response)) = envelope::read(message, ScanLimits::UPSTREAM) else { return None };
        let result = response.result.filter(|_| response.id.as_ref() == Some(id))?;
        self.listed(&result).map(|listed| envelope::result(id, &listed))
    }
}

const fn bit(tool: FallbackTool, level: usize) -> u16 {
    let position = match tool {
        FallbackTool::Status => 0,
        FallbackTool::Result => 1,
        FallbackTool::Cancel => 2,
    };
    1 << (3 * level + position)
}

type FallbackResult = Result<JsonPieces, RpcError>;

enum FallbackAnswer {
    Now(FallbackResult),
    /// The owner has no such task.
    Missed(Payload),
    /// Dropping the future only ends the wait.
    Later(BoxFuture<'static, FallbackResult>),
}

pub(super) struct FallbackCall<'a> {
    pub(super) tool: FallbackTool,
    pub(super) request: &'a Request,
    /// Whether life signs are progress, if the client requested any.
    pub(super) life_signs: bool,
    /// Ends when the client cancels the request (LEG-14). `None` where a cancel drops the response.
    pub(super) withdrawn: Option<BoxFuture<'static, ()>>,
}

#[derive(Clone, Copy)]
pub(super) struct TaskAsker<'a> {
    pub(super) caller: &'a Caller,
    pub(super) misses: &'a UnknownTaskWatch,
}

/// Dropping the future does not affect the task.
pub(super) async fn answer(
    engine: &Arc<Engine>,
    asker: TaskAsker<'_>,
    call: FallbackCall<'_>,
    dialect: FallbackTools,
    addressee: Addressee,
) -> FaceResponse {
    let params = call.request.params.object();
    let waiting = match run(engine, asker, call.tool, params, dialect).await {
        FallbackAnswer::Now(Ok(result)) => return addressee.result(result),
        FallbackAnswer::Now(Err(error)) => return addressee.error(StatusCode::OK, &error),
        FallbackAnswer::Missed(unknown) => return missed(addressee.result(unknown)),
        FallbackAnswer::Later(waiting) => waiting,
    };
    let token = params.and_then(progress_token).filter(|_| call.life_signs);
    let signs = token.map(|token| LifeSigns::new(call.request.id.clone(), token));
    let (withdrawn, accepted) = (call.withdrawn, addressee.accepted);
    let answering = async move {
        tokio::select! {
            biased;
            () = or_pending(withdrawn) => unanswered(accepted),
            ended = waiting => RequestAnswer::from(ended),
        }
    };
    call_stream::respond(LateAnswer { answering: Box::pin(answering), signs }, addressee).await
}

/// Serves the owner's tasks only, as `tasks/*` does. Only a cancel reaches the upstream.
async fn run(
    engine: &Arc<Engine>,
    TaskAsker { caller, misses }: TaskAsker<'_>,
    tool: FallbackTool,
    params: Option<&Object>,
    dialect: FallbackTools,
) -> FallbackAnswer {
    let arguments = params.and_then(|params| params.get_object("arguments"));
    let arguments = match FallbackToolArguments::read(tool, arguments.as_ref()) {
        Ok(arguments) => arguments,
        Err(why) => return FallbackAnswer::Now(Ok(dialect.failed(why).into())),
    };
    let missed = || {
        misses.note(&caller.principal);
        FallbackAnswer::Missed(dialect.unknown())
    };
    let Some(id) = arguments.id else { return missed() };
    if tool == FallbackTool::Cancel {
        return match engine.cancel_for(caller, id).await {
            Ok(done) => FallbackAnswer::Now(
                dialect.pieces(TaskReply::Cancelled { task: &done.task, was_settled: done.was_settled }),
            ),
            Err(TaskError::Unknown) => missed(),
            Err(error) => FallbackAnswer::Now(Err(unserved(&error))),
        };
    }
    let task = match engine.get(caller, id).await {
        Ok(task) => task,
        Err(TaskError::Unknown) => return missed(),
        Err(error) => return FallbackAnswer::Now(Err(unserved(&error))),
    };
    if let Err(fault) = engine.count_poll(&task) {
        return FallbackAnswer::Now(Err(gateway_error(&fault)));
    }
    if tool == FallbackTool::Status {
        return FallbackAnswer::Now(dialect.pieces(TaskReply::Snapshot(&task)));
    }
    if task.is_settled() || arguments.wait.is_zero() {
        return FallbackAnswer::Now(outcome(engine, task, &dialect).await);
    }
    FallbackAnswer::Later(Box::pin(wait(Arc::clone(engine), caller.clone(), id, arguments.wait, dialect)))
}

/// Returns the outcome, or the status after `patience`.
async fn wait(
    engine: Arc<Engine>,
    caller: Caller,
    id: TaskId,
    patience: Duration,
    dialect: FallbackTools,
) -> FallbackResult {
    let end = Instant::now() + patience;
    let Ok(mut watcher) = engine.watchers().watch(&caller.task(id)) else {
        return Ok(dialect.failed("Too many requests wait for this task (64). Ask again in a while.").into());
    };
    loop {
        let task = match engine.get(&caller, id).await {
            Ok(task) => task,
            Err(TaskError::Unknown) => return Ok(dialect.unknown().into()),
            Err(error) => return Err(unserved(&error)),
        };
        if task.is_settled() || Instant::now() >= end {
            engine.record_shown(&task).map_err(|fault| gateway_error(&fault))?;
            return outcome(&engine, task, &dialect).await;
        }
        // A change and the deadline both lead to another check.
        let _ = timeout_at(end, watcher.changed()).await;
    }
}

async fn outcome(engine: &Arc<Engine>, task: Arc<Task>, dialect: &FallbackTools) -> FallbackResult {
    let refused = |fault: GatewayFault| gateway_error(&fault);
    let task = engine.share(task).await.map_err(refused)?;
    engine.within_budget(&task.key.owner, dialect.pieces(TaskReply::Outcome(&task))?).map_err(refused)
}

fn unserved(error: &TaskError) -> RpcError {
    tracing::error!(error = %CauseChain(error), "a task could not be served");
    gateway_error(&GatewayFault::new(error.reason(), Executed::No))
}
