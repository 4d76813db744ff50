//! Sends the gateway's own requests beside a call, in its session. Other messages on their streams go to the call;
//! broken streams are resumed.

use std::time::Duration;

use parking_lot::Mutex;

use super::drive::HttpCall;
use super::drive::response_reader::{AwaitedRequest, RpcResult, StreamEnd, drain};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::outgoing::HandedOver;
use crate::upstream::own_ids;
use crate::upstream::reply::{AcceptedResponse, BodyReadError, ReadLimits, ResponseRefusal};
use crate::upstream::session::UpstreamSession;
use crate::wire::{Payload, envelope};

/// How long an upstream may be silent if the result is ready.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How long resuming a stream is tried then; the request can be repeated instead.
const TAKE_UP_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerWait {
    /// The result is ready.
    Short,
    /// The response comes once the task has news.
    Endless,
}

enum SideRequestError {
    SessionLost,
    Gateway(GatewayFault),
}

impl From<GatewayFault> for SideRequestError {
    fn from(fault: GatewayFault) -> Self {
        Self::Gateway(fault)
    }
}

impl HttpCall {
    /// Sends a request that is safe to repeat. If the upstream lost the session, moves the call to another and repeats
    /// the request there. A fault concerns this request, not the call.
    pub(super) async fn aside(
        &self,
        method: &str,
        params: &Payload,
        patience: AnswerWait,
    ) -> Result<RpcResult, GatewayFault> {
        let session = self.session();
        let asked = match self.ask_in(&session, method, params, patience).await {
            Err(SideRequestError::SessionLost) => {
                let session = self.renew(&session).await?;
                self.ask_in(&session, method, params, patience).await
            }
            asked => asked,
        };
        asked.map_err(|trouble| match trouble {
            SideRequestError::Gateway(fault) => fault,
            SideRequestError::SessionLost => GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown),
        })
    }

    async fn ask_in(
        &self,
        session: &UpstreamSession,
        method: &str,
        params: &Payload,
        patience: AnswerWait,
    ) -> Result<RpcResult, SideRequestError> {
        let id = own_ids::mint();
        let message = envelope::request(&id, method, Some(params));
        let handed_over = HandedOver::default();
        let head = session.post_beside(message, &handed_over);
        let (response, idle, take_up_max) = match patience {
            AnswerWait::Endless => (head.await?, None, SILENCE_MAX),
            AnswerWait::Short => {
                let head = tokio::time::timeout(SILENCE_MAX, head).await;
                (head.map_err(|_| BodyReadError::Idle.into_fault())??, Some(SILENCE_MAX), TAKE_UP_MAX)
            }
        };
        let limits = ReadLimits { idle, ..self.limits.clone() };
        let places = Mutex::default();
        let awaited = AwaitedRequest { id: &id, limits: limits.clone(), places: &places, call: None };
        match session.open(response, &id, &limits).await {
            Ok(AcceptedResponse::Json(body)) => Ok(self.read(body, &awaited).await?),
            Ok(AcceptedResponse::Events(mut events)) => loop {
                match self.hear(&mut events, &awaited, &mut 0).await? {
                    StreamEnd::Answered(answer) => {
                        drain(&session.link, events);
                        return Ok(answer);
                    }
                    StreamEnd::Broke { .. } => {
                        let pause = places.lock().read.pause();
                        events = Box::pin(self.reopen(&awaited, take_up_max, pause)).await?;
                    }
                }
            },
            Err(ResponseRefusal::Rpc(error)) => Ok(Err(error)),
            Err(ResponseRefusal::Gateway(fault)) => Err(fault.into()),
            Err(ResponseRefusal::SessionLost) => Err(SideRequestError::SessionLost),
        }
    }
}
