//! Client certificates over TLS: which clients are accepted, and the streams that end when files or names change.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::string::Ia5String;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, SanType, SerialNumber, date_time_ymd};
use rustls::ClientConfig;
use serde_json::{Value, json};
use support::certificates::{self, Authority, Identity};
use support::issuer::{IssuerKey, base64url, key_set};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::TaskTracker;

use super::gate::{ADA, Answer, Ask, BOB, Gate};
use super::tokens::{ISSUER, claims, now};
use super::upstream::in_time;

const AGENTS: &str = "mode = \"certificates\"\n[[auth.certificates]]\nsan = \"spiffe://corp/agents/*\"\n";
const REFUSED: &str = "Unauthorized: connect with a client certificate that this gateway accepts, and send no other client's key or \
                       token beside it; the gateway's operator knows the accepted names";

/// The serial number of a certificate that is revoked at the start.
const REVOKED: u64 = 666;

/// A gateway with TLS that asks its clients for certificates of one authority.
pub(crate) struct CertificateGate {
    pub(crate) gate: Gate,
    pub(crate) authority: Authority,
    folder: TempDir,
}

/// A connection of HTTP/2: it stays open when a request is refused.
struct OpenConnection {
    requests: SendRequest<Full<Bytes>>,
    tracker: TaskTracker,
}

impl CertificateGate {
    /// `need` is `optional` or `required`.
    pub(crate) async fn start(need: &str, auth: &str, upstream: &str) -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        authority.vouch(|_| ()).write(folder.path(), "server");
        certificates::write(folder.path(), "ca.pem", "CERTIFICATE", authority.certificate());
        authority.write_revocations(folder.path(), "crl.pem", &[REVOKED]);
        let at = folder.path().display();
        let listen = format!(
            "public_url = \"https://mcp.example\"\n[listen.tls]\ncertificate = \"{at}/server.pem\"\nkey = \"{at}/server.key\"\n\
             client_ca = \"{at}/ca.pem\"\nclient_crl = \"{at}/crl.pem\"\nclient_certificates = \"{need}\"\n"
        );
        let gate = Gate::of(&listen, auth, upstream).await;
        Self { gate, authority, folder }
    }

    /// The configuration of a client with or without a certificate.
    pub(crate) fn client(&self, identity: Option<&Identity>) -> ClientConfig {
        match identity {
            Some(identity) => self.authority.client_as(identity, &["http/1.1"]),
            None => self.authority.client(&["http/1.1"]),
        }
    }

    async fn connect(&self, config: ClientConfig) -> Result<TlsStream<TcpStream>, String> {
        let socket = TcpStream::connect(self.gate.gateway.address()).await.unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), socket);
        in_time(connecting).await.map_err(|error| error.to_string())
    }

    /// The answer to one request, or why there is no HTTP.
    pub(crate) async fn send(&self, config: ClientConfig, ask: &Ask) -> Result<Answer, String> {
        let mut stream = self.connect(config).await?;
        // With TLS 1.3 the server verifies after the client has begun to send.
        let sent = stream.write_all(&ask.bytes()).await;
        let mut read = Vec::new();
        let ended = in_time(stream.read_to_end(&mut read)).await;
        match (sent, ended) {
            (_, Err(error)) | (Err(error), _) if read.is_empty() => Err(error.to_string()),
            (_, _) => Ok(Answer::of(&read)),
        }
    }

    async fn answer(&self, identity: Option<&Identity>, ask: &Ask) -> Answer {
        self.send(self.client(identity), ask).await.unwrap_or_else(|error| panic!("{error}: {ask:?}"))
    }

    async fn summary(&self, identity: Option<&Identity>, ask: &Ask) -> String {
        self.answer(identity, ask).await.summary()
    }

    async fn open(&self, identity: &Identity) -> OpenConnection {
        let stream = self.connect(self.authority.client_as(identity, &["h2"])).await.unwrap();
        let (requests, connection) = in_time(handshake(TokioExecutor::new(), TokioIo::new(stream))).await.unwrap();
        let tracker = TaskTracker::new();
        tracker.spawn(connection);
        OpenConnection { requests, tracker }
    }
}

