//! The guarantees of a sealed token, over random contents and random damage.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::replica::Incarnation;
use crate::task::{Digest, Principal, Timestamp};
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
        principal: digest_of(&Principal::local()),
        nonce: 7,
        client_version: ProtocolVersion::V2025_11_25,
        upstream_version: ProtocolVersion::V2025_03_26,
        capabilities: object(capabilities),
        client_info: client_info.map(object),
        issued_at: Timestamp::from_millis(1_785_196_800_007),
        home: None,
        upstream_session: Some("5c1f".repeat(8)),
        tasks: UpstreamTaskSupport::default(),
        declares_tasks: false,
    }
}

prop_compose! {
    fn tokens()(
        texts in [".{0,30}", "[0-9a-f]{64}", ".{0,200}"],
        client_info in proptest::option::of(".{0,100}"),
        upstream_session in proptest::option::of("[!-~]{0,64}"),
        nonce: u128,
        issued_at: u64,
        home in proptest::option::of(any::<u64>().prop_map(Incarnation)),
        versions in [0..ProtocolVersion::ALL.len(), 0..ProtocolVersion::ALL.len()],
        tasks: [bool; 3],
    ) -> SessionToken {
        let [upstream, principal, capabilities] = texts;
        let [client_version, upstream_version] = versions.map(|at| ProtocolVersion::ALL[at]);
        SessionToken {
            upstream,
            principal,
            nonce,
            client_version,
            upstream_version,
            capabilities: object(&capabilities),
            client_info: client_info.as_deref().map(object),
            issued_at: Timestamp::from_millis(issued_at),
            home,
            upstream_session,
            tasks: UpstreamTaskSupport { calls: tasks[0], cancel: tasks[1] },
            declares_tasks: tasks[2],
        }
    }
}

/// Only holders of the key can read a replica's number in an id.
#[test]
fn bits_name_a_replica_to_whoever_has_the_key() {
    let replica = Incarnation(41);
    for random in [0, 7, u64::MAX] {
        let bits = sealer(&[1]).name(replica, random);
        assert_eq!(bits as u64, random);
        assert!(sealer(&[1]).named(bits).eq([replica]));
        assert!(sealer(&[2, 1]).named(bits).any(|named| named == replica), "the key was changed since");
        assert!(sealer(&[2]).named(bits).all(|named| named != replica) && sealer(&[2]).name(replica, random) != bits);
        assert!(sealer(&[1]).named(bits ^ 1).all(|named| named.0 > u64::from(u32::MAX)), "others name nobody");
    }
}

