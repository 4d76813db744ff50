//! Lists every table of the file: each value typed and located.
//!
//! This is the schema: a key that is not read here is unknown. Unimplemented features have their keys here, too, so that they are
//! refused by name. [`super::resolve`] checks the values against each other.

mod audit;
mod auth;
pub(super) mod command;
mod limits;
mod listeners;
pub(super) mod store;
mod upstream;

use std::path::PathBuf;

use super::error::ConfigLocation;
use super::keys::{KeyRow, KeyTable, inherited, keys};
use super::section::Section;
use super::value::{CLIENT_ID, CLIENT_SECRET, KEY_FILE, SERVED_PATH, UPSTREAM_NAME, WordList};
use crate::face::combined::PrefixPolicy;
use crate::upstream::token_client::SecretCarriage;
pub(super) use audit::RawAudit;
pub(super) use auth::{
    AuthMode, RawAccessRule, RawAccessRuleValues, RawApiKey, RawApiKeyValues, RawAuth, RawCertificate,
    RawCertificateValues, RawIntrospection, RawIssuer, RawIssuerValues, RawRuleWho, read_keys,
};
pub(super) use limits::{RawLimits, RawPrincipalLimits};
pub(super) use listeners::{RawAdmin, RawAdminToken, RawListen, RawListenTls, RawMetrics};
pub(super) use store::{RawDatabase, RawReplica, RawStore, StoreKind};
pub(super) use upstream::{
    RawCallRules, RawCredentialCommand, RawCredentialValues, RawDrafts, RawExchange, RawProgramValues, RawSplit,
    RawTaskRules, RawTokenTarget, RawToolValues, RawTransport, RawUpstreamTls, RawUpstreamValues, RawUrlValues,
};

const PREFIXES: WordList<PrefixPolicy> = &[("always", Some(PrefixPolicy::Always)), ("auto", Some(PrefixPolicy::Auto))];

#[derive(Debug, Default)]
pub(super) struct RawConfig {
    pub(super) listen: RawListen,
    pub(super) listen_tls: RawListenTls,
    pub(super) admin: RawAdmin,
    pub(super) admin_tokens: Vec<RawAdminToken>,
    pub(super) metrics: RawMetrics,
    pub(super) store: RawStore,
    pub(super) database: RawDatabase,
    pub(super) replica: RawReplica,
    pub(super) replica_location: Option<ConfigLocation>,
    pub(super) limits: RawLimits,
    pub(super) principal_limits: RawPrincipalLimits,
    pub(super) audit: RawAudit,
    pub(super) audit_location: Option<ConfigLocation>,
    pub(super) auth: RawAuth,
    /// The keys of the further files follow, once these are read.
    pub(super) api_keys: Vec<RawApiKey>,
    pub(super) certificates: Vec<RawCertificate>,
    pub(super) issuers: Vec<RawIssuer>,
    pub(super) access_rules: Vec<RawAccessRule>,
    pub(super) upstreams: Vec<RawUpstream>,
    pub(super) endpoints: Vec<RawEndpoint>,
}

#[derive(Debug)]
pub(super) struct RawUpstream {
    pub(super) name: String,
    pub(super) location: ConfigLocation,
    pub(super) own: RawUpstreamValues,
    pub(super) url: RawUrlValues,
    pub(super) program: RawProgramValues,
    pub(super) auth: Option<RawCredential>,
    pub(super) issued: Option<RawIssuedCredential>,
    pub(super) tls: RawUpstreamTls,
    pub(super) tls_location: Option<ConfigLocation>,
    pub(super) rules: RawRules,
    pub(super) drafts: RawDrafts,
    pub(super) tools: Vec<RawTool>,
}

#[derive(Clone, Debug)]
pub(super) struct RawCredential {
    pub(super) location: ConfigLocation,
    pub(super) values: RawCredentialValues,
    /// Whether the secret is in the file itself and not in the environment.
    pub(super) is_inline: bool,
}

