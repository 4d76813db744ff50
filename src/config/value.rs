//! Parses single values: durations, sizes, addresses, paths; replaces `${VAR}` in all of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use jsonwebtoken::Algorithm;
use toml::value::{Datetime, Offset};
use url::{Host, Url};

use crate::server::api_keys::{ApiKey, ApiKeyError, KEY_HEADER};
use crate::server::client_certificates::CertificatePattern;
use crate::server::forwarded::{AddressRange, AddressRangeError};
use crate::server::tokens::is_trustworthy;
use crate::server::tokens::settings::signature_algorithm;
use crate::task::time::millis;
use crate::task::{Draft, NamePattern, Timestamp};
use crate::upstream::forwarding::may_be_forwarded;
use crate::upstream::token_client::is_client_secret;
use crate::upstream::transport::credential::secret_value;

pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) struct StringFormat<T> {
    /// The expected form, with an example; completes "write …" and "is not …".
    pub(super) wanted: &'static str,
    pub(super) read: fn(&str) -> Result<T, ValueError>,
}

/// The words of a closed list. `None` beside a word: known, but not implemented.
pub(super) type WordList<T> = &'static [(&'static str, Option<T>)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueError {
    Form,
    /// It has the form, but another fault.
    Because(&'static str),
}

pub(super) const DURATION: StringFormat<Duration> =
    StringFormat { wanted: "a duration such as \"30s\" or \"1h 30m\"", read: duration };
pub(super) const DURATION_NOT_ZERO: StringFormat<Duration> =
    StringFormat { wanted: DURATION.wanted, read: duration_not_zero };
pub(super) const SIZE: StringFormat<usize> = StringFormat { wanted: "a size such as \"4MiB\"", read: size };
pub(super) const ADDRESS: StringFormat<SocketAddr> =
    StringFormat { wanted: "an IP address with a port, such as \"127.0.0.1:8080\"", read: address };
pub(super) const ADDRESS_RANGE: StringFormat<AddressRange> =
    StringFormat { wanted: "an address or a network such as \"10.0.0.0/8\"", read: address_range };
/// A host as in a `Host` header, without port; converted to lower case.
pub(super) const HOST: StringFormat<String> =
    StringFormat { wanted: "a host name without scheme and port", read: host };
/// An origin; converted to `scheme://host[:port]`, without the scheme's default port.
pub(super) const ORIGIN: StringFormat<String> =
    StringFormat { wanted: "an origin such as \"https://app.example\"", read: origin };
pub(super) const PUBLIC_URL: StringFormat<Url> =
    StringFormat { wanted: "a URL such as \"https://mcp.example\", without a path", read: public_url };
pub(super) const UPSTREAM_URL: StringFormat<Url> =
    StringFormat { wanted: "a URL such as \"http://127.0.0.1:9000/mcp\"", read: upstream_url };
/// The proxy to an upstream; `None` is "none".
pub(super) const PROXY: StringFormat<Option<Url>> =
    StringFormat { wanted: "\"none\", or a URL such as \"http://proxy.example:3128\"", read: proxy };
pub(super) const SERVED_PATH: StringFormat<String> =
    StringFormat { wanted: "a path such as \"/reports/mcp\"", read: served_path };
pub(super) const UPSTREAM_NAME: StringFormat<String> =
    StringFormat { wanted: "the name of an upstream such as \"reports\"", read: not_empty };
pub(super) const PATTERN: StringFormat<String> =
    StringFormat { wanted: "a tool's name, with * for any text and ? for one character", read: pattern };
pub(super) const UPSTREAM_PATTERN: StringFormat<String> =
    StringFormat { wanted: "the name of an upstream such as \"reports\", with * and ?", read: pattern };
pub(super) const PROMPT_PATTERN: StringFormat<String> =
    StringFormat { wanted: "a prompt's name, with * for any text and ? for one character", read: pattern };
pub(super) const RESOURCE_PATTERN: StringFormat<String> =
    StringFormat { wanted: "a URI such as \"file:///public/*\", with * and ?", read: pattern };
pub(super) const ARGUMENT_PATTERN: StringFormat<String> =
    StringFormat { wanted: "a text such as \"staging*\", with * and ?", read: pattern };
pub(super) const SCOPE: StringFormat<String> = StringFormat { wanted: "a scope such as \"reports:read\"", read: scope };
pub(super) const GROUP: StringFormat<String> = StringFormat { wanted: "a group such as \"analysts\"", read: group };
pub(super) const GROUP_MEMBER: StringFormat<String> = StringFormat {
    wanted: "\"key:ID\" or another principal, or \"group:NAME\" for a group of tokens",
    read: caller_id,
};
pub(super) const TOKEN_ISSUER: StringFormat<String> =
    StringFormat { wanted: "the issuer of tokens such as \"https://login.example\"", read: group };
pub(super) const CALLER_ID: StringFormat<String> =
    StringFormat { wanted: "a principal such as \"key:ada\"", read: caller_id };
/// When a key expires. A date is its beginning in UTC.
pub(super) const EXPIRY: StringFormat<Timestamp> =
    StringFormat { wanted: "a date such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z", read: expiry };
pub(super) const DRAFT: StringFormat<Draft> =
    StringFormat { wanted: "\"sep-1686\", \"sep-2268\" or \"sep-1904\"", read: draft };
pub(super) const ARGUMENT: StringFormat<String> =
    StringFormat { wanted: "the name of an argument such as \"urls\"", read: not_empty };
/// A text for people or models.
pub(super) const WORDS: StringFormat<String> =
    StringFormat { wanted: "a text such as \"The report is being made.\"", read: words };
/// A tool's new name, with at most one star.
pub(super) const NEW_NAME: StringFormat<String> = StringFormat { wanted: "a name such as \"make_*\"", read: new_name };
pub(super) const FORWARDED_HEADER: StringFormat<HeaderName> =
    StringFormat { wanted: "the name of a header such as \"x-request-id\"", read: forwarded_header };
pub(super) const CREDENTIAL_HEADER: StringFormat<HeaderName> =
    StringFormat { wanted: "the name of a header such as \"X-Api-Key\"", read: credential_header };
/// A secret. Errors do not repeat it.
pub(super) const SECRET: StringFormat<HeaderValue> =
    StringFormat { wanted: "a secret such as \"Bearer ${TOKEN}\"", read: secret };
pub(super) const TOKEN_URL: StringFormat<Url> =
    StringFormat { wanted: "a URL such as \"https://login.example/token\"", read: token_url };
pub(super) const INTROSPECTION_URL: StringFormat<Url> =
    StringFormat { wanted: "a URL such as \"https://login.example/introspect\"", read: token_url };
pub(super) const CLIENT_ID: StringFormat<String> =
    StringFormat { wanted: "the name of a client such as \"taskgate\"", read: claim };
/// The gateway's password at an authorization server. Errors do not repeat it.
pub(super) const CLIENT_SECRET: StringFormat<String> =
    StringFormat { wanted: "a password such as \"${TASKGATE_SECRET}\"", read: client_secret };
pub(super) const SCOPES: StringFormat<String> =
    StringFormat { wanted: "scopes such as \"reports:read reports:write\"", read: scopes };
pub(super) const RESOURCE: StringFormat<String> =
    StringFormat { wanted: "a URI such as \"https://reports.internal/mcp\"", read: resource };
pub(super) const FOLDER: StringFormat<PathBuf> =
    StringFormat { wanted: "a folder such as \"taskgate-data\"", read: path };
pub(super) const PEM_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"server.pem\"", read: path };

