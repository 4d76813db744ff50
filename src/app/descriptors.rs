//! Raises the limit on open files, and reduces connections and calls to it (B174).

use std::num::NonZeroUsize;

use crate::config::Config;
use crate::system;

/// One for the client and one for the upstream. A call adds one, since its client's connection is counted already.
const PER_CONNECTION: usize = 2;
/// For listeners, the store and the operators' connections.
const RESERVE: usize = 256;

/// `connections_max` of the start's configuration, and the number in force, which no reload changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionCapacity {
    named: NonZeroUsize,
    in_force: NonZeroUsize,
}

impl ConnectionCapacity {
    /// Raises the process's limit for all connections and calls, or reduces the configuration with a warning.
    pub(super) fn provide(config: &mut Config) -> (Self, Option<DescriptorShortage>) {
        let named = config.listen.connections_max;
        let shortage = provide(config);
        (Self { named, in_force: config.listen.connections_max }, shortage)
    }

    /// As `provide`, at a reload. If the configuration has as many connections as the start's, their number stays as it is.
    pub(super) fn keep(self, config: &mut Config) -> Option<DescriptorShortage> {
        let named = config.listen.connections_max;
        let shortage = provide(config);
        if named == self.named {
            config.listen.connections_max = self.in_force;
        }
        shortage
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DescriptorShortage {
    granted: usize,
    wanted: usize,
    named: NonZeroUsize,
    connections_max: NonZeroUsize,
}

impl DescriptorShortage {
    pub(super) fn log(self) {
        let Self { granted, wanted, named, connections_max } = self;
        // A reduction by a tenth is not worth a warning.
        if connections_max.get() >= named.get() - named.get() / 10 {
            tracing::info!(descriptors = granted, wanted, connections_max, "the limit on open files is a little low");
            return;
        }
        tracing::warn!(
            descriptors = granted,
            wanted,
            connections_max,
            "the limit on open files is low, so fewer connections and calls are served; raise it (ulimit -n)"
        );
    }
}

fn provide(config: &mut Config) -> Option<DescriptorShortage> {
    let wanted = wanted(config);
    let granted = system::raise_descriptors(wanted);
    if granted >= needed(config) {
        return None;
    }
    let named = config.listen.connections_max;
    fit(config, granted);
    Some(DescriptorShortage { granted, wanted, named, connections_max: config.listen.connections_max })
}

fn calls(config: &Config) -> usize {
    config.upstreams.iter().map(|upstream| upstream.permits.in_flight_max.get()).fold(0, usize::saturating_add)
}

/// The likely number of concurrent calls: of many upstreams, few are full at once.
fn likely_calls(config: &Config) -> usize {
    calls(config).min(config.listen.connections_max.get())
}

/// The wanted limit: each call may have a connection to itself.
fn wanted(config: &Config) -> usize {
    let places = config.listen.connections_max.get().saturating_add(likely_calls(config));
    places.saturating_mul(PER_CONNECTION).saturating_add(RESERVE)
}

/// The smallest limit that serves every likely connection and call.
fn needed(config: &Config) -> usize {
    let connections = config.listen.connections_max.get().saturating_mul(PER_CONNECTION);
    connections.saturating_add(likely_calls(config)).saturating_add(RESERVE)
}

/// Reduces connections, and calls only if less than a quarter would be left for connections.
fn fit(config: &mut Config, granted: usize) {
    let room = granted - RESERVE.min(granted / 4);
    let calls = calls(config);
    let for_calls = calls.min(room / 4 * 3);
    for upstream in &mut config.upstreams {
        let share = upstream.permits.in_flight_max.get().saturating_mul(for_calls) / calls;
        upstream.permits.in_flight_max = NonZeroUsize::new(share).unwrap_or(NonZeroUsize::MIN);
    }
    let connections = config.listen.connections_max.get().min((room - for_calls) / PER_CONNECTION);
    config.listen.connections_max = NonZeroUsize::new(connections).unwrap_or(NonZeroUsize::MIN);
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit};

    use super::*;
    use crate::config::{CommandLineConfig, CommandLineServer};

    #[test]
    fn b174_limits_above_the_descriptors_are_reduced_connections_first() {
        let servers = vec![CommandLineServer::demo("http://127.0.0.1:9000/mcp".parse().unwrap())];
        let config = CommandLineConfig { servers, ..CommandLineConfig::default() }.resolve(&|_| None).unwrap().config;
        assert_eq!(wanted(&config), 2 * (10_000 + 256) + 256);
        for (granted, connections, calls) in [(20_000, 9_744, 256), (1_024, 256, 256), (64, 6, 36), (4, 1, 1)] {
            let mut config = config.clone();
            fit(&mut config, granted);
            let found = (config.listen.connections_max.get(), config.upstreams[0].permits.in_flight_max.get());
            assert_eq!(found, (connections, calls), "{granted}");
            let taken = PER_CONNECTION * found.0 + found.1;
            assert!(taken <= granted, "{granted}: {taken}");
        }
    }

    /// The unit's limits are enough for 200 upstreams.
    #[test]
    fn b174_calls_count_for_no_more_than_there_are_connections() {
        let server = CommandLineServer::demo("http://127.0.0.1:9000/mcp".parse().unwrap());
        let mut config = CommandLineConfig { servers: vec![server], ..CommandLineConfig::default() }
            .resolve(&|_| None)
            .unwrap()
            .config;
        config.upstreams = vec![config.upstreams[0].clone(); 200];
        assert_eq!(needed(&config), 30_256);
        fit(&mut config, 1_024);
        assert!(calls(&config) <= 1_024, "where it is scarce, none goes over it");
    }

    /// Other tests raise the limit of the process.
    #[test]
    fn b174_a_limit_that_is_high_enough_stays() {
        if !support::alone::is("app::descriptors::tests::b174_a_limit_that_is_high_enough_stays") {
            return;
        }
        let before = getrlimit(Resource::Nofile);
        assert!(system::raise_descriptors(16) >= 16);
        assert_eq!(getrlimit(Resource::Nofile), before);
    }
}
