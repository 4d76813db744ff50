//! Shows and cancels tasks of a running gateway (`taskgate tasks`), over its admin listener.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;
use url::Url;

use super::printable::printable;
use crate::task::TaskId;

/// How long the gateway may take for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Tasks that are asked for at once.
const PAGE: usize = 1_000;

/// What is asked of the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The newest first, at most `limit`.
    List {
        upstream: Option<String>,
        state: Option<String>,
        reason: Option<String>,
        limit: usize,
    },
    /// A task by its reference.
    Show(String),
    Cancel(String),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Lines to be printed.
    Done(String),
    /// The same, with more of them left out.
    Part(String),
    /// The gateway has no such task, or it has ended already; why.
    Refused(String),
}

/// Why the gateway could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("the admin address must be like http://127.0.0.1:9090")]
    Address,
    #[error("the gateway cannot be reached at {0}")]
    Unreachable(Url, #[source] std::io::Error),
    #[error("the connection to the gateway broke")]
    Broken(#[source] hyper::Error),
    #[error("no answer within {}", humantime::format_duration(PATIENCE))]
    Late,
    #[error("the answer is not that of taskgate's admin listener")]
    Unintelligible,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "ref")]
    reference: String,
    principal: String,
    upstream: String,
    tool: String,
    state: String,
    reason: Option<String>,
    created_at: String,
    updated_at: String,
    expires_at: String,
}

#[derive(Debug, Deserialize)]
struct List {
    tasks: Vec<Entry>,
    next: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    error: String,
    task: Option<Entry>,
}

/// Asks the gateway whose admin listener is at `admin`.
///
/// # Errors
/// See [`AskError`].
pub async fn run(admin: &Url, order: &Order) -> Result<Outcome, AskError> {
    match order {
        Order::List { upstream, state, reason, limit } => {
            let wanted = [("upstream", upstream), ("state", state), ("reason", reason)];
            list(admin, wanted.map(|(name, value)| Some((name, value.as_deref()?))), *limit).await
        }
        Order::Show(name) if is_id(name) => shown(ask_by_id(admin, name).await?),
        Order::Show(reference) => shown(ask(admin, Method::GET, &["tasks", reference], &[]).await?),
        Order::Cancel(name) if is_id(name) => match ask_by_id(admin, name).await? {
            (status, body) if status.is_success() => {
                let task: Entry = read(&body)?;
                shown(ask(admin, Method::POST, &["tasks", &task.reference, "cancel"], &[]).await?)
            }
            other => shown(other),
        },
        Order::Cancel(reference) => shown(ask(admin, Method::POST, &["tasks", reference, "cancel"], &[]).await?),
    }
}

/// What came of an order about one task.
fn shown((status, body): (StatusCode, Bytes)) -> Result<Outcome, AskError> {
    if status.is_success() { Ok(Outcome::Done(details(&read(&body)?))) } else { refused(&body) }
}

/// Whether a task is named by its id, and not by its reference.
fn is_id(name: &str) -> bool {
    TaskId::parse(name).is_some()
}

/// Looks a task up by its id, which stands in no address: it may be a secret.
async fn ask_by_id(admin: &Url, id: &str) -> Result<(StatusCode, Bytes), AskError> {
    let body = serde_json::json!({ "id": id }).to_string();
    ask_with(admin, (Method::POST, body.into()), &["tasks", "find"], &[]).await
}

