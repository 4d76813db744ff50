//! Checks combinations of values, and applies the defaults that depend on others. Total: a faulty value is noted and
//! replaced by its default, so that one run finds all mistakes. Read [`super::raw`] first.

mod access;
mod auth;
mod issued_credentials;
pub(super) mod listeners;
mod paths;
mod store;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use url::Url;
use wildmatch::WildMatch;

use super::error::{ConfigLocation, MistakeCollector};
use super::keys::{KeyField as _, KeyTable as _};
use super::raw::{
    AuthMode, RawConfig, RawCredential, RawEndpoint, RawRules, RawSplit, RawTaskRules, RawTool, RawUpstream,
    RawUrlValues, command,
};
use super::section::LocatedValue;
use super::{Config, ServerSettings, UpstreamConfig};
use crate::audit::{AuditAnchor, AuditSettings};
use crate::engine::ServiceSettings;
use crate::face::client_login::ResourceName;
use crate::face::combined::{CombinedSettings, prefixes_clash};
use crate::server::is_at_loopback;
use crate::task::{
    CallLimits, NamePattern, NameRule, SplitRule, SubtaskLimits, TTL_MAX_ANONYMOUS, TaskMode, ToolNames, ToolPolicy,
    ToolRules,
};
use crate::tls::IdentityFiles;
use crate::upstream::http::{HttpUpstreamSettings, ProxySettings, UpstreamTlsFiles};
use crate::upstream::issued_credential::IssuedCredentialSettings;
use crate::upstream::limits::CallPermitSettings;
use crate::upstream::transport::credential::{Credential, CredentialSource};
use crate::upstream::{ForwardingRules, Timeouts};
use issued_credentials::ClientTokens;
use paths::{TakenPaths, UpstreamPaths};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const GIB: usize = 1 << 30;

const TTL: Duration = DAY;
const TTL_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// A client without tasks waits as long, and receives nothing meanwhile.
pub const GRACE_MAX: Duration = Duration::from_secs(30);
const UPSTREAM_NAME_LENGTH_MAX: usize = 64;

struct UpstreamDefaults {
    anonymous: bool,
    tokens: ClientTokens,
    result_bytes_max: usize,
}

pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> Config {
    let anonymous = raw.auth.anonymous.value;
    let auth = auth::resolve(raw, report);
    let audit = resolve_audit(raw, report);
    let listeners::Listeners { listen, admin, metrics } = listeners::resolve(raw, report);
    let principals = Arc::new(auth::resolve_limits(raw, report));
    let store = store::resolve(raw, &principals.others, report);
    let folder = raw.store.path.value.clone();
    let result_bytes_max = raw.limits.result_bytes_max.value;
    let tokens = if raw.auth.asks_for(AuthMode::Tokens) { ClientTokens::Asked } else { ClientTokens::Never };
    let shared = UpstreamDefaults { anonymous, tokens, result_bytes_max };
    let mut taken = TakenPaths::default();
    let upstreams = resolve_upstreams(&raw.upstreams, &shared, &mut taken, report);
    let known: BTreeSet<Arc<str>> = raw.upstreams.iter().map(|raw| Arc::from(raw.name.as_str())).collect();
    let endpoints = resolve_endpoints(&raw.endpoints, &known, &mut taken, report);
    let access = Arc::new(access::resolve(raw, &known, auth.certificates(), report));
    let own = [
        ("listen.address", Some(listen.address)),
        ("admin.address", Some(admin.address)),
        ("metrics.address", metrics),
    ];
    let paths = upstreams.iter().flat_map(|upstream| [upstream.path.as_str(), upstream.sse_path.as_str()]);
    let paths: Vec<&str> =
        paths.chain(endpoints.iter().flat_map(|endpoint| [&*endpoint.path, endpoint.sse_path.as_str()])).collect();
    for url in raw.upstreams.iter().filter_map(|raw| raw.own.url.as_ref()) {
        check_not_own(url, &own, listen.public_url.as_deref().map(|public| (public, paths.as_slice())), report);
    }
    // The readers of the files add them.
    let further_files = Vec::new();
    Config {
        listen,
        admin,
        metrics,
        folder,
        store,
        audit,
        auth,
        further_files,
        principals,
        access,
        upstreams,
        endpoints,
    }
}

