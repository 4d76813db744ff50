//! Finds the call for a server without sessions, whose connection carries requests of many clients.
//!
//! Every request has an id of the adapter's own there, so that ids and tokens which clients chose never meet. What
//! names no request is nobody's: there is nobody who would own the connection.

use bytes::Bytes;

use super::{CallEntry, CallTable, DeliveryError};
use crate::upstream::transport::adapter::request_ids::{self, OriginalRequest};
use crate::wire::{Notification, RequestId, meta, method};

impl CallTable {
    /// How whoever made a request knows it.
    pub(in crate::upstream::transport::adapter) fn outer(&self, id: &RequestId) -> Option<OriginalRequest> {
        self.call(id)?.1.terms.outer.clone()
    }

    /// Takes a notification to the request that it names. What the server logs names none: it goes to the only request
    /// that wants it, and among several to nobody (MOD-23).
    pub(in crate::upstream::transport::adapter) fn note_named(
        &mut self,
        notification: &Notification,
    ) -> Result<(), DeliveryError> {
        let (call, text) = self.named(notification).ok_or(DeliveryError::Nobody)?;
        call.queue.put(&text.into())
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
        // Servers write ids back as they see fit.
        self.calls
            .get_key_value(id)
            .or_else(|| self.calls.iter().find(|(own, _): &(&RequestId, &CallEntry)| own.says(id)))
    }
}
