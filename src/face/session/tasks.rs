//! Serves tasks of session clients: calls as tasks, task methods, and notifications. A task's whole state is in the
//! store; this module holds only the receivers of its messages. Read [`SessionFaceState::call`] for the start of a
//! task, `result` for waiting for its outcome, and `task_notifier`.

mod draft;
mod result;
mod task_notifier;
mod task_subscribers;
mod tokens;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::session_cache::ClientSession;
use super::{SessionFaceState, refuse};
use crate::cause::CauseChain;
use crate::dialect::core_2025_11_25::{CoreTasks, HybridTasks, ListSupport, RequestedTtl, list_filter};
use crate::dialect::draft_sep_1686::{DraftTasks, RequestedTask};
use crate::dialect::face_dialect::bad_cursor;
use crate::dialect::faults::{gateway_error, not_in_flavour};
use crate::dialect::related_task::RelatedTask;
use crate::dialect::session_results::client_capabilities;
use crate::dialect::{FaceDialect, RequestError, TaskCommand, TaskReply, inputs};
use crate::engine::{
    CallEnd, CallEvent, CallMaker, CallSpec, ServiceSettings, TaskError, TaskNotice, declared_questions, plain_request,
};
use crate::face::answer::{Addressee, TaskMethodError, addressee, bare};
use crate::face::call_stream::progress::{MonotonicProgress, progress_token};
use crate::face::call_stream::request_answer::{RequestAnswer, unanswered};
use crate::face::handle_delay;
use crate::face::http::{AcceptedTypes, FaceResponse};
use crate::face::idempotency_key;
use crate::face::rates::UnknownTaskWatch;
use crate::face::rewrite::TaskSupportLookup;
use crate::task::{
    CallOrigin, Caller, ChosenId, ClientKind, Draft, Drafts, Executed, Failure, GatewayFault, HandleSupport, InputKey,
    ListFilter, Outcome, Phase, Principal, Reason, SessionScope, Summary, Task, TaskId, TaskMode,
};
use crate::upstream::{Progress, Upstream, UpstreamTaskMode};
use crate::wire::envelope::{self, Request};
use crate::wire::{JsonPieces, Object, Payload, ProtocolVersion, RequestId, RpcError, method};
use result::OutcomeRequest;
use task_subscribers::{SharedProgress, SubscriberList, TaskRequests, TaskSubscribers};

const PAGE: usize = 50;

/// In-memory state of tasks, which can be rebuilt from the store.
pub(in crate::face) struct SessionTasksState {
    subscribers: TaskSubscribers,
    requests: Arc<TaskRequests>,
    pub(super) misses: UnknownTaskWatch,
    support: TaskSupportLookup,
    drafts: Drafts,
}

debug_members!(SessionTasksState, |state| subscribers: state.subscribers);

impl SessionTasksState {
    pub(super) fn new(settings: &ServiceSettings) -> Self {
        let rules = settings.rules.clone();
        Self {
            subscribers: TaskSubscribers::default(),
            requests: Arc::default(),
            misses: UnknownTaskWatch::default(),
            support: Arc::new(move |tool| CoreTasks::support(rules.mode_of(tool))),
            drafts: settings.drafts,
        }
    }

    pub(super) fn has_in_flight(&self, nonce: u128, id: &RequestId) -> bool {
        self.requests.knows(nonce, id)
    }

    /// Ends when the client cancels the request (LEG-14). While this future lives, the gateway finds such a cancel.
    pub(super) fn withdrawal(&self, nonce: u128, id: &RequestId) -> BoxFuture<'static, ()> {
        let entry = self.requests.enter(nonce, id);
        Box::pin(async move { entry.withdrawn().cancelled().await })
    }

    /// `None` if tasks are not offered.
    pub(in crate::face) fn support(&self, session: &ClientSession) -> Option<TaskSupportLookup> {
        session.has_tasks().then(|| Arc::clone(&self.support))
    }

    /// With the draft enabled, each session may have tasks, in any version.
    pub(in crate::face) fn are_for(&self, session: &ClientSession) -> bool {
        session.has_tasks() || self.drafts.has(Draft::Sep1686)
    }

    fn codec(&self) -> CoreTasks {
        CoreTasks::with_drafts(self.drafts)
    }

    /// `text` is for the client's model.
    fn handle(&self, task: &Task, text: Option<Arc<str>>) -> Result<Payload, RpcError> {
        let core = self.codec().with_immediate_response(text);
        match self.drafts.has(Draft::Sep1686) {
            true => HybridTasks::over(core).encode(TaskReply::Created(task)),
            false => core.encode(TaskReply::Created(task)),
        }
    }
}

