//! taskgate: a reverse proxy that turns slow MCP tool calls into tasks.
//!
//! The modules in reading order. Each may use only what stands above it; `tests/tidy.rs` keeps that.

pub mod boot_clock;
pub mod cause;
mod console;
pub mod failpoint;
mod line_budget;
pub mod metric;
pub mod own_command;
pub mod random;
mod system;

pub mod wire;

pub mod dev_output;
pub mod task;

pub mod replica;

pub mod answer_budget;
pub mod audit;
pub mod dialect;
mod died_programs;
pub mod secret_file;
pub mod shared_access;
pub mod shared_limits;
pub mod store;
pub mod tls;

pub mod upstream;

pub mod engine;

pub mod face;

pub mod server;

pub mod app;
pub mod cli;
pub mod config;
pub mod demo;
pub mod telemetry;
