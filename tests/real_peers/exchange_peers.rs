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
use support::peers::login::{Client, Issuer};
use support::scripted::{ScriptedReply, ScriptedServer, SeenRequest, answer, status};
use tokio::time::Instant;

/// The lifetime of tokens. The gateway renews a server's token after half of it; a person's token that has ended is not exchanged, so a
/// client on a busy machine may be silent for that long.
const TOKEN_SECONDS: &str = "12";
const CALL: Duration = Duration::from_secs(14);
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

/// The table of the gateway as a client of `issuer`.
fn client(issuer: &Issuer, more: &str) -> String {
    format!(
        "{{ token_url = \"{}/token\", client_id = \"taskgate\", client_secret = \"taskgate-password\"{more} }}",
        issuer.url
    )
}

/// A person's authorization server, and a server behind the gateway that accepts other tokens.
struct Exchange {
    what: &'static str,
    peers: Peers,
    login: Issuer,
    tasks: TaskServer,
    server: ScriptedServer,
}

impl Exchange {
    /// A person logs in and follows a slow call to its end; meanwhile the gateway exchanges their token at least twice, for the server's
    /// address. `issuer` has further keys of the issuer's table, and `credential` those of the upstream's.
    async fn renews_while_a_call_runs(&mut self, issuer: &str, credential: &str) {
        let config = format!(
            "[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\n[[auth.issuers]]\nissuer = \"{}\"\n{issuer}\
             [upstreams.up]\nurl = \"{}\"\n[upstreams.up.tasks]\ngrace = \"300ms\"\npoll_interval = \"300ms\"\n\
             [upstreams.up.credential]\n{credential}\n",
            self.login.url,
            self.server.url()
        );
        let gateway = Gateway::start_public(&format!("{}-gateway", self.what), &config, 1).await.unwrap();
        let wanted = json!({ "url": gateway.url("up"), "flow": "registration", "user": USER });
        let (client, name) = (Client::TypeScript, format!("{}-client", self.what));
        let facts = client.run(&self.peers, &name, wanted, &[client.task("slow", 0)]).await.unwrap().remove(0);
        let seen = (&facts["status"], &facts["text"], &facts["logins"]);
        assert_eq!(seen, (&json!("completed"), &json!("done"), &json!(1)), "{facts}");
        for _ in 0..2 {
            assert_eq!(self.login.granted("token-exchange").await, self.granted());
        }
        assert!(self.tasks.distinct().len() >= 2, "the token was renewed while the task ran");
    }

    /// The authorization server's line about a token for the server.
    fn granted(&self) -> String {
        format!("{USER} {}", self.server.url())
    }
}

/// The server accepts tokens for its own address alone.
#[tokio::test]
async fn a_persons_token_is_exchanged_at_a_real_provider_and_renewed_while_the_call_runs() {
    let what = "exchange-jwt";
    let Some(peers) = Peers::find(what) else { return };
    let login = Issuer::start(&peers, &format!("{what}-issuer"), ["jwt", TOKEN_SECONDS], None).await.unwrap();
    let (tasks, issuer) = (TaskServer::default(), login.url.clone());
    let server = tasks.clone().start(move |token, own| is_for(token, &issuer, own)).await;
    let credential = format!("exchange = {}", client(&login, &format!(", resource = \"{}\"", server.url())));
    Exchange { what, peers, login, tasks, server }.renews_while_a_call_runs("", &credential).await;
}

/// The person's token and the server's are opaque: the gateway asks about the former.
#[tokio::test]
async fn an_opaque_token_is_introspected_and_exchanged_at_a_real_provider() {
    let what = "exchange-opaque";
    let Some(peers) = Peers::find(what) else { return };
    let login = Issuer::start(&peers, &format!("{what}-issuer"), ["opaque", TOKEN_SECONDS], None).await.unwrap();
    let tasks = TaskServer::default();
    let server = tasks.clone().start(|token, _| !token.contains('.')).await;
    let credential = format!("exchange = {}", client(&login, &format!(", resource = \"{}\"", server.url())));
    let introspection = format!(
        "introspection = {{ url = \"{}/token/introspection\", client_id = \"taskgate\", \
         client_secret = \"taskgate-password\" }}\n",
        login.url
    );
    Exchange { what, peers, login, tasks, server }.renews_while_a_call_runs(&introspection, &credential).await;
}

/// The server's tokens come from another company's authorization server, which trusts the identity provider.
#[tokio::test]
async fn an_identity_assertion_of_a_real_provider_is_redeemed_at_another_one_for_each_token() {
    let what = "exchange-id-jag";
    let Some(peers) = Peers::find(what) else { return };
    let tokens = ["jwt", TOKEN_SECONDS];
    let login = Issuer::start(&peers, &format!("{what}-identity"), tokens, None).await.unwrap();
    let mut theirs = Issuer::start(&peers, &format!("{what}-issuer"), tokens, Some(&login.url)).await.unwrap();
    let (tasks, issuer) = (TaskServer::default(), theirs.url.clone());
    let server = tasks.clone().start(move |token, own| is_for(token, &issuer, own)).await;
    let more = format!(", resource = \"{}\", audience = \"{}\", scope = \"mcp\"", server.url(), theirs.url);
    let credential = format!("exchange = {}\nid_jag = {}", client(&login, &more), client(&theirs, ""));
    let mut exchange = Exchange { what, peers, login, tasks, server };
    exchange.renews_while_a_call_runs("", &credential).await;
    for _ in 0..2 {
        assert_eq!(theirs.granted("jwt-bearer").await, exchange.granted());
    }
}
