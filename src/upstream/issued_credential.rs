//! Keeps the credentials that are issued for a server: in memory, renewed before their end by one request for all
//! callers. Three sources: client credentials (RFC 6749, 4.4), exchange of the client's token (RFC 8693), and a
//! program. An exchange may have two steps: an identity assertion (ID-JAG), then another company's token (RFC 7523).

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::{env, io};

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderValue;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::{Instant, timeout};

use super::document::{DocumentError, FormAnswer};
use super::issued_token::{self, IssuedToken, TokenFailure};
use super::shared_lookups::SharedLookups;
use super::subject_token::{SubjectToken, SubjectTokenType, SubjectTokens};
use super::token_client::{TokenClient, TokenClientSettings};
use super::transport::credential::{CredentialError, CredentialIssuer};
use super::transport::stdio::{INHERITED, ProgramError, find_program};
use super::{ClientCredential, TaskScope, supervisor};
use crate::system::ProgramLimits;
use crate::task::digest::{Digest, digest};
use crate::task::{Clock as _, Executed, GatewayFault, Principal, Reason, SystemClock};
use crate::wire::one_line;

/// How long before its end a token is renewed; at half its validity if that is less.
const RENEWED_BEFORE: Duration = Duration::from_secs(60);
/// How long a call waits for a renewal while the old token is valid: a hanging authorization server costs no more.
const RENEWAL_WAIT_MAX: Duration = Duration::from_secs(1);
/// For this time after a failure every call gets the same failure, so that not each call asks the authorization server.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// A token that replaced a refused one is kept for this time, even if it is refused too.
const REPLACED_EACH: Duration = Duration::from_secs(30);
const LOGGED_EACH: Duration = Duration::from_secs(60);
/// Bytes of all tokens for one server, and of the cache's entry for one.
const WEIGHT_MAX: u64 = 16 << 20;
const ENTRY_BYTES: usize = 256;
const FAILURES_MAX: u64 = 10_000;
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IssuedCredentialSettings {
    ClientCredentials(TokenRequestSettings),
    Exchange(Box<ExchangeSettings>),
    Command(Vec<String>),
}

/// A request for a token: the endpoint with its client, and the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequestSettings {
    pub client: TokenClientSettings,
    pub target: TokenTarget,
}

/// The exchange of clients' tokens (RFC 8693).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeSettings {
    pub request: TokenRequestSettings,
    pub subject_type: SubjectTokenType,
    /// Whether tokens that are bound to their client's key or certificate are exchanged, though the gateway has no proof.
    pub takes_bound_tokens: bool,
    pub subjects: SubjectTokens,
    /// Where the identity assertion is redeemed, if the exchange is for one (ID-JAG).
    pub redeemed: Option<TokenRequestSettings>,
}

/// The parameters of a request for a token that limit its use (RFC 8707, 8693).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenTarget {
    pub resource: Option<String>,
    pub audience: Option<String>,
    /// Names with blanks between them.
    pub scope: Option<String>,
}

impl IssuedCredentialSettings {
    /// The gateway as a client, with the configuration's table about it.
    pub fn clients(&self) -> impl Iterator<Item = (&'static str, &TokenClientSettings)> {
        let [first, second] = match self {
            Self::ClientCredentials(request) => [Some(("client_credentials", &request.client)), None],
            Self::Exchange(exchange) => {
                let redeemed = exchange.redeemed.as_ref().map(|request| ("id_jag", &request.client));
                [Some(("exchange", &exchange.request.client)), redeemed]
            }
            Self::Command(_) => [None, None],
        };
        first.into_iter().chain(second)
    }

    /// Why the command cannot be started, if there is one: its program is missing.
    pub fn missing_program(&self) -> Option<ProgramError> {
        let Self::Command(words) = self else { return None };
        find_program(words.first()?, Path::new(""), None).err()
    }

    pub fn subjects(&self) -> Option<&SubjectTokens> {
        if let Self::Exchange(exchange) = self { Some(&exchange.subjects) } else { None }
    }
}

