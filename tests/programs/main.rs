//! Suites that start the program as a user does.

mod access_check;
mod audit;
mod cli_call;
mod descriptors;
mod dev;
mod import;
mod install;
mod keys;
mod operations;
mod probe;
mod quick_start;
mod readme_sessions;
mod serve;
mod store_start;
mod wrap;
