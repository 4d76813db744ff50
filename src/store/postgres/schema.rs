//! Defines the tables, and checks the server's version and settings. `tg_task` has a task's row with the disk store's
//! record. Text is `bytea`: PostgreSQL rejects some. `tg_lane` is in [`super::statements`]; a negative time in
//! `tg_replica` is distrusted ([`super::replica_rows::row_time`]).

use std::time::Duration;

use super::health::{PostgresHealth, in_words};
use super::open_error::PostgresOpenError;
use super::session::{Session, in_time};
use super::settings::{Durability, PostgresSettings};

/// The schema version; others are refused. A change of tables, or of the format of records or summaries, raises it.
pub(super) const VERSION: i32 = 3;

/// Oldest supported server, as `server_version_num`.
const SERVER_MIN: i32 = 140_000;

/// Advisory lock of schema changes: "tgat", combined with a hash of the schema's name.
const LOCK: i32 = 0x7467_6174;

/// An update copies the old values to `size_before` and `open_before`, from which it returns the change of the sums.
/// The condition of `tg_task_age` holds for every row: it keeps the planner from using that index for lookups by key.
///
/// No index has a column that changes with a task's progress, and pages have room for further row versions: so progress
/// is written without index updates (HOT). Therefore `ended` exists beside `updated`, and is null until the task ends.
const TABLES: &str = "
CREATE TABLE tg_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), schema_version int NOT NULL,
    generation uuid NOT NULL DEFAULT gen_random_uuid(), created timestamptz NOT NULL DEFAULT now());
CREATE TABLE tg_replica (
    incarnation bigserial PRIMARY KEY, name text NOT NULL, address text NOT NULL, version text NOT NULL,
    record_reads int NOT NULL, config_digest bytea NOT NULL, key_print bytea NOT NULL,
    beat bigint NOT NULL DEFAULT 0, now_ms bigint NOT NULL DEFAULT 0,
    leaving boolean NOT NULL DEFAULT false, dead boolean NOT NULL DEFAULT false, died timestamptz);
CREATE TABLE tg_lane (incarnation bigint PRIMARY KEY, epoch bigint NOT NULL, writes bigint NOT NULL DEFAULT 0);
CREATE TABLE tg_task (
    id bytea NOT NULL, owner bytea NOT NULL, rev bigint NOT NULL, holder bigint, settled boolean NOT NULL,
    parent bytea, created bigint NOT NULL, updated bigint NOT NULL, expires bigint NOT NULL,
    ref bytea NOT NULL, idem bytea, size bigint NOT NULL, size_before bigint, open_before boolean,
    summary bytea NOT NULL, record bytea NOT NULL, upstream bytea NOT NULL,
    ended bigint GENERATED ALWAYS AS (CASE WHEN settled THEN updated END) STORED,
    PRIMARY KEY (id, owner)) WITH (fillfactor = 50);
ALTER TABLE tg_task ALTER COLUMN record SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX tg_task_name ON tg_task (owner, idem) WHERE idem IS NOT NULL;
CREATE INDEX tg_task_holder ON tg_task (holder) WHERE holder IS NOT NULL;
CREATE INDEX tg_task_gone ON tg_task (expires) WHERE settled;
CREATE INDEX tg_task_due ON tg_task (expires) WHERE NOT settled;
CREATE INDEX tg_task_age ON tg_task (owner, created, id) WHERE created >= 0;
CREATE INDEX tg_task_newest ON tg_task (created DESC, ref);
CREATE INDEX tg_task_ref ON tg_task (ref);
CREATE INDEX tg_task_ended ON tg_task (owner, ended, id) WHERE ended >= 0;
CREATE INDEX tg_task_open ON tg_task (owner, id) WHERE ended IS NULL;
CREATE INDEX tg_task_parent ON tg_task (owner, parent) WHERE parent IS NOT NULL;
CREATE TABLE tg_usage (
    incarnation bigint, owner bytea, tasks bigint NOT NULL, unsettled bigint NOT NULL, bytes bigint NOT NULL,
    PRIMARY KEY (incarnation, owner));
";

