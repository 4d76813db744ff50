//! Sends the requests of a probe: `server/discover`, `initialize`, the lists, and a call.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use super::super::printable::printable;
use super::ProbeCommand;
use super::report::{
    ProbeReport, ProbedCall, ProbedCallOutcome, ProbedTools, ProbedTransport, ProbedVersion, shown_target, toml_block,
};
use crate::config::ServerTarget;
use crate::dialect::faults::session_failure_error;
use crate::task::{Answer, Failure, GatewayFault, Principal, ProcessExit, Reason};
use crate::upstream::era::{QuestionEra, QuestionRoute};
use crate::upstream::http::{HttpTransport, HttpUpstreamSettings, ProxySettings, SessionUpstream, UpstreamTlsFiles};
use crate::upstream::transport::adapter::dedicated_process::DedicatedProcessRules;
use crate::upstream::transport::credential::{Credential, CredentialSource};
use crate::upstream::transport::stdio::{LastLines, StderrUse, StdioUpstreamSettings};
use crate::upstream::upstream_health::UpstreamFailure;
use crate::upstream::{
    BeginError, CallContext, Exchange, ExchangeEvent, Handshake, NoResult, TaskScope, Timeouts, Upstream,
    UpstreamRequest, UpstreamTaskMode, result_of,
};
use crate::wire::object::ObjectWriter;
use crate::wire::rpc_error::METHOD_NOT_FOUND;
use crate::wire::{ListEnd, ListPages, Object, PagedList, Payload, ProtocolVersion, RpcError, method};

const NAME: &str = "probed";
const USUAL: [&str; 3] = ["/mcp", "/sse", "/mcp/"];
const CONNECT_MAX: Duration = Duration::from_secs(10);
const BYTES_MAX: usize = 32 << 20;
const PAGES_MAX: usize = 100;
const LIST_BYTES_MAX: usize = BYTES_MAX;
const END_MAX: Duration = Duration::from_secs(6);
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// Ends within the probe's time, and a few seconds for programs to stop. The error is the reason as text.
pub async fn run(probe: &ProbeCommand) -> Result<ProbeReport, String> {
    let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    let until = Instant::now() + probe.timeout;
    let output = ProgramOutput::default();
    let report = anywhere(probe, until, &scope, &output).await;
    scope.stop.cancel();
    scope.tracker.close();
    // A program that does not stop is killed after this process has ended.
    let _ = tokio::time::timeout(END_MAX, scope.tracker.wait()).await;
    // All of the program's output has been read by now.
    report.map_err(|why| why + &output.text())
}

/// The program's standard error, one entry per start.
#[derive(Debug, Default)]
struct ProgramOutput(Mutex<Vec<Arc<LastLines>>>);

impl ProgramOutput {
    fn next(&self) -> Arc<LastLines> {
        let lines = Arc::new(LastLines::default());
        self.0.lock().push(Arc::clone(&lines));
        lines
    }

    /// The output of the first start that wrote any: later starts repeat it, or report the probe's own requests.
    fn text(&self) -> String {
        let all = self.0.lock();
        let Some(lines) = all.iter().map(|lines| lines.all()).find(|lines| !lines.is_empty()) else {
            return String::new();
        };
        let lines: Vec<_> = lines.iter().map(|line| format!("\n  {}", printable(line))).collect();
        let hint = "It was given PATH, HOME, LANG and the variables of --env NAME";
        format!("\nIts standard error ends with:{}\n{hint}", lines.concat())
    }
}

/// Probes the given address; if nothing speaks MCP there, its redirect or the usual paths.
async fn anywhere(
    probe: &ProbeCommand,
    until: Instant,
    scope: &TaskScope,
    output: &ProgramOutput,
) -> Result<ProbeReport, String> {
    if let ServerTarget::Program(words) = &probe.target {
        program(probe, Arc::from(NAME), words, None).find_program().map_err(|error| error.to_string())?;
    }
    let asking = ProbeRun { probe, until, scope: scope.clone(), output };
    let nowhere = match asking.all().await {
        Ok(report) => return Ok(report),
        Err(nowhere) => nowhere,
    };
    let others = nowhere.others(&probe.target);
    for other in &others {
        let probe = ProbeCommand { target: ServerTarget::Url(other.clone()), ..probe.clone() };
        let asking = ProbeRun { probe: &probe, until, scope: scope.clone(), output };
        if let Ok(report) = asking.all().await {
            return Ok(report);
        }
    }
    let others: Vec<_> = others.iter().map(Url::path).collect();
    let tried = if others.is_empty() { String::new() } else { format!("\nnor at {}", others.join(", ")) };
    Err(format!("{}{tried}", nowhere.text))
}

