//! Looks for the programs of upstreams before anything starts.
//!
//! One that is missing is a warning, as an upstream that cannot be reached: it may come, and the others are served.

use crate::config::Config;

/// What is likely to be a mistake, each with the key of the configuration that names it.
pub fn warnings(config: &Config) -> impl Iterator<Item = (String, String)> {
    config.upstreams.iter().filter_map(|upstream| {
        let error = upstream.server.stdio()?.find_program().err()?;
        Some((format!("upstreams.{}.command", upstream.name), error.to_string()))
    })
}