/// A gateway that calls itself would recurse without end.
fn check_not_own(
    url: &LocatedValue<Url>,
    own: &[(&str, Option<SocketAddr>)],
    public: Option<(&str, &[&str])>,
    report: &mut MistakeCollector,
) {
    let is_own = |(_, address): &&(&str, Option<SocketAddr>)| address.is_some_and(|address| is_at(&url.value, address));
    let key = own.iter().find(is_own).map(|(key, _)| *key);
    // A proxy may serve other servers at other paths under the same name.
    let is_public = public.is_some_and(|(public, paths)| {
        public == url.value.origin().ascii_serialization() && paths.contains(&url.value.path())
    });
    if let Some(key) = key.or_else(|| is_public.then_some("listen.public_url")) {
        report.mistake(&url.location, format!("is the gateway's own address (`{key}`); write the server's"));
    }
}

pub(super) fn is_at(url: &Url, own: SocketAddr) -> bool {
    let is_mine = own.ip().is_loopback() || own.ip().is_unspecified();
    let is_here = match url.host() {
        Some(url::Host::Ipv4(ip)) => own.ip() == ip || (ip.is_loopback() && is_mine),
        Some(url::Host::Ipv6(ip)) => own.ip() == ip || (ip.is_loopback() && is_mine),
        Some(url::Host::Domain(name)) => name == "localhost" && is_mine,
        None => false,
    };
    is_here && own.port() != 0 && url.port_or_known_default() == Some(own.port())
}

fn resolve_upstreams<'a>(
    raw: &'a [RawUpstream],
    shared: &UpstreamDefaults,
    taken: &mut TakenPaths<'a>,
    report: &mut MistakeCollector,
) -> Vec<UpstreamConfig> {
    if raw.is_empty() && !report.has_mistake("upstreams") {
        let location = ConfigLocation::own(1, "upstreams".to_owned());
        report.mistake(&location, "no upstream is named; write [upstreams.NAME] with a `url` below it");
    }
    let mut in_file_order: Vec<&RawUpstream> = raw.iter().collect();
    in_file_order.sort_by_key(|upstream| upstream.location.line);
    let mut upstreams = Vec::new();
    for raw in in_file_order {
        if let Err(message) = check_name(&raw.name) {
            report.mistake(&raw.location, message);
        }
        let paths = paths::resolve(raw, taken, report);
        check_reached(raw, report);
        let tls = resolve_upstream_tls(raw, report);
        let credential = credential(raw, report);
        let issued = issued_credentials::resolve(raw, shared.tokens, report);
        let subjects = issued.as_ref().and_then(IssuedCredentialSettings::subjects).cloned();
        let tools = ToolSettings {
            rules: resolve_tools(raw, shared, report),
            names: resolve_tool_names(&raw.tools, report),
            forwarding: forwarding(raw, report).exchanging(subjects),
        };
        if let Some(server) = resolve_server(raw, tls, credential, issued, &tools.names, shared) {
            upstreams.push(resolve_upstream(raw, AddressSettings { paths, server }, tools, shared));
        }
        check_queue(raw, report);
        check_proxy(raw, report);
    }
    upstreams
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=UPSTREAM_NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err(format!("an upstream's name has 1 to {UPSTREAM_NAME_LENGTH_MAX} characters out of a to z, 0 to 9, _ and -"))
}

fn check_queue(raw: &RawUpstream, report: &mut MistakeCollector) {
    if let Some(location) = raw.own.queue_deadline.location()
        && raw.own.queue_max.value == 0
    {
        report.warning(location, "has no effect: with `queue_max = 0` no call waits");
    }
}

fn check_proxy(raw: &RawUpstream, report: &mut MistakeCollector) {
    if let Some(file) = &raw.url.proxy_credentials_file
        && raw.url.proxy.as_ref().is_none_or(|proxy| proxy.value.is_none())
    {
        report.mistake(&file.location, "has no `proxy`; write one such as proxy = \"http://proxy.example:3128\"");
    }
}

fn check_reached(raw: &RawUpstream, report: &mut MistakeCollector) {
    let key = &raw.location.key;
    let unknown = report.has_mistake(&format!("{key}.url")) || report.has_mistake_in(&format!("{key}.command"));
    match (&raw.own.url, &raw.own.command) {
        (Some(_), Some(_)) => report.mistake(&raw.location, "has both `url` and `command`; write one of them"),
        (None, None) if !unknown => {
            report.mistake(&raw.location, "has no `url`; write one such as url = \"http://127.0.0.1:9000/mcp\"");
        }
        (Some(_), None) | (None, Some(_) | None) => (),
    }
    command::check(raw, report);
}