/// `[upstreams.NAME.credential]`
#[derive(Debug)]
pub(super) struct RawIssuedCredential {
    pub(super) location: ConfigLocation,
    pub(super) command: RawCredentialCommand,
    pub(super) client_credentials: Option<RawClientTable<RawTokenTarget>>,
    pub(super) exchange: Option<RawClientTable<RawExchangeGrant>>,
    pub(super) id_jag: Option<RawClientTable<RawTokenTarget>>,
}

#[derive(Debug)]
pub(super) struct RawExchangeGrant {
    pub(super) target: RawTokenTarget,
    pub(super) exchange: RawExchange,
}

/// The rules for tools: for all of an upstream, or for the tools of one `[[tools]]` block.
#[derive(Clone, Debug, Default)]
pub(super) struct RawRules {
    pub(super) tasks: RawTaskRules,
    pub(super) calls: RawCallRules,
}

#[derive(Debug)]
pub(super) struct RawTool {
    pub(super) location: ConfigLocation,
    pub(super) own: RawToolValues,
    pub(super) rules: RawRules,
    pub(super) split: Option<RawSplit>,
}

#[derive(Debug)]
pub(super) struct RawEndpoint {
    pub(super) location: ConfigLocation,
    pub(super) values: RawEndpointValues,
}

keys! {
    /// `[[endpoints]]`
    struct RawEndpointValues {
        /// Where the endpoint is served. No two upstreams or endpoints have the same path.
        reload path: String = require(&SERVED_PATH);
        /// Where the endpoint is served to clients of HTTP+SSE.
        reload sse_path: String = read(&SERVED_PATH), shown "the path with sse for mcp at its end";
        /// The served upstreams. If two list the same resource, it belongs to the first.
        reload upstreams: Vec<String> = read_all(&UPSTREAM_NAME), bounds "1 to 64";
        /// Which tools and prompts get their upstream's name as a prefix (`reports__generate`): all, or only names that
        /// two upstreams have.
        reload prefix: PrefixPolicy = word(PREFIXES), default "always";
    }
}

pub(super) fn tables() -> Vec<(&'static str, Vec<KeyRow>)> {
    let of_key = "As in `[limits]`, for the principal of this key.";
    let upstream = [RawUpstreamValues::ROWS, RawUrlValues::ROWS, RawProgramValues::ROWS, RawCallRules::ROWS];
    let (task_rules, call_rules) = (RawTaskRules::ROWS, RawCallRules::ROWS);
    let rules = [inherited(task_rules, "As in `tasks`."), inherited(call_rules, "As in the upstream.")].concat();
    vec![
        ("listen", RawListen::ROWS.to_vec()),
        ("listen.tls", RawListenTls::ROWS.to_vec()),
        ("admin", RawAdmin::ROWS.to_vec()),
        ("admin.tokens", RawAdminToken::ROWS.to_vec()),
        ("metrics", RawMetrics::ROWS.to_vec()),
        ("store", [RawStore::ROWS, RawDatabase::ROWS].concat()),
        ("replica", RawReplica::ROWS.to_vec()),
        ("limits", [RawLimits::ROWS, RawPrincipalLimits::ROWS].concat()),
        ("audit", RawAudit::ROWS.to_vec()),
        ("auth", RawAuth::ROWS.to_vec()),
        ("auth.issuers", RawIssuerValues::ROWS.to_vec()),
        ("auth.issuers.introspection", [RawTokenClient::ROWS, RawIntrospection::ROWS].concat()),
        ("auth.certificates", RawCertificateValues::ROWS.to_vec()),
        ("auth.api_keys", RawApiKeyValues::ROWS.to_vec()),
        ("auth.api_keys.limits", inherited(RawPrincipalLimits::ROWS, of_key)),
        ("auth.rules", RawAccessRuleValues::ROWS.to_vec()),
        ("auth.rules.who", RawRuleWho::ROWS.to_vec()),
        ("upstreams.NAME", upstream.concat()),
        ("upstreams.NAME.auth", RawCredentialValues::ROWS.to_vec()),
        ("upstreams.NAME.credential", RawCredentialCommand::ROWS.to_vec()),
        ("upstreams.NAME.credential.client_credentials", [RawTokenClient::ROWS, RawTokenTarget::ROWS].concat()),
        (
            "upstreams.NAME.credential.exchange",
            [RawTokenClient::ROWS, RawTokenTarget::ROWS, RawExchange::ROWS].concat(),
        ),
        ("upstreams.NAME.credential.id_jag", [RawTokenClient::ROWS, RawTokenTarget::ROWS].concat()),
        ("upstreams.NAME.tls", RawUpstreamTls::ROWS.to_vec()),
        ("upstreams.NAME.tasks", [task_rules, RawDrafts::ROWS].concat()),
        ("upstreams.NAME.tools", [RawToolValues::ROWS, &rules].concat()),
        ("upstreams.NAME.tools.split", RawSplit::ROWS.to_vec()),
        ("endpoints", RawEndpointValues::ROWS.to_vec()),
    ]
}

