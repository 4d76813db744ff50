//! Describes for operators why an upstream over HTTP fails. No text holds a credential.

use std::error::Error;
use std::io;

use http::header::{CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use http::{Method, Response, StatusCode};
use hyper::body::Body;
use url::Url;

use crate::task::Reason;
use crate::tls;
use crate::upstream::answer_body::BodyKind;
use crate::upstream::breaker::AnswerHealth;
use crate::upstream::outgoing::OutgoingRequest;
use crate::upstream::reply;
use crate::upstream::upstream_health::UpstreamFailure;
use crate::wire::{Message, ScanLimits, envelope, method};

/// An error and its causes. An I/O error hides its inner error from `source`.
pub(crate) fn causes<'a>(failure: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(failure), |&error| {
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
    })
}

pub(crate) fn cause(failure: &(dyn Error + 'static)) -> String {
    let mut last = String::new();
    for cause in causes(failure) {
        if let Some(tls) = cause.downcast_ref::<rustls::Error>() {
            return tls::in_words(tls);
        }
        // By its text: of all parse errors, only this one means that the peer does not speak HTTP.
        let garbled = cause.downcast_ref::<hyper::Error>().filter(|error| error.is_parse());
        if garbled.is_some_and(|error| error.to_string().contains("HTTP version")) {
            return "it does not speak HTTP here; over TLS an address begins with https://".to_owned();
        }
        if cause.is::<tokio::time::error::Elapsed>() {
            return "no connection in time".to_owned();
        }
        last = cause.to_string();
        if last.starts_with("dns error") {
            return "no such host".to_owned();
        }
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let words = match kind {
            Some(io::ErrorKind::ConnectionRefused) => "connection refused",
            Some(io::ErrorKind::TimedOut) => "no connection in time",
            Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => "no route to the host",
            Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof) => {
                "the connection was closed"
            }
            _ => continue,
        };
        return words.to_owned();
    }
    last
}

/// Statuses that may mean an unsupported transport or version, or a lost session.
pub(crate) const fn is_unlike_http(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}

/// The fault in a response's head, if the upstream is to blame, not one request.
pub(crate) fn of_head<B: Body>(
    url: &http::Uri,
    outgoing: &OutgoingRequest,
    response: &Response<B>,
) -> Option<UpstreamFailure> {
    let (status, headers) = (response.status(), response.headers());
    if status.is_success() {
        let is_odd = status == StatusCode::OK
            && outgoing.method() == Method::POST
            && reply::content_of(headers) == BodyKind::Other
            && is_request(outgoing);
        return is_odd.then(|| UpstreamFailure::new(Reason::UpstreamMalformed, media(response)));
    }
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        let cause = "HTTP 407: the proxy asks for other credentials; see `proxy_credentials_file`";
        return Some(UpstreamFailure::new(Reason::UpstreamHttpStatus, cause.to_owned()));
    }
    if status.is_redirection() {
        return Some(redirect(url, response));
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        let location = credential_metadata(url, response);
        return Some(UpstreamFailure {
            location,
            ..UpstreamFailure::new(Reason::UpstreamAuth, format!("HTTP {}", status.as_u16()))
        });
    }
    let is_json = reply::is_json(headers);
    let is_ill = matches!(AnswerHealth::of_head(response, is_json, None), AnswerHealth::Ill(_));
    // Streams, and the end of a session, are optional.
    let is_of_use = outgoing.method() == Method::POST;
    let is_in_session = outgoing.session().is_some();
    let is_refused = is_of_use
        && status.is_client_error()
        && if is_in_session || outgoing.is_a_trial() {
            !is_json && !is_unlike_http(status)
        } else if outgoing.is_stateless() {
            !is_json
        } else {
            !is_json || status == StatusCode::NOT_FOUND
        };
    let is_trouble = is_refused || (is_ill && (is_of_use || !is_in_session));
    is_trouble.then(|| {
        let cause = format!("HTTP {}, {}", status.as_u16(), media(response));
        UpstreamFailure::new(Reason::UpstreamHttpStatus, cause)
    })
}

fn is_request(outgoing: &OutgoingRequest) -> bool {
    let message = outgoing.body().and_then(|text| envelope::read(text, ScanLimits::UPSTREAM).ok());
    matches!(message, Some(Message::Request(_)))
}

pub(crate) fn is_initialize(outgoing: &OutgoingRequest) -> bool {
    let message = outgoing.body().and_then(|text| envelope::read(text, ScanLimits::UPSTREAM).ok());
    matches!(message, Some(Message::Request(request)) if request.method == method::INITIALIZE)
}

