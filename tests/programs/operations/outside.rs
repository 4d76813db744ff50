//! The gateway reached from outside its machine: operators with tokens, a scraper of metrics, and `taskgate health`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use support::certificates::{self, Authority};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_rustls::TlsConnector;

use super::program::{Answer, Folder, Program, Worker, block, send};
use super::upstream::{ScriptedServer, in_time, json_text};

const HEX: &str = "0123456789abcdef0123456789abcdef";

fn token(id: &str) -> String {
    format!("tg_{id}_{HEX}")
}

fn write(folder: &Folder, name: &str, content: &str) -> String {
    let (path, draft) = (folder.path().join(name), folder.path().join("draft-token"));
    fs::write(&draft, content).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(draft, &path).unwrap();
    path.display().to_string()
}

/// A gateway whose operators are asked for tokens, at an address that other machines can reach.
async fn guarded() -> (Worker, Folder, Program) {
    let worker = Worker::start().await;
    let folder = Folder::new();
    let (ops, eyes) = (write(&folder, "ops", &token("ops")), write(&folder, "eyes", &(token("eyes") + "\n")));
    folder.write_whole(&format!(
        "[store]\nkind = \"memory\"\n[listen]\naddress = \"127.0.0.1:0\"\n[metrics]\naddress = \"0.0.0.0:0\"\n\
         [admin]\naddress = \"0.0.0.0:0\"\n[[admin.tokens]]\nfile = \"{ops}\"\nmay = \"act\"\n\
         [[admin.tokens]]\nfile = \"{eyes}\"\n{}",
        block("up", &worker.server)
    ));
    let mut command = folder.command();
    command.current_dir(folder.path());
    let program = Program::launch(command).await;
    (worker, folder, program)
}

async fn run(arguments: &[&str], token: Option<&str>) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.args(arguments).env_remove("TASKGATE_ADMIN_TOKEN").kill_on_drop(true);
    command.envs(token.map(|token| ("TASKGATE_ADMIN_TOKEN", token)));
    let output = in_time(command.output()).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

async fn ask(program: &Program, method: &str, target: &str, token: &str, host: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("host", host), ("content-type", "application/json")];
    send(program.admin, method, target, &headers, if method == "POST" { "{}" } else { "" }).await
}

#[tokio::test]
async fn operators_with_a_token_from_any_address_have_its_rights() {
    let (worker, folder, program) = guarded().await;
    let id = program.task("/up/mcp", "k").await;
    worker.calls(1).await;
    let admin = format!("http://{}", program.admin);
    let tasks = async |order: &[&str], token: Option<&str>| {
        run(&[&["tasks"], order, &["--admin", &admin]].concat(), token).await
    };
    let (ops, eyes) = (token("ops"), token("eyes"));
    let (code, table, _) = tasks(&["list"], Some(&eyes)).await;
    let reference = table.lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    assert_eq!(code, Some(0));
    let (code, shown, _) = tasks(&["show", id.as_str().unwrap()], Some(&eyes)).await;
    assert!(code == Some(0) && shown.contains("working"), "to find by an id is to look: {shown}");
    let (code, _, why) = tasks(&["cancel", &reference], Some(&eyes)).await;
    assert!(code == Some(1) && why.contains("this token is read-only"), "{why}");
    assert_eq!(program.status("/up/mcp", &id).await, "working");
    for wrong in [None, Some(""), Some("x"), Some(token("none").as_str()), Some(&ops[..ops.len() - 1])] {
        let (code, out, why) = tasks(&["list"], wrong).await;
        assert!(code == Some(69) && out.is_empty() && why.contains("TASKGATE_ADMIN_TOKEN"), "{wrong:?}: {why}");
        assert!(!why.contains(HEX), "{why}");
    }
    let (code, _, why) = tasks(&["list"], Some("a\u{7f}b")).await;
    assert!(code == Some(64) && why.contains("TASKGATE_ADMIN_TOKEN"), "{why}");
    for host in ["mcp.example", "taskgate:9090", "10.0.0.7", "localhost"] {
        for page in ["/", "/tasks", "/metrics", "/healthz", "/readyz"] {
            assert_eq!(ask(&program, "GET", page, &eyes, host).await.status, 200, "{page}");
            assert_eq!(ask(&program, "HEAD", page, &eyes, host).await.status, 200, "{page}");
            assert_eq!(ask(&program, "GET", page, "tg_x_y", host).await.status, 401, "{page}");
        }
    }
    let cancel = format!("/tasks/{reference}/cancel");
    assert_eq!(ask(&program, "POST", &cancel, &eyes, "mcp.example").await.status, 403);
    for (token, status) in [(&eyes, 403), (&ops, 404)] {
        assert_eq!(ask(&program, "POST", "/replicas/a/forget", token, "mcp.example").await.status, status);
    }
    // The file is exchanged: the old token is refused from then on, the other one goes on.
    write(&folder, "ops", &token("ops2"));
    program.says("the configuration was read again", 1).await;
    assert_eq!(ask(&program, "POST", &cancel, &ops, "localhost").await.status, 401);
    let (code, shown, _) = tasks(&["cancel", &reference], Some(&token("ops2"))).await;
    assert!(code == Some(0) && shown.contains("cancelled"), "{shown}");
    program.says("\"key\":\"admin.tokens\"", 1).await;
    let log = program.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("\"key\":\"admin.tokens\"")).collect();
    // More than 40 were refused.
    assert!(told.len() < 4 && told[0].contains("127.0.0.1"), "once a minute: {told:?}");
    assert!(!log.contains(HEX));
}

