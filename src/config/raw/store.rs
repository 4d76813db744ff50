//! Reads `[store]` and `[replica]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::super::error::ConfigLocation;
use super::super::section::{LocatedValue, Section};
use super::super::value::{
    ADDRESS, DATABASE_SCHEMA, DATABASE_URL, DURATION, DURATION_NOT_ZERO, FOLDER, PEM_FILE, REPLICA_NAME, SECRET_FILE,
    STORE_GENERATION,
};
use super::RawIdentity;
use crate::replica::Durability;

#[derive(Debug, Default)]
pub(in super::super) struct RawStore {
    pub(in super::super) kind: Option<LocatedValue<StoreKind>>,
    pub(in super::super) path: Option<LocatedValue<PathBuf>>,
    pub(in super::super) ephemeral: Option<LocatedValue<bool>>,
    pub(in super::super) database: RawDatabase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum StoreKind {
    Memory,
    Disk,
    Postgres,
}

/// What says where the database is and what it promises.
#[derive(Debug, Default)]
pub(in super::super) struct RawDatabase {
    pub(in super::super) url: Option<LocatedValue<String>>,
    pub(in super::super) url_file: Option<LocatedValue<PathBuf>>,
    pub(in super::super) password_file: Option<LocatedValue<PathBuf>>,
    pub(in super::super) ca: Option<LocatedValue<PathBuf>>,
    pub(in super::super) schema: Option<LocatedValue<String>>,
    pub(in super::super) durability: Option<LocatedValue<Durability>>,
    pub(in super::super) write_max: Option<LocatedValue<Duration>>,
    pub(in super::super) read_trust: Option<LocatedValue<Duration>>,
    pub(in super::super) accept_loss: Option<LocatedValue<u128>>,
}

impl RawDatabase {
    /// Where its keys are written.
    pub(in super::super) fn places(&self) -> impl Iterator<Item = &ConfigLocation> {
        fn place<T>(written: Option<&LocatedValue<T>>) -> Option<&ConfigLocation> {
            written.map(|written| &written.place)
        }
        let Self { url, url_file, password_file, ca, schema, durability, write_max, read_trust, accept_loss } = self;
        let texts =
            [place(url.as_ref()), place(schema.as_ref()), place(durability.as_ref()), place(accept_loss.as_ref())];
        let files = [url_file, password_file, ca].map(|file| place(file.as_ref()));
        let times = [write_max, read_trust].map(|time| place(time.as_ref()));
        texts.into_iter().chain(files).chain(times).flatten()
    }
}

/// What one of several gateways on a database is to the others.
#[derive(Debug, Default)]
pub(in super::super) struct RawReplica {
    /// Where the table begins, if it is written.
    pub(in super::super) place: Option<ConfigLocation>,
    pub(in super::super) name: Option<LocatedValue<String>>,
    pub(in super::super) address: Option<LocatedValue<SocketAddr>>,
    pub(in super::super) tls: RawIdentity,
    pub(in super::super) ca: Option<LocatedValue<PathBuf>>,
    pub(in super::super) lease: Option<LocatedValue<Duration>>,
    pub(in super::super) alone_max: Option<LocatedValue<Duration>>,
}

pub(super) fn read(mut section: Section<'_, '_>) -> RawStore {
    // Known, so that it is not taken for a mistake in writing.
    let kinds = [
        ("memory", Some(StoreKind::Memory)),
        ("disk", Some(StoreKind::Disk)),
        ("postgres", Some(StoreKind::Postgres)),
        ("redis", None),
    ];
    let promises = [
        ("replicated", Some(Durability::Replicated)),
        ("vouched", Some(Durability::Vouched)),
        ("single", Some(Durability::Single)),
    ];
    let store = RawStore {
        kind: section.word("kind", &kinds),
        path: section.read("path", &FOLDER),
        ephemeral: section.flag("ephemeral"),
        database: RawDatabase {
            url: section.read("url", &DATABASE_URL),
            url_file: section.read("url_file", &SECRET_FILE),
            password_file: section.read("password_file", &SECRET_FILE),
            ca: section.read("ca", &PEM_FILE),
            schema: section.read("schema", &DATABASE_SCHEMA),
            durability: section.word("durability", &promises),
            write_max: section.read("write_max", &DURATION_NOT_ZERO),
            read_trust: section.read("read_trust", &DURATION),
            accept_loss: section.read("accept_loss", &STORE_GENERATION),
        },
    };
    section.close();
    store
}

pub(super) fn read_replica(mut section: Section<'_, '_>) -> RawReplica {
    let replica = RawReplica {
        place: section.is_written().then(|| section.place()),
        name: section.read("name", &REPLICA_NAME),
        address: section.read("address", &ADDRESS),
        tls: RawIdentity { certificate: section.read("certificate", &PEM_FILE), key: section.read("key", &PEM_FILE) },
        ca: section.read("ca", &PEM_FILE),
        lease: section.read("lease", &DURATION_NOT_ZERO),
        alone_max: section.read("alone_max", &DURATION_NOT_ZERO),
    };
    section.unbuilt("divide");
    section.close();
    replica
}
