//! Suites that read files of the repository: configurations, the chart, the files of a release, and the seeds of the fuzz targets.

mod chart;
mod config;
mod corpus;
mod dependencies;
mod env_files;
mod key_files;
mod packaging;
