//! Holds the principals' current rights, which a reload replaces.

use std::sync::Arc;

use tokio::sync::watch;

use crate::task::{Caller, PrincipalAccessTable, ToolAccess};

#[derive(Clone, Debug)]
pub struct SharedAccess(Arc<watch::Sender<Arc<PrincipalAccessTable>>>);

/// Every principal may use everything.
impl Default for SharedAccess {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Arc::default())))
    }
}

impl SharedAccess {
    /// Applies from the next request on.
    pub fn replace(&self, table: Arc<PrincipalAccessTable>) {
        self.0.send_replace(table);
    }

    pub fn has_upstream(&self, caller: &Caller, upstream: &str) -> bool {
        self.0.borrow().has_upstream(caller, upstream)
    }

    pub fn tools_of(&self, caller: &Caller, upstream: &str) -> ToolAccess {
        self.0.borrow().tools_of(caller, upstream)
    }

    /// Whether a caller may use the upstream and tool of its task.
    pub fn has_tool(&self, caller: &Caller, upstream: &str, tool: &str) -> bool {
        self.0.borrow().has_tool(caller, upstream, tool)
    }

    /// Returns once there are other rules.
    pub fn rules_changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut access = self.0.subscribe();
        let before = Arc::clone(&access.borrow_and_update());
        async move {
            if access.wait_for(|table| !table.rules().decide_like(before.rules())).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns once a caller may not use an upstream any more.
    pub fn upstream_lost(&self, caller: &Caller, upstream: &Arc<str>) -> impl Future<Output = ()> + Send + use<> {
        self.upstreams_lost(caller, vec![Arc::clone(upstream)])
    }

    /// Returns once a caller may not use any of these upstreams any more.
    pub fn upstreams_lost(&self, caller: &Caller, upstreams: Vec<Arc<str>>) -> impl Future<Output = ()> + Send + use<> {
        let (mut access, caller) = (self.0.subscribe(), caller.clone());
        async move {
            let are_lost = |table: &Arc<PrincipalAccessTable>| {
                !upstreams.iter().any(|upstream| table.has_upstream(&caller, upstream))
            };
            // A dropped table withdraws nothing.
            if access.wait_for(are_lost).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::task::{AccessRules, Principal, PrincipalAccess};

    fn only(upstream: &str) -> Arc<PrincipalAccessTable> {
        let access = PrincipalAccess { upstreams: Some([Arc::from(upstream)].into()), ..PrincipalAccess::default() };
        let own = HashMap::from([(Principal::holding("ada"), access)]);
        Arc::new(PrincipalAccessTable::new(own, AccessRules::default(), HashMap::new()))
    }

    #[tokio::test]
    async fn whoever_loses_an_upstream_is_told_of_it_and_nobody_else() {
        let [ada, bob] = ["ada", "bob"].map(|id| Caller::of(Principal::holding(id)));
        let access = SharedAccess::default();
        let (reports, files) = (Arc::from("reports"), Arc::from("files"));
        let mut waits = [
            access.upstream_lost(&ada, &reports).boxed(),
            access.upstream_lost(&bob, &reports).boxed(),
            access.upstream_lost(&ada, &files).boxed(),
        ];
        let mut told = || waits.each_mut().map(|wait| wait.now_or_never().is_some());
        assert_eq!(told(), [false; 3]);
        access.replace(only("files"));
        assert_eq!(told(), [true, false, false]);
        assert!(!access.has_upstream(&ada, "reports") && access.has_upstream(&bob, "reports"));
        let late = access.upstream_lost(&ada, &reports).now_or_never();
        assert!(late.is_some(), "at once, where it was lost before");
        let mut both = access.upstreams_lost(&ada, vec![Arc::clone(&reports), files]).boxed();
        assert!((&mut both).now_or_never().is_none(), "one of the two is left");
        access.replace(only("letters"));
        assert!((&mut both).now_or_never().is_some());
    }
}
