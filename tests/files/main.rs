//! Suites that read files of the repository: configurations, the seeds of the fuzz targets, and the files of a release.

mod config;
mod corpus;
mod dependencies;
mod env_files;
mod key_files;
mod packaging;