impl ClientSession {
    pub(super) fn has_tasks(&self) -> bool {
        CoreTasks::are_offered_in(self.token.client_version)
    }
}

/// The task capability in the response to `initialize`; `None` for versions without tasks.
pub(in crate::face) fn offer(version: ProtocolVersion, principal: &Principal, drafts: Drafts) -> Option<Payload> {
    let lists = match principal.is_identified() {
        false => ListSupport::Withheld,
        true if drafts.has(Draft::Sep1904) => ListSupport::Filtered,
        true => ListSupport::Served,
    };
    CoreTasks::are_offered_in(version).then(|| CoreTasks::capability(lists))
}

pub(super) fn is_served_method(drafts: Drafts, name: &str) -> bool {
    CoreTasks::is_method(name) || (drafts.has(Draft::Sep1686) && DraftTasks::is_method(name))
}

pub(super) struct TaskRequestContext<'a> {
    pub(super) session: ClientSession,
    pub(super) caller: &'a Caller,
    pub(super) headers: &'a HeaderMap,
    pub(super) accepted: AcceptedTypes,
    pub(super) arrived: Instant,
}

#[derive(Debug)]
pub(super) struct TaskCall {
    pub(super) request: Request,
    pub(super) tool: String,
    pub(super) wish: TaskWish,
}

impl SessionFaceState {
    /// Makes a call a task, and responds with its handle once it is stored.
    pub(super) async fn call(self: &Arc<Self>, asking: TaskRequestContext<'_>, call: TaskCall) -> FaceResponse {
        let addressee = addressee(Some(&call.request.id), asking.accepted);
        self.note_tasks(&asking.session);
        let Some(params) = call.request.params.object() else {
            return refuse(&addressee, &RequestError::unknown_tool(None));
        };
        let draft = match &call.wish {
            TaskWish::Draft(wish) => Some(self.draft_call(&asking, &call.request, wish)),
            TaskWish::Core(_) => None,
        };
        let names = asking.session.idempotency_scope(&asking.caller.principal);
        let idempotency =
            match idempotency_key::read(asking.headers, params, names, self.served.channel.name(), &call.tool) {
                // The client's chosen id identifies the call already.
                Ok(Some(_)) if draft.is_some() => return refuse(&addressee, &draft::named_twice()),
                Ok(idempotency) => idempotency,
                Err(complaint) => return refuse(&addressee, &complaint),
            };
        if !Box::pin(self.may_begin(&asking.session, &asking.caller.principal, &call.tool)).await {
            return refuse(&addressee, &RequestError::unknown_tool(Some(params)));
        }
        let native = self.native_task(&asking.session, &asking.caller.principal, &call.tool).await;
        if !self.open.in_flight.is_wanted(asking.session.token.nonce, &call.request.id, asking.arrived) {
            return unanswered(asking.accepted).into_response(&addressee);
        }
        let rising = progress_token(params).map(|token| Arc::new(Mutex::new(MonotonicProgress::new(token))));
        let spec = CallSpec { idempotency, ..self.spec(&asking, &call, params, native, rising.clone()) };
        let text = spec.policy.immediate_response.clone();
        let is_named = spec.idempotency.is_some();
        match self.served.engine.call(spec).next().await {
            Some(CallEvent::Created(task)) => {
                if let Some(draft) = draft {
                    return self.follow(&task, draft, rising, addressee).await;
                }
                if !task.is_settled() {
                    self.subscribers(asking.caller, task.key.id, asking.session.token.nonce, Some(&task))
                        .wants_progress(rising);
                    handle_delay::pass(&self.served.engine, &task.key, is_named).await;
                }
                let forwarded = &asking.session.own.forwarded;
                // With an idempotency key, the client finds the outcome by the key.
                if let Some(fault) = handle_delay::refusal(&self.served.engine, &task.key, forwarded).await
                    && !is_named
                {
                    return addressee.error(StatusCode::OK, &gateway_error(&fault));
                }
                match self.as_seen(task).await {
                    Ok(task) => RequestAnswer::from(self.tasks.handle(&task, text)).into_response(&addressee),
                    Err(error) => answer_refused(error.into(), &addressee),
                }
            }
            Some(CallEvent::Ended(CallEnd::Outcome(Outcome::Faulted(Failure::Gateway(fault))))) => {
                addressee.error(StatusCode::OK, &gateway_error(&fault))
            }
            Some(CallEvent::Ended(CallEnd::IdempotencyMismatch)) => {
                refuse(&addressee, &draft.map_or(RequestError::IdempotencyMismatch, |_| draft::id_taken()))
            }
            Some(
                CallEvent::Progress(_)
                | CallEvent::Notification(_)
                | CallEvent::StaysPlain
                | CallEvent::InputRequired { .. }
                | CallEvent::Ended(CallEnd::Outcome(_) | CallEnd::CallLost | CallEnd::NeedsCapability(_)),
            )
            | None => {
                let fault = GatewayFault::new(Reason::Internal, Executed::Unknown);
                addressee.error(StatusCode::OK, &gateway_error(&fault))
            }
        }
    }

