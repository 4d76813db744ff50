//! Declares the keys of the listeners: `[listen]`, `[admin]` and `[metrics]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use url::Url;

use super::super::keys::keys;
use super::super::value::{ADDRESS, ADDRESS_RANGE, HOST, KEY_FILE, ORIGIN, PEM_FILE, PUBLIC_URL, WordList};
use crate::server::forwarded::AddressRange;
use crate::task::OperatorRight;
use crate::tls::CertificateNeed;

const NEEDS: WordList<CertificateNeed> =
    &[("optional", Some(CertificateNeed::Optional)), ("required", Some(CertificateNeed::Required))];
const RIGHTS: WordList<OperatorRight> = &[("read", Some(OperatorRight::Read)), ("act", Some(OperatorRight::Act))];

keys! {
    /// `[listen]`
    struct RawListen {
        /// Where clients connect. Port 0 picks a free port, which is logged and printed. An address that other machines
        /// can reach needs `[auth]` (`mode = "api_keys"` or `anonymous = true`).
        restart address: SocketAddr = read(&ADDRESS), default "127.0.0.1:8080";
        /// `true` allows API keys without TLS on an address that other machines can reach, for a TLS proxy in front. No
        /// effect on loopback or beside `[listen.tls]`.
        reload plaintext: bool = flag(), default false;
        /// Values of `Host` that are served besides loopback, the bound address and the names of the certificate. Any
        /// other `Host` gets 403, unless the request has an API key. On loopback without keys, a name here means that
        /// requests come through a proxy: every client is then served as with `anonymous = true`.
        reload allowed_hosts: Vec<String> = read_all(&HOST), default [], bounds "no port, no wildcard";
        /// Web pages that may call and read answers (CORS, preflights included) besides loopback pages (on a loopback
        /// listener) and pages of the requested host itself. Any other `Origin` is answered 403. A request without
        /// `Origin` is served.
        reload allowed_origins: Vec<String> = read_all(&ORIGIN), default [], bounds "no path, no wildcard";
        /// How clients reach the gateway if not at `address`, as behind a proxy that ends TLS. Its host is served like
        /// one of `allowed_hosts`, its origin like one of `allowed_origins`, and `serve` prints it. On loopback without
        /// keys every client is then served as with `anonymous = true`.
        reload public_url: Url = read(&PUBLIC_URL), bounds "http or https, no path";
        /// Proxies with a trusted `Forwarded`, or `X-Forwarded-For`, `-Host` and `-Proto`: for the address by which
        /// requests of anonymous clients are counted, for the log, and for the check of the gateway's own pages. These
        /// headers of other peers are ignored. On loopback without keys every client is then served as with `anonymous
        /// = true`.
        reload trusted_proxies: Vec<AddressRange> = read_all(&ADDRESS_RANGE), default [], bounds "no host name";
    }
}

keys! {
    /// `[listen.tls]`
    struct RawListenTls {
        /// PEM file: the server's certificate first, then the authorities below the root. Needs `key`.
        restart certificate: PathBuf = require(&PEM_FILE);
        /// PEM file with the private key, not encrypted. Needs `certificate`.
        restart key: PathBuf = require(&PEM_FILE);
        /// PEM file of the authorities that certify clients. With it clients are asked for a
        /// [certificate](docs/login.md#client-certificates). Behind a proxy that ends TLS this has no effect.
        restart client_ca: PathBuf = read(&PEM_FILE), shown "clients are asked for no certificate";
        /// PEM file with the revocation lists of these authorities. With it a certificate is refused if its authority has
        /// no list here.
        restart client_crl: PathBuf = read(&PEM_FILE);
        /// `"required"`: a client without a certificate of `client_ca` gets no connection. `"optional"`: it gets one, and
        /// needs another credential. A certificate of another authority gets no connection in both cases.
        restart client_certificates: CertificateNeed = word(NEEDS), default "optional";
    }
}

keys! {
    /// `[admin]`
    struct RawAdmin {
        /// Where operators connect. On loopback no token is needed unless one is configured below; an address that
        /// other machines can reach needs one. The connection is not encrypted.
        restart address: SocketAddr = read(&ADDRESS), default "127.0.0.1:9090";
    }
}

keys! {
    /// The token of one operator: `[[admin.tokens]]`
    struct RawAdminToken {
        /// A file with one token and nothing else, written like an API key: `tg_ID_SECRET` with at least 128 bits.
        /// Operators send it as `Authorization: Bearer …`; `taskgate tasks`, `replicas` and `health` take it from
        /// `TASKGATE_ADMIN_TOKEN`. With tokens any `Host` is served.
        reload file: PathBuf = require(&KEY_FILE), bounds "owner alone";
        /// `"read"` reads everything on the admin listener; `"act"` also cancels tasks and forgets dead replicas.
        reload may: OperatorRight = word(RIGHTS), default "read";
    }
}

keys! {
    /// `[metrics]`
    struct RawMetrics {
        /// A listener with `/metrics`, `/healthz` and `/readyz` alone: GET and HEAD, any `Host`, no credentials. A
        /// request with an `Origin` is answered 403. None unless written.
        restart address: SocketAddr = read(&ADDRESS);
    }
}
