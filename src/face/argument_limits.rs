//! Checks a call's arguments against their tool's size limits.

use std::borrow::Cow;

use super::served::Served;
use crate::dialect::RequestError;
use crate::dialect::split_call::elements_in;
use crate::task::Principal;
use crate::wire::envelope::Request;
use crate::wire::{Object, method};

/// Compares the arguments' size, and the size of the list by which a call is split, with limits. Logs refused calls.
pub(super) fn check(served: &Served, owner: &Principal, tool: &str, params: &Object) -> Result<(), RequestError> {
    let (policy, limits) = (served.settings.rules.rule(tool), served.engine.limits());
    if let Some(rule) = &policy.split
        && elements_in(rule, params).is_some_and(|count| count > rule.max.get())
    {
        let (argument, max) = (&rule.argument, rule.max);
        limits.refused(owner, "split.max", &max);
        let what = format!("arguments.{argument} has more than {max} elements, the most that this tool takes");
        return Err(RequestError::Params(Cow::Owned(what)));
    }
    let Some(max) = policy.limits.arguments_bytes_max else { return Ok(()) };
    match params.get("arguments") {
        Some(arguments) if arguments.len() > max => {
            limits.refused(owner, "arguments_bytes_max", &max);
            let what = format!("arguments are larger than {max} bytes, the most that this tool takes");
            Err(RequestError::Params(Cow::Owned(what)))
        }
        Some(_) | None => Ok(()),
    }
}

/// A call without a tool's name is refused elsewhere.
pub(super) fn check_call(served: &Served, owner: &Principal, request: &Request) -> Result<(), RequestError> {
    let params = request.params.object().filter(|_| request.method == method::TOOLS_CALL);
    match params.and_then(|params| Some((params.get_str("name")?, params))) {
        Some((tool, params)) => check(served, owner, &tool, params),
        None => Ok(()),
    }
}
