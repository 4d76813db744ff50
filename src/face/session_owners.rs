//! Forwards requests to other replicas, and finds the replica that owns a session. Knows no sockets: a [`ReplicaLink`]
//! takes a request to another replica, and that replica's listener opens the seal.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use metrics::Counter;

use super::answer::{ErrorAnswerMarker, ScopesNeeded, UnknownTaskMarker};
use super::http::{FaceResponse, Inbound, MessageChannel};
use super::sealed::{ForwardToken, GatewayId, Sealer, digest_of_request};
use crate::metric;
use crate::replica::{Incarnation, OwnerReplica, OwnerRequest, ReplicaDirectory, ReplicaPeer};
use crate::task::{Clock, Executed, GatewayFault, Principal, Reason};
use crate::upstream::TaskScope;

pub const FORWARD: HeaderName = HeaderName::from_static("taskgate-forward");
/// The header of a replica's response that shows that the replica accepted the request, with notes of its face.
const FORWARDED: HeaderName = HeaderName::from_static("taskgate-forwarded");
/// The header with the scopes that the operation needs: the replica of the client writes the challenge.
const SCOPES_NEEDED: HeaderName = HeaderName::from_static("taskgate-scopes-needed");
/// The values of [`FORWARDED`]: the first alone, or before a note.
const TAKEN: &str = "taken";
const ERROR_ANSWER: &str = "error";
const UNKNOWN_TASK: &str = "unknown-task";

/// Headers of one connection, or replaced on the next.
const HOP_BY_HOP: [HeaderName; 7] = [CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE];
const HOP_BY_HOP_TOO: [&str; 2] = ["keep-alive", "proxy-connection"];

/// When a client may retry after its request's owner was unreachable.
pub(super) const UNREACHABLE_RETRY: Duration = Duration::from_secs(1);

/// Marks the response of another replica, which has counted the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardedMarker;

#[async_trait]
pub trait ReplicaLink: fmt::Debug + Send + Sync {
    /// Sends a request to a replica and returns the response head; the body follows as the replica sends it. Dropping
    /// either cancels it there. Until then it counts among `owner`'s requests in progress. Fails without a response.
    async fn send(
        &self,
        peer: ReplicaPeer,
        request: http::Request<Bytes>,
        owner: &Principal,
    ) -> Result<FaceResponse, ForwardFailure>;

    /// Closes the connections to replicas that are not in the directory.
    fn keep(&self, directory: &ReplicaDirectory);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardFailure {
    /// The replica is unreachable, or refused: nothing was done.
    Unreachable,
    /// The request was sent, and its outcome is unknown.
    Lost,
}

named_variants! {
    pub(super) enum ForwardReason, name {
        Session = "session",
        Stream = "stream",
        /// A stateless client's call that is held between two rounds of questions.
        HeldCall = "held_call",
    }
}

/// Maps sessions and other in-memory state to the replica that owns them.
pub struct SessionOwners {
    directory: ArcSwap<ReplicaDirectory>,
    sealer: Arc<Sealer>,
    /// The clock of tasks, which all replicas share.
    clock: Arc<dyn Clock>,
    /// The number of the last forwarded request.
    number: AtomicU64,
    link: Arc<dyn ReplicaLink>,
    forwarded: [[OnceLock<Counter>; 3]; ForwardReason::ALL.len()],
}

impl SessionOwners {
    /// `clock` must be the one that all replicas share: the short validity of a seal is measured on it.
    pub fn new(
        directory: ReplicaDirectory,
        sealer: Arc<Sealer>,
        clock: Arc<dyn Clock>,
        link: Arc<dyn ReplicaLink>,
    ) -> Self {
        let (directory, number) = (ArcSwap::from_pointee(directory), AtomicU64::new(0));
        Self { directory, sealer, clock, number, link, forwarded: Default::default() }
    }

    pub fn replace(&self, directory: ReplicaDirectory) {
        if **self.directory.load() != directory {
            self.link.keep(&directory);
            self.directory.store(Arc::new(directory));
        }
    }

    /// The owner of new sessions here: this replica.
    pub fn own(&self) -> Incarnation {
        self.directory.load().own()
    }

