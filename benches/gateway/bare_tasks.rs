//! The least that a task server in Rust can do: makes tasks of calls at an upstream and answers polls, in memory, or behind
//! a log that has one sync for all writes that wait.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use taskgate::task::{Clock as _, SystemClock};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::bare::{json, result, serve};
use crate::line::Protocol;

/// Its arguments are the upstream's address and, where tasks are to outlive it, the log's file.
pub(crate) const TASKS: &str = "tasks";

const SHARDS: usize = 64;
/// Writes that may wait for the log.
const QUEUE_MAX: usize = 1_024;

/// Tasks as ready-made JSON texts.
struct Tasks {
    shards: Vec<Mutex<HashMap<String, Bytes>>>,
    hasher: RandomState,
    made: AtomicU64,
    log: Option<Log>,
    client: Client<HttpConnector, Full<Bytes>>,
    upstream: String,
    running: TaskTracker,
}

/// The parts of a request that are needed.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: &'a str,
    #[serde(borrow)]
    params: Params<'a>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(rename = "taskId")]
    task: Option<&'a str>,
}

/// The part of an upstream's answer that is kept.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
}

/// `PUT /ID` stores a result; a POST of `tasks/get` is answered with it; any other call becomes a task.
pub(crate) async fn serve_tasks(upstream: &str, log: Option<&str>) -> anyhow::Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let tasks = Arc::new(Tasks {
        shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        hasher: RandomState::new(),
        made: AtomicU64::new(0),
        log: log.map(Log::create).transpose()?,
        client: Client::builder(TokioExecutor::new()).build(connector),
        upstream: format!("http://{upstream}/mcp"),
        running: TaskTracker::new(),
    });
    serve(Protocol::Http1, move |request| answer(Arc::clone(&tasks), request)).await
}

async fn answer(tasks: Arc<Tasks>, request: Request<Incoming>) -> anyhow::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if parts.method == Method::PUT {
        tasks.put(parts.uri.path().trim_start_matches('/').to_owned(), body);
        return Ok(Response::new(Full::default()));
    }
    let call: Call<'_> = serde_json::from_slice(&body)?;
    let text = match call.params.task {
        Some(task) if call.method == "tasks/get" => tasks.get(task).context("no such task")?,
        _ => Arc::clone(&tasks).create(body.clone()).await?,
    };
    Ok(json(result(call.id.get(), &text)))
}

impl Tasks {
    fn shard(&self, task: &str) -> &Mutex<HashMap<String, Bytes>> {
        let shard = self.hasher.hash_one(task) % SHARDS as u64;
        &self.shards[usize::try_from(shard).unwrap_or(0)]
    }

    fn get(&self, task: &str) -> Option<Bytes> {
        self.shard(task).lock().get(task).cloned()
    }

    fn put(&self, task: String, text: Bytes) {
        self.shard(&task).lock().insert(task, text);
    }

    /// Makes a task of a call; returns the handle once it would survive.
    async fn create(self: Arc<Self>, body: Bytes) -> anyhow::Result<Bytes> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:016x}{:016x}", self.hasher.hash_one(number), self.hasher.hash_one((number, "low")));
        self.write(body.clone()).await?;
        let working = |more: &str| -> Bytes {
            let now = now();
            format!(
                r#"{{"taskId":"{id}","status":"{more}","createdAt":"{now}","lastUpdatedAt":"{now}","ttlMs":3600000,"pollIntervalMs":1000}}"#
            )
            .into()
        };
        let handle = working(r#"working","resultType":"task"#);
        self.put(id.clone(), working(r#"working","resultType":"complete"#));
        let tasks = Arc::clone(&self);
        self.running.spawn(async move {
            // A task that is lost never settles, which fails the run.
            if let Ok(text) = tasks.settled(&id, body).await {
                tasks.put(id, text);
            }
        });
        Ok(handle)
    }

    async fn settled(&self, id: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let request = Request::post(&self.upstream)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(Full::new(body))?;
        let answer = self.client.request(request).await?.into_body().collect().await?.to_bytes();
        let answer: Answer<'_> = serde_json::from_slice(&answer)?;
        let (now, result) = (now(), answer.result.get());
        let text: Bytes = format!(
            r#"{{"taskId":"{id}","status":"completed","resultType":"complete","createdAt":"{now}","lastUpdatedAt":"{now}","ttlMs":3600000,"result":{result}}}"#
        )
        .into();
        self.write(text.clone()).await?;
        Ok(text)
    }

    async fn write(&self, text: Bytes) -> anyhow::Result<()> {
        match &self.log {
            Some(log) => log.write(text).await,
            None => Ok(()),
        }
    }
}

fn now() -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(SystemClock.now().as_millis()))
}

/// A file that is appended to, by one thread.
struct Log(mpsc::Sender<(Bytes, oneshot::Sender<()>)>);

impl Log {
    fn create(path: &str) -> anyhow::Result<Self> {
        let mut file = File::create_new(path).with_context(|| format!("cannot make {path}"))?;
        let (sender, mut waiting) = mpsc::channel::<(Bytes, oneshot::Sender<()>)>(QUEUE_MAX);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            while let Some(first) = waiting.blocking_recv() {
                let mut together = vec![first];
                while let Ok(next) = waiting.try_recv() {
                    together.push(next);
                }
                let mut text = Vec::new();
                for (one, _) in &together {
                    text.extend_from_slice(&u32::try_from(one.len()).unwrap_or(u32::MAX).to_le_bytes());
                    text.extend_from_slice(one);
                }
                if file.write_all(&text).and_then(|()| file.sync_data()).is_err() {
                    // Whoever waits hears that by the end of the channel.
                    return;
                }
                for (_, written) in together {
                    let _ = written.send(());
                }
            }
        })?;
        Ok(Self(sender))
    }

    async fn write(&self, text: Bytes) -> anyhow::Result<()> {
        let (written, done) = oneshot::channel();
        ensure!(self.0.send((text, written)).await.is_ok(), "the log has ended");
        done.await.context("the log failed")
    }
}
