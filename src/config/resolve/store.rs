//! Resolves the store of tasks, and the settings of a replica.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::raw::{RawConfig, RawDatabase, RawLimits, RawReplica, RawStore, StoreKind};
use super::super::{DatabaseSettings, ReplicaSettings, StoreSettings};
use super::{GIB, MIB, count_or, first_place, identity, is_loopback, value_or, words};
use crate::replica::{Durability, LeaseTerms, StoreGeneration};
use crate::server::replicas::ReplicaTls;
use crate::store::{DatabaseAccess, DatabaseUrl, StoreLimits, check_database_url};
use crate::task::PrincipalLimits;

/// The default schema of the shared database.
const SCHEMA: &str = "taskgate";
const WRITE_MAX: Duration = Duration::from_secs(5);
const WRITE_MAX_LONGEST: Duration = Duration::from_secs(60);
const READ_TRUST: Duration = Duration::from_secs(1);

const ONLY_POSTGRES: &str = "is for gateways on one database; write `kind = \"postgres\"` in [store], or leave it out";

pub(super) fn resolve(raw: &RawConfig, each: &PrincipalLimits, report: &mut MistakeCollector) -> StoreSettings {
    let (store, limits) = (&raw.store, (&raw.limits, each));
    let kind = value_or(store.kind.as_ref(), StoreKind::Disk);
    if kind != StoreKind::Postgres && !report.blames("store.kind") {
        for place in store.database.places().chain(&raw.replica.place) {
            report.mistake(place, ONLY_POSTGRES);
        }
    }
    match kind {
        StoreKind::Memory => StoreSettings::Memory(resolve_limits(limits, GIB, report)),
        StoreKind::Disk => StoreSettings::Disk {
            limits: resolve_limits(limits, 8 * GIB, report),
            is_ephemeral: value_or(store.ephemeral.as_ref(), false),
        },
        StoreKind::Postgres => {
            if let Some(written) = store.ephemeral.as_ref().filter(|ephemeral| ephemeral.value) {
                report.mistake(&written.place, "is for a store on disk; leave it out");
            }
            let limits = resolve_limits(limits, 8 * GIB, report);
            StoreSettings::Postgres(Box::new(resolve_database(store, &raw.replica, limits, report)))
        }
    }
}

fn resolve_database(
    store: &RawStore,
    replica: &RawReplica,
    limits: StoreLimits,
    report: &mut MistakeCollector,
) -> DatabaseSettings {
    // Without a written kind there is no such store.
    let place =
        store.kind.as_ref().map_or_else(|| ConfigLocation::own(1, "store".to_owned()), |kind| kind.place.clone());
    let raw = &store.database;
    let durability = raw.durability.as_ref().map(|written| written.value);
    if durability.is_none() && !report.blames("store.durability") {
        report.mistake(
            &place,
            "a database needs `durability` beside it, which has no default: \"replicated\" where commits wait for a synchronous \
             standby, \"vouched\" where its storage is replicated, \"single\" where tasks are lost with one server",
        );
    }
    let write_max = value_or(raw.write_max.as_ref(), WRITE_MAX);
    if let Some(written) = raw.write_max.as_ref().filter(|written| written.value > WRITE_MAX_LONGEST) {
        report.mistake(&written.place, format!("is more than {}; clients wait no longer", words(WRITE_MAX_LONGEST)));
    }
    DatabaseSettings {
        limits,
        access: DatabaseAccess {
            url: resolve_url(raw, &place, report),
            password_file: raw.password_file.as_ref().map(|file| file.value.clone()),
            ca: raw.ca.as_ref().map(|file| file.value.clone()),
            schema: value_or(raw.schema.as_ref(), SCHEMA.to_owned()),
            durability: durability.unwrap_or(Durability::Single),
            write_max,
            read_trust: value_or(raw.read_trust.as_ref(), READ_TRUST),
            accept_loss: raw.accept_loss.as_ref().map(|written| StoreGeneration(written.value)),
        },
        replica: resolve_replica(replica, report),
    }
}

fn resolve_url(raw: &RawDatabase, place: &ConfigLocation, report: &mut MistakeCollector) -> DatabaseUrl {
    if let Some(url) = &raw.url
        // Without the text, which may contain a password.
        && let Err(error) = check_database_url(&url.value)
    {
        report.mistake(&url.place, error.to_string());
    }
    match (&raw.url, &raw.url_file) {
        (Some(url), None) => DatabaseUrl::Here(url.value.clone()),
        (None, Some(file)) => DatabaseUrl::File(file.value.clone()),
        (Some(_), Some(file)) => {
            report.mistake(&file.place, "stands beside `url`; leave one of them out");
            DatabaseUrl::File(file.value.clone())
        }
        (None, None) => {
            if !report.blames("store.url") && !report.blames("store.url_file") {
                report.mistake(
                    place,
                    "a database needs `url` beside it, such as \"postgres://taskgate@db1,db2/taskgate\", or `url_file`",
                );
            }
            DatabaseUrl::Here(String::new())
        }
    }
}

