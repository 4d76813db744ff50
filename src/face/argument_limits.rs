//! Checks a call's arguments against their tool's size limits.

use std::borrow::Cow;

use crate::dialect::RequestError;
use crate::dialect::split_call::elements_in;
use crate::task::ToolRules;
use crate::wire::envelope::Request;
use crate::wire::{Object, method};

/// Compares the arguments' text with its limit in bytes, and the list by which the call is split with its maximum.
pub(super) fn check(rules: &ToolRules, tool: &str, params: &Object) -> Result<(), RequestError> {
    let policy = rules.rule(tool);
    if let Some(rule) = &policy.split
        && elements_in(rule, params).is_some_and(|count| count > rule.max.get())
    {
        let (argument, max) = (&rule.argument, rule.max);
        let what = format!("arguments.{argument} has more than {max} elements, the most that this tool takes");
        return Err(RequestError::Params(Cow::Owned(what)));
    }
    let Some(max) = policy.limits.arguments_bytes_max else { return Ok(()) };
    match params.get("arguments") {
        Some(arguments) if arguments.len() > max => {
            let what = format!("arguments are larger than {max} bytes, the most that this tool takes");
            Err(RequestError::Params(Cow::Owned(what)))
        }
        Some(_) | None => Ok(()),
    }
}

/// A call without a tool's name is refused elsewhere.
pub(super) fn check_call(rules: &ToolRules, request: &Request) -> Result<(), RequestError> {
    if !rules.any_bounds_arguments() {
        return Ok(());
    }
    let params = request.params.object().filter(|_| request.method == method::TOOLS_CALL);
    match params.and_then(|params| Some((params.get_str("name")?, params))) {
        Some((tool, params)) => check(rules, &tool, params),
        None => Ok(()),
    }
}
