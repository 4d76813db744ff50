//! Reads `[store]` and `[replica]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::super::error::ConfigLocation;
use super::super::section::{LocatedValue, Section};
use super::super::value::{
    ADDRESS, DURATION, DURATION_NOT_ZERO, FOLDER, PEM_FILE, StringFormat, ValueError, not_empty, path,
};
use super::RawIdentity;
use crate::replica::Durability;
use crate::store::is_schema_name;

/// A database URL. Errors do not repeat it.
const DATABASE_URL: StringFormat<String> =
    StringFormat { wanted: "a URL such as \"postgres://taskgate@db1,db2/taskgate\"", read: not_empty };
const DATABASE_SCHEMA: StringFormat<String> =
    StringFormat { wanted: "the name of a schema such as \"taskgate\"", read: database_schema };
/// A file that contains only the database URL.
const URL_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"db.url\"", read: path };
/// A file that contains only a password.
const PASSWORD_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"db.password\"", read: path };
/// The generation of the store's database.
const STORE_GENERATION: StringFormat<u128> = StringFormat {
    wanted: "the generation that the gateway names, such as \"6f1c7c52-0d61-4d2c-9d0f-0a3b9a5f0c11\"",
    read: generation,
};
const REPLICA_NAME: StringFormat<String> = StringFormat { wanted: "a name such as \"gateway-a\"", read: replica_name };

const REPLICA_NAME_LEN_MAX: usize = 64;

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

#[derive(Debug, Default)]
pub(in super::super) struct RawReplica {
    /// The location of the table, if it is written.
    pub(in super::super) place: Option<ConfigLocation>,
    pub(in super::super) name: Option<LocatedValue<String>>,
    pub(in super::super) address: Option<LocatedValue<SocketAddr>>,
    pub(in super::super) tls: RawIdentity,
    pub(in super::super) ca: Option<LocatedValue<PathBuf>>,
    pub(in super::super) lease: Option<LocatedValue<Duration>>,
    pub(in super::super) alone_max: Option<LocatedValue<Duration>>,
    pub(in super::super) divide: Option<LocatedValue<bool>>,
}

pub(super) fn read(mut section: Section<'_, '_>) -> RawStore {
    // Known, so that it is not reported as a misspelling.
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
            url_file: section.read("url_file", &URL_FILE),
            password_file: section.read("password_file", &PASSWORD_FILE),
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
        divide: section.flag("divide"),
    };
    section.close();
    replica
}

fn database_schema(text: &str) -> Result<String, ValueError> {
    match is_schema_name(text) {
        true => Ok(text.to_owned()),
        false if text.is_empty() => Err(ValueError::Form),
        false => Err(ValueError::Because(
            "needs quotes in SQL; write at most 40 characters out of a-z, 0-9 and _, beginning with no digit and no pg_",
        )),
    }
}

fn generation(text: &str) -> Result<u128, ValueError> {
    uuid::Uuid::parse_str(text).map(|read| read.as_u128()).map_err(|_| ValueError::Form)
}

fn replica_name(text: &str) -> Result<String, ValueError> {
    match is_replica_name(text) {
        true => Ok(text.to_owned()),
        false if text.is_empty() => Err(ValueError::Form),
        false => Err(ValueError::Because(
            "is no name of a replica; write at most 64 characters out of A-Z, a-z, 0-9, _, - and .",
        )),
    }
}

/// Whether a text can name a replica: the name is part of file names, logs and labels.
#[must_use]
pub fn is_replica_name(text: &str) -> bool {
    (1..=REPLICA_NAME_LEN_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        && !text.starts_with('.')
}