pub(super) const WORD_OF_COMMAND: StringFormat<String> =
    StringFormat { wanted: "a program or an argument such as \"npx\"", read: word_of_command };
pub(super) const ENV_VALUE: StringFormat<String> =
    StringFormat { wanted: "a text such as \"${TOKEN}\"", read: word_of_command };
pub(super) const ENV_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"token.txt\"", read: path };

/// A client's key. Errors do not repeat it.
pub(super) const API_KEY: StringFormat<ApiKey> = StringFormat { wanted: "a key such as \"${ADA_KEY}\"", read: api_key };
pub(super) const API_KEY_DIGEST: StringFormat<ApiKey> =
    StringFormat { wanted: "the ID of a key, a colon, and the SHA-256 of the whole key in hex", read: api_key_digest };
pub(super) const KEY_FILE: StringFormat<PathBuf> = StringFormat { wanted: "a file such as \"ada.key\"", read: path };
pub(super) const KEYS_FILE: StringFormat<PathBuf> =
    StringFormat { wanted: "a file such as \"team-a.keys.toml\"", read: path };
/// A certificate's name, with a `*` for any text.
pub(super) const CERTIFICATE_NAME: StringFormat<CertificatePattern> =
    StringFormat { wanted: "a name such as \"spiffe://corp/*\" or \"*.agents.corp\"", read: certificate_name };
