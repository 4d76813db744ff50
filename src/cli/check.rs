//! Checks a configuration, and answers whether a caller may use an item.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use clap::{Args, ValueEnum};

use crate::config::{Config, check_caller_id};
use crate::server::client_certificates::block_of;
use crate::server::tokens::settings::{IssuerSettings, TokenSettings};
use crate::task::{AccessDecision, AccessItem, AccessVerdict, Caller, Claims, DecidedBy, DecisionArguments, Principal};
use crate::wire::{Object, Payload, ScanLimits};

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// The configuration.
    pub(super) file: PathBuf,
    #[command(flatten)]
    question: AccessQuestion,
}

#[derive(Debug, Args)]
struct AccessQuestion {
    /// The caller, such as key:ada or cert:NAME. A key or certificate has its groups and scopes of the file.
    #[arg(long = "as", value_name = "ID", requires = "can")]
    caller: Option<String>,
    /// Further groups of the caller.
    #[arg(long, value_name = "GROUP", value_delimiter = ',', requires = "can")]
    groups: Vec<String>,
    /// Further scopes of the caller.
    #[arg(long, value_name = "SCOPE", value_delimiter = ',', requires = "can")]
    scopes: Vec<String>,
    /// The issuer of the caller's token.
    #[arg(long, value_name = "URL", requires = "can")]
    issuer: Option<String>,
    /// A tool, by its name at the upstream's own path.
    #[arg(long, value_name = "UPSTREAM/TOOL", requires = "caller")]
    can: Option<String>,
    /// The kind of the item in --can.
    #[arg(long, value_enum, default_value = "tool", requires = "can")]
    kind: AccessKind,
    /// The arguments of the call as a JSON object. Without them, the answer is yes if some arguments are allowed.
    #[arg(long, value_name = "JSON", requires = "can")]
    arguments: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AccessKind {
    Tool,
    Prompt,
    Resource,
}

impl CheckArguments {
    pub(super) const fn asks_about_a_caller(&self) -> bool {
        self.question.can.is_some()
    }

    /// The answer to `--can`, and its exit code; `None` without the option. Fails with the mistake in the command line.
    pub(super) fn answer(&self, config: &Config) -> Result<Option<(String, ExitCode)>, String> {
        let AccessQuestion { can: Some(can), .. } = &self.question else { return Ok(None) };
        let (upstream, name) = can.split_once('/').ok_or("--can is UPSTREAM/TOOL")?;
        if !config.upstreams.iter().any(|one| *one.name == *upstream) {
            return Err(format!("--can: there is no upstream `{upstream}`"));
        }
        let item = match self.question.kind {
            AccessKind::Tool => AccessItem::Tool(name),
            AccessKind::Prompt => AccessItem::Prompt(name),
            AccessKind::Resource => AccessItem::Resource(name),
        };
        let arguments = self.question.arguments.as_deref().map(object).transpose()?;
        let arguments =
            arguments.as_ref().map_or(DecisionArguments::Any, |these| DecisionArguments::These(Some(these)));
        let caller = self.question.caller(config)?;
        if let Some(missing) = missing_scopes(&caller, config) {
            let file = self.file.display();
            let text = format!(
                "{file}: denied: every request with a token needs the scopes of `auth.scopes`; missing: {missing}"
            );
            return Ok(Some((text, ExitCode::FAILURE)));
        }
        let decision = config.access.decision(&caller, upstream, item, arguments);
        let code = if decision.verdict == AccessVerdict::Allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        Ok(Some((self.line(&decision), code)))
    }

