//! Encodes a `requestState`: where a request continues after its questions (MOD-28).
//!
//! Clients return it with their answers, so it is untrusted until it has been opened, and it is valid only for the request that
//! it was issued for (T-24).

use super::layout::{TokenReader, hex_digest, put};
use super::session_token::digest_of;
use crate::replica::Incarnation;
use crate::task::{Principal, TaskId, Timestamp};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, canonical};

/// The version of the layout below.
const LAYOUT: u8 = 1;
/// The kinds of content. Tokens with them outlive this program's version.
const UPSTREAM_NONE: u8 = 1;
const UPSTREAM: u8 = 2;
const TASK: u8 = 3;
const TASK_AT_HOME: u8 = 4;

/// The params that identify a request; the rest may differ from round to round.
const SALIENT: [&str; 3] = ["name", "uri", "arguments"];

/// The request that a state belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateScope {
    upstream: String,
    /// A digest of the principal, and another of the params.
    principal: String,
    method: String,
    params: String,
}

impl StateScope {
    /// The scope of a request. The spelling of its params is ignored (key order, whitespace, escapes), but numbers are compared
    /// as text.
    #[must_use]
    pub fn of(upstream: &str, principal: &Principal, method: &str, params: &Object) -> Self {
        let salient = SALIENT.into_iter().filter_map(|key| Some((key, params.get(key)?)));
        let salient = salient.fold(ObjectWriter::new(), |kept, (key, value)| kept.member(key, &value)).finish();
        Self {
            upstream: upstream.to_owned(),
            principal: digest_of(principal),
            method: method.to_owned(),
            params: hex_digest(&canonical(&salient)),
        }
    }
}

/// An issued state.
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
    /// At a call that the gateway holds. `home` is the replica that holds it, if there are several.
    Task { id: TaskId, round: u32, home: Option<Incarnation> },
}

impl StateToken {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![LAYOUT];
        out.extend_from_slice(&self.issued_at.as_millis().to_be_bytes());
        let StateScope { upstream, principal, method, params } = &self.scope;
        for part in [upstream, principal, method, params] {
            put(&mut out, part.as_bytes());
        }
        match &self.content {
            StateContent::Upstream(None) => out.push(UPSTREAM_NONE),
            StateContent::Upstream(Some(state)) => {
                out.push(UPSTREAM);
                put(&mut out, state.bytes());
            }
            StateContent::Task { id, round, home } => {
                // A single gateway writes the layout from before owners existed.
                out.push(if home.is_some() { TASK_AT_HOME } else { TASK });
                out.extend_from_slice(&id.bits().to_be_bytes());
                out.extend_from_slice(&round.to_be_bytes());
                out.extend(home.iter().flat_map(|home| home.0.to_be_bytes()));
            }
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = TokenReader::new(bytes);
        let [layout] = rest.take()?;
        if layout != LAYOUT {
            return None;
        }
        // In the order of the bytes.
        let issued_at = Timestamp::from_millis(u64::from_be_bytes(rest.take()?));
        let (upstream, principal) = (rest.text()?, rest.text()?);
        let scope = StateScope { upstream, principal, method: rest.text()?, params: rest.text()? };
        let [kind] = rest.take()?;
        let content = match kind {
            UPSTREAM_NONE => StateContent::Upstream(None),
            UPSTREAM => StateContent::Upstream(Some(rest.payload()?)),
            TASK | TASK_AT_HOME => StateContent::Task {
                id: TaskId::from_bits(u128::from_be_bytes(rest.take()?)),
                round: u32::from_be_bytes(rest.take()?),
                home: if kind == TASK { None } else { Some(Incarnation(u64::from_be_bytes(rest.take()?))) },
            },
            _ => return None,
        };
        rest.is_empty().then_some(Self { scope, issued_at, content })
    }