async fn list(admin: &Url, wanted: [Option<(&str, &str)>; 3], limit: usize) -> Result<Outcome, AskError> {
    let (mut all, mut after) = (Vec::<Entry>::new(), None::<String>);
    while all.len() < limit {
        let page = PAGE.min(limit - all.len()).to_string();
        let mut query = vec![("limit", page.as_str())];
        query.extend(wanted.into_iter().flatten());
        query.extend(after.as_deref().map(|after| ("after", after)));
        let (status, body) = ask(admin, Method::GET, &["tasks"], &query).await?;
        if !status.is_success() {
            return refused(&body);
        }
        let page: List = read(&body)?;
        all.extend(page.tasks);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let text = table(&all);
    Ok(if after.is_some() { Outcome::Part(text) } else { Outcome::Done(text) })
}

/// One request without a body of its own.
async fn ask(
    admin: &Url,
    method: Method,
    path: &[&str],
    query: &[(&str, &str)],
) -> Result<(StatusCode, Bytes), AskError> {
    let body = if method == Method::POST { Bytes::from_static(b"{}") } else { Bytes::new() };
    ask_with(admin, (method, body), path, query).await
}

/// One request on a connection of its own.
async fn ask_with(
    admin: &Url,
    (method, body): (Method, Bytes),
    path: &[&str],
    query: &[(&str, &str)],
) -> Result<(StatusCode, Bytes), AskError> {
    let mut url = admin.clone();
    url.path_segments_mut().map_err(|()| AskError::Address)?.clear().extend(path);
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    let host = url.host_str().filter(|_| url.scheme() == "http").ok_or(AskError::Address)?;
    let port = url.port_or_known_default().ok_or(AskError::Address)?;
    let target = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header(HOST, format!("{host}:{port}"))
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|_| AskError::Address)?;
    let unreachable = |error| AskError::Unreachable(admin.clone(), error);
    let exchange = async {
        // The brackets of an IPv6 address belong to URLs alone.
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let socket = TcpStream::connect((bare, port)).await.map_err(unreachable)?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await;
        let (mut requests, connection) = handshake.map_err(AskError::Broken)?;
        TaskTracker::new().spawn(connection);
        let response = requests.send_request(request).await.map_err(AskError::Broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok((status, body.map_err(|_| AskError::Unintelligible)?.to_bytes()))
    };
    tokio::time::timeout(PATIENCE, exchange).await.unwrap_or(Err(AskError::Late))
}

fn read<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, AskError> {
    serde_json::from_slice(body).map_err(|_| AskError::Unintelligible)
}

fn refused(body: &[u8]) -> Result<Outcome, AskError> {
    let refusal: Refusal = read(body)?;
    let state = refusal.task.map(|task| format!(": it is {}", printable(&task.state)));
    Ok(Outcome::Refused(format!("{}{}", printable(&refusal.error), state.unwrap_or_default())))
}

fn state(task: &Entry) -> String {
    match &task.reason {
        Some(reason) => format!("{} ({})", printable(&task.state), printable(reason)),
        None => printable(&task.state).into_owned(),
    }
}

fn table(tasks: &[Entry]) -> String {
    let head = ["REF", "STATE", "UPSTREAM", "TOOL", "PRINCIPAL", "CREATED", "UPDATED"].map(str::to_owned);
    let row = |task: &Entry| {
        let [reference, upstream, tool, principal, created, updated] =
            [&task.reference, &task.upstream, &task.tool, &task.principal, &task.created_at, &task.updated_at]
                .map(|text| printable(text).into_owned());
        [reference, state(task), upstream, tool, principal, created, updated]
    };
    let rows: Vec<_> = std::iter::once(head).chain(tasks.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn details(task: &Entry) -> String {
    let mut text = String::new();
    for (name, value) in [
        ("ref", printable(&task.reference)),
        ("state", state(task).into()),
        ("upstream", printable(&task.upstream)),
        ("tool", printable(&task.tool)),
        ("principal", printable(&task.principal)),
        ("created", printable(&task.created_at)),
        ("updated", printable(&task.updated_at)),
        ("expires", printable(&task.expires_at)),
    ] {
        let _ = writeln!(text, "{name:<10}{value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_straight_and_obeys_no_name() {
        let entry = |tool: &str| Entry {
            reference: "00000000000a".to_owned(),
            principal: "b".to_owned(),
            upstream: "up".to_owned(),
            tool: tool.to_owned(),
            state: "failed".to_owned(),
            reason: Some("ttl_expired".to_owned()),
            created_at: "c".to_owned(),
            updated_at: "u".to_owned(),
            expires_at: "e".to_owned(),
        };
        let text = table(&[entry("grüße"), entry("\u{1b}[2J")]);
        assert_eq!(
            text,
            "REF           STATE                 UPSTREAM  TOOL   PRINCIPAL  CREATED  UPDATED\n\
             00000000000a  failed (ttl_expired)  up        grüße  b          c        u\n\
             00000000000a  failed (ttl_expired)  up         [2J   b          c        u\n"
        );
    }
}
