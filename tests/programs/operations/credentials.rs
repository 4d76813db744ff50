//! Credentials that are issued for an upstream: commands, secrets in logs and files, and a kill during a call.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::{Value, json};
use support::issuer::{IssuerKey, key_set, now, with};
use tokio::process::Command;

use super::program::{Answer, Call, Folder, Program, send};
use super::upstream::{ScriptedServer, SeenRequest, answer, in_time, json_text, polite};

const CANARY: &str = "canary-7d21";

/// A configuration with this command as the source of the credential.
fn commanded(server: &ScriptedServer, script: &str) -> String {
    format!(
        "[upstreams.up]\nurl = \"http://{}/mcp\"\n[upstreams.up.credential]\ncommand = [\"sh\", \"-c\", {}]\n",
        server.address,
        json!(script.replace("${", "$${"))
    )
}

async fn call(program: &Program) -> Answer {
    Call::plain(&json!({})).send(program.clients, "/up/mcp").await
}

fn credentials(server: &ScriptedServer) -> Vec<String> {
    let calls = server.world.all(SeenRequest::is_call);
    calls.iter().map(|seen| seen.header("authorization").unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn a_command_prints_the_credential_without_a_shell_and_with_few_variables() {
    let server = ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({ "tools": [{ "name": "work", "inputSchema": {} }] }))),
        "tools/call" => Some(answer(seen, &json!({ "content": [] }))),
        _ => None,
    });
    let (server, folder) = (server.await, Folder::new());
    let runs = folder.path().join("runs");
    let script = format!(
        "echo run >> '{}'; printf '{{\"token\":\"of-%s\"}}' \"${{SECRET_OF_GATEWAY:-nobody}}\"",
        runs.display()
    );
    folder.write(&commanded(&server, &script));
    let mut command = folder.command();
    command.env("SECRET_OF_GATEWAY", CANARY);
    let program = Program::launch(command).await;
    for _ in 0..3 {
        let answer = call(&program).await;
        assert_eq!(answer.status, 200, "{answer:?} {}", program.log());
    }
    assert_eq!(credentials(&server), vec!["Bearer of-nobody"; 3]);
    assert_eq!(fs::read_to_string(&runs).unwrap(), "run\n", "it ran once");
    // The changed block replaces the other.
    folder.write(&commanded(&server, "echo '{\"token\":\"newer\",\"expires\":60}'"));
    program.says("the configuration was read again", 1).await;
    assert_eq!(call(&program).await.status, 200);
    assert_eq!(credentials(&server).last().unwrap(), "Bearer newer");
}

#[tokio::test]
async fn a_command_that_fails_is_named_in_the_log_and_the_server_is_not_called() {
    for (script, kind, cause) in [
        (format!("echo {CANARY}"), "malformed", "the command's output is not a JSON object"),
        ("true".to_owned(), "malformed", "the command's output is not a JSON object"),
        (format!("echo '{{\"token\":\"{CANARY}\",\"expires\":\"soon\"}}'"), "malformed", "`expires`"),
        (format!("echo '{{\"tokens\":\"{CANARY}\"}}'"), "malformed", "no `token`"),
        ("head -c 20000000 /dev/zero".to_owned(), "malformed", "larger than 64 KiB"),
        ("echo 'no such profile' >&2; exit 3".to_owned(), "unavailable", "no such profile"),
        (format!("echo '{{\"token\":\"{CANARY}\"}}'; exit 1"), "unavailable", "exit status: 1"),
        ("sleep 600 & exec sleep 600".to_owned(), "unavailable", "the command did not end in 10 s"),
    ] {
        let (server, folder) = (ScriptedServer::polite().await, Folder::new());
        folder.write(&commanded(&server, &script));
        let program = Program::serve(&folder).await;
        let refused = call(&program).await;
        let data = refused.json()["error"]["data"].take();
        let expected = json!({ "source": "gateway", "reason": format!("credential_{kind}"), "executed": "no" });
        assert_eq!((refused.status, &data), (503, &expected), "{script}");
        assert_eq!(server.world.all(|_| true).len(), 0, "{script}");
        program.says(cause, 1).await;
        assert!(!format!("{}{refused:?}", program.log()).contains(CANARY), "{script}: {}", program.log());
    }
}