    pub(super) fn is_of_a_task(&self, id: &RequestId) -> bool {
        tokens::question(&self.served.sealer, id).is_some()
    }

    pub(super) fn upstream_of(self: &Arc<Self>, session: &ClientSession) -> Arc<dyn Upstream> {
        match session.is_bridged() {
            true => Arc::clone(&self.served.stateless),
            false => {
                self.end_if_over(session);
                self.own.lend(&session.own)
            }
        }
    }

    fn spec(
        self: &Arc<Self>,
        asking: &TaskRequestContext<'_>,
        call: &TaskCall,
        params: &Object,
        native_task: UpstreamTaskMode,
        rising: Option<SharedProgress>,
    ) -> CallSpec {
        let served = &self.served;
        let mut policy = served.settings.rules.policy_of(&call.tool);
        let chosen = match &call.wish {
            TaskWish::Core(wish) => {
                policy.ttl = wish.ttl(policy.ttl, policy.ttl_max);
                None
            }
            TaskWish::Draft(wish) => {
                policy.keep_result_min = wish.keep_alive(policy.keep_result_min, policy.ttl_max);
                Some(ChosenId { session: SessionScope(asking.session.token.nonce), text: Arc::clone(&wish.text) })
            }
        };
        let plan = policy.mode.plan(HandleSupport::AtOnce, policy.grace);
        let token = &asking.session.token;
        let capabilities = match asking.session.is_bridged() {
            true => client_capabilities(&token.capabilities, token.client_version),
            false => token.capabilities.clone(),
        };
        let maker = CallMaker {
            principal: asking.caller.principal.clone(),
            kind: ClientKind::Session,
            questions: declared_questions(&capabilities),
            capabilities,
            forwarded: asking.session.own.forwarded.clone(),
            arrived: asking.arrived,
        };
        let request = plain_request(method::TOOLS_CALL, Some(params));
        let tool = (Arc::from(call.tool.as_str()), policy);
        // The client alone saw the tools' annotations: no call is repeatable.
        let mut spec = served.target().plain_call(maker, request, Some(tool));
        spec.upstream = self.upstream_of(&asking.session);
        spec.plan = plan;
        spec.sees_subtasks =
            chosen.is_none() && asking.session.has_tasks() && served.settings.drafts.has(Draft::Sep2268);
        spec.chosen = chosen;
        spec.notice_sink = Some(self.notice_sink(rising, &call.tool, spec.chosen.clone(), token.nonce));
        spec.context.progress = true;
        spec.context.native_task = native_task;
        spec
    }

