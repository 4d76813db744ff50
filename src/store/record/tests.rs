//! Tests round trips, samples that must stay readable, and every single flipped bit.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::store::contract::task;
use crate::task::{
    Attempt, Digest, Executed, GatewayFault, InputKey, PendingEffects, ProcessExit, Reason, SessionScope, TaskId,
    Timestamp,
};
use crate::wire::Payload;

fn payload(text: &str) -> Payload {
    Payload::of(text)
}

fn question(text: &str) -> Question {
    Question { ask: payload(text), request: payload("asked") }
}

/// One task for each shape of a row, by the name of its sample file.
fn samples() -> Vec<(&'static str, Task)> {
    let base = || Task { updated_at: Timestamp::from_millis(1_000_007), ..task("key:ada", 7) };
    let full = GatewayFault {
        reason: Reason::StoreCorrupt,
        executed: Executed::Yes,
        http_status: Some(503),
        retry_after: Some(Duration::from_millis(1_500)),
        exit: None,
        process: None,
    };
    let error = RpcError { code: -32_000, message: "no ß".to_owned(), data: Some(payload("why")) };
    let call = StoredCall {
        params: payload("params"),
        capabilities: Payload::empty_object(),
        progress: true,
        log_level: Some(Arc::from("debug")),
        is_repeatable: true,
        is_native: true,
    };
    let recovery = Recovery {
        call: Some(call),
        resume: Some(payload("token")),
        dispatched_at: Some(Timestamp::from_millis(1_000_003)),
        crashes: 2,
        undelivered: vec![
            (payload("q1"), Answer::Result(payload("yes"))),
            (payload("q2"), Answer::Error(error.clone())),
        ],
        pending_effects: PendingEffects::NOTIFY_UPSTREAM,
    };
    let named = Idempotency { key: Digest([1; 32]), call: Digest([2; 32]) };
    let open = [(InputKey(1), question("a")), (InputKey(4), question("b"))].into();
    let returned = |is_error| Phase::Settled(Outcome::Returned { result: payload("done"), is_error });
    let faulted = |failure| Phase::Settled(Outcome::Faulted(failure));
    let bare = GatewayFault::new(Reason::UpstreamUnreachable, Executed::No);
    let gone = |reason| Failure::Gateway(GatewayFault::new(reason, Executed::Unknown));
    let id = TaskId::from_bits;
    let tree = TreeLinks { parent: Some(id(3)), children: Arc::from([id(4), id(1)]) };
    vec![
        ("queued", Task { phase: Phase::Queued, visibility: TaskVisibility::Hidden, ..base() }),
        ("working", Task { recovery, idempotency: Some(named), status_message: Some(Arc::from("half")), ..base() }),
        ("asking", Task { phase: Phase::AwaitingInput(open), next_key: InputKey(5), ..base() }),
        ("returned", Task { phase: returned(false), attempt: Attempt(3), ..base() }),
        ("tool_error", Task { phase: returned(true), ..base() }),
        ("upstream_error", Task { phase: faulted(Failure::Upstream(error)), ..base() }),
        ("gateway_fault", Task { phase: faulted(Failure::Gateway(full)), ..base() }),
        ("bare_fault", Task { phase: faulted(Failure::Gateway(bare)), ..base() }),
        ("cancelled", Task { phase: Phase::Settled(Outcome::Cancelled), ..base() }),
        ("replica_lost", Task { phase: faulted(gone(Reason::ReplicaLost)), ..base() }),
        ("store_lost", Task { phase: faulted(gone(Reason::StoreLost)), ..base() }),
        ("chosen", Task { chosen: Some(ChosenId { session: SessionScope(9), text: Arc::from("mine ß") }), ..base() }),
        ("tree", Task { tree, ..base() }),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/record")
}

fn hex(bytes: &[u8]) -> String {
    let lines: Vec<String> =
        bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    lines.join("\n") + "\n"
}

fn unhex(text: &str) -> Bytes {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// F68: `UPDATE_GOLDEN=1` adds missing samples and never changes an existing one.
#[test]
fn f68_samples_are_read_and_written_byte_for_byte() {
    for (name, task) in samples() {
        let record = encode(&task);
        let path = folder().join(format!("v{VERSION}_{name}.hex"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() && !path.exists() {
            fs::create_dir_all(folder()).unwrap();
            fs::write(&path, hex(&record)).unwrap();
        }
        let kept = unhex(&fs::read_to_string(path).unwrap());
        assert_eq!(decode(&kept).unwrap(), task, "{name}");
        assert_eq!(record, kept, "{name}");
    }
    let kept = fs::read_dir(folder()).unwrap().count();
    assert_eq!(kept, samples().len(), "a sample that nothing compares");
}

#[test]
fn f56_a_flipped_bit_anywhere_is_found() {
    for (name, task) in samples() {
        let whole = encode(&task);
        for at in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            assert_eq!(decode(&Bytes::from(flipped)), Err(RecordError::Damaged), "{name}, bit {at}");
        }
        for len in 0..whole.len() {
            let cut = Bytes::copy_from_slice(&whole[..len]);
            assert_eq!(decode(&cut), Err(RecordError::Damaged), "{name} cut to {len}");
        }
    }
}

/// F68: a row of another version is left as it is, a damaged one is replaced.
#[test]
fn f68_a_whole_record_of_another_version_is_told_from_a_damaged_one() {
    for version in [VERSION - 1, VERSION + 1] {
        let mut record = vec![0; HEAD_LEN];
        record.extend_from_slice(b"of another version");
        record[..2].copy_from_slice(&version.to_be_bytes());
        let sum = checksum(version, &record[HEAD_LEN..]);
        record[2..HEAD_LEN].copy_from_slice(&sum);
        assert_eq!(decode(&Bytes::from(record)), Err(RecordError::OtherVersion(version)));
    }
}

/// F89: a version with the same format may know further reasons, effects and fields.
#[test]
fn f89_a_whole_record_with_an_unknown_value_is_told_from_a_damaged_one() {
    let with_fault = |reason| Task {
        phase: Phase::Settled(Outcome::Faulted(Failure::Gateway(GatewayFault::new(reason, Executed::No)))),
        ..task("a", 1)
    };
    let with_effects = |effects| Task {
        recovery: Recovery { pending_effects: effects, ..Recovery::default() },
        ..with_fault(Reason::Poison)
    };
    let pairs = [
        [with_fault(Reason::Poison), with_fault(Reason::StoreLost)],
        [with_effects(PendingEffects::empty()), with_effects(PendingEffects::NOTIFY_UPSTREAM)],
    ];
    let mut records: Vec<Vec<u8>> = vec![[encode(&pairs[0][0]), vec![0]].concat()];
    for [one, other] in pairs.map(|pair| pair.map(|task| encode(&task))) {
        let at = (HEAD_LEN..one.len()).find(|at| one[*at] != other[*at]).unwrap();
        records.push([&one[..at], &[0xf0], &one[at + 1..]].concat());
    }
    for mut record in records {
        let sum = checksum(VERSION, &record[HEAD_LEN..]);
        record[2..HEAD_LEN].copy_from_slice(&sum);
        assert_eq!(decode(&Bytes::from(record)), Err(RecordError::Unknown));
    }
}

/// A write with an unknown commit is recognised by its row.
#[test]
fn a_row_equals_its_written_task_though_less_than_a_millisecond_is_not_stored() {
    let span = Duration::from_nanos(1_500_000_001);
    let times = TaskTimes { ttl: span, keep_result_min: span, poll_interval: span };
    let of = task("a", 1);
    let queued = Task::queued(of.key, TaskVisibility::Handle, of.origin, of.created_at, times);
    assert_eq!(decode(&Bytes::from(encode(&queued))).unwrap(), queued);
}

/// A write with an unknown commit is recognised by its row.
#[test]
fn a_row_equals_its_written_task_though_less_is_stored_of_a_fault() {
    let fault = GatewayFault {
        retry_after: Some(Duration::from_nanos(1_500_000_001)),
        process: Some(7),
        ..GatewayFault::new(Reason::UpstreamCircuitOpen, Executed::No)
    };
    let written = |fault| Task { phase: Phase::Settled(Outcome::lost(fault)), ..task("a", 1) };
    let read = decode(&Bytes::from(encode(&written(fault)))).unwrap();
    assert_eq!(read, written(fault));
    let later = GatewayFault { retry_after: Some(Duration::from_millis(1_501)), ..fault };
    assert_ne!(read, written(later));
}

#[test]
fn every_reason_has_a_number_of_its_own() {
    let codes: Vec<u8> = Reason::ALL.iter().map(|reason| *reason as u8).collect();
    let expected: Vec<u8> = (0..u8::try_from(Reason::ALL.len()).unwrap()).collect();
    assert_eq!(codes, expected);
}

fn any_text() -> impl Strategy<Value = String> {
    "\\PC{0,40}"
}

fn any_phase() -> impl Strategy<Value = Phase> {
    let asking = proptest::collection::btree_map(any::<u32>().prop_map(InputKey), any_text(), 1..4)
        .prop_map(|open| Phase::AwaitingInput(open.into_iter().map(|(key, text)| (key, question(&text))).collect()));
    let exit = proptest::option::of((any::<bool>(), any::<i32>()));
    let fault = (0..Reason::ALL.len(), any::<Option<u16>>(), any::<Option<u32>>(), exit).prop_map(
        |(reason, http_status, wait, exit)| {
            let retry_after = wait.map(|ms| Duration::from_millis(ms.into()));
            let exit = exit.map(
                |(by_itself, number)| if by_itself { ProcessExit::Code(number) } else { ProcessExit::Signal(number) },
            );
            let fault = GatewayFault {
                http_status,
                retry_after,
                exit,
                ..GatewayFault::new(Reason::ALL[reason], Executed::Unknown)
            };
            Phase::Settled(Outcome::Faulted(Failure::Gateway(fault)))
        },
    );
    let error = (any::<i64>(), any_text(), any::<Option<String>>()).prop_map(|(code, message, data)| {
        let data = data.map(|text| payload(&text));
        Phase::Settled(Outcome::Faulted(Failure::Upstream(RpcError { code, message, data })))
    });
    let returned = (any_text(), any::<bool>())
        .prop_map(|(text, is_error)| Phase::Settled(Outcome::Returned { result: payload(&text), is_error }));
    prop_oneof![Just(Phase::Queued), Just(Phase::Working), asking, fault, error, returned]
}

proptest! {
    #[test]
    fn an_encoded_record_decodes_to_the_same(
        owner in any_text(),
        id in any::<u128>(),
        times in any::<[u64; 5]>(),
        numbers in any::<[u32; 2]>(),
        phase in any_phase(),
        words in proptest::option::of(any_text()),
        named in any::<Option<([u8; 32], [u8; 32])>>(),
        (crashes, pending_effects) in any::<(u8, u8)>(),
        piece_min in 0_usize..64,
    ) {
        let span = Duration::from_millis;
        let whole = Task {
            created_at: Timestamp::from_millis(times[0]),
            updated_at: Timestamp::from_millis(times[1]),
            ttl: span(times[2]),
            keep_result_min: span(times[3]),
            poll_interval: span(times[4]),
            attempt: Attempt(numbers[0]),
            next_key: InputKey(numbers[1]),
            phase,
            status_message: words.as_deref().map(Arc::from),
            recovery: Recovery {
                crashes,
                pending_effects: PendingEffects::from_bits_truncate(pending_effects),
                resume: words.map(|text| payload(&text)),
                ..Recovery::default()
            },
            idempotency: named.map(|(key, call)| Idempotency { key: Digest(key), call: Digest(call) }),
            ..task(&owner, id)
        };
        let record = encode(&whole);
        prop_assert_eq!(&encode_in_pieces(&whole, piece_min).concat(), &record, "the same in pieces");
        prop_assert_eq!(decode(&Bytes::from(record)), Ok(whole));
    }

    #[test]
    fn bytes_of_any_kind_do_not_pass_for_a_task(noise in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(decode(&Bytes::from(noise)).is_err());
    }
}