fn token(key: &IssuerKey, audience: &str) -> String {
    key.token(&json!({ "iss": "https://login.example", "sub": "ada", "aud": audience, "exp": now() + 300 }))
}

/// The line has the issuer's block, and the member that shows the fault, escaped and cut.
#[tokio::test]
async fn the_log_says_why_a_token_is_refused_and_of_which_issuer() {
    let (server, folder, key) = (ScriptedServer::polite().await, Folder::new(), IssuerKey::es256("k1"));
    let keys = folder.path().join("keys.json");
    fs::write(&keys, key_set([&key])).unwrap();
    let issuers = ["https://one.example", "https://two.example"];
    let blocks = issuers.map(|issuer| format!("[[auth.issuers]]\nissuer = \"{issuer}\"\njwks_file = {keys:?}\n"));
    folder.write(&format!(
        "public_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\n{}\
         [upstreams.up]\nurl = \"http://{}/mcp\"\n",
        blocks.concat(),
        server.address
    ));
    let program = Program::serve(&folder).await;
    let ends = now() + 300;
    let [one, two] = issuers;
    let claims = |issuer: &str, changes: &Value| {
        let aud = "https://mcp.example/up/mcp";
        with(&json!({ "iss": issuer, "sub": "ada", "aud": aud, "exp": ends, "scope": "mcp" }), changes)
    };
    let claimed = |issuer: &str, changes: Value| key.token(&claims(issuer, &changes));
    let headed = |changes: Value| {
        let header = with(&key.header(), &changes);
        key.sign(header.to_string(), claims(one, &json!({})).to_string())
    };
    for (token, reason, value, issuer) in [
        (claimed(one, json!({ "aud": "https://api.example" })), "token_audience", "https://api.example", Some(one)),
        (claimed(two, json!({ "aud": ["a", "b\u{1b}"] })), "token_audience", "a, b\\x1b", Some(two)),
        (headed(json!({ "typ": "JWT" })), "token_type", "JWT", Some(one)),
        (headed(json!({ "kid": "k2" })), "token_key_unknown", "k2", Some(one)),
        (headed(json!({ "alg": "HS256" })), "token_algorithm", "HS256", None),
        (claimed("https://three.example", json!({})), "token_issuer", "https://three.example", None),
        (claimed(one, json!({ "exp": 1 })), "token_expired", "1", Some(one)),
        (claimed(one, json!({ "scope": "read" })), "insufficient_scope", "read", Some(one)),
    ] {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let refused = send(program.clients, "POST", "/up/mcp", &headers, "{}").await;
        assert!([401, 403].contains(&refused.status), "{reason}");
        let key = if reason == "insufficient_scope" { "auth.scopes" } else { "auth.issuers" };
        let behind = issuer.map_or_else(|| "\"client\"".to_owned(), |issuer| format!("\"issuer\":\"{issuer}\""));
        let line = format!("\"reason\":\"{reason}\",\"key\":\"{key}\",\"value\":{},{behind}", json!(value));
        program.says(&line, 1).await;
    }
}

