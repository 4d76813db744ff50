//! Plans the calls that a call with a list argument is split into.

use std::sync::Arc;

use crate::dialect::plain::PlainUpstream;
use crate::dialect::split_call::SplitCall;
use crate::engine::call::CallSpec;
use crate::task::Plan;
use crate::upstream::UpstreamRequest;
use crate::wire::{Object, method};

/// The name of the elements if the rule that named them was removed.
const ELEMENTS: &str = "elements";

#[derive(Debug)]
pub(in crate::engine::runner) struct SplitPlan {
    part: CallSpec,
    /// `None` for a call of an earlier process; its elements have rows.
    call: Option<SplitCall>,
    argument: Arc<str>,
    total: usize,
    parallel: usize,
}

pub(in crate::engine::runner) fn split(spec: CallSpec) -> (CallSpec, Option<SplitPlan>) {
    let Some((call, parallel)) = call_of(&spec) else { return (spec, None) };
    let (total, argument) = (call.len(), Arc::clone(call.argument()));
    let (spec, part) = whole_and_part(spec);
    (spec, Some(SplitPlan { part, call: Some(call), argument, total, parallel }))
}

pub(in crate::engine::runner) fn split_again(spec: CallSpec, total: usize) -> (CallSpec, SplitPlan) {
    let rule = spec.policy.split.as_ref();
    let parallel = rule.map_or(1, |rule| rule.parallel.get());
    let argument = rule.map_or_else(|| Arc::from(ELEMENTS), |rule| Arc::clone(&rule.argument));
    let (spec, part) = whole_and_part(spec);
    (spec, SplitPlan { part, call: None, argument, total, parallel })
}

fn call_of(spec: &CallSpec) -> Option<(SplitCall, usize)> {
    let rule = spec.policy.split.as_ref().filter(|_| &*spec.request.method == method::TOOLS_CALL)?;
    Some((SplitCall::read(rule, &Object::of(spec.request.params.as_ref()?)?)?, rule.parallel.get()))
}

fn whole_and_part(mut spec: CallSpec) -> (CallSpec, CallSpec) {
    let mut part = spec.clone();
    (part.plan, part.policy.split) = (Plan::Task, None);
    (part.idempotency, part.chosen, part.notice_sink) = (None, None, None);
    spec.permits = None;
    spec.peer = Arc::new(PlainUpstream);
    (spec, part)
}

impl SplitPlan {
    pub(in crate::engine::runner) const fn total(&self) -> usize {
        self.total
    }

    /// The spec of one element's call. Without params if only its row has them.
    pub(in crate::engine::runner) fn element(&self, index: usize) -> CallSpec {
        let params = self.call.as_ref().and_then(|call| call.part(index));
        CallSpec { request: UpstreamRequest { params, ..self.part.request.clone() }, ..self.part.clone() }
    }

    pub(in crate::engine::runner) const fn part(&self) -> &CallSpec {
        &self.part
    }

    pub(in crate::engine::runner) const fn parallel(&self) -> usize {
        self.parallel
    }

    pub(in crate::engine::runner) const fn argument(&self) -> &Arc<str> {
        &self.argument
    }
}
