//! Who is asking. The one layer that knows about credentials.

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};

use super::api_keys::KeyRing;
use super::refusal::Refusal;
use crate::task::principal::Principal;

/// Who may come to a listener.
///
/// No header but `Authorization` has a say in it, `X-Forwarded-For` and its kin included (B73).
#[derive(Clone, Debug)]
pub enum Callers {
    /// Whoever comes, as this principal: the one person behind a loopback listener, nobody in particular
    /// elsewhere (T-22). Credentials are not looked at.
    Everyone(Principal),
    /// Holders of an API key, each as the principal that it belongs to.
    KeyHolders(KeyRing),
}

#[derive(Clone, Debug)]
pub(super) struct PrincipalGuard(Callers);

impl PrincipalGuard {
    pub(super) const fn new(callers: Callers) -> Self {
        Self(callers)
    }

    /// Who sent this request.
    ///
    /// # Errors
    /// `CredentialsUnclear` for two credentials (B150), `Unauthorized` where there is no key that is known.
    pub(super) fn identify<B>(&self, request: &Request<B>) -> Result<Principal, Refusal> {
        match &self.0 {
            Callers::Everyone(principal) => Ok(principal.clone()),
            Callers::KeyHolders(keys) => {
                let mut fields = request.headers().get_all(AUTHORIZATION).iter();
                let (field, second) = (fields.next(), fields.next());
                if second.is_some() {
                    return Err(Refusal::CredentialsUnclear);
                }
                let token = field.and_then(bearer).ok_or(Refusal::Unauthorized)?;
                keys.owner(token).ok_or(Refusal::Unauthorized)
            }
        }
    }
}

/// The token in `Bearer TOKEN`; the scheme is written in any case (RFC 9110, 11.1).
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::api_keys::{ApiKey, ApiKeys};

    /// B73.
    #[test]
    fn everyone_is_who_the_configuration_says_whatever_the_headers_say() {
        for everyone in [Principal::local(), Principal::anonymous()] {
            let request = Request::builder()
                .header("x-forwarded-for", "192.0.2.1")
                .header("authorization", "Bearer x")
                .body(())
                .unwrap();
            let guard = PrincipalGuard::new(Callers::Everyone(everyone.clone()));
            assert_eq!(guard.identify(&request), Ok(everyone));
        }
    }

    const KEY: &str = "tg_a1_0123456789abcdef0123456789abcdef";

    #[track_caller]
    fn check(ring: &KeyRing, fields: &[&str], expected: &Result<Principal, Refusal>) {
        let mut request = Request::new(());
        for field in fields {
            request.headers_mut().append(AUTHORIZATION, field.parse().unwrap());
        }
        let guard = PrincipalGuard::new(Callers::KeyHolders(ring.clone()));
        assert_eq!(guard.identify(&request), *expected, "{fields:?}");
    }

    #[test]
    fn b150_one_bearer_token_is_looked_at_and_nothing_else() {
        let ada = Principal::new("key:ada");
        let mut keys = ApiKeys::default();
        keys.add(ApiKey::read(KEY).unwrap(), &ada).unwrap();
        let ring = KeyRing::new(keys);
        for scheme in ["Bearer ", "bearer ", "BEARER   "] {
            check(&ring, &[&format!("{scheme}{KEY}")], &Ok(ada.clone()));
        }
        let basic = format!("Basic {KEY}");
        for fields in [vec![], vec!["Bearer"], vec!["Bearer x"], vec![KEY], vec![basic.as_str()]] {
            check(&ring, &fields, &Err(Refusal::Unauthorized));
        }
        let good = format!("Bearer {KEY}");
        check(&ring, &[&good, &good], &Err(Refusal::CredentialsUnclear));
        check(&KeyRing::new(ApiKeys::default()), &[&good], &Err(Refusal::Unauthorized));
    }
}
