//! Files that block, fail, are renamed, or have another writer.

use std::io::Read as _;
use std::sync::Mutex;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::net::UnixDatagram;
use tokio_util::task::TaskTracker;

use super::*;

const REFUSED: &str = "audit_unavailable";

fn with_path(path: &Path, more: &str) -> String {
    format!("[audit]\npath = \"{}\"\n{more}\n", path.display())
}

async fn call(program: &Program) -> Answer {
    Call::plain(&json!({})).send(program.clients, "/up/mcp").await
}

async fn is_ready(program: &Program, status: u16, said: &str) {
    in_time(async {
        loop {
            let ready = program.get("/readyz?verbose").await;
            if ready.status == status && ready.body.contains("audit failing") != said.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

fn pipe(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// SEC-34.
#[tokio::test]
async fn sec_34_a_sink_that_is_full_or_blocked_stops_no_request_unless_records_are_required() {
    let dir = tempfile::tempdir().unwrap();
    let sinks = [PathBuf::from("/dev/full"), pipe(&dir)];
    for sink in &sinks {
        let server = echo().await;
        let folder = Folder::with(&with_path(sink, ""));
        folder.write(&block("up", &server));
        let mut program = Program::serve(&folder).await;
        is_ready(&program, 200, "audit failing").await;
        assert_eq!(load(&program, 50).await, 50, "{}", sink.display());
        assert_eq!(program.counted("taskgate_audit_records_total").await, 0);
        program.signal("INT");
        assert_eq!(program.ended().await, Some(0), "it ends nevertheless");
    }
    for sink in &sinks {
        let server = echo().await;
        let folder = Folder::with(&with_path(sink, "required = true"));
        folder.write(&block("up", &server));
        let program = Program::serve(&folder).await;
        is_ready(&program, 503, "audit failing").await;
        for _ in 0..3 {
            let refused = call(&program).await;
            assert_eq!(refused.status, 503, "{}: {refused:?}", sink.display());
            assert!(refused.body.contains(REFUSED), "{refused:?}");
        }
        assert_eq!(server.world.count("tools/call"), 0, "nothing was sent");
        let cancel = "/tasks/000000000000/cancel";
        assert_eq!(
            send(program.admin, "POST", cancel, &[("content-type", "application/json")], "{}").await.status,
            503
        );
        assert_eq!(program.get("/tasks").await.status, 200);
    }
}

/// SEC-34 at a limit of the file's size, of which a signal tells first.
#[tokio::test]
async fn sec_34_a_limit_of_the_files_size_stops_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let server = echo().await;
    let folder = Folder::with(&with_path(&path, ""));
    folder.write(&block("up", &server));
    let mut program = Program::serve(&folder).await;
    let limit = Rlimit { current: Some(16 << 10), maximum: Some(16 << 10) };
    let process = Pid::from_raw(program.id().try_into().unwrap());
    prlimit(process, Resource::Fsize, limit).unwrap();
    assert_eq!(load(&program, 200).await, 200);
    is_ready(&program, 200, "audit failing").await;
    assert!(fs::metadata(&path).unwrap().len() <= 16 << 10);
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0), "it ends nevertheless");
}

/// SEC-34 in a session: the refusal has status 200, as its client would drop its connection at 503. With a task, and without one.
#[tokio::test]
async fn sec_34_a_session_is_told_under_200_that_its_call_cannot_be_recorded() {
    let server = ScriptedServer::polite().await;
    let folder = Folder::with(&with_path(Path::new("/dev/full"), "required = true"));
    folder.write(&block("up", &server));
    let program = Program::serve(&folder).await;
    is_ready(&program, 503, "audit failing").await;
    let mut headers = vec![
        ("content-type", "application/json".to_owned()),
        ("accept", "application/json, text/event-stream".to_owned()),
    ];
    let ask = async |headers: &[(&'static str, String)], method: &str, params: Value| {
        let body = json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": params}).to_string();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        send(program.clients, "POST", "/up/mcp", &headers, &body).await
    };
    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    let opened = ask(&headers, "initialize", hello).await;
    let id = opened.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap();
    headers.extend([("mcp-session-id", id.to_owned()), ("mcp-protocol-version", "2025-11-25".to_owned())]);
    for params in [json!({"name": "work", "arguments": {}}), json!({"name": "work", "arguments": {}, "task": {}})] {
        let refused = ask(&headers, "tools/call", params).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (200, &json!(-32603)), "{refused:?}");
        assert_eq!((&error["data"]["reason"], &error["data"]["executed"]), (&json!(REFUSED), &json!("no")), "{error}");
    }
    assert_eq!(ask(&headers, "ping", json!({})).await.status, 200, "a request that is no call is served");
    assert_eq!(server.world.count("tools/call"), 0, "nothing was sent");
}

/// Once the pipe has a reader, the waiting records arrive, and calls go on.
#[tokio::test]
async fn a_blocked_pipe_gets_every_record_once_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, server) = (pipe(&dir), echo().await);
    let folder = Folder::with(&with_path(&pipe, "required = true"));
    folder.write(&block("up", &server));
    let program = Program::serve(&folder).await;
    is_ready(&program, 503, "audit failing").await;
    assert_eq!(call(&program).await.status, 503);
    let text = Arc::new(Mutex::new(Vec::new()));
    let gathered = Arc::clone(&text);
    let reader = std::thread::spawn(move || {
        let mut pipe = fs::File::open(pipe).unwrap();
        let mut part = [0; 4096];
        while let Ok(bytes @ 1..) = pipe.read(&mut part) {
            gathered.lock().unwrap().extend_from_slice(&part[..bytes]);
        }
    });
    is_ready(&program, 200, "").await;
    assert_eq!(load(&program, 5).await, 5);
    drop(program);
    reader.join().unwrap();
    let kept = dir.path().join("kept");
    fs::write(&kept, &*text.lock().unwrap()).unwrap();
    is_one_chain(&[&kept]);
    let begun = lines(&kept).iter().filter(|line| line["what"] == "call.begun").count();
    assert_eq!((begun, server.world.count("tools/call")), (5, 5));
}

