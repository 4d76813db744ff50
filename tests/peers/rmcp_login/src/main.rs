//! Logs in with the Rust SDK, headless, and calls tools as tasks.
//!
//!     rmcp-login JSON      {url, flow, user, steps}
//!
//! As login_ts.mjs, it reads the flow `registration`, `document` or `credentials`, runs the steps `stepUp` and `task`, and prints facts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, GetTaskParams, Implementation,
    ProtocolVersion, TASKS_EXTENSION_ID, TaskPayload,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _, RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::auth::{
    AuthClient, AuthError, AuthorizationManager, AuthorizationRequest, ClientCredentialsConfig, CredentialStore,
    InMemoryCredentialStore, OAuthState, StoredCredentials, WWWAuthenticateParams,
};
use rmcp::transport::streamable_http_client::{StreamableHttpClient, StreamableHttpClientTransportConfig};
use serde_json::{Value, json};

const REDIRECT: &str = "http://127.0.0.1:1/callback";
const DOCUMENT: &str = "https://client.example/taskgate-peer.json";
const HOPS_MAX: usize = 12;
const POLLS_MAX: u64 = 300;

/// Keeps tokens, as a host does, and counts them.
#[derive(Clone, Default)]
struct CountingStore {
    inner: InMemoryCredentialStore,
    tokens: Arc<AtomicU64>,
}

#[async_trait]
impl CredentialStore for CountingStore {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        self.inner.load().await
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        self.tokens.fetch_add(1, Ordering::Relaxed);
        self.inner.save(credentials).await
    }

    async fn clear(&self) -> Result<(), AuthError> {
        self.inner.clear().await
    }
}

/// Follows the redirects of an authorization; `login_hint` names the user to the authorization server. Returns the address of the
/// callback.
async fn browse(address: &str, user: &str) -> anyhow::Result<String> {
    let browser = reqwest::Client::builder().cookie_store(true).redirect(reqwest::redirect::Policy::none()).build()?;
    let mut at = reqwest::Url::parse(address)?;
    at.query_pairs_mut().append_pair("login_hint", user);
    for _ in 0..HOPS_MAX {
        let response = browser.get(at.clone()).send().await?;
        let Some(location) = response.headers().get("location") else {
            bail!("HTTP {} at {at}: {}", response.status(), response.text().await?);
        };
        at = at.join(location.to_str()?)?;
        if at.as_str().starts_with(REDIRECT) {
            return Ok(at.into());
        }
    }
    bail!("the authorization has more than {HOPS_MAX} redirects");
}

type Service = RunningService<RoleClient, ClientConfig>;

/// Opens a client of 2026-07-28 with tasks. `Err` is the challenge of a server that wants a token.
async fn connect<C: StreamableHttpClient + Send + Sync + 'static>(
    http: C,
    url: &str,
) -> anyhow::Result<Result<Service, String>> {
    // The builder would need features for servers or macros.
    let capabilities: ClientCapabilities = serde_json::from_value(json!({ "extensions": { TASKS_EXTENSION_ID: {} } }))?;
    let config = ClientConfig::new(capabilities, Implementation::new("taskgate-peer", "1.0.0"));
    let lifecycle = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(ProtocolVersion::V_2025_11_25),
    };
    let settings = StreamableHttpClientTransportConfig::with_uri(url);
    let transport = StreamableHttpClientTransport::with_client(http, settings);
    match config.serve_with_lifecycle(transport, lifecycle).await {
        Ok(service) => Ok(Ok(service)),
        Err(error) => match error.auth_challenge() {
            Some(challenge) => Ok(Err(challenge.to_owned())),
            None => Err(error.into()),
        },
    }
}

/// A person or a program that is logged in.
struct Login {
    url: String,
    user: String,
    logins: u64,
    http: AuthClient<reqwest::Client>,
    store: CountingStore,
    program: Option<ClientCredentialsConfig>,
    service: Service,
}

