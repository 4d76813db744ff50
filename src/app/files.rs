//! Checks every file that a configuration names before a start; reports all mistakes.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use super::api_key_files::{self, ApiKeyFileError};
use super::sealing_key::{self, KeyFileError};
use super::task_store;
use crate::audit::AuditSettings;
use crate::config::{self, Config, ConfigError, Findings, LoadedConfig, StoreSettings, UpstreamConfig};
use crate::server::api_keys::{ApiKeyRing, ApiKeySettings, ApiKeys, AuthSettings, KeyPlace};
use crate::server::client_certificates::CertificateRing;
use crate::server::replicas::ReplicaTls;
use crate::server::tokens::settings::TokenSettings;
use crate::server::tokens::{KeySourceError, TokenVerifier, check_file};
use crate::server::{AdminSettings, Authenticator, CertificateHolders, LocalUser, TokenHolders};
use crate::store::OpenError;
use crate::task::{Clock as _, Principal, SystemClock, Timestamp};
use crate::tls::{ClientCertificateFiles, IdentityFiles, TlsFileError, read_revocation_lists, read_roots};
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
    config::load(file, &|name| env::var(name).ok(), &look)
}

/// As [`load`], for a reload. Ignores faults in the files of a shared database: a reload does not apply them.
pub(super) fn load_again(file: &Path) -> Result<LoadedConfig, ConfigError> {
    config::load(file, &|name| env::var(name).ok(), &look_again)
}

/// As [`load`], for `taskgate wrap`.
pub fn load_wrapped(file: &Path) -> Result<LoadedConfig, ConfigError> {
    config::load_wrapped(file, &|name| env::var(name).ok(), &look)
}

fn look(config: &Config) -> Findings {
    let mistakes = [mistakes(config), shared_mistakes(config)].concat();
    Findings { mistakes, warnings: warnings(config) }
}

fn look_again(config: &Config) -> Findings {
    Findings { mistakes: mistakes(config), warnings: [shared_mistakes(config), warnings(config)].concat() }
}

fn mistakes(config: &Config) -> Vec<(KeyPlace, String)> {
    let wrong = check(config, SystemClock.now()).err().map(|mistakes| mistakes.0).unwrap_or_default();
    wrong.into_iter().map(|(key, error)| (key, error.to_string())).collect()
}

fn warnings(config: &Config) -> Vec<(KeyPlace, String)> {
    program_warnings(config).map(|(key, warning)| (key.into(), warning)).collect()
}

/// Reads every file that exists, and creates none. Fails with every file that cannot be used.
pub fn check(config: &Config, now: Timestamp) -> Result<(), FileMistakes> {
    let mut wrong = Vec::new();
    let mut note =
        |key: String, outcome: Result<(), FileError>| wrong.extend(outcome.err().map(|error| (key.into(), error)));
    if let Some(identity) = &config.listen.tls
        && let Err(error) = identity.read(now)
    {
        note(at_fault("listen.tls", identity, &error), Err(error.into()));
    }
    if let Some(ClientCertificateFiles { ca, crl, .. }) = &config.listen.client_certificates {
        note("listen.tls.client_ca".to_owned(), read_roots(ca).map(drop).map_err(FileError::from));
        let revoked = crl.as_deref().map(read_revocation_lists).transpose();
        note("listen.tls.client_crl".to_owned(), revoked.map(drop).map_err(FileError::from));
    }
    note("store.path".to_owned(), sealing_key::read(&config.folder).map(drop).map_err(FileError::from));
    note("store.path".to_owned(), task_store::check(config).map_err(FileError::from));
    for (key, file) in config.audit.iter().flat_map(AuditSettings::files) {
        note(key.to_owned(), check_place(file));
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
        let (tls, table) = (&http.tls, format!("upstreams.{name}.tls"));
        if let Some(ca) = &tls.ca {
            note(format!("{table}.ca"), read_roots(ca).map(drop).map_err(FileError::from));
        }
        if let Some(identity) = &tls.identity
            && let Err(error) = identity.read(now)
        {
            note(at_fault(&table, identity, &error), Err(error.into()));
        }
    }
    wrong.extend(api_key_files::read(&config.admin.tokens).1.into_iter().map(|(place, error)| (place, error.into())));
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
    if wrong.is_empty() { Ok(()) } else { Err(FileMistakes(wrong)) }
}

