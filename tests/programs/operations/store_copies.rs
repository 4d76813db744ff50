//! `taskgate store`: a store checked and copied under a running gateway, and a gateway that begins with the copy.

use std::path::Path;
use std::process::{Command, Output};

use rusqlite::Connection;
use serde_json::json;

use super::program::{Call, Folder, Program, block};
use super::upstream::{ScriptedServer, answer};

async fn server() -> ScriptedServer {
    ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}))),
        "tools/call" => Some(answer(seen, &json!({"content": [{"type": "text", "text": "done"}]}))),
        _ => None,
    })
    .await
}

fn store(arguments: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_taskgate")).arg("store").args(arguments).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// A gateway on disk whose calls are tasks, with one that has ended.
async fn gateway_with_a_task(server: &ScriptedServer) -> (Folder, Program, serde_json::Value) {
    let folder = Folder::on_disk();
    folder.write(&format!("{}[[upstreams.up.tools]]\nmatch = \"work\"\nmode = \"always\"\n", block("up", server)));
    let program = Program::serve(&folder).await;
    let made = program.task("/up/mcp", "one").await;
    program.until("/up/mcp", &made, "completed").await;
    (folder, program, made)
}

#[tokio::test]
async fn a_copy_of_a_running_gateways_store_has_its_tasks_until_then_and_its_key() {
    let server = server().await;
    let (folder, program, before) = gateway_with_a_task(&server).await;
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let (code, text) = said(&store(&[Path::new("backup"), &data, &copy]));
    assert_eq!((code, text.contains("tasks: 1, unfinished: 0; all can be read")), (Some(0), true), "{text}");
    let since = program.task("/up/mcp", "two").await;
    program.until("/up/mcp", &since, "completed").await;
    assert_eq!(std::fs::read(copy.join("seal.key")).unwrap(), std::fs::read(data.join("seal.key")).unwrap());
    let (code, text) = said(&store(&[Path::new("check"), &data]));
    assert_eq!((code, text.contains("tasks: 2, unfinished: 0; all can be read")), (Some(0), true), "{text}");

    let (code, text) = said(&store(&[Path::new("backup"), &data, &copy]));
    assert_eq!((code, text.contains("there is a file already; name another folder")), (Some(74), true), "{text}");

    // The copy in place of the store: its task is read, and the later one is lost.
    drop(program);
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&copy, &data).unwrap();
    let restored = Program::serve(&folder).await;
    assert_eq!(restored.status("/up/mcp", &before).await, "completed");
    let lost = Call::new("tasks/get", &json!({"taskId": since})).send(restored.clients, "/up/mcp").await;
    assert_eq!(lost.json()["error"]["code"], -32602, "{lost:?}");
}

