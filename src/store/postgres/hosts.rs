//! Splits a URL's hosts and addresses, so that each gets its own time limit. The library limits how long an address takes to
//! accept a connection, but not how long it is silent afterwards.

use tokio::net::lookup_host;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};

const PORT: u16 = 5432;

/// The configuration of each host alone, in the order of tries. Drops settings that a URL cannot express.
pub(super) fn each_host(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let many = hosts.len();
    // The library rejects numbers that do not match.
    if many < 2 || ![0, many].contains(&addresses.len()) || ![0, 1, many].contains(&ports.len()) {
        return vec![config.clone()];
    }
    let each = hosts.iter().enumerate().map(|(nth, host)| {
        let mut one = without_host(config);
        match host {
            Host::Tcp(name) => one.host(name),
            Host::Unix(path) => one.host_path(path),
        };
        if let Some(address) = addresses.get(nth) {
            one.hostaddr(*address);
        }
        if let Some(port) = ports.get(nth).or_else(|| ports.first()) {
            one.port(*port);
        }
        one
    });
    balanced(config, each.collect())
}

/// The configuration of each address of a host. If the lookup fails, the library reports the error.
pub(super) async fn each_address(host: Config) -> Vec<Config> {
    let ([Host::Tcp(name)], []) = (host.get_hosts(), host.get_hostaddrs()) else { return vec![host] };
    let port = host.get_ports().first().copied().unwrap_or(PORT);
    let found: Vec<_> = lookup_host((name.as_str(), port)).await.map(Iterator::collect).unwrap_or_default();
    if found.is_empty() {
        return vec![host];
    }
    let each = found.iter().map(|address| {
        let mut one = host.clone();
        one.hostaddr(address.ip());
        one
    });
    balanced(&host, each.collect())
}

fn balanced(config: &Config, mut each: Vec<Config>) -> Vec<Config> {
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        let [random] = crate::random::bytes::<1>();
        let many = each.len().max(1);
        each.rotate_left(usize::from(random) % many);
    }
    each
}

fn without_host(config: &Config) -> Config {
    let mut one = Config::new();
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config.get_tcp_user_timeout().map(|span| one.tcp_user_timeout(*span));
    one.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    one
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::postgres::settings::read_url;

    #[test]
    fn a_host_alone_has_all_that_the_url_says() {
        let of = |hosts: &str| {
            let url = format!(
                "postgres://me:secret@{hosts}/base?options=-c%20a%3Db&sslmode=require&tcp_user_timeout=7&channel_binding=require&keepalives=0"
            );
            read_url(&url).unwrap()
        };
        assert!(each_host(&of("a:1,b:2,[::1]:3")) == ["a:1", "b:2", "[::1]:3"].map(of));
        let sockets = |hosts: &str| read_url(&format!("postgres://me@{hosts}/base")).unwrap();
        assert!(each_host(&sockets("%2Frun,%2Fvar")) == ["%2Frun", "%2Fvar"].map(sockets));
    }

    #[test]
    fn what_does_not_match_is_left_to_the_library() {
        for url in ["postgres://me@a/base", "host=a,b,c port=1,2 user=me"] {
            let config = read_url(url).unwrap();
            assert!(each_host(&config) == [config]);
        }
    }

    #[tokio::test]
    async fn a_name_is_tried_by_its_addresses_and_keeps_its_name() {
        let host = read_url("postgres://me@localhost:7/base").unwrap();
        let each = each_address(host.clone()).await;
        assert!(each.iter().all(|one| one.get_hosts() == host.get_hosts() && one.get_hostaddrs()[0].is_loopback()));
        assert!(!each.is_empty() && each.iter().all(|one| one.get_hostaddrs().len() == 1));
        let socket = read_url("postgres://me@%2Frun/base").unwrap();
        assert!(each_address(socket.clone()).await == [socket]);
    }
}
