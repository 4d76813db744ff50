//! Looks for the programs of upstreams before anything starts.
//!
//! One that is missing is a warning, as an upstream that cannot be reached: it may come, and the others are served.

use crate::config::{Config, UpstreamConfig};
use crate::upstream::transport::stdio::ProgramError;

/// What is likely to be a mistake, each with the key of the configuration that names it.
pub fn warnings(config: &Config) -> impl Iterator<Item = (String, String)> {
    let said = |error: &ProgramError| matches!(error, ProgramError::Unusable { .. });
    missing(config)
        .filter(move |(_, error)| !said(error))
        .map(|(name, error)| (format!("upstreams.{name}.command"), error.to_string()))
}

/// The programs that are not there, each with the name of its upstream.
pub fn missing(config: &Config) -> impl Iterator<Item = (&str, ProgramError)> {
    let program = |upstream: &UpstreamConfig| upstream.server.stdio()?.find_program().err();
    config.upstreams.iter().filter_map(move |upstream| Some((&*upstream.name, program(upstream)?)))
}
