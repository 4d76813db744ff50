//! Suites with clients and servers of others, unmodified.

mod browser;
mod certificate_peers;
mod clients_page;
mod conformance;
mod draft_peers;
mod exchange_peers;
mod fallback_peers;
mod glewlwyd_peers;
mod listen_peers;
mod login_matrix;
mod matrix;
mod native_peers;
mod native_tasks;
mod oauth_peers;
mod one_address;
mod proxies;
mod restarted_servers;
mod resumed_peers;
mod session_matrix;
mod split_peers;
mod sse_client_peers;
mod sse_peers;
mod stateless_matrix;
mod stdio_peers;
mod subtask_peers;
mod wrap_peers;
