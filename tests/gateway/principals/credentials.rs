//! Credentials that an authorization server issues for an upstream: its requests, their number, and its failures.

mod id_jag;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::issuer::{IssuerKey, key_set, with};
use taskgate::config::ServerSettings;
use taskgate::upstream::issued_credential::IssuedCredentialSettings;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::gate::{ADA, Answer, Ask, Gate, act};
use super::tokens::{auth, claims, now};
use super::upstream::{ScriptedReply, ScriptedServer, SeenRequest, answer, in_time, json_text, status, whole};

const LISTEN: &str = "public_url = \"https://mcp.example\"";
const SECRET: &str = "canary-3f9a";
const RESOURCE: &str = "https://reports.internal/mcp";

type Reply = dyn Fn(usize, SeenRequest) -> BoxFuture<'static, ScriptedReply> + Send + Sync;
type Accepts = dyn Fn(&str) -> bool + Send + Sync;

/// A gateway between an authorization server and a server that is behind it.
struct World {
    login: ScriptedServer,
    gate: Gate,
    key: IssuerKey,
    _folder: TempDir,
}

/// The n-th token, valid for an hour.
fn issued(n: usize) -> ScriptedReply {
    valid_for(n, &json!(3600))
}

fn valid_for(n: usize, seconds: &Value) -> ScriptedReply {
    json_text(
        json!({ "access_token": format!("issued-{n}"), "token_type": "Bearer", "expires_in": seconds }).to_string(),
    )
}

fn at_once(reply: impl Fn(usize) -> ScriptedReply + Send + Sync + 'static) -> Arc<Reply> {
    Arc::new(move |n, _| Box::pin(std::future::ready(reply(n))))
}

fn client_credentials(origin: &str) -> String {
    format!(
        "[upstreams.up.credential]\nclient_credentials = {{ token_url = \"{origin}/token\", client_id = \"task gate\", \
         client_secret = \"{SECRET}\", scope = \"a b\", resource = \"{RESOURCE}\" }}"
    )
}

fn exchange(origin: &str) -> String {
    format!(
        "[upstreams.up.credential]\nexchange = {{ token_url = \"{origin}/token\", client_id = \"taskgate\", \
         client_secret = \"{SECRET}\", resource = \"{RESOURCE}\", audience = \"reports\" }}"
    )
}

impl World {
    /// `accepts` judges the values of `Authorization` at the server behind the gateway, which refuses the others with 401.
    async fn start(reply: Arc<Reply>, accepts: Arc<Accepts>, credential: fn(&str) -> String) -> Self {
        let server = ScriptedServer::slow(move |seen, world| {
            let is_let_in = seen.header("authorization").is_some_and(|value| accepts(value));
            async move { Some(if is_let_in { act(&seen, &world).await } else { status(401) }) }
        });
        Self::behind(server.await, reply, credential).await
    }

    async fn behind(server: ScriptedServer, reply: Arc<Reply>, credential: fn(&str) -> String) -> Self {
        let asked = AtomicUsize::new(0);
        let login = ScriptedServer::slow(move |seen, _| {
            let answer = reply(asked.fetch_add(1, Ordering::SeqCst) + 1, seen);
            async move { Some(answer.await) }
        });
        let login = login.await;
        let (folder, key) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
        let file = folder.path().join("keys.json");
        std::fs::write(&file, key_set([&key])).unwrap();
        let auth = auth(&format!("jwks_file = \"{}\"", file.display()), "");
        let origin = login.url().origin().ascii_serialization();
        let gate = Gate::behind(server, LISTEN, &auth, &credential(&origin)).await;
        Self { login, gate, key, _folder: folder }
    }

    fn token(&self, subject: &str, changes: &Value) -> String {
        self.key.token(&with(&claims(subject), changes))
    }

    /// How often the authorization server was asked.
    fn asked(&self) -> usize {
        self.login.world.all(|_| true).len()
    }

    /// The fields of the n-th form.
    fn form(&self, n: usize) -> Vec<(String, String)> {
        let seen = self.login.world.all(|_| true);
        url::form_urlencoded::parse(&seen[n].bytes).into_owned().collect()
    }

