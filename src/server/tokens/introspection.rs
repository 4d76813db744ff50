//! Asks an issuer whether a token is active (RFC 7662): one question for all requests with that token, and a new one after 30 s.

use std::mem::size_of;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use moka::sync::Cache;
use serde_json::{Map, Value};

use super::question_budget::QuestionBudget;
use super::settings::IntrospectionSettings;
use crate::line_budget::LogLimit;
use crate::server::forwarded::network;
use crate::task::digest::{Digest, digest};
use crate::upstream::TaskScope;
use crate::upstream::document::{FormAnswer, IssuerConnections};
use crate::upstream::shared_lookups::SharedLookups;
use crate::wire::{Payload, ScanLimits};

const KEPT_FOR: Duration = Duration::from_secs(30);
/// How long a failure is the answer for every request with the token, so that a failing issuer is not asked each time.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// How long after its last `active` a token does not count towards its network's question budget.
const GOOD_FOR: Duration = Duration::from_secs(3600);
const GOOD_MAX: u64 = 20_000;
const WEIGHT_MAX: u64 = 16 << 20;
const ENTRY_BYTES: usize = 256;
/// The memory of a claim, as a multiple of its name and value.
const CLAIM_FACTOR: usize = 4;

#[derive(Clone, Debug)]
pub(super) enum IntrospectionAnswer {
    Active(Arc<Map<String, Value>>),
    Inactive,
    /// The issuer is unavailable, or its answer cannot be used.
    Unavailable,
}

pub(super) struct Introspector {
    settings: IntrospectionSettings,
    connections: Arc<IssuerConnections>,
    answers: Cache<Digest, (IntrospectionAnswer, u32)>,
    failed: Cache<Digest, ()>,
    /// Tokens that were active when the issuer was asked last.
    good: Cache<Digest, ()>,
    /// Shared by the client's network, as its principal is not known yet. An error is the time until it may ask.
    lookups: SharedLookups<Digest, Result<IntrospectionAnswer, Duration>, IpAddr>,
    budget: QuestionBudget,
    failures_logged: LogLimit,
}

debug_members!(Introspector, |introspector| settings: introspector.settings);

impl Introspector {
    pub(super) fn new(settings: IntrospectionSettings) -> Self {
        let answers = Cache::builder().max_capacity(WEIGHT_MAX).weigher(|_, (_, weight)| *weight);
        Self {
            connections: settings.client.connections(),
            settings,
            answers: answers.time_to_live(KEPT_FOR).build(),
            failed: Cache::builder().max_capacity(10_000).time_to_live(FAILED_FOR).build(),
            good: Cache::builder().max_capacity(GOOD_MAX).time_to_live(GOOD_FOR).build(),
            lookups: SharedLookups::default(),
            budget: QuestionBudget::default(),
            failures_logged: LogLimit::default(),
        }
    }

    /// The last answer about a token; `None` if the issuer must be asked.
    pub(super) fn known(&self, token: &Digest) -> Option<IntrospectionAnswer> {
        let answer = self.answers.get(token).map(|(answer, _)| answer);
        answer.or_else(|| self.failed.contains_key(token).then_some(IntrospectionAnswer::Unavailable))
    }

    /// Asks the issuer once for all requests with a token, to the end. Fails with the time until its network may ask.
    pub(super) async fn ask(
        self: &Arc<Self>,
        token: String,
        client: IpAddr,
        scope: &OnceLock<TaskScope>,
    ) -> Result<(), Duration> {
        let (key, network, asking) = (digest([token.as_bytes()]), network(client), Arc::clone(self));
        // Before the gateway serves, there is no scope and no question.
        let Some(scope) = scope.get() else { return Ok(()) };
        let lookup = || async move {
            let paid = if asking.good.contains_key(&key) { None } else { Some(asking.budget.take(network)?) };
            let answer = asking.look_up(&token).await;
            match (&answer, paid) {
                (IntrospectionAnswer::Active(_), Some(paid)) => paid.give_back(),
                (IntrospectionAnswer::Unavailable, Some(paid)) => paid.give_back_unanswered(),
                (IntrospectionAnswer::Active(_) | IntrospectionAnswer::Unavailable, None)
                | (IntrospectionAnswer::Inactive, _) => (),
            }
            asking.note(key, &answer);
            Ok(answer)
        };
        let asked = self.lookups.get(key, network, scope, || self.known(&key).map(Ok), lookup).await;
        asked.map_or(Ok(()), |answer| answer.map(drop))
    }

    async fn look_up(&self, token: &str) -> IntrospectionAnswer {
        match self.asked(token).await {
            Ok(answer) => answer,
            Err(error) => {
                if self.failures_logged.is_due() {
                    tracing::warn!(url = %self.settings.client.url, %error, "tokens cannot be looked up at their issuer");
                }
                IntrospectionAnswer::Unavailable
            }
        }
    }

