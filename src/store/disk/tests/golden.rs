//! Opens the kept store of this schema, and checks every row.

use std::fs;
use std::path::PathBuf;

use super::super::schema::SCHEMA;
use super::*;
use crate::store::tasks::{Revision, needs_holder};
use crate::task::{
    Answer, CallOrigin, ClientKind, Digest, Idempotency, InputKey, PendingEffects, ProcessExit, Question, Recovery,
    StoredCall, Summary, TaskVisibility,
};
use crate::wire::RpcError;

fn kept_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/store")
}

fn question(text: &str) -> Question {
    Question { ask: Payload::of(text), request: Payload::of(format!("{text}?").as_str()) }
}

fn call() -> StoredCall {
    StoredCall {
        params: Payload::of("params"),
        capabilities: Payload::of("capabilities"),
        progress: true,
        log_level: Some(Arc::from("debug")),
        is_repeatable: true,
        is_native: true,
    }
}

fn outcomes() -> Vec<Outcome> {
    let error = |data| RpcError { code: -32_000, message: "no ß".to_owned(), data };
    let fault = GatewayFault {
        reason: Reason::UpstreamClosed,
        executed: Executed::Yes,
        http_status: Some(503),
        retry_after: Some(Duration::from_millis(1_500)),
        exit: Some(ProcessExit::Signal(9)),
        process: None,
    };
    let returned = |text: &str, is_error| Outcome::Returned { result: Payload::of(text), is_error };
    vec![
        returned("done", false),
        returned("not done", true),
        returned(&"a large result ".repeat(2_700), false),
        Outcome::Faulted(Failure::Upstream(error(None))),
        Outcome::Faulted(Failure::Upstream(error(Some(Payload::of(&"why".repeat(1_500)))))),
        Outcome::Faulted(Failure::Gateway(fault)),
        Outcome::Faulted(Failure::Gateway(GatewayFault::new(Reason::TtlExpired, Executed::No))),
        Outcome::Cancelled,
    ]
}

