//! Opens clients' own sessions, and renews them transparently after the server has lost them.

use std::iter;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;

use super::memory::SessionPreferences;
use super::{END_MAX, OpenedSession, OwnSession, OwnSessions};
use crate::dialect::initialize::{capabilities_in, initialize_request};
use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::raw_channel::{RawMethod, RawRequest, SessionBinding};
use crate::upstream::reply::{self, ErrorAddressee, ReadLimits};
use crate::upstream::session::initialize::{AgreedSession, HANDSHAKE_MAX, SessionOpener, agree, in_time, malformed};
use crate::upstream::upstream_health::HealthMark;
use crate::upstream::{BeginError, ForwardedHeaders, own_ids};
use crate::wire::object::ObjectWriter;
use crate::wire::{Payload, ProtocolVersion, RequestId, envelope, method};

/// Largest response to a setting of a new session.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

impl OwnSessions {
    /// Opens a session with the client's own `initialize`; other versions are tried in turn, within `HANDSHAKE_MAX`.
    pub(crate) async fn open(
        &self,
        (owner, forwarded): (&Principal, &ForwardedHeaders),
        version: ProtocolVersion,
        message: impl Fn(ProtocolVersion) -> (RequestId, Bytes),
    ) -> Result<AgreedSession, BeginError> {
        let opener = SessionOpener { owner, forwarded, addressee: ErrorAddressee::Passed(None) };
        let next = |asked, refusal: &BeginError| self.channel.version_after(asked, refusal);
        let asked = self.channel.version_for(version);
        let agreed = in_time(&*self.channel, agree(&*self.channel, opener, asked, next, message)).await?;
        if agreed.version.is_stateless() { Err(malformed()) } else { Ok(agreed) }
    }

    /// The upstream session that replaces a lost one: one handshake for all waiting requests. The client keeps its id
    /// and is not notified. After an error nothing was sent in it.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        session: &OwnSession,
        lost: &SessionBinding,
    ) -> Result<SessionBinding, GatewayFault> {
        let open = |preferences| {
            let (sessions, session) = (Arc::clone(self), session.clone());
            let stop = self.scope.stop.clone();
            // In its own task, so that a waiter who leaves does not stop it.
            let opening = self.scope.tracker.spawn(stop.run_until_cancelled_owned(Box::pin(async move {
                let renewed = sessions.open_anew(&session, preferences).await;
                let outcome = if renewed.is_ok() { "renewed" } else { "failed" };
                let upstream = Arc::clone(sessions.channel.name());
                metrics::counter!(metric::SESSION_RENEWALS, "upstream" => upstream, "outcome" => outcome).increment(1);
                renewed
            })));
            let opened = async move {
                match opening.await {
                    Ok(Some(opened)) => opened,
                    Ok(None) => Err(GatewayFault::new(Reason::Draining, Executed::No)),
                    Err(_) => Err(GatewayFault::new(Reason::Internal, Executed::No)),
                }
            };
            opened.boxed()
        };
        self.replace(session, lost, open).await
    }

    async fn open_anew(
        &self,
        session: &OwnSession,
        preferences: SessionPreferences,
    ) -> Result<SessionBinding, GatewayFault> {
        let OpenedSession { version, owner, capabilities, client_info, .. } = &*session.opened;
        let id = own_ids::mint();
        let message = |version| {
            let capabilities = capabilities_in(version, capabilities);
            (id.clone(), initialize_request(&id, version, &capabilities, client_info.as_ref()))
        };
        let binding = match self.open((owner, &session.forwarded), *version, message).await {
            Ok(agreed) => agreed.binding(),
            Err(BeginError::Gateway(fault)) => return Err(fault),
            Err(BeginError::Refused(error)) => {
                tracing::warn!(upstream = %self.channel.name(), code = error.code, "the upstream refused to replace a lost session");
                return Err(GatewayFault::new(Reason::UpstreamRefused, Executed::No));
            }
        };
        tracing::info!(upstream = %self.channel.name(), "replaced a session that the upstream had lost");
        let request = |name, params: &Payload| envelope::request(&own_ids::mint(), name, Some(params));
        let subscribe = |uri: &String| {
            let params = ObjectWriter::new().text("uri", uri).finish();
            request(method::RESOURCES_SUBSCRIBE, &params)
        };
        let level = preferences.level.as_ref().map(|level| request(method::SET_LEVEL, level));
        let again = level.into_iter().chain(preferences.subscriptions.iter().map(subscribe));
        for message in iter::once(envelope::notification(method::INITIALIZED, None)).chain(again) {
            self.tell(&binding, &session.forwarded, message).await?;
        }
        Ok(binding)
    }

    /// Sends a message and waits for its response, which is ignored; only an unreachable server is an error.
    async fn tell(
        &self,
        binding: &SessionBinding,
        forwarded: &ForwardedHeaders,
        message: Bytes,
    ) -> Result<(), GatewayFault> {
        let (binding, verb) = (binding.clone(), RawMethod::Post(message.into()));
        let telling = self.channel.send(RawRequest { binding, verb, forwarded: forwarded.clone() });
        let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
        let sent = tokio::time::timeout(HANDSHAKE_MAX, telling).await.unwrap_or_else(|_| {
            if let Some(health) = self.channel.health() {
                health.ended(HealthMark::default(), &late);
            }
            Err(late)
        });
        let response = sent.map_err(|fault| GatewayFault { executed: Executed::No, ..fault })?;
        // Only a session that has responded has surely applied the setting.
        let limits = ReadLimits::of_bytes(ANSWER_BYTES_MAX);
        let answer = reply::read_whole(response.body, &limits);
        let _ = tokio::time::timeout(END_MAX, answer).await;
        Ok(())
    }
}
