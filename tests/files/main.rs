//! Suites that read files of the repository: configurations, the chart, and the seeds of the fuzz targets.

mod chart;
mod config;
mod corpus;
mod dependencies;
mod env_files;
mod key_files;
