//! The writer's SQL statements.
//!
//! Each transaction that changes rows starts with a write to this writer's row in `tg_lane`, guarded by the number of
//! its connection (its epoch). So every acknowledgement proves that its reads are durable. A transaction left
//! by an earlier connection ends before the next one gets its number, or finds the number gone and changes nothing:
//! after that, no unresolved write can appear. The guard returns one row, or none if the number is gone.
//!
//! All writes of a batch are one statement on arrays of keys, which adds its changes to the sums and returns them.
//!
//! Cached plans may stem from almost empty tables, so each lookup leaves the planner only the intended index: other
//! conditions are `column + 0`, and only page queries name the condition of the index of ages ([`super::schema`]).
//! `tg_usage` is read row by row behind `LIMIT`, and deleted by position: a join would scan an incarnation's rows.

use tokio_postgres::{Error, Statement};

use super::session::Session;
use crate::store::tasks::{Revision, SWEEP_BYTES_MAX};

/// Writes to this writer's own row. `$1` is the incarnation, `$2` the connection's number.
const GUARD: &str =
    "guard AS (UPDATE tg_lane SET writes = writes + 1 WHERE incarnation = $1 AND epoch = $2 RETURNING 1)";

const GONE: &str = "t.id, t.owner, t.rev, t.holder, -1 AS tasks, -(NOT t.settled)::int AS unsettled, -t.size AS bytes";

/// Adds the `changed` rows to this incarnation's sums, which no other replica writes while it lives, and deletes sums
/// that become zero. Returns one row for the guard, and one for each change.
const SUMS: &str = "
added AS (
    SELECT owner, sum(tasks)::int8 AS tasks, sum(unsettled)::int8 AS unsettled, sum(bytes)::int8 AS bytes FROM changed GROUP BY owner
    HAVING sum(tasks) <> 0 OR sum(unsettled) <> 0 OR sum(bytes) <> 0),
spent AS (
    DELETE FROM tg_usage u WHERE u.ctid = ANY (ARRAY(
        SELECT l.ctid FROM added a CROSS JOIN LATERAL (
            SELECT ctid, * FROM tg_usage l WHERE l.incarnation = $1 AND l.owner = a.owner LIMIT 1) l
        WHERE l.tasks = -a.tasks AND l.unsettled = -a.unsettled AND l.bytes = -a.bytes))
    RETURNING u.owner),
sums AS (
    INSERT INTO tg_usage AS u (incarnation, owner, tasks, unsettled, bytes)
    SELECT $1, owner, tasks, unsettled, bytes FROM added WHERE owner NOT IN (SELECT owner FROM spent) ORDER BY owner
    ON CONFLICT (incarnation, owner) DO UPDATE SET tasks = u.tasks + excluded.tasks,
        unsettled = u.unsettled + excluded.unsettled, bytes = u.bytes + excluded.bytes)
SELECT true, NULL::bytea AS id, NULL::bytea AS owner, NULL::bigint AS rev, NULL::bigint AS holder,
    NULL::bigint AS tasks, NULL::bigint AS unsettled, NULL::bigint AS bytes FROM guard
UNION ALL SELECT false, id, owner, rev, holder, tasks, unsettled, bytes FROM changed";

const MOVING: [(&str, &str); 7] = [
    ("settled", "bool"),
    ("updated", "int8"),
    ("expires", "int8"),
    ("size", "int8"),
    ("summary", "bytea"),
    ("record", "bytea"),
    ("idem", "bytea"),
];
const STAYING: [(&str, &str); 4] = [("parent", "bytea"), ("created", "int8"), ("ref", "bytea"), ("upstream", "bytea")];
/// Further parameters: the expected revision (null: new row), whether the holder writes, whether the row will need one.
const RULES: [(&str, &str); 3] = [("expected", "int8"), ("by_holder", "bool"), ("needs_holder", "bool")];