#[derive(Debug)]
pub(crate) struct IssuedCredentials(Arc<IssuerState>);

struct IssuerState {
    upstream: Arc<str>,
    source: TokenSource,
    issued: Cache<Digest, KeptToken>,
    failed: Cache<Digest, TokenFailure>,
    /// For exchanged tokens, each principal has a share of them.
    requests: SharedLookups<Digest, Result<KeptToken, TokenFailure>, Option<Principal>>,
    logged: Mutex<Option<(TokenFailure, Instant)>>,
    scope: TaskScope,
}

debug_members!(IssuerState, |state| source: state.source);

#[derive(Debug)]
enum TokenSource {
    ClientCredentials(TokenRequest),
    Exchange(Box<TokenExchange>),
    Command(Vec<String>),
}

#[derive(Debug)]
struct TokenRequest {
    client: TokenClient,
    target: TokenTarget,
}

#[derive(Debug)]
struct TokenExchange {
    settings: ExchangeSettings,
    request: TokenRequest,
    redeemed: Option<TokenRequest>,
}

#[derive(Clone)]
struct KeptToken {
    header: HeaderValue,
    renewed_at: Instant,
    ends_at: Instant,
    /// The time at which it replaced a token that the server refused.
    replaced_at: Option<Instant>,
}

impl KeptToken {
    fn is_fresh(&self) -> bool {
        Instant::now() < self.renewed_at
    }

    fn is_valid(&self) -> bool {
        Instant::now() < self.ends_at
    }

    fn has_just_replaced(&self) -> bool {
        self.replaced_at.is_some_and(|at| at.elapsed() < REPLACED_EACH)
    }
}

/// The client that a token is issued for, with the client's newest token if that is exchanged.
struct Holder {
    key: Digest,
    subject: Option<SubjectToken>,
    /// The token of the call itself, if that is another one.
    other: Option<SubjectToken>,
}

/// Identifies a request for a token: a failure is one token's, and the next token may be accepted.
fn attempt(key: &Digest, subject: Option<&SubjectToken>) -> Digest {
    digest([&key.0, subject.map_or("", SubjectToken::secret).as_bytes()])
}

impl IssuedCredentials {
    /// Sends no request yet. Fails if the file of the client's password cannot be used.
    pub(crate) fn new(
        upstream: &Arc<str>,
        settings: &IssuedCredentialSettings,
        scope: TaskScope,
    ) -> Result<Self, CredentialError> {
        use IssuedCredentialSettings as S;
        let source = match settings {
            S::ClientCredentials(request) => TokenSource::ClientCredentials(TokenRequest::new(request)?),
            S::Exchange(exchange) => TokenSource::Exchange(Box::new(TokenExchange {
                settings: (**exchange).clone(),
                request: TokenRequest::new(&exchange.request)?,
                redeemed: exchange.redeemed.as_ref().map(TokenRequest::new).transpose()?,
            })),
            S::Command(words) => TokenSource::Command(words.clone()),
        };
        let weight =
            |_: &Digest, token: &KeptToken| u32::try_from(ENTRY_BYTES + token.header.len()).unwrap_or(u32::MAX);
        Ok(Self(Arc::new(IssuerState {
            upstream: Arc::clone(upstream),
            source,
            issued: Cache::builder().max_capacity(WEIGHT_MAX).weigher(weight).build(),
            failed: Cache::builder().max_capacity(FAILURES_MAX).time_to_live(FAILED_FOR).build(),
            requests: SharedLookups::default(),
            logged: Mutex::default(),
            scope,
        })))
    }

