//! Holds the principals' current rights, which a reload replaces.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::task::{AccessItem, AdmittedCallers, Caller, PrincipalAccessTable, ToolAccess, WithheldBy};

/// The rights by the newest configuration, which may lack a request's credential. By default, all may use everything.
#[derive(Clone, Debug, Default)]
pub struct SharedAccess(Arc<AccessState>);

#[derive(Debug, Default)]
struct AccessState {
    /// For requests: readers of the channel would contend for its lock.
    in_force: ArcSwap<AccessInForce>,
    changes: watch::Sender<Arc<AccessInForce>>,
}

#[derive(Debug, Default)]
struct AccessInForce {
    table: Arc<PrincipalAccessTable>,
    callers: AdmittedCallers,
}

impl AccessInForce {
    fn has_upstream(&self, caller: &Caller, upstream: &str) -> bool {
        self.callers.have(&caller.principal) && self.table.has_upstream(caller, upstream)
    }
}

impl SharedAccess {
    /// Applies from the next request on.
    pub fn replace(&self, table: Arc<PrincipalAccessTable>, callers: AdmittedCallers) {
        let access = Arc::new(AccessInForce { table, callers });
        self.0.in_force.store(Arc::clone(&access));
        self.0.changes.send_replace(access);
    }

    pub fn has_upstream(&self, caller: &Caller, upstream: &str) -> bool {
        self.0.in_force.load().has_upstream(caller, upstream)
    }

    pub fn upstream_withheld_by(&self, caller: &Caller, upstream: &str) -> Option<WithheldBy> {
        let access = self.0.in_force.load();
        match access.callers.have(&caller.principal) {
            true => access.table.upstream_withheld_by(caller, upstream),
            false => Some(WithheldBy::Lists),
        }
    }

    pub fn tools_of(&self, caller: &Caller, upstream: &str) -> ToolAccess {
        let access = self.0.in_force.load();
        match access.callers.have(&caller.principal) {
            true => access.table.tools_of(caller, upstream),
            false => ToolAccess::none(),
        }
    }

    pub fn has_tool(&self, caller: &Caller, upstream: &str, tool: &str) -> bool {
        self.has_item(caller, upstream, AccessItem::Tool(tool))
    }

    pub fn has_every_tool(&self, caller: &Caller, upstream: &str) -> bool {
        self.has_upstream(caller, upstream) && !self.tools_of(caller, upstream).is_narrowed()
    }

    pub fn has_item(&self, caller: &Caller, upstream: &str, item: AccessItem<'_>) -> bool {
        let access = self.0.in_force.load();
        access.callers.have(&caller.principal) && access.table.has_item(caller, upstream, item)
    }

    pub fn withholds_items(&self) -> bool {
        self.0.in_force.load().table.withholds_items()
    }

    pub fn withholds_tools(&self, upstream: &str) -> bool {
        self.0.in_force.load().table.withholds_tools(upstream)
    }

    /// Whether rules decide about callers without a credential, too.
    pub fn has_rules(&self) -> bool {
        !self.0.in_force.load().table.rules().rules.is_empty()
    }

    pub fn rules_changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut access = self.0.changes.subscribe();
        let before = Arc::clone(&access.borrow_and_update().table);
        async move {
            if access.wait_for(|access| !access.table.rules().decide_like(before.rules())).await.is_err() {
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
        let (mut access, caller) = (self.0.changes.subscribe(), caller.clone());
        async move {
            let are_lost =
                |access: &Arc<AccessInForce>| !upstreams.iter().any(|upstream| access.has_upstream(&caller, upstream));
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
    use crate::task::{AccessRules, AccessVerdict, CredentialHolders, DecisionArguments, Principal, PrincipalAccess};

    fn only(upstream: &str) -> Arc<PrincipalAccessTable> {
        let access = PrincipalAccess { upstreams: Some([Arc::from(upstream)].into()), ..PrincipalAccess::default() };
        let own = HashMap::from([(Principal::holding("ada"), access)]);
        Arc::new(PrincipalAccessTable::new(own, AccessRules::default(), HashMap::new()))
    }

    #[tokio::test]
    async fn a_principal_that_loses_an_upstream_is_notified_and_no_other() {
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
        access.replace(only("files"), AdmittedCallers::All);
        assert_eq!(told(), [true, false, false]);
        assert!(!access.has_upstream(&ada, "reports") && access.has_upstream(&bob, "reports"));
        let late = access.upstream_lost(&ada, &reports).now_or_never();
        assert!(late.is_some(), "at once, where it was lost before");
        let mut both = access.upstreams_lost(&ada, vec![Arc::clone(&reports), files]).boxed();
        assert!((&mut both).now_or_never().is_none(), "one of the two is left");
        access.replace(only("letters"), AdmittedCallers::All);
        assert!((&mut both).now_or_never().is_some());
    }

    /// An entry that is absent from the table never widens access: neither a list's, nor a denying rule's.
    #[tokio::test]
    async fn a_principal_without_a_credential_in_the_configuration_has_no_rights() {
        const ISSUER: &str = "https://login.example";
        let (key, gone) = (Principal::holding("ada"), Principal::holding("bob"));
        let (agent, host) = (Principal::of_certificate("spiffe://corp/a"), Principal::of_certificate("a.corp"));
        let token = Principal::of_subject(ISSUER, "ada");
        let (team, foreign) =
            (Principal::of_claim(ISSUER, "team", "a"), Principal::of_subject("https://b.example", "ada"));
        let (local, bearing) = (Principal::local(), Principal::bearing(b"Bearer ada"));
        let holders = || CredentialHolders::new([key.clone()]).with_issuers([ISSUER]);
        let all = holders().with_certificates(|name| name.starts_with("spiffe://"));
        for (admitted, has, lacks) in [
            (AdmittedCallers::All, vec![&key, &gone, &agent, &token, &local], vec![]),
            (AdmittedCallers::Keyless, vec![&local, &bearing], vec![&key, &gone, &agent, &token, &team]),
            (AdmittedCallers::Holders(holders()), vec![&key, &token, &team], vec![&gone, &agent, &foreign, &local]),
            (AdmittedCallers::Holders(all), vec![&key, &agent, &token], vec![&gone, &host, &foreign, &local, &bearing]),
        ] {
            let access = SharedAccess::default();
            let lost = Caller::of(gone.clone());
            let ended = access.upstream_lost(&lost, &Arc::from("reports"));
            let is_withdrawn = lacks.contains(&&gone);
            access.replace(Arc::default(), admitted);
            assert_eq!(ended.now_or_never().is_some(), is_withdrawn);
            for (principals, expected) in [(has, true), (lacks, false)] {
                for principal in principals {
                    let caller = Caller::of(principal.clone());
                    let (item, any) = (AccessItem::Tool("t"), DecisionArguments::Any);
                    let tools = access.tools_of(&caller, "reports");
                    let is_allowed = tools.decision(item, any).verdict == AccessVerdict::Allowed;
                    assert_eq!(is_allowed, expected, "{caller:?}");
                    assert_eq!(access.has_upstream(&caller, "reports"), expected, "{caller:?}");
                    assert_eq!(access.has_tool(&caller, "reports", "t"), expected, "{caller:?}");
                    assert_eq!(tools.has_resource("file:///a") && tools.has_prompt("p"), expected, "{caller:?}");
                    assert_eq!(!tools.is_narrowed() && !tools.narrows_others(), expected, "{caller:?}");
                }
            }
        }
    }
}
