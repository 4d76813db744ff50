//! Encodes a task as one row's bytes, for stores that outlive the process. A store replaces a damaged record by a failed task (F56).
//!
//! ```text
//! version (2 bytes) · checksum (16 bytes) · body
//! ```
//!
//! The checksum is the SipHash-1-3 of version and body, with 128 bits and without a key: it finds damage. A forger could
//! compute any checksum. Numbers are big-endian, texts have a length prefix, fields follow in the order of the lists below.

/// Stores a struct as these fields, in this order.
macro_rules! stored_fields {
    ($($type:ident { $($field:ident),+ })*) => {
        $(impl RecordValue for $type {
            fn put(&self, out: &mut RecordWriter) {
                // Without `..`, so that a new field fails to compile until it is stored.
                let Self { $($field),+ } = self;
                $($field.put(out);)+
            }

            fn take(body: &mut RecordReader) -> Option<Self> {
                Some(Self { $($field: RecordValue::take(body)?),+ })
            }
        })*
    };
}

/// Stores an enum as the number of its variant, then these values. Numbers are never reused.
macro_rules! stored_variants {
    ($($type:ident { $($number:literal $([$($held:ident),+])? => ($($shape:tt)+),)+ })*) => {
        $(impl RecordValue for $type {
            fn put(&self, out: &mut RecordWriter) {
                match self {
                    $($($shape)+ => {
                        out.byte($number);
                        $($($held.put(out);)+)?
                    })+
                }
            }

            fn take(body: &mut RecordReader) -> Option<Self> {
                Some(match body.byte()? {
                    $($number => {
                        $($(let $held = RecordValue::take(body)?;)+)?
                        $($shape)+
                    })+
                    _ => return None,
                })
            }
        })*
    };
}

mod bytes;
pub mod summary;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use self::bytes::{RecordReader, RecordValue, RecordWriter};
use crate::task::model::ROW_BYTES_MIN;
use crate::task::{
    Answer, CallOrigin, ChosenId, ClientKind, Executed, Failure, GatewayFault, Idempotency, Outcome, Phase,
    ProcessExit, Question, Reason, Recovery, ShortReference, StoredCall, Task, TaskKey, TaskTimes, TaskVisibility,
    Timestamp, TreeLinks,
};
use crate::wire::RpcError;

/// How long the failed task stays readable at least, if the original was not settled.
const CONDEMNED_FOR: Duration = Duration::from_secs(15 * 60);
pub const VERSION: u16 = 3;

const CHECKSUM_LEN: usize = 16;
const HEAD_LEN: usize = 2 + CHECKSUM_LEN;
/// A flag in the byte of [`Executed`]: a process's exit follows.
const EXIT_FOLLOWS: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The checksum does not match.
    #[error("the record is damaged")]
    Damaged,
    #[error("the record has version {0}, and this program reads version {VERSION} only; run the program that wrote it")]
    OtherVersion(u16),
    /// The checksum matches, and this program does not know a value of the body.
    #[error("the record has a value that this program does not know; run the program that wrote it")]
    Unknown,
}

const LOGGED_MAX: usize = 1_024;

/// The rows that were logged as unreadable. Each is logged once, however often it is read.
#[derive(Debug, Default)]
pub(super) struct UnreadableRows(pub(super) Mutex<BTreeSet<ShortReference>>);

impl UnreadableRows {
    pub(super) fn log(&self, key: &TaskKey, what: &'static str, error: &RecordError) {
        let reference = ShortReference::of(key);
        let mut logged = self.0.lock();
        if logged.len() < LOGGED_MAX && logged.insert(reference) {
            tracing::error!(task = %reference, %error, "{what}");
        }
    }
}

pub fn encode(task: &Task) -> Vec<u8> {
    // Large enough for a row's other fields too: a buffer that grows doubles.
    let mut out = RecordWriter::with_capacity(HEAD_LEN, task.stored_bytes() + ROW_BYTES_MIN);
    task.put(&mut out);
    let mut record = out.into_bytes();
    record[..2].copy_from_slice(&VERSION.to_be_bytes());
    let sum = checksum(VERSION, &record[HEAD_LEN..]);
    record[2..HEAD_LEN].copy_from_slice(&sum);
    record
}

/// As [`encode`], in pieces: payloads from `piece_min` bytes on are not copied.
pub fn encode_in_pieces(task: &Task, piece_min: usize) -> Vec<Bytes> {
    let mut out = RecordWriter::in_pieces(piece_min);
    task.put(&mut out);
    let body = out.into_pieces();
    let sum = checksum_of(VERSION, &body.iter().map(|piece| &piece[..]).collect::<Vec<_>>());
    let head = [&VERSION.to_be_bytes()[..], &sum].concat().into();
    std::iter::once(head).chain(body).collect()
}

