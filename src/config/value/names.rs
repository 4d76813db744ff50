//! Reads names and patterns: of upstreams, tools, principals, scopes, groups and claims.

use super::{StringFormat, ValueError, not_empty};
use crate::server::client_certificates::CertificatePattern;
use crate::task::{NamePattern, Principal};

formats! {
    UPSTREAM_NAME: String = not_empty, "the name of an upstream such as \"reports\"";
    PATTERN: String = pattern, "a tool's name, with * for any text and ? for one character";
    UPSTREAM_PATTERN: String = pattern, "the name of an upstream such as \"reports\", with * and ?";
    PROMPT_PATTERN: String = pattern, "a prompt's name, with * for any text and ? for one character";
    RESOURCE_PATTERN: String = pattern, "a URI such as \"file:///public/*\", with * and ?";
    ARGUMENT_PATTERN: String = pattern, "a text such as \"staging*\", with * and ?";
    /// A tool's new name, with at most one star.
    NEW_NAME: String = new_name, "a name such as \"make_*\"";
    ARGUMENT: String = not_empty, "the name of an argument such as \"urls\"";
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
    if text.len() > PATTERN_LEN_MAX {
        return Err(ValueError::Because("is longer than 1024 bytes"));
    }
    not_empty(text)
}

fn new_name(text: &str) -> Result<String, ValueError> {
    match NamePattern::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None if text.is_empty() => Err(ValueError::Form),
        None => Err(ValueError::Because("has more than one *, or a ?; one * takes the text of the * in `match`")),
    }
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

/// Checks the form of a principal, as in `who.ids`. Fails with the wanted form.
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
