//! The database of gateways that share one: a server, with or without a synchronous standby, on the same machine.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use support::ports::reserved_address;
use support::postgres::PostgresServer;
use taskgate::store::postgres::{Durability, PostgresSettings, ReplicaDescription};
use taskgate::store::{DatabaseAccess, DatabaseUrl};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::plan::{LOOK_EVERY, PATIENCE};

const STANDBY: &str = "bench_standby";
/// The kernel tells CPU of processes that have ended in these.
const TICK: Duration = Duration::from_millis(10);

/// A server, and its standby if it has one: the standby ends first.
#[derive(Debug)]
pub(crate) struct Database {
    standby: Option<PostgresServer>,
    primary: PostgresServer,
}

impl Database {
    /// `None` where PostgreSQL is missing.
    pub(crate) async fn start(has_standby: bool) -> anyhow::Result<Option<Self>> {
        let lines: &[&str] = if has_standby { &["max_wal_senders = 4"] } else { &[] };
        let Some(primary) = PostgresServer::start(lines) else { return Ok(None) };
        let standby = has_standby.then(|| PostgresServer::standby_of(&primary, STANDBY));
        if has_standby {
            primary.configure(&[&format!("synchronous_standby_names = '{STANDBY}'")]);
            primary.reload();
            let state = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            let ends_at = Instant::now() + PATIENCE;
            while primary.psql(state) != "1" {
                ensure!(Instant::now() < ends_at, "the standby does not follow");
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(Some(Self { standby, primary }))
    }

    /// What is added to the name of what is measured on it.
    pub(crate) const fn name(&self) -> &'static str {
        if self.standby.is_some() { ", synchronous standby" } else { "" }
    }

    const fn durability(&self) -> Durability {
        if self.standby.is_some() { Durability::Replicated } else { Durability::Single }
    }

    /// The lines of a configuration for one of several gateways that share a schema, and the folder of each.
    pub(crate) fn gateway(&self, schema: &str, name: &str) -> anyhow::Result<(String, TempDir)> {
        let folder = TempDir::new()?;
        let key = folder.path().join("seal.key");
        fs::write(&key, "5a".repeat(32))?;
        fs::set_permissions(&key, Permissions::from_mode(0o600))?;
        // The others are told where it is before it listens.
        let port = reserved_address().port();
        let durability = if self.standby.is_some() { "replicated" } else { "single" };
        let text = format!(
            "store.kind = \"postgres\"\nstore.url = \"{}\"\nstore.schema = \"{schema}\"\nstore.durability = \"{durability}\"\n\
             store.path = \"{}\"\nreplica.name = \"{name}\"\nreplica.address = \"127.0.0.1:{port}\"",
            self.primary.url(),
            folder.path().display(),
        );
        Ok((text, folder))
    }

    /// What the store itself is opened with.
    pub(crate) fn settings(&self, schema: &str) -> PostgresSettings {
        PostgresSettings {
            access: DatabaseAccess {
                url: DatabaseUrl::Here(self.primary.url()),
                password_file: None,
                ca: None,
                schema: schema.to_owned(),
                durability: self.durability(),
                write_max: Duration::from_secs(5),
                read_trust: Duration::from_secs(1),
                accept_loss: None,
            },
            terms: Default::default(),
            stored_bytes_max: usize::MAX,
            replica: ReplicaDescription { name: schema.to_owned(), ..ReplicaDescription::default() },
            prior: None,
            folder: None,
        }
    }

    /// CPU time of all processes of the servers so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let servers: Vec<u32> = self.standby.iter().chain([&self.primary]).map(PostgresServer::pid).collect();
        let mut ticks = 0;
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // One that has ended meanwhile is counted by its server.
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let (_, rest) = stat.rsplit_once(')').context("a process without a name")?;
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            let is_server = servers.contains(&pid);
            if is_server || servers.iter().any(|server| u64::from(*server) == number(1)) {
                ticks += number(11) + number(12) + if is_server { number(13) + number(14) } else { 0 };
            }
        }
        Ok(TICK * u32::try_from(ticks).context("it has run for a year")?)
    }
}