/// The transport to the server; `None` if it is not specified, which is noted as a mistake.
fn resolve_server(
    raw: &RawUpstream,
    tls: UpstreamTlsFiles,
    credential: Option<Credential>,
    issued: Option<IssuedCredentialSettings>,
    names: &ToolNames,
    shared: &UpstreamDefaults,
) -> Option<ServerSettings> {
    let name: Arc<str> = Arc::from(raw.name.as_str());
    let protocol = raw.own.protocol.value;
    if let Some(stdio) = command::resolve(raw, &name, protocol, shared.result_bytes_max, names) {
        return Some(ServerSettings::Stdio(stdio));
    }
    Some(ServerSettings::Http(HttpUpstreamSettings {
        name,
        url: raw.own.url.as_ref()?.value.clone(),
        transport: command::transport(raw),
        event_bytes_max: shared.result_bytes_max,
        protocol,
        connect_max: raw.url.connect_max.value,
        tls,
        credential,
        issued: issued.map(Box::new),
        proxy: resolve_proxy(&raw.url),
        headers: Vec::new(),
    }))
}

fn resolve_proxy(raw: &RawUrlValues) -> ProxySettings {
    let credentials_file = raw.proxy_credentials_file.as_ref().map(|file| file.value.clone());
    match raw.proxy.as_ref().map(|written| written.value.clone()) {
        None => ProxySettings::Environment,
        Some(None) => ProxySettings::Direct,
        Some(Some(url)) => ProxySettings::At { url, credentials_file },
    }
}

fn identity(certificate: Option<&LocatedValue<PathBuf>>, key: Option<&LocatedValue<PathBuf>>) -> Option<IdentityFiles> {
    let (certificate, key) = certificate.zip(key)?;
    Some(IdentityFiles { certificate: certificate.value.clone(), key: key.value.clone() })
}

fn resolve_upstream_tls(raw: &RawUpstream, report: &mut MistakeCollector) -> UpstreamTlsFiles {
    let tls = &raw.tls;
    if let (Some(location), Some(url)) = (&raw.tls_location, &raw.own.url)
        && url.value.scheme() != "https"
    {
        report.mistake(location, "the `url` begins with http://; write https:// there, or leave this out");
    }
    if let (Some(location), None, Some(_)) = (&raw.tls_location, &raw.own.url, &raw.own.command) {
        report.mistake(location, "is for an upstream with a `url`; leave it out beside a `command`");
    }
    let (certificate, key) = (tls.certificate.as_ref(), tls.key.as_ref());
    let table = format!("{}.tls", raw.location.key);
    for (written, other) in [(certificate, "key"), (key, "certificate")] {
        let alone = certificate.is_some() != key.is_some() && !report.has_mistake(&format!("{table}.{other}"));
        if let Some(written) = written.filter(|_| alone) {
            report.mistake(&written.location, format!("has no `{other}` beside it; write both or none"));
        }
    }
    UpstreamTlsFiles { ca: tls.ca.as_ref().map(|ca| ca.value.clone()), identity: identity(certificate, key) }
}

struct AddressSettings {
    paths: UpstreamPaths,
    server: ServerSettings,
}

struct ToolSettings {
    rules: ToolRules,
    names: ToolNames,
    forwarding: ForwardingRules,
}

