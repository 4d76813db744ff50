//! Opens a client of 2026-07-28 that declares tasks and elicitation.

use std::error::Error;

use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, ProtocolVersion};
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, RoleClient, RunningService};
use rmcp::transport::IntoTransport;

pub(crate) async fn connect<T, E, A>(
    transport: T,
) -> Result<RunningService<RoleClient, ClientConfig>, ClientInitializeError>
where
    T: IntoTransport<RoleClient, E, A>,
    E: Error + Send + Sync + 'static,
{
    let capabilities = ClientCapabilities::builder().enable_tasks().enable_elicitation().build();
    let config = ClientConfig::new(capabilities, Implementation::new("my-agent", "1.0.0"));
    let lifecycle = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(ProtocolVersion::V_2025_11_25),
    };
    config.serve_with_lifecycle(transport, lifecycle).await
}
