//! Resolves `[audit]`.

use super::super::error::MistakeCollector;
use super::super::keys::KeyTable as _;
use super::super::raw::RawConfig;
use crate::audit::{AuditAnchor, AuditSettings};

/// `None` without the table.
pub(super) fn resolve(raw: &RawConfig, report: &mut MistakeCollector) -> Option<AuditSettings> {
    let audit = &raw.audit;
    let location = raw.audit_location.as_ref()?;
    let Some(path) = &audit.path else {
        if !report.has_mistake("audit.path") {
            let location = audit.locations().first().copied().unwrap_or(location);
            report.mistake(location, "has no effect without `audit.path`; write one such as path = \"audit.jsonl\"");
        }
        return None;
    };
    if path.value.file_name().is_none() || path.value.as_os_str().as_encoded_bytes().ends_with(b"/") {
        report.mistake(&path.location, "names no file");
    }
    let is_same = |anchor: &AuditAnchor| *anchor == AuditAnchor::File(path.value.clone());
    if let Some(anchor) = audit.anchor.as_ref().filter(|anchor| is_same(&anchor.value)) {
        report.mistake(&anchor.location, "is the audit file itself; name another file, best on another machine");
    }
    Some(AuditSettings {
        path: path.value.clone(),
        is_required: audit.required.value,
        records_calls: audit.calls.value,
        digests_arguments: audit.arguments_sha256.value,
        anchor: audit.anchor.as_ref().map(|anchor| anchor.value.clone()),
    })
}