pub(super) const SAME_PRINCIPAL: StringFormat<String> =
    StringFormat { wanted: "a principal such as \"key:*\"", read: same_principal };
pub(super) const PRINCIPAL_ID: StringFormat<String> =
    StringFormat { wanted: "a name such as \"ada\"", read: principal_id };

/// The issuer of tokens, as written: a token names it byte for byte.
pub(super) const ISSUER: StringFormat<String> =
    StringFormat { wanted: "a URL such as \"https://login.example\"", read: issuer };
pub(super) const TRUSTED_URL: StringFormat<Url> =
    StringFormat { wanted: "a URL such as \"https://login.example/keys\"", read: trusted_url };
pub(super) const KEY_SET_FILE: StringFormat<PathBuf> =
    StringFormat { wanted: "a file such as \"login.jwks.json\"", read: path };
pub(super) const ALGORITHM: StringFormat<Algorithm> =
    StringFormat { wanted: "an algorithm such as \"ES256\"", read: algorithm };
pub(super) const AUDIENCE: StringFormat<String> =
    StringFormat { wanted: "an audience such as \"https://mcp.example\"", read: claim };
pub(super) const CLAIM: StringFormat<String> = StringFormat { wanted: "a claim such as \"groups\"", read: claim };
pub(super) const TOKEN_TYPE: StringFormat<String> =
    StringFormat { wanted: "a type such as \"at+jwt\", or \"none\"", read: claim };

/// Longer durations are typing mistakes, and some sums of times would overflow.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 60 * 60);
const SIZE_MAX: u64 = bytesize::PIB;
const PRINCIPAL_ID_LEN_MAX: usize = 64;
/// The longest name in a token.
const NAME_LEN_MAX: usize = 255;

fn new_name(text: &str) -> Result<String, ValueError> {
    match NamePattern::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None if text.is_empty() => Err(ValueError::Form),
        None => Err(ValueError::Because("has more than one *, or a ?; one * takes the text of the * in `match`")),
    }
}

fn issuer(text: &str) -> Result<String, ValueError> {
    let url = trusted_url(text)?;
    match url.query() {
        Some(_) => Err(ValueError::Because("has a query; write the issuer as its tokens name it")),
        None => Ok(text.to_owned()),
    }
}

fn trusted_url(text: &str) -> Result<Url, ValueError> {
    let url = upstream_url(text)?;
    match is_trustworthy(&url) {
        true => Ok(url),
        false => Err(ValueError::Because("begins with http://, where others could replace its keys; write https://")),
    }
}

fn token_url(text: &str) -> Result<Url, ValueError> {
    let url = upstream_url(text)?;
    match is_trustworthy(&url) {
        true => Ok(url),
        false => Err(ValueError::Because("begins with http://, where others could read its tokens; write https://")),
    }
}

fn client_secret(text: &str) -> Result<String, ValueError> {
    match is_client_secret(text) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::Because("is no password of a client; write one line of text, at most 4KiB")),
    }
}

fn scopes(text: &str) -> Result<String, ValueError> {
    text.split(' ').try_for_each(|name| scope(name).map(drop))?;
    Ok(text.to_owned())
}

fn resource(text: &str) -> Result<String, ValueError> {
    let is_absolute = Url::parse(text).is_ok_and(|url| url.fragment().is_none());
    if is_absolute && !text.contains(char::is_whitespace) { Ok(text.to_owned()) } else { Err(ValueError::Form) }
}

fn algorithm(text: &str) -> Result<Algorithm, ValueError> {
    signature_algorithm(text).ok_or(ValueError::Because(
        "is no algorithm with a public key; write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA",
    ))
}

fn certificate_name(text: &str) -> Result<CertificatePattern, ValueError> {
    CertificatePattern::parse(text).ok_or(ValueError::Because(
        "is no name of a certificate; write a URI, an e-mail address or a host name of at most 255 bytes, with one * at most",
    ))
}

