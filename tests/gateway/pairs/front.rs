//! What stands between clients and servers: one gateway, or two on one store behind a balancer.

use std::sync::Arc;

use support::balancer::{Balancer, BalancerMode};
use support::replicas::{Replicas, client_at};
use taskgate::task::SystemClock;

use super::client::{Client, TestGateway};

const GATEWAYS: usize = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) enum FrontKind {
    OneGateway,
    Balanced(BalancerMode),
}

/// Ends when dropped.
pub(crate) enum Front {
    One(Box<TestGateway>),
    Balanced(Replicas<SystemClock>, Balancer),
}

impl Front {
    /// In front of the server at `url`; `keys` stand in the upstream's section.
    pub(crate) async fn before(kind: FrontKind, url: &str, keys: &str) -> Self {
        match kind {
            FrontKind::OneGateway => Self::One(Box::new(TestGateway::open("", url, keys).await)),
            FrontKind::Balanced(mode) => {
                let served = format!("[upstreams.up]\nurl = \"{url}\"\npath = \"/mcp\"\n{keys}\n");
                let replicas = Replicas::going_by(Arc::new(SystemClock), GATEWAYS, &served, &[]).await;
                let addresses = replicas.all.iter().map(|one| one.gateway.address()).collect();
                Self::Balanced(replicas, Balancer::before(addresses, mode).await)
            }
        }
    }

    /// A client without a session, as clients come.
    pub(crate) fn stranger(&self) -> Client {
        match self {
            Self::One(gate) => gate.stranger(),
            Self::Balanced(_, balancer) => client_at(balancer.address),
        }
    }

    /// That each gateway had its share of what the balancer took, where it takes requests in turn.
    pub(crate) fn check_shares(&self) -> Result<(), String> {
        let Self::Balanced(_, balancer) = self else { return Ok(()) };
        let sent = balancer.sent();
        match (balancer.mode(), sent.iter().max(), sent.iter().min()) {
            (BalancerMode::InTurn, Some(most), Some(least)) if most - least > 1 => Err(format!("no turns: {sent:?}")),
            _ => Ok(()),
        }
    }

    /// A client at each gateway, past the balancer: each gateway has places of its own at the server.
    pub(crate) fn one_at_each(&self) -> Vec<Client> {
        match self {
            Self::One(gate) => vec![gate.stranger()],
            Self::Balanced(replicas, _) => (0..GATEWAYS).map(|at| replicas.stranger(at)).collect(),
        }
    }
}
