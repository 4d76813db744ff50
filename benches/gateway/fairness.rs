//! What one client's load does to another: calls in the pipe beside calls that are held, and a client that asks now and then
//! beside one that never stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::line::{Line, Protocol};
use crate::load::{Crowd, Question, percentile};
use crate::memory::wait_for_held;
use crate::messages;
use crate::parts::Part;
use crate::plan::{PLAIN, Size, config_of, config_text, create, median, open_session};
use crate::report::{Figure, Must};
use crate::upstream::{self, SMALL};

const BESIDE_HELD: &str = "calls in the pipe beside held calls: rate";
const BESIDE_FLOOD: &str = "a client that asks now and then beside one that never stops: p99";

/// Few clients, so that as many calls as possible fit under the limit on open files.
const LINES: &str = "store.kind = \"memory\"\nlimits.connections_max = 128";

/// The least rate next to that without held calls.
const RATE_MIN: f64 = 0.95;
/// The longest p99 next to that without the other client.
const WAIT_MAX: f64 = 2.0;

const CLIENTS: usize = 4;
/// Between two questions of the client that asks now and then.
const PAUSE: Duration = Duration::from_millis(2);

/// Few calls to all but the held ones' upstream: the limit on open files is shared out among them.
fn config(upstream: &Part) -> String {
    let few = config_text(upstream.address, LINES).replace("in_flight_max = 10_000", "in_flight_max = 100");
    few.replace("in_flight_max = 100\ntasks.mode", "in_flight_max = 5_200\ntasks.mode")
}

/// All that `wanted` asks for.
pub(crate) async fn all(upstream: &Part, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if !BESIDE_HELD.contains(wanted) && !BESIDE_FLOOD.contains(wanted) {
        return Ok(figures);
    }
    let config = config_of(&config(upstream))?;
    let gateway = Part::gateway(config.path()).await?;
    let session = open_session(&gateway, PLAIN).await?;
    let request = messages::session_call(PLAIN, &session, SMALL);
    let answer = Line::connect(gateway.address).await?.ask(&request).await?.to_vec();
    let question = Question::of(request, answer);
    if BESIDE_FLOOD.contains(wanted) {
        figures.push(beside_flood(&gateway, &question, size).await?);
    }
    if BESIDE_HELD.contains(wanted) {
        figures.push(beside_held((&gateway, upstream), &question, size).await?);
    }
    Ok(figures)
}

async fn beside_flood(gateway: &Part, question: &Question, size: Size) -> anyhow::Result<Figure> {
    let mut line = Line::connect(gateway.address).await?;
    now_and_then(&mut line, question, size.now_and_then).await?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        alone.push(now_and_then(&mut line, question, size.now_and_then).await?);
        let is_over = Arc::new(AtomicBool::new(false));
        let flooding = TaskTracker::new().spawn({
            let (mut line, question) = (Line::connect(gateway.address).await?, question.clone());
            let is_over = Arc::clone(&is_over);
            async move {
                while !is_over.load(Ordering::Relaxed) {
                    line.ask(&question.requests[0]).await?;
                }
                anyhow::Ok(())
            }
        });
        beside.push(now_and_then(&mut line, question, size.now_and_then).await?);
        is_over.store(true, Ordering::Relaxed);
        flooding.await??;
    }
    let ratio = median(beside.iter().zip(&alone).map(|(beside, alone)| beside / alone));
    let [alone, beside] = [alone, beside].map(|all| median(all.into_iter()));
    Ok(Figure {
        what: BESIDE_FLOOD.to_owned(),
        found: format!("{ratio:.2} ({beside:.0} us next to {alone:.0} us)"),
        must: Must::of(format!("<= {WAIT_MAX}"), ratio <= WAIT_MAX),
    })
}

/// The p99 of a client that waits between its questions, in microseconds.
async fn now_and_then(line: &mut Line, question: &Question, times: usize) -> anyhow::Result<f64> {
    let mut latencies = Vec::with_capacity(times);
    for _ in 0..times {
        tokio::time::sleep(PAUSE).await;
        let began = Instant::now();
        line.ask(&question.requests[0]).await?;
        latencies.push(began.elapsed());
    }
    latencies.sort_unstable();
    Ok(percentile(&latencies, 99))
}

async fn beside_held((gateway, upstream): (&Part, &Part), question: &Question, size: Size) -> anyhow::Result<Figure> {
    let config = config_of(&config(upstream))?;
    let other = Part::gateway(config.path()).await?;
    // The same kind of call at a gateway that holds none: the two take turns.
    let session = open_session(&other, PLAIN).await?;
    let at_other = Question::of(messages::session_call(PLAIN, &session, SMALL), question.answer.clone());
    let mut maker = Line::connect(gateway.address).await?;
    for _ in 0..size.held {
        create(&mut maker, upstream::HOLD).await?;
    }
    wait_for_held(upstream, size.held).await?;
    let mut crowd = Crowd::connect(gateway.address, (CLIENTS, Protocol::Http1), question.clone()).await?;
    let mut alone = Crowd::connect(other.address, (CLIENTS, Protocol::Http1), at_other).await?;
    let warming = size.small.div_ceil(4);
    crowd.round(&[gateway], warming).await?;
    alone.round(&[&other], warming).await?;
    let mut ratios = Vec::new();
    for _ in 0..size.rounds {
        let without = alone.round(&[&other], size.small).await?.rate;
        ratios.push(crowd.round(&[gateway], size.small).await?.rate / without);
    }
    let ratio = median(ratios.into_iter());
    Ok(Figure {
        what: format!("{BESIDE_HELD}, {} of them", size.held),
        found: format!("{ratio:.2} of that without"),
        must: Must::of(format!(">= {RATE_MIN}"), ratio >= RATE_MIN),
    })
}
