//! Defines the tables, and holds the server to what they need.
//!
//! `tg_task` has a row for each task. Its record is the one that the disk store writes, with the checksum; the other columns are what
//! statements must find, and a summary for lists. All text is `bytea`, as tasks may hold what is no text to PostgreSQL.
//! `tg_lane` has a line for each replica's writer: see [`super::statements`].
//! In `tg_replica` a time below zero is one that is distrusted: see [`super::replica_lines::line_time`].

use std::time::Duration;

use super::health::PostgresHealth;
use super::open_error::PostgresOpenError;
use super::server_words::in_words;
use super::session::{Session, in_time};
use super::settings::{Durability, PostgresSettings};

/// What this program makes. Newer ones are left alone.
pub(super) const VERSION: i32 = 1;

/// Oldest server, as `server_version_num`.
const SERVER_MIN: i32 = 140_000;

/// How long it may take to write all rows anew: enough for a hundred times as many as the largest store that was measured.
const REWRITE_MAX: Duration = Duration::from_secs(3_600);

/// Taken by whoever makes the schema: "tgat", and the schema's name beside it.
const LOCK: i32 = 0x7467_6174;

/// An update keeps what it finds in `size_before` and `open_before`, so that sums follow from what it returns. The condition of
/// `tg_task_age` holds for all rows: it keeps the planner from looking rows up by key in it, however cheap it thinks that to be.
///
/// No index has a column that moves while a task goes on as it is, and each page has room for other versions of its rows: so its
/// progress is written within the page, and to no index (PostgreSQL's HOT updates). That is why `ended` and `ended_lag` stand
/// beside `updated` and `lag`, and have nothing to say before the end.
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
    state smallint NOT NULL, lag smallint NOT NULL, scope bytea NOT NULL, parent bytea,
    created bigint NOT NULL, updated bigint NOT NULL, expires bigint NOT NULL,
    ref bytea NOT NULL, idem bytea, size bigint NOT NULL, size_before bigint, open_before boolean,
    summary bytea NOT NULL, record bytea NOT NULL, upstream bytea,
    ended bigint GENERATED ALWAYS AS (CASE WHEN settled THEN updated END) STORED,
    ended_lag smallint GENERATED ALWAYS AS (CASE WHEN settled THEN lag ELSE -1 END) STORED,
    PRIMARY KEY (id, owner)) WITH (fillfactor = 50);
ALTER TABLE tg_task ALTER COLUMN record SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX tg_task_name ON tg_task (owner, idem) WHERE idem IS NOT NULL;
CREATE INDEX tg_task_holder ON tg_task (holder) WHERE holder IS NOT NULL;
CREATE INDEX tg_task_gone ON tg_task (expires) WHERE settled;
CREATE INDEX tg_task_due ON tg_task (expires) WHERE NOT settled;
CREATE INDEX tg_task_age ON tg_task (owner, created, id) WHERE created >= 0;
CREATE INDEX tg_task_newest ON tg_task (created DESC, ref);
CREATE INDEX tg_task_ref ON tg_task (ref);
CREATE INDEX tg_task_created ON tg_task (owner, scope, state, ended_lag, created, id) WHERE state >= 0;
CREATE INDEX tg_task_ended ON tg_task (owner, scope, state, ended_lag, ended, id) WHERE state >= 0 AND ended >= 0;
CREATE INDEX tg_task_parent ON tg_task (owner, parent) WHERE parent IS NOT NULL;
CREATE TABLE tg_usage (
    incarnation bigint, owner bytea, tasks bigint NOT NULL, unsettled bigint NOT NULL, bytes bigint NOT NULL,
    PRIMARY KEY (incarnation, owner));
";

/// What a schema of this version lacks that an earlier program made. Such a program neither misses it nor trips over it, so that
/// both can be there at once: its filtered lists alone take longer. All rows are written anew.
const ADDED: &str = "
DROP INDEX IF EXISTS tg_task_age, tg_task_created, tg_task_updated;
ALTER TABLE tg_task ADD COLUMN IF NOT EXISTS upstream bytea,
    ADD COLUMN ended bigint GENERATED ALWAYS AS (CASE WHEN settled THEN updated END) STORED,
    ADD COLUMN ended_lag smallint GENERATED ALWAYS AS (CASE WHEN settled THEN lag ELSE -1 END) STORED;
CREATE INDEX tg_task_age ON tg_task (owner, created, id) WHERE created >= 0;
CREATE INDEX tg_task_created ON tg_task (owner, scope, state, ended_lag, created, id) WHERE state >= 0;
CREATE INDEX tg_task_ended ON tg_task (owner, scope, state, ended_lag, ended, id) WHERE state >= 0 AND ended >= 0;
ALTER TABLE tg_task SET (fillfactor = 50);
";

/// How the tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchemaState {
    Missing,
    /// They lack what is [`ADDED`].
    Earlier,
    Whole,
}

