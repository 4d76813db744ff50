//! Finds the call of a stateless server's message on a connection that clients share. Requests have ids of the adapter,
//! so clients' ids and tokens never collide. A message that names no request is dropped.

use bytes::Bytes;

use super::{CallEntry, CallTable, DeliveryError};
use crate::upstream::transport::adapter::request_ids::{self, OriginalRequest};
use crate::wire::{MessageText, Notification, RequestId, meta, method};

impl CallTable {
    pub(in crate::upstream::transport::adapter) fn outer(&self, id: &RequestId) -> Option<OriginalRequest> {
        self.call(id)?.1.terms.outer.clone()
    }

    /// Delivers to the request that the notification names. Log messages name none: they go to the only request that
    /// wants them, else to none (MOD-23).
    pub(in crate::upstream::transport::adapter) fn note_named(
        &mut self,
        notification: &Notification,
        counted: impl FnOnce(Bytes) -> MessageText,
    ) -> Result<(), DeliveryError> {
        let (call, text) = self.named(notification).ok_or(DeliveryError::Nobody)?;
        call.queue.put(&counted(text))
    }

    fn named(&self, notification: &Notification) -> Option<(&CallEntry, Bytes)> {
        let params = notification.params.object();
        let subscription = params
            .and_then(|params| params.get_object(meta::META)?.get(meta::SUBSCRIPTION_ID))
            .and_then(|id| RequestId::from_payload(&id));
        if let Some(id) = subscription {
            let (_, call) = self.call(&id)?;
            let outer = call.terms.outer.as_ref()?;
            return Some((call, request_ids::told_of(notification, &outer.id)));
        }
        match notification.method.as_str() {
            method::PROGRESS => {
                let (_, call) = self.call(&RequestId::from_payload(&params?.get(meta::PROGRESS_TOKEN)?)?)?;
                let token = call.terms.outer.as_ref()?.token.as_ref()?;
                Some((call, request_ids::progress_of(notification, token)))
            }
            method::LOG_MESSAGE => {
                let wants = |call: &&CallEntry| call.terms.outer.as_ref().is_some_and(|outer| outer.wants_logs);
                let mut all = self.calls.values().filter(wants);
                let (only, None) = (all.next()?, all.next()) else { return None };
                Some((only, request_ids::verbatim(notification)))
            }
            _ => None,
        }
    }

    fn call(&self, id: &RequestId) -> Option<(&RequestId, &CallEntry)> {
        self.calls
            .get_key_value(id)
            .or_else(|| self.calls.iter().find(|(own, _): &(&RequestId, &CallEntry)| own.says(id)))
    }
}
