//! Who is asking. The one layer that later learns about keys, tokens and certificates.

use http::Request;

use super::refusal::Refusal;
use crate::task::principal::Principal;

/// Without authentication: the one person behind a loopback listener, nobody in particular elsewhere (T-22).
/// Which of the two is the configuration's to say.
///
/// No header has a say in it, `X-Forwarded-For` and its kin included (B73).
#[derive(Clone, Debug)]
pub(super) struct PrincipalGuard {
    everyone: Principal,
}

impl PrincipalGuard {
    pub(super) const fn new(everyone: Principal) -> Self {
        Self { everyone }
    }
}

impl PrincipalGuard {
    /// Who sent this request.
    ///
    /// # Errors
    /// Where that cannot be told. Today everyone is known.
    pub(super) fn identify<B>(&self, _: &Request<B>) -> Result<Principal, Refusal> {
        Ok(self.everyone.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B73.
    #[test]
    fn everyone_is_who_the_configuration_says_whatever_the_headers_say() {
        for everyone in [Principal::local(), Principal::anonymous()] {
            let request = Request::builder().header("x-forwarded-for", "192.0.2.1").body(()).unwrap();
            assert_eq!(PrincipalGuard::new(everyone.clone()).identify(&request), Ok(everyone));
        }
    }
}
