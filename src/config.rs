//! Reads a TOML file into the settings of every subsystem, or lists its mistakes. `section` walks tables, `value`
//! parses, `raw` declares keys and their reference (`keys`), `resolve` compares values.

mod command_line;
mod error;
mod keys;
mod named_files;
mod raw;
mod resolve;
mod section;
mod toml_writer;
mod value;
mod variables;
mod wrapped;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;

pub use command_line::{CommandLineConfig, CommandLineServer, CommandLineStore, ServerTarget, server_headers};
use error::MistakeCollector;
pub use error::{ConfigError, Findings, Mistake};
pub use keys::KeyRow;
pub use named_files::env_line;
use named_files::{FileVariables, KeyFileReader};
pub use section::KeyContent;
use section::{ConfigSource, UnknownKey};

use crate::audit::AuditSettings;
use crate::engine::ServiceSettings;
use crate::face::client_login::ResourceName;
use crate::face::combined::CombinedSettings;
use crate::replica::LeaseTerms;
use crate::server::api_keys::AuthSettings;
use crate::server::replicas::ReplicaTls;
use crate::server::{AdminSettings, ListenSettings};
use crate::store::{DatabaseAccess, DatabaseUrl, StoreLimits};
use crate::system;
use crate::task::{PrincipalAccessTable, PrincipalLimitTable, ToolNames};
use crate::upstream::http::HttpUpstreamSettings;
use crate::upstream::limits::CallPermitSettings;
use crate::upstream::transport::stdio::StdioUpstreamSettings;
use crate::wire::ProtocolVersion;
pub use raw::command::is_command_line;
pub use raw::store::is_replica_name;
pub use resolve::GRACE_MAX;
pub use resolve::listeners::usual_listener_at;
pub use toml_writer::{escaped, fallback_name, fitting_name, key, key_variable, quoted, string, variable_name};
pub use value::{check_caller_id, check_principal_id, is_credential_header};
use variables::Environment;
pub use variables::is_variable_name;
use wrapped::FilePurpose;

