//! Defines whose task it is.

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use super::digest::digest;

/// The scheme of those who are known by a credential for the server behind.
const UNCHECKED: &str = "cred:";
/// The scheme of those who hold a key.
const KEY: &str = "key:";
const ANONYMOUS: &str = "anon";
/// What stands for those at one address in counts, who are nobody in particular all the same.
const AT_ADDRESS: &str = "anon@";
const READER: &str = "operator:read";
const ACTOR: &str = "operator:act";

/// What an operator who comes with a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorRight {
    /// Look at everything that operators are shown.
    Read,
    /// Change it, too.
    Act,
}

/// The verified identity behind a request. Part of every task's key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The one person behind a loopback listener without authentication (T-22).
    #[must_use]
    pub fn local() -> Self {
        static LOCAL: LazyLock<Principal> = LazyLock::new(|| Principal::new("local"));
        LOCAL.clone()
    }

    /// Nobody in particular: the task id is then a bearer secret.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS)
    }

    /// Whoever sends this credential, which nobody has checked here: all who have it are one to the server behind, too.
    /// Kept is its digest alone.
    #[must_use]
    pub fn bearing(credential: &[u8]) -> Self {
        let mut text = String::from(UNCHECKED);
        for byte in digest([b"credential", credential]).0 {
            let _ = write!(text, "{byte:02x}");
        }
        Self::new(&text)
    }

    /// Whoever holds a key of the gateway's, by the id that the configuration gives them.
    #[must_use]
    pub fn holding(id: &str) -> Self {
        Self::new(&format!("{KEY}{id}"))
    }

    /// An operator who came with a token.
    #[must_use]
    pub fn operator(may: OperatorRight) -> Self {
        Self::new(match may {
            OperatorRight::Read => READER,
            OperatorRight::Act => ACTOR,
        })
    }

    /// Whether an operator may change what is shown: where nobody is asked for a token, all may.
    #[must_use]
    pub fn may_act(&self) -> bool {
        &*self.0 != READER
    }

    /// An identity in its written form, with the scheme in front (`key:…`, `jwt:…`).
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// What requests of this principal are counted as: where it is nobody in particular, all from one address are one. Owns
    /// nothing.
    #[must_use]
    pub fn counted_at(&self, address: Option<impl fmt::Display>) -> Self {
        match address {
            Some(address) if !self.is_identified() => Self::new(&format!("{AT_ADDRESS}{address}")),
            Some(_) | None => self.clone(),
        }
    }

    /// The id that the configuration gives the holder of a key.
    #[must_use]
    pub fn key_id(&self) -> Option<&str> {
        self.0.strip_prefix(KEY)
    }

    /// The address that stands for those who are nobody in particular, where requests are counted.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.0.strip_prefix(AT_ADDRESS)
    }

    /// Whether it is made of a credential that nobody has checked here, or of an address: whoever likes can be any number of
    /// such.
    #[must_use]
    pub fn is_unchecked(&self) -> bool {
        self.0.starts_with(UNCHECKED) || self.0.starts_with(AT_ADDRESS)
    }

    /// Whether it is somebody in particular, so that a list of tasks is that person's alone (T-22, T-43).
    #[must_use]
    pub fn is_identified(&self) -> bool {
        &*self.0 != ANONYMOUS
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It stands in stores: never to change.
    #[test]
    fn a_credential_is_one_person_in_every_version_and_is_not_kept() {
        let ada = Principal::bearing(b"Bearer ada");
        assert_eq!(ada, Principal::bearing(b"Bearer ada"));
        assert_ne!(ada, Principal::bearing(b"Bearer bob"));
        assert!(ada.is_identified() && ada != Principal::local());
        assert!(ada.as_str().starts_with("cred:") && ada.as_str().len() == 5 + 64, "{ada:?}");
    }
}
