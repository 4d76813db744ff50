//! Suites that reach an upstream through its methods or its process, with scripted servers behind it.

mod demo_server;
mod endpoint_twin;
mod hostile_upstream;
mod sse_upstream;
mod standing;
mod stdio;
mod upstream_http;