/// Clients that speak no TLS, and with a certificate of another authority: a line a minute for each reason.
#[tokio::test]
async fn refused_handshakes_are_told_with_their_cause() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    let (authority, stranger) = (Authority::new(), Authority::new());
    authority.vouch(|_| ()).write(folder.path(), "server");
    certificates::write(folder.path(), "ca.pem", "CERTIFICATE", authority.certificate());
    let at = folder.path().display();
    folder.write(&format!(
        "[listen.tls]\ncertificate = \"{at}/server.pem\"\nkey = \"{at}/server.key\"\nclient_ca = \"{at}/ca.pem\"\n\
         client_certificates = \"optional\"\n[auth]\nmode = \"certificates\"\n[[auth.certificates]]\nsan = \"localhost\"\n{}",
        block("up", &worker.server)
    ));
    let program = Program::serve(&folder).await;
    for _ in 0..2 {
        let mut plain = TcpStream::connect(program.clients).await.unwrap();
        plain.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut read = Vec::new();
        let _ = in_time(plain.read_to_end(&mut read)).await;
        let foreign = authority.client_as(&stranger.vouch(|_| ()), &[]);
        let socket = TcpStream::connect(program.clients).await.unwrap();
        let connecting = TlsConnector::from(Arc::new(foreign)).connect("localhost".try_into().unwrap(), socket);
        if let Ok(mut stream) = in_time(connecting).await {
            // In TLS 1.3 the refusal comes after the client's end of the handshake.
            let _ = in_time(stream.read_to_end(&mut read)).await;
        }
    }
    for (reason, said) in
        [("tls_handshake", "refused: a TLS handshake failed"), ("client_certificate", "invalid peer certificate")]
    {
        program.says(&format!("\"reason\":\"{reason}\""), 1).await;
        let log = program.log();
        let told: Vec<_> = log.lines().filter(|line| line.contains(&format!("\"reason\":\"{reason}\""))).collect();
        let is_about_key = told[0].contains("listen.tls.client_ca");
        assert!(told.len() == 1 && told[0].contains(said) && told[0].contains("127.0.0.1"), "{told:?}");
        assert_eq!(is_about_key, reason == "client_certificate", "{told:?}");
    }
}

#[tokio::test]
async fn metrics_and_health_are_looked_at_by_any_name_and_by_no_page() {
    let (_worker, _folder, program) = guarded().await;
    let at = program.metrics.unwrap();
    for host in ["mcp.example", "10.0.0.7:9091", "localhost"] {
        for page in ["/metrics", "/healthz", "/readyz", "/readyz?verbose"] {
            let got = send(at, "GET", page, &[("host", host)], "").await;
            let headed = send(at, "HEAD", page, &[("host", host)], "").await;
            assert_eq!((got.status, headed.status, headed.body.as_str()), (200, 200, ""), "{page}");
            assert!(!got.body.is_empty() && !got.body.contains("127.0.0.1"), "{}", got.body);
        }
        for other in ["/", "/tasks", "/tasks/000000000000", "/up/mcp"] {
            assert_eq!(send(at, "GET", other, &[("host", host)], "").await.status, 404, "{other}");
        }
    }
    for origin in ["http://localhost", "http://mcp.example", "null"] {
        let headers = [("host", "mcp.example"), ("origin", origin)];
        assert_eq!(send(at, "GET", "/metrics", &headers, "").await.status, 403, "{origin}");
    }
    for (method, body) in [("POST", "{}"), ("DELETE", ""), ("PUT", "{}"), ("OPTIONS", "")] {
        assert_eq!(send(at, method, "/metrics", &[("host", "x")], body).await.status, 405, "{method}");
    }
}