    fn holder(&self, client: &ClientCredential) -> Result<Holder, GatewayFault> {
        let TokenSource::Exchange(exchange) = &self.0.source else {
            return Ok(Holder { key: digest([b"everyone"]), subject: None, other: None });
        };
        let missing = GatewayFault::new(Reason::CredentialMissing, Executed::No);
        let own = client.subject().ok_or(missing)?;
        if own.is_bound() && !exchange.settings.takes_bound_tokens {
            let cause = "a client's token is bound to its key, and not exchanged without a proof; see `bound_tokens`";
            self.0.log(&TokenFailure::new(Reason::CredentialBound, cause));
            return Err(GatewayFault::new(Reason::CredentialBound, Executed::No));
        }
        let subject = exchange.settings.subjects.newest(own);
        let other = (subject.secret() != own.secret()).then(|| own.clone());
        Ok(Holder { key: subject.holder(), subject: Some(subject), other })
    }

    /// Asks for a token; `refused` is a token that the server did not accept. If the client's newest token is refused, the call's
    /// own is exchanged: the other may have been revoked (SEC-93).
    async fn renew(&self, holder: Holder, refused: Option<&HeaderValue>) -> Result<KeptToken, TokenFailure> {
        let Holder { key, subject, other } = holder;
        let renewed = self.renew_by(key, subject, refused).await;
        let is_refused = renewed.as_ref().is_err_and(|failure| failure.reason == Reason::CredentialRefused);
        match (&self.0.source, other) {
            (TokenSource::Exchange(exchange), Some(other)) if is_refused => {
                let renewed = self.renew_by(key, Some(other.clone()), refused).await;
                renewed.inspect(|_| exchange.settings.subjects.replace(other))
            }
            (_, _) => renewed,
        }
    }

    async fn renew_by(
        &self,
        key: Digest,
        subject: Option<SubjectToken>,
        refused: Option<&HeaderValue>,
    ) -> Result<KeptToken, TokenFailure> {
        let (state, attempt) = (&self.0, attempt(&key, subject.as_ref()));
        let is_wanted = |token: &KeptToken| refused.map_or_else(|| token.is_fresh(), |refused| token.header != refused);
        let known = || {
            let kept = state.issued.get(&key).filter(is_wanted).map(Ok);
            kept.or_else(|| state.failed.get(&attempt).map(Err))
        };
        let (asking, is_replaced) = (Arc::clone(state), refused.is_some());
        let principal = subject.as_ref().map(|subject| subject.principal().clone());
        let ask = || async move {
            let asked = asking.ask(subject.as_ref()).await;
            asking.note(key, attempt, asked, is_replaced)
        };
        let stopped =
            || TokenFailure::new(Reason::CredentialUnavailable, "too many requests for tokens, or the gateway ends");
        state.requests.get(attempt, principal, &state.scope, known, ask).await.unwrap_or_else(|| Err(stopped()))
    }
}

#[async_trait]
impl CredentialIssuer for IssuedCredentials {
    async fn header(&self, client: &ClientCredential) -> Result<HeaderValue, GatewayFault> {
        let holder = self.holder(client)?;
        let kept = self.0.issued.get(&holder.key).filter(KeptToken::is_valid);
        if let Some(kept) = kept.as_ref().filter(|kept| kept.is_fresh()) {
            return Ok(kept.header.clone());
        }
        let renewing = self.renew(holder, None);
        if let Some(kept) = kept {
            // The renewal continues without this call.
            let renewed = timeout(RENEWAL_WAIT_MAX, renewing).await;
            return Ok(renewed.ok().and_then(Result::ok).unwrap_or(kept).header);
        }
        renewing.await.map(|token| token.header).map_err(|failure| {
            let fault = GatewayFault::new(failure.reason, Executed::No);
            GatewayFault { retry_after: failure.retry_after, ..fault }
        })
    }

    fn last_cause(&self) -> Option<String> {
        self.0.logged.lock().as_ref().map(|(failure, _)| failure.cause.to_string())
    }

    async fn after_refusal(&self, client: &ClientCredential, refused: &HeaderValue) -> Option<HeaderValue> {
        let holder = self.holder(client).ok()?;
        let kept = self.0.issued.get(&holder.key);
        if kept.is_some_and(|kept| kept.header == refused && kept.has_just_replaced()) {
            return None;
        }
        let renewed = self.renew(holder, Some(refused)).await.ok()?;
        (renewed.header != refused).then_some(renewed.header)
    }