/// A limit on the size of files stands for a disk that fills while calls are made.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_grow_keeps_whole_lines_and_tells_how_many_records_were_lost() {
    for (required, answered) in [("", 200), ("required = true", 503)] {
        let (audit, server) = (Audit::new(required), echo().await);
        let folder = Folder::with(&audit.keys);
        folder.write(&block("up", &server));
        let (program, arguments) = (env!("CARGO_BIN_EXE_taskgate"), folder.path().join("taskgate.toml"));
        let mut command = tokio::process::Command::new("sh");
        // The limit counts blocks of 512 bytes. Its signal is ignored, so that writes fail.
        let script = format!("trap '' XFSZ; ulimit -f 40; exec {program} serve --config \"$1\"");
        command.env_remove("TASKGATE_LOG").args(["-c", &script, "-"]).arg(arguments);
        let program = Program::launch(command).await;
        load(&program, 200).await;
        is_ready(&program, if answered == 200 { 200 } else { 503 }, "audit failing").await;
        assert_eq!(call(&program).await.status, answered);
        is_one_chain(&[&audit.path()]);
        assert!(fs::metadata(audit.path()).unwrap().len() <= 40 * 1024);
    }
}

/// A limit on the size of files stands for a disk that fills, and the rename for a move to another one.
#[tokio::test]
async fn sec_34_a_rotation_lets_the_audit_continue_after_a_file_that_cannot_grow() {
    let (audit, server) = (Audit::new("required = true"), echo().await);
    let folder = Folder::with(&audit.keys);
    folder.write(&block("up", &server));
    let program = Program::serve(&folder).await;
    let limit = Rlimit { current: Some(16 << 10), maximum: None };
    prlimit(Pid::from_raw(program.id().try_into().unwrap()), Resource::Fsize, limit).unwrap();
    assert!(load(&program, 200).await < 200);
    is_ready(&program, 503, "audit failing").await;
    let (path, old) = (audit.path(), audit.path().with_extension("1"));
    fs::rename(&path, &old).unwrap();
    program.signal("HUP");
    is_ready(&program, 200, "").await;
    assert_eq!(call(&program).await.status, 200);
    is_one_chain(&[&old, &path]);
    assert!(lines(&path).iter().any(|line| line["outcome"] == "rotated"));
}

#[tokio::test]
async fn sec_80_an_anchor_that_blocks_delays_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let (anchor, server) = (pipe(&dir), echo().await);
    let audit = Audit::new(&format!("required = true\nanchor = \"{}\"", anchor.display()));
    let folder = Folder::with(&audit.keys);
    folder.write(&block("up", &server));
    let mut program = Program::serve(&folder).await;
    assert_eq!(load(&program, 20).await, 20);
    // The digest of the first line waits for a reader.
    let read = tokio::task::spawn_blocking(|| fs::read_to_string(anchor));
    assert!(in_time(read).await.unwrap().unwrap().starts_with("1 "));
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    is_one_chain(&[&audit.path()]);
}