/// Larger files are refused unread (B166).
pub const FILE_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub listen: ListenSettings,
    pub admin: AdminSettings,
    pub metrics: Option<SocketAddr>,
    /// The gateway's state folder, relative to the working directory. It need not exist.
    pub folder: PathBuf,
    pub store: StoreSettings,
    pub audit: Option<AuditSettings>,
    pub auth: AuthSettings,
    /// The files of variables and of API keys that belong to the configuration, as paths to open.
    pub further_files: Vec<PathBuf>,
    pub principals: Arc<PrincipalLimitTable>,
    pub access: Arc<PrincipalAccessTable>,
    /// In the order of the file; names and paths are unique. Never empty.
    pub upstreams: Vec<UpstreamConfig>,
    /// Paths that serve several upstreams, in the order of the file.
    pub endpoints: Vec<CombinedSettings>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSettings {
    Memory(StoreLimits),
    /// In [`Config::folder`].
    Disk {
        limits: StoreLimits,
        /// Whether to accept a folder on a filesystem that is temporary or on another machine (B171).
        is_ephemeral: bool,
    },
    /// A database that several gateways share; [`Config::folder`] contains the sealing key.
    Postgres(Box<DatabaseSettings>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSettings {
    pub limits: StoreLimits,
    pub access: DatabaseAccess,
    pub replica: ReplicaSettings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSettings {
    /// The replica's name; without it, the host's.
    pub name: Option<String>,
    /// The address for requests from other replicas, if any.
    pub address: Option<SocketAddr>,
    /// The certificates between replicas; set unless the address is on loopback.
    pub tls: Option<ReplicaTls>,
    pub terms: LeaseTerms,
    /// Whether the replicas divide rates and concurrency limits.
    pub divides: bool,
}

impl StoreSettings {
    pub const fn limits(&self) -> StoreLimits {
        match self {
            Self::Memory(limits) | Self::Disk { limits, .. } => *limits,
            Self::Postgres(database) => database.limits,
        }
    }

    /// The configuration key that shows a difference from `started` first.
    const fn key_of_difference(&self, started: &Self) -> &'static str {
        match self {
            Self::Disk { .. } if matches!(started, Self::Disk { .. }) => "store.ephemeral",
            Self::Memory(_) | Self::Disk { .. } => "store.kind",
            Self::Postgres(_) => "store, replica",
        }
    }

    #[must_use]
    pub fn with_limits(self, limits: StoreLimits) -> Self {
        match self {
            Self::Memory(_) => Self::Memory(limits),
            Self::Disk { is_ephemeral, .. } => Self::Disk { limits, is_ephemeral },
            Self::Postgres(database) => Self::Postgres(Box::new(DatabaseSettings { limits, ..*database })),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamConfig {
    /// 1 to 64 characters out of `a-z`, `0-9`, `_` and `-`.
    pub name: Arc<str>,
    /// The path of its clients: begins with `/`, no empty or dotted segments.
    pub path: String,
    /// The path for the HTTP+SSE transport of 2024-11-05, with the same rules.
    pub sse_path: String,
    pub server: ServerSettings,
    pub permits: CallPermitSettings,
    pub names: ToolNames,
    pub service: ServiceSettings,
    /// The resource name in its OAuth metadata, where clients log in themselves.
    pub oauth_resource: ResourceName,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerSettings {
    Http(HttpUpstreamSettings),
    Stdio(StdioUpstreamSettings),
}

impl ServerSettings {
    pub const fn http(&self) -> Option<&HttpUpstreamSettings> {
        if let Self::Http(http) = self { Some(http) } else { None }
    }

    pub const fn stdio(&self) -> Option<&StdioUpstreamSettings> {
        if let Self::Stdio(stdio) = self { Some(stdio) } else { None }
    }

    pub const fn protocol(&self) -> Option<ProtocolVersion> {
        match self {
            Self::Http(http) => http.protocol,
            Self::Stdio(stdio) => stdio.protocol,
        }
    }
}

#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub config: Config,
    /// Likely mistakes, in the order of the lines.
    pub warnings: Vec<Mistake>,
}

impl Config {
    /// The changed keys that only a restart can apply.
    pub fn need_restart(&self, started: &Self) -> Vec<&'static str> {
        let limits = self.store.limits();
        let same_limits = |one: &Self| one.store.clone().with_limits(limits);
        [
            ("listen.address", started.listen.address != self.listen.address),
            (
                "listen.tls",
                started.listen.tls != self.listen.tls
                    || started.listen.client_certificates != self.listen.client_certificates,
            ),
            ("limits.connections_max", started.listen.connections_max != self.listen.connections_max),
            ("limits.stored_bytes_max", started.store.limits().stored_bytes_max != limits.stored_bytes_max),
            ("admin.address", started.admin.address != self.admin.address),
            ("metrics.address", started.metrics != self.metrics),
            ("store.path", started.folder != self.folder),
            ("audit", started.audit != self.audit),
            (self.store.key_of_difference(&started.store), same_limits(started) != same_limits(self)),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }

    /// The configuration that a running gateway can apply: the keys of [`Config::need_restart`] keep their started values.
    #[must_use]
    pub fn within(self, started: &Self) -> Self {
        let ListenSettings { address, ref tls, ref client_certificates, connections_max, .. } = started.listen;
        // It applies to listeners without TLS only.
        let plaintext = if self.listen.tls == *tls { self.listen.plaintext } else { started.listen.plaintext };
        let stored_bytes_max = started.store.limits().stored_bytes_max;
        let limits = StoreLimits { stored_bytes_max, ..self.store.limits() };
        Self {
            listen: ListenSettings {
                address,
                tls: tls.clone(),
                client_certificates: client_certificates.clone(),
                plaintext,
                connections_max,
                ..self.listen
            },
            admin: AdminSettings { address: started.admin.address, ..self.admin },
            metrics: started.metrics,
            folder: started.folder.clone(),
            audit: started.audit.clone(),
            store: started.store.clone().with_limits(limits),
            ..self
        }
    }
}

pub type LoadResult = Result<LoadedConfig, ConfigError>;
/// Checks the files that a configuration names.
pub type FileLook<'a> = &'a dyn Fn(&Config) -> Findings;

/// Reads the file; lists all mistakes in it and files that it names. `env` looks `${VAR}` up, `look` checks the files.
pub fn load(path: &Path, env: Environment<'_>, look: FileLook<'_>) -> LoadResult {
    load_as(FilePurpose::Listeners, path, env, look)
}

/// As [`load`], for `taskgate wrap` with its one client: no listeners, a store in memory by default, one endpoint.
pub fn load_wrapped(path: &Path, env: Environment<'_>, look: FileLook<'_>) -> LoadResult {
    load_as(FilePurpose::Host, path, env, look)
}

fn load_as(purpose: FilePurpose, path: &Path, env: Environment<'_>, look: FileLook<'_>) -> LoadResult {
    let name = path.display().to_string();
    let bytes = read_bounded(path).map_err(|error| refused(&name, None, format!("cannot be read: {error}")))?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse_as(purpose, FileName { name: &name, folder: folder_of(path) }, text, env, look),
        // The size first: the cut may split a character.
        Err(_) if bytes.len() > FILE_BYTES_MAX => Err(too_large(&name)),
        Err(error) => Err(refused(&name, Some(line_of_byte(&bytes, error.valid_up_to())), "is not UTF-8 text")),
    }
}

/// Reads a configuration from its text. `name` is the file's name; its folder is the base of files of keys and variables.
pub fn parse(name: &str, text: &str, env: Environment<'_>) -> LoadResult {
    let file = FileName { name, folder: folder_of(Path::new(name)) };
    parse_as(FilePurpose::Listeners, file, text, env, &|_| Findings::default())
}

/// A file's name in messages, and its folder, which need not be UTF-8 text.
struct FileName<'a> {
    name: &'a str,
    folder: &'a Path,
}

fn folder_of(file: &Path) -> &Path {
    file.parent().unwrap_or_else(|| Path::new(""))
}

fn parse_as(
    purpose: FilePurpose,
    FileName { name, folder }: FileName<'_>,
    text: &str,
    env: Environment<'_>,
    look: FileLook<'_>,
) -> LoadResult {
    if text.len() > FILE_BYTES_MAX {
        return Err(too_large(name));
    }
    let (tree, broken) = DeTable::parse_recoverable(text);
    let from_files: OnceCell<BTreeMap<String, String>> = OnceCell::new();
    let env = &|name: &str| from_files.get().and_then(|values| values.get(name).cloned()).or_else(|| env(name));
    let mut source = ConfigSource::new(text, env, MistakeCollector::new(name));
    if !broken.is_empty() && text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '/']) {
        let message =
            format!("this is JSON, and a configuration is TOML; `taskgate import {name}` converts a host's JSON");
        source.report.unreadable(None, Some(1), message);
        return Err(source.report.into_error());
    }
    if !broken.is_empty() {
        for error in &broken {
            let line = error.span().map(|span| source.line_at(span.start));
            source.report.unreadable(None, line, broken_message(error, text));
        }
        return Err(source.report.into_error());
    }
    let mut root = source.root(tree.get_ref());
    let FileVariables { files: mut further_files, values } = named_files::read_variables(&mut root, folder);
    from_files.get_or_init(|| values);
    let mut raw = raw::read(root);
    let ConfigSource { mut report, unknown, lines, .. } = source;
    let known: Vec<String> = known_keys().into_keys().collect();
    for key in &unknown {
        report.mistake(&key.location, advice(key, &known));
        if let Some((_, near)) = near(key) {
            // Its absence is no second mistake.
            report.blame((key.location.key.trim_end_matches(&key.key).to_owned() + near).into());
        }
    }
    let mut unusable = BTreeMap::new();
    if purpose == FilePurpose::Host {
        wrapped::check(&lines, &mut report);
        unusable = wrapped::set_aside(&mut raw, &mut report);
        wrapped::complete(&mut raw, &mut report);
    }
    let mut keys = KeyFileReader { env, report, lines };
    further_files.extend(keys.read(&mut raw, folder));
    let KeyFileReader { mut report, lines, .. } = keys;
    let mut config = Config { further_files, ..resolve::resolve(&raw, &mut report) };
    for upstream in &mut config.upstreams {
        if let ServerSettings::Stdio(program) = &mut upstream.server {
            program.unusable = unusable.remove(&*upstream.name);
        }
    }
    report.seen(look(&config), &lines);
    Ok(LoadedConfig { warnings: report.into_result()?, config })
}

/// The TOML parser's message, with the name of a duplicate key.
fn broken_message(error: &toml::de::Error, text: &str) -> String {
    match (error.message(), error.span().and_then(|span| text.get(span))) {
        ("duplicate key", Some(key)) => format!("duplicate key `{key}`; write each key and each table once"),
        (message, _) => message.to_owned(),
    }
}

/// The head of each table that a file may have; `NAME` is an upstream's name.
const TABLE_HEADS: &str = "[[admin.tokens]]\n[[auth.api_keys]]\n[[auth.certificates]]\n[[auth.issuers]]\n[[auth.rules]]\n[[endpoints]]\n[upstreams.NAME]\n[[upstreams.NAME.tools]]";

/// Every key of a file and its content; `NAME` is an upstream's name.
pub fn known_keys() -> BTreeMap<String, KeyContent> {
    let (tree, _) = DeTable::parse_recoverable(TABLE_HEADS);
    let mut source = ConfigSource::new(TABLE_HEADS, &|_| None, MistakeCollector::new(""));
    let mut root = source.root(tree.get_ref());
    named_files::read_variables(&mut root, Path::new(""));
    raw::read(root);
    source.known.into_iter().map(|(key, takes)| (key.replace("[0]", ""), takes)).collect()
}

/// The keys of each table in the order of the reference; `.` has those outside of tables, and `NAME` is an upstream's name.
pub fn key_tables() -> Vec<(&'static str, Vec<KeyRow>)> {
    let outside = (".", <named_files::RawVariables as keys::KeyTable>::ROWS.to_vec());
    std::iter::once(outside).chain(raw::tables()).collect()
}

/// The advice for an unknown key: its right table, a similar key, or its table's keys.
fn advice(unknown: &UnknownKey, known: &[String]) -> String {
    if let Some(meant) = meant(unknown) {
        return format!("unknown key; {meant}");
    }
    let suffix = format!(".{}", unknown.key);
    let header = |table: &str| {
        let several = format!("[[{table}]]");
        if TABLE_HEADS.contains(&several) { several } else { format!("[{table}]") }
    };
    let tables: Vec<String> = known.iter().filter_map(|known| known.strip_suffix(&suffix)).map(header).collect();
    // One letter is a slip, even if another table has the key.
    if let Some((1, known)) = near(unknown) {
        return format!("unknown key; did you mean `{known}`?");
    }
    if !tables.is_empty() {
        return format!("unknown key here; it belongs to {}", tables.join(" or "));
    }
    match near(unknown) {
        Some((_, known)) => format!("unknown key; did you mean `{known}`?"),
        None => format!("unknown key; this table has {}", unknown.siblings.join(", ")),
    }
}

/// The most similar key of the table, and how many letters differ.
fn near(unknown: &UnknownKey) -> Option<(usize, &'static str)> {
    let near = unknown.siblings.iter().map(|known| (strsim::osa_distance(known, &unknown.key), *known)).min();
    near.filter(|(distance, known)| *distance <= 2 && *distance < known.len())
}

/// The equivalents of other programs' keys. A table is recognised by a key that only it has.
fn meant(unknown: &UnknownKey) -> Option<&'static str> {
    const OF_UPSTREAM: &str = "in_flight_max";
    const MEANT: [(&str, &[&str], &str); 16] = [
        ("hide", &["name", "tool", "pattern"], "the tool's name is `match`"),
        (
            OF_UPSTREAM,
            &["timeout", "timeout_ms", "request_timeout", "request_timeout_ms"],
            "how long a call may run is `deadline`, and how long connecting may take `connect_max`",
        ),
        (
            OF_UPSTREAM,
            &["headers", "header", "http_headers"],
            "a header for the server is `auth.header`, and clients' headers to forward are `forward_headers`",
        ),
        (
            OF_UPSTREAM,
            &["token", "api_key", "apikey", "bearer", "authorization", "bearer_token"],
            "the credential for the server is in [upstreams.NAME.auth]: `authorization = \"Bearer ${TOKEN}\"`",
        ),
        (
            OF_UPSTREAM,
            &["retries", "retry", "max_retries"],
            "a call that may have run is sent again only by `after_crash` in [upstreams.NAME.tasks]",
        ),
        (OF_UPSTREAM, &["environment", "env_vars", "envs"], "variables of a program are `env`"),
        (OF_UPSTREAM, &["type", "kind"], "the transport is `transport`, mostly not needed"),
        (OF_UPSTREAM, &["name", "id"], "the name is in the table's header: [upstreams.NAME]"),
        (OF_UPSTREAM, &["disabled", "enabled"], "to switch an upstream off, leave its table out"),
        (OF_UPSTREAM, &["folder", "dir", "workdir", "working_dir"], "the program's folder is `cwd`"),
        (
            OF_UPSTREAM,
            &["concurrency", "max_concurrency", "max_connections"],
            "the bound on concurrent calls is `in_flight_max`",
        ),
        (
            "keep_result_min",
            &["timeout"],
            "how long a call may run is `deadline`, in [upstreams.NAME] or [[upstreams.NAME.tools]]",
        ),
        ("value_file", &["token", "bearer", "key", "api_key"], "write `authorization = \"Bearer ${TOKEN}\"`"),
        ("allowed_hosts", &["port", "host", "bind", "listen"], "write `address = \"127.0.0.1:8080\"`"),
        ("certificate", &["cert", "cert_file", "certfile", "crt"], "the certificate is `certificate`"),
        ("certificate", &["key_file", "keyfile", "private_key"], "the private key is `key`"),
    ];
    let key = unknown.key.to_ascii_lowercase();
    let fits = |(table, keys, _): &&(&str, &[&str], &str)| {
        unknown.siblings.iter().any(|known| known == table) && keys.contains(&key.as_str())
    };
    MEANT.iter().find(fits).map(|(.., meant)| *meant)
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    // `<(…)` of a shell is a pipe.
    let file = system::open_without_waiting(path)?;
    system::wait_for_content(&file)?;
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn line_of_byte(bytes: &[u8], at: usize) -> usize {
    1 + bytes.iter().take(at).filter(|byte| **byte == b'\n').count()
}

fn too_large(name: &str) -> ConfigError {
    refused(name, None, "is larger than 1MiB")
}

fn refused(name: &str, line: Option<usize>, message: impl Into<String>) -> ConfigError {
    ConfigError { mistakes: vec![Mistake { file: Arc::from(name), line, key: None, message: message.into() }] }
}

impl Config {
    /// Takes over another configuration's paths of the `listen.tls`, `store` and `replica` files, if both name one.
    pub fn take_moved_files(&mut self, newer: &Self) {
        follow(&mut self.listen.tls, newer.listen.tls.as_ref());
        if let (StoreSettings::Postgres(own), StoreSettings::Postgres(newer)) = (&mut self.store, &newer.store) {
            own.take_moved_files(newer);
        }
    }
}

impl DatabaseSettings {
    fn take_moved_files(&mut self, newer: &Self) {
        if let (DatabaseUrl::File(own), DatabaseUrl::File(newer)) = (&mut self.access.url, &newer.access.url) {
            PathBuf::clone_from(own, newer);
        }
        follow(&mut self.access.password_file, newer.access.password_file.as_ref());
        follow(&mut self.access.ca, newer.access.ca.as_ref());
        follow(&mut self.replica.tls, newer.replica.tls.as_ref());
    }
}

fn follow<T: Clone>(own: &mut Option<T>, newer: Option<&T>) {
    if let (Some(own), Some(newer)) = (own, newer) {
        own.clone_from(newer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_pipe_without_a_writer_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.toml");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let opened = system::open_file(&pipe).map_err(|error| error.to_string());
            let loaded = load(&pipe, &|_| None, &|_| Findings::default());
            done.send((opened.unwrap_err(), loaded.unwrap_err().to_string())).unwrap();
        });
        let (opened, loaded) = ended.recv_timeout(std::time::Duration::from_secs(20)).expect("neither waits");
        assert_eq!(opened, "it is not a file");
        assert!(loaded.contains("no upstream is named"), "{loaded}");
    }

    fn config(folder: &str, schema: &str) -> Config {
        let text = format!(
            "[listen]\ntls = {{ certificate = \"{folder}/l.pem\", key = \"{folder}/l.key\" }}\n\
             [store]\nkind = \"postgres\"\ndurability = \"single\"\nschema = \"{schema}\"\nurl_file = \"{folder}/db.url\"\n\
             password_file = \"{folder}/db.password\"\nca = \"{folder}/db.pem\"\n\
             [replica]\naddress = \"10.0.0.5:9443\"\ncertificate = \"{folder}/r.pem\"\nkey = \"{folder}/r.key\"\n\
             ca = \"{folder}/ca.pem\"\n[upstreams.up]\nurl = \"http://127.0.0.1:9000/mcp\"\n"
        );
        parse("test", &text, &|_| None).unwrap().config
    }

    #[test]
    fn files_are_followed_and_nothing_else() {
        let mut followed = config("/old", "s");
        followed.take_moved_files(&config("/new", "t"));
        assert_eq!(format!("{followed:?}"), format!("{:?}", config("/new", "s")));
    }

    /// Plaintext or TLS does not depend on the location of a file.
    #[test]
    fn a_file_that_was_not_named_at_the_start_changes_nothing() {
        let in_memory = "[upstreams.up]\nurl = \"http://127.0.0.1:9000/mcp\"\n";
        let in_memory = || parse("test", in_memory, &|_| None).unwrap().config;
        for (mut started, newer) in [(in_memory(), config("/new", "s")), (config("/old", "s"), in_memory())] {
            let before = format!("{started:?}");
            started.take_moved_files(&newer);
            assert_eq!(format!("{started:?}"), before);
        }
    }
}
