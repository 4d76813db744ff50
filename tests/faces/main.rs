//! Suites of one flavour of client each: they write to the socket of its face, and read the response.

mod combined_wire;
mod endpoint_twin;
mod listen_wire;
mod replicas;
mod session_bridge;
mod session_draft;
mod session_subtasks;
mod session_tasks;
mod session_wire;
mod sockets_http;
mod sse_face;
mod stateless_pipe;
mod stateless_wire;
