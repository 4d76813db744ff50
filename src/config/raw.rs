//! Lists every table of the file: each value typed and located. This is the schema: a key that is not read here is
//! unknown. [`super::resolve`] checks the values against each other.

mod auth;
pub(super) mod command;
pub(super) mod store;
mod upstream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::error::ConfigLocation;
use super::keys::{KeyRow, KeyTable, inherited, keys};
use super::section::Section;
use super::value::{
    ADDRESS, ADDRESS_RANGE, CLIENT_ID, CLIENT_SECRET, DURATION, HOST, KEY_FILE, ORIGIN, PEM_FILE, PUBLIC_URL,
    SERVED_PATH, SIZE, StringFormat, UPSTREAM_NAME, ValueError, WordList, path,
};
use crate::audit::AuditAnchor;
use crate::face::combined::PrefixPolicy;
use crate::server::forwarded::AddressRange;
use crate::task::OperatorRight;
use crate::tls::CertificateNeed;
use crate::upstream::token_client::SecretCarriage;

pub(super) use auth::{
    AuthMode, RawAccessRule, RawAccessRuleValues, RawApiKey, RawApiKeyValues, RawAuth, RawCertificate,
    RawCertificateValues, RawIntrospection, RawIssuer, RawIssuerValues, RawRuleWho, read_keys,
};
pub(super) use store::{RawDatabase, RawReplica, RawStore, StoreKind};
pub(super) use upstream::{
    RawCallRules, RawCredentialCommand, RawCredentialValues, RawDrafts, RawExchange, RawProgramValues, RawSplit,
    RawTaskRules, RawTokenTarget, RawToolValues, RawTransport, RawUpstreamTls, RawUpstreamValues, RawUrlValues,
};

const PREFIXES: WordList<PrefixPolicy> = &[("always", PrefixPolicy::Always), ("auto", PrefixPolicy::Auto)];

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

#[derive(Debug, Default)]
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
    raw.certificates = section
        .each("certificates", |section| RawCertificate { location: section.location(), values: read_table(section) });
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
        Self { name: name.to_owned(), location, ..Self::default() }
    }
}

impl RawRules {
    pub(super) fn over(&self, wider: &Self) -> Self {
        Self { tasks: self.tasks.over(&wider.tasks), calls: self.calls.over(&wider.calls) }
    }
}

const SECRET_CARRIAGES: WordList<SecretCarriage> = &[("basic", SecretCarriage::Basic), ("post", SecretCarriage::Post)];

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

const AUDIT_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"audit.jsonl\"", read: path };
const ANCHOR: StringFormat<AuditAnchor> =
    StringFormat { wanted: "a file such as \"audit.anchor\", or \"syslog\"", read: anchor };
/// The syslog daemon's socket on Linux. Elsewhere, and in containers, the configuration names it.
const SYSLOG_SOCKET: &str = "/dev/log";

fn anchor(text: &str) -> Result<AuditAnchor, ValueError> {
    match text.strip_prefix("syslog") {
        Some("") => Ok(AuditAnchor::Syslog(SYSLOG_SOCKET.into())),
        Some(rest) if rest.starts_with(':') => path(&rest[1..]).map(AuditAnchor::Syslog),
        Some(_) | None => path(text).map(AuditAnchor::File),
    }
}

keys! {
    struct RawAudit {
        /// The audit file, with a line of JSON for each event ([Audit](docs/operating.md#audit)); relative to the
        /// working directory. Its folder must exist. Each gateway needs a separate file, which only its owner can use.
        /// In a pipe or a device each process begins a new chain.
        restart path: PathBuf = read(&AUDIT_FILE);
        /// `true`: a call is recorded on the disk before it is sent, and refused with `audit_unavailable` if that fails.
        restart required: bool = flag(), default false;
        /// `false` leaves out calls that become no task.
        restart calls: bool = flag(), default true;
        /// `true` adds the SHA-256 of a call's `arguments`, as the client wrote them.
        restart arguments_sha256: bool = flag(), default false;
        /// A file of this gateway alone, best on another machine, that gets the digest of each 1,000th line; or `"syslog"` for the
        /// system's log at `/dev/log`, or `"syslog:/run/log.sock"` for another socket.
        restart anchor: AuditAnchor = read(&ANCHOR);
    }
}

