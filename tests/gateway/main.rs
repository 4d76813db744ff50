//! Suites of all flavours of clients: the whole gateway between them and scripted servers.

mod client_login;
mod edges;
mod endpoint_twin;
mod endpoints;
mod fallback;
mod faults;
mod gateway_tls;
mod pairs;
mod principals;
mod split;
