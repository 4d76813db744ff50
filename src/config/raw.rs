//! Lists every section and key of the file: each value typed, optional and located.
//!
//! This is the schema: a key that is not read here is unknown. Unimplemented features have their keys here, too, so that they are
//! refused by name. [`super::resolve`] applies defaults and checks.

mod auth;
pub(super) mod command;
mod drafts;
mod endpoints;
mod principal_limits;
mod split;
pub(super) mod store;
mod upstream_headers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::error::ConfigLocation;
use super::section::{LocatedValue, Section};
use super::value::{
    ADDRESS, ADDRESS_RANGE, DURATION, DURATION_NOT_ZERO, HOST, KEY_FILE, NEW_NAME, ORIGIN, PATTERN, PEM_FILE, PROXY,
    PUBLIC_URL, SERVED_PATH, SIZE, UPSTREAM_URL, WORDS,
};
use crate::server::forwarded::AddressRange;
use crate::task::{AfterCrash, EarlyInput, FallbackPolicy, OperatorRight, TaskMode};
use crate::wire::ProtocolVersion;
pub(super) use auth::{AuthMode, RawAccess, RawApiKey, RawAuth, read_keys};
use command::RawCommand;
pub(super) use drafts::RawDrafts;
pub(super) use endpoints::RawEndpoint;
pub(super) use principal_limits::RawPrincipalLimits;
pub(super) use split::RawSplit;
pub(super) use store::{RawDatabase, RawReplica, RawStore, StoreKind};
pub(super) use upstream_headers::{RawCredential, RawUpstreamHeaders};

#[derive(Debug, Default)]
pub(super) struct RawConfig {
    pub(super) listen: RawListen,
    pub(super) admin: RawAdmin,
    pub(super) metrics_address: Option<LocatedValue<SocketAddr>>,
    pub(super) store: RawStore,
    pub(super) replica: RawReplica,
    pub(super) limits: RawLimits,
    pub(super) auth: RawAuth,
    pub(super) upstreams: Vec<RawUpstream>,
    pub(super) endpoints: Vec<RawEndpoint>,
}

#[derive(Debug, Default)]
pub(super) struct RawListen {
    pub(super) address: Option<LocatedValue<SocketAddr>>,
    pub(super) tls: RawIdentity,
    pub(super) plaintext: Option<LocatedValue<bool>>,
    pub(super) allowed_hosts: Vec<String>,
    pub(super) allowed_hosts_place: Option<ConfigLocation>,
    pub(super) allowed_origins: Vec<String>,
    pub(super) public_url: Option<LocatedValue<Url>>,
    pub(super) trusted_proxies: Vec<AddressRange>,
    pub(super) trusted_proxies_place: Option<ConfigLocation>,
}

#[derive(Debug, Default)]
pub(super) struct RawAdmin {
    pub(super) address: Option<LocatedValue<SocketAddr>>,
    pub(super) tokens: Vec<RawAdminToken>,
}

/// The token of one operator.
#[derive(Debug)]
pub(super) struct RawAdminToken {
    pub(super) file: Option<LocatedValue<PathBuf>>,
    pub(super) may: Option<LocatedValue<OperatorRight>>,
}

/// A certificate and its key; one alone is a mistake, which the reader or resolver notes.
#[derive(Debug, Default)]
pub(super) struct RawIdentity {
    pub(super) certificate: Option<LocatedValue<PathBuf>>,
    pub(super) key: Option<LocatedValue<PathBuf>>,
}

#[derive(Debug, Default)]
pub(super) struct RawLimits {
    pub(super) body_bytes_max: Option<LocatedValue<usize>>,
    pub(super) result_bytes_max: Option<LocatedValue<usize>>,
    pub(super) tasks_max: Option<LocatedValue<u32>>,
    pub(super) stored_bytes_max: Option<LocatedValue<usize>>,
    pub(super) answer_bytes_max: Option<LocatedValue<usize>>,
    pub(super) principal: RawPrincipalLimits,
    pub(super) connections_max: Option<LocatedValue<u32>>,
    pub(super) drain_max: Option<LocatedValue<Duration>>,
}

#[derive(Debug)]
pub(super) struct RawUpstream {
    pub(super) name: String,
    pub(super) place: ConfigLocation,
    pub(super) url: Option<LocatedValue<Url>>,
    pub(super) command: RawCommand,
    pub(super) path: Option<LocatedValue<String>>,
    pub(super) sse_path: Option<LocatedValue<String>>,
    pub(super) tls: RawUpstreamTls,
    pub(super) edges: RawUpstreamHeaders,
    pub(super) settings: RawUpstreamSettings,
    pub(super) tasks: RawRules,
    pub(super) drafts: RawDrafts,
    pub(super) tools: Vec<RawTool>,
}

