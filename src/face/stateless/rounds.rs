//! Answers plain calls that ask questions, and resumes them with the answers (GW-20). The response has the questions
//! and a sealed reference; the client repeats its request with both.

use std::sync::{Arc, LazyLock};

use super::{FaceResponse, Promotable, StatelessFace, StatelessRequestContext};
use crate::cause::CauseChain;
use crate::dialect::negotiate::{StatelessRequest, missing};
use crate::dialect::{RequestError, inputs};
use crate::engine::{Askable, CallEnd, CallEvent, QuestionFilter, RetryRefusal, RoundRetry, TaskError};
use crate::face::call_stream::engine_call::RoundSeal;
use crate::face::sealed::{StateContent, StateScope};
use crate::task::model::LINGER;
use crate::task::{
    EarlyInput, Executed, Failure, GatewayFault, HandleSupport, InputKey, Outcome, Phase, Plan, Question, Reason, Task,
    TaskKey, TaskVisibility, ToolPolicy,
};
use crate::wire::{Object, Payload, method};

/// The questions that the client can answer (MOD-19, MOD-27).
pub(super) fn questions_for(metadata: &StatelessRequest) -> QuestionFilter {
    let capabilities = metadata.of_questions();
    Arc::new(move |question| match missing(&capabilities, [question]) {
        None => Askable::Declared,
        // Servers request roots at the start of a session, for no call in particular, and work without.
        Some(_) if asks_for_roots(question) => Askable::Undeclared,
        Some(needed) => Askable::Required(needed),
    })
}

fn asks_for_roots(question: &Payload) -> bool {
    Object::of(question).is_some_and(|question| question.get_str("method").is_some_and(|name| name == method::ROOTS))
}

enum HeldCallRefusal {
    Complaint(RequestError),
    Fault(GatewayFault),
}

from_variant!(HeldCallRefusal::Complaint(RequestError));

impl StatelessFace {
    fn scope(&self, request: &StatelessRequestContext<'_>) -> StateScope {
        StateScope::of(self.served.upstream.name(), &request.caller.principal, request.method, request.params)
    }

    /// `None` if the response contains no questions.
    pub(super) fn seal_for(&self, request: &StatelessRequestContext<'_>) -> Option<RoundSeal> {
        method::may_ask(request.method).then(|| {
            let (upstream, principal) = (Arc::clone(self.served.upstream.name()), request.caller.principal.clone());
            let (method, params) = (request.message.method.clone(), request.params.clone());
            RoundSeal {
                sealer: Arc::clone(&self.served.sealer),
                clock: Arc::clone(&self.served.clock),
                replica: self.served.own_replica(),
                scope: LazyLock::new(Box::new(move || StateScope::of(&upstream, &principal, &method, &params))),
            }
        })
    }

    /// Resumes a held call. With an invalid state the tool is never run again (T-56).
    pub(super) async fn resume_held_call(
        &self,
        request: Box<StatelessRequestContext<'_>>,
        policy: ToolPolicy,
        plan: Plan,
    ) -> FaceResponse {
        match self.claim_held_call(&request, &policy, plan).await {
            Ok(HeldCallResumption::Going(stream)) => {
                let may_promote = plan != Plan::Direct && policy.early_input == EarlyInput::AskFirst;
                let promotable = if may_promote { Promotable::Yes } else { Promotable::No };
                self.respond(request, promotable, None, stream).await
            }
            Ok(HeldCallResumption::Over(event)) => match request.metadata.takes_tasks() {
                HandleSupport::No | HandleSupport::ByTools => {
                    self.view(*request, Promotable::No, self.fallback_texts()).answer(event)
                }
                HandleSupport::AfterGrace | HandleSupport::AtOnce => {
                    self.view(*request, Promotable::No, self.dialect()).answer(event)
                }
            },
            Err(HeldCallRefusal::Complaint(complaint)) => request.addressee.complaint(&complaint),
            Err(HeldCallRefusal::Fault(fault)) => request.addressee.fault(&fault),
        }
    }

