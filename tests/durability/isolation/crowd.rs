//! Principals of four kinds with equal names, and the configuration that distinguishes them.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rcgen::SanType;
use rcgen::string::Ia5String;
use rustls::ClientConfig;
use serde_json::{Value, json};
use support::certificates::{self, Authority};
use support::hostile_twin;
use support::issuer::{IssuerKey, key_set};
use support::scripted::{ScriptedServer, in_time};
use taskgate::task::{Clock as _, SystemClock};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

/// The number of names of each kind: a thousand principals have them at a server's own path.
pub(crate) const NAMES: usize = 250;
/// The number at an endpoint and at two gateways, unless `PRINCIPAL_NAMES` is set: a connection for each principal takes most of the time.
pub(crate) const FEW_NAMES: usize = 50;
pub(crate) const KINDS: usize = 4;
const ISSUERS: [&str; 2] = ["https://login.example", "https://other.example"];
const AUDIENCE: &str = "https://mcp.example/mcp";

/// One principal, with its kind of credential.
pub(crate) struct Person {
    /// Persons with the same name differ in their kind: a key, a token of either issuer, a certificate.
    pub(crate) name: String,
    credential: Option<String>,
    tls: Arc<ClientConfig>,
}

pub(crate) struct Crowd {
    pub(crate) people: Vec<Person>,
    folder: TempDir,
    /// The section of the server.
    section: String,
    _hostile: Option<ScriptedServer>,
}

pub(crate) struct PersonConnection<'p> {
    person: &'p Person,
    requests: SendRequest<Full<Bytes>>,
}

/// An answer, without the time of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

fn key_of(name: usize) -> String {
    let secret = taskgate::task::digest::hex(&taskgate::task::digest::digest([&name.to_be_bytes()]).0);
    format!("tg_u{name:03}_{}", &secret[..32])
}

impl Crowd {
    pub(crate) async fn before(server: &ScriptedServer, names: usize) -> Self {
        let names =
            std::env::var("PRINCIPAL_NAMES").map_or(names, |names| names.parse().expect("PRINCIPAL_NAMES is a number"));
        let (section, _hostile) = hostile_twin::section("up", "/mcp", server.url().as_str()).await;
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        let issuers = ISSUERS.map(|_| IssuerKey::es256("k1"));
        authority.vouch(|_| ()).write(folder.path(), "server");
        certificates::write(folder.path(), "ca.pem", "CERTIFICATE", authority.certificate());
        for (at, key) in issuers.iter().enumerate() {
            fs::write(folder.path().join(format!("keys{at}.json")), key_set([key])).unwrap();
        }
        let end = SystemClock.now().as_millis() / 1_000 + 3_600;
        let nameless = Arc::new(authority.client(&["http/1.1"]));
        let people = (0..names * KINDS).map(|nth| {
            let (kind, at) = (nth % KINDS, nth / KINDS);
            let name = format!("u{at:03}");
            let token = |issuer: usize| {
                let claims = json!({ "iss": ISSUERS[issuer], "sub": name, "aud": AUDIENCE, "exp": end });
                Some(issuers[issuer].token(&claims))
            };
            let (credential, tls) = match kind {
                0 => (Some(key_of(at)), Arc::clone(&nameless)),
                1 => (token(0), Arc::clone(&nameless)),
                2 => (token(1), Arc::clone(&nameless)),
                _ => {
                    let san = SanType::URI(Ia5String::try_from(format!("spiffe://corp/{name}")).unwrap());
                    let own = authority.vouch(|params| params.subject_alt_names = vec![san]);
                    (None, Arc::new(authority.client_as(&own, &["http/1.1"])))
                }
            };
            Person { name, credential, tls }
        });
        Self { people: people.collect(), folder, section, _hostile }
    }

    /// Keys of `[listen]`.
    pub(crate) const LISTEN: &str = "public_url = \"https://mcp.example\"\n";

    /// The sections of a gateway in front of the server other than `[listen]`. `of_keys` has further members of each key's block.
    pub(crate) fn sections(&self, of_keys: &str) -> String {
        let at = self.folder.path().display();
        let mut text = format!(
            "[listen.tls]\ncertificate = \"{at}/server.pem\"\nkey = \"{at}/server.key\"\nclient_ca = \"{at}/ca.pem\"\n\
             [auth]\nmode = [\"tokens\", \"api_keys\", \"certificates\"]\n\
             [[auth.certificates]]\nsan = \"spiffe://corp/*\"\n"
        );
        for (nth, issuer) in ISSUERS.iter().enumerate() {
            write!(
                text,
                "[[auth.issuers]]\nissuer = \"{issuer}\"\nalgorithms = [\"ES256\"]\njwks_file = \"{at}/keys{nth}.json\"\n"
            )
            .unwrap();
        }
        for name in 0..self.people.len() / KINDS {
            let key = key_of(name);
            write!(text, "[[auth.api_keys]]\nid = \"u{name:03}\"\nkey = \"{key}\"\n{of_keys}\n").unwrap();
        }
        let section = &self.section;
        write!(text, "{section}in_flight_max = 1_800\n[upstreams.up.tasks]\nmode = \"always\"\n").unwrap();
        text
    }
}

impl Person {
    pub(crate) async fn connect(&self, address: SocketAddr) -> PersonConnection<'_> {
        let socket = in_time(TcpStream::connect(address)).await.unwrap();
        let connecting = TlsConnector::from(Arc::clone(&self.tls)).connect("localhost".try_into().unwrap(), socket);
        let stream = in_time(connecting).await.unwrap();
        let (requests, connection) = in_time(handshake(TokioIo::new(stream))).await.unwrap();
        TaskTracker::new().spawn(connection);
        PersonConnection { person: self, requests }
    }
}

impl PersonConnection<'_> {
    /// A request of 2026-07-28 by a client with tasks.
    pub(crate) async fn ask(&mut self, method: &str, mut params: Value) -> Answer {
        let response = self.open(method, &mut params).await;
        read(response).await
    }

    /// Sends a request whose answer does not end.
    pub(crate) async fn open(&mut self, method: &str, params: &mut Value) -> http::Response<Incoming> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities":
                { "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } },
        });
        let name = ["name", "taskId"].into_iter().find_map(|name| params[name].as_str());
        let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
        headers.extend(name.map(|name| ("mcp-name", name)));
        let headers: Vec<_> = headers.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        self.send(&headers, method, params).await
    }

    /// A request of 2025-11-25.
    pub(crate) async fn in_session(&mut self, session: Option<&str>, method: &str, params: Value) -> Answer {
        let headers: Vec<_> = session.iter().map(|id| ("mcp-session-id", (*id).to_owned())).collect();
        let response = self.send(&headers, method, &params).await;
        read(response).await
    }

    async fn send(&mut self, headers: &[(&str, String)], method: &str, params: &Value) -> http::Response<Incoming> {
        let request = Request::post("/mcp").header("host", "localhost").header("content-type", "application/json");
        let mut request = request.header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(credential) = &self.person.credential {
            request = request.header("authorization", format!("Bearer {credential}"));
        }
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string();
        in_time(self.requests.ready()).await.unwrap();
        let request = hostile_twin::addressed(request.body(Full::new(Bytes::from(body))).unwrap(), "up").await;
        in_time(self.requests.send_request(request)).await.unwrap()
    }
}

async fn read(response: http::Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let text = in_time(body.collect()).await.unwrap().to_bytes();
    let headers = head.headers.iter().filter(|(name, _)| *name != "date");
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    Answer { status: head.status.as_u16(), headers: headers.collect(), body: String::from_utf8(text.to_vec()).unwrap() }
}
