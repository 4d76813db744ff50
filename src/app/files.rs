//! Checks every file that a configuration names before a start; reports all mistakes.

use std::path::{Path, PathBuf};
use std::{env, fmt};

use super::descriptors::DescriptorShortage;
use super::sealing_key::{self, KeyFileError};
use super::task_store;
use crate::audit::AuditAnchor;
use crate::config::{self, Config, ConfigError, Findings, LoadedConfig, StoreSettings, UpstreamConfig};
use crate::secret_file::{self, SecretFileError};
use crate::server::api_keys::{
    ApiKey, ApiKeyError, ApiKeyRing, ApiKeySettings, ApiKeys, AuthSettings, KEY_LEN_MAX, KeyPlace, KeySource,
};
use crate::server::client_certificates::CertificateRing;
use crate::server::replicas::ReplicaTls;
use crate::server::tokens::settings::TokenSettings;
use crate::server::tokens::{KeySourceError, TokenVerifier, check_file};
use crate::server::{AdminSettings, Authenticator, CertificateHolders, LocalUser, TokenHolders};
use crate::store::OpenError;
use crate::system;
use crate::task::{Clock as _, Principal, SystemClock, Timestamp};
use crate::tls::{
    ClientCertificateFiles, IdentityFiles, TlsFileError, read_revocation_lists, read_roots, validity_warning,
};
use crate::upstream::http::ProxyError;
use crate::upstream::transport::credential::CredentialError;
use crate::upstream::transport::stdio::{self, ProgramError, VariableFileError};

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    ApiKey(#[from] ApiKeyFileError),
    #[error("{}: {source}", file.display())]
    Variable { file: PathBuf, source: VariableFileError },
    #[error("{}: is not a folder", folder.display())]
    Folder { folder: PathBuf },
    #[error("{}: is a folder; name a file", file.display())]
    NotAFile { file: PathBuf },
    #[error("{}: is not the socket of a syslog daemon", socket.display())]
    Syslog { socket: PathBuf },
    #[error("{}: {source}", file.display())]
    KeySet { file: PathBuf, source: KeySourceError },
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

/// All unusable files, each with its configuration key. Never empty. Printed one per line.
#[derive(Debug)]
pub struct FileMistakes(Vec<(KeyPlace, FileError)>);

impl fmt::Display for FileMistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, error)) in self.0.iter().enumerate() {
            let line_end = if index > 0 { "\n" } else { "" };
            write!(f, "{line_end}{key}: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileMistakes {}

impl From<KeyFileError> for FileMistakes {
    fn from(error: KeyFileError) -> Self {
        Self(vec![("store.path".to_owned().into(), error.into())])
    }
}

/// Reads a configuration and checks every file, folder and program that it names. Creates none, and logs nothing.
pub fn load(file: &Path) -> Result<LoadedConfig, ConfigError> {
    load_for(file, FileUse::Start)
}

fn load_for(file: &Path, purpose: FileUse) -> Result<LoadedConfig, ConfigError> {
    config::load(file, &|name| env::var(name).ok(), &|config| look(config, purpose))
}

/// As [`load`], for `taskgate wrap`.
pub fn load_wrapped(file: &Path) -> Result<LoadedConfig, ConfigError> {
    config::load_wrapped(file, &|name| env::var(name).ok(), &|config| look(config, FileUse::Start))
}

/// The purpose of reading a configuration's files. A reload only warns of faults that do not affect the running gateway:
/// it keeps a certificate that it cannot read again (B170), and does not apply the files of a shared database.
#[derive(Clone, Copy, Debug)]
pub enum FileUse {
    Start,
    Reload,
}

fn look(config: &Config, purpose: FileUse) -> Findings {
    let (fatal, warnings) = (texts(mistakes(config)), warnings(config));
    let outlasted = [texts(tls_mistakes(config)), shared_mistakes(config)].concat();
    match purpose {
        FileUse::Start => Findings { mistakes: [fatal, outlasted].concat(), warnings },
        FileUse::Reload => Findings { mistakes: fatal, warnings: [outlasted, warnings].concat() },
    }
}

fn texts(wrong: Vec<(KeyPlace, FileError)>) -> Vec<(KeyPlace, String)> {
    wrong.into_iter().map(|(key, error)| (key, error.to_string())).collect()
}

fn warnings(config: &Config) -> Vec<(KeyPlace, String)> {
    let of_programs = program_warnings(config).map(|(key, warning)| (key.into(), warning));
    of_programs.chain(certificate_warnings(config, SystemClock.now())).collect()
}

/// Reads every file that exists, and creates none. Fails with every file that cannot be used.
pub fn check(config: &Config, purpose: FileUse) -> Result<(), FileMistakes> {
    let outlasted = if let FileUse::Start = purpose { tls_mistakes(config) } else { Vec::new() };
    refused(mistakes(config).into_iter().chain(outlasted).collect())
}

fn refused(wrong: Vec<(KeyPlace, FileError)>) -> Result<(), FileMistakes> {
    if wrong.is_empty() { Ok(()) } else { Err(FileMistakes(wrong)) }
}

fn mistakes(config: &Config) -> Vec<(KeyPlace, FileError)> {
    let mut wrong = Vec::new();
    let mut note =
        |key: String, outcome: Result<(), FileError>| wrong.extend(outcome.err().map(|error| (key.into(), error)));
    note("store.path".to_owned(), sealing_key::read(&config.folder).map(drop).map_err(FileError::from));
    note("store.path".to_owned(), task_store::check(config).map_err(FileError::from));
    if let Some(audit) = &config.audit {
        note("audit.path".to_owned(), check_place(&audit.path));
        note("audit.anchor".to_owned(), audit.anchor.as_ref().map_or(Ok(()), check_anchor));
    }
    for upstream in &config.upstreams {
        let name = &upstream.name;
        if let Some(folder) = upstream.server.stdio().and_then(|stdio| stdio.folder.as_ref()) {
            let found = if folder.is_dir() { Ok(()) } else { Err(FileError::Folder { folder: folder.clone() }) };
            note(format!("upstreams.{name}.cwd"), found);
        }
        for (variable, file) in upstream.server.stdio().iter().flat_map(|stdio| &stdio.env_files) {
            let read = stdio::read_secret(file).map(drop);
            let read = read.map_err(|source| FileError::Variable { file: file.clone(), source });
            note(format!("upstreams.{name}.env_files.{variable}"), read);
        }
        let Some(http) = upstream.server.http() else { continue };
        if let Some(credential) = &http.credential {
            note(format!("upstreams.{name}.auth.value_file"), credential.read().map(drop).map_err(FileError::from));
        }
        for (table, client) in http.issued.iter().flat_map(|issued| issued.clients()) {
            let read = client.read().map(drop).map_err(FileError::from);
            note(format!("upstreams.{name}.credential.{table}.client_secret_file"), read);
        }
        note(format!("upstreams.{name}.proxy_credentials_file"), http.proxy.check().map_err(FileError::from));
    }
    wrong.extend(read_keys(&config.admin.tokens).1.into_iter().map(|(place, error)| (place, error.into())));
    let issuers = config.auth.tokens().into_iter().flat_map(|tokens| &tokens.issuers);
    for (index, issuer) in issuers.enumerate() {
        if let Some(file) = issuer.keys.file()
            && let Err(source) = check_file(file)
        {
            let error = FileError::KeySet { file: file.clone(), source };
            wrong.push((format!("auth.issuers[{index}].jwks_file").into(), error));
        }
        if let Some(asked) = &issuer.introspection
            && let Err(error) = asked.client.read()
        {
            wrong.push((format!("auth.issuers[{index}].introspection.client_secret_file").into(), error.into()));
        }
    }
    wrong.extend(api_keys(&config.auth).err().map(|mistakes| mistakes.0).into_iter().flatten());
    wrong
}

fn tls_mistakes(config: &Config) -> Vec<(KeyPlace, FileError)> {
    let mut wrong = Vec::new();
    if let Some(identity) = &config.listen.tls {
        wrong.extend(identity_mistake("listen.tls", identity));
    }
    if let Some(ClientCertificateFiles { ca, crl, .. }) = &config.listen.client_certificates {
        let revoked = crl.as_deref().map(read_revocation_lists).transpose();
        let faults = [("client_ca", read_roots(ca).err()), ("client_crl", revoked.err())];
        wrong.extend(faults.into_iter().filter_map(|(key, fault)| Some((format!("listen.tls.{key}"), fault?))));
    }
    let wrong = wrong.into_iter().map(|(key, fault)| located(key, fault));
    wrong.chain(config.upstreams.iter().flat_map(tls_mistakes_of)).collect()
}

pub(super) fn tls_mistakes_of(upstream: &UpstreamConfig) -> Vec<(KeyPlace, FileError)> {
    let Some(http) = upstream.server.http() else { return Vec::new() };
    let table = format!("upstreams.{}.tls", upstream.name);
    let of_ca = http.tls.ca.as_ref().and_then(|ca| Some((format!("{table}.ca"), read_roots(ca).err()?)));
    let of_identity = http.tls.identity.as_ref().and_then(|identity| identity_mistake(&table, identity));
    of_ca.into_iter().chain(of_identity).map(|(key, fault)| located(key, fault)).collect()
}

fn located(key: String, fault: TlsFileError) -> (KeyPlace, FileError) {
    (key.into(), fault.into())
}

fn identity_mistake(table: &str, identity: &IdentityFiles) -> Option<(String, TlsFileError)> {
    let fault = identity.read().err()?;
    let key = if *fault.path() == identity.key { "key" } else { "certificate" };
    Some((format!("{table}.{key}"), fault))
}

fn certificate_warnings(config: &Config, now: Timestamp) -> impl Iterator<Item = (KeyPlace, String)> {
    let own = config.listen.tls.iter().map(|identity| ("listen.tls".to_owned(), identity));
    let replica = replica_tls(config).map(|tls| ("replica".to_owned(), &tls.identity));
    let upstreams = config.upstreams.iter().filter_map(|upstream| {
        Some((format!("upstreams.{}.tls", upstream.name), upstream.server.http()?.tls.identity.as_ref()?))
    });
    own.chain(replica).chain(upstreams).filter_map(move |(table, identity)| {
        let read = identity.read().ok()?;
        let warning = validity_warning(&read, now)?;
        Some((format!("{table}.certificate").into(), format!("{}: {warning}", identity.certificate.display())))
    })
}

fn replica_tls(config: &Config) -> Option<&ReplicaTls> {
    if let StoreSettings::Postgres(database) = &config.store { database.replica.tls.as_ref() } else { None }
}

/// Whether a file that may be missing can be written in its folder.
fn check_place(file: &Path) -> Result<(), FileError> {
    if file.is_dir() {
        return Err(FileError::NotAFile { file: file.to_owned() });
    }
    let missing = file.parent().filter(|folder| *folder != Path::new("") && !folder.is_dir());
    missing.map_or(Ok(()), |folder| Err(FileError::Folder { folder: folder.to_owned() }))
}

fn check_anchor(anchor: &AuditAnchor) -> Result<(), FileError> {
    match anchor {
        AuditAnchor::File(file) => check_place(file),
        AuditAnchor::Syslog(socket) if system::is_socket(socket) => Ok(()),
        AuditAnchor::Syslog(socket) => Err(FileError::Syslog { socket: socket.clone() }),
    }
}

/// Faults of files for a shared database. Only reading the configuration refuses them; a serving gateway waits.
fn shared_mistakes(config: &Config) -> Vec<(KeyPlace, String)> {
    let StoreSettings::Postgres(database) = &config.store else { return Vec::new() };
    let tls = replica_tls(config);
    let of_access = database.access.mistakes().map(|(key, mistake)| (format!("store.{key}"), mistake.to_string()));
    let of_ca = tls.and_then(|tls| read_roots(&tls.ca).err());
    let of_ca = of_ca.map(|error| ("replica.ca".to_owned(), error.to_string()));
    let of_identity = tls.and_then(|tls| identity_mistake("replica", &tls.identity));
    let of_identity = of_identity.map(|(key, fault)| (key, fault.to_string()));
    of_access.chain(of_ca).chain(of_identity).map(|(key, error)| (key.into(), error)).collect()
}

/// The clients' keys; none where no client needs one.
pub fn api_keys(auth: &AuthSettings) -> Result<ApiKeys, FileMistakes> {
    ring_of(auth.keys())
}

fn ring_of(settings: &[ApiKeySettings]) -> Result<ApiKeys, FileMistakes> {
    let (keys, wrong) = read_keys(settings);
    refused(wrong.into_iter().map(|(place, error)| (place, error.into())).collect())?;
    Ok(keys)
}

/// The operators' authentication: by token, or everyone on loopback without tokens.
pub fn operators(admin: &AdminSettings) -> Result<Authenticator, FileMistakes> {
    Ok(match admin.tokens.as_slice() {
        [] => Authenticator::Everyone(Principal::local()),
        tokens => Authenticator::KeyHolders(ApiKeyRing::new(ring_of(tokens)?)),
    })
}

pub fn callers(config: &Config) -> Result<Authenticator, FileMistakes> {
    callers_by(&config.auth, config)
}

fn callers_by(auth: &AuthSettings, config: &Config) -> Result<Authenticator, FileMistakes> {
    Ok(match auth {
        AuthSettings::Everyone(principal) if *principal == Principal::local() => {
            Authenticator::OnePerson(LocalUser::new(&config.listen))
        }
        AuthSettings::Everyone(principal) => Authenticator::Everyone(principal.clone()),
        keys @ AuthSettings::ApiKeys(_) => Authenticator::KeyHolders(ApiKeyRing::new(api_keys(keys)?)),
        with_tokens @ AuthSettings::Tokens(tokens, _) => Authenticator::TokenHolders(TokenHolders {
            keys: ApiKeyRing::new(api_keys(with_tokens)?),
            tokens: TokenVerifier::new(TokenSettings::clone(tokens)),
        }),
        AuthSettings::Certificates(certificates, others) => Authenticator::CertificateHolders(CertificateHolders {
            certificates: CertificateRing::new(certificates.clone()),
            others: others.as_ref().map(|others| callers_by(others, config)).transpose()?.map(Box::new),
        }),
    })
}

/// Missing programs with their configuration keys: only warnings, since a program may be installed later.
fn program_warnings(config: &Config) -> impl Iterator<Item = (String, String)> {
    let said = |error: &ProgramError| matches!(error, ProgramError::Unusable { .. });
    missing_programs(config)
        .filter(move |(_, error)| !said(error))
        .map(|(name, error)| (format!("upstreams.{name}.command"), error.to_string()))
        .chain(config.upstreams.iter().filter_map(|upstream| {
            let error = upstream.server.http()?.issued.as_ref()?.missing_program()?;
            Some((format!("upstreams.{}.credential.command", upstream.name), error.to_string()))
        }))
}

pub(super) fn missing_programs(config: &Config) -> impl Iterator<Item = (&str, ProgramError)> {
    let program = |upstream: &UpstreamConfig| upstream.server.stdio()?.find_program().err();
    config.upstreams.iter().filter_map(move |upstream| Some((&*upstream.name, program(upstream)?)))
}

/// Maximum size of a key file: the key, and a line end or two.
const FILE_BYTES_MAX: usize = KEY_LEN_MAX + 16;

/// Why a key cannot be used. Never contains the key.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyFileError {
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: SecretFileError },
    #[error("{}: {source}", .path.display())]
    Content { path: PathBuf, source: ApiKeyError },
    #[error("another key has the ID {id}; give each key a different one")]
    Twice { id: String },
}