struct NotMcpError {
    text: String,
    location: Option<Url>,
    /// Whether a server responds there.
    is_there: bool,
}

impl NotMcpError {
    fn others(&self, target: &ServerTarget) -> Vec<Url> {
        let ServerTarget::Url(url) = target else { return Vec::new() };
        match &self.location {
            // Credentials are sent to their server only.
            Some(to) if to.origin() == url.origin() && to != url => vec![to.clone()],
            Some(_) => Vec::new(),
            None if self.is_there && url.path() == "/" => USUAL.iter().filter_map(|path| url.join(path).ok()).collect(),
            None => Vec::new(),
        }
    }
}

struct ProbeRun<'a> {
    probe: &'a ProbeCommand,
    until: Instant,
    scope: TaskScope,
    output: &'a ProgramOutput,
}

struct ProbedServer {
    transport: ProbedTransport,
    /// The upstream with sessions, and its handshake in the newest version that it agreed to.
    session: Result<(Arc<SessionUpstream>, Arc<Handshake>), ProbeError>,
    stateless: Result<(Arc<dyn Upstream>, Arc<Handshake>), ProbeError>,
}

impl ProbedServer {
    /// The route for clients that answer questions, if the server supports both eras.
    fn questions(&self) -> Option<QuestionRoute> {
        let (Ok((_, session)), Ok((_, stateless))) = (&self.session, &self.stateless) else { return None };
        let (mut era, now) = (QuestionEra::default(), Instant::now());
        era.discovered(&stateless.capabilities);
        era.handshake(Ok(&**session), now);
        Some(era.route(now))
    }
}