/// The TLS settings of an upstream over `https`.
#[derive(Debug, Default)]
pub(super) struct RawUpstreamTls {
    /// The location of the table, if it was written.
    pub(super) place: Option<ConfigLocation>,
    pub(super) ca: Option<LocatedValue<PathBuf>>,
    pub(super) identity: RawIdentity,
}

/// The settings of an upstream besides its address.
#[derive(Debug, Default)]
pub(super) struct RawUpstreamSettings {
    /// `Some(None)` is a written "auto".
    pub(super) protocol: Option<LocatedValue<Option<ProtocolVersion>>>,
    pub(super) in_flight_max: Option<LocatedValue<u32>>,
    pub(super) queue_max: Option<LocatedValue<u32>>,
    pub(super) queue_deadline: Option<LocatedValue<Duration>>,
    pub(super) connect_max: Option<LocatedValue<Duration>>,
    /// `Some(None)` is a written "none".
    pub(super) proxy: Option<LocatedValue<Option<Url>>>,
    pub(super) proxy_credentials_file: Option<LocatedValue<PathBuf>>,
    pub(super) first_byte_max: Option<LocatedValue<Duration>>,
    pub(super) idle_max: Option<LocatedValue<Duration>>,
    pub(super) call_first_byte_max: Option<LocatedValue<Duration>>,
    pub(super) call_idle_max: Option<LocatedValue<Duration>>,
    pub(super) life_signs: Option<LocatedValue<bool>>,
}

/// The rules for tools: for all in `tasks`, for some in a `[[tools]]` block. `deadline` and `result_bytes_max` are read in
/// different sections of the two.
#[derive(Clone, Debug, Default)]
pub(super) struct RawRules {
    pub(super) mode: Option<LocatedValue<TaskMode>>,
    pub(super) grace: Option<LocatedValue<Duration>>,
    pub(super) ttl: Option<LocatedValue<Duration>>,
    pub(super) ttl_max: Option<LocatedValue<Duration>>,
    pub(super) keep_result_min: Option<LocatedValue<Duration>>,
    pub(super) poll_interval: Option<LocatedValue<Duration>>,
    pub(super) early_input: Option<LocatedValue<EarlyInput>>,
    pub(super) fallback: Option<LocatedValue<FallbackPolicy>>,
    pub(super) input_deadline: Option<LocatedValue<Duration>>,
    pub(super) immediate_response: Option<LocatedValue<String>>,
    pub(super) after_crash: Option<LocatedValue<AfterCrash>>,
    pub(super) deadline: Option<LocatedValue<Duration>>,
    pub(super) result_bytes_max: Option<LocatedValue<usize>>,
    pub(super) arguments_bytes_max: Option<LocatedValue<usize>>,
    pub(super) call_first_byte_max: Option<LocatedValue<Duration>>,
    pub(super) call_idle_max: Option<LocatedValue<Duration>>,
    pub(super) split: Option<RawSplit>,
}

#[derive(Debug)]
pub(super) struct RawTool {
    pub(super) place: ConfigLocation,
    pub(super) pattern: Option<LocatedValue<String>>,
    pub(super) rules: RawRules,
    pub(super) hide: Option<LocatedValue<bool>>,
    pub(super) rename: Option<LocatedValue<String>>,
    pub(super) process_per_call: Option<LocatedValue<bool>>,
}

pub(super) fn read(mut root: Section<'_, '_>) -> RawConfig {
    let listen = read_listen(root.section("listen"));
    let mut section = root.section("admin");
    let admin =
        RawAdmin { address: section.read("address", &ADDRESS), tokens: section.each("tokens", read_admin_token) };
    section.close();
    let mut section = root.section("metrics");
    let metrics_address = section.read("address", &ADDRESS);
    section.close();
    let store = store::read(root.section("store"));
    let replica = store::read_replica(root.section("replica"));
    let limits = read_limits(root.section("limits"));
    let auth = auth::read(root.section("auth"));
    let upstreams = root.named("upstreams", read_upstream);
    let endpoints = root.each("endpoints", endpoints::read);
    root.close();
    RawConfig { listen, admin, metrics_address, store, replica, limits, auth, upstreams, endpoints }
}

