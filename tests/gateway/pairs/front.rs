//! The gateways between clients and servers: one, or two on one store behind a balancer.

use http::Request;
use http_body_util::Full;
use support::balancer::{BalancedGateways, BalancerMode};
use support::replicas::client_at;
use support::wire_client::send;
use taskgate::app::Gateway;

use super::client::{Client, TestGateway};

#[derive(Clone, Copy, Debug)]
pub(crate) enum FrontKind {
    OneGateway,
    Balanced(BalancerMode),
}

/// Ends when dropped.
pub(crate) enum Front {
    One(Box<TestGateway>),
    Balanced(BalancedGateways),
}

impl Front {
    /// In front of the server at `url`; `keys` stand in the upstream's section.
    pub(crate) async fn before(kind: FrontKind, url: &str, keys: &str) -> Self {
        match kind {
            FrontKind::OneGateway => Self::One(Box::new(TestGateway::open("", url, keys).await)),
            FrontKind::Balanced(mode) => {
                let served = format!("[upstreams.up]\nurl = \"{url}\"\npath = \"/mcp\"\n{keys}\n");
                Self::Balanced(BalancedGateways::serving(mode, &served).await)
            }
        }
    }

    /// A client without a session, as clients come.
    pub(crate) fn client_without_session(&self) -> Client {
        match self {
            Self::One(gate) => gate.client_without_session(),
            Self::Balanced(gateways) => client_at(gateways.address()),
        }
    }

    /// That each gateway had its share of the requests.
    pub(crate) fn check_shares(&self) -> Result<(), String> {
        match self {
            Self::One(_) => Ok(()),
            Self::Balanced(gateways) => gateways.check_shares(),
        }
    }

    pub(crate) fn gateways(&self) -> Vec<&Gateway> {
        match self {
            Self::One(gate) => vec![&gate.gateway],
            Self::Balanced(gateways) => gateways.replicas.all.iter().map(|one| &one.gateway).collect(),
        }
    }

    /// A client at each gateway, past the balancer: each gateway has places of its own at the server.
    pub(crate) fn one_at_each(&self) -> Vec<Client> {
        match self {
            Self::One(gate) => vec![gate.client_without_session()],
            Self::Balanced(gateways) => {
                (0..gateways.replicas.all.len()).map(|at| gateways.replicas.client_without_session(at)).collect()
            }
        }
    }
}

/// The number of calls that gateways hold at one upstream for clients without tasks, with the calls that wait for a permit.
pub(crate) async fn held_calls(gateways: &[&Gateway], upstream: &str) -> usize {
    let mut held = 0;
    for gateway in gateways {
        let request = Request::get("/calls").header("host", "localhost").body(Full::default()).unwrap();
        let listed = send(gateway.admin_address(), request).await.json();
        let calls = listed["calls"].as_array().unwrap_or_else(|| panic!("no list: {listed}"));
        held += calls.iter().filter(|call| call["upstream"] == upstream).count();
    }
    held
}