    async fn asked(&self, token: &str) -> Result<IntrospectionAnswer, String> {
        // Reads the password's file again: it may have changed.
        let client = self.settings.client.over(&self.connections).map_err(|error| error.to_string())?;
        let answer = client.ask(&[("token", token), ("token_type_hint", "access_token")]).await;
        read(&answer.map_err(|error| error.to_string())?)
    }

    fn note(&self, key: Digest, answer: &IntrospectionAnswer) {
        let claims = match answer {
            IntrospectionAnswer::Unavailable => return self.failed.insert(key, ()),
            IntrospectionAnswer::Inactive => {
                self.good.invalidate(&key);
                0
            }
            IntrospectionAnswer::Active(claims) => {
                self.good.insert(key, ());
                let bytes =
                    |(name, value): (&String, &Value)| size_of::<Value>() + name.len() + value.to_string().len();
                CLAIM_FACTOR * claims.iter().map(bytes).sum::<usize>()
            }
        };
        let weight = u32::try_from(ENTRY_BYTES + claims).unwrap_or(u32::MAX);
        self.answers.insert(key, (answer.clone(), weight));
    }
}

/// Reads a response. Without a boolean `active` it is no answer.
fn read(answer: &FormAnswer) -> Result<IntrospectionAnswer, String> {
    if answer.status != StatusCode::OK {
        return Err(format!("the server answers with HTTP {}", answer.status.as_u16()));
    }
    let claims = Payload::parse(&answer.text, ScanLimits::CLIENT).ok();
    let claims = claims.and_then(|text| text.read::<Map<String, Value>>().ok());
    let claims = claims.ok_or("the answer is not a JSON object")?;
    match claims.get("active") {
        Some(Value::Bool(true)) => Ok(IntrospectionAnswer::Active(Arc::new(claims))),
        Some(Value::Bool(false)) => Ok(IntrospectionAnswer::Inactive),
        Some(_) | None => Err("the answer has no `active` that is true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use support::scripted::{ScriptedServer, json_text, status};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::server::tokens::settings::IntrospectedTokens;
    use crate::upstream::token_client::{ClientSecret, SecretCarriage, TokenClientSettings};

    fn before(issuer: &ScriptedServer) -> (Arc<Introspector>, OnceLock<TaskScope>) {
        let client = TokenClientSettings {
            url: issuer.url(),
            id: "taskgate".to_owned(),
            secret: ClientSecret::Known("secret".to_owned()),
            sends: SecretCarriage::Basic,
        };
        let settings = IntrospectionSettings { client, tokens: IntrospectedTokens::Opaque };
        let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        (Arc::new(Introspector::new(settings)), OnceLock::from(scope))
    }

    #[tokio::test]
    async fn sec_79_an_unavailable_issuer_is_not_asked_without_limit() {
        let issuer = ScriptedServer::start(|_| Some(status(503))).await;
        let (introspector, scope) = before(&issuer);
        let ask = |token: String| introspector.ask(token, IpAddr::from([192, 0, 2, 7]), &scope);
        let mut is_refused = false;
        for round in 0..100 {
            let asked = futures_util::future::join_all((0..200).map(|n| ask(format!("token-{round}-{n}")))).await;
            is_refused = asked.iter().any(Result::is_err);
            if is_refused {
                break;
            }
        }
        assert!(is_refused, "{} questions", issuer.world.all(|_| true).len());
    }

    #[tokio::test]
    async fn a_token_that_was_active_is_asked_about_even_if_its_network_has_asked_too_much() {
        let issuer = ScriptedServer::start(|seen| {
            let is_good = String::from_utf8_lossy(&seen.bytes).contains("good");
            Some(json_text(format!("{{\"active\":{is_good}}}")))
        });
        let issuer = issuer.await;
        let (introspector, scope) = before(&issuer);
        let ask = |token: String| introspector.ask(token, IpAddr::from([192, 0, 2, 7]), &scope);
        assert_eq!(ask("good".to_owned()).await, Ok(()));
        for round in 0.. {
            let junk = (0..200).map(|n| ask(format!("junk-{round}-{n}")));
            let asked = futures_util::future::join_all(junk).await;
            if asked.iter().any(Result::is_err) {
                break;
            }
        }
        // As after 30 s.
        introspector.answers.invalidate_all();
        assert_eq!(ask("good".to_owned()).await, Ok(()));
        let is_good = |seen: &support::scripted::SeenRequest| String::from_utf8_lossy(&seen.bytes).contains("good");
        assert_eq!(issuer.world.all(is_good).len(), 2);
    }
}