/// Reads all keys of the settings. Unusable keys are returned under their configuration key.
fn read_keys(settings: &[ApiKeySettings]) -> (ApiKeys, Vec<(KeyPlace, ApiKeyFileError)>) {
    let (mut keys, mut wrong) = (ApiKeys::default(), Vec::new());
    for one in settings {
        let read = match &one.source {
            KeySource::Known(key) => Ok(key.clone()),
            KeySource::File(path) => read_key(path),
        };
        let added = read.and_then(|key| {
            keys.add(key, &one.caller).map_err(|twice| ApiKeyFileError::Twice { id: twice.id().to_owned() })
        });
        wrong.extend(added.err().map(|error| (one.place.clone(), error)));
    }
    (keys, wrong)
}

/// Fails if others may read the file (B168), or its key is too weak (B169).
fn read_key(path: &Path) -> Result<ApiKey, ApiKeyFileError> {
    let held = secret_file::read(path, "key", FILE_BYTES_MAX);
    let held = held.map_err(|source| ApiKeyFileError::File { path: path.to_owned(), source })?;
    // Bytes that are no text cannot be a key.
    let text = String::from_utf8_lossy(&held);
    ApiKey::read(text.trim_end()).map_err(|source| ApiKeyFileError::Content { path: path.to_owned(), source })
}

