//! Holds a client's credential for an upstream, and reads the upstream's refusal of it. A credential is kept in memory
//! for its request or session only: never stored, never displayed.

use std::ops::Range;
use std::sync::Arc;

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::subject_token::SubjectToken;
use crate::task::digest::{Digest, digest};

/// Most bytes of one response's challenges together; beyond, none is forwarded.
const CHALLENGES_BYTES_MAX: usize = 8 * 1024;
/// Most header fields with challenges that are read.
const CHALLENGES_MAX: usize = 8;
const METADATA: &str = "resource_metadata";

/// State kept for one credential is never used for another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClientCredential(CredentialState);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum CredentialState {
    #[default]
    NotPassedOn,
    /// The credential would be forwarded, but the client sent none.
    Absent,
    Sent(Arc<SentCredential>),
    /// The client's token is exchanged for a credential of the server, and never sent there itself.
    Exchanged(SubjectToken),
}

struct SentCredential {
    value: HeaderValue,
    digest: Digest,
}

compared_by!(SentCredential, |credential| credential.digest);

debug_members!(SentCredential);

impl ClientCredential {
    pub(super) fn sent(value: Option<&HeaderValue>) -> Self {
        Self(value.map_or(CredentialState::Absent, |value| {
            let (mut value, digest) = (value.clone(), digest([b"forwarded", value.as_bytes()]));
            value.set_sensitive(true);
            CredentialState::Sent(Arc::new(SentCredential { value, digest }))
        }))
    }

    pub(super) fn exchanged(token: Option<SubjectToken>) -> Self {
        Self(token.map_or(CredentialState::Absent, CredentialState::Exchanged))
    }

    /// Whether each client has its own credential at the server.
    pub(crate) fn is_clients(&self) -> bool {
        self.0 != CredentialState::NotPassedOn
    }

    /// Whether the server authenticates clients itself, by the credential that they send.
    pub(crate) const fn is_forwarded(&self) -> bool {
        matches!(self.0, CredentialState::Sent(_) | CredentialState::Absent)
    }

    pub(crate) const fn subject(&self) -> Option<&SubjectToken> {
        if let CredentialState::Exchanged(token) = &self.0 { Some(token) } else { None }
    }

    pub(crate) fn value(&self) -> Option<&HeaderValue> {
        if let CredentialState::Sent(sent) = &self.0 { Some(&sent.value) } else { None }
    }
}

/// A server's refusal of a client's credential: 401 or 403, with its challenges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialRefusal {
    pub status: StatusCode,
    challenges: Vec<HeaderValue>,
}

impl CredentialRefusal {
    /// The refusal in a response's head, if it is one. Unreadable challenges are dropped, and all of them if they are too long.
    pub(super) fn of_head(status: StatusCode, headers: &HeaderMap) -> Option<Self> {
        let said = headers.get_all(WWW_AUTHENTICATE);
        let is_refusal = match status {
            StatusCode::UNAUTHORIZED => true,
            // Without a challenge, a 403 has other reasons, such as an unknown host, that a login would not fix.
            StatusCode::FORBIDDEN => headers.contains_key(WWW_AUTHENTICATE),
            _ => false,
        };
        if !is_refusal {
            return None;
        }
        let is_short = said.iter().map(HeaderValue::len).sum::<usize>() <= CHALLENGES_BYTES_MAX;
        let readable =
            said.iter().filter(|value| is_short && value.to_str().is_ok_and(|text| metadata_in(text).is_some()));
        Some(Self { status, challenges: readable.take(CHALLENGES_MAX).cloned().collect() })
    }

    /// The challenges, with `metadata` in place of each metadata address. A 401 always has one (RFC 9110, 15.5.2).
    pub fn challenges(&self, metadata: &str) -> Vec<HeaderValue> {
        let named = self.challenges.iter().filter_map(|value| with_metadata(value, metadata)).collect::<Vec<_>>();
        if named.is_empty() && self.status == StatusCode::UNAUTHORIZED {
            return vec![HeaderValue::from_static("Bearer")];
        }
        named
    }

    pub fn metadata_address(&self) -> Option<String> {
        let texts = self.challenges.iter().filter_map(|value| value.to_str().ok());
        texts.filter_map(metadata_in).flatten().map(|(_, address)| address).next()
    }
}

fn with_metadata(value: &HeaderValue, metadata: &str) -> Option<HeaderValue> {
    let text = value.to_str().ok()?;
    let mut edited = text.to_owned();
    // From the last on, so that earlier ranges stay valid.
    for (place, _) in metadata_in(text)?.into_iter().rev() {
        edited.replace_range(place, &format!("\"{metadata}\""));
    }
    HeaderValue::try_from(edited).ok()
}

/// All metadata addresses of a field, and their ranges with quotes; `None` if a quote is not closed: ambiguous names.
fn metadata_in(text: &str) -> Option<Vec<(Range<usize>, String)>> {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at] == b'"' {
            at = quoted(text, at)?.0;
            continue;
        }
        let name = run(bytes, at, is_token);
        if name == at {
            at += 1;
            continue;
        }
        let equals = run(bytes, name, is_blank);
        let is_named = text[at..name].eq_ignore_ascii_case(METADATA) && bytes.get(equals) == Some(&b'=');
        at = name;
        if !is_named {
            continue;
        }
        let begin = run(bytes, equals + 1, is_blank);
        let (end, address) = match bytes.get(begin) {
            Some(b'"') => quoted(text, begin)?,
            _ => {
                let end = run(bytes, begin, |byte| byte != b',' && !is_blank(byte));
                (end, text[begin..end].to_owned())
            }
        };
        found.push((begin..end, address));
        at = end;
    }
    Some(found)
}

