//! Keeps clients' access tokens that are exchanged for credentials at a server: in memory only, for running calls.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use moka::sync::Cache;

use crate::task::digest::{Digest, digest};
use crate::task::{Caller, Claims, Principal, Timestamp};

/// The bytes of all kept tokens, and those that the cache needs for an entry.
const WEIGHT_MAX: u64 = 16 << 20;
const ENTRY_BYTES: usize = 256;
/// A token is dropped after this time without a request that uses it. A running call keeps its own token.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);

named_variants! {
    /// The type of clients' tokens for the authorization server that exchanges them (RFC 8693, 3).
    pub enum SubjectTokenType, name {
        AccessToken = "urn:ietf:params:oauth:token-type:access_token",
        IdToken = "urn:ietf:params:oauth:token-type:id_token",
        Jwt = "urn:ietf:params:oauth:token-type:jwt",
    }
}

/// A client's access token, compared by its holder: a refreshed token of that client is equal to the one before it.
#[derive(Clone)]
pub struct SubjectToken(Arc<SubjectTokenParts>);

struct SubjectTokenParts {
    principal: Principal,
    holder: Digest,
    token: String,
    until: Option<Timestamp>,
    is_bound: bool,
}

impl SubjectToken {
    pub fn of(headers: &HeaderMap, caller: &Caller) -> Option<Self> {
        // An API key has no issuer.
        let claims = caller.claims.as_ref().filter(|claims| claims.issuer.is_some())?;
        let (_, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        let token = token.trim_start_matches(' ').to_owned();
        let (principal, holder) = (caller.principal.clone(), holder_of(caller, claims, &token));
        let (until, is_bound) = (caller.until, claims.is_bound);
        Some(Self(Arc::new(SubjectTokenParts { principal, holder, token, until, is_bound })))
    }

    /// Whether the token serves only the holder of a key or certificate, which the gateway does not have.
    pub(super) fn is_bound(&self) -> bool {
        self.0.is_bound
    }

    pub(super) fn principal(&self) -> &Principal {
        &self.0.principal
    }

    pub(super) fn holder(&self) -> Digest {
        self.0.holder
    }

    /// The token itself, for the token endpoint alone.
    pub(super) fn secret(&self) -> &str {
        &self.0.token
    }
}

/// Identifies a principal at one client, with these scopes and groups. A narrow token never uses the credential of a wide one.
/// No client uses the credential of another client, for which the authorization server might refuse the exchange (SEC-98).
fn holder_of(caller: &Caller, claims: &Claims, token: &str) -> Digest {
    let principal = caller.principal.as_str().as_bytes();
    if caller.principal.is_shared() {
        // Several people own tasks by an `owner_claim`: only the token distinguishes them.
        return digest([b"shared", principal, token.as_bytes()]);
    }
    let mut rights = Vec::new();
    for names in [&claims.scopes, &claims.groups] {
        rights.extend_from_slice(&(names.len() as u64).to_be_bytes());
        for name in names {
            rights.extend_from_slice(&(name.len() as u64).to_be_bytes());
            rights.extend_from_slice(name.as_bytes());
        }
    }
    let own: &[u8] = if claims.is_bound { b"own, bound" } else { b"own" };
    let client = claims.client.as_ref().map_or(&b""[..], |client| &client.0[..]);
    digest([own, principal, &rights, client])
}

compared_by!(SubjectToken, |token| token.0.holder);

debug_members!(SubjectToken);

/// The newest token of each client with calls at a server. Clones share them; all are equal, as settings hold them.
#[derive(Clone, Debug)]
pub struct SubjectTokens(Cache<Digest, SubjectToken>);

impl Default for SubjectTokens {
    fn default() -> Self {
        let weight =
            |_: &Digest, token: &SubjectToken| u32::try_from(ENTRY_BYTES + token.0.token.len()).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(WEIGHT_MAX).weigher(weight).time_to_idle(IDLE_MAX).build())
    }
}