/// Decodes a record; payloads share its bytes. Never returns another task, except with a probability of 1 in 2^128.
pub fn decode(record: &Bytes) -> Result<Task, RecordError> {
    let version = record.get(..2).and_then(|head| head.try_into().ok()).map(u16::from_be_bytes);
    let version = version.ok_or(RecordError::Damaged)?;
    if record.len() < HEAD_LEN || record[2..HEAD_LEN] != checksum(version, &record[HEAD_LEN..]) {
        return Err(RecordError::Damaged);
    }
    if version != VERSION {
        return Err(RecordError::OtherVersion(version));
    }
    let mut body = RecordReader::new(record.slice(HEAD_LEN..));
    let task = Task::take(&mut body).filter(|_| body.is_at_end());
    task.ok_or(RecordError::Unknown)
}

fn checksum(version: u16, body: &[u8]) -> [u8; CHECKSUM_LEN] {
    checksum_of(version, &[body])
}

/// The length of each part but the last must follow from its start.
fn checksum_of(version: u16, parts: &[&[u8]]) -> [u8; CHECKSUM_LEN] {
    let mut hasher = SipHasher13::new();
    hasher.write(&version.to_be_bytes());
    for part in parts {
        hasher.write(part);
    }
    u128::from(hasher.finish128()).to_be_bytes()
}

stored_fields! {
    TaskKey { owner, id }
    Task {
        key, visibility, origin, created_at, updated_at, ttl, keep_result_min, poll_interval, attempt, phase, next_key,
        status_message, recovery, idempotency, chosen, tree
    }
    CallOrigin { upstream, tool, client }
    Question { ask, request }
    Recovery { call, resume, dispatched_at, crashes, undelivered, pending_effects }
    StoredCall { params, capabilities, progress, log_level, is_repeatable, is_native }
    Idempotency { key, call }
    ChosenId { session, text }
    TreeLinks { parent, children }
    RpcError { code, message, data }
}

stored_variants! {
    TaskVisibility {
        0 => (TaskVisibility::Handle),
        1 => (TaskVisibility::Hidden),
        2 => (TaskVisibility::Part),
    }
    ClientKind {
        0 => (ClientKind::Session),
        1 => (ClientKind::Stateless),
    }
    Phase {
        0 => (Phase::Queued),
        1 => (Phase::Working),
        2 [open] => (Phase::AwaitingInput(open)),
        3 [is_error, result] => (Phase::Settled(Outcome::Returned { result, is_error })),
        4 [error] => (Phase::Settled(Outcome::Faulted(Failure::Upstream(error)))),
        5 [fault] => (Phase::Settled(Outcome::Faulted(Failure::Gateway(fault)))),
        6 => (Phase::Settled(Outcome::Cancelled)),
    }
    Answer {
        0 [result] => (Answer::Result(result)),
        1 [error] => (Answer::Error(error)),
    }
    ProcessExit {
        0 [code] => (ProcessExit::Code(code)),
        1 [signal] => (ProcessExit::Signal(signal)),
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LostRow {
    pub(super) is_settled: bool,
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
}

pub(super) fn condemned(key: TaskKey, outline: LostRow, now: Timestamp) -> Task {
    let nothing: Arc<str> = Arc::from("");
    let ttl = outline.expires_at.since(outline.created_at);
    let readable = if outline.is_settled { Duration::ZERO } else { now.since(outline.created_at) + CONDEMNED_FOR };
    let origin = CallOrigin { upstream: Arc::clone(&nothing), tool: nothing, client: ClientKind::Stateless };
    let times =
        TaskTimes { ttl: ttl.max(readable), keep_result_min: Duration::ZERO, poll_interval: Duration::from_secs(1) };
    let failure = Failure::Gateway(GatewayFault::new(Reason::StoreCorrupt, Executed::Unknown));
    Task {
        updated_at: now.max(outline.created_at),
        phase: Phase::Settled(Outcome::Faulted(failure)),
        ..Task::queued(key, TaskVisibility::Handle, origin, outline.created_at, times)
    }
}

impl RecordValue for GatewayFault {
    fn put(&self, out: &mut RecordWriter) {
        let Self { reason, executed, http_status, retry_after, exit, process: _ } = self;
        reason.put(out);
        let executed = match executed {
            Executed::No => 0,
            Executed::Unknown => 1,
            Executed::Yes => 2,
        };
        out.byte(executed | if exit.is_some() { EXIT_FOLLOWS } else { 0 });
        http_status.put(out);
        retry_after.put(out);
        exit.iter().for_each(|exit| exit.put(out));
    }

    fn take(body: &mut RecordReader) -> Option<Self> {
        let (reason, executed) = (Reason::take(body)?, body.byte()?);
        Some(Self {
            reason,
            executed: match executed & !EXIT_FOLLOWS {
                0 => Executed::No,
                1 => Executed::Unknown,
                2 => Executed::Yes,
                _ => return None,
            },
            http_status: RecordValue::take(body)?,
            retry_after: RecordValue::take(body)?,
            exit: if executed & EXIT_FOLLOWS == 0 { None } else { Some(ProcessExit::take(body)?) },
            process: None,
        })
    }
}