proptest! {
    #[test]
    fn what_was_sealed_is_opened_as_it_was(plain: Vec<u8>) {
        let sealed = sealer(&[1]).seal(TokenPurpose::Session, &plain);
        prop_assert!(sealed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{}", sealed);
        prop_assert_eq!(sealer(&[1]).open(TokenPurpose::Session, &sealed), Some(plain));
    }

    #[test]
    fn tokens_read_back_and_ids_stay_short(token in tokens()) {
        let plain = token.encode();
        let kept = SessionToken::decode(&plain);
        prop_assert_eq!(kept.as_ref(), Some(&token));
        prop_assert_eq!(SessionToken::decode_home(&plain), Some((token.home, token.nonce)));
        let id = sealer(&[1]).seal_session(&token).unwrap();
        prop_assert!(id.len() <= 2048);
        prop_assert_eq!(sealer(&[1]).open_session(&id), Some(token));
    }

    #[test]
    fn a_token_that_was_changed_anywhere_does_not_open(plain: Vec<u8>, at: prop::sample::Index, bit in 0..8_u8) {
        let sealer = sealer(&[1]);
        let sealed = sealer.seal(TokenPurpose::Session, &plain);
        let mut bytes = URL_SAFE_NO_PAD.decode(&sealed).unwrap();
        let at_byte = at.index(bytes.len());
        bytes[at_byte] ^= 1 << bit;
        prop_assert_eq!(sealer.open(TokenPurpose::Session, &URL_SAFE_NO_PAD.encode(bytes)), None);
        // In its text, too: no second spelling of the same token is accepted.
        let mut text = sealed.clone().into_bytes();
        let at_text = at.index(text.len());
        text[at_text] ^= 1 << bit;
        let text = String::from_utf8_lossy(&text);
        prop_assert_eq!(sealer.open(TokenPurpose::Session, &text), None);
        prop_assert_eq!(sealer.open(TokenPurpose::Session, &sealed[..at_text]), None);
        prop_assert_eq!(sealer.open(TokenPurpose::Session, &format!("{sealed}A")), None);
    }

    #[test]
    fn what_others_made_up_is_no_token(text in ".{0,100}", bytes: Vec<u8>) {
        prop_assert_eq!(sealer(&[1]).open(TokenPurpose::Session, &text), None);
        prop_assert_eq!(sealer(&[1]).open(TokenPurpose::Session, &URL_SAFE_NO_PAD.encode(&bytes)), None);
        let _ = SessionToken::decode(&bytes);
    }

    #[test]
    fn a_token_in_pieces_is_none(token in tokens(), cut: prop::sample::Index) {
        let plain = token.encode();
        prop_assert_eq!(SessionToken::decode(&plain[..cut.index(plain.len())]), None);
        prop_assert_eq!(SessionToken::decode(&[&plain[..], b"x"].concat()), None);
    }
}

#[test]
fn two_seals_of_the_same_content_differ() {
    let sealer = sealer(&[1]);
    assert_ne!(sealer.seal(TokenPurpose::Session, b"same"), sealer.seal(TokenPurpose::Session, b"same"));
}

/// T-24: a token of one kind does not open as another.
#[test]
fn a_token_for_another_purpose_does_not_open() {
    let sealer = sealer(&[1]);
    let sealed = sealer.seal(TokenPurpose::RequestState, b"x");
    assert_eq!(sealer.open(TokenPurpose::RequestState, &sealed).as_deref(), Some(&b"x"[..]));
    assert_eq!(sealer.open(TokenPurpose::Session, &sealed), None);
    assert_eq!(sealer.open(TokenPurpose::RequestState, &sealer.seal(TokenPurpose::Session, b"x")), None);
}

#[test]
fn after_a_change_of_keys_old_tokens_open_until_their_key_is_removed() {
    let old = sealer(&[1]).seal(TokenPurpose::Session, b"old");
    let both = sealer(&[2, 1]);
    let new = both.seal(TokenPurpose::Session, b"new");
    assert_eq!(both.open(TokenPurpose::Session, &old).as_deref(), Some(&b"old"[..]));
    assert_eq!(both.open(TokenPurpose::Session, &new).as_deref(), Some(&b"new"[..]));
    assert_eq!(sealer(&[2]).open(TokenPurpose::Session, &new).as_deref(), Some(&b"new"[..]), "the first key seals");
    assert_eq!(sealer(&[1]).open(TokenPurpose::Session, &new), None);
    assert_eq!(sealer(&[2]).open(TokenPurpose::Session, &old), None);
}

#[test]
fn a_long_client_name_is_left_out_and_long_capabilities_are_refused() {
    let sealer = sealer(&[1]);
    let max = TokenPurpose::Session.plain_len_max();
    let fixed = token("", None).encode().len();
    for (capabilities, client_info, kept) in [(10, 10, true), (10, max, false), (max - fixed, 1, false)] {
        let token = token(&"c".repeat(capabilities), Some(&"n".repeat(client_info)));
        let id = sealer.seal_session(&token).unwrap();
        assert!(id.len() <= 2048, "{}", id.len());
        let client_info = token.client_info.clone().filter(|_| kept);
        assert_eq!(sealer.open_session(&id), Some(SessionToken { client_info, ..token }), "{capabilities}");
    }
    let largest = sealer.seal_session(&token(&"c".repeat(max - fixed), None)).unwrap();
    assert_eq!(largest.len(), 2048, "nothing of the room is wasted");
    let refused = sealer.seal_session(&token(&"c".repeat(max - fixed + 1), None));
    assert_eq!(refused, Err(TooLarge { len: max + 1, max }));
    let too_long = sealer.seal(TokenPurpose::Session, &vec![0; max + 1]);
    assert_eq!(sealer.open(TokenPurpose::Session, &too_long), None);
}

#[test]
fn principals_are_told_apart_by_a_digest_of_fixed_length() {
    let local = digest_of(&Principal::local());
    assert_eq!(local, "25bf8e1a2393f1108d37029b3df5593236c755742ec93465bbafa9b290bddcf6");
    assert_ne!(local, digest_of(&Principal::anonymous()));
    assert_eq!(format!("{:?}", sealer(&[1, 2])), "Sealer { keys: 2 }");
}

prop_compose! {
    fn forwarded()(
        numbers: [u64; 4],
        request: [u8; 32],
        principal in ".{0,80}",
        client in prop::option::of(any::<std::net::IpAddr>()),
    ) -> ForwardToken {
        let [target, sender, number, issued_at] = numbers;
        ForwardToken {
            target: Incarnation(target),
            sender: Incarnation(sender),
            number,
            issued_at: Timestamp::from_millis(issued_at),
            request: Digest(request),
            principal: Principal::new(&principal),
            client,
        }
    }
}

proptest! {
    #[test]
    fn what_goes_with_a_forwarded_request_reads_back_and_is_of_use_as_nothing_else(
        token in forwarded(),
        cut: prop::sample::Index,
        bit in 0..8_u8,
    ) {
        let (sealer, plain) = (sealer(&[2, 1]), token.encode());
        let sealed = sealer.seal_forward(&token).unwrap();
        let opened = sealer.open_forward(&sealed);
        prop_assert_eq!(opened.as_ref(), Some(&token));
        prop_assert_ne!(sealer.seal_forward(&token).unwrap(), sealed.clone());
        prop_assert_eq!(ForwardToken::decode(&plain[..cut.index(plain.len())]), None);
        prop_assert_eq!(ForwardToken::decode(&[&plain[..], b"x"].concat()), None);
        prop_assert_eq!(sealer.open_session(&sealed), None);
        prop_assert_eq!(sealer.open_forward(&sealer.seal(TokenPurpose::Session, &plain)), None);
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
        principal: Principal::local(),
        client: None,
    };
    let sealed = sealer(&[1]).seal_forward(&token).unwrap();
    assert_eq!(sealer(&[2, 1]).open_forward(&sealed), Some(token.clone()));
    assert_eq!(sealer(&[2]).open_forward(&sealed), None);
    let long = ForwardToken { principal: Principal::new(&"p".repeat(1_000)), ..token };
    assert_eq!(sealer(&[1]).seal_forward(&long), None, "what would never open is not sealed");
}

/// From a replica with a build that draws a salt for each token; and the reverse, as it derives the key of any salt.
#[test]
fn a_token_under_a_salt_of_its_own_opens_and_one_under_a_shared_salt_looks_the_same() {
    let of_salt = |salt: &[u8]| {
        let ring = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[1; KEY_LEN]);
        let key = aws_lc_rs::hmac::sign(&ring, &[b"taskgate key of one token", salt].concat());
        aes(key.as_ref().try_into().unwrap())
    };
    let sealer = sealer(&[2, 1]);
    for salt in [[3; SALT_LEN], [4; SALT_LEN], [3; SALT_LEN]] {
        let sealed = sealed_with(&of_salt(&salt), TokenPurpose::Forward.label(), b"old");
        let text = URL_SAFE_NO_PAD.encode([&salt[..], &sealed].concat());
        assert_eq!(sealer.open(TokenPurpose::Forward, &text).as_deref(), Some(&b"old"[..]));
    }
    let new = self::sealer(&[1]);
    let [first, second] = [(); 2].map(|()| URL_SAFE_NO_PAD.decode(new.seal(TokenPurpose::Forward, b"new")).unwrap());
    assert_eq!(first[..SALT_LEN], second[..SALT_LEN], "one salt");
    assert_ne!(first[SALT_LEN..][..1 + NONCE_LEN], second[SALT_LEN..][..1 + NONCE_LEN], "a nonce each");
    for token in [first, second] {
        let (salt, token) = token.split_at(SALT_LEN);
        let opened = opened_with(&of_salt(salt), TokenPurpose::Forward.label(), token);
        assert_eq!(opened.as_deref(), Some(&b"new"[..]));
    }
}

/// A single gateway writes the layout from before owners existed, and reads it.
#[test]
fn without_a_home_a_session_id_holds_what_it_always_held() {
    let plain = token("c", Some("n")).encode();
    let versions = [ProtocolVersion::V2025_11_25, ProtocolVersion::V2025_03_26].map(|one| one.traits().number);
    let head = [&[1, 0b11][..], &versions, &7_u128.to_be_bytes(), &1_785_196_800_007_u64.to_be_bytes()].concat();
    assert_eq!(plain[..head.len()], head);
    assert_eq!(plain[head.len()..][..11], *b"\0\0\0\x07reports");
    let at_home = SessionToken { home: Some(Incarnation(9)), ..token("c", Some("n")) }.encode();
    assert_eq!((at_home[1], at_home.len()), (0b10_0011, plain.len() + 8));
}