fn same_principal(text: &str) -> Result<String, ValueError> {
    let text = caller_id(text)?;
    match NamePattern::parse(&text) {
        Some(_) => Ok(text),
        None => Err(ValueError::Because("has more than one *, or a ?; one * takes the text of the * in `san`")),
    }
}

fn claim(text: &str) -> Result<String, ValueError> {
    match (1..=NAME_LEN_MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::Because("has 1 to 255 bytes, without control characters")),
    }
}

fn forwarded_header(text: &str) -> Result<HeaderName, ValueError> {
    let name = HeaderName::try_from(text).map_err(|_| ValueError::Form)?;
    match may_be_forwarded(&name) {
        true => Ok(name),
        false if name == AUTHORIZATION => {
            Err(ValueError::Because("is forwarded only with `forward_authorization = true`; leave it out here"))
        }
        false if name == KEY_HEADER => {
            Err(ValueError::Because("carries clients' keys of this gateway, which no server gets; leave it out"))
        }
        false => {
            Err(ValueError::Because("is never forwarded: it is a credential, or belongs to one connection or to MCP"))
        }
    }
}

fn credential_header(text: &str) -> Result<HeaderName, ValueError> {
    let name = HeaderName::try_from(text).map_err(|_| ValueError::Form)?;
    let is_credential = matches!(name.as_str(), "authorization" | "cookie" | "proxy-authorization");
    // The upstream may be another gateway.
    let is_fit = may_be_forwarded(&name) || is_credential || name == KEY_HEADER;
    if is_fit {
        Ok(name)
    } else {
        Err(ValueError::Because("belongs to a connection or to MCP; no server takes it as a credential"))
    }
}

#[must_use]
pub fn is_credential_header(name: &str) -> bool {
    credential_header(name).is_ok()
}

fn secret(text: &str) -> Result<HeaderValue, ValueError> {
    secret_value(text)
        .ok_or(ValueError::Because("is no value of a header; write one line of visible ASCII, at most 8KiB"))
}

fn api_key(text: &str) -> Result<ApiKey, ValueError> {
    ApiKey::read(text).map_err(because)
}

fn api_key_digest(text: &str) -> Result<ApiKey, ValueError> {
    ApiKey::read_digest(text).map_err(because)
}

fn because(error: ApiKeyError) -> ValueError {
    ValueError::Because(error.explanation())
}

pub fn check_principal_id(text: &str) -> Result<(), &'static str> {
    match principal_id(text) {
        Ok(_) => Ok(()),
        Err(ValueError::Because(why)) => Err(why),
        Err(ValueError::Form) => Err(PRINCIPAL_ID.wanted),
    }
}

fn principal_id(text: &str) -> Result<String, ValueError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    if !(1..=PRINCIPAL_ID_LEN_MAX).contains(&text.len()) || !text.bytes().all(fits) {
        return Err(ValueError::Because("has 1 to 64 characters out of letters, digits and . _ @ -"));
    }
    Ok(text.to_owned())
}

fn duration(text: &str) -> Result<Duration, ValueError> {
    let span = humantime::parse_duration(text).map_err(|_| ValueError::Form)?;
    if span > DURATION_MAX {
        return Err(ValueError::Because("is longer than 3650d"));
    }
    if !span.is_zero() && span < Duration::from_millis(1) {
        return Err(ValueError::Because("is shorter than 1ms, the finest step there is"));
    }
    Ok(span)
}

fn duration_not_zero(text: &str) -> Result<Duration, ValueError> {
    let span = duration(text)?;
    if span.is_zero() { Err(ValueError::Because("must be longer than 0s")) } else { Ok(span) }
}

fn size(text: &str) -> Result<usize, ValueError> {
    let size: ByteSize = text.parse().map_err(|_| ValueError::Form)?;
    match size.as_u64() {
        0 => Err(ValueError::Because("must be at least 1B")),
        bytes if bytes > SIZE_MAX => Err(ValueError::Because("is larger than 1PiB")),
        bytes => usize::try_from(bytes).map_err(|_| ValueError::Because("is larger than this machine's memory can be")),
    }
}

fn address(text: &str) -> Result<SocketAddr, ValueError> {
    text.parse().map_err(|_| ValueError::Form)
}