fn read_listen(mut section: Section<'_, '_>) -> RawListen {
    let address = section.read("address", &ADDRESS);
    let plaintext = section.flag("plaintext");
    let allowed_hosts_place = section.place_of("allowed_hosts");
    let allowed_hosts = section.read_all("allowed_hosts", &HOST);
    let allowed_origins = section.read_all("allowed_origins", &ORIGIN);
    let public_url = section.read("public_url", &PUBLIC_URL);
    let trusted_proxies_place = section.place_of("trusted_proxies");
    let trusted_proxies = section.read_all("trusted_proxies", &ADDRESS_RANGE);
    let mut tls = section.section("tls");
    let identity =
        RawIdentity { certificate: tls.require("certificate", &PEM_FILE), key: tls.require("key", &PEM_FILE) };
    tls.unbuilt("client_ca");
    tls.close();
    section.close();
    RawListen {
        address,
        tls: identity,
        plaintext,
        allowed_hosts,
        allowed_hosts_place,
        allowed_origins,
        public_url,
        trusted_proxies,
        trusted_proxies_place,
    }
}

fn read_admin_token(mut section: Section<'_, '_>) -> RawAdminToken {
    let rights = [("read", Some(OperatorRight::Read)), ("act", Some(OperatorRight::Act))];
    let token = RawAdminToken { file: section.require("file", &KEY_FILE), may: section.word("may", &rights) };
    section.close();
    token
}

fn read_limits(mut section: Section<'_, '_>) -> RawLimits {
    let limits = RawLimits {
        body_bytes_max: section.read("body_bytes_max", &SIZE),
        result_bytes_max: section.read("result_bytes_max", &SIZE),
        tasks_max: section.count("tasks_max", 1),
        stored_bytes_max: section.read("stored_bytes_max", &SIZE),
        answer_bytes_max: section.read("answer_bytes_max", &SIZE),
        principal: RawPrincipalLimits::read(&mut section),
        connections_max: section.count("connections_max", 1),
        drain_max: section.read("drain_max", &DURATION),
    };
    section.close();
    limits
}

fn read_upstream(name: &str, mut section: Section<'_, '_>) -> RawUpstream {
    let place = section.place();
    let url = section.read("url", &UPSTREAM_URL);
    let command = command::read(&mut section);
    let path = section.read("path", &SERVED_PATH);
    let sse_path = section.read("sse_path", &SERVED_PATH);
    let edges = upstream_headers::read(&mut section);
    let tls = read_upstream_tls(section.section("tls"));
    let settings = read_upstream_settings(&mut section);
    let deadline = section.read("deadline", &DURATION_NOT_ZERO);
    let arguments_bytes_max = section.read("arguments_bytes_max", &SIZE);
    let mut tasks = section.section("tasks");
    let rules = read_rules(&mut tasks);
    let drafts = drafts::read(&mut tasks);
    tasks.close();
    let tools = section.each("tools", read_tool);
    section.close();
    RawUpstream {
        name: name.to_owned(),
        place,
        url,
        command,
        path,
        sse_path,
        tls,
        edges,
        settings,
        tasks: RawRules { deadline, arguments_bytes_max, ..rules },
        drafts,
        tools,
    }
}

fn read_upstream_tls(mut section: Section<'_, '_>) -> RawUpstreamTls {
    let tls = RawUpstreamTls {
        place: section.is_written().then(|| section.place()),
        ca: section.read("ca", &PEM_FILE),
        identity: RawIdentity {
            certificate: section.read("certificate", &PEM_FILE),
            key: section.read("key", &PEM_FILE),
        },
    };
    section.close();
    tls
}

fn read_upstream_settings(section: &mut Section<'_, '_>) -> RawUpstreamSettings {
    let advertised = ProtocolVersion::ALL.into_iter().filter(|version| version.traits().is_advertised);
    let mut protocols = vec![("auto", Some(None))];
    protocols.extend(advertised.map(|version| (version.as_str(), Some(Some(version)))));
    RawUpstreamSettings {
        protocol: section.word("protocol", &protocols),
        in_flight_max: section.count("in_flight_max", 1),
        queue_max: section.count("queue_max", 0),
        queue_deadline: section.read("queue_deadline", &DURATION_NOT_ZERO),
        connect_max: section.read("connect_max", &DURATION_NOT_ZERO),
        proxy: section.read("proxy", &PROXY),
        proxy_credentials_file: section.read("proxy_credentials_file", &KEY_FILE),
        first_byte_max: section.read("first_byte_max", &DURATION_NOT_ZERO),
        idle_max: section.read("idle_max", &DURATION_NOT_ZERO),
        call_first_byte_max: section.read("call_first_byte_max", &DURATION_NOT_ZERO),
        call_idle_max: section.read("call_idle_max", &DURATION_NOT_ZERO),
        life_signs: section.flag("life_signs"),
    }
}