    fn field(&self, n: usize, name: &str) -> String {
        self.form(n).into_iter().find(|(found, _)| found == name).unwrap_or_default().1
    }

    /// The credentials of the calls that reached the server.
    fn credentials(&self) -> Vec<String> {
        let calls = self.gate.server.world.all(SeenRequest::is_call);
        calls.iter().map(|seen| seen.header("authorization").unwrap_or_default().to_owned()).collect()
    }

    async fn call(&self, credential: &str) -> Answer {
        self.gate.send(&Ask::call(credential, "quick", &json!({}))).await
    }
}

fn anything() -> Arc<Accepts> {
    Arc::new(|_| true)
}

/// RFC 6749, 4.4; RFC 8707.
#[tokio::test]
async fn client_credentials_are_asked_for_once_and_reach_the_server_for_every_caller() {
    let world = World::start(at_once(issued), anything(), client_credentials).await;
    let token = world.token("ada", &json!({}));
    for credential in [ADA, &token, &token] {
        assert_eq!(world.call(credential).await.status(), "200");
    }
    let session = world.gate.session_of(&token).await;
    let listed = world.gate.send(&Ask::session(&token, Some(&session), "tools/list", &json!({}))).await;
    assert_eq!(listed.status(), "200");
    assert_eq!(world.asked(), 1);
    let fields = [("grant_type", "client_credentials"), ("resource", RESOURCE), ("scope", "a b")];
    assert_eq!(world.form(0), fields.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let seen = world.login.world.first(|_| true).await;
    assert_eq!((seen.method.as_str(), &*seen.target), ("POST", "/token"));
    assert_eq!(seen.header("content-type"), Some("application/x-www-form-urlencoded"));
    // `task+gate:canary-3f9a`
    assert_eq!(seen.header("authorization"), Some("Basic dGFzaytnYXRlOmNhbmFyeS0zZjlh"));
    let all = world.gate.server.world.all(|_| true);
    assert!(all.len() > 4 && all.iter().all(|seen| seen.header("authorization") == Some("Bearer issued-1")));
}

/// RFC 8693: each person has a token of the server's, and no other person's result of it.
#[tokio::test]
async fn sec_36_a_token_is_exchanged_for_each_owner_and_never_reaches_the_server_itself() {
    let world = World::start(at_once(issued), anything(), exchange).await;
    let first = world.token("ada", &json!({}));
    assert_eq!(world.call(&first).await.status(), "200");
    let expected = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("subject_token", &*first),
        ("subject_token_type", "urn:ietf:params:oauth:token-type:access_token"),
        ("resource", RESOURCE),
        ("audience", "reports"),
    ];
    assert_eq!(world.form(0), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let refreshed = world.token("ada", &json!({ "exp": now() + 600 }));
    assert_eq!(world.call(&refreshed).await.status(), "200");
    assert_eq!(world.asked(), 1, "a refreshed token is the same person's");
    for (credential, number) in [
        (world.token("bob", &json!({})), 2),
        (world.token("ada", &json!({ "scope": "mcp reports:write" })), 3),
        (refreshed.clone(), 1),
    ] {
        assert_eq!(world.call(&credential).await.status(), "200");
        assert_eq!(world.credentials().last().unwrap(), &format!("Bearer issued-{number}"));
    }
    // Each person has a session of its own at the server.
    let sessions = |credential: &str| {
        let of = world.gate.server.world.all(|seen| seen.is_call() && seen.header("authorization") == Some(credential));
        of.iter().map(|seen| seen.header("mcp-session-id").unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let of_each = [1, 2, 3].map(|n| sessions(&format!("Bearer issued-{n}")));
    assert!(of_each.iter().all(|sessions| sessions.len() == 1), "one session for a person's tokens: {of_each:?}");
    assert_eq!(of_each.iter().flatten().collect::<BTreeSet<_>>().len(), 3, "{of_each:?}");
    let seen = world.gate.server.world.all(|_| true);
    assert!(seen.iter().all(|seen| !format!("{seen:?}").contains(&first)), "the client's token went upstream");
}

/// The provider decides which clients' tokens it exchanges, and a person may use all of these clients.
#[tokio::test]
async fn sec_98_the_credential_that_a_persons_client_got_serves_no_other_client_of_that_person() {
    let refused = Arc::new(Mutex::new(BTreeSet::<String>::new()));
    let known = Arc::clone(&refused);
    let reply: Arc<Reply> = Arc::new(move |n, seen: SeenRequest| {
        let mut fields = url::form_urlencoded::parse(&seen.bytes);
        let is_refused = fields.any(|(name, token)| name == "subject_token" && known.lock().contains(&*token));
        Box::pin(std::future::ready(if is_refused { status(400) } else { issued(n) }))
    });
    let world = World::start(reply, anything(), exchange).await;
    for claim in ["client_id", "azp", "appid", "cid"] {
        let [trusted, other, unnamed] =
            [json!("trusted"), json!("other"), Value::Null].map(|client| world.token("ada", &json!({ claim: client })));
        refused.lock().extend([other.clone(), unnamed.clone()]);
        assert_eq!(world.call(&trusted).await.status(), "200", "{claim}");
        for token in [other, unnamed] {
            let answered = world.call(&token).await.summary();
            assert!(answered.ends_with("credential_refused"), "{claim}: {answered}");
        }
        let asked = world.asked();
        let refreshed = world.token("ada", &json!({ claim: "trusted", "exp": now() + 600 }));
        assert_eq!(world.call(&refreshed).await.status(), "200", "{claim}");
        assert_eq!(world.asked(), asked, "{claim}: the client's refreshed token has its credential");
    }
}

/// A failure is one token's: the newer token of the same person has an exchange of its own, also while the older one's runs.
#[tokio::test]
async fn a_refreshed_token_does_not_get_the_failure_of_the_token_before_it() {
    let fails = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&fails);
    let reply: Arc<Reply> = Arc::new(move |n, _| {
        let waits = Arc::clone(&waits);
        Box::pin(async move {
            if n > 1 {
                return issued(n);
            }
            let _ = waits.acquire().await;
            status(400)
        })
    });
    let world = World::start(reply, anything(), exchange).await;
    let [older, newer] = [300, 600].map(|seconds| world.token("ada", &json!({ "exp": now() + seconds })));
    let refreshed = async {
        world.login.world.first(|_| true).await;
        let answered = world.call(&newer).await;
        fails.add_permits(1);
        answered
    };
    let (_, answered) = tokio::join!(world.call(&older), refreshed);
    assert_eq!((answered.status(), world.asked()), ("200", 2), "{answered:?}");
}

/// A person has tokens of two clients, and logs out of the client whose tokens end later.
#[tokio::test]
async fn sec_93_a_revoked_token_keeps_no_other_token_of_its_person_from_being_exchanged() {
    let revoked = Arc::new(Mutex::new(None::<String>));
    let known = Arc::clone(&revoked);
    let reply: Arc<Reply> = Arc::new(move |n, seen: SeenRequest| {
        let mut fields = url::form_urlencoded::parse(&seen.bytes);
        let subject = fields.find(|(name, _)| name == "subject_token").map(|(_, token)| token.into_owned());
        // An issued token has ended before the next call.
        let is_revoked = subject.is_some() && subject == *known.lock();
        Box::pin(std::future::ready(if is_revoked { status(400) } else { valid_for(n, &json!(1e-9)) }))
    });
    let world = World::start(reply, anything(), exchange).await;
    let [late, early] = [600, 300].map(|seconds| world.token("ada", &json!({ "exp": now() + seconds })));
    assert_eq!(world.call(&late).await.status(), "200");
    *revoked.lock() = Some(late.clone());
    let asked = world.asked();
    for round in 1..=2 {
        assert_eq!(world.call(&early).await.status(), "200", "{round}");
    }
    assert!((asked..world.asked()).any(|n| world.field(n, "subject_token") == late), "it is the newest token");
    let refused = world.call(&late).await.summary();
    assert!(refused.ends_with("credential_refused"), "{refused}");
    assert_eq!(world.call(&early).await.status(), "200");
}

#[tokio::test]
async fn sec_37_a_caller_without_a_token_is_refused_where_tokens_are_exchanged() {
    let world = World::start(at_once(issued), anything(), exchange).await;
    let refused = world.call(ADA).await;
    assert_eq!((refused.status(), refused.header("retry-after")), ("503", None), "{refused:?}");
    let error = json!({
        "jsonrpc": "2.0", "id": 7,
        "error": {
            "code": -32603,
            "message": "The upstream server's credential is exchanged for an access token, and the request came without one: log in",
            "data": { "source": "gateway", "reason": "credential_missing", "executed": "no" },
        },
    });
    assert_eq!(refused.json(), error);
    assert_eq!((world.asked(), world.gate.server.world.all(|_| true).len()), (0, 0));
    // It does not delay persons who have a token.
    assert_eq!(world.call(&world.token("ada", &json!({}))).await.status(), "200");
}

/// The server gets no request, and the client nothing of the password or of the answer.
#[tokio::test]
async fn an_authorization_server_that_fails_is_named_and_the_server_is_not_called() {
    let text = |text: String| at_once(move |_| json_text(text.clone()));
    let token = |more: &str| format!("{{\"access_token\":\"{SECRET}-token\"{more}}}");
    let refusing = |code: u16, text: &'static str| {
        at_once(move |_| {
            let mut reply = json_text(text);
            *reply.status_mut() = http::StatusCode::from_u16(code).unwrap();
            reply
        })
    };
    let moved = at_once(|_| {
        let mut reply = status(307);
        reply.headers_mut().insert("location", "/elsewhere".parse().unwrap());
        reply
    });
    let rows: Vec<(&str, Arc<Reply>, &str)> = vec![
        ("HTML", at_once(|_| whole(format!("<html>{SECRET}</html>"))), "malformed"),
        ("nothing", text(String::new()), "malformed"),
        ("10 MiB", text(" ".repeat(10 << 20)), "malformed"),
        ("no token", text("{\"token_type\":\"Bearer\"}".to_owned()), "malformed"),
        ("no type", text(token("")), "malformed"),
        ("a DPoP token", text(token(",\"token_type\":\"DPoP\"")), "malformed"),
        ("a text for its end", text(token(",\"token_type\":\"Bearer\",\"expires_in\":\"60\"")), "malformed"),
        ("an end before now", text(token(",\"token_type\":\"Bearer\",\"expires_in\":-60")), "malformed"),
        ("two tokens", text(token(",\"access_token\":\"x\",\"token_type\":\"Bearer\"")), "malformed"),
        ("a redirect", moved, "malformed"),
        ("204", at_once(|_| status(204)), "malformed"),
        ("invalid_client", refusing(401, "{\"error\":\"invalid_client\"}"), "refused"),
        (
            "invalid_target",
            refusing(400, "{\"error\":\"invalid_target\",\"error_description\":\"canary-3f9a\"}"),
            "refused",
        ),
        ("404", at_once(|_| status(404)), "refused"),
        ("429", at_once(|_| status(429)), "unavailable"),
        ("500", at_once(|_| status(500)), "unavailable"),
        ("503", at_once(|_| status(503)), "unavailable"),
    ];
    for credential in [client_credentials, exchange] {
        for (name, reply, kind) in &rows {
            let world = World::start(Arc::clone(reply), anything(), credential).await;
            let refused = world.call(&world.token("ada", &json!({}))).await;
            assert_eq!(refused.summary(), format!("503 -32603 credential_{kind}"), "{name}");
            let retry = (*kind != "refused").then_some("1");
            assert_eq!(refused.header("retry-after"), retry, "{name}: {refused:?}");
            assert_eq!(refused.json()["error"]["data"]["executed"], "no", "{name}");
            assert_eq!(world.credentials(), Vec::<String>::new(), "{name}");
            assert!(!refused.text().contains("canary"), "{name}: {refused:?}");
        }
    }
}

/// The authorization server's answers each take a permit of the semaphore.
fn held_answers() -> (Arc<Semaphore>, Arc<Reply>) {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let reply: Arc<Reply> = Arc::new(move |n, _| {
        let held = Arc::clone(&held);
        Box::pin(async move {
            held.acquire().await.unwrap().forget();
            issued(n)
        })
    });
    (gate, reply)
}

#[tokio::test]
async fn a_hundred_calls_cause_one_request_for_a_token() {
    for credential in [client_credentials, exchange] {
        let (gate, reply) = held_answers();
        let world = World::start(reply, anything(), credential).await;
        let ask = Ask::call(&world.token("ada", &json!({})), "quick", &json!({}));
        let asks = vec![ask; 100];
        let release = async {
            world.login.world.first(|_| true).await;
            gate.add_permits(100);
        };
        let (answers, ()) = tokio::join!(world.gate.burst(&asks), release);
        assert!(answers.iter().all(|answer| answer.status() == "200"), "{:?}", answers[0]);
        assert_eq!((world.asked(), world.credentials().len()), (1, 100));
    }
}

#[tokio::test]
async fn a_request_for_a_token_is_finished_though_its_client_leaves() {
    let (gate, reply) = held_answers();
    let world = World::start(reply, anything(), exchange).await;
    let token = world.token("ada", &json!({}));
    let mut stream = TcpStream::connect(world.gate.gateway.address()).await.unwrap();
    stream.write_all(&Ask::call(&token, "quick", &json!({})).bytes()).await.unwrap();
    world.login.world.first(|_| true).await;
    drop(stream);
    // Another client joins the request that the first one began.
    let (second, ()) = tokio::join!(world.call(&token), async { gate.add_permits(1) });
    assert_eq!((second.status(), world.asked()), ("200", 1));
}

#[tokio::test]
async fn a_401_of_the_server_renews_the_credential_once_and_the_call_runs_once() {
    for credential in [client_credentials, exchange] {
        let revoked = Arc::new(Mutex::new(String::new()));
        let is_revoked = Arc::clone(&revoked);
        let world = World::start(at_once(issued), Arc::new(move |value| *is_revoked.lock() != value), credential).await;
        let token = world.token("ada", &json!({}));
        assert_eq!(world.call(&token).await.status(), "200");
        *revoked.lock() = "Bearer issued-1".to_owned();
        let asks = vec![Ask::call(&token, "quick", &json!({})); 20];
        for answer in world.gate.burst(&asks).await {
            assert_eq!(answer.summary(), "200 ok", "{answer:?}");
        }
        assert_eq!(world.asked(), 2, "one renewal for all");
        let ran = world.credentials().iter().filter(|value| *value == "Bearer issued-2").count();
        assert_eq!(ran, 20, "each ran once");
    }
}

#[tokio::test]
async fn a_server_that_refuses_every_credential_ends_the_call_and_is_not_flooded() {
    for credential in [client_credentials, exchange] {
        let world = World::start(at_once(issued), Arc::new(|_| false), credential).await;
        let token = world.token("ada", &json!({}));
        for _ in 0..5 {
            let refused = world.call(&token).await;
            assert_eq!(refused.json()["error"]["data"]["reason"], "upstream_auth", "{refused:?}");
            assert_eq!(refused.json()["error"]["data"]["httpStatus"], 401, "{refused:?}");
        }
        assert_eq!(world.asked(), 2, "one renewal in 30 s");
    }
}

/// A server of 2026-07-28 that makes a task of each call, and says whether there was one.
fn task_server(is_called: &Arc<AtomicBool>) -> impl Future<Output = ScriptedServer> + use<> {
    let is_called = Arc::clone(is_called);
    ScriptedServer::slow(move |seen: SeenRequest, _| {
        is_called.fetch_or(seen.is_call(), Ordering::SeqCst);
        async move { make_task(&seen) }
    })
}

fn make_task(seen: &SeenRequest) -> Option<ScriptedReply> {
    let task = json!({
        "taskId": "u-1", "status": "working", "ttlMs": 600_000, "pollIntervalMs": 20,
        "createdAt": "2026-11-25T00:00:00Z", "lastUpdatedAt": "2026-11-25T00:00:00Z",
    });
    let facts = json!({
        "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {}, "extensions": {
        "io.modelcontextprotocol/tasks": {} } }, "serverInfo": { "name": "s", "version": "1" },
    });
    let complete =
        |result: &Value| with(result, &json!({ "resultType": "complete", "ttlMs": 0, "cacheScope": "private" }));
    Some(match seen.rpc() {
        "server/discover" => answer(seen, &complete(&facts)),
        "tools/list" => answer(seen, &complete(&json!({ "tools": [{ "name": "task", "inputSchema": {} }] }))),
        "tools/call" => answer(seen, &with(&task, &json!({ "resultType": "task" }))),
        "tasks/get" => answer(seen, &complete(&task)),
        _ => return None,
    })
}

