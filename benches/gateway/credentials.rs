//! What the credential of a client costs, and the audit: piped calls and polls, next to the same with an API key.

use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;

use anyhow::Context as _;
use serde_json::{Value, json};
use support::issuer::{IssuerKey, key_set, now, possession_proof, thumbprint, with};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::line::{Line, Protocol};
use crate::load::Question;
use crate::messages;
use crate::parts::Part;
use crate::plan::{Comparison, LOOK_EVERY, PATIENCE, PLAIN, Size, TASKS, compare, config_of, config_text};
use crate::upstream::{HOLD, SMALL};

const ISSUER: &str = "https://login.example";
/// Where clients reach the gateway, as tokens and proofs say.
const PUBLIC: &str = "https://mcp.example";
const API_KEY: &str = "tg_ada1_0011223344556677889900aabbccddee";

/// Requests with a credential are counted. Polls may be as many for each unfinished task.
const NO_RATES: &str =
    "limits.requests_per_second = 1_000_000\nlimits.requests_burst = 1_000_000\nlimits.polls_per_task = 1_000_000";

/// The most CPU of a request with a token that the gateway remembers, and with the audit.
const BUDGET: f64 = 1.15;

/// Who sends a request, or what else its gateway does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A client without credential, at a gateway that asks for none.
    Anonymous,
    ApiKey,
    /// One token over and over.
    RememberedToken,
    /// Another token with each request.
    NewTokens,
    /// A token that is bound to a key, and with each request a new proof (DPoP).
    Proofs,
    /// An API key at a gateway that records each call.
    Audited,
}

impl Kind {
    /// Whether the gateway of [`Kind::ApiKey`] serves it, too.
    pub(crate) fn is_served_with_keys(self) -> bool {
        !matches!(self, Self::Anonymous | Self::Audited)
    }

    /// Whether a request is of use once.
    pub(crate) fn is_sent_once(self) -> bool {
        matches!(self, Self::NewTokens | Self::Proofs)
    }
}

/// The request that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Call,
    Poll,
}

impl Way {
    const fn path(self) -> &'static str {
        match self {
            Self::Call => PLAIN,
            Self::Poll => TASKS,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) way: Way,
    pub(crate) kind: Kind,
    budget: Option<f64>,
}

impl Row {
    const fn of(what: &'static str, way: Way, kind: Kind) -> Self {
        Self { what, way, kind, budget: None }
    }

    const fn within(self, budget: f64) -> Self {
        Self { budget: Some(budget), ..self }
    }
}

pub(crate) const ROWS: [Row; 9] = [
    Row::of("session call in the pipe without credential", Way::Call, Kind::Anonymous),
    Row::of("session call in the pipe with a remembered token", Way::Call, Kind::RememberedToken).within(BUDGET),
    Row::of("session call in the pipe with new tokens", Way::Call, Kind::NewTokens),
    Row::of("session call in the pipe with proofs", Way::Call, Kind::Proofs),
    Row::of("session call in the pipe with the audit", Way::Call, Kind::Audited).within(BUDGET),
    Row::of("tasks/get without credential", Way::Poll, Kind::Anonymous),
    Row::of("tasks/get with a remembered token", Way::Poll, Kind::RememberedToken).within(BUDGET),
    Row::of("tasks/get with new tokens", Way::Poll, Kind::NewTokens),
    Row::of("tasks/get with proofs", Way::Poll, Kind::Proofs),
];

/// The issuer of the tokens, and the key of the client that proves to have it.
pub(crate) struct Login {
    issuer: IssuerKey,
    client: IssuerKey,
    remembered: OnceCell<String>,
    bound: OnceCell<String>,
    numbers: Cell<u64>,
    folder: TempDir,
    /// The audit's file is not in the key set's folder: the gateway watches that folder for changes.
    audit: TempDir,
}

