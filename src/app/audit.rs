//! Opens the audit file of a gateway, and reports its health.

use std::sync::Arc;
use std::time::Duration;

use super::shared_store::host_name;
use super::{Gateway, GatewayParts};
use crate::audit::{AuditAct, AuditEvent, AuditLog, AuditOpenError};
use crate::config::{Config, StoreSettings};
use crate::server::admin::{Readiness, ReasonWeight};

/// The reason against readiness while the file does not take records.
const AUDIT_FAILING: &str = "audit failing";
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) async fn open(config: &Config) -> Result<Option<Arc<AuditLog>>, AuditOpenError> {
    let Some(settings) = config.audit.clone() else { return Ok(None) };
    let replica = match &config.store {
        StoreSettings::Postgres(database) => Some(database.replica.name.clone().unwrap_or_else(host_name)),
        StoreSettings::Memory(_) | StoreSettings::Disk { .. } => None,
    };
    AuditLog::open(settings, replica.as_deref()).await.map(Some)
}

/// Lets the engine record its events, and readiness show whether the file takes them.
pub(super) fn begin(audit: Option<Arc<AuditLog>>, parts: &GatewayParts, config: &Config, readiness: &Readiness) {
    let Some(audit) = audit else { return };
    know_issuers(&audit, config);
    parts.engine.set_audit(Arc::clone(&audit));
    let (readiness, stop) = (readiness.clone(), parts.scope.stop.clone());
    let weight = if audit.is_required() { ReasonWeight::Blocks } else { ReasonWeight::Limits };
    parts.scope.tracker.spawn(stop.run_until_cancelled_owned(async move {
        loop {
            let why = (!audit.is_written()).then_some((AUDIT_FAILING, weight));
            readiness.show_one_of(&[AUDIT_FAILING], why);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }));
}

pub(super) fn know_issuers(audit: &AuditLog, config: &Config) {
    let issuers = config.auth.tokens().into_iter().flat_map(|tokens| &tokens.issuers);
    audit.know_issuers(issuers.map(|issuer| &*issuer.issuer));
}

impl Gateway {
    /// Continues the audit in a new file if the present one was renamed, and records the outcome of a reload, if a configuration
    /// was read.
    pub(super) fn audit_reload(&self, is_applied: Option<bool>) {
        let Some(audit) = self.parts.engine.audit() else { return };
        audit.reopen();
        if let Some(is_applied) = is_applied {
            let outcome = Some(if is_applied { "applied" } else { "rejected" });
            audit.record(&AuditEvent { outcome, ..AuditEvent::new(AuditAct::Reload) });
        }
    }
}
