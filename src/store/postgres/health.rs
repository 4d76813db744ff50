//! Defines how the store is.

/// How the store is, for readiness. What is worse stands further down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostgresHealth {
    Good,
    /// There is no connection that may be believed; says why.
    Away(String),
    /// The server names no synchronous standby, where one is needed.
    NoStandby,
    /// There is no room on the database's disk.
    Full,
    /// Others have declared this life dead; it is to begin anew.
    Fenced,
    /// The store is older than what it acknowledged, or another one: it lost what it promised.
    Lost,
}