/// Updates, inserts and deletes rows. `$1`, `$2` as in [`GUARD`]; then arrays of written rows: `id`, `owner`, [`RULES`],
/// [`MOVING`], [`STAYING`]; then of deleted rows: `id`, `owner`, whether only an insert of this incarnation without later
/// writes, and by when it must have expired, if at all. Other deletes skip unsettled rows of another holder.
pub(super) fn batch() -> String {
    let keys = [("id", "bytea"), ("owner", "bytea")];
    let columns: Vec<_> = keys.iter().chain(&RULES).chain(&MOVING).chain(&STAYING).collect();
    let arrays: Vec<_> = columns.iter().zip(3..).map(|((_, kind), at)| format!("${at}::{kind}[]")).collect();
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let (arrays, removed) = (arrays.join(", "), 3 + columns.len());
    let names = names.join(", ");
    // A released idempotency key stays released. An empty text releases it.
    let moved = |(name, _): &(&str, &str)| match *name {
        "idem" => "idem = CASE WHEN w.idem = '' THEN NULL ELSE t.idem END".to_owned(),
        name => format!("{name} = w.{name}"),
    };
    let moved: Vec<_> = MOVING.iter().map(moved).collect();
    let stored: Vec<_> = keys.iter().chain(&MOVING).chain(&STAYING).map(|(name, _)| *name).collect();
    let (moved, stored, first) = (moved.join(", "), stored.join(", "), Revision::FIRST.0);
    let values = stored.replace("idem", "nullif(idem, '')");
    format!(
        "WITH {GUARD},
        w AS (SELECT * FROM unnest({arrays}) AS w ({names}) WHERE EXISTS (SELECT FROM guard)),
        put AS (
            UPDATE tg_task t SET rev = t.rev + 1, holder = CASE WHEN w.needs_holder THEN coalesce(t.holder, $1) END,
                size_before = t.size, open_before = NOT t.settled, {moved}
            FROM w WHERE w.expected IS NOT NULL AND t.id = w.id AND t.owner = w.owner AND t.rev = w.expected
                AND (NOT w.by_holder OR t.holder = $1)
            RETURNING t.id, t.owner, t.rev, t.holder, 0 AS tasks, (NOT t.settled)::int - t.open_before::int AS unsettled,
                t.size - t.size_before AS bytes),
        made AS (
            INSERT INTO tg_task AS t (rev, holder, {stored})
            SELECT {first}, CASE WHEN needs_holder THEN $1 END, {values} FROM w WHERE expected IS NULL
            ON CONFLICT DO NOTHING
            RETURNING t.id, t.owner, t.rev, t.holder, 1 AS tasks, (NOT t.settled)::int AS unsettled, t.size AS bytes),
        gone AS (
            DELETE FROM tg_task t
            USING unnest(${removed}::bytea[], ${}::bytea[], ${}::bool[], ${}::int8[]) AS d (id, owner, is_new, gone_at)
            WHERE t.id = d.id AND t.owner = d.owner AND EXISTS (SELECT FROM guard)
                AND CASE WHEN d.is_new THEN t.rev = {first} AND t.holder = $1
                    WHEN d.gone_at IS NOT NULL THEN t.settled AND t.expires <= d.gone_at
                    ELSE t.settled OR t.holder IS NULL OR t.holder = $1 END
            RETURNING {GONE}),
        changed AS (SELECT * FROM put UNION ALL SELECT * FROM made UNION ALL SELECT * FROM gone),
        {SUMS}",
        removed + 1,
        removed + 2,
        removed + 3
    )
}

/// Releases expired rows' idempotency keys. `$1` to `$3`: owner, key, new row's creation time; `$4`, `$5`: [`GUARD`].
const RELEASE: &str = "
UPDATE tg_task t SET idem = NULL FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) AS n (owner, idem, now)
WHERE t.owner = n.owner AND t.idem = n.idem AND t.settled AND t.expires + 0 <= n.now
    AND EXISTS (SELECT FROM tg_lane WHERE incarnation = $4 AND epoch = $5)";

/// Reads rows that could not be replaced. `$3`, `$4` are arrays of ids and owners.
fn look() -> String {
    format!(
        "WITH {GUARD} SELECT false, t.id, t.owner, t.rev, t.holder FROM unnest($3::bytea[], $4::bytea[]) AS w (id, owner)
        CROSS JOIN LATERAL (SELECT * FROM tg_task t WHERE t.id = w.id AND t.owner = w.owner LIMIT 1) t
        WHERE EXISTS (SELECT FROM guard)
        UNION ALL SELECT true, NULL, NULL, NULL, NULL FROM guard"
    )
}

/// Deletes at most `$4` rows expired at `$3`, up to a sweep's byte limit: a longer statement would time out endlessly.
fn sweep() -> String {
    format!(
        "WITH {GUARD},
        picked AS (
            SELECT id, owner, expires, size FROM tg_task WHERE settled AND expires <= $3 AND EXISTS (SELECT FROM guard)
            ORDER BY expires LIMIT $4 FOR UPDATE SKIP LOCKED),
        summed AS (SELECT id, owner, sum(size) OVER (ORDER BY expires, id, owner) - size AS before FROM picked),
        changed AS (
            DELETE FROM tg_task t USING summed p WHERE t.id = p.id AND t.owner = p.owner AND p.before < {SWEEP_BYTES_MAX}
            RETURNING {GONE}),
        {SUMS}"
    )
}