    async fn claim_held_call(
        &self,
        request: &StatelessRequestContext<'_>,
        policy: &ToolPolicy,
        plan: Plan,
    ) -> Result<HeldCallResumption, HeldCallRefusal> {
        let sealed = request.params.get_string("requestState").ok_or(RequestError::InvalidRequestState)?;
        let (scope, now) = (self.scope(request), self.served.clock.now());
        let expires_after = policy.ttl.saturating_add(LINGER);
        let content = self.served.sealer.open_state(&sealed, &scope, now, |_| expires_after);
        // A state of another kind was issued by a gateway with another configuration.
        let Some(StateContent::Task { id, .. }) = content else { return Err(RequestError::InvalidRequestState.into()) };
        let answers = inputs::responses(request.params)?;
        let key = TaskKey { owner: request.caller.principal.clone(), id };
        let task = self.held(&key).await?;
        let takes_tasks = request.metadata.takes_tasks() != HandleSupport::No || matches!(plan, Plan::Grace(_));
        if let Some(over) = self.end_of(&task, takes_tasks).await? {
            return Ok(HeldCallResumption::Over(over));
        }
        if let Phase::AwaitingInput(open) = &task.phase {
            inputs::check(open, &answers)?;
            let left = |(key, question): (&InputKey, &Question)| {
                (!answers.contains_key(key)).then(|| question.request.clone())
            };
            let left: Vec<_> = open.iter().filter_map(left).collect();
            if let Some(needed) = request.metadata.missing(&left) {
                return Err(RequestError::Capability(needed).into());
            }
        }
        let retry = RoundRetry { answers, plan, questions: questions_for(&request.metadata) };
        match self.served.engine.retry(&key, retry) {
            Ok(stream) => Ok(HeldCallResumption::Going(stream)),
            // The call may have ended just now.
            Err(refusal) => match (self.end_of(&self.held(&key).await?, takes_tasks).await?, refusal) {
                (Some(over), _) => Ok(HeldCallResumption::Over(over)),
                // Lost with its process, which is not recorded yet (T-56).
                (None, RetryRefusal::NotHere) => Err(RequestError::InvalidRequestState.into()),
                (None, RetryRefusal::TooMany) => {
                    Err(HeldCallRefusal::Fault(GatewayFault::new(Reason::QueueFull, Executed::Unknown)))
                }
            },
        }
    }

    /// The last event of a call that is no longer held; `None` if it is.
    async fn end_of(&self, task: &Arc<Task>, takes_tasks: bool) -> Result<Option<CallEvent>, HeldCallRefusal> {
        let end = end_of(task, takes_tasks)?;
        if !matches!(end, Some(CallEvent::Ended(_))) {
            return Ok(end);
        }
        let task = self.served.engine.share_outcome(Arc::clone(task)).await.map_err(HeldCallRefusal::Fault)?;
        Ok(end_of(&task, takes_tasks)?)
    }

    async fn held(&self, key: &TaskKey) -> Result<Arc<Task>, HeldCallRefusal> {
        self.served.engine.load_any(key).await.map_err(|error| match error {
            TaskError::Unknown => HeldCallRefusal::Complaint(RequestError::InvalidRequestState),
            TaskError::Contended | TaskError::Store(_) => {
                tracing::error!(error = %CauseChain(&error), "a held call could not be read");
                HeldCallRefusal::Fault(GatewayFault::new(error.reason(), Executed::Unknown))
            }
        })
    }
}

enum HeldCallResumption {
    Going(crate::engine::CallStream),
    /// The call ended meanwhile, or has a handle.
    Over(CallEvent),
}

/// As [`StatelessFace::end_of`], of a result in any buffer.
fn end_of(task: &Arc<Task>, takes_tasks: bool) -> Result<Option<CallEvent>, RequestError> {
    match (task.visibility, &task.phase) {
        // A repetition of the request that returned the handle.
        (TaskVisibility::Handle, _) if takes_tasks => Ok(Some(CallEvent::Created(Arc::clone(task)))),
        // Held under an idempotency key, for a client without tasks.
        (TaskVisibility::Handle, Phase::Settled(outcome)) if task.idempotency.is_some() => {
            Ok(Some(CallEvent::Ended(CallEnd::Outcome(outcome.clone()))))
        }
        (TaskVisibility::Handle, _) if task.idempotency.is_some() => Ok(None),
        (TaskVisibility::Handle | TaskVisibility::Part, _)
        | (TaskVisibility::Hidden, Phase::Settled(Outcome::Cancelled)) => Err(RequestError::InvalidRequestState),
        // Lost with its process (T-56).
        (TaskVisibility::Hidden, Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))))
            if fault.reason.is_end_of_gateway() =>
        {
            Err(RequestError::InvalidRequestState)
        }
        (TaskVisibility::Hidden, Phase::Settled(outcome)) => {
            Ok(Some(CallEvent::Ended(CallEnd::Outcome(outcome.clone()))))
        }
        (TaskVisibility::Hidden, Phase::Queued | Phase::Working | Phase::AwaitingInput(_)) => Ok(None),
    }
}
