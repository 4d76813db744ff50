//! State beside a request: tasks in a store, sessions, listeners; and a host at its standard input.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use http::Method;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use support::sample_task::working;
use support::serving;
use taskgate::engine::Engine;
use taskgate::face::http::{Endpoint, FaceResponse, Inbound, full_body};
use taskgate::face::operators::Operators;
use taskgate::face::stdio::{self, StdioEnds};
use taskgate::shared_limits::SharedLimits;
use taskgate::store::{MemoryStore, TaskStore as _};
use taskgate::task::{Clock as _, ManualClock, Principal, Summary, TaskKey};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::bench::{Act, Setup};
use crate::bodies::{Session, modern, modern_call};

const PLENTY: usize = 1 << 30;

/// An engine that knows so many tasks of one owner, and the key of one of them.
async fn engine(tasks: usize) -> (Arc<Engine>, TaskKey) {
    let (store, clock) = (Arc::new(MemoryStore::new(PLENTY)), Arc::new(ManualClock::default()));
    let made = |number: usize| {
        let id = (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        working(Principal::local(), id, clock.now())
    };
    for number in 0..tasks {
        store.insert(&made(number)).await.unwrap();
    }
    let engine = Engine::new(store, clock.clone(), Box::new(|| 7), PLENTY, SharedLimits::default());
    // Dropping it must not be counted.
    KEPT.lock().push(Arc::clone(&engine));
    (engine, made(tasks / 2).key)
}

static KEPT: Mutex<Vec<Arc<Engine>>> = Mutex::new(Vec::new());

pub(crate) fn survey(tasks: usize) -> BoxFuture<'static, Act> {
    Box::pin(async move {
        let (engine, _) = engine(tasks).await;
        Box::pin(async move {
            let mut seen = 0;
            let look = |_: &Summary| {
                seen += 1;
                ControlFlow::Continue(())
            };
            engine.survey(None, look).await.unwrap();
            assert_eq!(seen, tasks);
        }) as Act
    })
}

pub(crate) fn get(tasks: usize) -> BoxFuture<'static, Act> {
    Box::pin(async move {
        let (engine, key) = engine(tasks).await;
        Box::pin(async move { assert_eq!(engine.load_visible(&key).await.unwrap().key, key) }) as Act
    })
}

pub(crate) fn page(tasks: usize) -> BoxFuture<'static, Act> {
    Box::pin(async move {
        let (engine, key) = engine(tasks).await;
        Box::pin(async move {
            assert_eq!(
                engine.list(&taskgate::task::Caller::of(key.owner.clone()), None, 50).await.unwrap().tasks.len(),
                50
            )
        }) as Act
    })
}

fn inbound(method: Method, path: &str, query: Option<&str>) -> Inbound {
    let caller = taskgate::task::Caller::of(Principal::local());
    Inbound { query: query.map(str::to_owned), ..Inbound::new(method, path.to_owned(), caller) }
}

/// `GET /tasks?limit=10` where there are so many.
pub(crate) fn operators(tasks: usize) -> BoxFuture<'static, Act> {
    Box::pin(async move {
        let (engine, _) = engine(tasks).await;
        let operators = Operators::new(engine, Box::new(|| unreachable!("a list does not say it")));
        Box::pin(async move {
            let answer = operators.serve(Box::new(inbound(Method::GET, "/tasks", Some("limit=10")))).await;
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(body.windows(6).any(|bytes| bytes == b"\"next\""), "{body:?}");
        }) as Act
    })
}

/// A call while so many sessions are open.
pub(crate) fn beside_sessions(setup: Setup, sessions: usize) -> BoxFuture<'static, Act> {
    Box::pin(async move {
        setup.answers_shortly();
        let mut session = Session::open(&setup, "2025-06-18").await;
        for _ in 1..sessions {
            session = Session::open(&setup, "2025-06-18").await;
        }
        setup.exchange(session.call("{}", &[]), r#""result""#)
    })
}

/// A call while so many streams are open on which clients listen.
pub(crate) fn beside_listeners(setup: Setup, listeners: usize) -> BoxFuture<'static, Act> {
    /// They stay open until the next size has its own.
    static OPEN: Mutex<Vec<TcpStream>> = Mutex::new(Vec::new());
    Box::pin(async move {
        setup.answers_shortly();
        let params = r#""notifications":{"toolsListChanged":true}"#;
        let listen = modern("/up/mcp", "subscriptions/listen", None, params, &[]);
        let mut open = Vec::new();
        for _ in 0..listeners {
            open.push(setup.open(&listen, "notifications/subscriptions/acknowledged").await);
        }
        *OPEN.lock() = open;
        setup.exchange(modern_call("/up/mcp", "{}", &[]), r#""result""#)
    })
}

/// Answers each request with little.
struct Short;

#[async_trait]
impl Endpoint for Short {
    async fn serve(&self, inbound: Box<Inbound>) -> FaceResponse {
        let id = taskgate::wire::envelope::read(&inbound.body, taskgate::wire::ScanLimits::CLIENT);
        let Ok(taskgate::wire::Message::Request(request)) = id else { panic!("a request is expected") };
        let body = taskgate::wire::envelope::result(&request.id, &taskgate::wire::Payload::empty_object());
        let mut response = FaceResponse::new(full_body(body));
        response.headers_mut().insert("content-type", "application/json".parse().unwrap());
        response
    }
}

/// So many requests of a host, with so many bytes in each.
pub(crate) fn lines(count: usize, bytes: usize) -> BoxFuture<'static, Act> {
    let fill = "x".repeat(bytes);
    let one = |n| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{n},"method":"initialize","params":{{"protocolVersion":"2025-06-18","x":"{fill}"}}}}"#
        )
    };
    let input = (0..count).map(one).collect::<Vec<_>>().join("\n") + "\n";
    Box::pin(async move {
        Box::pin(async move {
            let client = serving::stream_client(Arc::new(Short));
            let (stop, (output, mut heard)) = (CancellationToken::new(), tokio::io::duplex(1 << 20));
            // The input stays open until all is answered.
            let (mut host, gateway) = tokio::io::duplex(1 << 20);
            let ends = StdioEnds { input: gateway, output, is_reader_gone: || false };
            let serving = stdio::serve(client, 1 << 20, ends, CancellationToken::new(), &stop);
            let talking = async {
                tokio::io::AsyncWriteExt::write_all(&mut host, input.as_bytes()).await.unwrap();
                let (mut answers, mut lines) = (Vec::new(), 0);
                while lines < count {
                    answers.clear();
                    assert_ne!(heard.read_buf(&mut answers).await.unwrap(), 0);
                    lines += answers.iter().filter(|byte| **byte == b'\n').count();
                }
                drop(host);
            };
            let (served, ()) = tokio::join!(serving, talking);
            served.unwrap();
        }) as Act
    })
}
