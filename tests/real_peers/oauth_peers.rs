//! Real clients that log in, headless, at a real authorization server, and use the server behind it through the gateway.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use serde_json::{Value, json};
use support::peers::gateway::Gateway;
use support::peers::install::Peers;
use support::peers::login::{Client, Issuer, config, slow_server};
use support::peers::process::Child;
use support::scripted::ScriptedServer;

const CLIENTS: [Client; 2] = [Client::TypeScript, Client::Python];

/// A server that checks tokens, and the gateway in front of it.
struct ProtectedPair {
    peers: Peers,
    what: String,
    gateway: Gateway,
    _server: Child,
    _issuer: Issuer,
}

impl ProtectedPair {
    /// `None` where no peers are installed. The server accepts a token for `token_seconds`.
    async fn start(what: &str, kind: &str, token_seconds: &str) -> Option<Self> {
        Self::start_with(what, kind, token_seconds, "").await
    }

    /// As [`ProtectedPair::start`], with further tables in the gateway's configuration.
    async fn start_with(what: &str, kind: &str, token_seconds: &str, more: &str) -> Option<Self> {
        let peers = Peers::find(what)?;
        let issuer = Issuer::start(&peers, &format!("{what}-issuer"), ["jwt", token_seconds], None).await.unwrap();
        let command = peers.command("node", ["login_server.mjs", kind, &issuer.url]);
        let mut server = Child::start(&format!("{what}-server"), command).unwrap();
        let url = server.line("ready ").await.unwrap();
        let upstream = format!(
            "{more}[upstreams.up]\nurl = \"{url}\"\nforward_authorization = true\n\
             [upstreams.up.tasks]\ngrace = \"300ms\"\npoll_interval = \"100ms\"\n"
        );
        let gateway = Gateway::start(&format!("{what}-gateway"), &upstream, 1).await.unwrap();
        Some(Self { peers, what: what.to_owned(), gateway, _server: server, _issuer: issuer })
    }

    /// The client's facts of each step.
    async fn seen(&self, client: Client, user: &str, mode: &str, steps: &[Value]) -> Vec<Value> {
        let name = format!("{}-{client:?}-{user}-{mode}", self.what);
        let wanted = json!({
            "url": self.gateway.url("up"), "flow": "registration", "user": user, "mode": mode, "key": key_of(user),
        });
        client.run(&self.peers, &name, wanted, steps).await.unwrap_or_else(|why| panic!("{name}: {why}"))
    }
}

