//! Lists the capabilities that an endpoint routes and advertises. Pure.

use crate::wire::meta::TASKS_EXTENSION;
use crate::wire::method;

/// One table, so that each advertised capability is routed. A method that ends with a slash is a prefix.
const ROUTED: [(&str, &[&str]); 6] = [
    ("tools", &[method::TOOLS_LIST, method::TOOLS_CALL]),
    ("prompts", &[method::PROMPTS_LIST, method::PROMPTS_GET]),
    (
        "resources",
        &[
            method::RESOURCES_LIST,
            method::RESOURCES_TEMPLATES_LIST,
            method::RESOURCES_READ,
            method::RESOURCES_SUBSCRIBE,
            method::RESOURCES_UNSUBSCRIBE,
        ],
    ),
    ("completions", &[method::COMPLETE]),
    ("logging", &[method::SET_LEVEL]),
    ("tasks", &["tasks/"]),
];

/// Extensions that need no further methods.
const ROUTED_EXTENSIONS: [&str; 2] = [TASKS_EXTENSION, "io.modelcontextprotocol/ui"];

pub(super) fn is_routed(capability: &str) -> bool {
    ROUTED.iter().any(|(name, _)| *name == capability)
}

pub(super) fn is_routed_extension(name: &str) -> bool {
    ROUTED_EXTENSIONS.contains(&name)
}

pub(super) fn is_routed_method(name: &str) -> bool {
    let is_meant = |method: &&str| if method.ends_with('/') { name.starts_with(*method) } else { name == *method };
    ROUTED.iter().any(|(_, methods)| methods.iter().any(is_meant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_advertised_has_methods_and_they_are_routed() {
        for (capability, methods) in ROUTED {
            assert!(is_routed(capability) && !methods.is_empty(), "{capability}");
            assert!(methods.iter().all(|method| is_routed_method(method)), "{capability}");
        }
        assert!(is_routed_method(method::TASKS_LIST));
        for (capability, method) in [("events", "events/list"), ("experimental", "x/y"), ("", ""), ("tool", "tools")] {
            assert!(!is_routed(capability) && !is_routed_method(method), "{capability} {method}");
        }
    }
}
