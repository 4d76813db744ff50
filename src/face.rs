//! Towards clients: decode, pass through or ask the engine, encode.
//!
//! Read [`endpoint`] first: one served path, and how a request finds the face that understands it.

pub mod answer;
pub mod catalog;
pub mod classify;
pub mod endpoint;
pub mod headers;
pub mod http;
pub mod mirrored;
pub mod sealed;
pub mod stateless;
pub mod stream;
