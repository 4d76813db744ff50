//! Restarts a gateway in this process after its incarnation on a shared store has ended.

use std::net::SocketAddr;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;

use super::listeners::StoreSource;
use super::reload::ReloadSummary;
use super::shared_store::{RETRY, RetryReasons};
use super::sockets::{SocketError, Sockets};
use super::task_store::StoreRefusal;
use super::{Gateway, files};
use crate::config::{Config, StoreSettings};
use crate::server::RunningListener;
use crate::store::postgres::PriorIncarnation;
use crate::task::{Clock as _, SystemClock};

/// The settings and sockets of the restart. Clients that connect earlier wait.
#[derive(Debug)]
pub(super) struct Successor {
    started: Config,
    config: Config,
    addresses: UsedAddresses,
    sockets: Arc<Sockets>,
    former: PriorIncarnation,
}

/// The addresses at which the gateway listens. Configured addresses may have port 0, or differ from passed sockets.
#[derive(Clone, Copy, Debug)]
struct UsedAddresses {
    clients: SocketAddr,
    admin: SocketAddr,
    metrics: Option<SocketAddr>,
    replicas: Option<SocketAddr>,
}

impl UsedAddresses {
    fn write_into(self, config: &mut Config) {
        (config.listen.address, config.admin.address, config.metrics) = (self.clients, self.admin, self.metrics);
        if let (StoreSettings::Postgres(database), Some(address)) = (&mut config.store, self.replicas) {
            database.replica.address = Some(address);
        }
    }
}

impl Successor {
    pub(super) fn of(gateway: &Gateway, former: PriorIncarnation) -> Self {
        let started = gateway.started.clone();
        let addresses = UsedAddresses {
            clients: gateway.address(),
            admin: gateway.admin_address(),
            metrics: gateway.metrics_address(),
            replicas: gateway.replica_address(),
        };
        let sockets = Sockets {
            clients: gateway.clients.socket(),
            admin: gateway.admin.socket(),
            metrics: gateway.metrics.as_ref().and_then(RunningListener::socket),
            replicas: gateway.replicas.as_ref().and_then(|replicas| replicas.running.socket()),
        };
        let config = gateway.current.clone().within(&started);
        Self { config, started, addresses, sockets: Arc::new(sockets), former }
    }

    /// Changes its configuration as [`Gateway::reload`] does, or nothing if that fails. The files that only a start
    /// reads are replaced, too: the earlier files may be gone ([`Config::take_moved_files`]).
    pub(super) fn reload(&mut self, config: Config) -> anyhow::Result<ReloadSummary> {
        files::check(&config, SystemClock.now())?;
        let mut started = self.started.clone();
        started.take_moved_files(&config);
        let need_restart = config.need_restart(&started);
        let config = config.within(&started);
        self.sockets.check(&config)?;
        (self.started, self.config) = (started, config);
        Ok(ReloadSummary { opened: self.config.upstreams.len(), need_restart, ..ReloadSummary::default() })
    }

    /// Starts the gateway with the current configuration. Every failure is retried but a permanent refusal by the store
    /// or the rules for sockets: all of it worked before, and files may be being rewritten just now.
    pub(super) fn begin(
        &self,
        metrics: &PrometheusHandle,
    ) -> impl Future<Output = anyhow::Result<Gateway>> + Send + use<> {
        let (mut config, sockets, metrics) = (self.config.clone(), Arc::clone(&self.sockets), metrics.clone());
        let (started, current, former) = (self.started.clone(), config.clone(), self.former);
        self.addresses.write_into(&mut config);
        async move {
            let mut reasons = RetryReasons::default();
            loop {
                let source = StoreSource::ConfigAgain(former);
                let start = Gateway::start_with(config.clone(), metrics.clone(), sockets.again(), source);
                let error = match Box::pin(start).await {
                    // A reload compares addresses with those in the file of the first start.
                    Ok(mut gateway) => {
                        (gateway.started, gateway.current) = (started, current);
                        return Ok(gateway);
                    }
                    Err(error) => error,
                };
                let is_final =
                    error.downcast_ref::<StoreRefusal>().is_some_and(|refusal| !refusal.is_tried_by_a_successor());
                if is_final || error.is::<SocketError>() {
                    return Err(error);
                }
                reasons.log(format!("{error:#}"));
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