fn resolve_upstream(
    raw: &RawUpstream,
    at: AddressSettings,
    tools: ToolSettings,
    shared: &UpstreamDefaults,
) -> UpstreamConfig {
    let own = &raw.own;
    UpstreamConfig {
        name: Arc::from(raw.name.as_str()),
        server: at.server,
        path: at.paths.current,
        sse_path: at.paths.events,
        permits: CallPermitSettings {
            in_flight_max: not_zero(count(own.in_flight_max.value)),
            queue_max: count(own.queue_max.value),
        },
        names: tools.names,
        service: ServiceSettings {
            rules: tools.rules,
            queue_deadline: own.queue_deadline.value,
            timeouts: Timeouts { first_byte: Some(own.first_byte_max.value), idle: Some(own.idle_max.value) },
            call_timeouts: Timeouts {
                first_byte: raw.rules.calls.call_first_byte_max.as_ref().map(|span| span.value),
                idle: raw.rules.calls.call_idle_max.as_ref().map(|span| span.value),
            },
            result_bytes_max: shared.result_bytes_max,
            life_signs: own.life_signs.value,
            forwarding: tools.forwarding,
            drafts: raw.drafts.drafts.value.iter().copied().collect(),
            subtasks: SubtaskLimits {
                depth_max: raw.drafts.subtasks_depth_max.value,
                count_max: count(raw.drafts.subtasks_max.value),
            },
        },
        oauth_resource: own.oauth_resource.value,
    }
}

fn resolve_tools(raw: &RawUpstream, shared: &UpstreamDefaults, report: &mut MistakeCollector) -> ToolRules {
    let tasks = format!("{}.tasks", raw.location.key);
    let default = resolve_policy(&raw.rules, None, &[&tasks], shared, report);
    let mut patterns = Vec::new();
    for (index, tool) in raw.tools.iter().enumerate() {
        let rules = tool.rules.over(&raw.rules);
        let policy = resolve_policy(&rules, Some(tool), &[&tool.location.key, &tasks], shared, report);
        if let Some(pattern) = &tool.own.pattern {
            check_reachable(pattern, &raw.tools[..index], report);
            // Tools have their new names here, and hidden ones none.
            let name = tool.own.rename.as_ref().unwrap_or(pattern);
            if !tool.own.hide.value {
                patterns.push((WildMatch::new(&name.value), policy));
            }
        }
    }
    ToolRules { patterns, default }
}

fn check_reachable(pattern: &LocatedValue<String>, earlier: &[RawTool], report: &mut MistakeCollector) {
    let hides = |other: &&LocatedValue<String>| other.value == "*" || other.value == pattern.value;
    if let Some(first) = earlier.iter().filter_map(|tool| tool.own.pattern.as_ref()).find(hides) {
        let message =
            format!("never applies: the first match wins, and line {} matches before it", first.location.line);
        report.warning(&pattern.location, message);
    }
}

fn resolve_split(raw: &RawSplit) -> Option<Arc<SplitRule>> {
    let argument = Arc::from(raw.argument.as_ref()?.value.as_str());
    let (parallel, max) = (count(raw.parallel.value), count(raw.max.value));
    Some(Arc::new(SplitRule { argument, parallel: not_zero(parallel), max: not_zero(max) }))
}

/// The policy for the tools of one block, or for the others. `tables` are the paths of the tables that its rules came from.
fn resolve_policy(
    RawRules { tasks: raw, calls }: &RawRules,
    tool: Option<&RawTool>,
    tables: &[&str],
    shared: &UpstreamDefaults,
    report: &mut MistakeCollector,
) -> ToolPolicy {
    let (ttl_default, ttl_max_default) =
        if shared.anonymous { (TTL_MAX_ANONYMOUS, TTL_MAX_ANONYMOUS) } else { (TTL, TTL_MAX) };
    let ttl_max = value_or(raw.ttl_max.as_ref(), ttl_max_default);
    let policy = ToolPolicy {
        mode: raw.mode.value,
        grace: raw.grace.value,
        ttl: value_or(raw.ttl.as_ref(), ttl_default.min(ttl_max)),
        ttl_max,
        keep_result_min: raw.keep_result_min.value,
        poll_interval: raw.poll_interval.value,
        deadline: calls.deadline.value,
        early_input: raw.early_input.value,
        after_crash: raw.after_crash.value,
        input_deadline: raw.input_deadline.value,
        result_bytes_max: value_or(tool.and_then(|tool| tool.own.result_bytes_max.as_ref()), shared.result_bytes_max),
        immediate_response: raw.immediate_response.as_ref().map(|text| Arc::from(text.value.as_str())),
        limits: CallLimits {
            arguments_bytes_max: calls.arguments_bytes_max.as_ref().map(|size| size.value),
            first_byte_max: calls.call_first_byte_max.as_ref().map(|span| span.value),
            idle_max: calls.call_idle_max.as_ref().map(|span| span.value),
        },
        fallback: raw.fallback.value,
        split: tool.and_then(|tool| tool.split.as_ref()).and_then(resolve_split),
    };
    if let Some(location) = raw.grace.location().filter(|_| raw.grace.value > GRACE_MAX) {
        report.mistake(location, format!("is longer than the maximum, {}", words(GRACE_MAX)));
    }
    if let Some(location) = raw.input_deadline.location().filter(|_| policy.input_deadline >= policy.deadline) {
        let deadline = words(policy.deadline);
        report.warning(location, format!("has no effect: the call that asks may run {deadline} at most"));
    }
    check_shortness(raw, shared, report);
    check_ttl(raw, ttl_max, tables, shared, report);
    if policy.mode != TaskMode::Never
        && policy.ttl < policy.deadline
        && let Some(location) =
            [raw.ttl.location(), calls.deadline.location(), raw.ttl_max.location()].into_iter().flatten().next()
    {
        let (ttl, deadline) = (words(policy.ttl), words(policy.deadline));
        report.warning(
            location,
            format!("a task is kept {ttl}, but its call may run {deadline}; raise `ttl` or lower `deadline`"),
        );
    }
    policy
}