    /// `FILE:LINE: the verdict: the reason`
    fn line(&self, AccessDecision { verdict, by }: &AccessDecision) -> String {
        let mut text = by.line().map_or_else(|| self.file.display().to_string(), str::to_owned);
        text.push_str(match verdict {
            AccessVerdict::Allowed => ": allowed",
            AccessVerdict::Denied | AccessVerdict::NeedsScopes(_) => ": denied",
        });
        text.push_str(match by {
            DecidedBy::Nothing => ": no rule and no list narrows it",
            DecidedBy::UnknownCaller => ": there is no such caller",
            DecidedBy::Rule(_) => ": this rule fits first",
            DecidedBy::EndOfRules => ": no rule fits",
            DecidedBy::Key(_) => ": by the lists beside this key",
            DecidedBy::ToolScopes(_) => ": the tool needs scopes",
        });
        if let AccessVerdict::NeedsScopes(scopes) = verdict {
            let scopes: Vec<&str> = scopes.iter().map(|scope| &**scope).collect();
            let _ = write!(text, "; scopes that help: {}", scopes.join(" "));
        }
        text
    }
}

impl AccessQuestion {
    /// The issuer of the caller's token: the one that `--issuer` names, or the one in the caller's name.
    fn token_issuer<'c>(
        &self,
        caller: &Principal,
        tokens: &'c TokenSettings,
    ) -> Result<Option<&'c IssuerSettings>, String> {
        let find = |is_meant: &dyn Fn(&str) -> bool| tokens.issuers.iter().find(|one| is_meant(&one.issuer));
        if let Some(named) = &self.issuer {
            let issuer = find(&|issuer| issuer == named).map(|issuer| &**issuer);
            return issuer.map(Some).ok_or_else(|| format!("--issuer: no [[auth.issuers]] has the `issuer` {named:?}"));
        }
        Ok(find(&|issuer| caller.is_of(issuer)).map(|issuer| &**issuer))
    }

    fn caller(&self, config: &Config) -> Result<Caller, String> {
        let id = self.caller.as_deref().unwrap_or_default();
        check_caller_id(id).map_err(|wanted| format!("--as: {id:?} is not {wanted}"))?;
        let principal = Principal::new(id);
        if principal.has_token() && config.auth.tokens().is_none() {
            return Err("--as: callers have no tokens: `auth.mode` lacks \"tokens\"".to_owned());
        }
        let tokens = config.auth.tokens().filter(|_| principal.has_token());
        let prefix = |one: &Arc<IssuerSettings>| Principal::prefix_of_issuer(&one.issuer, one.owner_claim.as_deref());
        let prefixes: Vec<_> = tokens.iter().flat_map(|tokens| &tokens.issuers).map(prefix).collect();
        if tokens.is_some() && !prefixes.iter().any(|prefix| principal.as_str().starts_with(prefix.as_str())) {
            let ids: Vec<_> = prefixes.iter().map(|prefix| format!("{}NAME", prefix.as_str())).collect();
            return Err(format!("--as: no issuer's tokens belong to it; write {}", ids.join(" or ")));
        }
        let mut claims = Claims::default();
        if principal.key_id().is_some() {
            let key = config.auth.keys().iter().find(|key| key.caller.principal == principal);
            let key = key.ok_or_else(|| format!("--as: there is no key with the id of {:?}", principal.as_str()))?;
            claims = key.caller.claims.as_deref().cloned().unwrap_or_default();
        }
        if let Some(name) = principal.certificate_name() {
            let block = block_of(config.auth.certificates(), name);
            let block = block.ok_or_else(|| format!("--as: no `san` in [[auth.certificates]] matches {name:?}"))?;
            claims = Claims::clone(&block.claims);
        }
        claims.groups.extend(texts(&self.groups));
        claims.scopes.extend(texts(&self.scopes));
        if let Some(tokens) = tokens
            && let Some(issuer) = self.token_issuer(&principal, tokens)?
        {
            claims.scopes.extend(issuer.scopes_of(self.scopes.iter().map(String::as_str)));
            claims.issuer = Some(Arc::clone(&issuer.issuer));
        }
        Ok(Caller { claims: Some(Arc::new(claims)), ..Caller::of(principal) })
    }
}

/// The scopes that every request with a token needs and the caller lacks; `None` if there are none, or the caller has no token.
fn missing_scopes(caller: &Caller, config: &Config) -> Option<String> {
    let tokens = config.auth.tokens().filter(|_| caller.principal.has_token())?;
    let missing: Vec<&str> =
        tokens.scopes.iter().filter(|scope| !caller.has_scope(scope)).map(|scope| &**scope).collect();
    (!missing.is_empty()).then(|| missing.join(" "))
}

fn texts(texts: &[String]) -> BTreeSet<Arc<str>> {
    texts.iter().map(|text| Arc::from(text.as_str())).collect()
}

fn object(text: &str) -> Result<Object, String> {
    let payload = Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT);
    let payload = payload.map_err(|error| format!("--arguments: {error}"))?;
    Object::of(&payload).ok_or_else(|| "--arguments is a JSON object".to_owned())
}
