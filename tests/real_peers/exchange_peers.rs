//! The gateway as a client of a real authorization server: a person's token is exchanged for one that the server behind the gateway accepts,
//! and renewed while a call runs.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::peers::gateway::Gateway;
use support::peers::install::Peers;
use support::peers::process::Child;
use support::scripted::{ScriptedReply, ScriptedServer, SeenRequest, answer, status};
use tokio::time::Instant;

use crate::login_matrix::issuer::Issuer;

/// How long signed tokens serve. The gateway renews one after half of that, and the client after all of it.
const SIGNED_SECONDS: &str = "5";
/// The same for opaque tokens: the gateway accepts a client's for a minute after its end, but the authorization server does not exchange
/// it any more.
const OPAQUE_SECONDS: &str = "12";
const CALL: Duration = Duration::from_secs(8);
const USER: &str = "ada";

/// A server of 2026-07-28 that makes a task of its call, and records the tokens of its requests.
#[derive(Clone, Default)]
struct TaskServer {
    due: Arc<Mutex<Option<Instant>>>,
    tokens: Arc<Mutex<Vec<String>>>,
}

impl TaskServer {
    fn reply(&self, seen: &SeenRequest) -> Option<ScriptedReply> {
        let complete = |result: Value| support::issuer::with(&result, &json!({ "resultType": "complete" }));
        let task = json!({
            "taskId": "u-1", "status": "working", "ttlMs": 600_000, "pollIntervalMs": 500,
            "createdAt": "2026-11-25T00:00:00Z", "lastUpdatedAt": "2026-11-25T00:00:00Z",
        });
        Some(match seen.rpc() {
            "server/discover" => answer(
                seen,
                &complete(json!({
                    "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                    "capabilities": { "tools": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } },
                    "serverInfo": { "name": "s", "version": "1" },
                })),
            ),
            "tools/list" => {
                let tools = json!([{ "name": "slow", "inputSchema": { "type": "object" } }]);
                answer(seen, &complete(json!({ "tools": tools, "ttlMs": 0, "cacheScope": "private" })))
            }
            "tools/call" => {
                *self.due.lock() = Some(Instant::now() + CALL);
                answer(seen, &support::issuer::with(&task, &json!({ "resultType": "task" })))
            }
            "tasks/get" if self.due.lock().is_none_or(|due| Instant::now() < due) => answer(seen, &complete(task)),
            "tasks/get" => {
                let result = json!({ "content": [{ "type": "text", "text": "done" }], "resultType": "complete" });
                let ended = support::issuer::with(&task, &json!({ "status": "completed", "result": result }));
                answer(seen, &complete(ended))
            }
            _ => return None,
        })
    }

    /// Starts it. `accepts` decides by a request's token and the server's own address; other requests get 401.
    async fn start(self, accepts: impl Fn(&str, &str) -> bool + Send + Sync + 'static) -> ScriptedServer {
        let accepts = Arc::new(accepts);
        ScriptedServer::slow(move |seen: SeenRequest, _| {
            let (server, accepts) = (self.clone(), Arc::clone(&accepts));
            async move {
                let own = format!("http://{}/mcp", seen.header("host").unwrap());
                let token = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
                let Some(token) = token.filter(|token| accepts(token, &own)) else { return Some(status(401)) };
                server.tokens.lock().push(token.to_owned());
                server.reply(&seen)
            }
        })
        .await
    }

    /// The accepted tokens.
    fn distinct(&self) -> BTreeSet<String> {
        self.tokens.lock().iter().cloned().collect()
    }
}

/// Whether a signed token is this issuer's, for this resource and [`USER`].
fn is_for(token: &str, issuer: &str, resource: &str) -> bool {
    let claims = token.split('.').nth(1).and_then(|claims| BASE64_URL_SAFE_NO_PAD.decode(claims).ok());
    let claims: Option<Value> = claims.and_then(|claims| serde_json::from_slice(&claims).ok());
    claims.is_some_and(|claims| claims["iss"] == issuer && claims["aud"] == resource && claims["sub"] == USER)
}

/// A gateway that exchanges tokens at `login`, in front of one server.
async fn gateway(what: &str, login: &Issuer, issuer: &str, credential: &str, server: &ScriptedServer) -> Gateway {
    let config = format!(
        "[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\n[[auth.issuers]]\nissuer = \"{}\"\n{issuer}\
         [upstreams.up]\nurl = \"{}\"\n[upstreams.up.tasks]\ngrace = \"300ms\"\npoll_interval = \"300ms\"\n\
         [upstreams.up.credential]\n{credential}\n",
        login.url,
        server.url()
    );
    Gateway::start_public(&format!("{what}-gateway"), &config, 1).await.unwrap()
}