    fn is_per_client(&self) -> bool {
        matches!(self.0.source, TokenSource::Exchange(_))
    }
}

impl TokenRequest {
    fn new(settings: &TokenRequestSettings) -> Result<Self, CredentialError> {
        Ok(Self { client: settings.client.read()?, target: settings.target.clone() })
    }

    /// Sends a form with these fields and the target's.
    async fn ask(&self, fields: &[(&str, &str)]) -> Result<FormAnswer, DocumentError> {
        let TokenTarget { resource, audience, scope } = &self.target;
        let target = [("resource", resource), ("audience", audience), ("scope", scope)];
        let target = target.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        self.client.ask(&fields.iter().copied().chain(target).collect::<Vec<_>>()).await
    }
}

impl TokenExchange {
    async fn ask(&self, subject: &SubjectToken) -> Result<IssuedToken, TokenFailure> {
        let subject_type = self.settings.subject_type.name();
        let exchanged = async |wanted| {
            let fields = [
                ("grant_type", EXCHANGE),
                ("requested_token_type", wanted),
                ("subject_token", subject.secret()),
                ("subject_token_type", subject_type),
            ];
            self.request.ask(&fields).await
        };
        let Some(redeemed) = &self.redeemed else {
            return issued_token::of_answer(&exchanged(ACCESS_TOKEN).await?);
        };
        let in_exchange = |failure: TokenFailure| failure.in_step("the identity assertion");
        let assertion = exchanged(ID_JAG).await.map_err(|error| in_exchange(error.into()))?;
        let assertion = issued_token::assertion_of_answer(&assertion).map_err(in_exchange)?;
        let answer = redeemed.ask(&[("grant_type", JWT_BEARER), ("assertion", &assertion)]).await?;
        issued_token::of_answer(&answer)
    }
}

impl IssuerState {
    async fn ask(&self, subject: Option<&SubjectToken>) -> Result<IssuedToken, TokenFailure> {
        match (&self.source, subject) {
            (TokenSource::Command(words), _) => run_command(&self.upstream, words).await,
            (TokenSource::ClientCredentials(request), _) => {
                issued_token::of_answer(&request.ask(&[("grant_type", "client_credentials")]).await?)
            }
            (TokenSource::Exchange(_), None) => {
                Err(TokenFailure::new(Reason::CredentialMissing, "the request came without a token"))
            }
            (TokenSource::Exchange(exchange), Some(subject)) => exchange.ask(subject).await,
        }
    }

    fn note(
        &self,
        key: Digest,
        attempt: Digest,
        asked: Result<IssuedToken, TokenFailure>,
        is_replaced: bool,
    ) -> Result<KeptToken, TokenFailure> {
        match asked {
            Ok(IssuedToken { header, lifetime }) => {
                let now = Instant::now();
                let renewed_at = now + lifetime.saturating_sub(RENEWED_BEFORE).max(lifetime / 2);
                let replaced_at = is_replaced.then_some(now);
                let kept = KeptToken { header, renewed_at, ends_at: now + lifetime, replaced_at };
                self.issued.insert(key, kept.clone());
                Ok(kept)
            }
            Err(failure) => {
                self.log(&failure);
                self.failed.insert(attempt, failure.clone());
                Err(failure)
            }
        }
    }

    fn log(&self, failure: &TokenFailure) {
        let mut logged = self.logged.lock();
        let is_logged = logged.as_ref().is_some_and(|(last, at)| last == failure && at.elapsed() < LOGGED_EACH);
        if is_logged {
            return;
        }
        *logged = Some((failure.clone(), Instant::now()));
        tracing::warn!(upstream = %self.upstream, cause = %failure.cause, "no credential was issued for an upstream");
    }
}