/// The gateway is killed while an exchanged call runs. The next process has no token of the client: it ends the task with that
/// reason and sends nothing again. No file has a secret.
#[tokio::test]
async fn sec_38_a_kill_in_the_middle_of_an_exchanged_call_ends_its_task_and_leaves_no_secret() {
    let server = ScriptedServer::slow(|seen: SeenRequest, world| async move {
        match seen.rpc() {
            "tools/call" => std::future::pending().await,
            "tools/list" => Some(answer(&seen, &json!({ "tools": [{ "name": "work", "inputSchema": {} }] }))),
            _ => Some(polite(&seen, &world)),
        }
    });
    let server = server.await;
    let login = ScriptedServer::start(move |_| {
        let issued = json!({ "access_token": format!("{CANARY}-issued"), "token_type": "Bearer", "expires_in": 600 });
        Some(json_text(issued.to_string()))
    });
    let (login, key, folder) = (login.await, IssuerKey::es256("k1"), Folder::on_disk());
    fs::write(folder.path().join("keys.json"), key_set([&key])).unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, format!("{CANARY}-password\n")).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    folder.write(&format!(
        "public_url = \"https://mcp.example\"\n[auth]\nmode = \"tokens\"\n[[auth.issuers]]\nissuer = \"https://login.example\"\n\
         jwks_file = {:?}\n[upstreams.up]\nurl = \"http://{}/mcp\"\n[upstreams.up.tasks]\nmode = \"always\"\n\
         after_crash = \"rerun\"\n[upstreams.up.credential]\nexchange = {{ token_url = \"http://{}/token\", \
         client_id = \"taskgate\", client_secret_file = {secret:?}, resource = \"http://{}/mcp\" }}\n",
        folder.path().join("keys.json"), server.address, login.address, server.address,
    ));
    let mut command = folder.command();
    command.env("TASKGATE_LOG", "trace");
    let mut program = Program::launch(command).await;
    let token = token(&key, "https://mcp.example/up/mcp");
    let bearer = |mut call: Call| {
        call.headers.push(("authorization", format!("Bearer {token}")));
        call
    };
    let made = bearer(Call::new("tools/call", &json!({ "name": "work", "arguments": {} })))
        .send(program.clients, "/up/mcp")
        .await;
    let id = made.json()["result"]["taskId"].clone();
    assert!(id.is_string(), "{made:?}");
    server.world.first(SeenRequest::is_call).await;
    let shown = [program.get("/metrics").await.body, program.get("/readyz?verbose").await.body].concat();
    program.signal("KILL");
    program.ended().await;
    let logs = program.log();
    let program = Program::serve(&folder).await;
    let poll = bearer(Call::new("tasks/get", &json!({ "taskId": id })));
    let ended = in_time(async {
        loop {
            let polled = poll.send(program.clients, "/up/mcp").await.json();
            if polled["result"]["status"] == "failed" {
                break polled;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    let error = &ended["result"]["error"];
    assert_eq!(
        (&error["data"]["reason"], &error["data"]["executed"]),
        (&json!("upstream_auth"), &json!("unknown")),
        "{ended}"
    );
    assert!(error["message"].as_str().unwrap().contains("does not store clients' credentials"), "{ended}");
    assert_eq!(server.world.count("tools/call"), 1, "it is not sent again");
    let shown = [shown, logs, program.log(), ended.to_string()].concat();
    assert_hidden(&[CANARY, token.rsplit('.').next().unwrap()], &shown, &folder);
}

/// Checks that no secret is in a text, or in a file of the store.
fn assert_hidden(secrets: &[&str], shown: &str, folder: &Folder) {
    for secret in secrets {
        assert!(!shown.contains(secret), "{secret} is shown");
        for file in stored(&folder.path().join("data")) {
            let held = fs::read(&file).unwrap();
            let is_there = held.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!is_there, "{secret} is in {}", file.display());
        }
    }
}

fn stored(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    assert!(!files.is_empty());
    files
}

#[tokio::test]
async fn a_command_that_issues_nothing_is_the_cause_of_the_failure_and_a_missing_one_is_seen_by_the_check() {
    let (server, folder) = (ScriptedServer::polite().await, Folder::new());
    folder.write(&commanded(&server, "exit 3"));
    let program = Program::serve(&folder).await;
    assert_eq!(call(&program).await.json()["error"]["data"]["reason"], "credential_unavailable");
    let cause = "no credential was issued: the command ended with exit status: 3";
    program.says(cause, 1).await;
    let page = program.get("/readyz?verbose").await.json();
    assert_eq!(page["upstreams"][0]["last_failure"]["cause"], cause, "{page}");
    let missing = format!(
        "[upstreams.up]\nurl = \"http://{}/mcp\"\n[upstreams.up.credential]\ncommand = [\"nope-cmd\"]\n",
        server.address
    );
    folder.write_whole(&missing);
    let mut check = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    let checked = check.arg("check").arg(folder.path().join("taskgate.toml")).output().await.unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(said.contains("key `upstreams.up.credential.command`: nope-cmd: is not found in PATH"), "{said}");
}
