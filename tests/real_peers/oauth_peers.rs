//! Real clients that log in, headless, at a real authorization server, and use the server behind it through the gateway.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::time::Duration;

use serde_json::{Value, json};
use support::peers::gateway::Gateway;
use support::peers::install::Peers;
use support::peers::process::Child;
use support::scripted::{ScriptedReply, ScriptedServer, SeenRequest, answer};

/// Interpreter and script of a client.
const CLIENTS: [(&str, &str, &str); 2] =
    [("ts", "node", "oauth_ts.mjs"), ("py", "py-modern/bin/python", "oauth_py.py")];

/// A protected server, and the gateway in front of it.
struct ProtectedPair {
    peers: Peers,
    what: String,
    _server: Child,
    gateway: Gateway,
}

impl ProtectedPair {
    /// `None` where no peers are installed. Tokens are good for so many seconds.
    async fn start(what: &str, kind: &str, token_seconds: u32) -> Option<Self> {
        Self::start_with(what, kind, token_seconds, "").await
    }

    /// The same with more of a configuration.
    async fn start_with(what: &str, kind: &str, token_seconds: u32, more: &str) -> Option<Self> {
        let peers = Peers::find(what)?;
        let seconds = token_seconds.to_string();
        let command = peers.command("node", ["oauth_server.mjs", kind, &seconds]);
        let mut server = Child::start(&format!("{what}-server"), command).unwrap();
        let url = server.line("ready ").await.unwrap();
        let upstream = format!(
            "{more}[upstreams.up]\nurl = \"{url}\"\nforward_authorization = true\n\
             [upstreams.up.tasks]\ngrace = \"300ms\"\npoll_interval = \"100ms\"\n"
        );
        let gateway = Gateway::start(&format!("{what}-gateway"), &upstream, 1).await.unwrap();
        Some(Self { peers, what: what.to_owned(), _server: server, gateway })
    }

    /// What a client saw at each of these steps.
    async fn seen(&self, client: (&str, &str, &str), user: &str, mode: &str, steps: &[Value]) -> Vec<Value> {
        let (name, program, script) = client;
        let wanted = Value::from(steps).to_string();
        let mut command = self.peers.command(program, [script, self.gateway.url("up"), user, mode, &wanted]);
        command.env("PEER_KEY", key_of(user));
        let mut child = Child::start(&format!("{}-{name}-{user}-{mode}", self.what), command).unwrap();
        let mut seen = Vec::with_capacity(steps.len());
        for step in steps {
            let facts =
                child.line("facts ").await.unwrap_or_else(|why| panic!("{} {name} {mode} {step}: {why}", self.what));
            seen.push(serde_json::from_str(&facts).unwrap());
        }
        seen
    }
}