/// SEC-35.
#[tokio::test]
async fn sec_35_two_writers_of_one_file_are_refused() {
    let (audit, server) = (Audit::new(""), echo().await);
    let [first, second] = [0, 1].map(|_| Folder::with(&audit.keys));
    for folder in [&first, &second] {
        folder.write(&block("up", &server));
    }
    let mut program = Program::serve(&first).await;
    let refused = in_time(second.command().kill_on_drop(true).output()).await.unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(75), "{said}");
    assert!(said.contains("key `audit.path`: ") && said.contains("another process writes this audit file"), "{said}");
    assert_eq!(load(&program, 3).await, 3);
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    is_one_chain(&[&audit.path()]);
    // The first process has ended.
    let mut program = Program::serve(&second).await;
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    is_one_chain(&[&audit.path()]);

    for (text, said) in
        [("hello\n", "is not an audit file"), ("{\"seq\":0}\n", "is not an audit file"), ("x", "is not an audit file")]
    {
        fs::write(audit.path(), text).unwrap();
        let refused = in_time(second.command().kill_on_drop(true).output()).await.unwrap();
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains(said), "{refused:?}");
        assert_eq!(fs::read_to_string(audit.path()).unwrap(), text, "it is left as it was");
    }
}

/// A gateway that anchors its audit file.
struct AnchoredGateway {
    audit: Audit,
    anchors: PathBuf,
    folder: Folder,
    program: Program,
    _anchor_folder: TempDir,
    _server: ScriptedServer,
}

impl AnchoredGateway {
    async fn new() -> Self {
        let (anchor_folder, server) = (tempfile::tempdir().unwrap(), echo().await);
        let anchors = anchor_folder.path().join("audit.anchor");
        let audit = Audit::new(&format!("anchor = \"{}\"", anchors.display()));
        let folder = Folder::with(&audit.keys);
        folder.write(&block("up", &server));
        let program = Program::serve(&folder).await;
        Self { audit, anchors, folder, program, _anchor_folder: anchor_folder, _server: server }
    }
}