/// The table of the gateway as a client of `issuer`.
fn client(issuer: &Issuer, more: &str) -> String {
    format!(
        "{{ token_url = \"{}/token\", client_id = \"taskgate\", client_secret = \"taskgate-password\"{more} }}",
        issuer.url
    )
}

/// A person logs in, and follows a slow call of theirs to its end.
async fn follows_a_call(what: &str, peers: &Peers, login: &Issuer, gateway: &Gateway) {
    let wanted = json!({
        "url": gateway.url("up"), "issuer": login.url, "flow": "registration", "user": USER, "tool": "slow", "ms": 0,
    });
    let command = peers.command("node", ["login_ts.mjs".to_owned(), wanted.to_string()]);
    let facts = Child::start(&format!("{what}-client"), command).unwrap().line("facts ").await.unwrap();
    let facts: Value = serde_json::from_str(&facts).unwrap();
    let seen = (&facts["status"], &facts["text"], &facts["logins"]);
    assert_eq!(seen, (&json!("completed"), &json!("done"), &json!(1)), "{facts}");
}

/// The server accepts tokens for its own address alone.
#[tokio::test]
async fn a_persons_token_is_exchanged_at_a_real_provider_and_renewed_while_the_call_runs() {
    let what = "exchange-jwt";
    let Some(peers) = Peers::find(what) else { return };
    let mut login = Issuer::start(&peers, &format!("{what}-issuer"), ["jwt", SIGNED_SECONDS], None).await.unwrap();
    let tasks = TaskServer::default();
    let issuer = login.url.clone();
    let server = tasks.clone().start(move |token, own| is_for(token, &issuer, own)).await;
    let credential = format!("exchange = {}", client(&login, &format!(", resource = \"{}\"", server.url())));
    let gateway = gateway(what, &login, "", &credential, &server).await;
    follows_a_call(what, &peers, &login, &gateway).await;
    let resource = format!("{USER} {}", server.url());
    for _ in 0..2 {
        assert_eq!(login.granted("token-exchange").await, resource);
    }
    assert!(tasks.distinct().len() >= 2, "the token was renewed while the task ran");
}

/// Opaque tokens: the gateway asks about the client's, and its own for the server are opaque too.
#[tokio::test]
async fn an_opaque_token_is_introspected_and_exchanged_at_a_real_provider() {
    let what = "exchange-opaque";
    let Some(peers) = Peers::find(what) else { return };
    let mut login = Issuer::start(&peers, &format!("{what}-issuer"), ["opaque", OPAQUE_SECONDS], None).await.unwrap();
    let tasks = TaskServer::default();
    let server = tasks.clone().start(|token, _| !token.contains('.')).await;
    let credential = format!("exchange = {}", client(&login, &format!(", resource = \"{}\"", server.url())));
    let introspection = format!(
        "introspection = {{ url = \"{}/token/introspection\", client_id = \"taskgate\", \
         client_secret = \"taskgate-password\" }}\n",
        login.url
    );
    let gateway = gateway(what, &login, &introspection, &credential, &server).await;
    follows_a_call(what, &peers, &login, &gateway).await;
    let resource = format!("{USER} {}", server.url());
    for _ in 0..2 {
        assert_eq!(login.granted("token-exchange").await, resource);
    }
    assert!(tasks.distinct().len() >= 2, "the token was renewed while the task ran");
}

/// The server's tokens come from another company's authorization server, which trusts the identity provider.
#[tokio::test]
async fn an_identity_assertion_of_a_real_provider_is_redeemed_at_another_one_for_each_token() {
    let what = "exchange-id-jag";
    let Some(peers) = Peers::find(what) else { return };
    let mut login = Issuer::start(&peers, &format!("{what}-identity"), ["jwt", SIGNED_SECONDS], None).await.unwrap();
    let mut theirs =
        Issuer::start(&peers, &format!("{what}-issuer"), ["jwt", SIGNED_SECONDS], Some(&login.url)).await.unwrap();
    let tasks = TaskServer::default();
    let issuer = theirs.url.clone();
    let server = tasks.clone().start(move |token, own| is_for(token, &issuer, own)).await;
    let more = format!(", resource = \"{}\", audience = \"{}\", scope = \"mcp\"", server.url(), theirs.url);
    let credential = format!("exchange = {}\nid_jag = {}", client(&login, &more), client(&theirs, ""));
    let gateway = gateway(what, &login, "", &credential, &server).await;
    follows_a_call(what, &peers, &login, &gateway).await;
    for _ in 0..2 {
        assert_eq!(login.granted("token-exchange").await, format!("{USER} {}", server.url()));
        assert_eq!(theirs.granted("jwt-bearer").await, format!("{USER} {}", server.url()));
    }
    assert!(tasks.distinct().len() >= 2, "each renewal has an assertion of its own");
}
