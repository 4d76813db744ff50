//! Encodes a `requestState`: where a request continues after its questions (MOD-28). Clients return it with their
//! answers: it is untrusted until opened, and valid for its own request alone (T-24).

use std::time::Duration;

use super::gateway_id::put;
use super::{GatewayId, IdKind, OpenedId, Sealer};
use crate::replica::Incarnation;
use crate::task::digest::{Digest, digest};
use crate::task::{Principal, TaskId, Timestamp};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, canonical};

const UPSTREAM_NONE: u8 = 1;
const UPSTREAM: u8 = 2;
const TASK: u8 = 3;

/// The params that identify a request; the rest may differ from round to round.
const SALIENT: [&str; 3] = ["name", "uri", "arguments"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateScope {
    upstream: String,
    principal: Principal,
    method: String,
    params: Digest,
}

impl StateScope {
    /// Ignores how params are spelled (key order, whitespace, escapes), but compares numbers as text.
    pub fn of(upstream: &str, principal: &Principal, method: &str, params: &Object) -> Self {
        let salient = SALIENT.into_iter().filter_map(|key| Some((key, params.get(key)?)));
        let salient = salient.fold(ObjectWriter::new(), |kept, (key, value)| kept.member(key, &value)).finish();
        Self {
            upstream: upstream.to_owned(),
            principal: principal.clone(),
            method: method.to_owned(),
            params: digest([&canonical(&salient)]),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateToken {
    pub scope: StateScope,
    pub issued_at: Timestamp,
    pub content: StateContent,
}

/// Where a repeated request continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateContent {
    /// At the upstream, with its own `requestState` as received (a JSON string); `None` if it issued none.
    Upstream(Option<Payload>),
    /// At a call that the gateway holds, in `replica` if there are several.
    Task { id: TaskId, round: u32, replica: Option<Incarnation> },
}

impl Sealer {
    /// `None` if the upstream's own state is too long.
    pub fn seal_state(&self, token: &StateToken) -> Option<String> {
        let (replica, random) = match &token.content {
            StateContent::Upstream(_) => (None, 0),
            StateContent::Task { id, replica, .. } => (*replica, id.bits()),
        };
        let id = GatewayId { kind: IdKind::RequestState, replica, upstream: token.scope.upstream.clone(), random };
        self.seal(&id, Some(&token.scope.principal), &token.payload())
    }

    /// Opens a state issued for this request of this client within `expires_after`. Hides which check failed (B135).
    pub fn open_state(
        &self,
        sealed: &str,
        scope: &StateScope,
        now: Timestamp,
        expires_after: impl FnOnce(&StateContent) -> Duration,
    ) -> Option<StateContent> {
        let opened = self.open(IdKind::RequestState, Some(&scope.principal), sealed)?;
        let token = StateToken::read(&opened, &scope.principal)?;
        let holds = token.scope == *scope && now.since(token.issued_at) <= expires_after(&token.content);
        holds.then_some(token.content)
    }
}

impl StateToken {
    fn payload(&self) -> Vec<u8> {
        let mut out = self.scope.params.0.to_vec();
        out.extend_from_slice(&self.issued_at.as_millis().to_be_bytes());
        put(&mut out, self.scope.method.as_bytes());
        match &self.content {
            StateContent::Upstream(None) => out.push(UPSTREAM_NONE),
            StateContent::Upstream(Some(state)) => {
                out.push(UPSTREAM);
                put(&mut out, state.bytes());
            }
            StateContent::Task { round, .. } => {
                out.push(TASK);
                out.extend_from_slice(&round.to_be_bytes());
            }
        }
        out
    }

    fn read(opened: &OpenedId, principal: &Principal) -> Option<Self> {
        let (mut rest, id) = (opened.reader(), &opened.id);
        let (params, issued_at) = (Digest(rest.take()?), Timestamp::from_millis(u64::from_be_bytes(rest.take()?)));
        let (upstream, principal) = (id.upstream.clone(), principal.clone());
        let scope = StateScope { upstream, principal, method: rest.text()?, params };
        let content = match rest.take()? {
            [UPSTREAM_NONE] => StateContent::Upstream(None),
            [UPSTREAM] => StateContent::Upstream(Some(rest.payload()?)),
            [TASK] => StateContent::Task {
                id: TaskId::from_bits(id.random),
                round: u32::from_be_bytes(rest.take()?),
                replica: id.replica,
            },
            _ => return None,
        };
        rest.is_empty().then_some(Self { scope, issued_at, content })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::{KEY_LEN, SealingKeys};
    use super::*;
    use crate::wire::{ScanLimits, method};

    const NOW: Timestamp = Timestamp::from_millis(1_785_196_800_000);
    const HOUR: Duration = Duration::from_secs(3600);
    const PARAMS: &str = r#"{"name":"a","arguments":{"n":1.10,"m":[1,{"k":null}]},"_meta":{"progressToken":1}}"#;

    fn sealer() -> Sealer {
        Sealer::new(SealingKeys::parse(&"07".repeat(KEY_LEN)).unwrap())
    }

    fn object(text: &str) -> Object {
        Object::of(&Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()).unwrap()
    }

    fn scope() -> StateScope {
        StateScope::of("reports", &Principal::local(), method::TOOLS_CALL, &object(PARAMS))
    }

    fn seal(content: StateContent) -> String {
        sealer().seal_state(&StateToken { scope: scope(), issued_at: NOW, content }).unwrap()
    }

    #[test]
    fn a_state_reads_back() {
        let own = Payload::of("caf\u{e9} \"\n");
        for content in [
            StateContent::Upstream(None),
            StateContent::Upstream(Some(own)),
            StateContent::Upstream(Some(Payload::of(""))),
            StateContent::Task { id: TaskId::from_bits(u128::MAX - 3), round: 7, replica: None },
            StateContent::Task { id: TaskId::from_bits(3), round: 1, replica: Some(Incarnation(9)) },
        ] {
            let sealed = seal(content.clone());
            let opened = sealer().open(IdKind::RequestState, Some(&Principal::local()), &sealed).unwrap();
            let resealed = |payload: &[u8]| {
                let sealed = sealer().seal(&opened.id, Some(&Principal::local()), payload).unwrap();
                sealer().open_state(&sealed, &scope(), NOW, |_| HOUR)
            };
            let payload = opened.payload();
            for cut in 0..payload.len() {
                assert_eq!(resealed(&payload[..cut]), None, "{cut}");
            }
            assert_eq!(resealed(&[payload, b"x"].concat()), None);
            assert_eq!(resealed(payload), Some(content.clone()));
            assert_eq!(sealer().open_state(&sealed, &scope(), NOW, |_| HOUR), Some(content));
        }
    }

    /// T-24, MOD-28, B135.
    #[test]
    fn t_24_a_state_opens_for_its_own_request_alone() {
        let content = StateContent::Task { id: TaskId::from_bits(1), round: 0, replica: Some(Incarnation(9)) };
        let sealed = seal(content.clone());
        let mut forged = sealed.clone().into_bytes();
        forged[40] = if forged[40] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        let other_kind = GatewayId::in_memory(IdKind::Session, None, 1);
        let session = sealer().seal(&other_kind, Some(&Principal::local()), b"x").unwrap();
        let (local, call) = (Principal::local(), method::TOOLS_CALL);
        let of = |upstream: &str, principal: &Principal, method: &str, params: &str| {
            StateScope::of(upstream, principal, method, &object(params))
        };
        let respelt = r#" {"arguments" : {"m":[ 1, {"k":null}],"\u006e":1.10}, "name":"a", "inputResponses":{} }"#;
        let later = NOW.after(HOUR);
        for (what, sealed, scope, now, opens) in [
            ("as it was", &sealed, scope(), NOW, true),
            ("spelt differently", &sealed, of("reports", &local, call, respelt), NOW, true),
            ("at the last moment", &sealed, scope(), later, true),
            ("by a clock that lags behind", &sealed, scope(), Timestamp::from_millis(0), true),
            ("expired", &sealed, scope(), later.after(Duration::from_millis(1)), false),
            ("other upstream", &sealed, of("other", &local, call, PARAMS), NOW, false),
            ("other principal", &sealed, of("reports", &Principal::new("key:b"), call, PARAMS), NOW, false),
            ("other method", &sealed, of("reports", &local, method::PROMPTS_GET, PARAMS), NOW, false),
            ("other tool", &sealed, of("reports", &local, call, &PARAMS.replace("\"a\"", "\"b\"")), NOW, false),
            ("other number", &sealed, of("reports", &local, call, &PARAMS.replace("1.10", "1.1")), NOW, false),
            ("no arguments", &sealed, of("reports", &local, call, r#"{"name":"a"}"#), NOW, false),
            ("forged", &forged, scope(), NOW, false),
            ("of another kind", &session, scope(), NOW, false),
            ("made up", &"state".to_owned(), scope(), NOW, false),
            ("empty", &String::new(), scope(), NOW, false),
        ] {
            let opened = sealer().open_state(sealed, &scope, now, |_| HOUR);
            assert_eq!(opened, opens.then(|| content.clone()), "{what}");
        }
    }

    /// SEC-17.
    #[test]
    fn the_replica_of_a_held_call_is_visible_to_its_own_client_alone() {
        let held = |replica| seal(StateContent::Task { id: TaskId::from_bits(1), round: 1, replica });
        let there = Some(Incarnation(9));
        let (owned, alone) = (held(there), held(None));
        let (own, other) = (Principal::local(), Principal::new("key:b"));
        let passed_through = seal(StateContent::Upstream(Some(Payload::of("s"))));
        for (what, sealed, principal, expected) in [
            ("its own", &*owned, &own, there),
            ("another's", &owned, &other, None),
            ("of a gateway that is alone", &alone, &own, None),
            ("of no held call", &passed_through, &own, None),
            ("cut", &owned[1..], &own, None),
        ] {
            let opened = sealer().open(IdKind::RequestState, Some(principal), sealed);
            assert_eq!(opened.and_then(|opened| opened.id.replica), expected, "{what}");
        }
    }

    #[test]
    fn a_state_has_at_most_64_kib() {
        let sealed = |len: usize| {
            let content = StateContent::Upstream(Some(Payload::of(&"s".repeat(len))));
            sealer().seal_state(&StateToken { scope: scope(), issued_at: NOW, content })
        };
        let fixed = sealed(0).unwrap().len() * 3 / 4;
        let longest = (48 << 10) - fixed;
        let largest = sealed(longest).unwrap();
        assert_eq!(largest.len(), 64 << 10);
        assert!(sealer().open_state(&largest, &scope(), NOW, |_| HOUR).is_some());
        assert_eq!(sealed(longest + 1), None);
    }
}
