//! Requests that last for 90 s: calls, waits for outcomes, streams of subscribers. All at the same time, each of them
//! silent but for the gateway's comments and progress, six of which come in that time.

use futures_util::future::{join, join_all, join3};
use http::Version;
use http_body_util::Full;
use serde_json::{Value, json};
use std::time::Duration;
use support::peers::install::Peers;
use support::session_client::{Client, Reply};
use support::talk::ManualSetup;
use tokio::time::timeout;

use super::running_proxy::{ProxySetup, ReverseProxy};
use super::{Front, PUBLIC, post, stateless};

/// One every 15 s: 90 s.
const SIGNS: usize = 6;
/// Far more than the interval of comments, also on a busy machine.
const SIGN_MAX: Duration = Duration::from_secs(50);

/// A long request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LongTalk {
    /// A call of a session client without tasks.
    SessionCall,
    /// The same, who asks for progress.
    SessionProgress,
    /// A call of a 2026-07-28 client without tasks.
    StatelessCall,
    /// `tasks/result` of a 2025-11-25 client.
    TaskResult,
    /// A call of an HTTP+SSE client.
    EventStreamCall,
    /// The stream of a session.
    Listener,
    /// `subscriptions/listen` of a 2026-07-28 client.
    Subscription,
    /// A call of a 2026-07-28 client that takes no stream.
    JsonCall,
    /// The same in a session.
    SessionJsonCall,
}

impl LongTalk {
    const ALL: [Self; 9] = [
        Self::SessionCall,
        Self::SessionProgress,
        Self::StatelessCall,
        Self::TaskResult,
        Self::EventStreamCall,
        Self::Listener,
        Self::Subscription,
        Self::JsonCall,
        Self::SessionJsonCall,
    ];

    const fn is_json(self) -> bool {
        matches!(self, Self::JsonCall | Self::SessionJsonCall)
    }

    /// Begins; returns with the answer that is a stream.
    async fn begin(self, client: Client) -> Result<Reply, hyper::Error> {
        let call = json!({ "name": "work", "arguments": { "of": format!("{self:?}") } });
        match self {
            Self::SessionCall => send(&client.opened("2025-11-25").await, "tools/call", &call).await,
            Self::SessionJsonCall => {
                let client = Client { accept: "application/json", ..client.opened("2025-11-25").await };
                send(&client, "tools/call", &call).await
            }
            Self::SessionProgress => {
                let mut call = call;
                call["_meta"] = json!({ "progressToken": "p" });
                send(&client.opened("2025-06-18").await, "tools/call", &call).await
            }
            Self::TaskResult => {
                let client = client.opened("2025-11-25").await;
                let call = json!({ "name": "work", "arguments": {}, "task": {} });
                let made = send(&client, "tools/call", &call).await?.json().await;
                send(&client, "tasks/result", &json!({ "taskId": made["result"]["task"]["taskId"] })).await
            }
            Self::Listener => {
                let client = client.opened("2025-11-25").await;
                client.send_patiently(client.request("GET").body(Full::default()).unwrap()).await
            }
            Self::EventStreamCall => over_events(&client, &call).await,
            Self::StatelessCall => stateless(&client, "tools/call", call).await,
            Self::JsonCall => stateless(&Client { accept: "application/json", ..client }, "tools/call", call).await,
            Self::Subscription => {
                let wishes = json!({ "notifications": { "toolsListChanged": true } });
                stateless(&client, "subscriptions/listen", wishes).await
            }
        }
    }

    /// The text that ends its stream, or follows.
    const fn awaited(self) -> &'static str {
        match self {
            Self::Listener | Self::Subscription => "notifications/tools/list_changed",
            Self::SessionCall
            | Self::SessionProgress
            | Self::StatelessCall
            | Self::TaskResult
            | Self::EventStreamCall
            | Self::JsonCall
            | Self::SessionJsonCall => "\"it is done\"",
        }
    }
}

async fn send(client: &Client, method: &str, params: &Value) -> Result<Reply, hyper::Error> {
    post(client, client.request("POST"), method, params).await
}

/// A call whose answer comes on a stream of its own.
async fn over_events(client: &Client, call: &Value) -> Result<Reply, hyper::Error> {
    let open = client.request("GET").uri("/sse").body(Full::default()).unwrap();
    let mut stream = client.send_patiently(open).await?;
    let first = stream.until("\n\n").await;
    let target = first.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_else(|| panic!("{first}"));
    let initialize = json!({
        "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
    });
    for (method, params) in [("initialize", &initialize), ("tools/call", call)] {
        let taken = post(client, client.request("POST").uri(target), method, params).await?;
        assert_eq!(taken.status, 202, "{method}");
        if method == "initialize" {
            stream.until("\n\n").await;
        }
    }
    Ok(stream)
}

/// A talk under way.
struct Ongoing {
    talk: LongTalk,
    reply: Reply,
    /// The bytes that came and were not examined yet.
    read: String,
}