pub(super) struct PreparedConfig {
    pub(super) config: Config,
    pub(super) warnings: Vec<String>,
    pub(super) shortage: Option<DescriptorShortage>,
}

impl PreparedConfig {
    pub(super) fn new(loaded: LoadedConfig) -> Self {
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
        Self { config: loaded.config, warnings, shortage: None }
    }
}

/// The warnings logged last, which are not repeated: any change in the folder, even of the log, reads the files again.
#[derive(Debug, Default)]
pub(super) struct ReportedWarnings {
    texts: Vec<String>,
    shortage: Option<DescriptorShortage>,
}

impl ReportedWarnings {
    pub(super) fn log(&mut self, read: &PreparedConfig) {
        if self.texts != read.warnings {
            for warning in &read.warnings {
                tracing::warn!("{warning}");
            }
            self.texts.clone_from(&read.warnings);
        }
        if self.shortage != read.shortage {
            self.shortage = read.shortage;
            if let Some(shortage) = self.shortage {
                shortage.log();
            }
        }
    }
}

/// Reads the file and checks the files that it names. Logs nothing.
pub(super) fn configured(file: &Path, purpose: FileUse) -> Result<PreparedConfig, ConfigError> {
    load_for(file, purpose).map(PreparedConfig::new)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::task::{Caller, Principal};

    #[test]
    fn a_gateway_that_serves_reloads_though_its_databases_files_are_of_no_use() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskgate.toml");
        let text = "[store]\nkind = \"postgres\"\nurl = \"postgres://t@127.0.0.1/t\"\ndurability = \"single\"\n\
                    path = \"data\"\npassword_file = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n";
        fs::write(&file, text).unwrap();
        let refused = load(&file).unwrap_err().to_string();
        assert!(refused.contains("store.password_file"), "{refused}");
        let warnings = configured(&file, FileUse::Reload).unwrap().warnings;
        assert!(warnings.iter().any(|warning| warning.contains("store.password_file")), "{warnings:?}");
    }

    #[test]
    fn b168_b169_a_key_file_is_its_owners_alone_and_holds_one_strong_key() {
        let folder = tempfile::tempdir().unwrap();
        let strong = "tg_a1_0123456789abcdef0123456789abcdef";
        for (content, mode, expected) in [
            (format!("{strong}\n"), 0o600, "fine"),
            (strong.to_owned(), 0o400, "fine"),
            (strong.to_owned(), 0o640, "others than its owner may use it (mode 0640)"),
            (strong.to_owned(), 0o604, "others than its owner may use it (mode 0604)"),
            ("tg_a1_short\n".to_owned(), 0o600, "is a key with a secret of less than 128 bits"),
            (format!("{strong}\n{strong}\n"), 0o600, "is not a key"),
            (String::new(), 0o600, "is not a key"),
        ] {
            let path = folder.path().join("key");
            let _ = fs::remove_file(&path);
            fs::write(&path, &content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = read_key(&path).map_or_else(|error| error.to_string(), |_| "fine".to_owned());
            assert!(found.contains(expected), "{content:?}: {found}");
            assert!(!found.contains("0123456789abcdef"), "{found}");
        }
    }

    #[test]
    fn b168_all_unusable_keys_are_named_at_once() {
        let key = ApiKey::read("tg_a1_0123456789abcdef0123456789abcdef").unwrap();
        let of = |source, place: &str| ApiKeySettings {
            caller: Caller::of(Principal::new("key:ada")),
            source,
            place: place.to_owned().into(),
        };
        let missing = KeySource::File(PathBuf::from("/nowhere/key"));
        let (keys, wrong) =
            read_keys(&[of(KeySource::Known(key.clone()), "a"), of(missing, "b"), of(KeySource::Known(key), "c")]);
        let places: Vec<_> = wrong.iter().map(|(place, _)| place.key.as_str()).collect();
        assert_eq!((keys.len(), places), (1, vec!["b", "c"]));
    }
}