    /// Opens the seal of a forwarded request, if a key of this replica made it.
    pub fn open(&self, sealed: &str) -> Option<ForwardToken> {
        self.sealer.open_forward(sealed)
    }

    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(super) fn named(&self, id: &GatewayId) -> Option<OwnerReplica> {
        let (replica, directory) = (id.replica?, self.directory.load());
        match replica == directory.own() {
            true => Some(OwnerReplica::Here),
            false => directory.peer(replica).map(OwnerReplica::There),
        }
    }

    pub(super) fn owner(&self, session: &GatewayId, request: OwnerRequest) -> OwnerReplica {
        self.directory.load().owner(session.replica, session.random, request)
    }

    /// The only replica with requests in progress for a session; `None` if there may be several.
    pub(super) fn only_owner(&self, session: &GatewayId) -> Option<OwnerReplica> {
        self.directory.load().only_owner(session.replica)
    }

    /// Sends a message to all other replicas, even if the client disconnects. The outcomes are ignored.
    pub(super) fn broadcast(self: &Arc<Self>, inbound: &Inbound, scope: &TaskScope) {
        for peer in self.directory.load().peers() {
            let (owners, inbound) = (Arc::clone(self), Box::new(inbound.clone()));
            let sending = async move { owners.forward(&inbound, peer, ForwardReason::Session).await };
            scope.tracker.spawn(scope.stop.clone().run_until_cancelled_owned(Box::pin(sending)));
        }
    }

    /// Forwards a request, and ends with it.
    pub(super) async fn forward(
        &self,
        inbound: &Inbound,
        peer: ReplicaPeer,
        reason: ForwardReason,
    ) -> Result<FaceResponse, GatewayFault> {
        let sent = match self.request(inbound, peer) {
            Some(request) => self.link.send(peer, request, &inbound.counted_as()).await,
            None => Err(ForwardFailure::Unreachable),
        };
        let sent = sent.and_then(|answer| taken(answer).ok_or(ForwardFailure::Unreachable));
        let (number, outcome) = match &sent {
            Ok(_) => (0, "answered"),
            Err(ForwardFailure::Unreachable) => (1, "unreachable"),
            Err(ForwardFailure::Lost) => (2, "lost"),
        };
        let counter = self.forwarded[reason as usize][number]
            .get_or_init(|| metrics::counter!(metric::FORWARDED, "reason" => reason.name(), "outcome" => outcome));
        counter.increment(1);
        sent.map_err(|failure| match failure {
            ForwardFailure::Unreachable => unreachable(),
            ForwardFailure::Lost => GatewayFault::new(Reason::ReplicaUnavailable, Executed::Unknown),
        })
    }