    pub(super) fn notice_sink(
        self: &Arc<Self>,
        rising: Option<SharedProgress>,
        tool: &str,
        chosen: Option<ChosenId>,
        nonce: u128,
    ) -> crate::engine::TaskNoticeSink {
        let shared = Arc::clone(self);
        let upstream = Arc::clone(self.served.upstream.name());
        let origin = CallOrigin { upstream, tool: Arc::from(tool), client: ClientKind::Session };
        Arc::new(move |key, notice| {
            let subscribers = shared.tasks.subscribers.get(key);
            let may_have = |caller: &Caller| shared.served.engine.may_read(caller, &origin);
            let counted = |copy| shared.served.engine.limits().answers_to(&key.owner).hold_now(copy);
            let named = subscribers.as_ref().and_then(|subscribers| subscribers.related());
            let related = named.unwrap_or_else(|| RelatedTask::of(key.id, chosen.as_ref()));
            let message = match notice {
                TaskNotice::Progress(progress) => {
                    rising.as_ref().and_then(|rising| shown(&related, &mut rising.lock(), progress))
                }
                TaskNotice::Notification((name, Some(log))) if **name == *method::LOG_MESSAGE => {
                    subscribers.as_ref().and_then(|_| counted(related.log(log)))
                }
                // About the session, and not about the task (LEG-20).
                TaskNotice::Notification((name, params)) => {
                    let object = params.as_ref().and_then(Object::of);
                    let may_see = |by: &Caller| may_have(by) && shared.served.may_see(by, name, object.as_ref());
                    let waiting = || subscribers.as_ref().and_then(|subscribers| subscribers.newest_result(may_see));
                    if let Some(stream) = shared.open.streams.newest(nonce, may_see).or_else(waiting)
                        && let Some(text) = counted(envelope::notification(name, params.as_ref()))
                    {
                        let _ = stream.try_send(text);
                    }
                    return;
                }
            };
            let Some(message) = message else { return };
            if let Some(subscribers) = subscribers {
                subscribers.mention(&shared.open.streams, may_have, message);
            }
        })
    }

    /// An unsettled task's subscriber list, with a running notifier. `shown` is the state that the client knows.
    fn subscribers(
        self: &Arc<Self>,
        caller: &Caller,
        id: TaskId,
        nonce: u128,
        shown: Option<&Task>,
    ) -> Arc<SubscriberList> {
        let (subscribers, is_new) = self.tasks.subscribers.open(&caller.task(id), nonce);
        if is_new {
            let (shared, key) = (Arc::clone(self), caller.task(id));
            let notifier = task_notifier::TaskNotifier::new(shared, key, Arc::clone(&subscribers), shown);
            let scope = &self.served.scope;
            scope.tracker.spawn(scope.stop.clone().run_until_cancelled_owned(Box::pin(notifier.run())));
        }
        subscribers
    }

    /// Sends the task's questions on the session's own stream.
    pub(super) fn notify_about(self: &Arc<Self>, caller: &Caller, task: &Task, nonce: u128) {
        self.subscribers(caller, task.key.id, nonce, Some(task));
    }

    pub(super) async fn task_method(
        self: &Arc<Self>,
        asking: TaskRequestContext<'_>,
        request: &Request,
    ) -> FaceResponse {
        let addressee = addressee(Some(&request.id), asking.accepted);
        if !self.tasks.are_for(&asking.session) {
            return refuse(&addressee, &RequestError::UnknownMethod(request.method.clone()));
        }
        self.note_tasks(&asking.session);
        let none = Object::of(&Payload::empty_object());
        let Some(params) = request.params.object().or(none.as_ref()) else {
            return refuse(&addressee, &RequestError::UnknownTask);
        };
        if self.served.settings.drafts.has(Draft::Sep1686)
            && let Some(answered) = self.draft_method(&asking, &request.method, params).await
        {
            return self.answer_method(answered, &asking.caller.principal, &addressee);
        }
        let command = match self.tasks.codec().decode(&request.method, params) {
            Ok(command) => command,
            Err(complaint) => return refuse(&addressee, &complaint),
        };
        let (nonce, caller) = (asking.session.token.nonce, asking.caller);
        let answered = match command {
            TaskCommand::Get(id) => self.get(caller, id, nonce).await,
            TaskCommand::Cancel(id) => self.cancel(caller, id).await,
            TaskCommand::List(cursor) => self.list(caller, cursor, params).await,
            TaskCommand::Await(id) => {
                let (shared, caller) = (Arc::clone(self), caller.clone());
                let request = Arc::new(self.tasks.requests.enter(nonce, &request.id));
                return OutcomeRequest { shared, caller, id, nonce, addressee, call: None, request }.answer().await;
            }
            TaskCommand::Answer(..) | TaskCommand::Fetch(_) | TaskCommand::Delete(_) => {
                Err(TaskMethodError::Error(not_in_flavour()))
            }
        };
        self.answer_method(answered, &asking.caller.principal, &addressee)
    }

