//! Identifies clients by their certificates: the configuration says which name of a certificate is which principal.
//! `tls` verifies certificates in the handshake; no header is read here.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::grant::Grant;
use super::handshake::Admission;
use crate::task::digest::Digest;
use crate::task::time::millis;
use crate::task::{Caller, Claims, NamePattern, Principal, Timestamp};

const NAME_BYTES_MAX: usize = 255;
/// A certificate with more names identifies no client: all would be compared with all patterns.
const NAMES_MAX: usize = 64;

/// The kind of a subject alternative name. Each has its own form, so that no principal has two origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameKind {
    /// Has `://`.
    Uri,
    /// Has one `@`, and no `/` or `:`.
    Email,
    Host,
}

#[derive(Debug)]
struct CertificateName {
    kind: NameKind,
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePattern {
    kind: NameKind,
    text: NamePattern,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateBlock {
    pub san: CertificatePattern,
    /// The principal of a key or token that may come with it; its star is the text of `san`'s star. `None` allows none.
    pub same_as: Option<NamePattern>,
    pub claims: Arc<Claims>,
}

#[derive(Clone, Debug)]
pub struct CertificateRing {
    blocks: Arc<Vec<CertificateBlock>>,
    pub(super) grant: Grant,
}

pub(super) struct PeerCertificate {
    /// Its SHA-256, by which tokens are bound to it.
    pub(super) digest: Digest,
    /// `None` if the certificate cannot be read, or has too many names.
    names: Option<Vec<CertificateName>>,
    pub(super) until: Timestamp,
    chain: Vec<CertificateDer<'static>>,
    admission: Admission,
    /// The owner by the blocks of the last request.
    owner: Mutex<Option<OwnerMemo>>,
}

struct OwnerMemo {
    blocks: Arc<Vec<CertificateBlock>>,
    owner: Result<CertificateOwner, CertificateRefusal>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateOwner {
    pub(super) caller: Caller,
    pub(super) same_as: Option<Principal>,
}

reasons! {
    /// Why a certificate is refused. Only operators see the reason; clients see only the refusal.
    pub(super) enum CertificateRefusal {
        Missing: "certificate_missing", "a client has no certificate";
        Unknown: "certificate_unknown", "a certificate is refused: no `san` of this key matches one of its names";
        Ambiguous: "certificate_ambiguous", "a certificate is refused: two of its names match a `san` of this key";
        Withdrawn: "certificate_withdrawn",
            "a certificate is refused: it has expired, or `client_ca` or `client_crl` has changed";
        OfAnother: "certificate_of_another",
            "a key or token is refused: it is not of the principal that `same_as` names for the certificate beside it";
    }
}

impl CertificateName {
    /// `None` for a text without the form of its kind: it has control characters or a `*`, or is too long.
    fn read(kind: NameKind, text: &str) -> Option<Self> {
        let is_name = kind.has_form(text) && !text.contains('*');
        is_name.then(|| Self { kind, text: kind.normal(text) })
    }

    fn of(name: &GeneralName) -> Option<Self> {
        match name {
            GeneralName::UniformResourceIdentifier(text) => Self::read(NameKind::Uri, text.as_str()),
            GeneralName::Rfc822Name(text) => Self::read(NameKind::Email, text.as_str()),
            GeneralName::DnsName(text) => Self::read(NameKind::Host, text.as_str()),
            GeneralName::OtherName(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EdiPartyName(_)
            | GeneralName::IpAddress(_)
            | GeneralName::RegisteredId(_) => None,
        }
    }
}

impl NameKind {
    fn has_form(self, text: &str) -> bool {
        let is_short = (1..=NAME_BYTES_MAX).contains(&text.len());
        let only = |other: &[u8]| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || other.contains(&byte));
        is_short
            && match self {
                Self::Uri => text.contains("://") && text.bytes().all(|byte| byte.is_ascii_graphic()),
                Self::Email => text.split('@').count() == 2 && only(b"@!#$%&'*+-=?^_`{|}~."),
                Self::Host => only(b"*-._"),
            }
    }

    /// The text as names are compared: hosts have no case.
    fn normal(self, text: &str) -> String {
        match (self, text.split_once('@')) {
            (Self::Uri, _) => text.to_owned(),
            (Self::Email, Some((person, host))) => format!("{person}@{}", host.to_ascii_lowercase()),
            (Self::Host | Self::Email, _) => text.to_ascii_lowercase(),
        }
    }
}

impl CertificatePattern {
    /// Reads a name with at most one `*`. Its form says which kind of name it is for.
    pub fn parse(text: &str) -> Option<Self> {
        let kind = if text.contains("://") {
            NameKind::Uri
        } else if text.contains('@') {
            NameKind::Email
        } else {
            NameKind::Host
        };
        let text = NamePattern::parse(&kind.normal(text)).filter(|_| kind.has_form(text))?;
        Some(Self { kind, text })
    }

    pub const fn has_star(&self) -> bool {
        self.text.has_star()
    }

    fn held<'n>(&self, name: &'n CertificateName) -> Option<&'n str> {
        if self.kind == name.kind { self.text.held(&name.text) } else { None }
    }
}

pub fn block_of<'s>(all: &'s [CertificateBlock], name: &str) -> Option<&'s CertificateBlock> {
    let kinds = [NameKind::Uri, NameKind::Email, NameKind::Host].into_iter();
    let names: Vec<_> =
        kinds.filter_map(|kind| CertificateName::read(kind, name)).filter(|read| read.text == name).collect();
    all.iter().find(|block| names.iter().any(|name| block.san.held(name).is_some()))
}

