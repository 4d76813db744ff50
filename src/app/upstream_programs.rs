//! Checks the programs of upstreams before a start. A missing program is only a warning: it may be installed later.

use crate::config::{Config, UpstreamConfig};
use crate::upstream::transport::stdio::ProgramError;

/// Likely mistakes, each with its configuration key.
pub fn warnings(config: &Config) -> impl Iterator<Item = (String, String)> {
    let said = |error: &ProgramError| matches!(error, ProgramError::Unusable { .. });
    missing(config)
        .filter(move |(_, error)| !said(error))
        .map(|(name, error)| (format!("upstreams.{name}.command"), error.to_string()))
}

/// The missing programs, each with its upstream's name.
pub fn missing(config: &Config) -> impl Iterator<Item = (&str, ProgramError)> {
    let program = |upstream: &UpstreamConfig| upstream.server.stdio()?.find_program().err();
    config.upstreams.iter().filter_map(move |upstream| Some((&*upstream.name, program(upstream)?)))
}