    fn answer_method(
        &self,
        answered: Result<impl Into<JsonPieces>, TaskMethodError>,
        principal: &Principal,
        addressee: &Addressee,
    ) -> FaceResponse {
        match answered {
            Ok(result) => addressee.result(result),
            Err(refused) => {
                if matches!(refused, TaskMethodError::Task(TaskError::Unknown)) {
                    self.tasks.misses.note(principal);
                }
                answer_refused(refused, addressee)
            }
        }
    }

    /// Accepts a client's answer to a task's question, both named by the id. An unexpected one gets the same response.
    pub(super) async fn take_answer(&self, caller: &Caller, response: envelope::Response) -> FaceResponse {
        let Some((task, key)) = response.id.as_ref().and_then(|id| tokens::question(&self.served.sealer, id)) else {
            return bare(StatusCode::ACCEPTED);
        };
        let task_key = caller.task(task);
        if let Some(subscribers) = self.tasks.subscribers.get(&task_key) {
            subscribers.note_answer(key);
        }
        // An answer that does not fit its question is replaced by a refusal: its client sees no error (B129).
        let answer = match self.served.engine.get_unaudited(caller, task).await.as_deref() {
            Ok(task) => {
                let answer = RelatedTask::of(task.key.id, task.chosen.as_ref()).answer(response);
                match &task.phase {
                    Phase::AwaitingInput(open) => inputs::fitting(open, key, answer),
                    Phase::Queued | Phase::Working | Phase::Settled(_) => answer,
                }
            }
            Err(_) => RelatedTask::of(task, None).answer(response),
        };
        let answers = std::collections::BTreeMap::<InputKey, _>::from([(key, answer)]);
        match self.served.engine.answer(caller, task, answers).await {
            Ok(()) | Err(TaskError::Unknown) => bare(StatusCode::ACCEPTED),
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "an answer could not be stored");
                bare(StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }
}

impl SessionFaceState {
    async fn get(self: &Arc<Self>, caller: &Caller, id: TaskId, nonce: u128) -> Result<Payload, TaskMethodError> {
        let task = self.served.engine.get(caller, id).await?;
        if !task.is_settled() {
            // After a restart this links the task to its client's stream again.
            self.subscribers(caller, id, nonce, None);
        }
        self.served.engine.count_poll(&task)?;
        let task = self.as_seen(task).await?;
        Ok(self.tasks.codec().encode(TaskReply::Snapshot(&task))?)
    }

    /// Leaves out the parts of a tree that the owner may not see. Skipped where trees are not exposed.
    async fn as_seen(&self, task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
        if self.tasks.drafts.has(Draft::Sep2268) { self.served.engine.as_seen(task).await } else { Ok(task) }
    }

    async fn cancel(&self, caller: &Caller, id: TaskId) -> Result<Payload, TaskMethodError> {
        let cancelled = self.served.engine.cancel_for(caller, id).await?;
        self.tasks.subscribers.mute(&caller.task(id));
        let task = self.as_seen(cancelled.task).await?;
        let reply = TaskReply::Cancelled { task: &task, was_settled: cancelled.was_settled };
        Ok(self.tasks.codec().encode(reply)?)
    }

    fn wanted_tasks(&self, params: &Object) -> Result<Option<ListFilter>, RequestError> {
        if self.served.settings.drafts.has(Draft::Sep1904) { list_filter(params) } else { Ok(None) }
    }

    /// A task as lists and status notifications show it.
    fn listed_summary(&self, task: &Task) -> Summary {
        let mut summary = Summary::of(task);
        self.leave_out_unrecorded(&mut summary);
        summary
    }

    /// The error of a tool is part of its outcome, and lists and notifications are no recorded reads (SEC-57).
    fn leave_out_unrecorded(&self, task: &mut Summary) {
        if self.served.engine.audit().is_some_and(|audit| audit.is_required()) {
            task.failure = None;
        }
    }

