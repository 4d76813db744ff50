//! Declares the keys of `[store]` and `[replica]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::super::keys::keys;
use super::super::value::{
    ADDRESS, DURATION, DURATION_NOT_ZERO, FOLDER, PEM_FILE, StringFormat, ValueError, WordList, not_empty, path,
};
use crate::replica::Durability;
use crate::store::is_schema_name;

/// A database URL. Errors do not repeat it.
const DATABASE_URL: StringFormat<String> =
    StringFormat { wanted: "a URL such as \"postgres://taskgate@db1,db2/taskgate\"", read: not_empty };
const DATABASE_SCHEMA: StringFormat<String> =
    StringFormat { wanted: "the name of a schema such as \"taskgate\"", read: database_schema };
const URL_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"db.url\"", read: path };
const PASSWORD_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"db.password\"", read: path };
const STORE_GENERATION: StringFormat<u128> = StringFormat {
    wanted: "the generation of a PostgreSQL database, which the replica names, such as \"6f1c7c52-0d61-4d2c-9d0f-0a3b9a5f0c11\"",
    read: generation,
};
const REPLICA_NAME: StringFormat<String> = StringFormat { wanted: "a name such as \"gateway-a\"", read: replica_name };

const REPLICA_NAME_LEN_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum StoreKind {
    Memory,
    Disk,
    Postgres,
}

const KINDS: WordList<StoreKind> =
    &[("memory", StoreKind::Memory), ("disk", StoreKind::Disk), ("postgres", StoreKind::Postgres)];
const DURABILITIES: WordList<Durability> =
    &[("replicated", Durability::Replicated), ("vouched", Durability::Vouched), ("single", Durability::Single)];

keys! {
    /// `[store]`, but for the database.
    struct RawStore {
        /// `"disk"`: tasks survive kill -9, power cuts and restarts. `"memory"`: tasks end with the process.
        /// `"postgres"`: several gateways share one set of tasks ([Several gateways](docs/replicas.md)).
        restart kind: StoreKind = word(KINDS), default "disk";
        /// The gateway's folder: `tasks.db` with its side files, and `seal.key`. One gateway for each folder. Gateways
        /// that serve the same clients need the same `seal.key`: 64 hex digits a line; the first line seals session
        /// ids, all lines open them.
        restart path: PathBuf = read(&FOLDER), default "taskgate-data";
        /// `true` allows a folder in memory (tmpfs) or on a network file system, where tasks may be lost.
        restart ephemeral: bool = flag(), default false;
    }
}

keys! {
    /// The keys of `[store]` for a database.
    struct RawDatabase {
        /// The database: one or several hosts, of which the one that accepts writes is used. TLS is verified;
        /// `sslmode=disable` only towards this machine.
        restart url: String = read(&DATABASE_URL);
        /// A file with the URL, instead of `url`; read again at each connect.
        restart url_file: PathBuf = read(&URL_FILE), bounds "owner alone";
        /// A file with the password and nothing else; read again at each connect, so it can be changed while the
        /// gateway runs.
        restart password_file: PathBuf = read(&PASSWORD_FILE), bounds "owner alone";
        /// PEM file of the authorities that certify the database's servers, in place of the system's.
        restart ca: PathBuf = read(&PEM_FILE);
        /// The schema that replicas of one set of tasks share; it is created if it is missing.
        restart schema: String = read(&DATABASE_SCHEMA), default "taskgate", bounds "at most 40 of `a-z`, `0-9`, `_`";
        /// Required. The failures that an acknowledged task survives ([table](docs/replicas.md#guarantees)). `"replicated"`
        /// is refused while the server names no synchronous standby.
        restart durability: Durability = word(DURABILITIES);
        /// How long a write may take. After that its result is unknown: the client gets `store_failed`, and a new task
        /// that may have been stored is removed, unless another replica has given out its handle.
        restart write_max: Duration = read(&DURATION_NOT_ZERO), default "5s", bounds "`\"1ms\"` to `\"60s\"`";
        /// How old the last proof that the database's rows are durable may be at a read. `"0s"`: a proof after each
        /// read.
        restart read_trust: Duration = read(&DURATION), default "1s", bounds "`\"0s\"` to `\"3650d\"`";
        /// Accepts a [database that lost data](docs/replicas.md#a-database-that-lost-data) at the start. The replica
        /// that refuses the database names the value.
        restart accept_loss: u128 = read(&STORE_GENERATION);
    }
}

keys! {
    struct RawReplica {
        /// The replica's name for operators; the host's name unless written. Each replica has a different name, and
        /// keeps it over restarts.
        restart name: String = read(&REPLICA_NAME), bounds "at most 64 of `A-Z`, `a-z`, `0-9`, `_`, `-`, `.`";
        /// Where the other replicas reach this one for requests that it owns. An address that other machines can reach
        /// requires `certificate`, `key` and `ca`.
        restart address: SocketAddr = read(&ADDRESS);
        /// The certificate of this replica, as server and as client; with `key` and `ca`, or none of the three.
        restart certificate: PathBuf = read(&PEM_FILE);
        /// The private key of `certificate`.
        restart key: PathBuf = read(&PEM_FILE), bounds "owner alone";
        /// PEM file of the authorities that certify the other replicas.
        restart ca: PathBuf = read(&PEM_FILE);
        /// How long a replica may be silent before the others take its tasks over: the same on all, since each applies
        /// its own value. Each writes four heartbeats in this time, and at least one each two seconds.
        restart lease: Duration = read(&DURATION_NOT_ZERO), default "8s", bounds "`\"4s\"` to `\"60s\"`";
        /// How long calls continue while the database is unavailable, at least the `lease`. After that they end, and
        /// the replica restarts in the same process.
        restart alone_max: Duration = read(&DURATION_NOT_ZERO), default "5m";
        /// Whether rates (requests, polls, unknown tasks) and `in_flight_max` hold for all replicas together: each has
        /// its share, rounded up. If a balancer keeps a client on one replica, the client has only that share.
        restart divide: bool = flag(), default true;
    }
}

fn database_schema(text: &str) -> Result<String, ValueError> {
    match is_schema_name(text) {
        true => Ok(text.to_owned()),
        false if text.is_empty() => Err(ValueError::Form),
        false => Err(ValueError::Because(
            "needs quotes in SQL; write at most 40 characters out of a-z, 0-9 and _, that begin with neither a digit nor pg_",
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
            "is not the name of a replica; write at most 64 characters out of A-Z, a-z, 0-9, _, - and .",
        )),
    }
}

/// Whether a text can name a replica: the name is part of file names, logs and labels.
pub fn is_replica_name(text: &str) -> bool {
    (1..=REPLICA_NAME_LEN_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        && !text.starts_with('.')
}