/// By rename and SIGHUP, as logrotate does it.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_under_load_keeps_the_chain() {
    let mut gateway = AnchoredGateway::new().await;
    let (audit, anchors, program) = (&gateway.audit, gateway.anchors.as_path(), &gateway.program);
    let names: Vec<PathBuf> = (1..=3).map(|n| audit.dir.path().join(format!("audit.jsonl.{n}"))).collect();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let loading = async {
        let mut made = 0;
        while !is_over.load(Ordering::Relaxed) || made < 1_500 {
            made += load(program, 100).await;
        }
        made
    };
    let rotating = async {
        for name in &names {
            audit.until(|line| line["what"] == "call.ended").await;
            fs::rename(audit.path(), name).unwrap();
            program.signal("HUP");
            in_time(async {
                while !audit.path().exists() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
            .await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let (made, ()) = tokio::join!(loading, rotating);
    program.signal("INT");
    assert_eq!(gateway.program.ended().await, Some(0));
    let files: Vec<PathBuf> = names.iter().cloned().chain([audit.path()]).collect();
    let ended = |path: &PathBuf| lines(path).iter().filter(|line| line["what"] == "call.ended").count();
    assert_eq!(files.iter().map(ended).sum::<usize>(), made);
    for file in &files[1..] {
        let first = &lines(file)[0];
        assert_eq!((&first["what"], &first["outcome"]), (&"audit.opened".into(), &"rotated".into()));
    }
    let flag = Path::new("--anchor");
    let all: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    is_one_chain(&all);
    is_one_chain(&[&[flag, anchors], all.as_slice()].concat());
    // Files in another order, a missing file, and a missing end.
    for wrong in [vec![all[1], all[0]], vec![all[0], all[2]], vec![flag, anchors, all[0]]] {
        let output = verify(&wrong);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
    assert_eq!(verify(&[Path::new("/nowhere")]).status.code(), Some(1));
    assert_eq!(verify(&[]).status.code(), Some(64));
}

/// SEC-33. Before the last rename no signal comes: a unit that is being stopped cannot be reloaded.
#[tokio::test]
async fn sec_33_rotations_during_a_drain_keep_the_chain() {
    let (audit, worker) = (Audit::new(""), Worker::start().await);
    let folder = Folder::with(&audit.keys);
    folder.write(&block("up", &worker.server));
    let mut program = Program::serve(&folder).await;
    let (clients, tracker) = (program.clients, TaskTracker::new());
    tracker.spawn(async move { Call::plain(&json!({})).send(clients, "/up/mcp").await });
    worker.calls(1).await;
    program.signal("INT");
    program.says("draining", 1).await;
    let [first, second] = [1, 2].map(|n| audit.dir.path().join(format!("audit.jsonl.{n}")));
    fs::rename(audit.path(), &first).unwrap();
    program.signal("HUP");
    audit.until(|line| line["outcome"] == "rotated").await;
    fs::rename(audit.path(), &second).unwrap();
    program.signal("TERM");
    assert_eq!(program.ended().await, Some(0));
    let mut next = Program::serve(&folder).await;
    next.signal("INT");
    assert_eq!(next.ended().await, Some(0));
    is_one_chain(&[&first, &second, &audit.path()]);
}

/// SEC-56. Emptied under a running gateway, and removed while it is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn sec_56_an_emptied_or_removed_file_is_found_or_named_by_verify() {
    let mut gateway = AnchoredGateway::new().await;
    let (audit, anchors, program) = (&gateway.audit, gateway.anchors.as_path(), &gateway.program);
    assert_eq!(load(program, 3).await, 3);
    audit.until(|_| audit.count("call.ended") == 3).await;
    fs::File::options().write(true).truncate(true).open(audit.path()).unwrap();
    assert_eq!(load(program, 2).await, 2);
    program.signal("INT");
    assert_eq!(gateway.program.ended().await, Some(0));
    let (flag, partial, path) = (Path::new("--anchor"), Path::new("--partial"), audit.path());
    let output = verify(&[flag, anchors, &path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the lines before it are missing"), "{output:?}");
    let output = verify(&[flag, anchors, partial, &path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("not seen: the lines before seq ") && said.contains("; 0 lines agree"), "{said}");
    fs::remove_file(&path).unwrap();
    let mut program = Program::serve(&gateway.folder).await;
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    let output = verify(&[flag, anchors, &path]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("; 1 lines agree with an anchor; not seen: 1 other chains of the anchors"), "{said}");
}

/// SEC-80. Digests that the daemon does not take wait until it does.
#[tokio::test(flavor = "multi_thread")]
async fn sec_80_digests_go_to_the_systems_log_and_verify_compares_them_with_the_lines() {
    let (dir, server) = (tempfile::tempdir().unwrap(), echo().await);
    let socket = dir.path().join("log");
    let audit = Audit::new(&format!("anchor = \"syslog:{}\"", socket.display()));
    let folder = Folder::with(&audit.keys);
    folder.write(&block("up", &server));
    let refused = in_time(folder.command().kill_on_drop(true).output()).await.unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "{said}");
    assert!(said.contains("key `audit.anchor`: ") && said.contains("is not the socket of a syslog daemon"), "{said}");

    let daemon = UnixDatagram::bind(&socket).unwrap();
    let mut program = Program::serve(&folder).await;
    let mut digests = vec![digest(&daemon, &audit).await];
    drop(daemon);
    fs::remove_file(&socket).unwrap();
    assert_eq!(load(&program, 1_200).await, 1_200);
    audit.until(|line| line["seq"] == 1_100).await;
    let daemon = UnixDatagram::bind(&socket).unwrap();
    assert_eq!(load(&program, 1).await, 1);
    digests.push(digest(&daemon, &audit).await);
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));

    assert!(digests[0].starts_with("1 ") && digests[1].starts_with("1000 "), "{digests:?}");
    let (flag, anchors, path) = (Path::new("--anchor"), dir.path().join("anchors"), audit.path());
    let verified = |digests: &[String]| {
        fs::write(&anchors, digests.join("\n") + "\n").unwrap();
        verify(&[flag, &anchors, &path])
    };
    let output = verified(&digests);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("; 2 lines agree with an anchor"), "{output:?}");
    let last = digests[1].pop();
    digests[1].push(if last == Some('0') { '1' } else { '0' });
    assert_eq!(verified(&digests).status.code(), Some(1), "another digest");
}

/// The next digest that the daemon gets, as a line of an anchor file.
async fn digest(daemon: &UnixDatagram, audit: &Audit) -> String {
    let mut bytes = [0; 4096];
    let length = in_time(daemon.recv(&mut bytes)).await.unwrap();
    let text = std::str::from_utf8(&bytes[..length]).unwrap();
    let (head, message) = text.split_once(": ").unwrap();
    let process = head.strip_prefix("<110>taskgate[").and_then(|rest| rest.strip_suffix(']'));
    assert!(process.is_some_and(|id| id.parse::<u32>().is_ok()), "{text}");
    let end = format!(" of {:?}", audit.path());
    let digest = message.strip_prefix("audit anchor ").and_then(|rest| rest.strip_suffix(end.as_str()));
    digest.unwrap_or_else(|| panic!("{text}")).to_owned()
}