impl CertificateRing {
    pub fn new(blocks: Vec<CertificateBlock>) -> Self {
        Self { blocks: Arc::new(blocks), grant: Grant::default() }
    }

    /// Replaces `before`. Streams end unless nothing has changed: a certificate's first matching block may be another one now.
    pub(super) fn succeed(&mut self, before: &Self) {
        if self.blocks == before.blocks {
            *self = before.clone();
        } else {
            before.grant.withdraw();
        }
    }

    /// The principal of a certificate: exactly one of its names has a matching block.
    pub(super) fn owner(&self, certificate: &PeerCertificate) -> Result<CertificateOwner, CertificateRefusal> {
        let mut memo = certificate.owner.lock();
        if let Some(known) = memo.as_ref().filter(|known| Arc::ptr_eq(&known.blocks, &self.blocks)) {
            return known.owner.clone();
        }
        let owner = self.find(certificate.names.as_deref().unwrap_or_default(), certificate.until);
        *memo = Some(OwnerMemo { blocks: Arc::clone(&self.blocks), owner: owner.clone() });
        owner
    }

    fn find(&self, names: &[CertificateName], until: Timestamp) -> Result<CertificateOwner, CertificateRefusal> {
        let mut found: Option<(&CertificateName, CertificateOwner)> = None;
        for name in names {
            let first = self.blocks.iter().find_map(|block| Some((block, block.san.held(name)?)));
            let Some((block, held)) = first else { continue };
            if found.as_ref().is_some_and(|(other, _)| other.text != name.text) {
                return Err(CertificateRefusal::Ambiguous);
            }
            let claims = Some(Arc::clone(&block.claims));
            let caller = Caller { claims, until: Some(until), ..Caller::of(Principal::of_certificate(&name.text)) };
            let same_as = block.same_as.as_ref().map(|pattern| {
                let held = if pattern.has_star() { held } else { "" };
                Principal::new(&pattern.filled(held))
            });
            found = Some((name, CertificateOwner { caller, same_as }));
        }
        found.map(|(_, owner)| owner).ok_or(CertificateRefusal::Unknown)
    }
}