keys! {
    /// `[limits]`, but for the limits of each principal.
    struct RawLimits {
        /// Largest body of a client's request; a larger one is answered 413.
        reload body_bytes_max: usize = read(&SIZE), default "4MiB";
        /// Largest result, and largest single message, of an upstream; a larger one is `result_too_large`.
        reload result_bytes_max: usize = read(&SIZE), default "32MiB";
        /// Unsettled tasks of all principals together. Further ones are refused (`too_many_tasks`).
        reload tasks_max: u32 = count(1), default 100_000;
        /// All tasks in the store, settled ones included; each counts as at least 1 KiB. A full store refuses new tasks
        /// (`store_full`) and drops none: the result of an accepted task is stored even above the bound, at most
        /// `result_bytes_max` for each. With `kind = "memory"` the default is 1 GiB, and a result that would take the
        /// store a quarter above its bound is dropped (`failed`, `store_full`).
        restart stored_bytes_max: usize = read(&SIZE), shown "`\"8GiB\"`";
        /// Bytes of responses to all clients, from a server's first byte until the client has the last. Above it the
        /// gateway stops reading from servers and refuses new requests (`answers_full`). One more request may always be
        /// in progress. Responses of at most 64 KiB, and responses that are forwarded chunk by chunk, are not counted.
        /// Above the bound a server over stdio or HTTP+SSE is not read at all, so other calls in the same process or
        /// stream wait too. A response waits for room for a minute at most; then its call ends with `executed: "yes"`.
        /// The gateway disconnects a client that reads less than 1 KiB/s for 30 s; over HTTP/2 it resets a stream
        /// without room for a piece of at most 16 KiB within 30 s. Two principals that read a little faster can occupy
        /// all the bytes for hours; small responses of others still pass, and large ones one after another.
        reload answer_bytes_max: usize = read(&SIZE), default "128MiB";
        /// Connections from clients at one time. The gateway reduces it if the limit on open files is too low, and logs
        /// that.
        restart connections_max: u32 = count(1), default 10_000;
        /// How long a shutdown waits for calls in progress ([what to set](docs/operating.md#start-and-stop)).
        reload drain_max: Duration = read(&DURATION), default "5m", bounds "`\"0s\"` to `\"3650d\"`";
    }
}

keys! {
    /// The limits of each principal, in `[limits]` or beside an API key.
    struct RawPrincipalLimits {
        /// Requests a second of one principal, without polls (`tasks/get`, `tasks/result`). If no credentials are
        /// required, clients are counted by address (IPv6: by /64); the local user on loopback is not counted. More are
        /// refused (`rate_limited`).
        reload requests_per_second: u32 = count(1), shown "`50`";
        /// How many such requests may arrive at once.
        reload requests_burst: u32 = count(1), shown "`100`";
        /// Polls a second for each unfinished task of the principal, in addition to 50. Tasks that ended in the last 10
        /// s count as unfinished.
        reload polls_per_task: u32 = count(1), shown "`2`";
        /// Unsettled tasks of one principal (`too_many_tasks`). All anonymous clients are one.
        reload tasks_per_principal_max: u32 = count(1), shown "`1_000`";
        /// All tasks of one principal in the store, as `stored_bytes_max` counts them. A principal above it gets no new
        /// tasks (`too_much_stored`); results of its existing tasks are stored.
        reload stored_bytes_per_principal_max: usize = read(&SIZE), shown "`\"256MiB\"`";
        /// As `answer_bytes_max`, for the responses to one principal (`too_much_unread`). The default is half of
        /// `answer_bytes_max`.
        reload answer_bytes_per_principal_max: usize = read(&SIZE), shown "`\"64MiB\"`";
        /// Open streams of notifications of one principal (`too_many_listeners`), anonymous clients by address.
        /// HTTP+SSE clients, which have a stream for each session, may have four times as many.
        reload streams_per_principal_max: u32 = count(1), shown "`64`";
        /// The percentage of a server's permits (`in_flight_max`), queue (`queue_max`) and processes (`processes_max`)
        /// that one of several principals may have.
        reload permits_percent_max: u32 = count_in(1..=100), shown "`75`";
    }
}

const NEEDS: WordList<CertificateNeed> =
    &[("optional", CertificateNeed::Optional), ("required", CertificateNeed::Required)];
const RIGHTS: WordList<OperatorRight> = &[("read", OperatorRight::Read), ("act", OperatorRight::Act)];