/// The call goes on without its client; the gateway exchanges the client's newest token.
#[tokio::test]
async fn a_credential_is_renewed_in_the_middle_of_a_task() {
    let reply = at_once(|n| valid_for(n, &json!(0.2)));
    let world = World::behind(task_server(&Arc::default()).await, reply, exchange).await;
    let first = world.token("ada", &json!({}));
    let made = world.gate.send(&Ask::call(&first, "task", &json!({}))).await;
    let id = made.json()["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made:?}")).to_owned();
    let used = || {
        let seen = world.gate.server.world.all(|_| true).into_iter();
        seen.filter_map(|seen| seen.header("authorization").map(str::to_owned)).collect::<BTreeSet<_>>()
    };
    in_time(async {
        while used().len() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(world.field(2, "subject_token"), first);
    let refreshed = world.token("ada", &json!({ "exp": now() + 900 }));
    let polled = world.gate.send(&Ask::new(&refreshed, "tasks/get", json!({ "taskId": id }))).await;
    assert_eq!(polled.json()["result"]["status"], "working", "{polled:?}");
    let is_newer = |seen: &SeenRequest| {
        url::form_urlencoded::parse(&seen.bytes).any(|(name, value)| name == "subject_token" && *value == refreshed)
    };
    world.login.world.first(is_newer).await;
}

/// The authorization server refuses the person's token: the task ends with `executed: unknown`.
#[tokio::test]
async fn a_task_whose_client_may_no_longer_call_ends() {
    let is_called = Arc::new(AtomicBool::new(false));
    let may_no_longer = Arc::clone(&is_called);
    // A busy machine may need several tokens until the server has the call.
    let reply =
        at_once(move |n| if may_no_longer.load(Ordering::SeqCst) { status(400) } else { valid_for(n, &json!(0.2)) });
    let world = World::behind(task_server(&is_called).await, reply, exchange).await;
    let token = world.token("ada", &json!({}));
    let made = world.gate.send(&Ask::call(&token, "task", &json!({}))).await;
    let id = made.json()["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made:?}")).to_owned();
    let ended = in_time(async {
        loop {
            let polled = world.gate.send(&Ask::new(&token, "tasks/get", json!({ "taskId": id }))).await.json();
            if polled["result"]["status"] == "failed" {
                return polled;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let data = ended.await["result"]["error"]["data"].take();
    assert_eq!((&data["reason"], &data["executed"]), (&json!("credential_refused"), &json!("unknown")), "{data}");
}

#[tokio::test]
async fn another_credential_in_the_file_is_used_after_a_reload() {
    let mut world = World::start(at_once(issued), anything(), client_credentials).await;
    assert_eq!(world.call(ADA).await.status(), "200");
    let changed = world.gate.reload_with(|config| {
        let mut issued = config.upstreams.iter_mut().filter_map(|upstream| {
            let ServerSettings::Http(http) = &mut upstream.server else { panic!("a url") };
            http.issued.as_deref_mut()
        });
        let Some(IssuedCredentialSettings::ClientCredentials(request)) = issued.next() else {
            panic!("client credentials")
        };
        request.target.scope = Some("c".to_owned());
    });
    changed.unwrap();
    assert_eq!(world.call(ADA).await.status(), "200");
    assert_eq!((world.field(0, "scope"), world.field(1, "scope")), ("a b".to_owned(), "c".to_owned()));
    assert_eq!(world.credentials(), ["Bearer issued-1", "Bearer issued-2"]);
}
