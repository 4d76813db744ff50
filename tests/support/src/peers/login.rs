//! Real clients that log in, the authorization server at which they do, and a slow server: shared by the suites of logins.

use std::time::Duration;

use serde_json::{Value, json};

use super::install::Peers;
use super::process::Child;
use crate::scripted::{ScriptedReply, ScriptedServer, SeenRequest, answer};

/// A real authorization server, npm `oidc-provider`. Its process ends with it.
#[derive(Debug)]
pub struct Issuer {
    pub url: String,
    /// The private key of its client `signer`, in PEM as a JSON text.
    pub signer: String,
    child: Child,
}

impl Issuer {
    /// `tokens` are `jwt` or `opaque`, and the seconds that they are accepted. It redeems assertions of `identity_provider`, which is
    /// another such server.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(
        peers: &Peers,
        name: &str,
        tokens: [&str; 2],
        identity_provider: Option<&str>,
    ) -> Result<Self, String> {
        let arguments = ["login_issuer.mjs"].into_iter().chain(tokens).chain(identity_provider);
        let mut child = Child::start(name, peers.command("node", arguments))?;
        let signer = child.line("signer ").await?;
        Ok(Self { url: child.line("as ").await?, signer, child })
    }

    /// Waits until it granted a token by this type of grant: the subject and the resource.
    ///
    /// # Panics
    /// If it grants none in time.
    pub async fn granted(&mut self, grant: &str) -> String {
        let line = self.child.line(&format!("granted urn:ietf:params:oauth:grant-type:{grant} ")).await;
        line.expect("the authorization server grants a token")
    }
}

/// A client, by its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    TypeScript,
    Python,
    AiSdk,
    /// `tests/peers/rmcp_login.sh` builds the package of this program.
    Rust,
    /// The Inspector's pages in Chromium.
    Inspector,
}

impl Client {
    /// The program, and its script.
    const fn driver(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::TypeScript => ("node", Some("login_ts.mjs")),
            Self::Python => ("py-modern/bin/python", Some("login_py.py")),
            Self::AiSdk => ("node", Some("login_ai_sdk.mjs")),
            Self::Rust => ("rmcp-login/debug/rmcp-login", None),
            Self::Inspector => ("node", Some("login_inspector.mjs")),
        }
    }

    /// The step that follows a call to its end by the tasks which the client knows.
    pub fn task(self, tool: &str, ms: u64) -> Value {
        match self {
            Self::TypeScript | Self::Rust | Self::Inspector => json!({ "task": tool, "ms": ms }),
            Self::Python | Self::AiSdk => json!({ "toolTask": tool, "ms": ms }),
        }
    }

    /// Runs the driver: its facts of each of the `steps`. `wanted` are the other members of its argument.
    ///
    /// # Errors
    /// If it ends before, or is too slow.
    pub async fn run(
        self,
        peers: &Peers,
        name: &str,
        mut wanted: Value,
        steps: &[Value],
    ) -> Result<Vec<Value>, String> {
        wanted["steps"] = Value::from(steps);
        let (program, script) = self.driver();
        let arguments = script.map(str::to_owned).into_iter().chain([wanted.to_string()]);
        let command = peers.command(program, arguments);
        let mut child = Child::start(name, command)?;
        let mut facts = Vec::with_capacity(steps.len());
        for step in steps {
            let line = child.line("facts ").await.map_err(|why| format!("{step}: {why}"))?;
            facts.push(serde_json::from_str(&line).map_err(|error| format!("{step}: {error}: {line}"))?);
        }
        Ok(facts)
    }
}

/// A server whose tools `slow` and `change` take as many milliseconds as their argument `ms` says.
pub async fn slow_server() -> ScriptedServer {
    ScriptedServer::slow(async |seen: SeenRequest, _| slow_answer(&seen).await).await
}

async fn slow_answer(seen: &SeenRequest) -> Option<ScriptedReply> {
    match seen.rpc() {
        "tools/list" => {
            // The Inspector asks its user for the properties of the schema.
            let schema = json!({ "type": "object", "properties": { "ms": { "type": "integer" } } });
            let tools = ["slow", "change"].map(|name| json!({ "name": name, "inputSchema": schema }));
            Some(answer(seen, &json!({ "tools": tools })))
        }
        "tools/call" => {
            let millis = seen.body["params"]["arguments"]["ms"].as_u64().expect("a call says how long it takes");
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Some(answer(seen, &json!({ "content": [{ "type": "text", "text": "done" }] })))
        }
        _ => None,
    }
}

/// The configuration of a gateway that checks tokens itself. `server` is behind the upstreams `up` and `two`, and `all` is an endpoint of both.
/// `auth` is the part from `[auth]` to the tables of issuers.
pub fn config(auth: &str, server: &ScriptedServer) -> String {
    let upstream = |name: &str| {
        format!(
            "[upstreams.{name}]\nurl = \"{}\"\nfirst_byte_max = \"5m\"\nidle_max = \"5m\"\n\
             [upstreams.{name}.tasks]\ngrace = \"300ms\"\npoll_interval = \"300ms\"\nfallback = \"tools\"\n\
             [[upstreams.{name}.tools]]\nmatch = \"change\"\nscopes = [\"reports:write\"]\n",
            server.url()
        )
    };
    let endpoint = "[[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\", \"two\"]\n";
    format!("{auth}{}{}{endpoint}", upstream("up"), upstream("two"))
}