pub(super) fn read(mut root: Section<'_, '_>) -> RawConfig {
    let mut raw = RawConfig::default();
    let mut section = root.section("listen");
    raw.listen = RawListen::read(&mut section);
    raw.listen_tls = read_table(section.section("tls"));
    section.close();
    let mut section = root.section("admin");
    raw.admin = RawAdmin::read(&mut section);
    raw.admin_tokens = section.each("tokens", read_table);
    section.close();
    raw.metrics = read_table(root.section("metrics"));
    let mut section = root.section("store");
    (raw.store, raw.database) = (RawStore::read(&mut section), RawDatabase::read(&mut section));
    section.close();
    let section = root.section("replica");
    raw.replica_location = section.written_location();
    raw.replica = read_table(section);
    let mut section = root.section("limits");
    (raw.limits, raw.principal_limits) = (RawLimits::read(&mut section), RawPrincipalLimits::read(&mut section));
    section.close();
    let section = root.section("audit");
    raw.audit_location = section.written_location();
    raw.audit = read_table(section);
    let mut section = root.section("auth");
    raw.auth = RawAuth::read(&mut section);
    raw.api_keys = section.each("api_keys", auth::read_api_key);
    raw.certificates = section.each("certificates", auth::read_certificate);
    raw.issuers = section.each("issuers", auth::read_issuer);
    raw.access_rules = section.each("rules", auth::read_rule);
    section.close();
    raw.upstreams = root.named("upstreams", read_upstream);
    raw.endpoints =
        root.each("endpoints", |section| RawEndpoint { location: section.location(), values: read_table(section) });
    root.close();
    raw
}

/// Reads a table that has no others in it.
fn read_table<T: KeyTable>(mut section: Section<'_, '_>) -> T {
    let table = T::read(&mut section);
    section.close();
    table
}

fn read_upstream(name: &str, mut section: Section<'_, '_>) -> RawUpstream {
    let mut raw = RawUpstream::unreached(name, section.location());
    raw.own = RawUpstreamValues::read(&mut section);
    raw.url = RawUrlValues::read(&mut section);
    raw.program = RawProgramValues::read(&mut section);
    raw.rules.calls = RawCallRules::read(&mut section);
    raw.auth = read_credential(section.section("auth"));
    raw.issued = read_issued(section.section("credential"));
    let tls = section.section("tls");
    raw.tls_location = tls.written_location();
    raw.tls = read_table(tls);
    let mut tasks = section.section("tasks");
    (raw.rules.tasks, raw.drafts) = (RawTaskRules::read(&mut tasks), RawDrafts::read(&mut tasks));
    tasks.close();
    raw.tools = section.each("tools", read_tool);
    section.close();
    raw
}

