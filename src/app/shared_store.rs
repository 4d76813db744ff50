//! Opens the shared database, waits while it is unavailable, and reports its health.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::cause::CauseChain;
use crate::config::{Config, DatabaseSettings, is_replica_name};
use crate::face::sealed::KeyPrint;
use crate::replica::{Incarnation, OwnStanding, StoreGeneration};
use crate::server::admin::{Readiness, ReasonWeight};
use crate::server::replicas::ReplicaTls;
use crate::store::TaskStore as _;
use crate::store::postgres::{
    PostgresHealth, PostgresOpenError, PostgresSettings, PostgresStore, PriorIncarnation, ReplicaDescription, Retry,
    StoredReplica,
};
use crate::system::{self, OwnersAlone as _};
use crate::tls::TlsFileError;

/// The interval of attempts after a transient failure, such as an unavailable database.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// A first attempt that takes longer counts as failed: the database's host does not respond.
const FIRST_TRY_MAX: Duration = Duration::from_secs(3);

const STORE_UNAVAILABLE: &str = "store unavailable";
const STORE_REFUSES: &str = "store refuses connections";
const STORE_READ_ONLY: &str = "store read-only";
const STORE_BEHIND: &str = "store behind";
const STORE_NO_STANDBY: &str = "store without standby";
const STORE_FULL: &str = "store full";
const REPLACED: &str = "replaced";
const STORE_LOST: &str = "store lost";
const NAME_TAKEN: &str = "replica name taken";
const REASONS: [&str; 9] = [
    STORE_UNAVAILABLE,
    STORE_REFUSES,
    STORE_READ_ONLY,
    STORE_BEHIND,
    STORE_NO_STANDBY,
    STORE_FULL,
    REPLACED,
    STORE_LOST,
    NAME_TAKEN,
];

/// The name of a gateway without a configured name if the host's name is unsuitable.
const NAME: &str = "taskgate";

#[derive(Debug, thiserror::Error)]
pub enum SharedStoreError {
    #[error(transparent)]
    Database(#[from] PostgresOpenError),
    #[error(transparent)]
    File(#[from] ReplicaFileError),
    /// In the certificates for other replicas.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
}

impl SharedStoreError {
    pub(super) const fn key(&self) -> &'static str {
        match self {
            Self::Database(error) => error.key(),
            Self::File(_) => "replica.name",
            Self::Tls(_) => "replica",
        }
    }

    const fn retry(&self) -> Retry {
        match self {
            Self::Database(error) => error.retry(),
            Self::File(_) => Retry::Never,
            Self::Tls(_) => Retry::OnceListening,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Database(PostgresOpenError::NameTaken { .. }) => NAME_TAKEN,
            Self::Database(error) => reason(&error.health()).map_or(STORE_UNAVAILABLE, |(reason, _)| reason),
            Self::File(_) | Self::Tls(_) => STORE_UNAVAILABLE,
        }
    }
}

#[derive(Debug)]
pub(super) struct SharedStoreOpening {
    settings: PostgresSettings,
    tls: Option<ReplicaTls>,
    /// `None` if the folder is not writable.
    pub(super) file: Option<ReplicaFile>,
    readiness: Readiness,
    former: Option<PriorIncarnation>,
    /// When the name was first found taken.
    taken: Option<Instant>,
    reasons: RetryReasons,
    /// Cancelled once the first attempt fails or takes long, and at once in a successor: then the listeners serve.
    pub(super) late: CancellationToken,
}

impl SharedStoreOpening {
    /// Locks the replica's file; fails if another process runs as it. `prints`: the sealing keys' fingerprints.
    pub(super) fn new(
        config: &Config,
        database: &DatabaseSettings,
        prints: Vec<KeyPrint>,
        readiness: &Readiness,
    ) -> Result<Self, ReplicaFileError> {
        let replica = &database.replica;
        let name = replica.name.clone().unwrap_or_else(host_name);
        let (file, prior) = match ReplicaFile::lock(&config.folder, &name) {
            Ok((file, prior)) => (Some(file), prior),
            // The key is mounted read-only, so no file can be kept beside it.
            Err(error) if error.is_folder_unwritable() => {
                tracing::warn!(
                    error = %CauseChain(&error),
                    "the replica's file cannot be written: after a crash the others wait for the lease, and the next start does not notice an older database"
                );
                (None, None)
            }
            Err(error) => return Err(error),
        };
        let address = replica.address.map(|address| address.to_string()).unwrap_or_default();
        let described = ReplicaDescription { name, address, ..description(config, prints) };
        Ok(Self {
            settings: PostgresSettings { prior, folder: Some(config.folder.clone()), ..settings(database, described) },
            tls: replica.tls.clone(),
            file,
            readiness: readiness.clone(),
            former: None,
            taken: None,
            reasons: RetryReasons::default(),
            late: CancellationToken::new(),
        })
    }

