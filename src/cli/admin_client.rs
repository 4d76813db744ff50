//! Sends requests to the admin listener of a running gateway.

use std::env;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;
use url::Url;

use super::printable::{printable, printable_json, printable_lines};
use super::{UNAVAILABLE, failed, refuse, say};
use crate::cause::CauseChain;
use crate::console;
use crate::upstream::transport::credential::secret_value;

pub(super) const TOKEN_VARIABLE: &str = "TASKGATE_ADMIN_TOKEN";
/// The time limit of one request.
const PATIENCE: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 4 << 20;
pub(super) const JSON: &str = "application/json";

#[derive(Debug, thiserror::Error)]
pub enum AdminRequestError {
    #[error("the admin address must be like http://127.0.0.1:9090; a token is read from {TOKEN_VARIABLE}")]
    Address,
    #[error("the gateway cannot be reached at {0}")]
    Unreachable(Url, #[source] std::io::Error),
    #[error("the connection to the gateway broke")]
    Broken(#[source] hyper::Error),
    #[error("no answer within {}", humantime::format_duration(PATIENCE))]
    Late,
    #[error("{TOKEN_VARIABLE} has characters that no header can carry")]
    Token,
    #[error(
        "the operator's token is missing or unknown; put it into {TOKEN_VARIABLE}, or correct the address if it is the clients'"
    )]
    Unauthorized,
    #[error("{0}")]
    Unconfirmed(String),
    #[error("the response is not from taskgate's admin listener; correct the address")]
    Unintelligible,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminOutput {
    Done(String),
    /// The first lines of a longer list.
    Part(String),
    /// Why the gateway refused: the object is missing, or its state does not allow the command.
    Refused(String),
}

/// Parses a response; fails if taskgate's admin listener did not write it.
pub(super) fn read<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, AdminRequestError> {
    serde_json::from_slice(body).map_err(|_| AdminRequestError::Unintelligible)
}

pub(super) fn refused(body: &[u8]) -> Result<AdminOutput, AdminRequestError> {
    #[derive(Deserialize)]
    struct AdminRefusal {
        error: String,
        task: Option<RefusedTask>,
    }
    #[derive(Deserialize)]
    struct RefusedTask {
        state: String,
    }
    let refusal: AdminRefusal = read(body)?;
    let state = refusal.task.map(|task| format!(": it is {}", printable(&task.state)));
    Ok(AdminOutput::Refused(format!("{}{}", printable(&refusal.error), state.unwrap_or_default())))
}

#[derive(Clone, Debug)]
pub struct AdminClient {
    url: Url,
    authorization: Option<HeaderValue>,
}

#[derive(Debug)]
pub(super) struct AdminAnswer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl AdminClient {
    /// An empty token counts as none. Fails if a header cannot carry the token.
    pub fn new(url: &Url, token: Option<&str>) -> Result<Self, AdminRequestError> {
        let token = token.map(str::trim).filter(|token| !token.is_empty());
        let authorization = token.map(|token| secret_value(&format!("Bearer {token}")).ok_or(AdminRequestError::Token));
        Ok(Self { url: url.clone(), authorization: authorization.transpose()? })
    }

    pub(super) async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<AdminAnswer, AdminRequestError> {
        let body = if method == Method::POST { Bytes::from_static(b"{}") } else { Bytes::new() };
        self.send(method, JSON, body, path, query).await
    }

    pub(super) async fn status(&self, is_json: bool) -> Result<AdminOutput, AdminRequestError> {
        let accepted = if is_json { JSON } else { "text/plain" };
        let AdminAnswer { status, body } = self.send(Method::GET, accepted, Bytes::new(), &[], &[]).await?;
        if !status.is_success() {
            return refused(&body);
        }
        if !body.starts_with(if is_json { b"{" } else { b"taskgate " }) {
            return Err(AdminRequestError::Unintelligible);
        }
        let text = String::from_utf8_lossy(&body);
        Ok(AdminOutput::Done(if is_json { printable_json(&text) } else { printable_lines(&text) }))
    }

    /// Sends a request on a new connection.
    pub(super) async fn send(
        &self,
        method: Method,
        accepted: &str,
        body: Bytes,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<AdminAnswer, AdminRequestError> {
        let mut url = self.url.clone();
        url.path_segments_mut().map_err(|()| AdminRequestError::Address)?.clear().extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let is_plain = url.scheme() == "http" && url.username().is_empty() && url.password().is_none();
        let host = url.host_str().filter(|_| is_plain).ok_or(AdminRequestError::Address)?;
        let port = url.port_or_known_default().ok_or(AdminRequestError::Address)?;
        let target = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(HOST, format!("{host}:{port}"))
            .header(ACCEPT, accepted)
            .header(CONTENT_TYPE, JSON)
            .body(Full::new(body))
            .map_err(|_| AdminRequestError::Address)?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        let unreachable = |error| AdminRequestError::Unreachable(self.url.clone(), error);
        let exchange = async {
            // Only URLs have the brackets of an IPv6 address.
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let socket = TcpStream::connect((bare, port)).await.map_err(unreachable)?;
            let handshake = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await;
            let (mut requests, connection) = handshake.map_err(AdminRequestError::Broken)?;
            TaskTracker::new().spawn(connection);
            let response = requests.send_request(request).await.map_err(AdminRequestError::Broken)?;
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED {
                return Err(AdminRequestError::Unauthorized);
            }
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|_| AdminRequestError::Unintelligible)?.to_bytes();
            Ok(AdminAnswer { status, body })
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap_or(Err(AdminRequestError::Late))
    }
}

pub(super) async fn operate(
    admin: &Url,
    ask: impl AsyncFnOnce(AdminClient) -> Result<AdminOutput, AdminRequestError>,
) -> anyhow::Result<ExitCode> {
    let token = env::var(TOKEN_VARIABLE).ok();
    let asked = match AdminClient::new(admin, token.as_deref()) {
        Ok(admin) => ask(admin).await,
        Err(error) => Err(error),
    };
    match asked {
        Ok(ref output @ (AdminOutput::Done(ref text) | AdminOutput::Part(ref text))) => {
            console::stdout().write_all(text.as_bytes()).context("cannot print the answer")?;
            if matches!(output, AdminOutput::Part(_)) {
                say("there are more; raise --limit to show them");
            }
            Ok(ExitCode::SUCCESS)
        }
        Ok(AdminOutput::Refused(why)) => Ok(failed(why, ExitCode::FAILURE)),
        Err(error @ (AdminRequestError::Address | AdminRequestError::Token | AdminRequestError::Unconfirmed(_))) => {
            Ok(refuse(error))
        }
        Err(error) => Ok(failed(CauseChain(&error), ExitCode::from(UNAVAILABLE))),
    }
}