fn address_range(text: &str) -> Result<AddressRange, ValueError> {
    AddressRange::parse(text).map_err(|error| match error {
        AddressRangeError::Form => ValueError::Form,
        AddressRangeError::Length => {
            ValueError::Because("has a longer prefix than its address: at most /32 for IPv4, and /128 for IPv6")
        }
        AddressRangeError::NotFirst => {
            ValueError::Because("has bits behind its prefix; write the first address of the network")
        }
    })
}

fn host(text: &str) -> Result<String, ValueError> {
    if text.contains('*') {
        return Err(ValueError::Because("has no wildcards; name each host"));
    }
    Host::parse(text).map(|host| host.to_string()).map_err(|_| ValueError::Form)
}

fn origin(text: &str) -> Result<String, ValueError> {
    if text.contains('*') {
        return Err(ValueError::Because("has no wildcards; name each origin"));
    }
    let url = Url::parse(text).map_err(|_| ValueError::Form)?;
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or(ValueError::Form)?;
    let more = !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some();
    if more || has_user_info(&url) {
        return Err(ValueError::Because("has more than scheme, host and port; leave the rest out"));
    }
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    Ok(format!("{}://{host}{port}", url.scheme()))
}

fn public_url(text: &str) -> Result<Url, ValueError> {
    if text.contains('*') {
        return Err(ValueError::Because("has no wildcards; write the one name that clients use"));
    }
    let url = Url::parse(&origin(text)?).map_err(|_| ValueError::Form)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ValueError::Because("has another scheme than http and https"));
    }
    Ok(url)
}

fn upstream_url(text: &str) -> Result<Url, ValueError> {
    let url = Url::parse(text).map_err(|_| ValueError::Form)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ValueError::Because("has another scheme than http and https"));
    }
    if has_user_info(&url) {
        return Err(ValueError::Because("has a user name or password; credentials do not belong into a URL"));
    }
    if url.fragment().is_some() {
        return Err(ValueError::Because("has a fragment; leave out the # and the rest"));
    }
    Ok(url)
}

fn proxy(text: &str) -> Result<Option<Url>, ValueError> {
    if text == "none" {
        return Ok(None);
    }
    let url = Url::parse(text).map_err(|_| ValueError::Form)?;
    if url.scheme() != "http" {
        return Err(ValueError::Because("has another scheme than http; the gateway reaches a proxy over http"));
    }
    if has_user_info(&url) {
        return Err(ValueError::Because("has a user name or password; write them into `proxy_credentials_file`"));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(ValueError::Because("has more than scheme, host and port; leave the rest out"));
    }
    Ok(Some(url))
}

fn has_user_info(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

/// Only paths that every client and proxy reads alike: a path that could be normalised is refused.
fn served_path(text: &str) -> Result<String, ValueError> {
    let Some(rest) = text.strip_prefix('/') else { return Err(ValueError::Because("must begin with /")) };
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte)) {
        return Err(ValueError::Because("may only have letters, digits and / - . _ ~"));
    }
    if rest.is_empty() {
        return Ok(text.to_owned());
    }
    for segment in rest.split('/') {
        match segment {
            "" => return Err(ValueError::Because("has an empty segment; write each / once, and none at the end")),
            "." | ".." => return Err(ValueError::Because("has a segment . or .., which clients resolve on their own")),
            _ => (),
        }
    }
    Ok(text.to_owned())
}

fn word_of_command(text: &str) -> Result<String, ValueError> {
    if text.contains('\0') { Err(ValueError::Because("has a NUL character")) } else { Ok(text.to_owned()) }
}

pub(super) fn path(text: &str) -> Result<PathBuf, ValueError> {
    not_empty(text).map(PathBuf::from)
}

/// The longest text that is sent in responses.
const WORDS_LEN_MAX: usize = 4096;

fn draft(text: &str) -> Result<Draft, ValueError> {
    Draft::ALL.into_iter().find(|draft| draft.as_str() == text).ok_or(ValueError::Form)
}

fn words(text: &str) -> Result<String, ValueError> {
    if text.len() > WORDS_LEN_MAX {
        return Err(ValueError::Because("is longer than 4096 bytes"));
    }
    if text.trim().is_empty() { Err(ValueError::Form) } else { Ok(text.to_owned()) }
}