/// Whether a file that may be missing can be written in its folder.
fn check_place(file: &Path) -> Result<(), FileError> {
    if file.is_dir() {
        return Err(FileError::NotAFile { file: file.to_owned() });
    }
    match file.parent().filter(|folder| *folder != Path::new("") && !folder.is_dir()) {
        Some(folder) => Err(FileError::Folder { folder: folder.to_owned() }),
        None => Ok(()),
    }
}

/// The faults of the files for a shared database. A gateway that has been serving waits for their repair, so only a
/// reading of the configuration refuses them.
fn shared_mistakes(config: &Config) -> Vec<(KeyPlace, String)> {
    let StoreSettings::Postgres(database) = &config.store else { return Vec::new() };
    let now = SystemClock.now();
    let tls = database.replica.tls.as_ref();
    let of_access = database.access.mistakes().map(|(key, mistake)| (format!("store.{key}"), mistake.to_string()));
    let of_ca = tls.and_then(|tls| read_roots(&tls.ca).err());
    let of_ca = of_ca.map(|error| ("replica.ca".to_owned(), error.to_string()));
    let of_identity = tls.and_then(|ReplicaTls { identity, .. }| {
        let error = identity.read(now).err()?;
        Some((at_fault("replica", identity, &error), error.to_string()))
    });
    of_access.chain(of_ca).chain(of_identity).map(|(key, error)| (key.into(), error)).collect()
}

/// The configuration key of the identity's faulty file.
fn at_fault(table: &str, identity: &IdentityFiles, error: &TlsFileError) -> String {
    let key = if *error.path() == identity.key { "key" } else { "certificate" };
    format!("{table}.{key}")
}

/// The clients' keys; none where no client needs one.
pub fn api_keys(auth: &AuthSettings) -> Result<ApiKeys, FileMistakes> {
    ring_of(auth.keys())
}

fn ring_of(settings: &[ApiKeySettings]) -> Result<ApiKeys, FileMistakes> {
    let (keys, wrong) = api_key_files::read(settings);
    match wrong.is_empty() {
        true => Ok(keys),
        false => Err(FileMistakes(wrong.into_iter().map(|(place, error)| (place, error.into())).collect())),
    }
}

/// The operators' authentication: by token, or everyone on loopback without tokens.
pub fn operators(admin: &AdminSettings) -> Result<Authenticator, FileMistakes> {
    Ok(match admin.tokens.as_slice() {
        [] => Authenticator::Everyone(Principal::local()),
        tokens => Authenticator::KeyHolders(ApiKeyRing::new(ring_of(tokens)?)),
    })
}

/// The clients' authentication, with its keys.
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
}

/// The missing programs, each with its upstream's name.
pub(super) fn missing_programs(config: &Config) -> impl Iterator<Item = (&str, ProgramError)> {
    let program = |upstream: &UpstreamConfig| upstream.server.stdio()?.find_program().err();
    config.upstreams.iter().filter_map(move |upstream| Some((&*upstream.name, program(upstream)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_serves_reloads_though_its_databases_files_are_of_no_use() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taskgate.toml");
        let text = "[store]\nkind = \"postgres\"\nurl = \"postgres://t@127.0.0.1/t\"\ndurability = \"single\"\n\
                    path = \"data\"\npassword_file = \"none\"\n[upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n";
        std::fs::write(&file, text).unwrap();
        let refused = load(&file).unwrap_err().to_string();
        assert!(refused.contains("store.password_file"), "{refused}");
        let warnings: Vec<_> = load_again(&file).unwrap().warnings.iter().map(ToString::to_string).collect();
        assert!(warnings.iter().any(|warning| warning.contains("store.password_file")), "{warnings:?}");
    }
}
