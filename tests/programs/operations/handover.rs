//! Sockets from a service manager, and the program's messages to it.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use tokio::net::UnixDatagram;
use tokio::process::Command;
use tokio_util::task::TaskTracker;

use super::program::{Call, Folder, Program, Worker, block, send};
use super::upstream::{ScriptedServer, answer, in_time};

/// The program with a listening socket as its descriptor 3, as from a service manager. A shell does the parts that
/// would need unsafe code: it moves the socket from stdin and knows its own process id.
fn handed(folder: &Folder, socket: &TcpListener, environment: &str) -> Command {
    let script = format!("exec 3<&0 </dev/null; {environment} LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"");
    let plain = folder.command();
    let plain = plain.as_std();
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(plain.get_program()).args(plain.get_args()).env_remove("TASKGATE_LOG");
    command.stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
    command
}

fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

#[tokio::test]
async fn a_socket_that_was_handed_over_is_used_and_its_address_printed() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    for (environment, is_admin) in [
        ("", false),
        ("LISTEN_FDNAMES=clients", false),
        ("LISTEN_FDNAMES=unknown", false),
        ("LISTEN_FDNAMES=admin", true),
    ] {
        let socket = listener();
        let address = socket.local_addr().unwrap();
        let mut program = Program::launch(handed(&folder, &socket, environment)).await;
        let printed = if is_admin { program.admin } else { program.clients };
        assert_eq!(printed, address, "{environment}");
        let path = if is_admin { "/healthz" } else { "/up/mcp" };
        let status = send(address, "GET", path, &[], "").await.status;
        assert_eq!(status, if is_admin { 200 } else { 405 }, "{environment}");
        program.signal("TERM");
        assert_eq!(program.ended().await, Some(0));
    }
}

/// Sockets for another process, as a parent of this one may have had, are left alone.
#[tokio::test]
async fn sockets_for_another_process_are_not_taken() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let mut command = folder.command();
    command.env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    let program = Program::launch(command).await;
    assert_eq!(send(program.clients, "GET", "/up/mcp", &[], "").await.status, 405);
}

/// The rules of addresses hold for sockets: the configuration names loopback, the socket is open to all.
#[tokio::test]
async fn a_socket_that_cannot_be_meant_is_refused() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let open = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    for (socket, environment, code, why) in [
        (&open, "", 64, "where the clients' socket listens"),
        (&open, "LISTEN_FDNAMES=admin", 64, "where operators are served without a token"),
        (&listener(), "LISTEN_FDNAMES=metrics", 70, "\"metrics\""),
    ] {
        let mut command = handed(&folder, socket, environment);
        let output = in_time(command.kill_on_drop(true).output()).await.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{environment}: {said}");
        assert!(said.contains(why), "{said}");
    }
}

/// SEC-20: keys do not come in clear from other machines unless the operator says that something in front speaks TLS.
#[tokio::test]
async fn sec_20_a_socket_that_is_open_to_all_takes_no_keys_in_clear() {
    let worker = Worker::start().await;
    let open = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let keys = "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\n\
                key = \"tg_ada1_0011223344556677889900aabbccddee\"";
    let folder = Folder::with(keys);
    folder.write(&block("up", &worker.server));
    let output = in_time(handed(&folder, &open, "").kill_on_drop(true).output()).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("key `listen.plaintext`: other machines can reach 0.0.0.0:"), "{said}");
    let folder = Folder::with(&format!("plaintext = true\n{keys}"));
    folder.write(&block("up", &worker.server));
    let mut program = Program::launch(handed(&folder, &open, "")).await;
    program.signal("TERM");
    assert_eq!(program.ended().await, Some(0));
}

/// Who comes while no process is there waits at the socket; who is being served is served to the end.
#[tokio::test]
async fn no_request_fails_while_processes_follow_each_other() {
    let tools = json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]});
    let server = ScriptedServer::start(move |seen| (seen.rpc() == "tools/list").then(|| answer(seen, &tools))).await;
    let (folder, socket) = (Folder::new(), listener());
    folder.write(&block("up", &server));
    let address = socket.local_addr().unwrap();
    let mut program = Program::launch(handed(&folder, &socket, "")).await;
    let clients = TaskTracker::new();
    let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut ends = Vec::new();
    for n in 0..4_usize {
        let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
        let client = clients.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = Call::plain(&json!({"n": n})).send(address, "/up/mcp").await;
                assert_eq!(answer.json()["result"]["n"], n, "{answer:?}");
                served.fetch_add(1, Ordering::Relaxed);
            }
        });
        ends.push(client);
    }
    for round in 1..=6 {
        in_time(async {
            while served.load(Ordering::Relaxed) < round * 40 {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        })
        .await;
        program.signal("TERM");
        assert_eq!(program.ended().await, Some(0), "{}", program.log());
        program = Program::launch(handed(&folder, &socket, "")).await;
    }
    stop.store(true, Ordering::Relaxed);
    for end in ends {
        in_time(end).await.expect("no request failed");
    }
    assert_eq!(program.clients, address);
    let calls = server.world.count("tools/call");
    assert_eq!(calls, served.load(Ordering::Relaxed), "calls that were made, and those that were answered");
}

#[tokio::test]
async fn a_service_manager_is_told_of_each_step() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let at = folder.path().join("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    let mut command = folder.command();
    command.env("NOTIFY_SOCKET", &at).env("WATCHDOG_USEC", "200000");
    let mut program = Program::launch(command).await;
    // Watchdog messages come in between, whenever they are due.
    let next = async || {
        let mut message = [0; 512];
        loop {
            let length = in_time(manager.recv(&mut message)).await.unwrap();
            let text = String::from_utf8(message[..length].to_vec()).unwrap();
            if text != "WATCHDOG=1\n" {
                return text;
            }
        }
    };
    assert_eq!(next().await, "READY=1\n");
    program.signal("HUP");
    let reloading = next().await;
    let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{reloading}"));
    assert!(since.trim().parse::<u64>().unwrap() > 0);
    assert_eq!(next().await, "READY=1\n");
    let mut message = [0; 512];
    let length = in_time(manager.recv(&mut message)).await.unwrap();
    assert_eq!(&message[..length], b"WATCHDOG=1\n");
    program.signal("INT");
    assert!(next().await.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC="));
    assert_eq!(program.ended().await, Some(0));
}
