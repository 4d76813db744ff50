//! TLS towards upstreams, over real sockets.

mod proxied;
mod reuse;

use std::convert::Infallible;

use http_body_util::Empty;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::*;
use crate::upstream::ClientCredential;
use crate::upstream::outgoing::SessionHeaders;

const CONNECT_MAX: Duration = Duration::from_secs(1);

/// A private authority, and the TLS settings of a server that it certifies under one name.
fn vouched_for(name: &str) -> (CertificateDer<'static>, rustls::ServerConfig) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (authority.der().clone(), config)
}

/// Serves empty responses over TLS until the runtime ends.
async fn serve(config: rustls::ServerConfig) -> url::Url {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/mcp", listener.local_addr().unwrap().port()).parse().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    TaskTracker::new().spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) });
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        }
    });
    url
}

fn trusting(authority: CertificateDer<'static>) -> ClientTls {
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    ClientTls { roots: Some(roots), ..ClientTls::default() }
}

async fn post(url: &url::Url, tls: ClientTls) -> Result<Version, GatewayFault> {
    post_within(Duration::from_secs(15), url, tls).await
}

async fn post_within(connect_max: Duration, url: &url::Url, tls: ClientTls) -> Result<Version, GatewayFault> {
    let client = HttpClient::new(&Arc::from("reports"), url, connect_max, tls, &ProxySettings::Direct).unwrap();
    let outgoing = SessionHeaders::default().post(Bytes::from_static(b"{}"));
    let handed_over = HandedOver::default();
    let answer = tokio::time::timeout(Duration::from_secs(20), client.send(&outgoing, &handed_over)).await.unwrap();
    answer.map(|response| response.version())
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_named_and_http_2_agreed_on() {
    let (authority, config) = vouched_for("localhost");
    let url = serve(config).await;
    assert_eq!(post(&url, trusting(authority)).await, Ok(Version::HTTP_2));
}

#[tokio::test]
async fn a_certificate_that_cannot_be_trusted_sends_nothing() {
    let refused = GatewayFault::new(Reason::UpstreamTls, Executed::No);
    let (other_authority, _) = vouched_for("localhost");
    let (authority, config) = vouched_for("localhost");
    assert_eq!(post(&serve(config).await, trusting(other_authority)).await, Err(refused), "U42: unknown authority");
    drop(authority);
    let (authority, config) = vouched_for("elsewhere");
    assert_eq!(post(&serve(config).await, trusting(authority)).await, Err(refused), "U42: another name");
}

#[tokio::test]
async fn a_peer_that_is_silent_before_the_connection_is_there_is_unreachable() {
    let (authority, _) = vouched_for("localhost");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/mcp", listener.local_addr().unwrap().port()).parse().unwrap();
    // So long that a slow machine does not look like a second try.
    let connect_max = 5 * CONNECT_MAX;
    let began = tokio::time::Instant::now();
    let fault = GatewayFault::new(Reason::UpstreamUnreachable, Executed::No);
    assert_eq!(post_within(connect_max, &url, trusting(authority)).await, Err(fault), "F27");
    assert!(began.elapsed() < 2 * connect_max, "the limit holds for all tries together");
}

#[tokio::test]
async fn sec_90_a_limit_without_a_clients_own_credential_concerns_the_server() {
    let url = "http://127.0.0.1:1/mcp".parse().unwrap();
    let direct = ProxySettings::Direct;
    let client = HttpClient::new(&Arc::from("reports"), &url, CONNECT_MAX, ClientTls::default(), &direct).unwrap();
    let limited = Response::builder().status(429).body(Empty::<Bytes>::new()).unwrap();
    let of = |client| SessionHeaders { client, ..SessionHeaders::default() }.post(Bytes::from_static(b"{}"));
    client.note_failure(&of(ClientCredential::sent(Some(&HeaderValue::from_static("Bearer a")))), &limited);
    assert!(client.health.last().is_none(), "it is this client's limit");
    client.note_failure(&of(ClientCredential::sent(None)), &limited);
    assert_eq!(client.health.last().unwrap().reason, Reason::UpstreamHttpStatus, "no credential");
    assert!(!limits_one_client(&of(ClientCredential::default()), &limited), "the gateway's own credential");
}

/// F27: a port with a full queue answers no packet, as a black hole does.
#[tokio::test]
async fn f27_an_unanswered_connect_ends_at_its_limit_and_nothing_was_sent() {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    let is_full = loop {
        match tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
            Ok(stream) => waiting.push(stream.unwrap()),
            Err(_) => break true,
        }
        if waiting.len() > 64 {
            break false;
        }
    };
    assert!(is_full, "the queue has an end");
    let url = format!("http://{address}/mcp").parse().unwrap();
    let (began, fault) = (tokio::time::Instant::now(), GatewayFault::new(Reason::UpstreamUnreachable, Executed::No));
    assert_eq!(post_within(CONNECT_MAX, &url, ClientTls::default()).await, Err(fault));
    assert!(began.elapsed() >= CONNECT_MAX, "it was waited for");
    drop((listener, waiting));
}