/// The time for a credential's command, from its start to its end.
const RUN_MAX: Duration = Duration::from_secs(10);
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// The bytes of standard error that are logged.
const STDERR_BYTES_MAX: u64 = 1 << 10;
const LINE_BYTES_MAX: usize = 300;

/// Runs the command, without a shell, and reads the token that it prints. Dropping the future, or a program that takes too long, ends the program.
async fn run_command(upstream: &str, words: &[String]) -> Result<IssuedToken, TokenFailure> {
    let unavailable = |cause: String| TokenFailure::new(Reason::CredentialUnavailable, cause);
    let (program, arguments) = words.split_first().ok_or_else(|| unavailable("the command is empty".to_owned()))?;
    let finished = timeout(RUN_MAX, finish(program, arguments)).await;
    let finished = finished.map_err(|_| unavailable("the command did not end in 10 s".to_owned()))?;
    let Finished { output, stderr, failed } =
        finished.map_err(|error| unavailable(format!("the command fails: {error}")))?;
    for line in String::from_utf8_lossy(&stderr).lines().filter(|line| !line.is_empty()) {
        tracing::warn!(%upstream, "the command of a credential says: {}", one_line::shown(line, LINE_BYTES_MAX));
    }
    if let Some(status) = failed {
        return Err(unavailable(format!("the command ended with {status}")));
    }
    if output.len() as u64 > OUTPUT_BYTES_MAX {
        let cause = "the command's output is larger than 64 KiB";
        return Err(TokenFailure::new(Reason::CredentialMalformed, cause));
    }
    issued_token::of_output(&Bytes::from(output), SystemClock.now())
}

struct Finished {
    output: Vec<u8>,
    stderr: Vec<u8>,
    failed: Option<std::process::ExitStatus>,
}

async fn finish(program: &str, arguments: &[String]) -> io::Result<Finished> {
    let mut command = Command::from(supervisor::command(&ProgramLimits::default(), program, arguments)?);
    command.env_clear();
    command.envs(INHERITED.iter().filter_map(|name| Some((name, env::var_os(name)?))));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // The program runs while this pipe is open; its supervisor ends it and all its children once the pipe is dropped.
    let open = child.stdin.take();
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("it has no standard streams"));
    };
    let (output, stderr) = tokio::try_join!(bounded(stdout, OUTPUT_BYTES_MAX), bounded(stderr, STDERR_BYTES_MAX))?;
    let status = child.wait().await?;
    drop(open);
    Ok(Finished { output, stderr, failed: Some(status).filter(|status| !status.success()) })
}

/// Reads the first bytes, at most one more than `bytes_max`. It reads and drops the rest, so that the program can end.
async fn bounded(mut stream: impl AsyncRead + Unpin, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut held = Vec::new();
    (&mut stream).take(bytes_max + 1).read_to_end(&mut held).await?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(held)
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_hangs_does_not_stop_calls_while_the_old_token_is_valid() {
        let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let settings = IssuedCredentialSettings::Command(vec!["never-run".to_owned()]);
        let credentials = IssuedCredentials::new(&Arc::from("up"), &settings, scope.clone()).unwrap();
        let (client, now) = (ClientCredential::default(), Instant::now());
        let (state, Holder { key, .. }) = (&credentials.0, credentials.holder(&client).unwrap());
        let ends_at = now + Duration::from_secs(60);
        let header = HeaderValue::from_static("Bearer old");
        state.issued.insert(key, KeptToken { header: header.clone(), renewed_at: now, ends_at, replaced_at: None });
        let mut hanging =
            Box::pin(state.requests.get(attempt(&key, None), None, &scope, || None, std::future::pending));
        assert!(futures_util::poll!(&mut hanging).is_pending());
        for _ in 0..3 {
            let begun = Instant::now();
            let used = timeout(Duration::from_secs(20), credentials.header(&client)).await.unwrap();
            assert_eq!((used, begun.elapsed()), (Ok(header.clone()), RENEWAL_WAIT_MAX));
        }
    }
}
