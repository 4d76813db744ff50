//! Runs real peers: where they are installed, their processes, and what a run with them leaves behind.

pub mod bridge;
pub mod cells;
pub mod gateway;
pub mod install;
pub mod process;
pub mod report;
pub mod upstream;