/// The end of a quoted string that begins at `at`, and its text.
fn quoted(text: &str, at: usize) -> Option<(usize, String)> {
    let mut said = String::new();
    let mut rest = text[at + 1..].char_indices();
    while let Some((place, character)) = rest.next() {
        match character {
            '"' => return Some((at + 1 + place + 1, said)),
            '\\' => said.push(rest.next()?.1),
            other => said.push(other),
        }
    }
    None
}

fn run(bytes: &[u8], begin: usize, belongs: impl Fn(u8) -> bool) -> usize {
    bytes[begin..].iter().position(|byte| !belongs(*byte)).map_or(bytes.len(), |length| begin + length)
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether a byte may be in a scheme's or parameter's name (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "https://ours/.well-known/oauth-protected-resource/up/mcp";

    fn refusal(status: u16, fields: &[&[u8]]) -> CredentialRefusal {
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_bytes(field).unwrap());
        }
        CredentialRefusal::of_head(StatusCode::from_u16(status).unwrap(), &headers).unwrap()
    }

    /// RFC 9728, 5.1; RFC 6750, 3.
    #[test]
    fn the_address_of_the_metadata_is_ours_and_all_else_is_as_it_came() {
        for (said, address, shown) in [
            ("Bearer resource_metadata=\"https://up/x\"", Some("https://up/x"), "Bearer resource_metadata=\"OURS\""),
            (
                "Bearer realm=\"a, resource_metadata=\\\"b\\\"\", Resource_Metadata = https://up/x, scope=\"a b\"",
                Some("https://up/x"),
                "Bearer realm=\"a, resource_metadata=\\\"b\\\"\", Resource_Metadata = \"OURS\", scope=\"a b\"",
            ),
            (
                "Bearer error=\"insufficient_scope\", scope=\"files:write\"",
                None,
                "Bearer error=\"insufficient_scope\", scope=\"files:write\"",
            ),
            ("Basic realm=\"up\"", None, "Basic realm=\"up\""),
            ("Negotiate YWJj==", None, "Negotiate YWJj=="),
            (
                "DPoP algs=\"ES256\", resource_metadata=\"https://up/a\", Bearer resource_metadata=\"https://up/b\"",
                Some("https://up/a"),
                "DPoP algs=\"ES256\", resource_metadata=\"OURS\", Bearer resource_metadata=\"OURS\"",
            ),
            (
                "Bearer resource_metadata=\"https://up/\\\"x\"",
                Some("https://up/\"x"),
                "Bearer resource_metadata=\"OURS\"",
            ),
            ("Bearer resource_metadata", None, "Bearer resource_metadata"),
            ("Bearer x_resource_metadata=\"y\"", None, "Bearer x_resource_metadata=\"y\""),
            ("", None, ""),
        ] {
            let refusal = refusal(401, &[said.as_bytes()]);
            assert_eq!(refusal.metadata_address().as_deref(), address, "{said}");
            assert_eq!(refusal.challenges(OURS), [shown.replace("OURS", OURS)], "{said}");
        }
    }

    #[test]
    fn challenges_that_no_client_could_read_are_left_out_and_a_401_has_one_all_the_same() {
        let long = format!("Bearer scope=\"{}\"", "x".repeat(CHALLENGES_BYTES_MAX));
        let many = ["Bearer"; 9].map(str::as_bytes);
        for (status, fields, shown) in [
            (401, &[][..], &["Bearer"][..]),
            (401, &[long.as_bytes()][..], &["Bearer"][..]),
            (401, &[b"Bearer realm=\"open".as_slice()][..], &["Bearer"][..]),
            (401, &[b"Bearer realm=\"caf\xe9\"".as_slice(), b"Basic realm=\"a\""][..], &["Basic realm=\"a\""][..]),
            (403, &[b"Bearer realm=\"caf\xc3\xa9\"".as_slice()][..], &[][..]),
            (401, &many[..], &["Bearer"; 8][..]),
        ] {
            assert_eq!(refusal(status, fields).challenges(OURS), shown, "{status} {fields:?}");
        }
        for status in [StatusCode::OK, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND] {
            assert_eq!(CredentialRefusal::of_head(status, &HeaderMap::new()), None, "{status}");
        }
    }

    #[test]
    fn credentials_are_told_apart_and_never_shown() {
        let sent = |text| ClientCredential::sent(Some(&HeaderValue::from_static(text)));
        assert_eq!(sent("Bearer ada"), sent("Bearer ada"));
        assert_ne!(sent("Bearer ada"), sent("Bearer bob"));
        assert_ne!(ClientCredential::sent(None), ClientCredential::default());
        assert!(!format!("{:?}", sent("Bearer ada")).contains("ada"));
    }
}