fn resolve_replica(raw: &RawReplica, report: &mut MistakeCollector) -> ReplicaSettings {
    let usual = LeaseTerms::default();
    let alone_max = value_or(raw.alone_max.as_ref(), usual.alone_max());
    let lease = value_or(raw.lease.as_ref(), usual.lease());
    let terms = LeaseTerms::new(lease, alone_max).unwrap_or_else(|| {
        if let Some(written) = &raw.lease {
            let (min, max) = (words(LeaseTerms::LEASE_MIN), words(LeaseTerms::LEASE_MAX));
            report.mistake(&written.place, format!("is out of bounds; write a duration from {min} to {max}"));
        }
        usual
    });
    let tls = resolve_replica_tls(raw, report);
    if let Some(address) = raw.address.as_ref().filter(|address| is_unreachable(address.value)) {
        report.mistake(
            &address.place,
            "names no place that others can reach; write the address, and a port that is not 0",
        );
    }
    ReplicaSettings {
        name: raw.name.as_ref().map(|name| name.value.clone()),
        address: raw.address.as_ref().map(|address| address.value),
        tls,
        terms,
        divides: value_or(raw.divide.as_ref(), true),
    }
}

/// The certificates between replicas: all files or none. An address outside loopback requires them.
fn resolve_replica_tls(raw: &RawReplica, report: &mut MistakeCollector) -> Option<ReplicaTls> {
    let files = [("certificate", &raw.tls.certificate), ("key", &raw.tls.key), ("ca", &raw.ca)];
    let absent = files.iter().filter(|(key, file)| file.is_none() && !report.blames(&format!("replica.{key}")));
    let absent: Vec<_> = absent.map(|(key, _)| format!("`{key}`")).collect();
    let written = files.iter().find_map(|(_, file)| file.as_ref());
    if let Some(written) = written.filter(|_| !absent.is_empty()) {
        report.mistake(&written.place, format!("needs {} beside it", absent.join(" and ")));
    } else if absent.len() == files.len()
        && let Some(address) = raw.address.as_ref().filter(|address| !is_loopback(address.value))
    {
        report.mistake(
            &address.place,
            "other machines can reach this address, and what replicas tell each other would go in clear; write `certificate`, \
             `key` and `ca` beside it, which both sides show and check",
        );
    }
    let (identity, ca) = identity(&raw.tls).zip(raw.ca.as_ref())?;
    Some(ReplicaTls { identity, ca: ca.value.clone() })
}

/// Whether no other machine can connect to an address that is announced as it is.
fn is_unreachable(address: SocketAddr) -> bool {
    address.ip().is_unspecified() || address.port() == 0
}

fn resolve_limits(
    (raw, each): (&RawLimits, &PrincipalLimits),
    stored_bytes_max: usize,
    report: &mut MistakeCollector,
) -> StoreLimits {
    let limits = StoreLimits {
        tasks_max: count_or(raw.tasks_max.as_ref(), 100_000),
        stored_bytes_max: value_or(raw.stored_bytes_max.as_ref(), stored_bytes_max),
    };
    if each.tasks_max > limits.tasks_max
        && let Some(place) = first_place([raw.principal.tasks_max.as_ref(), raw.tasks_max.as_ref()])
    {
        let (one, all) = (each.tasks_max, limits.tasks_max);
        report.warning(place, format!("one principal may have {one} tasks, but all together only {all}"));
    }
    let result_bytes_max = value_or(raw.result_bytes_max.as_ref(), 32 * MIB);
    if result_bytes_max > limits.stored_bytes_max
        && let Some(place) = first_place([raw.stored_bytes_max.as_ref(), raw.result_bytes_max.as_ref()])
    {
        report.warning(place, "one result may be larger than all that the store holds");
    } else if result_bytes_max > each.stored_bytes_max
        && let Some(place) = first_place([raw.principal.stored_bytes_max.as_ref(), raw.result_bytes_max.as_ref()])
    {
        report.warning(place, "one result may be larger than all that a principal may have in the store");
    }
    limits
}