impl OpenConnection {
    async fn response(&mut self, ask: &Ask) -> Response<Incoming> {
        let request =
            ask.headers.iter().fold(
                Request::builder(),
                |built, (name, value)| {
                    if name == "Host" { built } else { built.header(name, value) }
                },
            );
        let request = request.method(ask.verb).uri(format!("https://localhost{}", ask.target));
        let request = request.body(Full::new(Bytes::from(ask.body.clone()))).unwrap();
        in_time(self.requests.ready()).await.unwrap();
        in_time(self.requests.send_request(request)).await.unwrap()
    }

    async fn status(&mut self, ask: &Ask) -> StatusCode {
        let response = self.response(ask).await;
        let status = response.status();
        in_time(response.into_body().collect()).await.unwrap();
        status
    }

    /// Repeats a request until its answer has this status.
    async fn comes_to(&mut self, ask: &Ask, status: StatusCode) {
        let repeated = async {
            while self.status(ask).await != status {
                tokio::task::yield_now().await;
            }
        };
        in_time(repeated).await;
    }
}

fn uri(text: &str) -> SanType {
    SanType::URI(Ia5String::try_from(text).unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(Ia5String::try_from(text).unwrap())
}

impl CertificateGate {
    pub(crate) fn named(&self, names: &[SanType]) -> Identity {
        self.authority.vouch(|params| params.subject_alt_names = names.to_vec())
    }

    pub(crate) fn agent(&self, name: &str) -> Identity {
        self.named(&[uri(&format!("spiffe://corp/agents/{name}"))])
    }
}

/// A request without another credential.
fn ping() -> Ask {
    Ask::call("x", "quick", &json!({ "a": 1 })).without("Authorization")
}

fn with(credential: &str) -> Ask {
    Ask::call(credential, "quick", &json!({ "a": 1 }))
}

fn listen(session: &str) -> Ask {
    let mut ask = Ask::session("x", Some(session), "x", &json!({})).without("Authorization").without("Content-Type");
    ask.verb = "GET";
    ask.body = String::new();
    ask
}

#[track_caller]
fn check(name: &str, answer: &Answer, challenge: &str) {
    assert_eq!(answer.status(), "401", "{name}: {answer:?}");
    assert_eq!(answer.header("www-authenticate"), Some(challenge), "{name}");
    assert_eq!(answer.json(), json!({ "jsonrpc": "2.0", "error": { "code": -32600, "message": REFUSED } }), "{name}");
}

/// Certificates with the alert that each of them gets.
fn hostile_identities(at: &CertificateGate) -> Vec<(&'static str, Identity, &'static str)> {
    let name = |params: &mut CertificateParams| params.subject_alt_names = vec![uri("spiffe://corp/agents/ada")];
    let spoilt = |change: fn(&mut CertificateParams)| {
        at.authority.vouch(|params| {
            name(params);
            change(params);
        })
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let mut own = CertificateParams::default();
    name(&mut own);
    own.distinguished_name.push(rcgen::DnType::OrganizationName, "itself");
    let own = Identity { certificate: own.self_signed(&key).unwrap().der().clone(), key };
    vec![
        ("self-signed", own, "UnknownCA"),
        ("of another authority with the same name", Authority::new().vouch(name), "DecryptError"),
        ("expired", spoilt(|params| params.not_after = date_time_ymd(2020, 1, 1)), "CertificateExpired"),
        ("not valid yet", spoilt(|params| params.not_before = date_time_ymd(3000, 1, 1)), "CertificateExpired"),
        (
            "for servers",
            spoilt(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            "UnsupportedCertificate",
        ),
        (
            "an authority",
            spoilt(|params| params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained)),
            "CertificateUnknown",
        ),
        ("revoked", spoilt(|params| params.serial_number = Some(SerialNumber::from(REVOKED))), "CertificateRevoked"),
    ]
}

/// B153: the client gets an alert, and no HTTP.
#[tokio::test]
async fn b153_a_certificate_that_is_not_valid_gets_an_alert_and_no_http() {
    for need in ["required", "optional"] {
        let at = CertificateGate::start(need, AGENTS, "").await;
        let good = at.agent("ada");
        for (name, identity, alert) in hostile_identities(&at) {
            let refused = at.send(at.client(Some(&identity)), &ping()).await.expect_err(name);
            assert_eq!(refused, format!("received fatal alert: {alert}"), "{name}");
        }
        assert_eq!(at.summary(Some(&good), &ping()).await, "200 ok");
        let none = at.send(at.client(None), &ping()).await;
        match need {
            "required" => assert_eq!(none.unwrap_err(), "received fatal alert: CertificateRequired"),
            _ => check("none", &none.unwrap(), "Certificate"),
        }
        assert_eq!(at.gate.server.world.all(|seen| seen.is_call()).len(), 1, "{need}");
    }
}

/// Certificates of the right authority that identify no client.
#[tokio::test]
async fn a_certificate_identifies_its_client_by_one_name_of_the_right_form_alone() {
    let auth = format!("{AGENTS}[[auth.certificates]]\nsan = \"*.agents.corp\"\n");
    let at = CertificateGate::start("required", &auth, "").await;
    let agent = |name: &str| uri(&format!("spiffe://corp/agents/{name}"));
    let many: Vec<_> = (0..65).map(|n| dns(&format!("h{n}.example"))).chain([agent("ada")]).collect();
    for (name, names) in [
        ("no name", vec![]),
        ("another name", vec![uri("spiffe://corp/other/ada")]),
        ("two names that match", vec![agent("ada"), agent("eve")]),
        ("two kinds that match", vec![agent("ada"), dns("ada.agents.corp")]),
        ("a URI among host names", vec![dns("spiffe://corp/agents/ada")]),
        (
            "a URI among e-mail addresses",
            vec![SanType::Rfc822Name(Ia5String::try_from("spiffe://corp/agents/ada").unwrap())],
        ),
        ("another case", vec![uri("SPIFFE://corp/agents/ada")]),
        ("a NUL", vec![agent("a\0da")]),
        ("a line end", vec![agent("ada\r\nX-Admin: 1")]),
        ("an escape sequence", vec![agent("\u{1b}[31mada")]),
        ("a space", vec![agent("ada eve")]),
        ("10 kB", vec![agent(&"a".repeat(10_000))]),
        ("256 bytes", vec![agent(&"a".repeat(256 - "spiffe://corp/agents/".len()))]),
        ("a wildcard", vec![dns("*.agents.corp")]),
        ("a wildcard in a URI", vec![agent("*")]),
        ("an address", vec![SanType::IpAddress([127, 0, 0, 1].into())]),
        ("66 names", many),
    ] {
        check(name, &at.answer(Some(&at.named(&names)), &ping()).await, "Certificate");
    }
    for (name, names) in [
        ("one of two", vec![dns("other.example"), agent("ada")]),
        ("the same twice", vec![agent("ada"), agent("ada")]),
        ("255 bytes", vec![agent(&"a".repeat(255 - "spiffe://corp/agents/".len()))]),
        ("a host in another case", vec![dns("A.Agents.CORP")]),
    ] {
        assert_eq!(at.summary(Some(&at.named(&names)), &ping()).await, "200 ok", "{name}");
    }
    let subject = at.authority.vouch(|params| {
        params.subject_alt_names = Vec::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "spiffe://corp/agents/ada");
    });
    check("a common name", &at.answer(Some(&subject), &ping()).await, "Certificate");
}

/// A header of a proxy is no certificate. B150: two logins are refused, as a key may be the second.
#[tokio::test]
async fn a_header_is_no_certificate_and_a_servers_own_login_passes_beside_one() {
    let at = CertificateGate::start("optional", AGENTS, "forward_authorization = true").await;
    for header in ["X-Forwarded-Client-Cert", "X-SSL-Client-Cert", "SSL-Client-S-DN", "Client-Cert"] {
        let told = ping().with(header, "By=x;URI=spiffe://corp/agents/ada");
        check(header, &at.answer(None, &told).await, "Certificate");
    }
    let ada = at.agent("ada");
    assert_eq!(at.summary(Some(&ada), &ping().with("Authorization", "Bearer theirs")).await, "200 ok");
    assert_eq!(at.summary(Some(&ada), &ping().with("Authorization", &format!("Bearer {ADA}"))).await, "200 ok");
    let twice = ping().with("Authorization", "Bearer theirs").with("Authorization", &format!("Bearer {ADA}"));
    assert_eq!(at.summary(Some(&ada), &twice).await, "400 -32600");
    let calls = at.gate.server.world.all(|seen| seen.is_call());
    let passed: Vec<_> = calls.iter().map(|seen| seen.header("authorization").map(str::to_owned)).collect();
    assert_eq!(passed, [Some("Bearer theirs".to_owned()), None], "what looks like a key goes to no server");
}

/// The name owns the task: a renewed certificate finds it, and one with another name does not.
#[tokio::test]
async fn tasks_and_rules_are_of_a_certificates_name() {
    let auth = "mode = \"certificates\"\ngroups = { readers = [\"cert:spiffe://corp/agents/bob\"] }\n\
                [[auth.certificates]]\nsan = \"spiffe://corp/agents/*\"\ngroups = [\"agents\"]\nscopes = [\"tasks\"]\n\
                [[auth.rules]]\nwho = { ids = [\"cert:spiffe://corp/agents/ada\"] }\nallow = true\n\
                [[auth.rules]]\nwho = { groups = [\"readers\"] }\ntools = [\"quick\"]\nallow = true\n\
                [[auth.rules]]\nwho = { groups = [\"agents\"], scopes = [\"tasks\"] }\ntools = [\"task\"]\nallow = true\n";
    let at = CertificateGate::start("required", auth, "").await;
    let (ada, renewed, bob, eve) = (at.agent("ada"), at.agent("ada"), at.agent("bob"), at.agent("eve"));
    let task = Ask::call("x", "task", &json!({})).without("Authorization");
    let made = at.answer(Some(&ada), &task).await.json();
    let id = made["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let get = |id: &str| Ask::new("x", "tasks/get", json!({ "taskId": id })).without("Authorization");
    assert_eq!(at.answer(Some(&renewed), &get(&id)).await.json()["result"]["taskId"], json!(id));
    let unknown = at.answer(Some(&bob), &get(&"0".repeat(id.len()))).await;
    assert_eq!(at.answer(Some(&bob), &get(&id)).await, unknown, "as one that there never was");
    for (who, quick, slow) in [(&ada, true, true), (&bob, true, true), (&eve, false, true)] {
        for (ask, is_allowed) in [(ping(), quick), (task.clone(), slow)] {
            let answer = at.answer(Some(who), &ask).await;
            assert_eq!(answer.json().get("result").is_some(), is_allowed, "{answer:?}");
        }
    }
}

fn mixed(at: &std::path::Path, more: &str) -> String {
    let keys = at.join("keys.json").display().to_string();
    format!(
        "mode = [\"certificates\", \"tokens\", \"api_keys\"]\n\
         [[auth.certificates]]\nsan = \"spiffe://corp/agents/*\"\nsame_as = \"key:*\"\n\
         [[auth.certificates]]\nsan = \"spiffe://corp/people/*\"\nsame_as = \"jwt:ced4229bf4ad3faa:*\"\n\
         [[auth.certificates]]\nsan = \"spiffe://corp/alone/*\"\n\
         [[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n[[auth.api_keys]]\nid = \"bob\"\nkey = \"{BOB}\"\n\
         [[auth.issuers]]\nissuer = \"{ISSUER}\"\nalgorithms = [\"ES256\"]\njwks_file = \"{keys}\"\n{more}"
    )
}

/// B154: a request never gets the rights of the more powerful one.
#[tokio::test]
async fn b154_a_certificate_and_another_credential_are_one_principals_by_a_written_rule_or_401() {
    let (folder, key) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
    std::fs::write(folder.path().join("keys.json"), key_set([&key])).unwrap();
    let at = CertificateGate::start("optional", &mixed(folder.path(), ""), "").await;
    let named = |name: &str| at.named(&[uri(&format!("spiffe://corp/{name}"))]);
    let token = |subject: &str| key.token(&claims(subject));
    let (agent, person, alone, unknown) =
        (named("agents/ada"), named("people/ada"), named("alone/ada"), named("x/ada"));
    let metadata = "resource_metadata=\"https://mcp.example/.well-known/oauth-protected-resource/mcp\"";
    let (login, invalid) = (format!("Bearer {metadata}"), format!("Bearer error=\"invalid_token\", {metadata}"));
    let own_header = |key: &str| ping().with("X-Taskgate-Key", key);
    for (name, identity, ask) in [
        ("another's key", &agent, with(BOB)),
        ("another's key in the own header", &agent, own_header(BOB)),
        ("a token beside an agent", &agent, with(&token("ada"))),
        ("another's token", &person, with(&token("bob"))),
        ("a key beside a person", &person, with(ADA)),
        ("a key beside one that is alone", &alone, with(ADA)),
        ("a token beside one that is alone", &alone, with(&token("ada"))),
    ] {
        check(name, &at.answer(Some(identity), &ask).await, &invalid);
    }
    for (name, ask) in [("a key beside nobody", with(ADA)), ("a token beside nobody", with(&token("ada")))] {
        check(name, &at.answer(Some(&unknown), &ask).await, &login);
    }
    for (name, ask) in [
        ("an unknown key", with("tg_eve1_a1b2c3d4e5f60718293a4b5c6d7e8f90")),
        ("an expired token", with(&key.token(&support::issuer::with(&claims("ada"), &json!({ "exp": now() - 100 }))))),
        ("another scheme", ping().with("Authorization", "Basic eDp5")),
    ] {
        let answer = at.answer(Some(&agent), &ask).await;
        assert_eq!((answer.status(), answer.header("www-authenticate")), ("401", Some(&*invalid)), "{name}");
    }
    assert_eq!(at.answer(Some(&agent), &ping().at("/mcp?access_token=x")).await.status(), "400");
    assert_eq!(at.answer(Some(&agent), &with(ADA).with("X-Taskgate-Key", ADA)).await.status(), "400");
    for (name, identity, ask) in [
        ("a certificate", Some(&alone), ping()),
        ("a key", None, with(ADA)),
        ("a token", None, with(&token("ada"))),
        ("an agent with its key", Some(&agent), with(ADA)),
        ("an agent with its key in the own header", Some(&agent), own_header(ADA)),
        ("a person with its token", Some(&person), with(&token("ada"))),
    ] {
        assert_eq!(at.summary(identity, &ask).await, "200 ok", "{name}");
    }
    // Certificate and key together are the key's principal; the certificate alone is another one.
    let made = at.answer(Some(&agent), &Ask::call(ADA, "task", &json!({}))).await.json();
    let get = Ask::new(ADA, "tasks/get", json!({ "taskId": made["result"]["taskId"] }));
    assert!(at.answer(None, &get).await.json().get("result").is_some());
    assert!(at.answer(Some(&agent), &get.clone().without("Authorization")).await.json().get("result").is_none());
}

/// The certificate is a condition for keys, and identifies no client.
#[tokio::test]
async fn a_required_certificate_beside_keys_is_a_condition_and_no_credential() {
    let auth = format!("mode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n");
    let at = CertificateGate::start("required", &auth, "").await;
    let any = at.named(&[dns("any.example")]);
    assert_eq!(at.summary(Some(&any), &with(ADA)).await, "200 ok");
    assert_eq!(at.answer(Some(&any), &ping()).await.status(), "401");
    assert_eq!(at.send(at.client(None), &with(ADA)).await.unwrap_err(), "received fatal alert: CertificateRequired");
}

async fn session(connection: &mut OpenConnection) -> String {
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
    });
    let opened = connection.response(&Ask::session("x", None, "initialize", &params).without("Authorization")).await;
    let session = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    in_time(opened.into_body().collect()).await.unwrap();
    session
}

