//! Defines the forms of single values, and reads durations, sizes, times, texts, files, secrets, names and patterns.

/// Declares formats, each with its type, its reader, and the expected form with an example.
macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $read:ident, $wanted:expr;)*) => {
        $($(#[$doc])* pub(in crate::config) const $name: StringFormat<$type> =
            StringFormat { wanted: $wanted, read: $read };)*
    };
}

mod addresses;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use jsonwebtoken::Algorithm;
use toml::value::{Datetime, Offset};

use crate::server::api_keys::{ApiKey, ApiKeyError, KEY_HEADER};
use crate::server::client_certificates::CertificatePattern;
use crate::server::tokens::settings::signature_algorithm;
use crate::task::time::millis;
use crate::task::{Draft, NamePattern, Principal, Timestamp};
use crate::upstream::forwarding::may_be_forwarded;
use crate::upstream::token_client::is_client_secret;
use crate::upstream::transport::credential::secret_value;

pub(super) use self::addresses::*;

pub(super) struct StringFormat<T> {
    /// The expected form, with an example; completes "write …" and "is not …".
    pub(super) wanted: &'static str,
    pub(super) read: fn(&str) -> Result<T, ValueError>,
}

pub(super) type WordList<T> = &'static [(&'static str, T)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueError {
    Form,
    /// The text has the form, but another fault.
    Because(&'static str),
}

formats! {
    DURATION: Duration = duration, "a duration such as \"30s\" or \"1h 30m\"";
    DURATION_NOT_ZERO: Duration = duration_not_zero, DURATION.wanted;
    SIZE: usize = size, "a size such as \"4MiB\"";
    /// When a key expires. A date is its beginning in UTC.
    EXPIRY: Timestamp = expiry, "a date such as 2027-01-31, or a time such as 2027-01-31T18:00:00Z";
    DRAFT: Draft = draft, "\"sep-1686\", \"sep-2268\" or \"sep-1904\"";
    /// A text for people or models.
    WORDS: String = words, "a text such as \"The report is being made.\"";
    FOLDER: PathBuf = path, "a folder such as \"taskgate-data\"";
    PEM_FILE: PathBuf = path, "a file such as \"server.pem\"";
    WORD_OF_COMMAND: String = word_of_command, "a program or an argument such as \"npx\"";
    ENV_VALUE: String = word_of_command, "a text such as \"${TOKEN}\"";
    ENV_FILE: PathBuf = path, "a file such as \"token.txt\"";
    KEY_FILE: PathBuf = path, "a file such as \"ada.key\"";
    KEYS_FILE: PathBuf = path, "a file such as \"team-a.keys.toml\"";
    KEY_SET_FILE: PathBuf = path, "a file such as \"login.jwks.json\"";
}
/// Longer durations are typing mistakes, and some sums of times would overflow.
const DURATION_MAX: Duration = Duration::from_secs(3650 * 24 * 60 * 60);
const SIZE_MAX: u64 = bytesize::PIB;

fn duration(text: &str) -> Result<Duration, ValueError> {
    let span = humantime::parse_duration(text).map_err(|_| ValueError::Form)?;
    if span > DURATION_MAX {
        return Err(ValueError::Because("is longer than 3650d"));
    }
    if !span.is_zero() && span < Duration::from_millis(1) {
        return Err(ValueError::Because("is shorter than the minimum, 1ms"));
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

fn word_of_command(text: &str) -> Result<String, ValueError> {
    if text.contains('\0') { Err(ValueError::Because("has a NUL character")) } else { Ok(text.to_owned()) }
}

pub(super) fn path(text: &str) -> Result<PathBuf, ValueError> {
    word_of_command(text).and_then(|text| not_empty(&text)).map(PathBuf::from)
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

/// `a`, `a or b`, `a, b or c`.
pub(super) fn word_list<T>(words: &[(&str, T)]) -> String {
    let quoted: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

formats! {
    FORWARDED_HEADER: HeaderName = forwarded_header, "the name of a header such as \"x-request-id\"";
    CREDENTIAL_HEADER: HeaderName = credential_header, "the name of a header such as \"X-Api-Key\"";
    /// A secret. Errors do not repeat it.
    SECRET: HeaderValue = secret, "a secret such as \"Bearer ${TOKEN}\"";
    /// The gateway's password at an authorization server. Errors do not repeat it.
    CLIENT_SECRET: String = client_secret, "a password such as \"${TASKGATE_SECRET}\"";
    /// A client's key. Errors do not repeat it.
    API_KEY: ApiKey = api_key, "a key such as \"${ADA_KEY}\"";
    API_KEY_DIGEST: ApiKey = api_key_digest, "the ID of a key, a colon, and the SHA-256 of the whole key in hex";
    ALGORITHM: Algorithm = algorithm, "an algorithm such as \"ES256\"";
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

pub fn is_credential_header(name: &str) -> bool {
    credential_header(name).is_ok()
}

fn secret(text: &str) -> Result<HeaderValue, ValueError> {
    secret_value(text)
        .ok_or(ValueError::Because("is not the value of a header; write one line of visible ASCII, at most 8KiB"))
}

fn client_secret(text: &str) -> Result<String, ValueError> {
    match is_client_secret(text) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::Because("is not the password of a client; write one line of text, at most 4KiB")),
    }
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

fn algorithm(text: &str) -> Result<Algorithm, ValueError> {
    signature_algorithm(text).ok_or(ValueError::Because(
        "is not an algorithm with a public key; write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA",
    ))
}

formats! {
    UPSTREAM_NAME: String = not_empty, "the name of an upstream such as \"reports\"";
    PATTERN: String = name_pattern, "a tool's name, with * for any text and ? for one character";
    UPSTREAM_PATTERN: String = name_pattern, "the name of an upstream such as \"reports\", with * and ?";
    PROMPT_PATTERN: String = name_pattern, "a prompt's name, with * for any text and ? for one character";
    RESOURCE_PATTERN: String = name_pattern, "a URI such as \"file:///public/*\", with * and ?";
    ARGUMENT_PATTERN: String = pattern, "a text such as \"staging*\", with * and ?";
    /// A tool's new name, with at most one star.
    NEW_NAME: String = new_name, "a name such as \"make_*\"";
    ARGUMENT: String = name_pattern, "the name of an argument such as \"urls\"";
    SCOPE: String = scope, "a scope such as \"reports:read\"";
    SCOPES: String = scopes, "scopes such as \"reports:read reports:write\"";
    GROUP: String = group, "a group such as \"analysts\"";
    GROUP_MEMBER: String = group_member, "\"key:ID\" or another principal, or \"group:NAME\" for a group of tokens";
    CALLER_ID: String = caller_id, "a principal such as \"key:ada\"";
    PRINCIPAL_ID: String = principal_id, "a name such as \"ada\"";
    /// A certificate's name, with a `*` for any text.
    CERTIFICATE_NAME: CertificatePattern = certificate_name, "a name such as \"spiffe://corp/*\" or \"*.agents.corp\"";
    SAME_PRINCIPAL: String = same_principal, "a principal such as \"key:*\"";
    TOKEN_ISSUER: String = group, "the issuer of tokens such as \"https://login.example\"";
    CLIENT_ID: String = claim, "the name of a client such as \"taskgate\"";
    AUDIENCE: String = claim, "an audience such as \"https://mcp.example\"";
    CLAIM: String = claim, "a claim such as \"groups\"";
    TOKEN_TYPE: String = claim, "a type such as \"at+jwt\", or \"none\"";
}

const PRINCIPAL_ID_LEN_MAX: usize = 64;
/// The longest name in a token.
const NAME_LEN_MAX: usize = 255;
/// Longer patterns are mistakes, and comparing takes the longer.
const PATTERN_LEN_MAX: usize = 1024;
const SCOPE_LEN_MAX: usize = 256;

fn pattern(text: &str) -> Result<String, ValueError> {
    if text.len() > PATTERN_LEN_MAX { Err(ValueError::Because("is longer than 1024 bytes")) } else { not_empty(text) }
}

fn name_pattern(text: &str) -> Result<String, ValueError> {
    if text.chars().any(char::is_control) { Err(ValueError::Because("has a control character")) } else { pattern(text) }
}

fn new_name(text: &str) -> Result<String, ValueError> {
    let text = name_pattern(text)?;
    match NamePattern::parse(&text) {
        Some(_) => Ok(text),
        None => Err(ValueError::Because("has more than one *, or a ?; one * takes the text of the * in `match`")),
    }
}

/// RFC 6749, 3.3.
fn scope(text: &str) -> Result<String, ValueError> {
    if text.bytes().any(|byte| !byte.is_ascii_graphic() || matches!(byte, b'"' | b'\\')) {
        return Err(ValueError::Because(
            "is not a scope: it has a space, a quotation mark or another character that no scope has",
        ));
    }
    if text.len() > SCOPE_LEN_MAX { Err(ValueError::Because("is longer than 256 bytes")) } else { not_empty(text) }
}

fn scopes(text: &str) -> Result<String, ValueError> {
    text.split(' ').try_for_each(|name| scope(name).map(drop))?;
    Ok(text.to_owned())
}

fn group(text: &str) -> Result<String, ValueError> {
    if text.len() > SCOPE_LEN_MAX {
        return Err(ValueError::Because("is longer than 256 bytes"));
    }
    if text.chars().any(char::is_control) { Err(ValueError::Form) } else { not_empty(text) }
}

fn caller_id(text: &str) -> Result<String, ValueError> {
    if Principal::is_id(text) { group(text) } else { Err(ValueError::Form) }
}

fn group_member(text: &str) -> Result<String, ValueError> {
    match text.strip_prefix("group:") {
        Some(name) => group(name).map(|_| text.to_owned()),
        None => caller_id(text),
    }
}

/// Checks the form of a principal, as in `who.ids`. The error names the expected form.
pub fn check_caller_id(text: &str) -> Result<(), &'static str> {
    check(&CALLER_ID, text)
}

pub fn check_principal_id(text: &str) -> Result<(), &'static str> {
    check(&PRINCIPAL_ID, text)
}

fn check(format: &StringFormat<String>, text: &str) -> Result<(), &'static str> {
    match (format.read)(text) {
        Ok(_) => Ok(()),
        Err(ValueError::Because(why)) => Err(why),
        Err(ValueError::Form) => Err(format.wanted),
    }
}

fn principal_id(text: &str) -> Result<String, ValueError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    if !(1..=PRINCIPAL_ID_LEN_MAX).contains(&text.len()) || !text.bytes().all(fits) {
        return Err(ValueError::Because("has 1 to 64 characters out of letters, digits and . _ @ -"));
    }
    Ok(text.to_owned())
}

fn certificate_name(text: &str) -> Result<CertificatePattern, ValueError> {
    CertificatePattern::parse(text).ok_or(ValueError::Because(
        "is not the name of a certificate; write a URI, an e-mail address or a host name of at most 255 bytes, with one * at most",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    pub(super) fn check<T: PartialEq + std::fmt::Debug>(kind: StringFormat<T>, rows: &[(&str, Result<T, ValueError>)]) {
        for (text, read) in rows {
            assert_eq!((kind.read)(text), *read, "{text:?}");
        }
    }

    pub(super) fn because<T>(why: &'static str) -> Result<T, ValueError> {
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
                ("20us", because("is shorter than the minimum, 1ms")),
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
}