impl ProbeRun<'_> {
    async fn all(&self) -> Result<ProbeReport, NotMcpError> {
        let found = self.find().await?;
        let versions = self.versions(&found).await;
        let (upstream, handshake): (Arc<dyn Upstream>, _) = match (&found.session, &found.stateless) {
            (Ok((upstream, handshake)), _) => (Arc::<SessionUpstream>::clone(upstream), handshake),
            (Err(_), Ok((upstream, handshake))) => (Arc::clone(upstream), handshake),
            (Err(why), Err(_)) => return Err(NotMcpError { text: why.text(), location: None, is_there: true }),
        };
        let tools = if Object::of(&handshake.capabilities).is_some_and(|all| all.contains("tools")) {
            self.tools(&*upstream).await
        } else {
            ProbedTools { all: Vec::new(), incomplete: None }
        };
        let called = match &self.probe.call {
            Some((name, arguments)) => Some(self.call(&*upstream, &tools, name, arguments).await),
            None => None,
        };
        upstream.close().await;
        let toml = toml_block(self.probe, found.transport, handshake, &tools);
        Ok(ProbeReport {
            target: shown_target(&self.probe.target),
            transport: found.transport,
            versions,
            questions: found.questions(),
            server: Arc::clone(handshake),
            tools,
            called,
            toml,
        })
    }

    /// The first transport over which the server answers.
    async fn find(&self) -> Result<ProbedServer, NotMcpError> {
        let transports: &[ProbedTransport] = match &self.probe.target {
            ServerTarget::Url(_) => &[ProbedTransport::StreamableHttp, ProbedTransport::Sse],
            ServerTarget::Program(_) => &[ProbedTransport::Stdio],
        };
        let (mut reasons, mut location, mut is_there): (Vec<String>, _, _) = (Vec::new(), None, true);
        for &transport in transports {
            let session = self.handshake(transport, None).await;
            if let Err(why) = &session
                && why.is_of_the_place()
            {
                reasons.push(format!("{}: {}", transport.words(), printable(&why.text())));
                is_there = false;
                break;
            }
            let stateless = self.discover(transport).await;
            if session.is_ok() || stateless.is_ok() {
                return Ok(ProbedServer { transport, session, stateless });
            }
            if let Err(why) = &session {
                reasons.push(format!("{}: {}", transport.words(), printable(&why.text())));
                if let Some(to) = why.redirect() {
                    location = Some(to.clone());
                    break;
                }
            }
        }
        Err(NotMcpError { text: reasons.join("\n"), location, is_there })
    }

    /// The versions that the server supports, newest first. A version that follows from an earlier response is not requested.
    async fn versions(&self, found: &ProbedServer) -> Vec<ProbedVersion> {
        let mut all = Vec::new();
        for version in ProtocolVersion::ALL.into_iter().rev() {
            let served = match (&found.session, version) {
                (_, version) if !version.traits().is_advertised => continue,
                (_, version) if version.is_stateless() => {
                    found.stateless.as_ref().map(|_| ()).map_err(ProbeError::text)
                }
                (Err(why), _) => Err(why.text()),
                (Ok((_, known)), version) if version == known.version => Ok(()),
                (Ok((_, known)), version) if version > known.version => Err(format!("answers with {}", known.version)),
                (Ok(_), version) => match self.handshake(found.transport, Some(version)).await {
                    Ok((upstream, _)) => {
                        upstream.close().await;
                        Ok(())
                    }
                    Err(why) if why.reason() == Some(Reason::UpstreamRefused) => {
                        Err("answers with another version".to_owned())
                    }
                    Err(why) => Err(why.text()),
                },
            };
            all.push(ProbedVersion { version, served });
        }
        all
    }

    /// Opens a session with `version`, or the newest version that both support.
    async fn handshake(
        &self,
        transport: ProbedTransport,
        version: Option<ProtocolVersion>,
    ) -> Result<(Arc<SessionUpstream>, Arc<Handshake>), ProbeError> {
        let upstream = self.upstream(transport, version)?;
        let handshake = self.in_time(upstream.handshake(&context(UpstreamTaskMode::Never))).await;
        let handshake = handshake.map_err(|why| why.explained(&upstream))?;
        Ok((upstream, handshake))
    }

    async fn discover(&self, transport: ProbedTransport) -> Result<(Arc<dyn Upstream>, Arc<Handshake>), ProbeError> {
        if transport == ProbedTransport::Sse {
            return Err(ProbeError::NotOverThis);
        }
        let upstream = self.upstream(transport, Some(ProtocolVersion::STATELESS))?;
        let stateless = upstream.for_stateless_clients().stateless();
        match self.in_time(stateless.handshake(&context(UpstreamTaskMode::Never))).await {
            Ok(handshake) => Ok((stateless, handshake)),
            Err(why) => {
                upstream.close().await;
                Err(why)
            }
        }
    }

    async fn in_time<T>(&self, asked: impl Future<Output = Result<T, BeginError>>) -> Result<T, ProbeError> {
        tokio::time::timeout_at(self.until, asked).await.map_err(|_| ProbeError::Late)?.map_err(ProbeError::from)
    }

    fn upstream(
        &self,
        transport: ProbedTransport,
        protocol: Option<ProtocolVersion>,
    ) -> Result<Arc<SessionUpstream>, ProbeError> {
        let name: Arc<str> = Arc::from(NAME);
        let upstream = match &self.probe.target {
            ServerTarget::Url(url) => {
                let credential = self.probe.authorization.clone().map(|value| Credential {
                    header: http::header::AUTHORIZATION,
                    source: CredentialSource::Known(value),
                });
                let settings = HttpUpstreamSettings {
                    transport: if transport == ProbedTransport::Sse {
                        HttpTransport::Sse
                    } else {
                        HttpTransport::Streamable
                    },
                    event_bytes_max: BYTES_MAX,
                    protocol,
                    connect_max: CONNECT_MAX,
                    tls: UpstreamTlsFiles { ca: self.probe.ca.clone(), identity: None },
                    credential,
                    proxy: ProxySettings::Environment,
                    headers: self.probe.headers.clone(),
                    ..HttpUpstreamSettings::new(name, url.clone())
                };
                let made = SessionUpstream::new(settings, self.scope.clone());
                made.map_err(|error| ProbeError::Unusable(crate::cause::CauseChain(&error).to_string()))?
            }
            ServerTarget::Program(words) => {
                let settings = program(self.probe, name, words, protocol);
                SessionUpstream::stdio_with_output(settings, self.scope.clone(), self.output.next())
            }
        };
        Ok(Arc::new(upstream))
    }

    async fn tools(&self, upstream: &dyn Upstream) -> ProbedTools {
        let mut all = Vec::new();
        let mut pages = ListPages::new(PagedList::Tools, PAGES_MAX);
        let mut kept = 0;
        while pages.end().is_none() {
            let page = match self.answer(upstream, method::TOOLS_LIST, pages.params()).await {
                Ok(page) => page,
                Err(why) => return ProbedTools { all, incomplete: Some(why.text()) },
            };
            kept += page.len();
            if kept > LIST_BYTES_MAX {
                let what = format!("the list has more than {} MiB", LIST_BYTES_MAX >> 20);
                return ProbedTools { all, incomplete: Some(what) };
            }
            let Some(page) = Object::of(&page) else { break };
            if pages.read(&page) {
                let tools = page.get("tools");
                all.extend(tools.iter().flat_map(Payload::items).map(|tool| tool.detached()));
            }
        }
        let incomplete = match pages.end() {
            Some(ListEnd::TooManyPages) => Some(format!("there are more than {PAGES_MAX} pages")),
            Some(ListEnd::Circular) => Some("its cursors lead back to tools that it listed before".to_owned()),
            Some(ListEnd::Complete) | None => None,
        };
        ProbedTools { all, incomplete }
    }

    async fn answer(
        &self,
        upstream: &dyn Upstream,
        method: &str,
        params: Option<Payload>,
    ) -> Result<Payload, ProbeError> {
        let request = UpstreamRequest { method: Arc::from(method), params };
        let mut exchange = self.in_time(upstream.begin(request, context(UpstreamTaskMode::Never))).await?;
        let Ok(answered) = tokio::time::timeout_at(self.until, result_of(&mut *exchange)).await else {
            give_up(&mut *exchange).await;
            return Err(ProbeError::Late);
        };
        answered.map_err(|why| match why {
            NoResult::Faulted(error) => ProbeError::Refused(error),
            NoResult::Lost(fault) => ProbeError::Fault(fault),
            NoResult::Cancelled => ProbeError::Unusable("the server cancelled it".to_owned()),
        })
    }

    async fn call(&self, upstream: &dyn Upstream, tools: &ProbedTools, name: &str, arguments: &Payload) -> ProbedCall {
        let began = Instant::now();
        let mut called = ProbedCall::new(name);
        let native_task = match tools.task_support(name).as_deref() {
            Some("required") => UpstreamTaskMode::WhereServed { deadline: self.probe.timeout },
            Some(_) | None => UpstreamTaskMode::Never,
        };
        let params = ObjectWriter::new().member("name", &Payload::of(name)).member("arguments", arguments).finish();
        let request = UpstreamRequest { method: Arc::from(method::TOOLS_CALL), params: Some(params) };
        called.ended = match self.in_time(upstream.begin(request, context(native_task))).await {
            Ok(exchange) => self.follow(exchange, &mut called).await,
            Err(why) => ProbedCallOutcome::Lost(why.text()),
        };
        called.took = began.elapsed();
        called
    }

    async fn follow(&self, mut exchange: Box<dyn Exchange>, called: &mut ProbedCall) -> ProbedCallOutcome {
        loop {
            let Ok(event) = tokio::time::timeout_at(self.until, exchange.next()).await else {
                give_up(&mut *exchange).await;
                return ProbedCallOutcome::Late;
            };
            match event {
                ExchangeEvent::Returned(result) => return ProbedCallOutcome::Returned(result),
                ExchangeEvent::Faulted(error) => return ProbedCallOutcome::Faulted(error),
                ExchangeEvent::Lost(lost) => return ProbedCallOutcome::Lost(fault_text(&lost.0)),
                ExchangeEvent::Cancelled => return ProbedCallOutcome::Lost("the server cancelled it".to_owned()),
                ExchangeEvent::Progress(_) => called.progress += 1,
                ExchangeEvent::Asked { ask, .. } => {
                    called.questions += 1;
                    let refusal = Answer::Error(RpcError::new(METHOD_NOT_FOUND, "no client is here to answer"));
                    // If it does not arrive, the call's time limit ends it.
                    let _ = tokio::time::timeout_at(self.until, exchange.answer(&ask, refusal)).await;
                }
                ExchangeEvent::Status(_)
                | ExchangeEvent::Task(_)
                | ExchangeEvent::Subtasks(_)
                | ExchangeEvent::Notification(_)
                | ExchangeEvent::Withdrawn { .. } => (),
            }
        }
    }
}

