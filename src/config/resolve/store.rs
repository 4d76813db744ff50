//! Resolves the store of tasks, and the settings of a replica.

use std::net::SocketAddr;
use std::time::Duration;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::keys::{KeyField as _, KeyTable as _};
use super::super::raw::{RawConfig, RawDatabase, RawReplica, StoreKind};
use super::super::{DatabaseSettings, ReplicaSettings, StoreSettings};
use super::{GIB, count, identity, is_loopback, value_or, words};
use crate::replica::{Durability, LeaseTerms, StoreGeneration};
use crate::server::replicas::ReplicaTls;
use crate::store::{DatabaseAccess, DatabaseUrl, StoreLimits, check_database_url};
use crate::task::PrincipalLimits;

const WRITE_MAX_LONGEST: Duration = Duration::from_secs(60);

const ONLY_POSTGRES: &str = "is for gateways on one database; write `kind = \"postgres\"` in [store], or leave it out";

pub(super) fn resolve(raw: &RawConfig, each: &PrincipalLimits, report: &mut MistakeCollector) -> StoreSettings {
    let store = &raw.store;
    let kind = store.kind.value;
    if let Some(location) = store.path.location().filter(|_| store.path.value.to_string_lossy().starts_with('~')) {
        report.mistake(location, "begins with ~, which only a shell replaces; write the whole path");
    }
    if kind != StoreKind::Postgres && !report.has_mistake("store.kind") {
        for location in raw.database.locations().into_iter().chain(&raw.replica_location) {
            report.mistake(location, ONLY_POSTGRES);
        }
    }
    match kind {
        StoreKind::Memory => StoreSettings::Memory(resolve_limits(raw, each, GIB, report)),
        StoreKind::Disk => StoreSettings::Disk {
            limits: resolve_limits(raw, each, 8 * GIB, report),
            is_ephemeral: store.ephemeral.value,
        },
        StoreKind::Postgres => {
            if let Some(location) = store.ephemeral.location().filter(|_| store.ephemeral.value) {
                report.mistake(location, "is for a store on disk; leave it out");
            }
            let limits = resolve_limits(raw, each, 8 * GIB, report);
            StoreSettings::Postgres(Box::new(resolve_database(raw, limits, report)))
        }
    }
}

fn resolve_database(raw: &RawConfig, limits: StoreLimits, report: &mut MistakeCollector) -> DatabaseSettings {
    // Without a written kind there is no such store.
    let location = raw.store.kind.location.clone().unwrap_or_else(|| ConfigLocation::own(1, "store".to_owned()));
    let (raw, replica) = (&raw.database, &raw.replica);
    let durability = raw.durability.as_ref().map(|written| written.value);
    if durability.is_none() && !report.has_mistake("store.durability") {
        report.mistake(
            &location,
            "a database needs `durability` beside it, which has no default: \"replicated\" where commits wait for a synchronous \
             standby, \"vouched\" where its storage is replicated, \"single\" where tasks are lost with one server",
        );
    }
    let write_max = raw.write_max.value;
    if let Some(location) = raw.write_max.location().filter(|_| write_max > WRITE_MAX_LONGEST) {
        report.mistake(location, format!("is longer than clients wait, {}", words(WRITE_MAX_LONGEST)));
    }
    DatabaseSettings {
        limits,
        access: DatabaseAccess {
            url: resolve_url(raw, &location, report),
            password_file: raw.password_file.as_ref().map(|file| file.value.clone()),
            ca: raw.ca.as_ref().map(|file| file.value.clone()),
            schema: raw.schema.value.clone(),
            durability: durability.unwrap_or(Durability::Single),
            write_max,
            read_trust: raw.read_trust.value,
            accept_loss: raw.accept_loss.as_ref().map(|written| StoreGeneration(written.value)),
        },
        replica: resolve_replica(replica, report),
    }
}