/// With anonymous clients, no task may be kept for long.
fn is_too_long(span: Duration, shared: &UpstreamDefaults) -> bool {
    shared.anonymous && span > TTL_MAX_ANONYMOUS
}

fn check_shortness(raw: &RawTaskRules, shared: &UpstreamDefaults, report: &mut MistakeCollector) {
    let spans = [&raw.ttl, &raw.ttl_max].into_iter().flatten().map(|span| (span.value, &span.location));
    let spans = spans.chain(raw.keep_result_min.location().map(|location| (raw.keep_result_min.value, location)));
    for (_, location) in spans.filter(|(span, _)| is_too_long(*span, shared)) {
        let longest = words(TTL_MAX_ANONYMOUS);
        let message = format!(
            "is longer than {longest}, the maximum with `auth.anonymous`: every client that knows a task's id can read it"
        );
        report.mistake(location, message);
    }
}

fn check_ttl(
    raw: &RawTaskRules,
    ttl_max: Duration,
    tables: &[&str],
    shared: &UpstreamDefaults,
    report: &mut MistakeCollector,
) {
    let Some(ttl) = raw.ttl.as_ref().filter(|ttl| ttl.value > ttl_max && !is_too_long(ttl.value, shared)) else {
        return;
    };
    let origin = match &raw.ttl_max {
        Some(written) => format!("line {}", written.location.line),
        None if tables.iter().any(|table| report.has_mistake(&format!("{table}.ttl_max"))) => return,
        None => "by default".to_owned(),
    };
    let message = format!("is longer than `ttl_max` ({}, {origin}); lower it or raise `ttl_max`", words(ttl_max));
    report.mistake(&ttl.location, message);
}

fn value_or<T: Clone>(written: Option<&LocatedValue<T>>, default: T) -> T {
    written.map_or(default, |written| written.value.clone())
}

fn count(written: u32) -> usize {
    usize::try_from(written).unwrap_or(usize::MAX)
}

fn not_zero(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN)
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn words(span: Duration) -> String {
    humantime::format_duration(span).to_string()
}

/// Resolves the names of tools as clients see them, and refuses ambiguous ones.
fn resolve_tool_names(tools: &[RawTool], report: &mut MistakeCollector) -> ToolNames {
    let mut rules = Vec::new();
    let mut given: Vec<(NamePattern, usize)> = Vec::new();
    for tool in tools {
        let Some(pattern) = &tool.own.pattern else { continue };
        let is_hidden = tool.own.hide.value;
        let naming = match &tool.own.rename {
            Some(rename) if is_hidden => {
                report.mistake(&rename.location, "the tool is hidden as well; leave out `hide` or `rename`");
                NameRule::Hidden
            }
            Some(rename) => renamed(pattern, rename, &mut given, report),
            None if is_hidden => NameRule::Hidden,
            None => NameRule::Kept,
        };
        rules.push((WildMatch::new(&pattern.value), naming));
    }
    ToolNames::new(rules)
}