#[tokio::test]
async fn health_says_by_its_exit_code_whether_the_gateway_is_ready() {
    let (_worker, _folder, mut program) = guarded().await;
    let (admin, metrics) = (format!("http://{}", program.admin), format!("http://{}", program.metrics.unwrap()));
    let eyes = token("eyes");
    for (url, token, expected) in [
        (&admin, Some(eyes.as_str()), 0),
        // As in a container, which has no token.
        (&admin, None, 0),
        (&admin, Some(token("none").as_str()), 1),
        (&metrics, None, 0),
        (&format!("{metrics}/readyz"), None, 0),
    ] {
        let (code, out, why) = run(&["health", url], token).await;
        assert_eq!((code, out.as_str(), why.is_empty()), (Some(expected), "", expected == 0), "{url}: {why}");
    }
    // Another program's page does not show the state of a gateway.
    let other = ScriptedServer::start(|_| Some(json_text("{}".to_owned()))).await;
    for command in [&["health"][..], &["status", "--admin"]] {
        let (code, out, why) = run(&[command, &[&*format!("http://{}", other.address)]].concat(), None).await;
        assert!(code != Some(0) && out.is_empty() && why.contains("correct the address"), "{command:?}: {out}{why}");
        // The gateway would not get the password, so the command does not go on without it.
        let (code, _, why) = run(&[command, &[&*format!("http://ops:s3cret@{}", program.admin)]].concat(), None).await;
        assert!(code == Some(64) && why.contains("must be like") && !why.contains("s3cret"), "{command:?}: {why}");
    }
    for (page, status) in [("/healthz", 200), ("/readyz", 200), ("/readyz?verbose", 401), ("/metrics", 401), ("/", 401)]
    {
        assert_eq!(send(program.admin, "GET", page, &[], "").await.status, status, "{page}");
    }
    program.signal("TERM");
    program.says("draining; a second signal ends at once", 1).await;
    let (code, _, why) = run(&["health", &metrics], None).await;
    assert_eq!((code, why.trim()), (Some(1), "taskgate: not ready: draining"));
    program.signal("TERM");
    program.ended().await;
    let (code, _, why) = run(&["health", &metrics], None).await;
    assert!(code == Some(1) && why.contains("cannot be reached"), "{why}");
}

/// Mistakes about tokens, each in a file that is wrong in one thing.
#[tokio::test]
async fn a_token_that_is_of_no_use_is_told_with_its_key_and_ends_with_64() {
    let folder = Folder::new();
    let good = write(&folder, "good", &token("a"));
    let open = write(&folder, "open", &token("b"));
    fs::set_permissions(Path::new(&open), fs::Permissions::from_mode(0o644)).unwrap();
    let twice = write(&folder, "twice", &token("a"));
    let block = |file: &str| format!("[[admin.tokens]]\nfile = \"{file}\"\n");
    for (tokens, said) in [
        (String::new(), "key `admin.address`: other machines can reach this address"),
        (block(&open), "key `admin.tokens[0].file`: "),
        (block(&open), "others than its owner may use it (mode 0644)"),
        (block(&write(&folder, "empty", "")), "is not a key; write tg_ID_SECRET"),
        (block(&write(&folder, "short", "tg_a_0123456789")), "is a key with a secret of less than 128 bits"),
        (block(&write(&folder, "long", &"x".repeat(4096))), "is larger than"),
        (block("/nowhere/token"), "cannot be read: "),
        (block("/dev/null"), "is not a file"),
        (block(&folder.path().display().to_string()), "is not a file"),
        (block(&good) + &block(&twice), "key `admin.tokens[1].file`: another key has the ID a"),
        (block(&good) + "may = \"write\"\n", "\"write\" is unknown; write \"read\" or \"act\""),
        ("[[admin.tokens]]\nmay = \"act\"\n".to_owned(), "key `admin.tokens[0].file`: is missing"),
        (block(&good) + "token = \"x\"\n", "unknown key"),
    ] {
        folder.write_whole(&format!(
            "[store]\nkind = \"memory\"\n[admin]\naddress = \"0.0.0.0:0\"\n{tokens}\n\
             [upstreams.up]\nurl = \"http://127.0.0.1:1/mcp\"\n"
        ));
        let file = folder.path().join("taskgate.toml").display().to_string();
        let (code, _, why) = run(&["check", &file], None).await;
        assert!(code == Some(64) && why.contains(said) && !why.contains(HEX), "{said}: {why}");
    }
}