/// Holds the server to what the store needs, whatever its schema is.
///
/// # Errors
/// `OldServer`, `Unsafe`, `NoStandby`, `Away`.
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

/// Makes the schema if there is none, and what it lacks, once, however many replicas begin at the same time. A commit that is unsure is no
/// mistake here: whoever comes next finds all of it or nothing, and goes on behind a barrier. Each step may take as long as `within`,
/// but what depends on how many rows there are. After an error the session is in a transaction, and is to be dropped.
///
/// # Errors
/// `Newer`, `Foreign`, `Refused`; `Away`, also where another one changes the schema just now.
pub(super) async fn prepare(
    session: &Session,
    settings: &PostgresSettings,
    within: Duration,
) -> Result<(), PostgresOpenError> {
    if in_time(within, state(session, settings)).await? == SchemaState::Whole {
        return Ok(());
    }
    // Another one may have made it in the meantime.
    let (sql, within) = match in_time(within, lock(session, settings)).await? {
        SchemaState::Missing => {
            (format!("{TABLES} INSERT INTO tg_meta (schema_version) VALUES ({VERSION}); COMMIT"), within)
        }
        SchemaState::Earlier => {
            tracing::warn!(
                "all rows of the database are written anew for this version; what is written to it waits for that"
            );
            (format!("{ADDED} COMMIT"), REWRITE_MAX)
        }
        SchemaState::Whole => ("COMMIT".to_owned(), within),
    };
    in_time(within, run(session, &sql)).await
}

/// Begins the transaction that alone changes the schema, and looks at what it finds then.
async fn lock(session: &Session, settings: &PostgresSettings) -> Result<SchemaState, PostgresOpenError> {
    let (schema, lock_max) = (&settings.access.schema, settings.access.write_max.as_millis());
    run(session, &format!("BEGIN; SET LOCAL lock_timeout = {lock_max}")).await?;
    let locked = session.client.query("SELECT pg_advisory_xact_lock($1, hashtext($2))", &[&LOCK, schema]).await;
    locked.map_err(|error| refused(&error))?;
    // Whoever owns a schema need not be allowed to make one, which is asked before it is looked whether it is there. A read of the
    // table itself sees what was committed while this one waited for the lock; a lookup by name may be answered from before.
    let is_there = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    let is_there = session.client.query_one(is_there, &[schema]).await;
    let is_there = is_there.and_then(|row| row.try_get::<_, bool>(0)).map_err(|error| refused(&error))?;
    if !is_there {
        run(session, &format!("CREATE SCHEMA {schema}")).await?;
    }
    state(session, settings).await
}

async fn run(session: &Session, sql: &str) -> Result<(), PostgresOpenError> {
    session.client.batch_execute(sql).await.map_err(|error| refused(&error))
}

async fn state(session: &Session, settings: &PostgresSettings) -> Result<SchemaState, PostgresOpenError> {
    let schema = &settings.access.schema;
    let sql = "SELECT to_regclass($1) IS NOT NULL, EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
               WHERE n.nspname = $2 AND c.relname LIKE 'tg\\_%'), EXISTS (SELECT FROM pg_attribute \
               WHERE attrelid = to_regclass($3) AND attname = 'ended_lag' AND NOT attisdropped)";
    let (meta, tasks) = (format!("{schema}.tg_meta"), format!("{schema}.tg_task"));
    let row = session.client.query_one(sql, &[&meta, schema, &tasks]).await;
    let row = row.map_err(|error| refused(&error))?;
    let has = |at| row.try_get::<_, bool>(at).map_err(|error| refused(&error));
    if !has(0)? {
        let is_foreign = has(1)?;
        return if is_foreign {
            Err(PostgresOpenError::Foreign { schema: schema.clone() })
        } else {
            Ok(SchemaState::Missing)
        };
    }
    let found = session.client.query_opt("SELECT schema_version FROM tg_meta", &[]).await;
    let found = found.map_err(|error| refused(&error))?;
    let found = found.map(|row| row.try_get::<_, i32>(0)).transpose().map_err(|error| refused(&error))?;
    match found {
        Some(VERSION) => Ok(if has(2)? { SchemaState::Whole } else { SchemaState::Earlier }),
        Some(found) if found > VERSION => Err(PostgresOpenError::Newer { found, known: VERSION }),
        Some(_) | None => Err(PostgresOpenError::Foreign { schema: schema.clone() }),
    }
}

/// What the server refuses while it can be reached is refused for good, unless it says that it cannot now.
fn refused(error: &tokio_postgres::Error) -> PostgresOpenError {
    let passing = |code: &str| ["08", "53", "55", "57", "40", "25"].iter().any(|class| code.starts_with(class));
    match error.code() {
        Some(code) if !passing(code.code()) => PostgresOpenError::Refused(in_words(error)),
        _ => PostgresOpenError::Away(PostgresHealth::of(error)),
    }
}