    /// For a successor in this process: waits from the beginning, also after errors that refuse a first start.
    /// Readiness is blocked before any probe, so that a concurrent reload does not clear it during an attempt.
    pub(super) fn restarts(&mut self, former: PriorIncarnation) {
        self.readiness.show_one_of(&REASONS, Some((STORE_UNAVAILABLE, ReasonWeight::Blocks)));
        self.late.cancel();
        self.former = Some(former);
        self.settings.prior = Some(newest_incarnation(self.settings.prior, former));
    }

    /// Opens the database; checks the certificates first, since each attempt would leave a row in it.
    async fn open(&self) -> Result<Arc<PostgresStore>, SharedStoreError> {
        self.tls.as_ref().map(ReplicaTls::read).transpose()?;
        Ok(PostgresStore::open(self.settings.clone()).await?)
    }

    /// Tries once. `None` if a later attempt may succeed: the reason is logged, and blocks readiness.
    async fn attempt(&mut self) -> Result<Option<Arc<PostgresStore>>, SharedStoreError> {
        let error = match self.open().await {
            Ok(store) => {
                let written = self.file.as_mut().map_or(Ok(()), |file| file.write(store.as_prior()));
                if let Err(error) = written {
                    let error = CauseChain(&error);
                    tracing::warn!(%error, "the replica's file cannot be written: after a crash the others wait for the lease");
                }
                self.readiness.show_one_of(&REASONS, None);
                return Ok(Some(store));
            }
            Err(error) => error,
        };
        if matches!(error, SharedStoreError::Database(PostgresOpenError::Lost { .. }))
            && let (Some(file), Some(former)) = (&mut self.file, self.former)
        {
            file.write_loss(former);
        }
        let is_taken = matches!(error, SharedStoreError::Database(PostgresOpenError::NameTaken { .. }));
        let since = self.taken.filter(|_| is_taken).unwrap_or_else(Instant::now);
        self.taken = is_taken.then_some(since);
        let is_tried_again = match error.retry() {
            Retry::Never => false,
            Retry::OnceListening => self.late.is_cancelled(),
            Retry::Always => true,
        };
        // An incarnation that has just ended loses its lease within this time.
        if !is_tried_again || since.elapsed() > self.settings.terms.lease() * 2 {
            return Err(error);
        }
        let reason = error.reason();
        self.readiness.show_one_of(&REASONS, Some((reason, ReasonWeight::Blocks)));
        self.reasons.log(error.to_string());
        Ok(None)
    }

    async fn first_attempt(&mut self) -> Result<Option<Arc<PostgresStore>>, SharedStoreError> {
        let (readiness, late) = (self.readiness.clone(), self.late.clone());
        let mut attempt = pin!(self.attempt());
        if let Ok(tried) = tokio::time::timeout(FIRST_TRY_MAX, &mut attempt).await {
            return tried;
        }
        readiness.show_one_of(&REASONS, Some((STORE_UNAVAILABLE, ReasonWeight::Blocks)));
        late.cancel();
        attempt.await
    }

