//! The guarantees of a sealed id, over random contents and random damage.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use proptest::prelude::*;

use super::keys::SALT_LEN;
use super::*;
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::replica::Incarnation;
use crate::task::{Caller, Claims, Digest, Principal, Timestamp};
use crate::wire::{Payload, ProtocolVersion, ScanLimits};

fn sealer(keys: &[u8]) -> Sealer {
    let lines: Vec<String> = keys.iter().map(|byte| format!("{byte:02x}").repeat(KEY_LEN)).collect();
    Sealer::new(SealingKeys::parse(&lines.join("\n")).unwrap())
}

fn object(text: &str) -> Payload {
    let body = serde_json::to_string(&serde_json::json!({ "x": text })).unwrap();
    Payload::parse(&Bytes::from(body), ScanLimits::CLIENT).unwrap()
}

fn token(capabilities: &str, client_info: Option<&str>) -> SessionToken {
    SessionToken {
        upstream: "reports".to_owned(),
        principal: Principal::local(),
        nonce: 7,
        client_version: ProtocolVersion::V2025_11_25,
        upstream_version: ProtocolVersion::V2025_03_26,
        capabilities: object(capabilities),
        client_info: client_info.map(object),
        issued_at: Timestamp::from_millis(1_785_196_800_007),
        replica: None,
        upstream_session: Some("5c1f".repeat(8)),
        tasks: UpstreamTaskSupport::default(),
        declares_tasks: false,
    }
}

fn session() -> GatewayId {
    GatewayId::in_memory(IdKind::Session, Some(Incarnation(41)), 7)
}

fn opened(sealer: &Sealer, text: &str) -> Option<(GatewayId, Vec<u8>)> {
    let opened = sealer.open(IdKind::Session, None, text)?;
    let payload = opened.payload().to_vec();
    Some((opened.id, payload))
}

prop_compose! {
    fn tokens()(
        texts in [".{0,30}", ".{0,64}", ".{0,200}"],
        client_info in proptest::option::of(".{0,100}"),
        upstream_session in proptest::option::of("[!-~]{0,64}"),
        nonce: u128,
        issued_at: u64,
        replica in proptest::option::of(any::<u64>().prop_map(Incarnation)),
        versions in [0..ProtocolVersion::ALL.len(), 0..ProtocolVersion::ALL.len()],
        tasks: [bool; 3],
    ) -> SessionToken {
        let [upstream, principal, capabilities] = texts;
        let [client_version, upstream_version] = versions.map(|at| ProtocolVersion::ALL[at]);
        SessionToken {
            upstream,
            principal: Principal::new(&principal),
            nonce,
            client_version,
            upstream_version,
            capabilities: object(&capabilities),
            client_info: client_info.as_deref().map(object),
            issued_at: Timestamp::from_millis(issued_at),
            replica,
            upstream_session,
            tasks: UpstreamTaskSupport { calls: tasks[0], cancel: tasks[1] },
            declares_tasks: tasks[2],
        }
    }
}