/// Every phase, and every field of a task at least once. Ids are spread like random ones.
fn tasks() -> Vec<Task> {
    let day = Duration::from_secs(24 * 3_600);
    let bare = |owner: &str, number: u64| Task {
        created_at: START.after(Duration::from_millis(number)),
        updated_at: START.after(Duration::from_millis(number + 5)),
        ttl: day,
        ..task(owner, u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
    };
    let named = |byte| Some(Idempotency { key: Digest([byte; 32]), call: Digest([byte + 1; 32]) });
    let resume = Some(Payload::of("token"));
    let dispatched_at = Some(START.after(Duration::from_millis(3)));
    let running = Recovery { call: Some(call()), resume, dispatched_at, crashes: 1, ..Recovery::default() };
    let no = RpcError { code: -1, message: "declined".to_owned(), data: Some(Payload::of("data")) };
    let undelivered =
        vec![(Payload::of("q1"), Answer::Result(Payload::of("yes"))), (Payload::of("q2"), Answer::Error(no))];
    let queued = Recovery { call: Some(call()), ..Recovery::default() };
    let open = [(InputKey(1), question("a")), (InputKey(2), question("b")), (InputKey(7), question("c"))];
    let origin = CallOrigin { upstream: Arc::from("files"), tool: Arc::from("größe"), client: ClientKind::Session };
    let mut tasks = vec![
        Task { phase: Phase::Queued, recovery: queued.clone(), ..bare("key:ada", 1) },
        Task { phase: Phase::Queued, recovery: queued, visibility: TaskVisibility::Hidden, ..bare("local", 2) },
        Task { recovery: running.clone(), status_message: Some(Arc::from("half")), ..bare("key:ada", 3) },
        Task { recovery: running.clone(), idempotency: named(1), origin, ..bare("key:bob", 4) },
        Task {
            phase: Phase::AwaitingInput(open.into()),
            next_key: InputKey(8),
            attempt: Attempt(2),
            recovery: running.clone(),
            ..bare("key:ada", 5)
        },
        Task { recovery: Recovery { undelivered, ..running.clone() }, ..bare("key:bob", 6) },
        Task { visibility: TaskVisibility::Hidden, recovery: running.clone(), ..bare("key:bob", 7) },
    ];
    for (outcome, number) in outcomes().into_iter().zip(8..) {
        tasks.push(Task { phase: Phase::Settled(outcome), ..bare(["key:ada", "key:bob"][number % 2], number as u64) });
    }
    let settled = |outcome| Phase::Settled(outcome);
    let unnotified =
        Recovery { resume: running.resume, pending_effects: PendingEffects::NOTIFY_UPSTREAM, ..Recovery::default() };
    let result = Outcome::Returned { result: Payload::of("named"), is_error: false };
    tasks.push(Task { phase: settled(Outcome::Cancelled), recovery: unnotified, ..bare("key:ada", 30) });
    tasks.push(Task { phase: settled(result.clone()), idempotency: named(5), ..bare("key:ada", 31) });
    tasks.push(Task { phase: settled(result), visibility: TaskVisibility::Hidden, ..bare("local", 32) });
    tasks
}

fn rewrites(number: usize) -> usize {
    number % 3
}

async fn write_tasks(store: &DiskStore) {
    for (number, task) in tasks().iter().enumerate() {
        let mut revision = store.insert(task).await.unwrap();
        for _ in 0..rewrites(number) {
            revision = store.replace(revision, WriteRole::Command, task).await.unwrap();
        }
    }
    store.load(&tasks()[0].key, START.after(Duration::from_secs(60))).await.unwrap();
}

/// Creates the current schema's file, if it is missing and requested.
async fn make(path: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    write_tasks(&store).await;
    store.close().await;
    fs::create_dir_all(kept_in()).unwrap();
    fs::copy(folder.path().join("data/tasks.db"), path).unwrap();
}

fn copied(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::copy(kept_in().join(name), folder.path().join("data/tasks.db")).unwrap();
    folder
}

async fn holds_every_row(store: &DiskStore) {
    let tasks = tasks();
    for (number, task) in tasks.iter().enumerate() {
        let found = store.load(&task.key, START).await.unwrap().unwrap();
        assert_eq!((&*found.task, found.revision), (task, Revision(1 + rewrites(number) as u64)), "{number}");
        if let Some(named) = &task.idempotency {
            let found = store.find_idempotent(&task.key.owner, &named.key, START).await.unwrap().unwrap();
            assert_eq!(*found.task, *task, "{number}");
        }
        let referred = store.find_reference(ShortReference::of(&task.key), 9).await.unwrap();
        assert_eq!(referred, std::slice::from_ref(&task.key), "{number}");
    }
    let mut open: Vec<_> = tasks.iter().filter(|task| needs_holder(task)).collect();
    open.sort_unstable_by_key(|task| &task.key);
    let open: Vec<_> = open.into_iter().map(|task| task.key.clone()).collect();
    assert_eq!(store.claim(99, &known()).await.unwrap(), open);
    let newest: Vec<_> = tasks.iter().rev().map(Summary::of).collect();
    assert_eq!(store.survey(PageRange::new(None, 99, START)).await.unwrap().tasks, newest);
    let bytes = tasks.iter().map(Task::stored_bytes).sum();
    let unsettled = tasks.iter().filter(|task| !task.is_settled()).count();
    assert_eq!(store.usage(), Usage { tasks: tasks.len(), unsettled, bytes });
    assert_eq!(store.last_seen(), START.after(Duration::from_secs(60)));
    for owner in ["key:ada", "key:bob", "local"].map(Principal::new) {
        let own: Vec<_> = tasks.iter().filter(|task| task.key.owner == owner).map(Summary::of).collect();
        assert_eq!(store.page(&owner, PageRange::new(None, 99, START)).await.unwrap().tasks, own);
    }
}

/// F68: the kept file is opened without loss, and again.
#[tokio::test]
async fn f68_every_row_of_the_kept_store_is_found_as_it_was() {
    let folder = copied(&kept_name());
    for _ in 0..2 {
        let store = open(&folder).await;
        holds_every_row(&store).await;
        store.close().await;
    }
}

fn kept_name() -> String {
    format!("schema_{SCHEMA}.db")
}

/// The format cannot change without a new schema version: another program would take the rows for damaged.
#[tokio::test]
async fn a_changed_file_format_needs_a_new_schema_version_and_file() {
    let kept = kept_in().join(kept_name());
    if std::env::var_os("UPDATE_GOLDEN").is_some() && !kept.exists() {
        make(&kept).await;
    }
    let folder = tempfile::tempdir().unwrap();
    open(&folder).await.close().await;
    let old = copied(&kept_name());
    assert_eq!(tables(&folder), tables(&old), "raise SCHEMA: the tables are not those of the kept file");
    // The rows' bytes too, as this version writes them.
    let store = open(&folder).await;
    write_tasks(&store).await;
    store.close().await;
    assert_eq!(contents(&folder), contents(&old), "raise SCHEMA: rows are not written as in the kept file");
}

fn connect(folder: &TempDir) -> rusqlite::Connection {
    rusqlite::Connection::open(folder.path().join("data/tasks.db")).unwrap()
}

fn tables(folder: &TempDir) -> Vec<String> {
    let conn = connect(folder);
    let mut statement = conn.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").unwrap();
    statement.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// All rows of the task and record tables, byte for byte.
fn contents(folder: &TempDir) -> Vec<String> {
    let conn = connect(folder);
    let mut all = Vec::new();
    for table in ["tasks", "records"] {
        let mut statement = conn.prepare(&format!("SELECT * FROM {table} ORDER BY row")).unwrap();
        let columns = statement.column_count();
        let mut rows = statement.query(()).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let values = (0..columns).map(|at| format!("{:?}", row.get_ref(at).unwrap()));
            all.push(values.collect::<Vec<_>>().join(" "));
        }
    }
    all
}