    /// Tries until it succeeds, or fails permanently.
    pub(super) async fn wait(&mut self) -> Result<Arc<PostgresStore>, SharedStoreError> {
        let mut tried = self.first_attempt().await?;
        loop {
            if let Some(store) = tried {
                return Ok(store);
            }
            self.late.cancel();
            tokio::time::sleep(RETRY).await;
            tried = self.attempt().await?;
        }
    }
}

/// The later incarnation of the replica's file and of this process. The file may be old, or name a failed start.
fn newest_incarnation(kept: Option<PriorIncarnation>, former: PriorIncarnation) -> PriorIncarnation {
    kept.filter(|kept| kept.holder > former.holder).unwrap_or(former)
}

/// Logs the reason of a retry whenever it changes.
#[derive(Debug, Default)]
pub(super) struct RetryReasons(Option<String>);

impl RetryReasons {
    pub(super) fn log(&mut self, why: String) {
        if self.0.as_ref() != Some(&why) {
            tracing::warn!("{why}; this is retried until it succeeds");
            self.0 = Some(why);
        }
    }
}

pub(super) fn settings(database: &DatabaseSettings, replica: ReplicaDescription) -> PostgresSettings {
    PostgresSettings {
        access: database.access.clone(),
        terms: database.replica.terms,
        stored_bytes_max: database.limits.stored_bytes_max,
        replica,
        prior: None,
        folder: None,
    }
}

pub(super) fn description(config: &Config, key_prints: Vec<KeyPrint>) -> ReplicaDescription {
    ReplicaDescription {
        name: String::new(),
        address: String::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        config_digest: digest_of_upstreams(config),
        key_prints,
    }
}

/// A digest of the upstreams: replicas with other upstreams cannot continue all of its tasks.
pub(super) fn digest_of_upstreams(config: &Config) -> Vec<u8> {
    let mut names: Vec<&str> = config.upstreams.iter().map(|upstream| &*upstream.name).collect();
    names.sort_unstable();
    let mut digest = Context::new(&SHA256);
    for name in names {
        digest.update(name.as_bytes());
        digest.update(&[0]);
    }
    digest.finish().as_ref().to_vec()
}

/// The host's name, reduced to a valid replica name.
pub(super) fn host_name() -> String {
    let name: String = system::host_name()
        .chars()
        .map(|char| if char.is_ascii_alphanumeric() || "-_.".contains(char) { char } else { '-' })
        .take(64)
        .collect();
    if is_replica_name(&name) { name } else { NAME.to_owned() }
}

/// Reports the store's health to readiness, and cancels `replaced` once this incarnation has ended. Never returns before.
pub(super) async fn watch(store: &PostgresStore, readiness: &Readiness, replaced: &CancellationToken) {
    let mut health = store.watch_health();
    let mut view = store.watch_replicas();
    let mut is_unlike = false;
    loop {
        // Releases the store's lock before another one is taken.
        let why = reason(&health.borrow_and_update());
        readiness.show_one_of(&REASONS, why);
        let seen = view.newest();
        let standing = seen.standing;
        if matches!(standing, OwnStanding::Fenced | OwnStanding::StoreLost(_)) {
            readiness.block(if standing == OwnStanding::Fenced { REPLACED } else { STORE_LOST });
            return replaced.cancel();
        }
        warn_of_other_configs(store.holder(), &seen.rows, &mut is_unlike);
        tokio::select! {
            Ok(()) = health.changed() => (),
            Ok(()) = view.changed() => (),
            else => return,
        }
    }
}

/// The reason against readiness for a store's fault.
const fn reason(health: &PostgresHealth) -> Option<(&'static str, ReasonWeight)> {
    match health {
        PostgresHealth::Good => None,
        PostgresHealth::Unavailable(_) => Some((STORE_UNAVAILABLE, ReasonWeight::Blocks)),
        PostgresHealth::Refusing(_) => Some((STORE_REFUSES, ReasonWeight::Blocks)),
        PostgresHealth::ReadOnly(_) => Some((STORE_READ_ONLY, ReasonWeight::Blocks)),
        PostgresHealth::Behind(_) => Some((STORE_BEHIND, ReasonWeight::Blocks)),
        PostgresHealth::NoStandby => Some((STORE_NO_STANDBY, ReasonWeight::Blocks)),
        // Stored tasks are read, and calls that need no new task are served.
        PostgresHealth::Full => Some((STORE_FULL, ReasonWeight::Limits)),
        PostgresHealth::Fenced => Some((REPLACED, ReasonWeight::Blocks)),
        PostgresHealth::Lost => Some((STORE_LOST, ReasonWeight::Blocks)),
    }
}

/// Logs whether the other replicas have the same upstreams, whenever that changes.
fn warn_of_other_configs(own: Incarnation, rows: &[StoredReplica], was_unlike: &mut bool) {
    let Some(own) = rows.iter().find(|one| one.row.incarnation == own).map(|own| &own.config_digest) else { return };
    let unlike = rows.iter().find(|one| !one.row.is_dead && one.config_digest != *own);
    if *was_unlike != unlike.is_some() {
        *was_unlike = unlike.is_some();
        match unlike {
            Some(unlike) => tracing::warn!(
                replica = unlike.row.name,
                "another replica has different upstreams: neither can continue all tasks of the other"
            ),
            None => tracing::info!("all replicas have the same upstreams"),
        }
    }
}

/// An incarnation that no store has.
const UNKNOWN: Incarnation = Incarnation(i64::MAX.unsigned_abs());
/// A larger file was not written by a gateway.
const BYTES_MAX: u64 = 256;

#[derive(Debug, thiserror::Error)]
pub enum ReplicaFileError {
    #[error("another process runs as this replica: it holds {}", .path.display())]
    Locked { path: PathBuf },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: was not written by a replica; remove it once no replica of this name runs", .path.display())]
    Content { path: PathBuf },
}

impl ReplicaFileError {
    /// Whether the folder is not writable, and no file in it is at fault.
    pub(super) fn is_folder_unwritable(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self, Self::File { source, .. } if [PermissionDenied, ReadOnlyFilesystem].contains(&source.kind()))
    }
}