proptest! {
    #[test]
    fn a_sealed_id_opens_to_its_content(replica: Option<u64>, random: u128, upstream: String, payload: Vec<u8>) {
        let id = GatewayId { kind: IdKind::Session, replica: replica.map(Incarnation), upstream, random };
        let sealed = sealer(&[1]).seal(&id, None, &payload).unwrap();
        prop_assert!(sealed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{}", sealed);
        prop_assert_eq!(opened(&sealer(&[1]), &sealed), Some((id, payload)));
    }

    #[test]
    fn tokens_read_back_and_ids_stay_short(token in tokens()) {
        let id = sealer(&[1]).seal_session(&token).unwrap();
        prop_assert!(id.len() <= 2048);
        let owner = token.principal.clone();
        prop_assert_eq!(sealer(&[1]).open_session(&owner, &id), Some(token));
        prop_assert_eq!(sealer(&[1]).open_session(&Principal::new("key:other"), &id), None);
    }

    #[test]
    fn a_token_that_was_changed_anywhere_does_not_open(payload: Vec<u8>, at: prop::sample::Index, bit in 0..8_u8) {
        let sealer = sealer(&[1]);
        let sealed = sealer.seal(&session(), None, &payload).unwrap();
        let mut bytes = URL_SAFE_NO_PAD.decode(&sealed).unwrap();
        let at_byte = at.index(bytes.len());
        bytes[at_byte] ^= 1 << bit;
        prop_assert_eq!(opened(&sealer, &URL_SAFE_NO_PAD.encode(bytes)), None);
        // In its text, too: no second spelling of the same id is accepted.
        let mut text = sealed.clone().into_bytes();
        let at_text = at.index(text.len());
        text[at_text] ^= 1 << bit;
        let text = String::from_utf8_lossy(&text);
        prop_assert_eq!(opened(&sealer, &text), None);
        prop_assert_eq!(opened(&sealer, &sealed[..at_text]), None);
        prop_assert_eq!(opened(&sealer, &format!("{sealed}A")), None);
    }

    #[test]
    fn a_forged_text_is_no_token(text in ".{0,100}", bytes: Vec<u8>) {
        prop_assert_eq!(opened(&sealer(&[1]), &text), None);
        prop_assert_eq!(opened(&sealer(&[1]), &URL_SAFE_NO_PAD.encode(&bytes)), None);
        let sealed = sealer(&[1]).seal(&session(), Some(&Principal::local()), &bytes).unwrap();
        let _ = sealer(&[1]).open_session(&Principal::local(), &sealed);
    }

    #[test]
    fn a_token_in_pieces_is_none(token in tokens(), cut: prop::sample::Index) {
        let (sealer, owner) = (sealer(&[1]), token.principal.clone());
        let opened = sealer.open(IdKind::Session, Some(&owner), &sealer.seal_session(&token).unwrap()).unwrap();
        let reads = |payload: &[u8]| {
            let sealed = sealer.seal(&opened.id, Some(&owner), payload).unwrap();
            sealer.open_session(&owner, &sealed).is_some()
        };
        let payload = opened.payload();
        prop_assert!(reads(payload));
        prop_assert!(!reads(&payload[..cut.index(payload.len())]));
        prop_assert!(!reads(&[payload, b"x"].concat()));
    }
}

#[test]
fn two_seals_of_the_same_content_differ() {
    let sealer = sealer(&[1]);
    assert_ne!(sealer.seal(&session(), None, b"same"), sealer.seal(&session(), None, b"same"));
}

/// T-24: an id of one kind does not open as another, and one of a principal does not open for another.
#[test]
fn a_token_for_another_purpose_does_not_open() {
    let (sealer, owner) = (sealer(&[1]), Principal::local());
    let state = GatewayId { kind: IdKind::RequestState, ..session() };
    let sealed = sealer.seal(&state, Some(&owner), b"x").unwrap();
    assert_eq!(sealer.open(IdKind::RequestState, Some(&owner), &sealed).unwrap().id, state);
    assert!(sealer.open(IdKind::Session, Some(&owner), &sealed).is_none());
    assert!(sealer.open(IdKind::RequestState, Some(&Principal::new("local2")), &sealed).is_none());
    assert!(sealer.open(IdKind::RequestState, None, &sealed).is_none());
    assert!(sealer.open(IdKind::RequestState, Some(&owner), &sealer.seal(&state, None, b"x").unwrap()).is_none());
}

#[test]
fn after_a_change_of_keys_old_tokens_open_until_their_key_is_removed() {
    let seal = |sealer: &Sealer| sealer.seal(&session(), None, b"").unwrap();
    let (old, both) = (seal(&sealer(&[1])), sealer(&[2, 1]));
    let new = seal(&both);
    let content = Some((session(), Vec::new()));
    assert_eq!(opened(&both, &old), content);
    assert_eq!(opened(&both, &new), content);
    assert_eq!(opened(&sealer(&[2]), &new), content, "the first key seals");
    assert_eq!(opened(&sealer(&[1]), &new), None);
    assert_eq!(opened(&sealer(&[2]), &old), None);
}

#[test]
fn a_long_client_name_is_left_out_and_long_capabilities_are_refused() {
    let sealer = sealer(&[1]);
    let max = 1536;
    let fixed = sealer.seal_session(&token("", None)).unwrap().len() * 3 / 4;
    for (capabilities, client_info, kept) in [(10, 10, true), (10, max, false), (max - fixed, 1, false)] {
        let token = token(&"c".repeat(capabilities), Some(&"n".repeat(client_info)));
        let id = sealer.seal_session(&token).unwrap();
        assert!(id.len() <= 2048, "{}", id.len());
        let client_info = token.client_info.clone().filter(|_| kept);
        let expected = SessionToken { client_info, ..token };
        assert_eq!(sealer.open_session(&Principal::local(), &id), Some(expected), "{capabilities}");
    }
    let largest = sealer.seal_session(&token(&"c".repeat(max - fixed), None)).unwrap();
    assert_eq!(largest.len(), 2048, "nothing of the room is wasted");
    assert_eq!(sealer.seal_session(&token(&"c".repeat(max - fixed + 1), None)), None);
    assert_eq!(sealer.open_session(&Principal::local(), &format!("{largest}A")), None);
}

#[test]
fn the_keys_of_a_sealer_are_not_shown() {
    assert_eq!(format!("{:?}", sealer(&[1, 2])), "Sealer { keys: 2, .. }");
}

/// A question's id, as its process sends it, and as an endpoint of several upstreams does.
#[test]
fn an_id_is_found_behind_the_prefix_of_its_process_and_the_mark_of_an_endpoint() {
    for text in ["abc", "tg:0123456789abcdef:abc", "reports:stg:0123456789abcdef:abc"] {
        assert_eq!(sealed_in(text), "abc");
    }
}

prop_compose! {
    fn claims()(
        names in prop::array::uniform2(prop::collection::btree_set("[a-z:]{1,8}", 0..5)),
        issuer in prop::option::of("[a-z:/.]{1,30}"),
        client in prop::option::of(any::<[u8; 32]>()),
        is_bound: bool,
    ) -> Claims {
        let [scopes, groups] = names.map(|names| names.into_iter().map(Arc::from).collect());
        Claims { scopes, groups, issuer: issuer.map(Arc::from), client: client.map(Digest), is_bound }
    }
}

prop_compose! {
    fn forwarded()(
        numbers: [u64; 4],
        request: [u8; 32],
        principal in ".{0,80}",
        claims in prop::option::of(claims()),
        until in prop::option::of(1..u64::MAX),
        client in prop::option::of(any::<IpAddr>()),
    ) -> ForwardToken {
        let [target, sender, number, issued_at] = numbers;
        ForwardToken {
            target: Incarnation(target),
            sender: Incarnation(sender),
            number,
            issued_at: Timestamp::from_millis(issued_at),
            request: Digest(request),
            caller: Caller { claims: claims.map(Arc::new), until: until.map(Timestamp::from_millis), ..Caller::of(Principal::new(&principal)) },
            client,
        }
    }
}

proptest! {
    #[test]
    fn a_forward_token_reads_back_and_is_no_other_token(
        token in forwarded(),
        cut: prop::sample::Index,
        bit in 0..8_u8,
    ) {
        let sealer = sealer(&[2, 1]);
        let sealed = sealer.seal_forward(&token).unwrap();
        prop_assert_eq!(sealer.open_forward(&sealed), Some(token.clone()));
        prop_assert_ne!(sealer.seal_forward(&token).unwrap(), sealed.clone());
        let opened = sealer.open(IdKind::Forward, None, &sealed).unwrap();
        let payload = opened.payload();
        for odd in [&payload[..cut.index(payload.len())], &[payload, b"x"].concat()] {
            prop_assert_eq!(sealer.open_forward(&sealer.seal(&opened.id, None, odd).unwrap()), None);
        }
        prop_assert_eq!(sealer.open_session(&token.caller.principal, &sealed), None);
        let as_session = GatewayId { kind: IdKind::Session, ..opened.id.clone() };
        prop_assert_eq!(sealer.open_forward(&sealer.seal(&as_session, None, payload).unwrap()), None);
        let mut bytes = URL_SAFE_NO_PAD.decode(&sealed).unwrap();
        let at = cut.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert_eq!(sealer.open_forward(&URL_SAFE_NO_PAD.encode(bytes)), None);
    }
}

/// By a replica that has the new key and the old one, from a replica with the old one only.
#[test]
fn a_forwarded_request_opens_with_every_key_of_the_ring() {
    let token = ForwardToken {
        target: Incarnation(1),
        sender: Incarnation(2),
        number: 3,
        issued_at: Timestamp::from_millis(4),
        request: Digest([5; 32]),
        caller: Caller::of(Principal::local()),
        client: None,
    };
    let sealed = sealer(&[1]).seal_forward(&token).unwrap();
    assert_eq!(sealer(&[2, 1]).open_forward(&sealed), Some(token.clone()));
    assert_eq!(sealer(&[2]).open_forward(&sealed), None);
    let long = ForwardToken { caller: Caller::of(Principal::new(&"p".repeat(10_000))), ..token };
    assert_eq!(sealer(&[1]).seal_forward(&long), None, "what would never open is not sealed");
}

/// Frequent ids of one process share a salt, so that the key of each salt is derived once.
#[test]
fn frequent_ids_share_a_salt_and_each_has_a_nonce() {
    let (new, stream) = (sealer(&[1]), GatewayId::in_memory(IdKind::EventStream, None, 7));
    let seal = || new.seal(&stream, None, &[]).unwrap();
    let [first, second] = [seal(), seal()].map(|text| {
        assert!(text.len() < 128 && new.open(IdKind::EventStream, None, &text).is_some(), "{text}");
        URL_SAFE_NO_PAD.decode(text).unwrap()
    });
    assert_eq!(first[..SALT_LEN], second[..SALT_LEN], "one salt");
    assert_ne!(first[SALT_LEN..][..1 + NONCE_LEN], second[SALT_LEN..][..1 + NONCE_LEN], "a nonce each");
}

#[test]
fn leg_09_an_events_name_says_which_stream_it_is_of() {
    assert_eq!(read_event_id(&event_id("ab-_", 7)), Some(("ab-_", 7)));
    for odd in ["", "ab-7", "000000000000000000000000000000ab", "ab.x"] {
        assert_eq!(read_event_id(odd), None, "{odd}");
    }
}
