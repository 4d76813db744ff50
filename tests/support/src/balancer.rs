//! A balancer in front of several gateways, which forwards each request to one of them and streams both bodies; two
//! gateways behind one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use taskgate::task::SystemClock;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::replicas::Replicas;

const SESSION: &str = "mcp-session-id";

/// Where a request is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalancerMode {
    /// Each request to the next gateway.
    InTurn,
    /// One of a session to the gateway that began it; others to one gateway for each connection.
    Affine,
}

/// Two gateways on one store, by the system's clock. They end when dropped.
pub struct BalancedGateways {
    pub replicas: Replicas<SystemClock>,
    balancer: Balancer,
}

impl BalancedGateways {
    /// `served` begins within the section of the listener.
    pub async fn serving(mode: BalancerMode, served: &str) -> Self {
        let replicas = Replicas::with_clock(Arc::new(SystemClock), 2, served, &[]).await;
        let addresses = replicas.all.iter().map(|one| one.gateway.address()).collect();
        Self { replicas, balancer: Balancer::before(addresses, mode).await }
    }

    /// Where clients come to.
    pub fn address(&self) -> SocketAddr {
        self.balancer.address
    }

    /// Checks that each gateway got its share of the requests, if the balancer takes turns.
    pub fn check_shares(&self) -> Result<(), String> {
        let sent = self.balancer.sent();
        let is_fair = self.balancer.routes.mode == BalancerMode::Affine || sent[0].abs_diff(sent[1]) <= 1;
        if is_fair { Ok(()) } else { Err(format!("no turns: the gateways were sent {sent:?} requests")) }
    }
}

/// Ends when dropped, with its connections.
#[derive(Debug)]
pub struct Balancer {
    pub address: SocketAddr,
    routes: Arc<Routes>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
struct Routes {
    mode: BalancerMode,
    gateways: Vec<SocketAddr>,
    /// Of requests, or of connections, as the mode has it.
    turn: AtomicUsize,
    /// Which gateway began a session.
    homes: Mutex<HashMap<String, usize>>,
    /// How many requests each gateway was sent.
    sent: Vec<AtomicUsize>,
    client: Client<HttpConnector, Incoming>,
}

impl Balancer {
    pub async fn before(gateways: Vec<SocketAddr>, mode: BalancerMode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sent = gateways.iter().map(|_| AtomicUsize::default()).collect();
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (turn, homes) = (AtomicUsize::default(), Mutex::default());
        let routes = Arc::new(Routes { mode, gateways, turn, homes, sent, client });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&routes)));
        Self { address, routes, _accepting: accepting }
    }

    /// How many requests each gateway was sent.
    pub fn sent(&self) -> Vec<usize> {
        self.routes.sent.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

async fn accept(listener: TcpListener, routes: Arc<Routes>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let own = if routes.mode == BalancerMode::Affine { routes.next() } else { 0 };
        let routes = Arc::clone(&routes);
        let service = service_fn(move |request| {
            let routes = Arc::clone(&routes);
            async move { Ok::<_, Infallible>(routes.take(request, own).await) }
        });
        connections.spawn(async move {
            // How a connection ends says nothing: clients leave on purpose.
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

impl Routes {
    fn next(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed) % self.gateways.len()
    }

    /// `own` is the gateway of the connection, where connections have one.
    fn choose(&self, headers: &HeaderMap, own: usize) -> usize {
        match self.mode {
            BalancerMode::InTurn => self.next(),
            BalancerMode::Affine => {
                let home = session(headers).and_then(|id| self.homes.lock().get(id).copied());
                home.unwrap_or(own)
            }
        }
    }

    async fn take(&self, mut request: Request<Incoming>, own: usize) -> Response<BoxBody<Bytes, hyper::Error>> {
        let chosen = self.choose(request.headers(), own);
        self.sent[chosen].fetch_add(1, Ordering::Relaxed);
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let uri = Uri::builder().scheme("http").authority(self.gateways[chosen].to_string()).path_and_query(target);
        *request.uri_mut() = uri.build().unwrap();
        *request.version_mut() = Version::HTTP_11;
        end_hop(request.headers_mut());
        let Ok(mut response) = self.client.request(request).await else {
            let mut refusal = Response::new(Empty::new().map_err(|never| match never {}).boxed());
            *refusal.status_mut() = StatusCode::BAD_GATEWAY;
            return refusal;
        };
        if let Some(id) = session(response.headers()) {
            self.homes.lock().entry(id.to_owned()).or_insert(chosen);
        }
        end_hop(response.headers_mut());
        *response.version_mut() = Version::default();
        response.map(|body| body.boxed())
    }
}

fn session(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION)?.to_str().ok()
}

/// Removes the headers of a single connection.
fn end_hop(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::{Balancer, BalancerMode};
    use crate::replicas::client_at;
    use crate::scripted::ScriptedServer;
    use crate::session_client::call;

    /// How many requests of one session each of two servers was sent. Each request has a connection of its own.
    async fn sent(mode: BalancerMode) -> Vec<usize> {
        let servers = join_all([ScriptedServer::polite(), ScriptedServer::polite()]).await;
        let balancer = Balancer::before(servers.iter().map(|server| server.address).collect(), mode).await;
        let client = client_at(balancer.address).opened("2025-11-25").await;
        for n in 1..=5 {
            // The other server may refuse a session that it did not begin.
            client.post(call(n)).await;
        }
        let seen: Vec<_> = servers.iter().map(|server| server.world.all(|_| true).len()).collect();
        assert_eq!(balancer.sent(), seen);
        seen
    }

    #[tokio::test]
    async fn requests_go_to_the_gateways_in_turn() {
        assert_eq!(sent(BalancerMode::InTurn).await, [3, 3]);
    }

    #[tokio::test]
    async fn a_session_stays_where_it_began() {
        assert_eq!(sent(BalancerMode::Affine).await, [6, 0]);
    }
}
