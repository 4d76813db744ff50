//! Whose task it is.

use std::fmt;
use std::sync::Arc;

/// The verified identity behind a request. Part of every task's key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The one person behind a loopback listener without authentication (T-22).
    #[must_use]
    pub fn local() -> Self {
        Self::new("local")
    }

    /// Nobody in particular: the task id is then a bearer secret.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::new("anon")
    }

    /// An identity in its written form, with the scheme in front (`key:…`, `jwt:…`).
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// Whether it is somebody in particular, so that a list of tasks is that person's alone (T-22, T-43).
    #[must_use]
    pub fn is_identified(&self) -> bool {
        *self != Self::anonymous()
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
