//! Fetches issuers' keys in the background, and serves the metadata that starts clients' logins.

use std::sync::Arc;

use tokio_util::sync::DropGuard;

use crate::config::Config;
use crate::face::client_login::metadata_path;
use crate::face::own_metadata::OwnResource;
use crate::face::rates::Rates;
use crate::server::admin::Readiness;
use crate::server::tokens::TokenVerifier;
use crate::server::tokens::seen_proofs::SeenProofs;
use crate::server::tokens::settings::ProofPolicy;
use crate::server::{Authenticator, Routes};
use crate::upstream::TaskScope;

const ISSUER_UNKNOWN: &str = "issuer_unknown";

/// The verifier in use. Its keys are fetched until this is dropped.
#[derive(Debug)]
pub(super) struct FreshKeys {
    tokens: TokenVerifier,
    _stop: DropGuard,
}

/// The authentication of a new configuration, with the keys that are known and the proofs that were used already.
pub(super) fn succeeding(callers: Authenticator, before: Option<&FreshKeys>, used: &Arc<SeenProofs>) -> Authenticator {
    callers.with_tokens(|tokens| match before {
        Some(before) => tokens.clone().succeeding(&before.tokens),
        None => tokens.with_seen(used),
    })
}

/// Fetches the keys at intervals. The first fetch delays no start: until it ends, tokens wait for it, and `/readyz` says so.
pub(super) fn keep_fresh(callers: &Authenticator, scope: &TaskScope, readiness: &Readiness) -> Option<FreshKeys> {
    readiness.clear(ISSUER_UNKNOWN);
    let tokens = callers.tokens()?.clone();
    tokens.run_in(scope);
    let (stop, kept, readiness) = (scope.stop.child_token(), tokens.clone(), readiness.clone());
    show(&tokens, &readiness);
    let fetching = stop.clone().run_until_cancelled_owned(async move {
        loop {
            let next = kept.refresh().await;
            show(&kept, &readiness);
            tokio::select! {
                () = tokio::time::sleep(next) => (),
                () = kept.fetched() => (),
            }
        }
    });
    scope.tracker.spawn(fetching);
    Some(FreshKeys { tokens, _stop: stop.drop_guard() })
}

fn show(tokens: &TokenVerifier, readiness: &Readiness) {
    let is_any = tokens.issuers_without_current_keys().next().is_some();
    if is_any { readiness.limit(ISSUER_UNKNOWN) } else { readiness.clear(ISSUER_UNKNOWN) }
}

/// Adds the metadata of each path where tokens are accepted, and its root form where there is one path.
pub(super) fn with_metadata(routes: Routes, config: &Config, rates: &Arc<Rates>) -> Routes {
    let Some(tokens) = config.auth.tokens() else { return routes };
    let resource = OwnResource {
        public_url: Arc::clone(&tokens.public_url),
        issuers: tokens.issuers.iter().map(|one| Arc::clone(&one.issuer)).collect(),
        takes_proofs: tokens.proofs != ProofPolicy::Off,
        requires_proofs: tokens.proofs == ProofPolicy::Require,
        takes_bound_tokens: config.listen.client_certificates.is_some(),
        scopes: tokens.scopes.iter().chain(config.access.scopes()).cloned().collect(),
    };
    let own = config.upstreams.iter().map(|one| one.path.as_str());
    let mut paths = own.chain(config.endpoints.iter().map(|one| &*one.path));
    let only = paths.next().filter(|_| paths.next().is_none());
    let root = only.map(|path| (metadata_path("/"), Arc::new(resource.metadata(path, Arc::clone(rates)))));
    let routes = match root {
        Some((place, endpoint)) => routes.with(place, endpoint),
        None => routes,
    };
    routes.with_beside(|path| (metadata_path(path), Arc::new(resource.metadata(path, Arc::clone(rates)))))
}