pub(super) fn not_empty(text: &str) -> Result<String, ValueError> {
    if text.is_empty() { Err(ValueError::Form) } else { Ok(text.to_owned()) }
}

/// Longer patterns are mistakes, and comparing takes the longer.
const PATTERN_LEN_MAX: usize = 1024;
const SCOPE_LEN_MAX: usize = 256;

fn pattern(text: &str) -> Result<String, ValueError> {
    if text.len() > PATTERN_LEN_MAX {
        return Err(ValueError::Because("is longer than 1024 bytes"));
    }
    not_empty(text)
}

/// RFC 6749, 3.3.
fn scope(text: &str) -> Result<String, ValueError> {
    if text.bytes().any(|byte| !byte.is_ascii_graphic() || matches!(byte, b'"' | b'\\')) {
        return Err(ValueError::Because(
            "is no scope: it has a space, a quotation mark or another character that no scope has",
        ));
    }
    if text.len() > SCOPE_LEN_MAX {
        return Err(ValueError::Because("is longer than 256 bytes"));
    }
    not_empty(text)
}

fn group(text: &str) -> Result<String, ValueError> {
    if text.len() > SCOPE_LEN_MAX {
        return Err(ValueError::Because("is longer than 256 bytes"));
    }
    if text.chars().any(char::is_control) { Err(ValueError::Form) } else { not_empty(text) }
}

fn caller_id(text: &str) -> Result<String, ValueError> {
    let is_known = text.split_once(':').is_some_and(|(scheme, name)| !scheme.is_empty() && !name.is_empty());
    if is_known || matches!(text, "local" | "anon") { group(text) } else { Err(ValueError::Form) }
}

fn expiry(text: &str) -> Result<Timestamp, ValueError> {
    let written: Datetime = text.parse().map_err(|_| ValueError::Form)?;
    let (date, time) = match written {
        Datetime { date: Some(date), time: None, offset: None } => (date, None),
        Datetime { date: Some(date), time: Some(time), offset: Some(offset) } => (date, Some((time, offset))),
        Datetime { date: Some(_), .. } => {
            return Err(ValueError::Because("has no offset; write Z at its end for UTC, or one such as +01:00"));
        }
        Datetime { date: None, .. } => return Err(ValueError::Form),
    };
    let (clock, minutes) = match time {
        None => ("00:00:00".to_owned(), 0),
        Some((time, Offset::Z)) => (time.to_string(), 0),
        Some((time, Offset::Custom { minutes })) => (time.to_string(), minutes),
    };
    let utc = humantime::parse_rfc3339(&format!("{date}T{clock}Z")).map_err(|_| ValueError::Form)?;
    let since = utc.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| ValueError::Form)?;
    let offset = Duration::from_secs(u64::from(minutes.unsigned_abs()) * 60);
    let since = if minutes < 0 { since.checked_add(offset) } else { since.checked_sub(offset) };
    Ok(Timestamp::from_millis(millis(since.ok_or(ValueError::Form)?)))
}

/// `a`, `a or b`, `a, b or c`: the implemented words.
pub(super) fn word_list<T>(words: &[(&str, Option<T>)]) -> String {
    let built: Vec<String> =
        words.iter().filter(|(_, meant)| meant.is_some()).map(|(word, _)| format!("{word:?}")).collect();
    match built.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VariableMistake {
    Form(String),
    Unset(String),
}

/// Replaces each `${VAR}` by its value in the environment; `$${` is an escaped `${`. No error shows a variable's value.
pub(super) fn fill_in(written: &str, env: Environment<'_>) -> Result<String, Vec<VariableMistake>> {
    let mut text = String::with_capacity(written.len());
    let mut wrong = Vec::new();
    let mut rest = written;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        let after = &after[2..];
        if let Some(before) = before.strip_suffix('$') {
            text.push_str(before);
            text.push_str("${");
            rest = after;
            continue;
        }
        text.push_str(before);
        let Some((name, tail)) = after.split_once('}') else {
            wrong.push(VariableMistake::Form(
                "has a ${ without its }; write $${ for the characters themselves".to_owned(),
            ));
            return Err(wrong);
        };
        rest = tail;
        if !is_variable_name(name) {
            wrong.push(VariableMistake::Form(format!(
                "${{{}}} is no variable's name; write $${{ for the characters themselves",
                name.escape_debug()
            )));
        } else if let Some(value) = env(name) {
            text.push_str(&value);
        } else {
            wrong.push(VariableMistake::Unset(format!("the environment has no variable {name}")));
        }
    }
    text.push_str(rest);
    if wrong.is_empty() { Ok(text) } else { Err(wrong) }
}