fn resolve_url(raw: &RawDatabase, location: &ConfigLocation, report: &mut MistakeCollector) -> DatabaseUrl {
    if let Some(url) = &raw.url
        // Without the text, which may contain a password.
        && let Err(error) = check_database_url(&url.value)
    {
        report.mistake(&url.location, error.to_string());
    }
    match (&raw.url, &raw.url_file) {
        (Some(url), None) => DatabaseUrl::Here(url.value.clone()),
        (None, Some(file)) => DatabaseUrl::File(file.value.clone()),
        (Some(_), Some(file)) => {
            report.mistake(&file.location, "is written beside `url`; leave one of them out");
            DatabaseUrl::File(file.value.clone())
        }
        (None, None) => {
            if !report.has_mistake("store.url") && !report.has_mistake("store.url_file") {
                report.mistake(
                    location,
                    "a database needs `url` beside it, such as \"postgres://taskgate@db1,db2/taskgate\", or `url_file`",
                );
            }
            DatabaseUrl::Here(String::new())
        }
    }
}

fn resolve_replica(raw: &RawReplica, report: &mut MistakeCollector) -> ReplicaSettings {
    let terms = LeaseTerms::new(raw.lease.value, raw.alone_max.value).unwrap_or_else(|| {
        if let Some(location) = raw.lease.location() {
            let (min, max) = (words(LeaseTerms::LEASE_MIN), words(LeaseTerms::LEASE_MAX));
            report.mistake(location, format!("is out of bounds; write a duration from {min} to {max}"));
        }
        LeaseTerms::default()
    });
    let tls = resolve_replica_tls(raw, report);
    let is_unreachable = |address: SocketAddr| address.ip().is_unspecified() || address.port() == 0;
    if let Some(address) = raw.address.as_ref().filter(|address| is_unreachable(address.value)) {
        report.mistake(
            &address.location,
            "is not an address that other replicas can reach; write one, with a port that is not 0",
        );
    }
    ReplicaSettings {
        name: raw.name.as_ref().map(|name| name.value.clone()),
        address: raw.address.as_ref().map(|address| address.value),
        tls,
        terms,
        divides: raw.divide.value,
    }
}

/// The certificates between replicas: all files or none. An address outside loopback requires them.
fn resolve_replica_tls(raw: &RawReplica, report: &mut MistakeCollector) -> Option<ReplicaTls> {
    let files = [("certificate", &raw.certificate), ("key", &raw.key), ("ca", &raw.ca)];
    let absent = files.iter().filter(|(key, file)| file.is_none() && !report.has_mistake(&format!("replica.{key}")));
    let absent: Vec<_> = absent.map(|(key, _)| format!("`{key}`")).collect();
    let written = files.iter().find_map(|(_, file)| file.as_ref());
    if let Some(written) = written.filter(|_| !absent.is_empty()) {
        report.mistake(&written.location, format!("needs {} beside it", absent.join(" and ")));
    } else if absent.len() == files.len()
        && let Some(address) = raw.address.as_ref().filter(|address| !is_loopback(address.value))
    {
        report.mistake(
            &address.location,
            "other machines can reach this address, and messages between replicas would not be encrypted; write \
             `certificate`, `key` and `ca` beside it, which both sides present and check",
        );
    }
    let (identity, ca) = identity(raw.certificate.as_ref(), raw.key.as_ref()).zip(raw.ca.as_ref())?;
    Some(ReplicaTls { identity, ca: ca.value.clone() })
}

fn resolve_limits(
    raw: &RawConfig,
    each: &PrincipalLimits,
    stored_bytes_max: usize,
    report: &mut MistakeCollector,
) -> StoreLimits {
    let (own, principal) = (&raw.limits, &raw.principal_limits);
    let limits = StoreLimits {
        tasks_max: count(own.tasks_max.value),
        stored_bytes_max: value_or(own.stored_bytes_max.as_ref(), stored_bytes_max),
    };
    if each.tasks_max > limits.tasks_max
        && let Some(location) = principal.tasks_per_principal_max.location().or_else(|| own.tasks_max.location())
    {
        let (one, all) = (each.tasks_max, limits.tasks_max);
        report.warning(location, format!("one principal may have {one} tasks, but all together only {all}"));
    }
    let result = &own.result_bytes_max;
    if result.value > limits.stored_bytes_max
        && let Some(location) = own.stored_bytes_max.location().or_else(|| result.location())
    {
        report.warning(location, "one result may be larger than the whole store");
    } else if result.value > each.stored_bytes_max
        && let Some(location) = principal.stored_bytes_per_principal_max.location().or_else(|| result.location())
    {
        report.warning(location, "one result may be larger than a principal's share of the store");
    }
    limits
}