fn renamed(
    pattern: &LocatedValue<String>,
    rename: &LocatedValue<String>,
    given: &mut Vec<(NamePattern, usize)>,
    report: &mut MistakeCollector,
) -> NameRule {
    let Some(from) = NamePattern::parse(&pattern.value) else {
        let message = "`match` has more than one *, or a ?, so the new name is ambiguous; write one * at most";
        report.mistake(&rename.location, message);
        return NameRule::Kept;
    };
    // The reader has validated it.
    let Some(to) = NamePattern::parse(&rename.value) else { return NameRule::Kept };
    if from.has_star() != to.has_star() {
        let message = match to.has_star() {
            true => "has a *, but `match` has none; write the whole name",
            false => "has no *, so all tools that fit `match` would have this one name; write a * in both or in none",
        };
        report.mistake(&rename.location, message);
        return NameRule::Kept;
    }
    if let Some((_, line)) = given.iter().find(|(other, _)| other.overlaps(&to)) {
        let message = format!("line {line} can give the same name to another tool; let the names differ");
        report.mistake(&rename.location, message);
    }
    if to.is_any() && !from.is_any() {
        let message = "takes every name: other tools than `match` are hidden, except the tools of blocks above";
        report.warning(&rename.location, message);
    }
    given.push((to.clone(), rename.location.line));
    NameRule::Renamed { from, to }
}

/// `None` without the table.
fn resolve_audit(raw: &RawConfig, report: &mut MistakeCollector) -> Option<AuditSettings> {
    let audit = &raw.audit;
    let location = raw.audit_location.as_ref()?;
    let Some(path) = &audit.path else {
        if !report.has_mistake("audit.path") {
            let location = audit.locations().first().copied().unwrap_or(location);
            report.mistake(location, "has no effect without `audit.path`; write one such as path = \"audit.jsonl\"");
        }
        return None;
    };
    if path.value.file_name().is_none() || path.value.as_os_str().as_encoded_bytes().ends_with(b"/") {
        report.mistake(&path.location, "names a folder; write the path of a file");
    }
    let own = std::path::absolute(&path.value).ok();
    let is_own = |file: &Path| own.is_some() && std::path::absolute(file).ok() == own;
    let is_same = |anchor: &AuditAnchor| matches!(anchor, AuditAnchor::File(file) if is_own(file));
    if let Some(anchor) = audit.anchor.as_ref().filter(|anchor| is_same(&anchor.value)) {
        report.mistake(&anchor.location, "is the audit file itself; name another file, best on another machine");
    }
    Some(AuditSettings {
        path: path.value.clone(),
        is_required: audit.required.value,
        records_calls: audit.calls.value,
        digests_arguments: audit.arguments_sha256.value,
        anchor: audit.anchor.as_ref().map(|anchor| anchor.value.clone()),
    })
}

/// The most members of one endpoint: each list request goes to all of them.
const MEMBERS_MAX: usize = 64;

fn resolve_endpoints<'a>(
    raw: &'a [RawEndpoint],
    known: &BTreeSet<Arc<str>>,
    taken: &mut TakenPaths<'a>,
    report: &mut MistakeCollector,
) -> Vec<CombinedSettings> {
    let resolved = raw.iter().filter_map(|raw| {
        let members = resolve_members(raw, known, report);
        let path = raw.values.path.as_ref()?;
        let events = raw.values.sse_path.as_ref();
        let paths = paths::of_endpoint(&raw.location, path, events, taken, report);
        let prefix = raw.values.prefix.value;
        Some(CombinedSettings { path: Arc::from(paths.current), sse_path: paths.events, upstreams: members, prefix })
    });
    resolved.collect()
}

fn resolve_members(raw: &RawEndpoint, known: &BTreeSet<Arc<str>>, report: &mut MistakeCollector) -> Vec<Arc<str>> {
    let Some(named) = &raw.values.upstreams else {
        if !report.has_mistake(&format!("{}.upstreams", raw.location.key)) {
            let location = ConfigLocation::own(raw.location.line, format!("{}.upstreams", raw.location.key));
            report.mistake(&location, "is missing; write the names of upstreams, such as [\"reports\", \"files\"]");
        }
        return Vec::new();
    };
    if named.value.is_empty() && !report.has_mistake(&named.location.key) {
        report.mistake(&named.location, "names no upstream; write at least one, such as [\"reports\", \"files\"]");
    }
    if named.value.len() > MEMBERS_MAX {
        report.mistake(&named.location, format!("names more than {MEMBERS_MAX} upstreams; write several endpoints"));
    }
    let mut members: Vec<Arc<str>> = Vec::new();
    for name in &named.value {
        if members.iter().any(|other| **other == **name) {
            report.mistake(&named.location, format!("names `{name}` twice, and two upstreams cannot have one prefix"));
            continue;
        }
        if !known.contains(name.as_str()) {
            report.mistake(&named.location, unknown_upstream(name, known));
            continue;
        }
        if let Some(other) = members.iter().find(|other| prefixes_clash(other, name)) {
            let message = format!(
                "`{other}` and `{name}`: the prefixes `{other}__` and `{name}__` are ambiguous; give one of the two \
                 upstreams another name"
            );
            report.mistake(&named.location, message);
        }
        members.push(Arc::from(name.as_str()));
    }
    members
}