#[must_use]
pub fn is_variable_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The number of single characters to insert, delete or change, and of neighbours to exchange, between `a` and `b`.
pub(super) fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let (mut before, mut above): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let changed = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = changed.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: PartialEq + std::fmt::Debug>(kind: StringFormat<T>, rows: &[(&str, Result<T, ValueError>)]) {
        for (text, read) in rows {
            assert_eq!((kind.read)(text), *read, "{text:?}");
        }
    }

    fn because<T>(why: &'static str) -> Result<T, ValueError> {
        Err(ValueError::Because(why))
    }

    #[test]
    fn durations_have_units_and_bounds() {
        let second = Duration::from_secs(1);
        check(
            DURATION,
            &[
                ("30s", Ok(30 * second)),
                ("1h 30m", Ok(5400 * second)),
                ("7d", Ok(7 * 86_400 * second)),
                ("0s", Ok(Duration::ZERO)),
                ("1ms", Ok(second / 1000)),
                ("30", Err(ValueError::Form)),
                ("-1s", Err(ValueError::Form)),
                ("soon", Err(ValueError::Form)),
                ("", Err(ValueError::Form)),
                ("20us", because("is shorter than 1ms, the finest step there is")),
                ("11y", because("is longer than 3650d")),
                ("99999999999999999999y", Err(ValueError::Form)),
            ],
        );
        check(DURATION_NOT_ZERO, &[("1s", Ok(second)), ("0s", because("must be longer than 0s"))]);
    }

    #[test]
    fn sizes_are_exact_and_bounded() {
        check(
            SIZE,
            &[
                ("4MiB", Ok(4 << 20)),
                ("32 MiB", Ok(32 << 20)),
                ("1GB", Ok(1_000_000_000)),
                ("512", Ok(512)),
                ("0", because("must be at least 1B")),
                ("0.1B", because("must be at least 1B")),
                ("2PiB", because("is larger than 1PiB")),
                ("-4MiB", Err(ValueError::Form)),
                ("much", Err(ValueError::Form)),
                ("", Err(ValueError::Form)),
            ],
        );
    }

    #[test]
    fn hosts_and_origins_come_out_as_headers_are_compared() {
        let wildcard = "has no wildcards; name each host";
        check(
            HOST,
            &[
                ("MCP.Example", Ok("mcp.example".to_owned())),
                ("10.0.0.1", Ok("10.0.0.1".to_owned())),
                ("[::1]", Ok("[::1]".to_owned())),
                ("mcp.example:80", Err(ValueError::Form)),
                ("http://mcp.example", Err(ValueError::Form)),
                ("", Err(ValueError::Form)),
                ("*.example", because(wildcard)),
            ],
        );
        let more = "has more than scheme, host and port; leave the rest out";
        check(
            ORIGIN,
            &[
                ("https://App.Example", Ok("https://app.example".to_owned())),
                ("https://app.example:443/", Ok("https://app.example".to_owned())),
                ("http://app.example:8000", Ok("http://app.example:8000".to_owned())),
                ("vscode-webview://abc", Ok("vscode-webview://abc".to_owned())),
                ("https://app.example/x", because(more)),
                ("https://app.example?x", because(more)),
                ("https://me@app.example", because(more)),
                ("https://*.example", because("has no wildcards; name each origin")),
                ("null", Err(ValueError::Form)),
                ("data:x", Err(ValueError::Form)),
            ],
        );
    }

    #[test]
    fn a_public_url_is_a_scheme_a_host_and_a_port() {
        let more = "has more than scheme, host and port; leave the rest out";
        for (text, read) in [
            ("https://MCP.example/", Ok("https://mcp.example/")),
            ("http://10.0.0.7:8080", Ok("http://10.0.0.7:8080/")),
            ("https://[2001:db8::1]:443", Ok("https://[2001:db8::1]/")),
            ("https://mcp.example/mcp", because(more)),
            ("https://mcp.example?x", because(more)),
            ("https://mcp.example/#x", because(more)),
            ("https://ada:secret@mcp.example", because(more)),
            ("ftp://mcp.example", because("has another scheme than http and https")),
            ("https://*.example", because("has no wildcards; write the one name that clients use")),
            ("mcp.example", Err(ValueError::Form)),
            ("mcp.example:443", Err(ValueError::Form)),
            ("https://", Err(ValueError::Form)),
            ("", Err(ValueError::Form)),
        ] {
            assert_eq!((PUBLIC_URL.read)(text), read.map(|url| Url::parse(url).unwrap()), "{text:?}");
        }
    }

    #[test]
    fn upstream_urls_carry_no_credentials_and_no_fragment() {
        for (text, wrong) in [
            ("http://127.0.0.1:9000/mcp", None),
            ("https://mcp.example/a?b=c", None),
            ("ftp://mcp.example", Some(ValueError::Because("has another scheme than http and https"))),
            ("mcp.example", Some(ValueError::Form)),
            ("http://", Some(ValueError::Form)),
            (
                "http://a:b@c/",
                Some(ValueError::Because("has a user name or password; credentials do not belong into a URL")),
            ),
            ("http://c/#d", Some(ValueError::Because("has a fragment; leave out the # and the rest"))),
        ] {
            assert_eq!((UPSTREAM_URL.read)(text).err(), wrong, "{text:?}");
        }
    }

    #[test]
    fn served_paths_are_read_alike_by_everyone() {
        let characters = "may only have letters, digits and / - . _ ~";
        let empty = "has an empty segment; write each / once, and none at the end";
        let dots = "has a segment . or .., which clients resolve on their own";
        check(
            SERVED_PATH,
            &[
                ("/", Ok("/".to_owned())),
                ("/reports/mcp", Ok("/reports/mcp".to_owned())),
                ("/v1.2/a_b-c~d", Ok("/v1.2/a_b-c~d".to_owned())),
                ("reports", because("must begin with /")),
                ("", because("must begin with /")),
                ("/a//b", because(empty)),
                ("//", because(empty)),
                ("/a/", because(empty)),
                ("/a/../b", because(dots)),
                ("/.", because(dots)),
                ("/a%2fb", because(characters)),
                ("/a;b", because(characters)),
                ("/a?b", because(characters)),
                ("/ü", because(characters)),
            ],
        );
    }

    #[test]
    fn variables_are_filled_in_and_every_missing_one_is_named() {
        let env = |name: &str| match name {
            "HOST" => Some("mcp.example".to_owned()),
            "EMPTY" => Some(String::new()),
            "ODD" => Some("${HOST}".to_owned()),
            _ => None,
        };
        let form = |text: String| VariableMistake::Form(text);
        let unset = |name| VariableMistake::Unset(format!("the environment has no variable {name}"));
        let badly_named =
            |name| form(format!("${{{name}}} is no variable's name; write $${{ for the characters themselves"));
        for (written, filled) in [
            ("plain $5 and }", Ok("plain $5 and }")),
            ("http://${HOST}/", Ok("http://mcp.example/")),
            ("${HOST}${EMPTY}${HOST}", Ok("mcp.examplemcp.example")),
            ("${ODD}", Ok("${HOST}")),
            ("$${HOST}", Ok("${HOST}")),
            ("$$${HOST}", Ok("$${HOST}")),
            ("${A}${B}", Err(vec![unset("A"), unset("B")])),
            ("${}", Err(vec![badly_named("")])),
            ("${1A}", Err(vec![badly_named("1A")])),
            ("${A-B}", Err(vec![badly_named("A-B")])),
            ("${HOST", Err(vec![form("has a ${ without its }; write $${ for the characters themselves".into())])),
        ] {
            assert_eq!(fill_in(written, &env), filled.map(str::to_owned), "{written:?}");
        }
    }

    #[test]
    fn edit_distance_counts_added_dropped_changed_and_exchanged_characters() {
        for (a, b, distance) in [
            ("", "", 0),
            ("url", "url", 0),
            ("adress", "address", 1),
            ("grase", "grace", 1),
            ("ttl", "", 3),
            ("pooll", "poll", 1),
            ("ulr", "url", 1),
            ("ulr", "tls", 2),
            ("garce", "grace", 1),
        ] {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
            assert_eq!(edit_distance(b, a), distance, "{b} {a}");
        }
    }
}