    /// A request for another replica: as received, with its seal.
    fn request(&self, inbound: &Inbound, peer: ReplicaPeer) -> Option<http::Request<Bytes>> {
        let target = match &inbound.query {
            Some(query) => Uri::try_from(format!("{}?{query}", inbound.path)),
            None => Uri::try_from(&*inbound.path),
        };
        let token = ForwardToken {
            target: peer.incarnation,
            sender: self.own(),
            number: self.number.fetch_add(1, Ordering::Relaxed) + 1,
            issued_at: self.clock.now(),
            request: digest_of_request(&inbound.method, &inbound.path, inbound.query.as_deref(), &inbound.headers),
            caller: inbound.caller.clone(),
            client: inbound.client,
        };
        let mut request = http::Request::new(inbound.body.clone());
        *request.method_mut() = inbound.method.clone();
        *request.uri_mut() = target.ok()?;
        *request.headers_mut() = end_to_end(&inbound.headers);
        let mut sealed = HeaderValue::try_from(self.sealer.seal_forward(&token)?).ok()?;
        // No two are alike, so the HPACK table (RFC 7541) should not index them in place of reusable fields.
        sealed.set_sensitive(true);
        request.headers_mut().insert(FORWARD, sealed);
        Some(request)
    }
}

debug_members!(SessionOwners, |owners| directory: owners.directory);

/// Whether a request may be forwarded: not once counted (forwarded already, or of a session here), nor from a stream.
pub(super) fn may_forward(inbound: &Inbound) -> bool {
    !inbound.is_counted && inbound.carriage == MessageChannel::Request
}

/// The owner is unreachable, but not declared dead. Nothing was done.
pub(super) fn unreachable() -> GatewayFault {
    GatewayFault { retry_after: Some(UNREACHABLE_RETRY), ..GatewayFault::new(Reason::ReplicaUnavailable, Executed::No) }
}

fn end_to_end(all: &HeaderMap) -> HeaderMap {
    let mut kept = all.clone();
    let named = all.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    for name in named.flat_map(|names| names.split(',')) {
        kept.remove(name.trim());
    }
    HOP_BY_HOP.iter().for_each(|name| drop(kept.remove(name)));
    HOP_BY_HOP_TOO.iter().for_each(|name| drop(kept.remove(*name)));
    kept
}

/// Marks a response to another replica as taken, with the notes of the face.
pub fn note_taken(response: &mut FaceResponse) {
    let is_error = response.extensions().get::<ErrorAnswerMarker>().is_some();
    let is_unknown = response.extensions().get::<UnknownTaskMarker>().is_some();
    let note = match (is_error, is_unknown) {
        (false, false) => HeaderValue::from_static(TAKEN),
        (true, false) => HeaderValue::from_static("taken, error"),
        (false, true) => HeaderValue::from_static("taken, unknown-task"),
        (true, true) => HeaderValue::from_static("taken, error, unknown-task"),
    };
    response.headers_mut().insert(FORWARDED, note);
    let needed = response.extensions().get::<ScopesNeeded>().map(|ScopesNeeded(needed)| needed.join(" "));
    if let Some(needed) = needed.and_then(|needed| HeaderValue::try_from(needed).ok()) {
        response.headers_mut().insert(SCOPES_NEEDED, needed);
    }
}

/// The response of a replica that took the request, with its face's notes; `None` if it was refused, or no replica responded.
fn taken(mut answer: FaceResponse) -> Option<FaceResponse> {
    let note = answer.headers_mut().remove(FORWARDED)?;
    let mut notes = note.to_str().ok()?.split(',').map(str::trim);
    if notes.next() != Some(TAKEN) {
        return None;
    }
    answer.extensions_mut().insert(ForwardedMarker);
    if let Some(needed) = answer.headers_mut().remove(SCOPES_NEEDED) {
        let needed = needed.to_str().ok()?.split(' ').map(Arc::from).collect();
        answer.extensions_mut().insert(ScopesNeeded(needed));
    }
    for noted in notes {
        match noted {
            ERROR_ANSWER => drop(answer.extensions_mut().insert(ErrorAnswerMarker)),
            UNKNOWN_TASK => drop(answer.extensions_mut().insert(UnknownTaskMarker)),
            // A note of a newer version.
            _ => (),
        }
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::answer::bare;

    #[test]
    fn headers_of_one_connection_are_not_forwarded_and_others_are_unchanged() {
        let mut all = HeaderMap::new();
        for (name, value) in [
            ("host", "gate.example"),
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("expect", "100-continue"),
            ("te", "trailers"),
            ("accept", "application/json"),
            ("authorization", "Bearer theirs"),
        ] {
            all.append(HeaderName::try_from(name).unwrap(), HeaderValue::from_static(value));
        }
        all.append("accept", HeaderValue::from_static("text/event-stream"));
        let kept = end_to_end(&all);
        let mut names: Vec<_> =
            kept.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        names.sort();
        assert_eq!(names, ["accept: application/json", "accept: text/event-stream", "authorization: Bearer theirs"]);
    }

    #[test]
    fn a_faces_note_about_an_answer_reaches_the_replica_of_its_client() {
        for (is_error, is_unknown) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut answer = bare(http::StatusCode::OK);
            if is_error {
                answer.extensions_mut().insert(ErrorAnswerMarker);
            }
            if is_unknown {
                answer.extensions_mut().insert(UnknownTaskMarker);
            }
            if is_error {
                answer.extensions_mut().insert(ScopesNeeded(vec![Arc::from("reports:write"), Arc::from("a,b")]));
            }
            note_taken(&mut answer);
            *answer.extensions_mut() = http::Extensions::new();
            let answer = taken(answer).unwrap();
            assert_eq!(answer.extensions().get::<ErrorAnswerMarker>().is_some(), is_error);
            assert_eq!(answer.extensions().get::<UnknownTaskMarker>().is_some(), is_unknown);
            let needed = answer.extensions().get::<ScopesNeeded>().map(|needed| needed.0.join(" "));
            assert_eq!(needed.as_deref(), is_error.then_some("reports:write a,b"));
            assert!(answer.headers().is_empty(), "clients see nothing of it");
        }
        assert!(taken(bare(http::StatusCode::OK)).is_none(), "of a client that is no replica");
    }
}