impl Ongoing {
    async fn read(&mut self) {
        let piece = timeout(SIGN_MAX, self.reply.next_piece()).await;
        let piece = piece.unwrap_or_else(|_| panic!("{:?}: silent for too long", self.talk));
        let piece = piece.unwrap_or_else(|error| panic!("{:?}: broken off: {error:?}", self.talk));
        self.read += &piece.unwrap_or_else(|| panic!("{:?}: ended behind {:?}", self.talk, self.read));
    }

    /// Reads so many comments or progress events, and no other messages.
    async fn outlast(&mut self, signs: usize) {
        while self.read.split("\n\n").filter(|event| is_sign(event)).count() < signs {
            self.read().await;
        }
        assert!(!self.read.contains("done"), "{:?}: {}", self.talk, self.read);
    }

    async fn end(&mut self) {
        while !self.read.contains(self.talk.awaited()) {
            self.read().await;
        }
    }
}

fn is_sign(event: &str) -> bool {
    event.starts_with(':') || event.contains("notifications/progress")
}

/// Over each version of HTTP that the setup serves.
const fn versions(setup: ProxySetup) -> &'static [Version] {
    if setup.is_secure() { &[Version::HTTP_11, Version::HTTP_2] } else { &[Version::HTTP_11] }
}

async fn outlasted(front: &Front, setup: ProxySetup) -> Vec<Ongoing> {
    let client = |version| front.proxy.client(&front.behind, version);
    let talks = versions(setup).iter().flat_map(|version| LongTalk::ALL.map(|talk| (*version, talk)));
    let talks = talks.filter(|(_, talk)| !talk.is_json()).map(async |(version, talk)| {
        let reply = talk.begin(client(version)).await.unwrap_or_else(|error| panic!("{talk:?}: {error:?}"));
        assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("text/event-stream")), "{talk:?}");
        let mut ongoing = Ongoing { talk, reply, read: String::new() };
        ongoing.outlast(SIGNS).await;
        ongoing
    });
    join_all(talks).await
}

/// Releases everything at the server: calls are answered, streams get a notification. Returns the calls that were abandoned.
async fn let_go(behind: &ManualSetup) -> Vec<String> {
    let mut left = Vec::new();
    for _ in 0..behind.server.world.count("tools/call") {
        let call = behind.call().await;
        if !call.events.is_open() {
            left.push(call.seen.body["params"]["arguments"]["of"].to_string());
        }
        call.answer(&json!({ "content": [{ "type": "text", "text": "it is done" }] }));
    }
    for _ in behind.server.world.all(|seen| seen.method == "GET") {
        behind.get().await.send(&json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" }));
    }
    left.sort();
    left
}

/// An answer that is no stream has no comments: nginx ends it after 60 s, HAProxy after 50 s, and the server's request is abandoned.
async fn wait_in_silence(talk: LongTalk, front: &Front, proxy: ReverseProxy) {
    let reply = talk.begin(front.proxy.client(&front.behind, Version::HTTP_11)).await;
    let reply = reply.unwrap_or_else(|error| panic!("{talk:?}: {error:?}"));
    let (status, text) = (reply.status.as_u16(), reply.text().await);
    match proxy {
        ReverseProxy::Caddy => assert!(status == 200 && text.contains(talk.awaited()), "{talk:?}: {status} {text}"),
        ReverseProxy::Nginx | ReverseProxy::Haproxy => assert_eq!(status, 504, "{talk:?}: {text}"),
    }
}

async fn talk_for_long(proxy: ReverseProxy, setup: ProxySetup) {
    let front = Front::start(proxy, setup, PUBLIC, "long").await;
    let capabilities = json!({ "capabilities": { "tools": { "listChanged": true } } });
    *front.behind.server.world.initialize_result.lock() = capabilities;
    let outlasted = async {
        let ongoing = outlasted(&front, setup).await;
        (let_go(&front.behind).await, ongoing)
    };
    let silent = LongTalk::ALL.into_iter().filter(|talk| talk.is_json());
    let silent = silent.map(|talk| wait_in_silence(talk, &front, proxy));
    let ((left, mut ongoing), _) = join(outlasted, join_all(silent)).await;
    match proxy {
        ReverseProxy::Caddy => assert!(left.is_empty(), "{left:?}"),
        ReverseProxy::Nginx | ReverseProxy::Haproxy => assert_eq!(left, ["\"JsonCall\"", "\"SessionJsonCall\""]),
    }
    for talk in &mut ongoing {
        talk.end().await;
    }
}

/// 90 s of each are more than nginx (60 s) and HAProxy (50 s) wait by default for a server that says nothing.
#[tokio::test]
async fn every_stream_of_90_s_survives_each_proxys_default_configuration() {
    if !Peers::are_asked_for("calls of 90 s behind nginx, Caddy and HAProxy") {
        return;
    }
    let fronts = ReverseProxy::ALL.map(|proxy| async move {
        let talk = |setup| Box::pin(talk_for_long(proxy, setup));
        let over_http_2 = async {
            if proxy != ReverseProxy::Nginx {
                talk(ProxySetup::Http2).await;
            }
        };
        join3(talk(ProxySetup::Least), talk(ProxySetup::Documented), over_http_2).await
    });
    join_all(fronts).await;
}
