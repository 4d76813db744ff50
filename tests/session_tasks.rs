//! Tasks of 2025-11-25 over real sockets: a client that reads every event, the whole gateway, and a server whose
//! calls wait for the test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "session_tasks/arrays.rs"]
mod arrays;
#[allow(dead_code, reason = "other tests count bytes")]
#[path = "support/session_client.rs"]
mod client;
#[path = "session_tasks/handles.rs"]
mod handles;
#[path = "session_tasks/later.rs"]
mod later;
#[path = "session_tasks/lists.rs"]
mod lists;
#[path = "session_tasks/named.rs"]
mod named;
#[path = "session_tasks/native.rs"]
mod native;
#[path = "session_tasks/outcomes.rs"]
mod outcomes;
#[path = "session_tasks/questions.rs"]
mod questions;
#[path = "session_tasks/relay.rs"]
mod relay;
#[path = "session_tasks/sessions.rs"]
mod sessions;
#[path = "session_tasks/talk.rs"]
mod talk;
#[path = "session_tasks/telling.rs"]
mod telling;
#[allow(dead_code, reason = "other tests script more of it")]
#[path = "support/scripted.rs"]
mod upstream;

use upstream::in_time;