/// Connections stay open: their next request is refused, and their streams end.
#[tokio::test]
async fn a_reload_ends_the_rights_of_a_certificate_and_no_connection() {
    let mut at = CertificateGate::start("required", AGENTS, "").await;
    let ada = at.authority.vouch(|params| {
        params.subject_alt_names = vec![uri("spiffe://corp/agents/ada")];
        params.serial_number = Some(SerialNumber::from(77_u64));
    });
    let bob = at.agent("bob");
    let (mut first, mut other, mut listener) = (at.open(&ada).await, at.open(&bob).await, at.open(&ada).await);
    let id = session(&mut first).await;
    let stream = listener.response(&listen(&id)).await;
    assert_eq!((stream.status(), first.status(&ping()).await), (StatusCode::OK, StatusCode::OK));
    at.gate.reload_with(|_| ()).unwrap();
    assert_eq!(first.status(&ping()).await, StatusCode::OK, "nothing has changed");

    at.authority.write_revocations(at.folder.path(), "crl.pem", &[77]);
    at.gate.reload_with(|_| ()).unwrap();
    first.comes_to(&ping(), StatusCode::UNAUTHORIZED).await;
    in_time(stream.into_body().collect()).await.unwrap();
    assert_eq!(at.send(at.client(Some(&ada)), &ping()).await.unwrap_err(), "received fatal alert: CertificateRevoked");
    assert_eq!(other.status(&ping()).await, StatusCode::OK, "another's connection goes on");

    // A list that cannot be read is not put in force: the one in use stays (B170).
    std::fs::write(at.folder.path().join("crl.pem"), "nonsense").unwrap();
    at.gate.reload_with(|_| ()).unwrap();
    assert_eq!((first.status(&ping()).await, other.status(&ping()).await), (StatusCode::UNAUTHORIZED, StatusCode::OK));
    at.authority.write_revocations(at.folder.path(), "crl.pem", &[]);
    at.gate.reload_with(|_| ()).unwrap();
    let again = async { while at.send(at.client(Some(&ada)), &ping()).await.is_err() {} };
    in_time(again).await;
    assert_eq!(first.status(&ping()).await, StatusCode::OK);

    // With another authority, clients of both authorities are checked again.
    let successor = Authority::new();
    certificates::write(at.folder.path(), "ca.pem", "CERTIFICATE", successor.certificate());
    successor.write_revocations(at.folder.path(), "crl.pem", &[]);
    at.gate.reload_with(|_| ()).unwrap();
    other.comes_to(&ping(), StatusCode::UNAUTHORIZED).await;
    let newcomer = successor.vouch(|params| params.subject_alt_names = vec![uri("spiffe://corp/agents/ada")]);
    assert_eq!(at.summary(Some(&newcomer), &ping()).await, "200 ok");
    let ends = [first, other, listener].map(|connection| connection.tracker);
    assert!(ends.iter().all(|tracker| tracker.len() == 1), "no connection was dropped");
}

