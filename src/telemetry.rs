//! Installs logs and metrics, once per process and before any listener starts.

mod families;
mod json_lines;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::TryInitError;

use crate::line_queue::LineQueue;
use crate::{console, metric};
use json_lines::JsonLines;

/// The environment variable with the log filter, such as `info,taskgate::server=debug`.
pub const LOG_FILTER: &str = "TASKGATE_LOG";

/// The usual log filter.
pub const INFORMATION: &str = "info";
/// The log filter beside lines for people, which show more of an upstream than its health.
pub const WARNINGS: &str = "warn,taskgate::upstream::upstream_health=error,taskgate::upstream::transport::stdio=error";

/// The watcher of files warns of each folder that was deleted, as at each update of a mounted ConfigMap.
const QUIET: &str = "notify=error";

/// The interval at which histogram samples are folded without a scrape.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Buckets in seconds, from a fast call to a task of a day.
const SPANS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];

/// Buckets for the writes of one transaction.
const BATCHES: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("{LOG_FILTER} is not a log filter; write one such as info,taskgate=debug")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    #[error("{LOG_FILTER}: {0:?} is no level: write off, error, warn, info, debug or trace, or TARGET=LEVEL")]
    Level(String),
    #[error("logs are installed already")]
    Logs(#[source] TryInitError),
    #[error("metrics cannot be installed")]
    Metrics(#[source] BuildError),
}

/// Installs the log, always to standard error, and a panic hook that writes to it. Lines are text on a terminal and JSON objects elsewhere;
/// in the latter, a peer's text stays inside its string, line ends included (B160). `filter` holds unless the environment has another.
/// The process keeps the guard to its end: lines that wait are written when it is dropped.
pub fn install_logs(filter: &str) -> Result<WorkerGuard, TelemetryError> {
    use tracing_subscriber::util::SubscriberInitExt;

    let directives = std::env::var(LOG_FILTER).unwrap_or_default();
    let directives = if directives.is_empty() { filter } else { &directives };
    if let Some(word) = unknown_level(directives) {
        return Err(TelemetryError::Level(word.to_owned()));
    }
    let filter = EnvFilter::try_new(format!("{QUIET},{directives}")).map_err(TelemetryError::Filter)?;
    let terminal = io::stderr().is_terminal();
    let has_colours = console::has_colours(terminal, std::env::var_os("NO_COLOR").as_deref());
    let (lines, guard) = LineQueue::start(io::stderr(), "standard error");
    let output = move || EscapedOutput(lines.clone());
    // The subscriber reports a failed write with eprintln!, which panics if standard error cannot be written.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(output).with_ansi(has_colours);
    let installed = match terminal {
        true => log.finish().try_init(),
        false => log.fmt_fields(JsonLines).event_format(JsonLines).finish().try_init(),
    };
    installed.map_err(TelemetryError::Logs)?;
    // A panic's message may quote a client's text; its location is enough to find the bug.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place, "panic");
    }));
    Ok(guard)
}

/// A lone word that is neither a level nor a part of this program: the filter takes it for a target, and turns all else off.
fn unknown_level(directives: &str) -> Option<&str> {
    directives.split(',').map(str::trim).find(|word| {
        let is_lone = !word.is_empty() && !word.contains(['=', '[', ']', '{', '}']);
        let is_own = word.split("::").next() == Some(env!("CARGO_CRATE_NAME"));
        is_lone && !is_own && word.parse::<LevelFilter>().is_err()
    })
}

/// Installs the metrics recorder and describes every metric. [`keep_metrics`] must run beside it.
pub fn install_metrics() -> Result<PrometheusHandle, TelemetryError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SPANS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Full(metric::STORE_BATCH.to_owned()), &BATCHES))
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(TelemetryError::Metrics)?;
    families::begin();
    metrics::gauge!(metric::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let process = Collector::default();
    process.describe();
    process.collect();
    Ok(handle)
}

pub fn begin_upstream(upstream: &Arc<str>) {
    families::begin_upstream(upstream);
}

pub fn begin_database() {
    families::begin_database();
}

/// Folds samples between scrapes, and updates the metrics of the process. Never returns; cancel by dropping.
pub async fn keep_metrics(handle: PrometheusHandle) {
    let process = Collector::default();
    loop {
        tokio::time::sleep(UPKEEP_INTERVAL).await;
        handle.run_upkeep();
        process.collect();
    }
}

/// Writes each log line at once, with C1 controls and bidirectional marks escaped; the formatters escape C0 controls.
struct EscapedOutput<W>(W);

impl<W: Write> Write for EscapedOutput<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) if has_obeyed(text) => self.0.write_all(escaped(text).as_bytes())?,
            Ok(_) | Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether a text has a character that a terminal obeys. Only candidates by their first byte are examined, to be fast.
fn has_obeyed(text: &str) -> bool {
    memchr::memchr3_iter(0xc2, 0xd8, 0xe2, text.as_bytes()).any(|at| text[at..].starts_with(is_obeyed))
}

const fn is_obeyed(character: char) -> bool {
    matches!(
        character,
        '\u{80}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

/// The JSON escapes, as a line may be JSON.
fn escaped(text: &str) -> String {
    use std::fmt::Write as _;

    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_obeyed(character) {
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::families::{DATABASE_FAMILIES, FAMILIES};
    use super::*;

    #[test]
    fn a_word_that_is_no_level_does_not_turn_the_log_off() {
        for (directives, unknown) in [
            ("warning", Some("warning")),
            ("taskgate=debug, inof", Some("inof")),
            ("info,hyper", Some("hyper")),
            ("", None),
            (INFORMATION, None),
            (WARNINGS, None),
            ("OFF,hyper=trace,taskgate,taskgate::server,[call{tool,x}]=debug", None),
        ] {
            assert_eq!(unknown_level(directives), unknown, "{directives}");
        }
    }

    /// Each constant of the names module is described, once.
    #[test]
    fn every_metric_is_described_once() {
        let constants = include_str!("metric.rs").lines().filter(|line| line.starts_with("pub const "));
        let names: Vec<&str> = constants.filter_map(|line| line.split('"').nth(1)).collect();
        let described: Vec<&str> = FAMILIES.iter().chain(&DATABASE_FAMILIES).map(|family| family.name).collect();
        assert_eq!(names, described);
        assert!(names.iter().all(|name| name.starts_with("taskgate_")));
    }

    #[test]
    fn every_character_that_a_terminal_obeys_is_found() {
        for character in '\0'..=char::MAX {
            let text = format!("é…{character}x");
            assert_eq!(has_obeyed(&text), is_obeyed(character), "{character:?}");
        }
    }

    #[test]
    fn b175_what_a_terminal_obeys_is_escaped_and_json_reads_the_same() {
        let name = "a\u{9b}31mb\u{85}\u{202e}c\u{2066}d\u{200f}é\u{1f980}";
        let line = serde_json::json!({ "tool": name }).to_string();
        let mut written = Vec::new();
        EscapedOutput(&mut written).write_all(line.as_bytes()).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written, r#"{"tool":"a\u009b31mb\u0085\u202ec\u2066d\u200fé🦀"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap()["tool"], name);
    }
}
