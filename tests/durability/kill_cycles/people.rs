//! Session clients that come back after the program was killed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use serde_json::json;
use support::session_client::{BOTH, Client, HttpOptions, initialize};
use support::talk::SessionUser;
use tokio_util::task::TaskTracker;

use super::keeper::Keeper;

/// A client of one version, in a session if it had one before.
pub(crate) async fn user(keeper: &Keeper, version: &str, before: Option<&SessionUser>) -> SessionUser {
    let address = keeper.address();
    let over = HttpOptions::default();
    let connections = TaskTracker::new();
    let mut client = Client { address, session: None, version: None, accept: BOTH, over, connections };
    match before {
        Some(before) => {
            (client.session, client.version) = (before.client.session.clone(), before.client.version.clone());
        }
        None => {
            let reply = client.post(initialize(version, &json!({}))).await;
            client.session = Some(reply.header("mcp-session-id").unwrap().to_owned());
            client.version = Some(version.to_owned());
        }
    }
    SessionUser { client }
}
