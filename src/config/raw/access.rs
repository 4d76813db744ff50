//! Declares the keys of `[[auth.rules]]`.

use super::super::error::ConfigLocation;
use super::super::keys::{KeyTable as _, keys};
use super::super::section::{LocatedValue, NamedLists, Section};
use super::super::value::{
    ARGUMENT_PATTERN, CALLER_ID, GROUP, PATTERN, PROMPT_PATTERN, RESOURCE_PATTERN, SCOPE, TOKEN_ISSUER,
    UPSTREAM_PATTERN,
};
use super::read_table;

keys! {
    /// `[[auth.rules]]`. The first rule that fits decides.
    struct RawAccessRuleValues {
        /// The upstreams that the rule is about. A pattern means the configured upstreams that it matches.
        reload upstreams: Vec<LocatedValue<String>> = read_some(&UPSTREAM_PATTERN), shown "every upstream";
        /// The tools that the rule is about, by their names at the upstream's own path. A rule without `tools`, `prompts`
        /// and `resources` is about everything; a rule with one of them, about nothing else.
        reload tools: Vec<LocatedValue<String>> = read_some(&PATTERN);
        /// As `tools`, for prompts.
        reload prompts: Vec<LocatedValue<String>> = read_some(&PROMPT_PATTERN);
        /// As `tools`, for URIs of resources, and of resource templates as they are written.
        reload resources: Vec<LocatedValue<String>> = read_some(&RESOURCE_PATTERN);
        /// Members of a call's `arguments`: each must be a text that matches. The rule is then about tools alone.
        reload arguments: NamedLists = named_lists(&ARGUMENT_PATTERN);
        /// `true`: a caller that the rule fits may use the item. `false`: it may not.
        reload allow: bool = flag();
    }
}

keys! {
    /// `who` of a rule: of every key, the caller needs one name.
    struct RawRuleWho {
        /// Principals, such as `key:ada`.
        reload ids: Vec<LocatedValue<String>> = read_some(&CALLER_ID);
        /// Groups of keys, of tokens, or of `[auth.groups]`.
        reload groups: Vec<LocatedValue<String>> = read_some(&GROUP);
        /// Scopes of keys and tokens.
        reload scopes: Vec<LocatedValue<String>> = read_some(&SCOPE);
        /// Issuers of tokens.
        reload issuer: Vec<String> = one_or_all(&TOKEN_ISSUER);
    }
}

#[derive(Debug)]
pub(in crate::config) struct RawAccessRule {
    pub(in crate::config) location: ConfigLocation,
    pub(in crate::config) who: RawRuleWho,
    pub(in crate::config) who_location: Option<ConfigLocation>,
    pub(in crate::config) values: RawAccessRuleValues,
}

pub(super) fn read_rule(mut section: Section<'_, '_>) -> RawAccessRule {
    let (location, values) = (section.location(), RawAccessRuleValues::read(&mut section));
    let who = section.section("who");
    let (who_location, who) = (who.written_location(), read_table(who));
    section.close();
    RawAccessRule { location, who, who_location, values }
}
