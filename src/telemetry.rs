//! Installs logs and metrics, once per process and before any listener starts.

use std::fmt::{self, Debug};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber, span};
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::TryInitError;

use crate::line_queue::LineQueue;
use crate::{console, metric};

/// The environment variable with the log filter, such as `info,taskgate::server=debug`.
pub const LOG_FILTER: &str = "TASKGATE_LOG";

pub const INFORMATION: &str = "info";
/// The log filter of commands that print an upstream's errors themselves.
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
    #[error("{LOG_FILTER}: {0:?} is not a level: write off, error, warn, info, debug or trace, or TARGET=LEVEL")]
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
    let is_off = directives.trim().eq_ignore_ascii_case("off");
    let directives = if is_off { directives.to_owned() } else { format!("{QUIET},{directives}") };
    let filter = EnvFilter::try_new(directives).map_err(TelemetryError::Filter)?;
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
    metric::begin();
    metrics::gauge!(metric::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let process = Collector::default();
    process.describe();
    process.collect();
    Ok(handle)
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

const LINE_BYTES: usize = 512;
const SPAN_BYTES: usize = 128;

/// Formats events as lines, and the fields of spans as members of an object, without its braces.
#[derive(Clone, Copy, Debug)]
struct JsonLines;

impl<'w> FormatFields<'w> for JsonLines {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut members = Members { text: Vec::with_capacity(SPAN_BYTES), ..Members::default() };
        fields.record(&mut members);
        writer.write_str(text_of(&members.text)?)
    }

    fn add_fields(&self, current: &'w mut FormattedFields<Self>, fields: &span::Record<'_>) -> fmt::Result {
        let mut members = Members { text: std::mem::take(&mut current.fields).into_bytes(), ..Members::default() };
        fields.record(&mut members);
        current.fields = String::from_utf8(members.text).map_err(|_| fmt::Error)?;
        Ok(())
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> FormatEvent<S, Self> for JsonLines {
    fn format_event(
        &self,
        context: &FmtContext<'_, S, Self>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::with_capacity(LINE_BYTES);
        line.push_str(r#"{"timestamp":""#);
        SystemTime.format_time(&mut Writer::new(&mut line))?;
        line.push_str(r#"","level":""#);
        line.push_str(event.metadata().level().as_str());
        line.push_str(r#"","fields":{"#);
        let mut fields = Members { text: line.into_bytes(), is_open: true, target: None };
        event.record(&mut fields);
        let Members { text: mut line, target, .. } = fields;
        line.extend_from_slice(br#"},"target":"#);
        put_json(&mut line, target.as_deref().unwrap_or_else(|| event.metadata().target()));
        let of_event = event.parent().and_then(|id| context.span(id));
        let of_context = || if event.is_root() { None } else { context.lookup_current() };
        if let Some(span) = of_event.or_else(of_context) {
            line.extend_from_slice(br#","span":{"#);
            if let Some(fields) = span.extensions().get::<FormattedFields<Self>>().filter(|fields| !fields.is_empty()) {
                line.extend_from_slice(fields.as_bytes());
                line.push(b',');
            }
            line.extend_from_slice(br#""name":"#);
            put_json(&mut line, span.name());
            line.push(b'}');
        }
        line.extend_from_slice(b"}\n");
        writer.write_str(text_of(&line)?)
    }
}

#[derive(Default)]
struct Members {
    /// UTF-8 bytes and not a `String`: values are formatted into it without a `String` for each.
    text: Vec<u8>,
    /// Whether a brace has just been opened, so that no comma is due.
    is_open: bool,
    /// The target of a record from the crate `log`.
    target: Option<String>,
}

impl Members {
    fn key(&mut self, field: &Field) {
        if !std::mem::take(&mut self.is_open) && !self.text.is_empty() {
            self.text.push(b',');
        }
        let name = field.name();
        self.text.push(b'"');
        self.text.extend_from_slice(name.strip_prefix("r#").unwrap_or(name).as_bytes());
        self.text.extend_from_slice(b"\":");
    }

    /// A peer's text stays inside its string (B160).
    fn member(&mut self, field: &Field, value: &(impl Serialize + ?Sized)) {
        self.key(field);
        put_json(&mut self.text, value);
    }
}

impl Visit for Members {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.member(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.member(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.member(field, &value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.member(field, &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "log.target" {
            self.target = Some(value.to_owned());
        }
        self.member(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.member(field, &format_args!("{value:?}"));
    }
}

/// Appends a value; `null` in place of one that cannot be written.
fn put_json(text: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let start = text.len();
    if serde_json::to_writer(&mut *text, value).is_err() {
        text.truncate(start);
        text.extend_from_slice(b"null");
    }
}

fn text_of(line: &[u8]) -> Result<&str, fmt::Error> {
    std::str::from_utf8(line).map_err(|_| fmt::Error)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::Value;
    use tracing_subscriber::fmt::MakeWriter;

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

    #[test]
    fn every_character_that_a_terminal_obeys_is_found() {
        for character in '\0'..=char::MAX {
            let text = format!("é…{character}x");
            assert_eq!(has_obeyed(&text), is_obeyed(character), "{character:?}");
        }
    }

    #[test]
    fn b175_control_characters_are_escaped_and_json_reads_the_same() {
        let name = "a\u{9b}31mb\u{85}\u{202e}c\u{2066}d\u{200f}é\u{1f980}";
        let line = serde_json::json!({ "tool": name }).to_string();
        let mut written = Vec::new();
        EscapedOutput(&mut written).write_all(line.as_bytes()).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written, r#"{"tool":"a\u009b31mb\u0085\u202ec\u2066d\u200fé🦀"}"#);
        assert_eq!(serde_json::from_str::<Value>(&written).unwrap()["tool"], name);
    }

    /// Captures the log lines.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Written {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    impl Written {
        fn lines(&self) -> Vec<Value> {
            let text = String::from_utf8(self.0.lock().clone()).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
        }
    }

    fn log_all_there_is() {
        let hostile = "a\n\"b\\\u{1b}[0m\u{0}\u{7f}é{";
        tracing::info!("{hostile}");
        tracing::warn!(r#type = hostile, seconds = 0.25, whole = -7, count = 7_u64, is_so = true, "told {}", 1);
        tracing::error!(not = f64::NAN, large = 1e300, place = ?Some(hostile));
        let span = tracing::info_span!("call", tool = %hostile, task = tracing::field::Empty);
        span.in_scope(|| tracing::info!("before"));
        span.record("task", tracing::field::display("t"));
        let inner = tracing::info_span!("inner");
        span.in_scope(|| {
            tracing::info!("after");
            inner.in_scope(|| tracing::info!("inside"));
            tracing::info!(parent: &inner, "said of another");
        });
        let late = tracing::info_span!("late", task = tracing::field::Empty);
        late.in_scope(|| tracing::info!("without"));
        late.record("task", 7);
        late.in_scope(|| tracing::info!("with"));
    }

    #[test]
    fn lines_agree_with_the_standard_formatter() {
        let (own, usual) = (Written::default(), Written::default());
        let log = || tracing_subscriber::fmt().with_ansi(false);
        let of_own = log().fmt_fields(JsonLines).event_format(JsonLines).with_writer(own.clone()).finish();
        tracing::subscriber::with_default(of_own, log_all_there_is);
        let of_usual = log().json().with_span_list(false).with_writer(usual.clone()).finish();
        tracing::subscriber::with_default(of_usual, log_all_there_is);
        let (own, usual) = (own.lines(), usual.lines());
        assert_eq!((own.len(), usual.len()), (9, 9));
        for (mut own, mut usual) in own.into_iter().zip(usual) {
            let (at, usual_at) = (own["timestamp"].take(), usual["timestamp"].take());
            assert_eq!(at.as_str().map(str::len), usual_at.as_str().map(str::len), "{at} {usual_at}");
            assert_eq!(own, usual);
        }
    }
}