async fn give_up(exchange: &mut dyn Exchange) {
    let _ = tokio::time::timeout(CANCEL_MAX, exchange.cancel("the probe's time is over")).await;
}

fn program(
    probe: &ProbeCommand,
    name: Arc<str>,
    words: &[String],
    protocol: Option<ProtocolVersion>,
) -> StdioUpstreamSettings {
    let mut words = words.iter().cloned();
    StdioUpstreamSettings {
        dedicated: DedicatedProcessRules::default(),
        stderr_use: StderrUse::Never,
        unusable: None,
        name,
        program: words.next().unwrap_or_default(),
        arguments: words.collect(),
        // The gateway would not pass the rest of the probe's environment.
        env: probe.env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))).collect(),
        env_files: Vec::new(),
        folder: None,
        processes_max: 8,
        descriptors_max: None,
        memory_bytes_max: None,
        line_bytes_max: BYTES_MAX,
        protocol,
    }
}

/// An anonymous caller that answers no questions.
fn context(native_task: UpstreamTaskMode) -> CallContext {
    let nothing = Payload::empty_object();
    let context = CallContext::new(Principal::local(), nothing, Timeouts::default(), BYTES_MAX);
    CallContext { progress: true, native_task, ..context }
}

#[derive(Clone, Debug)]
enum ProbeError {
    Fault(GatewayFault),
    Trouble(Box<(GatewayFault, UpstreamFailure)>),
    Refused(RpcError),
    Late,
    Unusable(String),
    NotOverThis,
}