/// The replica's last incarnation in its folder. Its lock keeps out a second process, and proves that the earlier
/// process ended: its tasks are taken over. The file reveals another database.
#[derive(Debug)]
pub(super) struct ReplicaFile {
    path: PathBuf,
    file: File,
    /// Whether the file records a loss of acknowledged writes. Such a file is kept.
    is_loss: bool,
    /// Whether the last write failed.
    is_behind: bool,
}

impl ReplicaFile {
    /// Locks replica `name`'s file, made if missing, and reads its earlier incarnation. Fails if locked or foreign.
    pub(super) fn lock(folder: &Path, name: &str) -> Result<(Self, Option<PriorIncarnation>), ReplicaFileError> {
        let path = folder.join(format!("{name}.replica"));
        let failed = |source| ReplicaFileError::File { path: path.clone(), source };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).owners_alone();
        let file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => (),
            Err(TryLockError::WouldBlock) => return Err(ReplicaFileError::Locked { path }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut text = String::new();
        (&file).take(BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let prior = match text.trim() {
            "" => None,
            // A process killed during a write may have left the end of a longer text after the first line.
            text => {
                let prior = text.lines().next().and_then(read);
                Some(prior.ok_or_else(|| ReplicaFileError::Content { path: path.clone() })?)
            }
        };
        Ok((Self { path, file, is_loss: false, is_behind: false }, prior))
    }

    /// Writes the incarnation and its last heartbeat. If the write is lost, the lease decides, or an earlier heartbeat.
    pub(super) fn write(&mut self, prior: PriorIncarnation) -> Result<(), ReplicaFileError> {
        if self.is_loss {
            return Ok(());
        }
        let text = format!("{} {} {}\n", Uuid::from_u128(prior.generation.0), prior.holder, prior.heartbeat);
        let written = self.file.rewind().and_then(|()| self.file.write_all(text.as_bytes()));
        let written = written.and_then(|()| self.file.set_len(text.len() as u64));
        written.map_err(|source| ReplicaFileError::File { path: self.path.clone(), source })
    }

    /// As [`Self::write`]; logs the first of consecutive failures.
    pub(super) fn write_or_warn(&mut self, prior: PriorIncarnation) {
        let written = self.write(prior);
        if let (Err(error), false) = (&written, self.is_behind) {
            tracing::warn!(error = %CauseChain(error), "the replica's file cannot be written: the next start may not notice that its database is older");
        }
        self.is_behind = written.is_err();
    }

    /// Records that the store lost acknowledged writes: the next start treats it as another store or an older one.
    pub(super) fn write_loss(&mut self, prior: PriorIncarnation) {
        if let Err(error) = self.write(PriorIncarnation { holder: UNKNOWN, ..prior }) {
            tracing::warn!(error = %CauseChain(&error), "the replica's file cannot be written: the next start may use a store that lost acknowledged writes");
        }
        self.is_loss = true;
    }
}

#[cfg(test)]
impl ReplicaFile {
    /// Waits for the lock: a program that another test starts has all open files between fork and exec.
    pub(super) fn unlocked(folder: &Path, name: &str) -> (Self, Option<PriorIncarnation>) {
        for _ in 0..1_000 {
            match Self::lock(folder, name) {
                Err(ReplicaFileError::Locked { .. }) => std::thread::sleep(Duration::from_millis(10)),
                locked => return locked.unwrap(),
            }
        }
        panic!("the file stays locked");
    }
}

fn read(text: &str) -> Option<PriorIncarnation> {
    let (generation, prior) = text.split_once(' ')?;
    let generation = StoreGeneration(Uuid::parse_str(generation).ok()?.as_u128());
    // Earlier versions wrote no heartbeat.
    let (holder, heartbeat) = prior.split_once(' ').unwrap_or((prior, "0"));
    Some(PriorIncarnation { generation, holder: Incarnation(holder.parse().ok()?), heartbeat: heartbeat.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::StoreGeneration;

    #[test]
    fn a_file_with_an_older_incarnation_does_not_hide_that_of_this_process() {
        let incarnation = |holder, heartbeat| PriorIncarnation {
            generation: StoreGeneration(7),
            holder: Incarnation(holder),
            heartbeat,
        };
        let former = incarnation(41, 9);
        for (kept, newest) in [
            (None, former),
            (Some(incarnation(41, 0)), former),
            (Some(incarnation(40, 0)), former),
            (Some(incarnation(42, 0)), incarnation(42, 0)),
        ] {
            assert_eq!(newest_incarnation(kept, former), newest, "{kept:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = ReplicaFile::lock(folder.path(), "a").unwrap();
        file.write_loss(former);
        drop(file);
        let (_file, lost) = ReplicaFile::unlocked(folder.path(), "a");
        assert_eq!(Some(newest_incarnation(lost, former)), lost, "a loss stays to be seen");
    }

    const PRIOR: PriorIncarnation =
        PriorIncarnation { generation: StoreGeneration(7), holder: Incarnation(41), heartbeat: 17 };

    #[test]
    fn the_next_process_finds_the_stored_incarnation() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, prior) = ReplicaFile::lock(folder.path(), "a").unwrap();
        assert_eq!(prior, None);
        file.write(PriorIncarnation { holder: Incarnation(123_456), ..PRIOR }).unwrap();
        file.write(PRIOR).unwrap();
        assert!(matches!(ReplicaFile::lock(folder.path(), "a"), Err(ReplicaFileError::Locked { .. })));
        assert!(ReplicaFile::lock(folder.path(), "b").is_ok(), "another replica has another file");
        drop(file);
        let (mut file, prior) = ReplicaFile::unlocked(folder.path(), "a");
        assert_eq!(prior, Some(PRIOR));
        file.write_loss(PRIOR);
        drop(file);
        let prior = ReplicaFile::unlocked(folder.path(), "a").1.unwrap();
        assert!(prior.holder > PRIOR.holder && prior.generation == PRIOR.generation, "{prior:?}");
    }

    #[test]
    fn a_loss_that_was_written_down_is_not_written_over_by_the_same_process() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = ReplicaFile::lock(folder.path(), "a").unwrap();
        file.write_loss(PRIOR);
        file.write(PRIOR).unwrap();
        drop(file);
        let prior = ReplicaFile::unlocked(folder.path(), "a").1.unwrap();
        assert!(prior.holder > PRIOR.holder, "{prior:?}");
    }

    #[test]
    fn a_file_of_an_earlier_version_says_no_beat() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.replica"), "00000000-0000-0000-0000-000000000007 41\n").unwrap();
        let prior = ReplicaFile::lock(folder.path(), "a").unwrap().1;
        assert_eq!(prior, Some(PriorIncarnation { heartbeat: 0, ..PRIOR }));
    }

    /// As a process leaves it that is killed between its write and the cut behind it.
    #[test]
    fn the_rest_of_a_longer_text_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let text = "00000000-0000-0000-0000-000000000007 41 17\n6 99\n";
        std::fs::write(folder.path().join("a.replica"), text).unwrap();
        assert_eq!(ReplicaFile::lock(folder.path(), "a").unwrap().1, Some(PRIOR));
    }

    #[test]
    fn a_folder_without_room_for_it_is_told_from_a_file_that_is_wrong() {
        let of = |kind: io::ErrorKind| ReplicaFileError::File { path: PathBuf::from("a.replica"), source: kind.into() };
        assert!(of(io::ErrorKind::ReadOnlyFilesystem).is_folder_unwritable());
        assert!(of(io::ErrorKind::PermissionDenied).is_folder_unwritable());
        assert!(!of(io::ErrorKind::InvalidData).is_folder_unwritable());
        assert!(!ReplicaFileError::Content { path: PathBuf::from("a.replica") }.is_folder_unwritable());
    }

    #[test]
    fn a_file_of_another_program_is_refused_and_left() {
        for text in [
            "x",
            "00000000-0000-0000-0000-000000000007",
            "00000000-0000-0000-0000-000000000007 -1",
            "00000000-0000-0000-0000-000000000007 1 x",
            "7 7 7",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.replica");
            std::fs::write(&path, text).unwrap();
            let refused = ReplicaFile::lock(folder.path(), "a");
            assert!(matches!(refused, Err(ReplicaFileError::Content { .. })), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
