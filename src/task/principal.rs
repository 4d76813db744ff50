//! Defines the owner of a task.

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::digest::SHA256;

use super::digest::{digest, hex};

/// The scheme of principals with an unchecked upstream credential.
const UNCHECKED: &str = "cred:";
const KEY: &str = "key:";
/// The scheme of principals with an access token; the issuer's digest follows.
const TOKEN: &str = "jwt:";
const CERTIFICATE: &str = "cert:";
/// How many digits of an issuer's digest distinguish issuers.
const ISSUER_DIGITS: usize = 16;
const LOCAL_USER: &str = "local";
const ANONYMOUS: &str = "anon";
/// The prefix for anonymous requests from one address, when they are counted.
const AT_ADDRESS: &str = "anon@";
const READER: &str = "operator:read";
const ACTOR: &str = "operator:act";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorRight {
    Read,
    Act,
}

/// The verified identity of a request. Part of every task's key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// The single user of a loopback listener without authentication (T-22).
    pub fn local() -> Self {
        static LOCAL: LazyLock<Principal> = LazyLock::new(|| Principal::new(LOCAL_USER));
        LOCAL.clone()
    }

    pub fn is_local(&self) -> bool {
        *self.0 == *LOCAL_USER
    }

    /// An unidentified client: the task id is then a bearer secret.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS)
    }

    /// A client with a credential for the upstream, unchecked and kept as a digest. Equal ones are one principal.
    pub fn bearing(credential: &[u8]) -> Self {
        let mut text = String::from(UNCHECKED);
        for byte in digest([b"credential", credential]).0 {
            let _ = write!(text, "{byte:02x}");
        }
        Self::new(&text)
    }

    pub fn holding(id: &str) -> Self {
        Self::new(&format!("{KEY}{id}"))
    }

    /// The holder of a certificate with this name. URIs, e-mail addresses and host names differ in form.
    pub fn of_certificate(name: &str) -> Self {
        Self::new(&format!("{CERTIFICATE}{name}"))
    }

    /// The subject of an issuer's tokens, or the client without a person. Two issuers' subjects always differ (B156).
    pub fn of_subject(issuer: &str, subject: &str) -> Self {
        Self::new(&format!("{TOKEN}{}:{subject}", Self::issuer_digits(issuer)))
    }

    /// All subjects of an issuer with one value of a claim. No subject is such a principal, as no digest has a `/`.
    pub fn of_claim(issuer: &str, claim: &str, value: &str) -> Self {
        Self::new(&format!("{TOKEN}{}/{claim}:{value}", Self::issuer_digits(issuer)))
    }

    /// The beginning of all principals that an issuer's tokens belong to.
    pub fn prefix_of_issuer(issuer: &str, owner_claim: Option<&str>) -> Self {
        owner_claim.map_or_else(|| Self::of_subject(issuer, ""), |claim| Self::of_claim(issuer, claim, ""))
    }

    pub fn operator(may: OperatorRight) -> Self {
        Self::new(match may {
            OperatorRight::Read => READER,
            OperatorRight::Act => ACTOR,
        })
    }

    /// Whether an operator may make changes. Without operator tokens, all may.
    pub fn may_act(&self) -> bool {
        &*self.0 != READER
    }

    /// Whether several people may be this principal, as they share the value of a claim.
    pub fn is_shared(&self) -> bool {
        let rest = self.0.strip_prefix(TOKEN).and_then(|rest| rest.get(ISSUER_DIGITS..));
        rest.is_some_and(|rest| rest.starts_with('/'))
    }

    /// An identity in its written form, with a scheme prefix (`key:…`, `jwt:…`).
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// The principal that requests are counted for: anonymous ones are counted by address. It owns no tasks.
    pub fn counted_at(&self, address: Option<impl fmt::Display>) -> Self {
        match address {
            Some(address) if !self.is_identified() => Self::new(&format!("{AT_ADDRESS}{address}")),
            Some(_) | None => self.clone(),
        }
    }

    /// Whether a text is the id of a principal that a client may be: one with a known scheme, or without a credential.
    pub fn is_id(text: &str) -> bool {
        let has_name = |scheme| text.strip_prefix(scheme).is_some_and(|name: &str| !name.is_empty());
        [KEY, TOKEN, CERTIFICATE, UNCHECKED].into_iter().any(has_name) || matches!(text, "local" | ANONYMOUS)
    }

    pub fn key_id(&self) -> Option<&str> {
        self.0.strip_prefix(KEY)
    }

    pub fn has_token(&self) -> bool {
        self.0.starts_with(TOKEN)
    }

    pub fn certificate_name(&self) -> Option<&str> {
        self.0.strip_prefix(CERTIFICATE)
    }

    /// The address by which anonymous requests are counted.
    pub fn address(&self) -> Option<&str> {
        self.0.strip_prefix(AT_ADDRESS)
    }

    /// Whether it is an unchecked credential or an address: one client can have any number of them.
    pub fn is_unchecked(&self) -> bool {
        self.0.starts_with(UNCHECKED) || self.0.starts_with(AT_ADDRESS)
    }

    pub fn issuer_digits(issuer: &str) -> String {
        let mut digits = hex(aws_lc_rs::digest::digest(&SHA256, issuer.as_bytes()).as_ref());
        digits.truncate(ISSUER_DIGITS);
        digits
    }

    pub fn is_of(&self, issuer: &str) -> bool {
        let rest = self.0.strip_prefix(TOKEN).and_then(|rest| rest.strip_prefix(Self::issuer_digits(issuer).as_str()));
        rest.is_some_and(|rest| rest.starts_with([':', '/']))
    }

    /// Whether the credential is one that the gateway itself checks, such as an API key or a token.
    pub fn has_credential(&self) -> bool {
        self.key_id().is_some() || self.has_token() || self.certificate_name().is_some()
    }

    pub fn issuer(&self) -> Option<&str> {
        self.0.strip_prefix(TOKEN)?.get(..ISSUER_DIGITS)
    }

    /// How it was identified, in one word.
    pub fn scheme(&self) -> &'static str {
        match &*self.0 {
            text if text.starts_with(KEY) => "api_key",
            text if text.starts_with(TOKEN) => "token",
            text if text.starts_with(CERTIFICATE) => "certificate",
            text if text.starts_with(UNCHECKED) => "upstream_credential",
            READER | ACTOR => "operator_token",
            text if text.starts_with(ANONYMOUS) => "nothing",
            _ => "local",
        }
    }

    /// Whether it identifies a client, so that its task list is private (T-22, T-43).
    pub fn is_identified(&self) -> bool {
        &*self.0 != ANONYMOUS
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored, so it must never change.
    #[test]
    fn a_credential_is_one_person_in_every_version_and_is_not_kept() {
        let ada = Principal::bearing(b"Bearer ada");
        assert_eq!(ada, Principal::bearing(b"Bearer ada"));
        assert_ne!(ada, Principal::bearing(b"Bearer bob"));
        assert!(ada.is_identified() && ada != Principal::local());
        assert!(ada.as_str().starts_with("cred:") && ada.as_str().len() == 5 + 64, "{ada:?}");
    }

    /// Stored, so it must never change.
    #[test]
    fn a_subject_is_one_person_of_its_issuer_and_no_team_in_every_version() {
        let ada = Principal::of_subject("https://login.example", "ada");
        assert_eq!(ada.as_str(), "jwt:ced4229bf4ad3faa:ada");
        assert_eq!(
            Principal::of_claim("https://login.example", "team", "ada").as_str(),
            "jwt:ced4229bf4ad3faa/team:ada"
        );
        assert_ne!(ada, Principal::of_subject("https://login.example/", "ada"));
        assert!(ada.is_identified() && !ada.is_unchecked() && ada.key_id().is_none());
        let agent = Principal::of_certificate("spiffe://corp/agent");
        assert_eq!(
            (agent.as_str(), agent.certificate_name()),
            ("cert:spiffe://corp/agent", Some("spiffe://corp/agent"))
        );
    }

    /// An auditor reads by it how a client was identified.
    #[test]
    fn each_kind_of_principal_has_its_own_scheme() {
        let kinds = [
            (Principal::holding("ada"), "api_key"),
            (Principal::of_subject("https://login.example", "ada"), "token"),
            (Principal::of_claim("https://login.example", "team", "ada"), "token"),
            (Principal::of_certificate("spiffe://corp/agent"), "certificate"),
            (Principal::bearing(b"Bearer ada"), "upstream_credential"),
            (Principal::operator(OperatorRight::Read), "operator_token"),
            (Principal::operator(OperatorRight::Act), "operator_token"),
            (Principal::anonymous(), "nothing"),
            (Principal::local(), "local"),
        ];
        for (principal, scheme) in kinds {
            assert_eq!(principal.scheme(), scheme, "{principal:?}");
        }
    }
}
