//! F62: a machine whose processors all have something else to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use futures_util::future::join_all;
use serde_json::json;

use super::setup::{Setup, end};
use super::upstream::in_time;

/// Threads that do nothing, as fast as they can. They end when this is dropped.
struct Burners(Arc<AtomicBool>, Vec<thread::JoinHandle<()>>);

impl Burners {
    fn light(count: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let burn = |is_over: Arc<AtomicBool>| {
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..count).map(|_| burn(Arc::clone(&is_over))).collect();
        Self(is_over, threads)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        for thread in self.1.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// How long things take is for benchmarks to say: here polls are answered, and calls end.
#[tokio::test]
async fn f62_polls_are_answered_and_calls_end_while_all_processors_are_busy() {
    let setup = Setup::new(false, "").await;
    let processors = thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let burners = Burners::light(2 * processors);
    let nonces: Vec<String> = (0..10).map(|n| format!("n{n}x")).collect();
    let ids = join_all(nonces.iter().map(|nonce| setup.start(nonce, json!({"ms": 500})))).await;
    let polls = join_all(ids.iter().cycle().take(200).map(|id| in_time(setup.task(id)))).await;
    assert!(polls.iter().all(|task| task["taskId"].is_string()), "all were answered");
    for (id, nonce) in ids.iter().zip(&nonces) {
        let task = setup.settled(id).await;
        assert_eq!((end(&task), setup.calls(nonce)), ("completed".to_owned(), 1), "{task}");
    }
    drop(burners);
}
