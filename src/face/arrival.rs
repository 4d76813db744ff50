//! Decides whether a request continues after its client has disconnected. hyper drops a request's future as soon as it
//! sees the disconnect, perhaps before the first poll. A notification, a response, a cancel or the end of a session is
//! processed regardless; a call ends with its client, unless it has an idempotency key.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method};
use parking_lot::Mutex;

use super::idempotency_key;
use crate::wire::{Message, method};

/// How long a request may run without its client.
pub const ALONE_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default)]
pub struct Arrival(Arc<Mutex<ArrivalState>>);

/// A later state prevails over an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum ArrivalState {
    #[default]
    Unread,
    /// The message was not read before the client disconnected.
    Left,
    EndsWithClient,
    OutlivesClient,
    /// As `OutlivesClient`, because of an idempotency key.
    HasKey,
}

impl Arrival {
    pub fn of(method: &Method, headers: &HeaderMap) -> Self {
        let state = match *method {
            Method::POST if !headers.keys().any(|name| *name == idempotency_key::HEADER) => ArrivalState::Unread,
            Method::POST => ArrivalState::HasKey,
            Method::DELETE => ArrivalState::OutlivesClient,
            _ => ArrivalState::EndsWithClient,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Records the messages of a request. Returns whether to process it.
    pub fn is_wanted<'m>(&self, messages: impl IntoIterator<Item = &'m Message>) -> bool {
        let state = &mut *self.0.lock();
        match state {
            ArrivalState::HasKey | ArrivalState::OutlivesClient | ArrivalState::EndsWithClient => true,
            ArrivalState::Unread | ArrivalState::Left => {
                let has_left = matches!(state, ArrivalState::Left);
                *state = messages.into_iter().fold(ArrivalState::EndsWithClient, |all, one| all.max(state_of(one)));
                !has_left || *state > ArrivalState::EndsWithClient
            }
        }
    }

    /// Whether the request's head or a call in it has an idempotency key.
    pub(super) fn has_key(&self) -> bool {
        matches!(*self.0.lock(), ArrivalState::HasKey)
    }

    pub fn has_left(&self) -> bool {
        matches!(*self.0.lock(), ArrivalState::Left)
    }

    /// Whether the request is processed to its end even if its client disconnects.
    pub(super) fn outlives_client(&self) -> bool {
        matches!(*self.0.lock(), ArrivalState::OutlivesClient | ArrivalState::HasKey)
    }

    /// Records the disconnect. Returns whether the request continues.
    pub fn leave(&self) -> bool {
        let state = &mut *self.0.lock();
        match state {
            ArrivalState::Unread => {
                *state = ArrivalState::Left;
                true
            }
            ArrivalState::Left | ArrivalState::OutlivesClient | ArrivalState::HasKey => true,
            ArrivalState::EndsWithClient => false,
        }
    }
}

fn state_of(message: &Message) -> ArrivalState {
    let request = match message {
        Message::Notification(_) | Message::Response(_) => return ArrivalState::OutlivesClient,
        Message::Request(request) => request,
    };
    match &*request.method {
        method::TOOLS_CALL if idempotency_key::is_in_message(request) => ArrivalState::HasKey,
        method::TASKS_CANCEL | method::TASKS_UPDATE | method::TASKS_DELETE => ArrivalState::OutlivesClient,
        _ => ArrivalState::EndsWithClient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{ScanLimits, envelope};

    const MESSAGES: [(&str, bool); 6] = [
        (r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#, true),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, true),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tasks/cancel","params":{"taskId":"1"}}"#, true),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#, false),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#, false),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call",
               "params":{"name":"t","_meta":{"io.taskgate/idempotency-key":"k"}}}"#,
            true,
        ),
    ];

    fn posted(headers: &HeaderMap) -> Arrival {
        Arrival::of(&Method::POST, headers)
    }

    #[test]
    fn a_request_whose_client_leaves_goes_on_if_its_message_says_so() {
        let none = HeaderMap::new();
        for (text, outlives) in MESSAGES {
            let message = envelope::read(&text.into(), ScanLimits::CLIENT).unwrap();
            let arrival = posted(&none);
            assert!(arrival.is_wanted([&message]), "{text}");
            assert_eq!(arrival.leave(), outlives, "{text}");

            let arrival = posted(&none);
            assert!(arrival.leave() && arrival.has_left(), "an unread message is read: {text}");
            assert_eq!(arrival.is_wanted([&message]), outlives, "{text}");

            let with_key = HeaderMap::from_iter([(idempotency_key::HEADER, "k".parse().unwrap())]);
            let arrival = posted(&with_key);
            assert!(arrival.is_wanted([&message]) && arrival.leave(), "{text}");
        }
        assert!(Arrival::of(&Method::DELETE, &none).leave());
        assert!(!Arrival::of(&Method::GET, &none).leave());
    }
}