impl Login {
    async fn begin(wanted: &Value) -> anyhow::Result<Self> {
        let [url, user, flow] =
            ["url", "user", "flow"].map(|name| wanted[name].as_str().unwrap_or_default().to_owned());
        let Err(challenge) = connect(reqwest::Client::new(), &url).await? else { bail!("no token was wanted") };
        let store = CountingStore::default();
        let mut manager = AuthorizationManager::new(url.as_str()).await?;
        manager.set_credential_store(store.clone());
        let mut state = OAuthState::Unauthorized(manager);
        let (mut logins, mut program) = (0, None);
        if flow == "credentials" {
            let config = ClientCredentialsConfig::ClientSecret {
                client_id: "machine-post".to_owned(),
                client_secret: "machine-post-password".to_owned(),
                scopes: vec!["mcp".to_owned()],
                resource: Some(url.clone()),
            };
            state.authenticate_client_credentials(config.clone()).await?;
            program = Some(config);
        } else {
            let request = AuthorizationRequest::new(REDIRECT).with_initial_scope_selection().with_challenge(challenge);
            let request = match flow.as_str() {
                "registration" => request.with_client_name("taskgate peer"),
                "document" => request.with_client_metadata_url(DOCUMENT),
                _ => bail!("no flow {flow}"),
            };
            state.start_authorization(request).await?;
            logins += 1;
            let callback = browse(&state.get_authorization_url().await?, &user).await?;
            state.handle_callback_url(&callback).await?;
        }
        let manager = state.into_authorization_manager().context("not authorized")?;
        let http = AuthClient::new(reqwest::Client::new(), manager);
        let service = connect(http.clone(), &url).await?.map_err(|why| anyhow::anyhow!("refused: {why}"))?;
        Ok(Self { url, user, logins, http, store, program, service })
    }

    /// Gets the scopes of a challenge, or another token for a program, which has no token to refresh.
    async fn answer(&mut self, challenge: &str) -> anyhow::Result<()> {
        let manager = self.http.auth_manager.lock().await;
        if let Some(program) = &self.program {
            manager.exchange_client_credentials(program).await?;
            return Ok(());
        }
        let params = WWWAuthenticateParams::parse(challenge, &self.url.parse()?);
        if !params.is_insufficient_scope() {
            bail!("refused: {challenge}");
        }
        let address = manager.request_scope_upgrade(&params.scope.context("a challenge without scopes")?).await?;
        self.logins += 1;
        let callback = browse(&address, &self.user).await?;
        let callback = rmcp::transport::auth::AuthorizationCallback::from_redirect_url(&callback)?;
        let issuer = callback.issuer.as_deref();
        manager.exchange_code_for_token_with_issuer(&callback.code, &callback.csrf_token, issuer).await?;
        Ok(())
    }

    /// Sends a request, once more after an answered challenge.
    async fn ask<T>(&mut self, act: impl AsyncFn(&Service) -> Result<T, ServiceError>) -> anyhow::Result<T> {
        match act(&self.service).await {
            Ok(value) => Ok(value),
            Err(error) => {
                let challenge = error.auth_challenge().map(str::to_owned);
                self.answer(&challenge.ok_or(error)?).await?;
                Ok(act(&self.service).await?)
            }
        }
    }

    async fn call(&mut self, tool: &str, ms: u64) -> anyhow::Result<CallToolResponse> {
        let mut params = CallToolRequestParams::new(tool.to_owned());
        params.arguments = json!({ "ms": ms }).as_object().cloned();
        self.ask(async |service| service.call_tool_once(params.clone()).await).await
    }

    async fn task(&mut self, tool: &str, ms: u64) -> anyhow::Result<Value> {
        let CallToolResponse::Task(made) = self.call(tool, ms).await? else { bail!("no task") };
        let id = made.task.task_id;
        for polls in 1..=POLLS_MAX {
            let params = GetTaskParams::new(id.clone());
            let found = self.ask(async |service| service.get_task(params.clone()).await).await?.task;
            match &found.payload {
                TaskPayload::Working => (),
                TaskPayload::Completed { result } => {
                    let text = &serde_json::to_value(result)?["content"][0]["text"];
                    return Ok(json!({ "taskId": id, "status": "completed", "text": text, "polls": polls }));
                }
                other => bail!("it ended so: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(found.task.poll_interval_ms.unwrap_or(300))).await;
        }
        bail!("the task does not end");
    }

    async fn facts_of(&mut self, step: &Value) -> anyhow::Result<Value> {
        if let Some(tool) = step["task"].as_str() {
            return self.task(tool, step["ms"].as_u64().context("no `ms`")?).await;
        }
        let tool = step["stepUp"].as_str().context("an unknown step")?;
        let before = self.logins;
        self.call(tool, 0).await?;
        if self.logins == before {
            bail!("the narrow token was enough");
        }
        Ok(json!({}))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let wanted: Value = serde_json::from_str(&std::env::args().nth(1).context("an argument is missing")?)?;
    let mut login = Login::begin(&wanted).await?;
    for step in wanted["steps"].as_array().context("no steps")? {
        let mut facts = login.facts_of(step).await?;
        facts["logins"] = login.logins.into();
        facts["tokens"] = login.store.tokens.load(Ordering::Relaxed).into();
        let kept = login.store.load().await?.and_then(|kept| kept.token_response).context("no token is kept")?;
        facts["scheme"] = serde_json::to_value(kept)?["token_type"].take();
        println!("facts {facts}");
    }
    Ok(())
}
