//! Session clients that come back after the program was killed.

use serde_json::json;
use support::talk::SessionUser;

use super::keeper::Keeper;

/// A client of one version, in a session if it had one before.
pub(crate) async fn user(keeper: &Keeper, version: &str, before: Option<&SessionUser>) -> SessionUser {
    SessionUser::at(keeper.address(), (version, &json!({})), before).await
}