keys! {
    struct RawListen {
        /// Where clients connect. Port 0 picks a free port, which is logged and printed. An address that other machines
        /// can reach needs `[auth]` (`mode = "api_keys"` or `anonymous = true`).
        restart address: SocketAddr = read(&ADDRESS), default "127.0.0.1:8080";
        /// `true` allows API keys without TLS on an address that other machines can reach, for a TLS proxy in front. No
        /// effect on loopback or beside `[listen.tls]`.
        reload plaintext: bool = flag(), default false;
        /// Values of `Host` that are served besides loopback, the bound address and the names of the certificate. Any
        /// other `Host` gets 403, unless each request needs a credential. On loopback without keys, a name here means that
        /// requests come through a proxy: every client is then served as with `anonymous = true`.
        reload allowed_hosts: Vec<String> = read_all(&HOST), default [], bounds "no port, no wildcard";
        /// Web pages that may call and read answers (CORS, preflights included) besides loopback pages (on a loopback
        /// listener) and pages of the requested host itself. Any other `Origin` is answered 403. A request without
        /// `Origin` is served.
        reload allowed_origins: Vec<String> = read_all(&ORIGIN), default [], bounds "no path, no wildcard";
        /// How clients reach the gateway if not at `address`, as behind a proxy that ends TLS. Its host is served like
        /// one of `allowed_hosts`, its origin like one of `allowed_origins`, and `serve` prints it. On loopback without
        /// keys every client is then served as with `anonymous = true`.
        reload public_url: Url = read(&PUBLIC_URL), bounds "http or https, no path";
        /// Proxies with a trusted `Forwarded`, or `X-Forwarded-For`, `-Host` and `-Proto`: for the address by which
        /// requests of anonymous clients are counted, for the log, and for the check of the gateway's own pages. These
        /// headers of other peers are ignored. On loopback without keys every client is then served as with `anonymous
        /// = true`.
        reload trusted_proxies: Vec<AddressRange> = read_all(&ADDRESS_RANGE), default [], bounds "no host name";
    }
}

keys! {
    struct RawListenTls {
        /// PEM file: the server's certificate first, then the authorities below the root. Needs `key`.
        restart certificate: PathBuf = require(&PEM_FILE);
        /// PEM file with the private key, not encrypted. Needs `certificate`.
        restart key: PathBuf = require(&PEM_FILE);
        /// PEM file of the authorities that certify clients. With it clients are asked for a
        /// [certificate](docs/login.md#client-certificates). Behind a proxy that ends TLS this has no effect.
        restart client_ca: PathBuf = read(&PEM_FILE), shown "clients are asked for no certificate";
        /// PEM file with the revocation lists of these authorities. With it a certificate is refused if its authority has
        /// no list here.
        restart client_crl: PathBuf = read(&PEM_FILE);
        /// `"required"`: a client without a certificate of `client_ca` gets no connection. `"optional"`: it gets one, and
        /// needs another credential. A certificate of another authority gets no connection in both cases.
        restart client_certificates: CertificateNeed = word(NEEDS), default "optional";
    }
}

keys! {
    struct RawAdmin {
        /// Where operators connect. On loopback no token is needed unless one is configured below; an address that
        /// other machines can reach needs one. The connection is not encrypted.
        restart address: SocketAddr = read(&ADDRESS), default "127.0.0.1:9090";
    }
}

keys! {
    /// The token of one operator: `[[admin.tokens]]`
    struct RawAdminToken {
        /// A file with one token and nothing else, written like an API key: `tg_ID_SECRET` with at least 128 bits.
        /// Operators send it as `Authorization: Bearer …`; `taskgate tasks`, `replicas` and `health` take it from
        /// `TASKGATE_ADMIN_TOKEN`. With tokens any `Host` is served.
        reload file: PathBuf = require(&KEY_FILE), bounds "owner alone";
        /// `"read"` reads everything on the admin listener; `"act"` also cancels tasks and removes dead replicas.
        reload may: OperatorRight = word(RIGHTS), default "read";
    }
}

keys! {
    struct RawMetrics {
        /// A listener with `/metrics`, `/healthz` and `/readyz` alone: GET and HEAD, any `Host`, no credentials. A
        /// request with an `Origin` is answered 403. None unless written.
        restart address: SocketAddr = read(&ADDRESS);
    }
}