impl PeerCertificate {
    /// Reads the verified chain of a connection. `None` without a certificate.
    pub(super) fn read(chain: &[CertificateDer<'_>], admission: Admission) -> Option<Self> {
        let own = chain.first()?;
        let read = Certificate::from_der(own).ok();
        let names = read.as_ref().and_then(names);
        let until = read.map_or(0, |read| millis(read.tbs_certificate.validity.not_after.to_unix_duration()));
        let mut sha256 = Digest([0; 32]);
        sha256.0.copy_from_slice(digest(&SHA256, own).as_ref());
        let chain = chain.iter().map(|one| one.clone().into_owned()).collect();
        let (until, owner) = (Timestamp::from_millis(until), Mutex::default());
        Some(Self { digest: sha256, names, until, chain, admission, owner })
    }

    pub(super) fn names(&self) -> Option<Box<str>> {
        let names = self.names.as_ref()?.iter().map(|name| name.text.as_str());
        Some(names.collect::<Vec<_>>().join(", ").into())
    }

    /// The grant of the files that admit it at `now`; `None` once it has expired, or other files do not admit it.
    pub(super) fn admitted(&self, now: Timestamp) -> Option<Grant> {
        self.admission.grant(&self.chain, now).filter(|_| now < self.until)
    }
}

debug_members!(PeerCertificate, |certificate| names: certificate.names);

fn names(certificate: &Certificate) -> Option<Vec<CertificateName>> {
    let (_, SubjectAltName(listed)) = certificate.tbs_certificate.get::<SubjectAltName>().ok()??;
    (listed.len() <= NAMES_MAX).then(|| listed.iter().filter_map(CertificateName::of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(san: &str, same_as: Option<&str>) -> CertificateBlock {
        let (san, same_as) = (CertificatePattern::parse(san).unwrap(), same_as.and_then(NamePattern::parse));
        CertificateBlock { san, same_as, claims: Arc::default() }
    }

    /// The principal and its `same_as` for a certificate with these names.
    fn owner(
        ring: &CertificateRing,
        names: &[(NameKind, &str)],
    ) -> Result<(String, Option<String>), CertificateRefusal> {
        let names: Vec<_> = names.iter().filter_map(|(kind, text)| CertificateName::read(*kind, text)).collect();
        let text = |principal: &Principal| principal.as_str().to_owned();
        let found = ring.find(&names, Timestamp::from_millis(1))?;
        Ok((text(&found.caller.principal), found.same_as.as_ref().map(text)))
    }

    #[test]
    fn the_only_name_that_a_pattern_of_its_kind_matches_is_the_principal() {
        use CertificateRefusal::{Ambiguous, Unknown};
        use NameKind::{Email, Host, Uri};
        let ring = CertificateRing::new(vec![
            block("spiffe://corp/agents/*", Some("key:*")),
            block("*.Agents.corp", None),
            block("*@corp.example", Some("key:team")),
            block("spiffe://corp/*", None),
        ]);
        let long = format!("spiffe://corp/agents/{}", "a".repeat(300));
        let (agent, host) = ((Uri, "spiffe://corp/agents/ada"), (Host, "a.agents.corp"));
        let known = |name: &str, same_as: Option<&str>| Ok((format!("cert:{name}"), same_as.map(str::to_owned)));
        for (names, expected) in [
            (vec![agent], known("spiffe://corp/agents/ada", Some("key:ada"))),
            (vec![agent, agent], known("spiffe://corp/agents/ada", Some("key:ada"))),
            (vec![(Uri, "spiffe://corp/b")], known("spiffe://corp/b", None)),
            (vec![(Host, "A.agents.CORP"), (Host, "other.example")], known("a.agents.corp", None)),
            (vec![(Email, "Ada@Corp.example")], known("Ada@corp.example", Some("key:team"))),
            (vec![agent, host], Err(Ambiguous)),
            (vec![agent, (Uri, "spiffe://corp/agents/eve")], Err(Ambiguous)),
            (vec![], Err(Unknown)),
            (vec![(Uri, "SPIFFE://corp/agents/ada")], Err(Unknown)),
            (vec![(Host, "spiffe://corp/agents/ada")], Err(Unknown)),
            (vec![(Email, "spiffe://corp/agents/ada")], Err(Unknown)),
            (vec![(Email, "spiffe://corp/agents/a@corp.example")], Err(Unknown)),
            (vec![(Uri, "ada@corp.example")], Err(Unknown)),
            (vec![(Email, "ada@evil@corp.example")], Err(Unknown)),
            (vec![(Uri, "spiffe://corp/agents/*")], Err(Unknown)),
            (vec![(Host, "*.agents.corp")], Err(Unknown)),
            (vec![(Uri, "spiffe://corp/agents/a\0da")], Err(Unknown)),
            (vec![(Uri, "spiffe://corp/agents/a\r\nda")], Err(Unknown)),
            (vec![(Uri, "spiffe://corp/agents/a da")], Err(Unknown)),
            (vec![(Host, "a\0.agents.corp")], Err(Unknown)),
            (vec![(Uri, &long)], Err(Unknown)),
        ] {
            assert_eq!(owner(&ring, &names), expected, "{names:?}");
        }
    }

    #[test]
    fn a_name_of_the_command_line_has_the_block_that_a_certificate_has() {
        let all = [block("*.agents.corp", None), block("spiffe://corp/*", None)];
        for (name, expected) in [
            ("a.agents.corp", Some(0)),
            ("spiffe://corp/a", Some(1)),
            ("A.agents.corp", None),
            ("a.agents.corp/spiffe://corp/", None),
            ("*.agents.corp", None),
            ("", None),
        ] {
            let found = block_of(&all, name).map(|found| all.iter().position(|one| one == found).unwrap());
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn a_pattern_has_one_star_and_the_form_of_a_name() {
        for (text, is_pattern) in [
            ("spiffe://corp/*", true),
            ("*", true),
            ("ada@corp.example", true),
            ("", false),
            ("a*b*c", false),
            ("a?.corp", false),
            ("spiffe://corp/ä", false),
            ("two words", false),
            ("a@b@c", false),
        ] {
            assert_eq!(CertificatePattern::parse(text).is_some(), is_pattern, "{text}");
        }
    }
}
