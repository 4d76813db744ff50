//! The load: keep-alive connections that send one request over and over and compare every answer.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::line::{Line, Protocol};
use crate::parts::Part;

/// What a part is asked over and over.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// Sent in turn: one, or as many as are sent in all where each is of use once.
    pub(crate) requests: Vec<Vec<u8>>,
    /// The only right answer, byte for byte.
    pub(crate) answer: Vec<u8>,
}

/// What one round showed of one part, or of several that do one thing together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// CPU time of the part for one request, in microseconds.
    pub(crate) cpu: f64,
    /// Latencies in microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Answers per second.
    pub(crate) rate: f64,
}

impl Question {
    /// One request.
    pub(crate) fn of(request: Vec<u8>, answer: Vec<u8>) -> Self {
        Self { requests: vec![request], answer }
    }

    fn request(&self, number: usize) -> &[u8] {
        &self.requests[number % self.requests.len()]
    }
}

impl Round {
    /// What requests that took so long, one by one and together, and cost the part so much, come to.
    pub(crate) fn of(mut latencies: Vec<Duration>, cpu: Duration, took: Duration) -> Self {
        latencies.sort_unstable();
        let count = as_float(latencies.len());
        Self {
            cpu: microseconds(cpu) / count,
            p50: percentile(&latencies, 50),
            p99: percentile(&latencies, 99),
            rate: count / took.as_secs_f64(),
        }
    }
}

/// Several clients of one part, each with a connection of its own.
#[derive(Debug)]
pub(crate) struct Crowd {
    lines: Vec<Line>,
    question: Arc<Question>,
    /// How often it has asked.
    asked: usize,
}

impl Crowd {
    pub(crate) async fn connect(
        address: SocketAddr,
        (clients, protocol): (usize, Protocol),
        question: Question,
    ) -> anyhow::Result<Self> {
        let mut lines = Vec::with_capacity(clients);
        for _ in 0..clients {
            lines.push(Line::connect_with(address, protocol).await?);
        }
        Ok(Self { lines, question: Arc::new(question), asked: 0 })
    }

    /// Asks `requests` times in all, each client again as soon as it has its answer. The CPU is that of all `parts`.
    ///
    /// # Errors
    /// If an answer differs from the right one in a single byte.
    pub(crate) async fn round(&mut self, parts: &[&Part], requests: usize) -> anyhow::Result<Round> {
        let tracker = TaskTracker::new();
        let each = requests / self.lines.len();
        let (before, began) = (cpu(parts)?, Instant::now());
        let asking: Vec<_> = self
            .lines
            .drain(..)
            .enumerate()
            .map(|(client, line)| {
                let first = self.asked + client * each;
                tracker.spawn(ask_repeatedly(line, Arc::clone(&self.question), first..first + each))
            })
            .collect();
        self.asked += asking.len() * each;
        let mut latencies = Vec::with_capacity(requests);
        for client in asking {
            let (line, seen) = client.await??;
            self.lines.push(line);
            latencies.extend(seen);
        }
        let took = began.elapsed();
        Ok(Round::of(latencies, cpu(parts)? - before, took))
    }
}

async fn ask_repeatedly(
    mut line: Line,
    question: Arc<Question>,
    numbers: Range<usize>,
) -> anyhow::Result<(Line, Vec<Duration>)> {
    let mut latencies = Vec::with_capacity(numbers.len());
    for number in numbers {
        let began = Instant::now();
        let answer = line.ask(question.request(number)).await?;
        let is_right = answer == question.answer;
        ensure!(is_right, "a wrong answer: {}", String::from_utf8_lossy(&answer[..answer.len().min(1_000)]));
        latencies.push(began.elapsed());
    }
    Ok((line, latencies))
}

/// CPU time of all of them so far.
pub(crate) fn cpu(parts: &[&Part]) -> anyhow::Result<Duration> {
    parts.iter().map(|part| part.cpu()).sum()
}

pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().map_or(f64::NAN, microseconds)
}

pub(crate) fn microseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

/// Exact for every count that a run can reach.
pub(crate) fn as_float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