impl ProbeError {
    fn text(&self) -> String {
        match self {
            Self::Refused(error) => format!("{} {}", error.code, error.message),
            Self::Late => "no answer in time".to_owned(),
            Self::Unusable(text) => text.clone(),
            Self::NotOverThis => "not over this transport".to_owned(),
            Self::Fault(fault) => fault_text(fault),
            Self::Trouble(known) => trouble_text(&known.0, &known.1),
        }
    }

    /// Adds the transport's details.
    fn explained(self, upstream: &SessionUpstream) -> Self {
        match (self, upstream.health().last()) {
            (Self::Fault(fault), Some(trouble)) if fault.reason == trouble.reason => {
                Self::Trouble(Box::new((fault, trouble)))
            }
            (other, _) => other,
        }
    }

    const fn reason(&self) -> Option<Reason> {
        match self {
            Self::Fault(fault) => Some(fault.reason),
            Self::Trouble(known) => Some(known.0.reason),
            Self::Refused(_) | Self::Late | Self::Unusable(_) | Self::NotOverThis => None,
        }
    }

    fn redirect(&self) -> Option<&Url> {
        let Self::Trouble(known) = self else { return None };
        known.1.location.as_ref().filter(|_| known.0.reason == Reason::UpstreamRedirect)
    }

    /// Whether another transport at the same address would fail, too.
    const fn is_of_the_place(&self) -> bool {
        match self {
            Self::Fault(_) | Self::Trouble(_) => {
                matches!(self.reason(), Some(Reason::UpstreamUnreachable | Reason::UpstreamTls | Reason::UpstreamAuth))
            }
            Self::Late | Self::Unusable(_) => true,
            Self::Refused(_) | Self::NotOverThis => false,
        }
    }
}

/// The fault in a sentence, if its cause is known.
fn trouble_text(fault: &GatewayFault, trouble: &UpstreamFailure) -> String {
    let cause = &trouble.cause;
    let is = |reason| fault.reason == reason;
    if is(Reason::UpstreamUnreachable) && fault.exit.is_none() {
        format!("it cannot be reached: {cause}")
    } else if is(Reason::UpstreamAuth) {
        let metadata = trouble.location.as_ref().map(|url| format!("; its metadata: {url}")).unwrap_or_default();
        format!("it asks for credentials, or for others ({cause}); put a key into TASKGATE_KEY{metadata}")
    } else if let Some(to) = &trouble.location {
        format!("it points to {to} (HTTP {})", fault.http_status.unwrap_or_default())
    } else if is(Reason::UpstreamMalformed) {
        format!("its answer is not MCP: {cause}")
    } else if is(Reason::UpstreamTls) || is(Reason::UpstreamHttpStatus) || is(Reason::UpstreamRedirect) {
        cause.clone()
    } else {
        fault_text(fault)
    }
}

fn fault_text(fault: &GatewayFault) -> String {
    let without_exit = GatewayFault { exit: None, ..*fault };
    let mut text = session_failure_error(&Failure::Gateway(without_exit)).message;
    // Some texts contain it already.
    let status = fault.http_status.map(|status| format!(" (HTTP {status})"));
    if let Some(status) = status.filter(|status| !text.ends_with(status)) {
        text.push_str(&status);
    }
    match fault.exit {
        Some(ProcessExit::Code(127)) => {
            text.push_str(
                " (it ended with exit code 127, which means that the program, or one that it starts, is not found)",
            );
        }
        Some(ProcessExit::Code(code)) => text.push_str(&format!(" (it ended with exit code {code})")),
        Some(ProcessExit::Signal(signal)) => text.push_str(&format!(" (signal {signal} ended it)")),
        None => (),
    }
    text
}

impl From<BeginError> for ProbeError {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::Gateway(fault) => Self::Fault(fault),
            BeginError::Refused(error) => Self::Refused(error),
        }
    }
}
