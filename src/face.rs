//! Towards clients: decode, pass through or ask the engine, encode.
//!
//! Read [`endpoint`] first: one served path, and how a request finds the face that understands it. Then
//! [`stateless`] for clients that say everything with each request, [`session`] and `pipe` for those
//! that shake hands first.

pub mod answer;
pub mod call_stream;
pub mod catalog;
pub mod classify;
pub mod closing;
pub mod duplex;
mod ear;
pub mod endpoint;
mod fallback;
pub mod headers;
pub mod http;
pub mod mirrored;
mod misses;
pub mod named;
pub mod naming;
pub mod operators;
mod pipe;
pub mod rates;
mod refused;
pub mod rewrite;
pub mod sealed;
pub mod session;
mod sized;
pub mod sse;
pub mod stateless;
pub mod stdio;