/// The condition on a claimable row `t`; [`super::task_write::ClaimableRows`] has the arrays from `upstreams` on.
fn is_claimable(upstreams: u8) -> String {
    format!("(t.upstream = ANY (${upstreams}) OR t.holder = ANY (${}))", upstreams + 1)
}

/// Whether any row is claimable. `$1`, `$2` as in [`is_claimable`].
pub(super) fn has_claimable() -> String {
    format!(
        "SELECT EXISTS (SELECT FROM tg_task t
            WHERE t.holder = ANY (ARRAY(SELECT incarnation FROM tg_replica WHERE dead)) AND {})",
        is_claimable(1)
    )
}

/// Claims up to `$5` rows and their subtasks: a subtask follows its parent if that is claimable too. `$3`, `$4` as in
/// [`is_claimable`]. A dead incarnation claims none. No ORDER BY: each claim would read and sort all claimable rows.
fn claim() -> String {
    format!(
        "WITH RECURSIVE {GUARD},
        dead AS (
            SELECT array_agg(incarnation) AS all FROM tg_replica WHERE dead
            AND EXISTS (SELECT FROM guard) AND EXISTS (SELECT FROM tg_replica WHERE incarnation = $1 AND NOT dead)),
        picked AS (
            SELECT t.id, t.owner FROM tg_task t WHERE t.holder = ANY ((SELECT dead.all FROM dead)::bigint[]) AND {}
            AND NOT EXISTS (
                SELECT FROM tg_task p WHERE p.id = t.parent AND p.owner = t.owner
                AND p.holder + 0 = ANY ((SELECT dead.all FROM dead)::bigint[]))
            LIMIT $5 FOR UPDATE OF t SKIP LOCKED),
        tree AS (
            SELECT id, owner FROM picked
            UNION SELECT c.id, c.owner FROM tree JOIN tg_task c ON c.owner = tree.owner AND c.parent = tree.id
            WHERE c.parent IS NOT NULL AND c.holder + 0 = ANY ((SELECT dead.all FROM dead)::bigint[])),
        changed AS (
            UPDATE tg_task t SET holder = $1, rev = t.rev + 1 FROM tree
            WHERE t.id = tree.id AND t.owner = tree.owner AND t.holder + 0 = ANY ((SELECT dead.all FROM dead)::bigint[])
            RETURNING t.id, t.owner, t.rev, t.holder)
        SELECT true, NULL::bytea, NULL::bytea, NULL::bigint, NULL::bigint FROM guard
        UNION ALL SELECT false, id, owner, rev, holder FROM changed",
        is_claimable(3)
    )
}

pub(super) const HELD: &str = "SELECT id, owner FROM tg_task WHERE holder = $1";

/// Incarnations dead for longer than some seconds; only the named one, if given.
fn long_dead(seconds: &str, one: &str) -> String {
    format!(
        "SELECT r.incarnation FROM tg_replica r JOIN tg_lane l USING (incarnation)
        WHERE r.dead AND r.died < now() - make_interval(secs => {seconds})
            AND ({one}::bigint IS NULL OR r.incarnation = {one})"
    )
}

/// Closes long-dead incarnations' lanes, which excludes their later writes for good. Skips locked lanes. [`retire`]
/// then sees every earlier write. `$1`: age in seconds, `$2`: maximum count, `$3`: the only incarnation or null.
fn close_lanes() -> String {
    let long_dead = long_dead("$1", "$3");
    format!(
        "UPDATE tg_lane SET epoch = -1 WHERE incarnation IN (
            {long_dead} AND l.epoch >= 0 ORDER BY r.incarnation LIMIT $2 FOR UPDATE OF l SKIP LOCKED)"
    )
}