#[tokio::test]
async fn names_that_a_reload_removes_lose_their_rights_at_the_next_request() {
    let mut at = CertificateGate::start("required", AGENTS, "").await;
    let ada = at.agent("ada");
    let (mut first, mut listener) = (at.open(&ada).await, at.open(&ada).await);
    let id = session(&mut first).await;
    let stream = listener.response(&listen(&id)).await;
    let others = config("mode = \"certificates\"\n[[auth.certificates]]\nsan = \"spiffe://corp/people/*\"\n");
    let before = config(AGENTS);
    at.gate.reload_with(|config| config.auth = others.auth.clone()).unwrap();
    assert_eq!(first.status(&ping()).await, StatusCode::UNAUTHORIZED);
    in_time(stream.into_body().collect()).await.unwrap();
    at.gate.reload_with(|config| config.auth = before.auth.clone()).unwrap();
    assert_eq!(first.status(&ping()).await, StatusCode::OK, "on the same connection");
}

fn config(auth: &str) -> taskgate::config::Config {
    let text = format!(
        "[listen.tls]\ncertificate = \"a\"\nkey = \"a\"\nclient_ca = \"a\"\n[auth]\n{auth}[upstreams.up]\nurl = \"http://127.0.0.1:1/\"\n"
    );
    taskgate::config::parse("test.toml", &text, &|_| None).unwrap().config
}