impl PartialEq for SubjectTokens {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SubjectTokens {}

impl SubjectTokens {
    /// Records a token of a request, if a call of its holder may need a newer one.
    pub(super) fn saw(&self, token: &SubjectToken) {
        if self.0.get(&token.0.holder).is_some_and(|known| known.0.until < token.0.until) {
            self.0.insert(token.0.holder, token.clone());
        }
    }

    /// Replaces a token that the authorization server refused.
    pub(super) fn replace(&self, token: SubjectToken) {
        self.0.insert(token.0.holder, token);
    }

    pub(super) fn newest(&self, of_call: &SubjectToken) -> SubjectToken {
        let known = self.0.get(&of_call.0.holder).filter(|known| known.0.until >= of_call.0.until);
        known.unwrap_or_else(|| {
            self.replace(of_call.clone());
            of_call.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ISSUER: &str = "https://login.example";

    fn token(principal: Principal, scopes: &[&str], text: &str, until: u64) -> SubjectToken {
        let scopes = scopes.iter().map(|scope| Arc::from(*scope)).collect();
        let claims = Claims { scopes, issuer: Some(Arc::from(ISSUER)), ..Claims::default() };
        let until = Some(Timestamp::from_millis(until));
        let caller = Caller { claims: Some(Arc::new(claims)), until, ..Caller::of(principal) };
        let header = HeaderValue::try_from(format!("Bearer {text}")).unwrap();
        SubjectToken::of(&HeaderMap::from_iter([(AUTHORIZATION, header)]), &caller).unwrap()
    }

    #[test]
    fn a_refreshed_token_is_its_holders_and_a_narrower_one_another() {
        let ada = || Principal::of_subject(ISSUER, "ada");
        let first = token(ada(), &["a", "b"], "s3cret-1", 1);
        assert_eq!(first, token(ada(), &["a", "b"], "s3cret-2", 2));
        assert_ne!(first, token(ada(), &["a"], "s3cret-1", 1));
        assert_ne!(first, token(Principal::of_subject(ISSUER, "bob"), &["a", "b"], "s3cret-1", 1));
        let team = || Principal::of_claim(ISSUER, "team", "red");
        assert_ne!(token(team(), &["a"], "s3cret-1", 1), token(team(), &["a"], "s3cret-2", 1), "two people of a team");
        assert!(!format!("{first:?}").contains("s3cret"));
    }

    #[test]
    fn a_bound_token_is_another_holders() {
        let header = HeaderValue::from_static("Bearer opaque");
        let headers = HeaderMap::from_iter([(AUTHORIZATION, header)]);
        let [bound, free] = [true, false].map(|is_bound| {
            let claims = Claims { issuer: Some(Arc::from(ISSUER)), is_bound, ..Claims::default() };
            let ada = Caller::of(Principal::of_subject(ISSUER, "ada"));
            SubjectToken::of(&headers, &Caller { claims: Some(Arc::new(claims)), ..ada }).unwrap()
        });
        assert!(bound.is_bound() && !free.is_bound());
        assert_ne!(bound, free);
    }

    #[test]
    fn an_api_key_is_no_token() {
        let header = HeaderValue::from_static("Bearer tg_ada1_0011");
        let headers = HeaderMap::from_iter([(AUTHORIZATION, header)]);
        let claims = Claims::default();
        let caller = Caller { claims: Some(Arc::new(claims)), ..Caller::of(Principal::holding("ada")) };
        assert_eq!(SubjectToken::of(&headers, &caller), None);
        assert_eq!(SubjectToken::of(&headers, &Caller::of(Principal::local())), None);
    }

    #[test]
    fn the_token_that_ends_last_is_used_and_strangers_are_not_kept() {
        let ada = |text, until| token(Principal::of_subject(ISSUER, "ada"), &[], text, until);
        let tokens = SubjectTokens::default();
        tokens.saw(&ada("early", 5));
        assert_eq!(tokens.newest(&ada("first", 1)).secret(), "first", "no call needed the early one");
        tokens.saw(&ada("refreshed", 2));
        tokens.saw(&ada("older", 0));
        assert_eq!(tokens.newest(&ada("first", 1)).secret(), "refreshed");
        assert_eq!(tokens.newest(&ada("newest", 3)).secret(), "newest");
    }
}