    /// The replica that holds the call, if the state has one and was issued to this principal.
    pub(super) fn home_for(&self, principal: &Principal) -> Option<Incarnation> {
        match self.content {
            StateContent::Task { home, .. } => home.filter(|_| self.scope.principal == digest_of(principal)),
            StateContent::Upstream(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::super::{KEY_LEN, Sealer, SealingKeys, TokenPurpose, TooLarge};
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
    fn a_state_brings_back_what_it_was_made_of() {
        let own = Payload::of("caf\u{e9} \"\n");
        for content in [
            StateContent::Upstream(None),
            StateContent::Upstream(Some(own)),
            StateContent::Upstream(Some(Payload::of(""))),
            StateContent::Task { id: TaskId::from_bits(u128::MAX - 3), round: 7, home: None },
            StateContent::Task { id: TaskId::from_bits(3), round: 1, home: Some(Incarnation(9)) },
        ] {
            let sealed = seal(content.clone());
            let plain = sealer().open(TokenPurpose::RequestState, &sealed).unwrap();
            for cut in 0..plain.len() {
                assert_eq!(StateToken::decode(&plain[..cut]), None, "{cut}");
            }
            assert_eq!(StateToken::decode(&[&plain[..], b"x"].concat()), None);
            assert_eq!(sealer().open_state(&sealed, &scope(), NOW, HOUR), Some(content));
        }
    }

    /// T-24, MOD-28, B135.
    #[test]
    fn t_24_a_state_opens_for_its_own_request_alone() {
        let content = StateContent::Task { id: TaskId::from_bits(1), round: 0, home: Some(Incarnation(9)) };
        let sealed = seal(content.clone());
        let mut forged = sealed.clone().into_bytes();
        forged[40] = if forged[40] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        let session = sealer().seal(TokenPurpose::Session, b"x");
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
            ("of another purpose", &session, scope(), NOW, false),
            ("made up", &"state".to_owned(), scope(), NOW, false),
            ("empty", &String::new(), scope(), NOW, false),
        ] {
            let opened = sealer().open_state(sealed, &scope, now, HOUR);
            assert_eq!(opened, opens.then(|| content.clone()), "{what}");
        }
    }

    /// SEC-17.
    #[test]
    fn the_home_of_a_held_call_is_told_to_its_own_client_alone() {
        let held = |home| seal(StateContent::Task { id: TaskId::from_bits(1), round: 1, home });
        let there = Some(Incarnation(9));
        let (at_home, alone) = (held(there), held(None));
        let ends_in = |sealed: &str, bytes: &[u8]| {
            let plain = sealer().open(TokenPurpose::RequestState, sealed).unwrap();
            plain.ends_with(bytes)
        };
        assert!(ends_in(&at_home, &9_u64.to_be_bytes()) && ends_in(&alone, &1_u32.to_be_bytes()));
        let (own, other) = (Principal::local(), Principal::new("key:b"));
        let passed_through = seal(StateContent::Upstream(Some(Payload::of("s"))));
        for (what, sealed, principal, expected) in [
            ("its own", &*at_home, &own, there),
            ("another's", &at_home, &other, None),
            ("of a gateway that is alone", &alone, &own, None),
            ("of no held call", &passed_through, &own, None),
            ("cut", &at_home[1..], &own, None),
        ] {
            assert_eq!(sealer().open_state_home(sealed, principal), expected, "{what}");
        }
    }

    #[test]
    fn a_state_has_at_most_64_kib() {
        let max = TokenPurpose::RequestState.plain_len_max();
        let token = |len: usize| {
            let content = StateContent::Upstream(Some(Payload::of(&"s".repeat(len))));
            StateToken { scope: scope(), issued_at: NOW, content }
        };
        let fixed = token(0).encode().len();
        let largest = sealer().seal_state(&token(max - fixed)).unwrap();
        assert!(largest.len() <= 64 << 10, "{}", largest.len());
        assert!(sealer().open_state(&largest, &scope(), NOW, HOUR).is_some());
        let refused = sealer().seal_state(&token(max - fixed + 1));
        assert_eq!(refused, Err(TooLarge { len: max + 1, max }));
    }
}