/// 401, metadata, registration, authorization with `resource` and PKCE, token, and then the server.
#[tokio::test]
async fn both_clients_log_in_through_the_gateway_in_either_era() {
    for kind in ["stateless", "session"] {
        let what = format!("oauth-login-{kind}");
        let Some(pair) = ProtectedPair::start(&what, kind, "300").await else { return };
        for client in CLIENTS {
            let steps = [json!({"tools": true}), json!({"call": "whoami"})];
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
        let Some(pair) = ProtectedPair::start(&what, kind, "10").await else { return };
        for client in CLIENTS {
            let steps = [json!({"call": "whoami"}), json!({"sleep": 10_500}), json!({"call": "whoami"})];
            let seen = pair.seen(client, "alice", "auto", &steps).await;
            let last = &seen[2];
            assert_eq!((&last["text"], &last["logins"]), (&json!("alice"), &json!(1)), "{kind} {client:?} {last}");
            assert!(last["tokens"].as_u64() >= Some(2), "{kind} {client:?} {last}");
        }
    }
}

/// The user's API key at a gateway that asks for one.
fn key_of(user: &str) -> String {
    format!("tg_{user}_00112233445566778899aabbccddeeff")
}

fn keys() -> String {
    let block = |user: &str| format!("[[auth.api_keys]]\nid = \"{user}\"\nkey = \"{}\"\n", key_of(user));
    format!("[auth]\nmode = \"api_keys\"\n{}{}", block("alice"), block("bob"))
}

/// An API key owns the tasks here, so that a client finds its tasks after it refreshed its token. A call that the server answers on its request
/// outlives the token of the request. A task of the server does not: the gateway needs a valid token to poll it.
#[tokio::test]
async fn an_expired_token_ends_only_tasks_that_need_another_request() {
    let Some(pair) = ProtectedPair::start_with("oauth-expiry", "stateless", "3", &keys()).await else { return };
    for client in CLIENTS {
        let steps = [json!({"task": "slow", "ms": 5_000})];
        let seen = pair.seen(client, "alice", "auto", &steps).await;
        assert_eq!(
            (&seen[0]["status"], &seen[0]["text"]),
            (&json!("completed"), &json!("done for alice")),
            "{client:?}"
        );
        let seen = pair.seen(client, "bob", "auto", &[json!({"task": "job", "ms": 20_000})]).await;
        let end = (&seen[0]["status"], &seen[0]["reason"], &seen[0]["executed"]);
        assert_eq!(end, (&json!("failed"), &json!("upstream_auth"), &json!("unknown")), "{client:?}");
    }
}

#[tokio::test]
async fn a_second_person_sees_nothing_of_the_first_ones_tasks() {
    for kind in ["stateless", "session"] {
        let what = format!("oauth-two-{kind}");
        let Some(pair) = ProtectedPair::start(&what, kind, "300").await else { return };
        for client in CLIENTS {
            let made = pair.seen(client, "alice", "auto", &[json!({"task": "slow", "ms": 900})]).await;
            let peeks = [made[0]["taskId"].clone(), json!("0".repeat(32))].map(|id| json!({"peek": id}));
            let seen = pair.seen(client, "bob", "auto", &peeks).await;
            assert_eq!((&seen[0]["status"], &seen[0]["code"]), (&Value::Null, &json!(-32602)), "{kind} {client:?}");
            assert_eq!(seen[0], seen[1], "an unknown id and another user's look alike: {kind} {client:?}");
        }
    }
}

/// A gateway that checks tokens itself, in front of two servers without a login.
struct OwnLogin {
    peers: Peers,
    what: &'static str,
    server: ScriptedServer,
    gateway: Gateway,
    _issuer: Issuer,
    flow: &'static str,
}

impl OwnLogin {
    /// The client logs in by `flow`. `auth` has further keys of `[auth]`.
    async fn start(what: &'static str, flow: &'static str, auth: &str) -> Option<Self> {
        let peers = Peers::find(what)?;
        let issuer = Issuer::start(&peers, &format!("{what}-issuer"), ["jwt", "300"], None).await.unwrap();
        let server = slow_server().await;
        let auth = format!(
            "[auth]\nmode = [\"tokens\", \"api_keys\"]\nscopes = [\"mcp\"]\n{auth}[[auth.issuers]]\nissuer = \"{}\"\n\
             [[auth.api_keys]]\nid = \"alice\"\nkey = \"{}\"\n",
            issuer.url,
            key_of("alice")
        );
        let gateway = Gateway::start_public(&format!("{what}-gateway"), &config(&auth, &server), 3).await.unwrap();
        Some(Self { peers, what, server, gateway, _issuer: issuer, flow })
    }

    async fn seen(&self, path: &str, user: &str, steps: &[Value]) -> Vec<Value> {
        let name = format!("{}-{path}-{user}", self.what);
        let wanted = json!({ "url": self.gateway.url(path), "flow": self.flow, "user": user });
        let seen = Client::TypeScript.run(&self.peers, &name, wanted, steps).await;
        seen.unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    /// Logs in, begins a call, refreshes the token, and follows the call to its end.
    async fn seen_around_a_refresh(&self, path: &str, tool: &str) -> Vec<Value> {
        let steps = [
            json!({"tools": true}),
            json!({"begin": tool, "ms": 3_000}),
            json!({"refresh": true}),
            json!({"finish": true}),
        ];
        let seen = self.seen(path, "alice", &steps).await;
        assert!(seen[0]["tools"].as_array().unwrap().contains(&json!(tool)), "{path}: {seen:?}");
        assert_eq!(seen[2]["isNew"], json!(true), "{path}: {seen:?}");
        let end = &seen[3];
        assert_eq!((&end["status"], &end["text"]), (&json!("completed"), &json!("done")), "{path}: {seen:?}");
        assert_eq!((&end["logins"], &end["tokens"]), (&json!(1), &json!(2)), "{path}: {seen:?}");
        seen
    }
}

/// 401, the gateway's own metadata, registration, authorization, token; a task that outlives the token that began it.
#[tokio::test]
async fn a_client_logs_in_at_the_gateway_itself_and_its_task_outlives_its_token() {
    let Some(own) = OwnLogin::start("oauth-own", "registration", "").await else { return };
    for (path, tool) in [("up", "slow"), ("all", "up__slow")] {
        let seen = own.seen_around_a_refresh(path, tool).await;
        let peek = [json!({ "peek": seen[3]["taskId"] }), json!({ "peek": "0".repeat(32) })];
        let other = own.seen(path, "bob", &peek).await;
        assert_eq!((&other[0]["status"], &other[0]["code"]), (&Value::Null, &json!(-32602)), "{path}: {other:?}");
        assert_eq!(other[0]["message"], other[1]["message"], "an unknown id and another user's look alike: {path}");
    }
    let shown = own.server.world.all(|seen| seen.header("authorization").is_some());
    assert!(shown.is_empty(), "no server gets a token: {shown:?}");
}

/// A client of RFC 9449 needs the challenge, the metadata and the binding of its token.
#[tokio::test]
async fn a_client_with_dpop_logs_in_where_every_token_must_be_bound() {
    let Some(own) = OwnLogin::start("oauth-own-dpop", "dpop", "dpop = \"require\"\n").await else { return };
    let seen = own.seen_around_a_refresh("up", "slow").await;
    assert!(seen.iter().all(|facts| facts["scheme"] == "DPoP"), "{seen:?}");
}