#[tokio::test]
async fn a_check_names_damaged_tasks_and_changes_nothing() {
    let server = server().await;
    let (folder, program, _) = gateway_with_a_task(&server).await;
    drop(program);
    let data = folder.path().join("data");
    let database = Connection::open(data.join("tasks.db")).unwrap();
    database.execute_batch("UPDATE records SET record = x'00'; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(database);
    let bytes = std::fs::read(data.join("tasks.db")).unwrap();
    let (code, text) = said(&store(&[Path::new("check"), &data]));
    assert_eq!((code, text.contains("unreadable tasks, served as failed: 1: ")), (Some(1), true), "{text}");
    assert_eq!(std::fs::read(data.join("tasks.db")).unwrap(), bytes);
}

/// The rows' pages are damaged, so SQLite cannot read them. The report is about the store, and no file of the copy is blamed.
#[tokio::test]
async fn a_check_and_a_copy_of_a_damaged_file_report_it_and_end_with_1() {
    let server = server().await;
    let (folder, program, _) = gateway_with_a_task(&server).await;
    drop(program);
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let database = Connection::open(data.join("tasks.db")).unwrap();
    let page: usize = database
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = 'tasks'", (), |row| row.get::<_, i64>(0))
        .map(|page| usize::try_from(page).unwrap())
        .unwrap();
    database.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(database);
    let mut bytes = std::fs::read(data.join("tasks.db")).unwrap();
    bytes[(page - 1) * 4096..page * 4096].fill(0xa5);
    std::fs::write(data.join("tasks.db"), bytes).unwrap();
    for arguments in [vec![Path::new("check"), &data], vec![Path::new("backup"), &data, &copy]] {
        let (code, text) = said(&store(&arguments));
        assert_eq!((code, text.contains("the file is damaged: ")), (Some(1), true), "{text}");
        assert!(!text.contains("unfinished:\n") && !text.contains("tasks.db.unfinished"), "{text}");
    }
}

#[tokio::test]
async fn a_missing_sealing_key_is_told_and_a_damaged_one_is_a_failure() {
    let server = server().await;
    let (folder, program, _) = gateway_with_a_task(&server).await;
    drop(program);
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    std::fs::write(data.join("seal.key"), "junk\n").unwrap();
    let (code, text) = said(&store(&[Path::new("check"), &data]));
    assert_eq!((code, text.contains("data/seal.key: ")), (Some(1), true), "{text}");
    std::fs::remove_file(data.join("seal.key")).unwrap();
    for arguments in [vec![Path::new("check"), &data], vec![Path::new("backup"), &data, &copy]] {
        let (code, text) = said(&store(&arguments));
        assert_eq!((code, text.contains("there is no seal.key: ")), (Some(0), true), "{text}");
    }
}

#[test]
fn a_store_that_cannot_be_read_ends_with_74_and_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, text) = (folder.path().join("empty"), folder.path().join("text"));
    std::fs::create_dir(&empty).unwrap();
    std::fs::create_dir(&text).unwrap();
    std::fs::write(text.join("tasks.db"), "words").unwrap();
    let nowhere = folder.path().join("nowhere");
    for (from, reason) in
        [(&empty, "empty: there is no store"), (&nowhere, "nowhere: there is no store"), (&text, "is not a database")]
    {
        for arguments in [vec![Path::new("check"), from], vec![Path::new("backup"), from, Path::new("/proc/nowhere")]] {
            let (code, words) = said(&store(&arguments));
            assert_eq!((code, words.contains(reason)), (Some(74), true), "{words}");
            assert!(!words.contains("that the gateway may write to"), "no key is at fault: {words}");
        }
    }
}

#[tokio::test]
async fn a_copy_writes_over_no_file_and_leaves_none_behind_that_is_not_whole() {
    let server = server().await;
    let (folder, _program, _) = gateway_with_a_task(&server).await;
    let data = folder.path().join("data");
    let (ready, begun) =
        ("there is a file already", "there is a file already; another copy is made here, or was interrupted");
    for (name, why) in [
        ("tasks.db", ready),
        ("tasks.db-wal", ready),
        ("tasks.db-journal", ready),
        ("seal.key", ready),
        ("tasks.db.unfinished", begun),
    ] {
        let copy = folder.path().join(name.replace('.', "-"));
        std::fs::create_dir(&copy).unwrap();
        std::fs::write(copy.join(name), "mine").unwrap();
        let (code, text) = said(&store(&[Path::new("backup"), &data, &copy]));
        assert_eq!((code, text.contains(&format!("{name}: {why}"))), (Some(74), true), "{text}");
        assert_eq!(std::fs::read_to_string(copy.join(name)).unwrap(), "mine");
        assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 1, "{name}: nothing else is there");
    }
    // The key cannot be read: it is a folder.
    let (broken, copy) = (folder.path().join("broken"), folder.path().join("copy"));
    let (code, text) = said(&store(&[Path::new("backup"), &data, &broken]));
    assert_eq!(code, Some(0), "{text}");
    std::fs::remove_file(broken.join("seal.key")).unwrap();
    std::fs::create_dir(broken.join("seal.key")).unwrap();
    let (code, text) = said(&store(&[Path::new("backup"), &broken, &copy]));
    assert_eq!((code, text.contains("broken/seal.key: ")), (Some(74), true), "{text}");
    assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 0, "nothing that is not whole stays");
}