fn media<B: Body>(response: &Response<B>) -> String {
    let said = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    match said {
        Some(media) => format!("content-type {media}"),
        None if response.body().is_end_stream() => "an empty answer".to_owned(),
        None => "no content-type".to_owned(),
    }
}

/// The address of the server's protected resource metadata (RFC 9728).
fn credential_metadata<B>(from: &http::Uri, response: &Response<B>) -> Option<Url> {
    const PARAMETER: &str = "resource_metadata=";
    let said = response.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let found = said.filter_map(|challenge| challenge.split_once(PARAMETER)).map(|(_, rest)| rest).next()?;
    let text = match found.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next()?,
        None => found.split([',', ' ']).next()?,
    };
    Url::parse(&from.to_string()).ok()?.join(text).ok().filter(|_| !text.is_empty())
}

/// Leaves possible secrets of the target out.
fn redirect<B>(from: &http::Uri, response: &Response<B>) -> UpstreamFailure {
    let status = response.status().as_u16();
    let said = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let from = Url::parse(&from.to_string()).ok();
    let location = from.as_ref().zip(said).and_then(|(from, said)| from.join(said).ok());
    let to = match (&from, &location) {
        (Some(from), Some(to)) if from.origin() == to.origin() => match (from.path(), to.path()) {
            (from, to) if to.strip_suffix('/') == Some(from) => "the same address with a slash at its end",
            (from, to) if from.strip_suffix('/') == Some(to) => "the same address without the slash at its end",
            _ => "another path of the same server",
        }
        .to_owned(),
        (_, Some(to)) => to.origin().ascii_serialization(),
        (_, None) => "nowhere".to_owned(),
    };
    UpstreamFailure {
        location,
        ..UpstreamFailure::new(Reason::UpstreamRedirect, format!("HTTP {status}, Location: {to}"))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;
    use crate::upstream::outgoing::SessionHeaders;

    fn said(location: &str) -> String {
        let response = Response::builder().status(307).header(LOCATION, location).body(()).unwrap();
        redirect(&"http://127.0.0.1:9/mcp?key=s3cret".parse().unwrap(), &response).cause
    }

    #[test]
    fn a_redirect_is_told_without_secrets() {
        assert!(said("/mcp/").contains("with a slash at its end"));
        assert!(said("https://u:s3cret@other.example/s3cret?key=s3cret").ends_with("Location: https://other.example"));
        assert!(said("/s3cret").ends_with("another path of the same server"));
    }

    #[test]
    fn the_issuer_of_credentials_is_read_from_a_challenge() {
        for (challenge, expected) in [
            (
                r#"Bearer realm="x", resource_metadata="https://h/.well-known/a?b", scope="c""#,
                Some("https://h/.well-known/a?b"),
            ),
            ("Bearer resource_metadata=/meta, error=x", Some("http://127.0.0.1:9/meta")),
            ("Bearer", None),
            (r#"Bearer resource_metadata="""#, None),
        ] {
            let response = Response::builder().status(401).header(WWW_AUTHENTICATE, challenge).body(()).unwrap();
            let found = credential_metadata(&"http://127.0.0.1:9/mcp".parse().unwrap(), &response);
            assert_eq!(found.as_ref().map(Url::as_str), expected, "{challenge}");
        }
    }

    #[test]
    fn only_failures_of_the_upstream_are_reported() {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;
        let note = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let url = "http://127.0.0.1:9/mcp".parse().unwrap();
        for (message, status, media, expected) in [
            (call, 200, Some("application/json"), None),
            (call, 200, Some("text/html"), Some("content-type text/html")),
            (call, 200, None, Some("an empty answer")),
            (note, 200, None, None),
            (note, 202, None, None),
            (call, 401, None, Some("HTTP 401")),
            (call, 404, Some("application/json"), Some("HTTP 404, content-type application/json")),
            (call, 400, Some("application/json"), None),
            (call, 502, Some("text/html"), Some("HTTP 502, content-type text/html")),
            (call, 500, Some("application/json"), None),
        ] {
            let response = media
                .into_iter()
                .fold(Response::builder().status(status), |response, media| response.header(CONTENT_TYPE, media));
            let response = response.body(Empty::<bytes::Bytes>::new()).unwrap();
            let outgoing = SessionHeaders::default().post(bytes::Bytes::from_static(message.as_bytes()));
            let found = of_head(&url, &outgoing, &response).map(|trouble| trouble.cause);
            assert_eq!(found.as_deref(), expected, "{status} {media:?} {message}");
        }
    }
}