impl Login {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let (issuer, folder) = (IssuerKey::es256("bench"), TempDir::new()?);
        std::fs::write(folder.path().join("keys.json"), key_set([&issuer]))?;
        Ok(Self {
            issuer,
            client: IssuerKey::es256("client"),
            remembered: OnceCell::new(),
            bound: OnceCell::new(),
            numbers: Cell::new(0),
            folder,
            audit: TempDir::new()?,
        })
    }

    async fn gateway(&self, upstream: SocketAddr, kind: Kind) -> anyhow::Result<Part> {
        Part::gateway(config_of(&self.config(upstream, kind))?.path()).await
    }

    /// The configuration of the gateway that a kind of client calls.
    pub(crate) fn config(&self, upstream: SocketAddr, kind: Kind) -> String {
        let store = format!("store.kind = \"memory\"\nlisten.public_url = \"{PUBLIC}\"\n{NO_RATES}");
        let config = config_text(upstream, if kind == Kind::Anonymous { "store.kind = \"memory\"" } else { &store });
        match kind {
            Kind::Anonymous => config,
            Kind::Audited => format!("{config}{}{}", self.auth(), self.audit()),
            Kind::ApiKey | Kind::RememberedToken | Kind::NewTokens | Kind::Proofs => config + &self.auth(),
        }
    }

    fn auth(&self) -> String {
        format!(
            "[auth]\nmode = [\"tokens\", \"api_keys\"]\nscopes = [\"mcp\"]\ndpop = \"accept\"\n\
             [[auth.api_keys]]\nid = \"ada\"\nkey = \"{API_KEY}\"\n\
             [[auth.issuers]]\nissuer = \"{ISSUER}\"\nalgorithms = [\"ES256\"]\njwks_file = \"{}\"\n",
            self.folder.path().join("keys.json").display()
        )
    }

    fn audit(&self) -> String {
        format!("[audit]\npath = \"{}\"\n", self.audit.path().join("audit.jsonl").display())
    }

    /// `count` requests of a client, for a session or a settled task that it first gets at the gateway.
    pub(crate) async fn question(
        &self,
        gateway: &Part,
        (way, kind): (Way, Kind),
        count: usize,
    ) -> anyhow::Result<Question> {
        let path = way.path();
        let mut client = LoggedInClient { login: self, kind, path, line: Line::connect(gateway.address).await? };
        let bare = match way {
            Way::Call => client.session_call().await?,
            Way::Poll => client.poll().await?,
        };
        let answer = client.ask(&bare).await?;
        let count = if kind.is_sent_once() { count } else { 1 };
        let requests = (0..count).map(|_| messages::with_headers(&bare, &self.headers(kind, path))).collect();
        Ok(Question { requests, answer })
    }

    /// The headers with a credential of this kind; a new token and a proof differ from all before.
    fn headers(&self, kind: Kind, path: &str) -> String {
        let address = format!("{PUBLIC}{path}");
        let audiences = [PLAIN, TASKS].map(|path| format!("{PUBLIC}{path}"));
        let claims = json!({ "iss": ISSUER, "sub": "ada", "aud": audiences, "exp": now() + 3_600, "scope": "mcp" });
        match kind {
            Kind::Anonymous => String::new(),
            Kind::ApiKey | Kind::Audited => format!("Authorization: Bearer {API_KEY}\r\n"),
            Kind::RememberedToken => {
                let token = self.remembered.get_or_init(|| self.issuer.token(&claims));
                format!("Authorization: Bearer {token}\r\n")
            }
            Kind::NewTokens => {
                let token = self.issuer.token(&with(&claims, &json!({ "jti": self.number() })));
                format!("Authorization: Bearer {token}\r\n")
            }
            Kind::Proofs => {
                let bound = with(&claims, &json!({ "cnf": { "jkt": thumbprint(&self.client) } }));
                let token = self.bound.get_or_init(|| self.issuer.token(&bound));
                let claims = json!({ "jti": self.number(), "htm": "POST", "htu": address, "iat": now() });
                let proof = possession_proof(&self.client, token, &claims);
                format!("Authorization: DPoP {token}\r\nDPoP: {proof}\r\n")
            }
        }
    }

    fn number(&self) -> String {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get().to_string()
    }
}

struct LoggedInClient<'a> {
    login: &'a Login,
    kind: Kind,
    path: &'static str,
    line: Line,
}

impl LoggedInClient<'_> {
    async fn ask(&mut self, bare: &[u8]) -> anyhow::Result<Vec<u8>> {
        let request = messages::with_headers(bare, &self.login.headers(self.kind, self.path));
        Ok(self.line.ask(&request).await?.to_vec())
    }

    async fn session_call(&mut self) -> anyhow::Result<Vec<u8>> {
        self.ask(&messages::initialize(self.path)).await?;
        let session = self.line.header("mcp-session-id").context("no session was given out")?;
        Ok(messages::session_call(self.path, &session, SMALL))
    }

    /// Makes a task, waits until it has settled, and returns the request for its state.
    async fn poll(&mut self) -> anyhow::Result<Vec<u8>> {
        // One that never ends permits polls for as long as the measurement takes.
        self.ask(&messages::call(self.path, messages::Client::OfTasks, HOLD)).await?;
        let handle = self.ask(&messages::call(self.path, messages::Client::OfTasks, SMALL)).await?;
        let handle: Value = serde_json::from_slice(&handle)?;
        let poll = messages::poll(self.path, handle["result"]["taskId"].as_str().context("no handle")?);
        let settled = async {
            while serde_json::from_slice::<Value>(&self.ask(&poll).await?)?["result"]["status"] != "completed" {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, settled).await.context("never settled")??;
        Ok(poll)
    }
}

/// All that `wanted` asks for, each next to the same with an API key.
pub(crate) async fn compare_all(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    let login = Login::new()?;
    let mut with_key = None;
    for row in ROWS.iter().filter(|row| row.what.contains(wanted)) {
        let with_key = match &mut with_key {
            Some(part) => part,
            none => none.insert(login.gateway(upstream, Kind::ApiKey).await?),
        };
        let other = if row.kind.is_served_with_keys() { None } else { Some(login.gateway(upstream, row.kind).await?) };
        let measured = other.as_ref().unwrap_or(with_key);
        let requests = if row.kind.is_sent_once() { size.large } else { size.small };
        let at_key = login.question(with_key, (row.way, Kind::ApiKey), 1).await?;
        // As many as `compare` asks: to warm up, and in its rounds.
        let question = login.question(measured, (row.way, row.kind), (size.rounds + 1) * requests).await?;
        let sides = [("taskgate, API key", &*with_key, at_key), ("taskgate", measured, question)];
        comparisons.push(compare(row.what, sides, size, (requests, Protocol::Http1)).await?.within(row.budget));
    }
    Ok(comparisons)
}