/// The keys that a `tasks` table and a `[[tools]]` block share.
fn read_rules(section: &mut Section<'_, '_>) -> RawRules {
    let modes = [
        ("never", Some(TaskMode::Never)),
        ("auto", Some(TaskMode::Auto)),
        ("always", Some(TaskMode::Always)),
        ("required", Some(TaskMode::Required)),
    ];
    let early_inputs = [("task", Some(EarlyInput::Task)), ("ask-first", Some(EarlyInput::AskFirst))];
    let after_crashes = [
        ("fail", Some(AfterCrash::Fail)),
        ("rerun-if-safe", Some(AfterCrash::RerunIfSafe)),
        ("rerun", Some(AfterCrash::Rerun)),
    ];
    RawRules {
        mode: section.word("mode", &modes),
        grace: section.read("grace", &DURATION),
        ttl: section.read("ttl", &DURATION_NOT_ZERO),
        ttl_max: section.read("ttl_max", &DURATION_NOT_ZERO),
        keep_result_min: section.read("keep_result_min", &DURATION),
        poll_interval: section.read("poll_interval", &DURATION_NOT_ZERO),
        early_input: section.word("early_input", &early_inputs),
        input_deadline: section.read("input_deadline", &DURATION_NOT_ZERO),
        immediate_response: section.read("immediate_response", &WORDS),
        after_crash: section.word("after_crash", &after_crashes),
        deadline: None,
        result_bytes_max: None,
        arguments_bytes_max: None,
        call_first_byte_max: None,
        call_idle_max: None,
        split: None,
        fallback: section
            .word("fallback", &[("hold", Some(FallbackPolicy::Hold)), ("tools", Some(FallbackPolicy::Tools))]),
    }
}

fn read_tool(mut section: Section<'_, '_>) -> RawTool {
    let place = section.place();
    let pattern = section.require("match", &PATTERN);
    let rules = read_rules(&mut section);
    let rules = RawRules {
        deadline: section.read("deadline", &DURATION_NOT_ZERO),
        result_bytes_max: section.read("result_bytes_max", &SIZE),
        arguments_bytes_max: section.read("arguments_bytes_max", &SIZE),
        call_first_byte_max: section.read("call_first_byte_max", &DURATION_NOT_ZERO),
        call_idle_max: section.read("call_idle_max", &DURATION_NOT_ZERO),
        split: split::read(section.section("split")),
        ..rules
    };
    let (hide, rename) = (section.flag("hide"), section.read("rename", &NEW_NAME));
    let process_per_call = section.flag("process_per_call");
    section.close();
    RawTool { place, pattern, rules, hide, rename, process_per_call }
}

impl RawUpstream {
    /// An upstream with only a name.
    pub(super) fn unreached(name: &str, place: ConfigLocation) -> Self {
        Self {
            name: name.to_owned(),
            place,
            url: None,
            command: RawCommand::default(),
            path: None,
            sse_path: None,
            tls: RawUpstreamTls::default(),
            edges: RawUpstreamHeaders::default(),
            settings: RawUpstreamSettings::default(),
            tasks: RawRules::default(),
            drafts: RawDrafts::default(),
            tools: Vec::new(),
        }
    }
}

impl RawRules {
    /// These rules, completed by `wider`.
    pub(super) fn over(&self, wider: &Self) -> Self {
        Self {
            mode: self.mode.clone().or_else(|| wider.mode.clone()),
            grace: self.grace.clone().or_else(|| wider.grace.clone()),
            ttl: self.ttl.clone().or_else(|| wider.ttl.clone()),
            ttl_max: self.ttl_max.clone().or_else(|| wider.ttl_max.clone()),
            keep_result_min: self.keep_result_min.clone().or_else(|| wider.keep_result_min.clone()),
            poll_interval: self.poll_interval.clone().or_else(|| wider.poll_interval.clone()),
            early_input: self.early_input.clone().or_else(|| wider.early_input.clone()),
            input_deadline: self.input_deadline.clone().or_else(|| wider.input_deadline.clone()),
            immediate_response: self.immediate_response.clone().or_else(|| wider.immediate_response.clone()),
            after_crash: self.after_crash.clone().or_else(|| wider.after_crash.clone()),
            deadline: self.deadline.clone().or_else(|| wider.deadline.clone()),
            result_bytes_max: self.result_bytes_max.clone().or_else(|| wider.result_bytes_max.clone()),
            arguments_bytes_max: self.arguments_bytes_max.clone().or_else(|| wider.arguments_bytes_max.clone()),
            call_first_byte_max: self.call_first_byte_max.clone().or_else(|| wider.call_first_byte_max.clone()),
            call_idle_max: self.call_idle_max.clone().or_else(|| wider.call_idle_max.clone()),
            fallback: self.fallback.clone().or_else(|| wider.fallback.clone()),
            split: self.split.clone().or_else(|| wider.split.clone()),
        }
    }
}