/// 401, metadata, registration, authorization with `resource` and PKCE, token, and then the server.
#[tokio::test]
async fn both_clients_log_in_through_the_gateway_in_either_era() {
    for kind in ["stateless", "session"] {
        let what = format!("oauth-login-{kind}");
        let Some(pair) = ProtectedPair::start(&what, kind, 300).await else { return };
        for client in CLIENTS {
            let steps = [json!({"tools": true}), json!({"whoami": true})];
            let legacy = pair.seen(client, "alice", "legacy", &steps).await;
            let steps = [&steps[..], &[json!({"task": "slow", "ms": 900})]].concat();
            let auto = pair.seen(client, "bob", "auto", &steps).await;
            for (seen, user) in [(&legacy, "alice"), (&auto, "bob")] {
                assert_eq!(seen[0]["tools"], json!(["whoami", "slow", "job"]), "{kind} {client:?}");
                assert_eq!((&seen[1]["text"], &seen[1]["logins"]), (&json!(user), &json!(1)), "{kind} {client:?}");
            }
            let task = &auto[2];
            assert_eq!(
                (&task["status"], &task["text"]),
                (&json!("completed"), &json!("done for bob")),
                "{kind} {client:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_token_that_ran_out_is_refreshed_without_another_login() {
    for kind in ["stateless", "session"] {
        let what = format!("oauth-refresh-{kind}");
        let Some(pair) = ProtectedPair::start(&what, kind, 3).await else { return };
        for client in CLIENTS {
            let steps = [json!({"whoami": true}), json!({"sleep": 3_500}), json!({"whoami": true})];
            let seen = pair.seen(client, "alice", "auto", &steps).await;
            let last = &seen[2];
            assert_eq!((&last["text"], &last["logins"]), (&json!("alice"), &json!(1)), "{kind} {client:?}");
            assert!(last["refreshes"].as_u64() >= Some(1), "{kind} {client:?} {last}");
        }
    }
}

/// The key that a gateway which asks for keys knows somebody by.
fn key_of(user: &str) -> String {
    format!("tg_{user}_00112233445566778899aabbccddeeff")
}

fn keys() -> String {
    let block = |user: &str| format!("[[auth.api_keys]]\nid = \"{user}\"\nkey = \"{}\"\n", key_of(user));
    format!("[auth]\nmode = \"api_keys\"\n{}{}", block("alice"), block("bob"))
}

/// Whose tasks are whose is said by keys here, so that a client which refreshes its token finds its tasks. A call that the server
/// answers on the request that it has outlives its token; a task of the server's own, which has to be
/// asked about, does not.
#[tokio::test]
async fn a_token_that_runs_out_while_a_task_runs_ends_only_what_needs_another_request() {
    let Some(pair) = ProtectedPair::start_with("oauth-expiry", "stateless", 3, &keys()).await else { return };
    for client in CLIENTS {
        let steps = [json!({"task": "slow", "ms": 5_000})];
        let seen = pair.seen(client, "alice", "auto", &steps).await;
        assert_eq!(
            (&seen[0]["status"], &seen[0]["text"]),
            (&json!("completed"), &json!("done for alice")),
            "{client:?}"
        );
        let seen = pair.seen(client, "bob", "auto", &[json!({"task": "job", "ms": 20_000})]).await;
        let told = (&seen[0]["status"], &seen[0]["reason"], &seen[0]["executed"]);
        assert_eq!(told, (&json!("failed"), &json!("upstream_auth"), &json!("unknown")), "{client:?}");
    }
}

#[tokio::test]
async fn a_second_person_sees_nothing_of_the_first_ones_tasks() {
    for kind in ["stateless", "session"] {
        let what = format!("oauth-two-{kind}");
        let Some(pair) = ProtectedPair::start(&what, kind, 300).await else { return };
        for client in CLIENTS {
            let made = pair.seen(client, "alice", "auto", &[json!({"task": "slow", "ms": 900})]).await;
            let peeks = [made[0]["taskId"].clone(), json!("0".repeat(32))].map(|id| json!({"peek": id}));
            let seen = pair.seen(client, "bob", "auto", &peeks).await;
            assert_eq!((&seen[0]["status"], &seen[0]["code"]), (&Value::Null, &json!(-32602)), "{kind} {client:?}");
            assert_eq!(seen[0], seen[1], "as one that there never was: {kind} {client:?}");
        }
    }
}

/// A gateway that checks tokens itself, in front of two servers without a login.
struct OwnLogin {
    peers: Peers,
    what: &'static str,
    server: ScriptedServer,
    gateway: Gateway,
    _issuer: Child,
    /// Whether the client's tokens are bound to its key.
    is_bound: bool,
}

impl OwnLogin {
    async fn start(what: &'static str, token_seconds: u32) -> Option<Self> {
        Self::start_with(what, token_seconds, "").await
    }

    /// The same with more of `[auth]`.
    async fn start_with(what: &'static str, token_seconds: u32, auth: &str) -> Option<Self> {
        let peers = Peers::find(what)?;
        let command = peers.command("node", ["oauth_server.mjs", "stateless", &token_seconds.to_string()]);
        let mut issuer = Child::start(&format!("{what}-issuer"), command).unwrap();
        let address = issuer.line("as ").await.unwrap();
        let server = ScriptedServer::slow(async |seen: SeenRequest, _| own_answer(&seen).await).await;
        let upstream = |name: &str| {
            format!(
                "[upstreams.{name}]\nurl = \"{}\"\nfirst_byte_max = \"5m\"\nidle_max = \"5m\"\n\
                 [upstreams.{name}.tasks]\ngrace = \"300ms\"\npoll_interval = \"100ms\"\n",
                server.url()
            )
        };
        let config = format!(
            "[auth]\nmode = [\"tokens\", \"api_keys\"]\nscopes = [\"mcp\"]\n{auth}[[auth.issuers]]\nissuer = \"{address}\"\n\
             [[auth.api_keys]]\nid = \"alice\"\nkey = \"{}\"\n{}{}\
             [[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\", \"two\"]\n",
            key_of("alice"),
            upstream("up"),
            upstream("two")
        );
        let gateway = Gateway::start_public(&format!("{what}-gateway"), &config, 3).await.unwrap();
        Some(Self { peers, what, server, gateway, _issuer: issuer, is_bound: auth.contains("dpop") })
    }

    async fn seen(&self, path: &str, user: &str, steps: &[Value]) -> Vec<Value> {
        let wanted = Value::from(steps).to_string();
        let mut command = self.peers.command("node", ["oauth_ts.mjs", self.gateway.url(path), user, "auto", &wanted]);
        if self.is_bound {
            command.env("PEER_DPOP", "1");
        }
        let name = format!("{}-{path}-{user}", self.what);
        let mut child = Child::start(&name, command).unwrap();
        let mut seen = Vec::with_capacity(steps.len());
        for step in steps {
            let facts = child.line("facts ").await.unwrap_or_else(|why| panic!("{name} {step}: {why}"));
            seen.push(serde_json::from_str(&facts).unwrap());
        }
        seen
    }
}

async fn own_answer(seen: &SeenRequest) -> Option<ScriptedReply> {
    match seen.rpc() {
        "tools/list" => {
            let tools = json!([{ "name": "slow", "inputSchema": { "type": "object" } }]);
            Some(answer(seen, &json!({ "tools": tools })))
        }
        "tools/call" => {
            let millis = seen.body["params"]["arguments"]["ms"].as_u64().unwrap();
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Some(answer(seen, &json!({ "content": [{ "type": "text", "text": "done" }] })))
        }
        _ => None,
    }
}

/// 401, the gateway's own metadata, registration, authorization, token; a task that outlives the token that began it.
#[tokio::test]
async fn a_client_logs_in_at_the_gateway_itself_and_its_task_outlives_its_token() {
    let Some(own) = OwnLogin::start("oauth-own", 300).await else { return };
    for (path, tool) in [("up", "slow"), ("all", "up__slow")] {
        let steps = [
            json!({"tools": true}),
            json!({"begin": tool, "ms": 3_000}),
            json!({"refresh": true}),
            json!({"finish": true}),
        ];
        let seen = own.seen(path, "alice", &steps).await;
        assert!(seen[0]["tools"].as_array().unwrap().contains(&json!(tool)), "{path}: {seen:?}");
        assert_eq!(seen[2]["isNew"], json!(true), "{path}: {seen:?}");
        let end = &seen[3];
        assert_eq!((&end["status"], &end["text"]), (&json!("completed"), &json!("done")), "{path}: {seen:?}");
        assert_eq!((&end["logins"], &end["refreshes"]), (&json!(1), &json!(1)), "{path}: {seen:?}");
        let peek = [json!({ "peek": end["taskId"] }), json!({ "peek": "0".repeat(32) })];
        let other = own.seen(path, "bob", &peek).await;
        assert_eq!((&other[0]["status"], &other[0]["code"]), (&Value::Null, &json!(-32602)), "{path}: {other:?}");
        assert_eq!(other[0]["message"], other[1]["message"], "as one that there never was: {path}");
    }
    let shown = own.server.world.all(|seen| seen.header("authorization").is_some());
    assert!(shown.is_empty(), "no server gets a token: {shown:?}");
}

/// The challenge, the metadata and the token's binding are what a client of the standard needs (RFC 9449).
#[tokio::test]
async fn a_client_with_dpop_logs_in_where_every_token_must_be_bound() {
    let Some(own) = OwnLogin::start_with("oauth-own-dpop", 300, "dpop = \"require\"\n").await else { return };
    let steps = [
        json!({"tools": true}),
        json!({"begin": "slow", "ms": 2_000}),
        json!({"refresh": true}),
        json!({"finish": true}),
    ];
    let seen = own.seen("up", "alice", &steps).await;
    assert_eq!((&seen[0]["tools"], &seen[0]["scheme"]), (&json!(["slow"]), &json!("DPoP")), "{seen:?}");
    assert_eq!((&seen[2]["isNew"], &seen[2]["scheme"]), (&json!(true), &json!("DPoP")), "{seen:?}");
    assert_eq!((&seen[3]["status"], &seen[3]["text"]), (&json!("completed"), &json!("done")), "{seen:?}");
    assert_eq!((&seen[3]["logins"], &seen[3]["refreshes"]), (&json!(1), &json!(1)), "{seen:?}");
}