/// Fails with `OldServer`, `Unsafe`, `NoStandby` or `Unavailable`.
pub(super) async fn judge_server(session: &Session, durability: Durability) -> Result<(), PostgresOpenError> {
    let sql = "SELECT current_setting('server_version_num')::int, current_setting('server_version'), \
               current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_standby_names')";
    let row = session.client.query_one(sql, &[]).await.map_err(|error| refused(&error))?;
    let text = |at| row.try_get::<_, String>(at).map_err(|error| refused(&error));
    if row.try_get::<_, i32>(0).map_err(|error| refused(&error))? < SERVER_MIN {
        return Err(PostgresOpenError::OldServer { found: text(1)? });
    }
    for (at, setting) in [(2, "fsync"), (3, "full_page_writes")] {
        if text(at)? != "on" {
            return Err(PostgresOpenError::Unsafe { setting });
        }
    }
    if durability == Durability::Replicated && text(4)?.trim().is_empty() {
        return Err(PostgresOpenError::NoStandby);
    }
    Ok(())
}

/// Creates the schema once, however many replicas start at the same time. An unknown commit is harmless: the next
/// replica finds all of it or none, behind a barrier. Each step is limited to `within`. After an error the session is
/// inside a transaction and must be dropped. `Unavailable` also while another replica changes the schema.
pub(super) async fn prepare(
    session: &Session,
    settings: &PostgresSettings,
    within: Duration,
) -> Result<(), PostgresOpenError> {
    if in_time(within, is_made(session, settings)).await? {
        return Ok(());
    }
    let sql = if in_time(within, lock(session, settings)).await? {
        "COMMIT".to_owned()
    } else {
        format!("{TABLES} INSERT INTO tg_meta (schema_version) VALUES ({VERSION}); COMMIT")
    };
    in_time(within, run(session, &sql)).await
}

/// Starts the transaction that may create the schema, and returns whether it exists by now.
async fn lock(session: &Session, settings: &PostgresSettings) -> Result<bool, PostgresOpenError> {
    let (schema, lock_max) = (&settings.access.schema, settings.access.write_max.as_millis());
    run(session, &format!("BEGIN; SET LOCAL lock_timeout = {lock_max}")).await?;
    let locked = session.client.query("SELECT pg_advisory_xact_lock($1, hashtext($2))", &[&LOCK, schema]).await;
    locked.map_err(|error| refused(&error))?;
    // `CREATE SCHEMA` requires a privilege that the owner may lack, and that is checked first. Reading the table itself
    // sees commits made while this waited for the lock; a lookup by name may come from an older cache.
    let is_there = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    let is_there = session.client.query_one(is_there, &[schema]).await;
    let is_there = is_there.and_then(|row| row.try_get::<_, bool>(0)).map_err(|error| refused(&error))?;
    if !is_there {
        run(session, &format!("CREATE SCHEMA {schema}")).await?;
    }
    is_made(session, settings).await
}

async fn run(session: &Session, sql: &str) -> Result<(), PostgresOpenError> {
    session.client.batch_execute(sql).await.map_err(|error| refused(&error))
}

/// Whether the schema exists, in this program's version.
async fn is_made(session: &Session, settings: &PostgresSettings) -> Result<bool, PostgresOpenError> {
    let schema = &settings.access.schema;
    let sql = "SELECT to_regclass($1) IS NOT NULL, EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
               WHERE n.nspname = $2 AND c.relname LIKE 'tg\\_%')";
    let row = session.client.query_one(sql, &[&format!("{schema}.tg_meta"), schema]).await;
    let row = row.map_err(|error| refused(&error))?;
    let has = |at| row.try_get::<_, bool>(at).map_err(|error| refused(&error));
    if !has(0)? {
        let is_foreign = has(1)?;
        return if is_foreign { Err(PostgresOpenError::Foreign { schema: schema.clone() }) } else { Ok(false) };
    }
    let found = session.client.query_opt("SELECT schema_version FROM tg_meta", &[]).await;
    let found = found.map_err(|error| refused(&error))?;
    let found = found.map(|row| row.try_get::<_, i32>(0)).transpose().map_err(|error| refused(&error))?;
    match found {
        Some(VERSION) => Ok(true),
        Some(found) if found > VERSION => Err(PostgresOpenError::Newer { found, known: VERSION }),
        Some(found) => Err(PostgresOpenError::Older { found, known: VERSION }),
        None => Err(PostgresOpenError::Foreign { schema: schema.clone() }),
    }
}

/// Classifies an error: permanent, unless the code says that the server is only unavailable.
fn refused(error: &tokio_postgres::Error) -> PostgresOpenError {
    let passing = |code: &str| ["08", "53", "55", "57", "40", "25"].iter().any(|class| code.starts_with(class));
    match error.code() {
        Some(code) if !passing(code.code()) => PostgresOpenError::Refused(in_words(error)),
        _ => PostgresOpenError::Unavailable(PostgresHealth::of(error)),
    }
}