    async fn list(&self, caller: &Caller, cursor: Option<String>, params: &Object) -> Result<Payload, TaskMethodError> {
        let owner = &caller.principal;
        if !owner.is_identified() {
            return Err(TaskMethodError::Complaint(RequestError::UnknownMethod(method::TASKS_LIST.into())));
        }
        let filter = self.wanted_tasks(params)?;
        let (sealer, filter) = (&self.served.sealer, filter.as_ref());
        let position = |cursor: String| {
            tokens::position(sealer, owner, filter, &cursor).ok_or(TaskMethodError::Complaint(bad_cursor()))
        };
        let after = cursor.map(position).transpose()?;
        let mut page = match filter {
            Some(filter) => self.served.engine.list_filtered(caller, filter, after, PAGE).await?,
            // Tasks with chosen ids belong to the sessions that chose them (T-66).
            None if self.served.settings.drafts.has(Draft::Sep1686) => {
                self.served.engine.list_filtered(caller, &ListFilter::of_scope(None), after, PAGE).await?
            }
            None => self.served.engine.list(caller, after, PAGE).await?,
        };
        for task in &mut page.tasks {
            self.leave_out_unrecorded(task);
            if self.tasks.drafts.has(Draft::Sep2268) {
                task.tree = self.served.engine.seen_tree(owner, &task.tree).await?;
            }
        }
        let next = page.next.map(|position| tokens::cursor(sealer, owner, filter, position));
        Ok(self.tasks.codec().encode(TaskReply::Listed { tasks: &page.tasks, next: next.as_deref() })?)
    }
}

/// Progress that does not increase is dropped (T-73).
fn shown(task: &RelatedTask, rising: &mut MonotonicProgress, progress: &Progress) -> Option<Bytes> {
    let value = rising.real(&progress.progress, progress.total.as_ref())?;
    Some(rising.notification(&value, progress.message.as_deref(), Some(&task.meta())))
}

/// An error for a request has status 200 here.
fn answer_refused(refused: TaskMethodError, addressee: &Addressee) -> FaceResponse {
    match refused {
        TaskMethodError::Complaint(complaint) => refuse(addressee, &complaint),
        TaskMethodError::Error(error) => addressee.error(StatusCode::OK, &error),
        TaskMethodError::Fault(fault) => addressee.error(StatusCode::OK, &gateway_error(&fault)),
        TaskMethodError::Task(TaskError::Unknown) => refuse(addressee, &RequestError::UnknownTask),
        TaskMethodError::Task(error @ (TaskError::Contended | TaskError::Store(_))) => {
            tracing::error!(error = %CauseChain(&error), "a task could not be served");
            let fault = GatewayFault::new(error.reason(), Executed::No);
            addressee.error(StatusCode::OK, &gateway_error(&fault))
        }
    }
}

#[derive(Debug)]
pub(super) enum TaskWish {
    Core(RequestedTtl),
    Draft(RequestedTask),
}

/// The task that a call requests, if tasks are offered or the draft is enabled. `None` without a readable tool name:
/// refused later. A request of 2025-11-25 precedes the draft's (T-37). An error if the tool cannot be called so.
pub(super) fn wish(
    settings: &ServiceSettings,
    session: &ClientSession,
    params: &Object,
    accepted: AcceptedTypes,
) -> Result<Option<TaskWish>, RequestError> {
    let (is_core, is_draft) = (session.has_tasks(), settings.drafts.has(Draft::Sep1686));
    if !is_core && !is_draft {
        return Ok(None);
    }
    let Some(mode) = params.get_str("name").map(|tool| settings.rules.mode_of(&tool)) else { return Ok(None) };
    // Without a stream the client could not be notified (T-38). A tool that only runs plainly has no task (D86-01).
    if is_draft
        && accepted.takes_stream()
        && mode != TaskMode::Never
        && !(is_core && RequestedTtl::read(params)?.is_some())
        && let Some(wish) = RequestedTask::read(params)?
    {
        return Ok(Some(TaskWish::Draft(wish)));
    }
    let wish = match is_draft {
        true => HybridTasks::wish(params, mode, session.token.client_version)?,
        false => CoreTasks::wish(params, mode)?,
    };
    Ok(wish.map(TaskWish::Core))
}
