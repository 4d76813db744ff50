//! Defines the forms of single values, and reads durations, sizes, times, texts, files and secrets.

/// Declares formats, each with its type, its reader, and the expected form with an example.
macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $read:ident, $wanted:expr;)*) => {
        $($(#[$doc])* pub(in crate::config) const $name: StringFormat<$type> =
            StringFormat { wanted: $wanted, read: $read };)*
    };
}

mod addresses;
mod names;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use jsonwebtoken::Algorithm;
use toml::value::{Datetime, Offset};

use crate::server::api_keys::{ApiKey, ApiKeyError, KEY_HEADER};
use crate::server::tokens::settings::signature_algorithm;
use crate::task::time::millis;
use crate::task::{Draft, Timestamp};
use crate::upstream::forwarding::may_be_forwarded;
use crate::upstream::token_client::is_client_secret;
use crate::upstream::transport::credential::secret_value;

pub(super) use self::addresses::*;
pub(super) use self::names::*;
pub use self::names::{check_caller_id, check_principal_id};

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
        .ok_or(ValueError::Because("is no value of a header; write one line of visible ASCII, at most 8KiB"))
}

fn client_secret(text: &str) -> Result<String, ValueError> {
    match is_client_secret(text) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::Because("is no password of a client; write one line of text, at most 4KiB")),
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
        "is no algorithm with a public key; write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA",
    ))
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
}
