//! Suites that read files of the repository: configurations, and the seeds of the fuzz targets.

mod config;
mod corpus;
mod dependencies;
mod env_files;
mod key_files;