fn unknown_upstream(name: &str, known: &BTreeSet<Arc<str>>) -> String {
    let names: Vec<&str> = known.iter().map(|name| &**name).take(8).collect();
    let more = if known.len() > names.len() { " and others" } else { "" };
    format!("there is no upstream `{name}`; there are {}{more}", names.join(", "))
}

fn credential(raw: &RawUpstream, report: &mut MistakeCollector) -> Option<Credential> {
    let auth = raw.auth.as_ref()?;
    let values = &auth.values;
    let table = &auth.location.key;
    let keys = ["authorization", "header", "value", "value_file"];
    let has_mistake = keys.iter().any(|key| report.has_mistake(&format!("{table}.{key}")));
    warn_of_secret_in_file(auth, report);
    warn_of_clear_text(raw, &auth.location, report);
    let known = |value: &http::HeaderValue| CredentialSource::Known(value.clone());
    let found = match (&values.authorization, &values.header, &values.value, &values.value_file) {
        (Some(value), None, None, None) => Some((AUTHORIZATION, known(&value.value))),
        (None, Some(header), Some(value), None) => Some((header.value.clone(), known(&value.value))),
        (None, Some(header), None, Some(file)) => {
            Some((header.value.clone(), CredentialSource::File(file.value.clone())))
        }
        _ => None,
    };
    if found.is_none() && !has_mistake {
        let message = "needs `authorization` alone, or `header` with either `value` or `value_file`";
        report.mistake(&auth.location, message);
    }
    let (header, source) = found?;
    if let Some(location) = values.header.location()
        && raw.url.forward_headers.value.contains(&header)
    {
        report.mistake(
            location,
            "is in `forward_headers`, too: the credential would replace the clients' value; leave it out there",
        );
    }
    Some(Credential { header, source })
}

fn warn_of_secret_in_file(auth: &RawCredential, report: &mut MistakeCollector) {
    let written = [&auth.values.authorization, &auth.values.value].into_iter().flatten().next();
    if let Some(written) = written.filter(|_| auth.is_inline) {
        let message = "the secret itself is in this file; write it as \"${VAR}\", or name a `value_file`";
        report.warning(&written.location, message);
    }
}

fn warn_of_clear_text(raw: &RawUpstream, location: &ConfigLocation, report: &mut MistakeCollector) {
    let Some(url) = raw.own.url.as_ref().map(|url| &url.value).filter(|url| url.scheme() == "http") else { return };
    if !is_at_loopback(url) {
        report.warning(location, "can be read on the network: the `url` begins with http://");
    }
}

fn forwarding(raw: &RawUpstream, report: &mut MistakeCollector) -> ForwardingRules {
    let forwards = &raw.url.forward_authorization;
    let has_own = raw.auth.as_ref().map(|auth| &auth.values).is_some_and(|auth| {
        auth.authorization.is_some() || auth.header.as_ref().is_some_and(|header| header.value == AUTHORIZATION)
    });
    if let Some(location) = forwards.location().filter(|_| forwards.value) {
        warn_of_clear_text(raw, location, report);
        if has_own {
            report.mistake(location, "the table `auth` fills the same header; leave one of them out");
        }
    }
    let resource = &raw.own.oauth_resource;
    if let Some(location) = resource.location().filter(|_| resource.value != ResourceName::default() && !forwards.value)
    {
        let message = "has no effect without `forward_authorization = true`: only then clients log in at the server";
        report.mistake(location, message);
    }
    ForwardingRules::new(raw.url.forward_headers.value.clone(), forwards.value)
}