/// The certificate's streams end when it expires, and its open connection serves no further request.
#[tokio::test]
async fn the_streams_and_connections_of_a_certificate_end_when_it_expires() {
    let at = CertificateGate::start("required", AGENTS, "").await;
    // A busy machine has time to open the streams that end with it.
    let soon = date_time_ymd(1970, 1, 1) + Duration::from_secs(now() + 10);
    let ada = at.authority.vouch(|params| {
        params.subject_alt_names = vec![uri("spiffe://corp/agents/ada")];
        params.not_after = soon;
    });
    let (mut first, mut listener) = (at.open(&ada).await, at.open(&ada).await);
    let id = session(&mut first).await;
    let stream = listener.response(&listen(&id)).await;
    assert_eq!(stream.status(), StatusCode::OK);
    in_time(stream.into_body().collect()).await.unwrap();
    first.comes_to(&ping(), StatusCode::UNAUTHORIZED).await;
    // TLS counts whole seconds.
    let refused = async {
        loop {
            match at.send(at.client(Some(&ada)), &ping()).await {
                Ok(answer) => assert_eq!(answer.status(), "401"),
                Err(error) => return error,
            }
        }
    };
    assert_eq!(in_time(refused).await, "received fatal alert: CertificateExpired");
}

/// A stolen token is refused on a connection with another certificate, and a certificate gives other tokens no further rights.
#[tokio::test]
async fn b193_a_bound_token_is_of_use_on_connections_with_its_certificate_alone() {
    let (folder, key) = (tempfile::tempdir().unwrap(), IssuerKey::es256("k1"));
    let file = folder.path().join("keys.json");
    std::fs::write(&file, key_set([&key])).unwrap();
    let tokens = format!(
        "mode = \"tokens\"\n[[auth.issuers]]\nissuer = \"{ISSUER}\"\nalgorithms = [\"ES256\"]\njwks_file = \"{}\"\n",
        file.display()
    );
    for (auth, is_mixed) in [(tokens, false), (mixed(folder.path(), ""), true)] {
        let at = CertificateGate::start("optional", &auth, "").await;
        // In the mixed mode, no principal has the first certificate's name, and another principal has the second's.
        let (own, other) = (at.named(&[dns("own.example")]), at.agent("ada"));
        let thumbprint = |identity: &Identity| base64url(digest(&SHA256, &identity.certificate));
        let bound = |cnf: Value| key.token(&support::issuer::with(&claims("ada"), &json!({ "cnf": cnf })));
        let good = bound(json!({ "x5t#S256": thumbprint(&own) }));
        let good_of_other = bound(json!({ "x5t#S256": thumbprint(&other) }));
        for (name, identity, token) in [
            ("no certificate", None, good.clone()),
            ("another certificate", Some(&other), good.clone()),
            ("a digest with padding", Some(&own), bound(json!({ "x5t#S256": format!("{}=", thumbprint(&own)) }))),
            ("a digest that is cut", Some(&own), bound(json!({ "x5t#S256": thumbprint(&own)[1..] }))),
            ("the digest of SHA-1", Some(&own), bound(json!({ "x5t": thumbprint(&own) }))),
            ("a number", Some(&own), bound(json!({ "x5t#S256": 7 }))),
            ("nothing", Some(&own), bound(json!({}))),
            ("a text", Some(&own), bound(json!(thumbprint(&own)))),
            ("one more condition", Some(&own), bound(json!({ "x5t#S256": thumbprint(&own), "kid": "k" }))),
            ("a key", Some(&own), bound(json!({ "jkt": thumbprint(&own) }))),
        ] {
            let answer = at.answer(identity, &with(&token)).await;
            assert_eq!(answer.status(), "401", "{name}: {answer:?}");
            assert!(
                answer.header("www-authenticate").unwrap().starts_with("Bearer error=\"invalid_token\", "),
                "{name}"
            );
        }
        assert_eq!(at.summary(Some(&own), &with(&good)).await, "200 ok");
        assert_eq!(at.summary(Some(&other), &with(&good_of_other)).await, "200 ok");
        let unbound = at.answer(Some(&own), &with(&key.token(&claims("ada")))).await;
        assert_eq!(unbound.status(), if is_mixed { "401" } else { "200" });
        let mut ask = ping().at("/.well-known/oauth-protected-resource/mcp");
        ask.verb = "GET";
        ask.body = String::new();
        assert_eq!(at.answer(None, &ask).await.json()["tls_client_certificate_bound_access_tokens"], json!(true));
    }
}
