//! Resolves the certificates of clients: the files that verify them, and the names that identify them.

use std::sync::Arc;

use super::super::error::{ConfigLocation, MistakeCollector};
use super::super::keys::KeyField as _;
use super::super::raw::{AuthMode, RawCertificate, RawConfig};
use super::super::section::LocatedValue;
use super::access::texts;
use crate::server::client_certificates::CertificateBlock;
use crate::task::{Claims, NamePattern, Principal};
use crate::tls::{CertificateNeed, ClientCertificateFiles};

/// The most blocks: each new certificate is compared with all.
const BLOCKS_MAX: usize = 1_000;

pub(super) fn files(raw: &RawConfig, report: &mut MistakeCollector) -> Option<ClientCertificateFiles> {
    let tls = &raw.listen_tls;
    let Some(ca) = &tls.client_ca else {
        if !report.has_mistake("listen.tls.client_ca") {
            let crl = tls.client_crl.as_ref().map(|crl| &crl.location);
            for location in [crl, tls.client_certificates.location()].into_iter().flatten() {
                report.mistake(location, "has no effect without `client_ca`; write one beside it");
            }
        }
        return None;
    };
    let is_read = [AuthMode::Certificates, AuthMode::Tokens].into_iter().any(|mode| raw.auth.asks_for(mode));
    let is_required = tls.client_certificates.value == CertificateNeed::Required;
    if !is_read
        && !is_required
        && !report.has_mistake("auth.mode")
        && !report.has_mistake("listen.tls.client_certificates")
    {
        let message = "no client needs a certificate; write `mode = \"certificates\"` in [auth], or \
                       `client_certificates = \"required\"` here";
        report.mistake(&ca.location, message);
    }
    Some(ClientCertificateFiles {
        ca: ca.value.clone(),
        crl: tls.client_crl.as_ref().map(|crl| crl.value.clone()),
        need: tls.client_certificates.value,
    })
}

/// The blocks of `[[auth.certificates]]`; without effect unless `auth.mode` names certificates.
pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> Vec<CertificateBlock> {
    if !raw.auth.asks_for(AuthMode::Certificates) {
        if let Some(block) = raw.certificates.first().filter(|_| !report.has_mistake("auth.mode")) {
            report.mistake(
                &block.location,
                "no client is asked for a certificate; write `mode = \"certificates\"` in [auth]",
            );
        }
    } else if let Some(location) = raw.auth.mode.location() {
        check_needs(raw, location, report);
    }
    if let Some(late) = raw.certificates.get(BLOCKS_MAX) {
        report.mistake(&late.location, format!("there are more than {BLOCKS_MAX} blocks; write a * in `san`"));
        return Vec::new();
    }
    let mut all: Vec<CertificateBlock> = Vec::new();
    for block in &raw.certificates {
        let Some(resolved) = resolve_block(block, raw, report) else { continue };
        if all.iter().any(|other| other.san == resolved.san) {
            report.mistake(&block.location, "another block has the same `san`; write each once");
        }
        all.push(resolved);
    }
    all
}

fn check_needs(raw: &RawConfig, location: &ConfigLocation, report: &mut MistakeCollector) {
    if raw.listen_tls.client_ca.is_none()
        && !["listen.tls", "listen.tls.client_ca"].into_iter().any(|key| report.has_mistake(key))
    {
        let message = "no authority verifies certificates; write `client_ca` in [listen.tls]";
        report.mistake(location, message);
    }
    if raw.certificates.is_empty() && !report.has_mistake_in("auth.certificates") {
        let message = "no certificate is declared; write [[auth.certificates]] with a `san` below it";
        report.mistake(location, message);
    }
}

fn resolve_block(block: &RawCertificate, raw: &RawConfig, report: &mut MistakeCollector) -> Option<CertificateBlock> {
    let values = &block.values;
    let same_as = values.same_as.as_ref();
    let san = values.san.as_ref()?;
    if let Some(same_as) = same_as {
        check_same(same_as, san.value.has_star(), raw, report);
    }
    let claims =
        Claims { scopes: texts(values.scopes.as_ref()), groups: texts(values.groups.as_ref()), ..Claims::default() };
    Some(CertificateBlock {
        san: san.value.clone(),
        same_as: same_as.and_then(|same_as| NamePattern::parse(&same_as.value)),
        claims: Arc::new(claims),
    })
}

fn check_same(same_as: &LocatedValue<String>, has_star: bool, raw: &RawConfig, report: &mut MistakeCollector) {
    let is_star = same_as.value.contains('*');
    let key = Principal::new(&same_as.value);
    let mut ids = raw.api_keys.iter().filter_map(|one| one.values.id.as_ref());
    if is_star && !has_star {
        report.mistake(&same_as.location, "has a *, and `san` beside it has none; write the whole principal");
    } else if let Some(id) = key.key_id().filter(|_| !is_star)
        && !ids.any(|one| one.value == id)
    {
        report.mistake(&same_as.location, format!("there is no key with the id of {:?}", same_as.value));
    }
}