/// Moves up to `$4` sums here, then removes up to `$3` long-dead incarnations with closed lanes and no rows. `$5`: age
/// in seconds; `$6`: the only one, or null. Keeps the newest lane, by which [`super::opening`] finds a restored store.
fn retire() -> String {
    let long_dead = long_dead("$5", "$6");
    format!(
        "WITH {GUARD},
        ended AS (
            {long_dead} AND l.epoch = -1 AND r.incarnation <> $1 AND EXISTS (SELECT FROM guard)
                AND NOT EXISTS (SELECT FROM tg_task t WHERE t.holder = r.incarnation)
            ORDER BY r.incarnation LIMIT $3),
        picked AS (
            SELECT u.incarnation, u.owner FROM ended JOIN tg_usage u USING (incarnation) ORDER BY 1, 2 LIMIT $4
            FOR UPDATE OF u SKIP LOCKED),
        changed AS (
            DELETE FROM tg_usage u USING picked p WHERE u.incarnation = p.incarnation AND u.owner = p.owner
            RETURNING NULL::bytea AS id, u.owner, NULL::bigint AS rev, NULL::bigint AS holder, u.tasks, u.unsettled, u.bytes),
        bare AS (
            SELECT incarnation FROM ended WHERE NOT EXISTS (SELECT FROM tg_usage u WHERE u.incarnation = ended.incarnation)),
        removed AS (
            SELECT incarnation FROM bare UNION SELECT l.incarnation FROM tg_lane l
            WHERE EXISTS (SELECT FROM guard) AND NOT EXISTS (SELECT FROM tg_replica r WHERE r.incarnation = l.incarnation)),
        lanes AS (
            DELETE FROM tg_lane l USING removed
            WHERE l.incarnation = removed.incarnation AND l.incarnation < (SELECT max(incarnation) FROM removed)),
        replicas AS (DELETE FROM tg_replica r USING bare WHERE r.incarnation = bare.incarnation),
        {SUMS}"
    )
}

/// The incarnation without a process; real ones are numbered from 1.
const NO_INCARNATION: i64 = 0;

/// Reassigns sums of the owners `$3` to [`NO_INCARNATION`]. Returns a row for the guard, and one for each sum.
fn merge() -> String {
    format!(
        "WITH {GUARD},
        moved AS (
            DELETE FROM tg_usage u WHERE u.ctid = ANY (ARRAY(
                SELECT l.ctid FROM unnest($3::bytea[]) AS o (owner) CROSS JOIN LATERAL (
                    SELECT ctid FROM tg_usage l WHERE l.incarnation = $1 AND l.owner = o.owner LIMIT 1) l
                WHERE EXISTS (SELECT FROM guard)))
            RETURNING u.owner, u.tasks, u.unsettled, u.bytes),
        merged AS (
            INSERT INTO tg_usage AS u (incarnation, owner, tasks, unsettled, bytes)
            SELECT {NO_INCARNATION}, owner, tasks, unsettled, bytes FROM moved ORDER BY owner
            ON CONFLICT (incarnation, owner) DO UPDATE SET tasks = u.tasks + excluded.tasks,
                unsettled = u.unsettled + excluded.unsettled, bytes = u.bytes + excluded.bytes)
        SELECT true, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint FROM guard
        UNION ALL SELECT false, owner, tasks, unsettled, bytes FROM moved"
    )
}

/// Deletes zero sums of the owners `$1`, after [`merge`], which holds their locks.
fn drop_merged() -> String {
    format!(
        "DELETE FROM tg_usage u WHERE u.ctid = ANY (ARRAY(
            SELECT l.ctid FROM unnest($1::bytea[]) AS o (owner) CROSS JOIN LATERAL (
                SELECT ctid FROM tg_usage l WHERE l.incarnation = {NO_INCARNATION} AND l.owner = o.owner LIMIT 1) l))
        AND u.tasks = 0 AND u.unsettled = 0 AND u.bytes = 0"
    )
}

/// Gives the connection its number, which waits for unfinished transactions of earlier ones. Closed lanes stay closed.
pub(super) const TAKE_EPOCH: &str =
    "UPDATE tg_lane SET epoch = epoch + 1 WHERE incarnation = $1 AND epoch >= 0 RETURNING epoch";

pub(super) const OWN_SUMS: &str = "SELECT owner, tasks, unsettled, bytes FROM tg_usage WHERE incarnation = $1";

const HINT: &str = "SELECT pg_notify($1, x) FROM unnest($2::text[]) AS x";

#[derive(Debug)]
pub(super) struct WriterStatements {
    pub(super) batch: Statement,
    pub(super) release: Statement,
    pub(super) look: Statement,
    pub(super) sweep: Statement,
    pub(super) claim: Statement,
    pub(super) close_lanes: Statement,
    pub(super) retire: Statement,
    pub(super) merge: Statement,
    pub(super) drop_merged: Statement,
    pub(super) hint: Statement,
}

impl WriterStatements {
    pub(super) async fn prepare(session: &Session) -> Result<Self, Error> {
        let client = &session.client;
        Ok(Self {
            batch: client.prepare(&batch()).await?,
            release: client.prepare(RELEASE).await?,
            look: client.prepare(&look()).await?,
            sweep: client.prepare(&sweep()).await?,
            claim: client.prepare(&claim()).await?,
            close_lanes: client.prepare(&close_lanes()).await?,
            retire: client.prepare(&retire()).await?,
            merge: client.prepare(&merge()).await?,
            drop_merged: client.prepare(&drop_merged()).await?,
            hint: client.prepare(HINT).await?,
        })
    }
}