fn read_credential(section: Section<'_, '_>) -> Option<RawCredential> {
    let location = section.written_location();
    let (authorization, value) = (section.has_variable("authorization"), section.has_variable("value"));
    let values: RawCredentialValues = read_table(section);
    let is_inline = (values.authorization.is_some() && !authorization) || (values.value.is_some() && !value);
    location.map(|location| RawCredential { location, values, is_inline })
}

fn read_issued(mut section: Section<'_, '_>) -> Option<RawIssuedCredential> {
    let location = section.written_location();
    let command = RawCredentialCommand::read(&mut section);
    let client_credentials = read_client(section.section("client_credentials"), RawTokenTarget::read);
    let exchange = read_client(section.section("exchange"), |section| RawExchangeGrant {
        target: RawTokenTarget::read(section),
        exchange: RawExchange::read(section),
    });
    let id_jag = read_client(section.section("id_jag"), RawTokenTarget::read);
    section.close();
    location.map(|location| RawIssuedCredential { location, command, client_credentials, exchange, id_jag })
}

fn read_tool(mut section: Section<'_, '_>) -> RawTool {
    let (location, own) = (section.location(), RawToolValues::read(&mut section));
    let rules = RawRules { tasks: RawTaskRules::read(&mut section), calls: RawCallRules::read(&mut section) };
    let split = section.section("split");
    let is_written = split.written_location().is_some();
    // Read even if absent, so that its keys are known.
    let split = Some(read_table(split)).filter(|_| is_written);
    section.close();
    RawTool { location, own, rules, split }
}

impl RawUpstream {
    /// An upstream with only a name.
    pub(super) fn unreached(name: &str, location: ConfigLocation) -> Self {
        Self {
            name: name.to_owned(),
            location,
            own: RawUpstreamValues::default(),
            url: RawUrlValues::default(),
            program: RawProgramValues::default(),
            auth: None,
            issued: None,
            tls: RawUpstreamTls::default(),
            tls_location: None,
            rules: RawRules::default(),
            drafts: RawDrafts::default(),
            tools: Vec::new(),
        }
    }
}

impl RawRules {
    pub(super) fn over(&self, wider: &Self) -> Self {
        Self { tasks: self.tasks.over(&wider.tasks), calls: self.calls.over(&wider.calls) }
    }
}

const SECRET_CARRIAGES: WordList<SecretCarriage> =
    &[("basic", Some(SecretCarriage::Basic)), ("post", Some(SecretCarriage::Post))];

keys! {
    /// The keys that every table of a client has.
    struct RawTokenClient {
        /// The gateway's name at the authorization server.
        reload client_id: String = require(&CLIENT_ID);
        /// The gateway's password there, written as `"${VAR}"`.
        reload client_secret: String = read(&CLIENT_SECRET);
        /// A file with the password and nothing else. A changed password is used without a reload.
        reload client_secret_file: PathBuf = read(&KEY_FILE);
        /// `"post"`: the password is sent in the form (`client_secret_post`), where the server takes no HTTP Basic.
        reload client_auth: SecretCarriage = word(SECRET_CARRIAGES), default "basic";
    }
}

/// A table with the keys of a client, and with others.
#[derive(Debug)]
pub(in crate::config) struct RawClientTable<T> {
    pub(in crate::config) location: ConfigLocation,
    pub(in crate::config) client: RawTokenClient,
    /// Whether the password is in the file itself and not in the environment.
    pub(in crate::config) is_inline: bool,
    pub(in crate::config) others: T,
}

/// Reads a table even if it is absent, so that its keys are known.
fn read_client<T>(
    mut section: Section<'_, '_>,
    others: impl FnOnce(&mut Section<'_, '_>) -> T,
) -> Option<RawClientTable<T>> {
    let (location, is_inline) = (section.written_location(), !section.has_variable("client_secret"));
    let (client, others) = (RawTokenClient::read(&mut section), others(&mut section));
    section.close();
    location.map(|location| RawClientTable { location, client, is_inline, others })
}
