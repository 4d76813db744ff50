//! Encodes a task as one row's bytes, for stores that outlive the process. A store replaces a damaged record by a failed task (F56).
//!
//! ```text
//! version (2 bytes) · checksum (16 bytes) · body
//! ```
//!
//! The checksum is the SipHash-1-3 of version and body, with 128 bits and without a key: it finds damage. A forger could
//! compute any checksum. Numbers are big-endian, texts have a length prefix, fields follow in the order of the functions below.

mod bytes;
pub mod summary;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use self::bytes::{RecordReader, RecordWriter};
use crate::task::model::ROW_BYTES_MIN;
use crate::task::{
    Answer, Attempt, CallOrigin, ChosenId, ClientKind, Digest, Executed, Failure, GatewayFault, Idempotency, InputKey,
    Outcome, PendingEffects, Phase, Principal, ProcessExit, Question, Reason, Recovery, SessionScope, StoredCall, Task,
    TaskId, TaskKey, TaskTimes, TaskVisibility, Timestamp, TreeLinks,
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

pub fn encode(task: &Task) -> Vec<u8> {
    // Large enough for a row's other fields too: a buffer that grows doubles.
    let mut out = RecordWriter::with_capacity(HEAD_LEN, task.stored_bytes() + ROW_BYTES_MIN);
    put_task(&mut out, task);
    let mut record = out.into_bytes();
    record[..2].copy_from_slice(&VERSION.to_be_bytes());
    let sum = checksum(VERSION, &record[HEAD_LEN..]);
    record[2..HEAD_LEN].copy_from_slice(&sum);
    record
}

/// As [`encode`], in pieces: payloads from `piece_min` bytes on are not copied.
pub fn encode_in_pieces(task: &Task, piece_min: usize) -> Vec<Bytes> {
    let mut out = RecordWriter::in_pieces(piece_min);
    put_task(&mut out, task);
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
    let task = take_task(&mut body).filter(|_| body.is_at_end());
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

fn put_task(out: &mut RecordWriter, task: &Task) {
    // Without `..`, so that a new field fails to compile until it is encoded.
    let Task {
        key: TaskKey { owner, id },
        visibility,
        origin,
        created_at,
        updated_at,
        ttl,
        keep_result_min,
        poll_interval,
        attempt: Attempt(attempt),
        phase,
        next_key: InputKey(next_key),
        status_message,
        recovery,
        idempotency,
        chosen,
        tree,
    } = task;
    out.text(owner.as_str());
    out.fixed(&id.bits().to_be_bytes());
    put_visibility(out, *visibility);
    put_origin(out, origin);
    out.time(*created_at);
    out.time(*updated_at);
    out.span(*ttl);
    out.span(*keep_result_min);
    out.span(*poll_interval);
    out.number(*attempt);
    put_phase(out, phase);
    out.number(*next_key);
    out.maybe(status_message.as_deref(), RecordWriter::text);
    put_recovery(out, recovery);
    out.maybe(idempotency.as_ref(), |out, Idempotency { key: Digest(key), call: Digest(call) }| {
        out.fixed(key);
        out.fixed(call);
    });
    put_chosen(out, chosen.as_ref());
    put_tree(out, tree);
}

fn take_task(body: &mut RecordReader) -> Option<Task> {
    Some(Task {
        key: TaskKey {
            owner: Principal::new(&body.text()?),
            id: TaskId::from_bits(u128::from_be_bytes(body.fixed()?)),
        },
        visibility: take_visibility(body)?,
        origin: take_origin(body)?,
        created_at: body.time()?,
        updated_at: body.time()?,
        ttl: body.span()?,
        keep_result_min: body.span()?,
        poll_interval: body.span()?,
        attempt: Attempt(body.number()?),
        phase: take_phase(body)?,
        next_key: InputKey(body.number()?),
        status_message: body.maybe(RecordReader::text)?,
        recovery: take_recovery(body)?,
        idempotency: body.maybe(|body| {
            let key = Digest(body.fixed()?);
            Some(Idempotency { key, call: Digest(body.fixed()?) })
        })?,
        chosen: take_chosen(body)?,
        tree: take_tree(body)?,
    })
}

fn put_chosen(out: &mut RecordWriter, chosen: Option<&ChosenId>) {
    out.maybe(chosen, |out, ChosenId { session: SessionScope(session), text }| {
        out.fixed(&session.to_be_bytes());
        out.text(text);
    });
}

fn take_chosen(body: &mut RecordReader) -> Option<Option<ChosenId>> {
    body.maybe(|body| {
        let session = SessionScope(u128::from_be_bytes(body.fixed()?));
        Some(ChosenId { session, text: body.text()? })
    })
}

fn put_tree(out: &mut RecordWriter, TreeLinks { parent, children }: &TreeLinks) {
    out.maybe(*parent, |out, parent| out.fixed(&parent.bits().to_be_bytes()));
    out.count(children.len());
    for child in &**children {
        out.fixed(&child.bits().to_be_bytes());
    }
}

fn take_tree(body: &mut RecordReader) -> Option<TreeLinks> {
    let id = |body: &mut RecordReader| body.fixed().map(|bits| TaskId::from_bits(u128::from_be_bytes(bits)));
    let parent = body.maybe(id)?;
    let count = body.count()?;
    let children = (0..count).map(|_| id(body)).collect::<Option<_>>()?;
    Some(TreeLinks { parent, children })
}

fn put_visibility(out: &mut RecordWriter, visibility: TaskVisibility) {
    out.byte(match visibility {
        TaskVisibility::Handle => 0,
        TaskVisibility::Hidden => 1,
        TaskVisibility::Part => 2,
    });
}

fn take_visibility(body: &mut RecordReader) -> Option<TaskVisibility> {
    match body.byte()? {
        0 => Some(TaskVisibility::Handle),
        1 => Some(TaskVisibility::Hidden),
        2 => Some(TaskVisibility::Part),
        _ => None,
    }
}

fn put_origin(out: &mut RecordWriter, origin: &CallOrigin) {
    let CallOrigin { upstream, tool, client } = origin;
    out.text(upstream);
    out.text(tool);
    out.byte(match client {
        ClientKind::Session => 0,
        ClientKind::Stateless => 1,
    });
}

fn take_origin(body: &mut RecordReader) -> Option<CallOrigin> {
    let (upstream, tool) = (body.text()?, body.text()?);
    let client = match body.byte()? {
        0 => ClientKind::Session,
        1 => ClientKind::Stateless,
        _ => return None,
    };
    Some(CallOrigin { upstream, tool, client })
}

fn put_phase(out: &mut RecordWriter, phase: &Phase) {
    match phase {
        Phase::Queued => out.byte(0),
        Phase::Working => out.byte(1),
        Phase::AwaitingInput(open) => {
            out.byte(2);
            out.count(open.len());
            for (InputKey(key), Question { ask, request }) in open {
                out.number(*key);
                out.payload(ask);
                out.payload(request);
            }
        }
        Phase::Settled(Outcome::Returned { result, is_error }) => {
            out.byte(3);
            out.flag(*is_error);
            out.payload(result);
        }
        Phase::Settled(Outcome::Faulted(Failure::Upstream(error))) => {
            out.byte(4);
            put_error(out, error);
        }
        Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))) => {
            out.byte(5);
            put_fault(out, fault);
        }
        Phase::Settled(Outcome::Cancelled) => out.byte(6),
    }
}

fn take_phase(body: &mut RecordReader) -> Option<Phase> {
    Some(match body.byte()? {
        0 => Phase::Queued,
        1 => Phase::Working,
        2 => {
            let mut open = BTreeMap::new();
            for _ in 0..body.count()? {
                let key = InputKey(body.number()?);
                open.insert(key, Question { ask: body.payload()?, request: body.payload()? });
            }
            Phase::AwaitingInput(open)
        }
        3 => {
            let is_error = body.flag()?;
            Phase::Settled(Outcome::Returned { result: body.payload()?, is_error })
        }
        4 => Phase::Settled(Outcome::Faulted(Failure::Upstream(take_error(body)?))),
        5 => Phase::Settled(Outcome::Faulted(Failure::Gateway(take_fault(body)?))),
        6 => Phase::Settled(Outcome::Cancelled),
        _ => return None,
    })
}

fn put_recovery(out: &mut RecordWriter, recovery: &Recovery) {
    let Recovery { call, resume, dispatched_at, crashes, undelivered, pending_effects } = recovery;
    out.maybe(call.as_ref(), put_call);
    out.maybe(resume.as_ref(), RecordWriter::payload);
    out.maybe(*dispatched_at, RecordWriter::time);
    out.byte(*crashes);
    out.count(undelivered.len());
    for (ask, answer) in undelivered {
        out.payload(ask);
        match answer {
            Answer::Result(result) => {
                out.byte(0);
                out.payload(result);
            }
            Answer::Error(error) => {
                out.byte(1);
                put_error(out, error);
            }
        }
    }
    out.byte(pending_effects.bits());
}

fn take_recovery(body: &mut RecordReader) -> Option<Recovery> {
    Some(Recovery {
        call: body.maybe(take_call)?,
        resume: body.maybe(RecordReader::payload)?,
        dispatched_at: body.maybe(RecordReader::time)?,
        crashes: body.byte()?,
        undelivered: {
            let mut undelivered = Vec::new();
            for _ in 0..body.count()? {
                let ask = body.payload()?;
                let answer = match body.byte()? {
                    0 => Answer::Result(body.payload()?),
                    1 => Answer::Error(take_error(body)?),
                    _ => return None,
                };
                undelivered.push((ask, answer));
            }
            undelivered
        },
        pending_effects: PendingEffects::from_bits(body.byte()?)?,
    })
}

fn put_call(out: &mut RecordWriter, call: &StoredCall) {
    let StoredCall { params, capabilities, progress, log_level, is_repeatable, is_native } = call;
    out.payload(params);
    out.payload(capabilities);
    out.flag(*progress);
    out.maybe(log_level.as_deref(), RecordWriter::text);
    out.flag(*is_repeatable);
    out.flag(*is_native);
}

fn take_call(body: &mut RecordReader) -> Option<StoredCall> {
    Some(StoredCall {
        params: body.payload()?,
        capabilities: body.payload()?,
        progress: body.flag()?,
        log_level: body.maybe(RecordReader::text)?,
        is_repeatable: body.flag()?,
        is_native: body.flag()?,
    })
}

fn put_error(out: &mut RecordWriter, error: &RpcError) {
    let RpcError { code, message, data } = error;
    out.fixed(&code.to_be_bytes());
    out.text(message);
    out.maybe(data.as_ref(), RecordWriter::payload);
}

fn take_error(body: &mut RecordReader) -> Option<RpcError> {
    let code = i64::from_be_bytes(body.fixed()?);
    let message = Arc::<str>::as_ref(&body.text()?).to_owned();
    Some(RpcError { code, message, data: body.maybe(RecordReader::payload)? })
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

fn put_fault(out: &mut RecordWriter, fault: &GatewayFault) {
    let GatewayFault { reason, executed, http_status, retry_after, exit, process: _ } = fault;
    out.byte(*reason as u8);
    let executed = match executed {
        Executed::No => 0,
        Executed::Unknown => 1,
        Executed::Yes => 2,
    };
    out.byte(executed | if exit.is_some() { EXIT_FOLLOWS } else { 0 });
    out.maybe(*http_status, |out, status| out.fixed(&status.to_be_bytes()));
    out.maybe(*retry_after, RecordWriter::span);
    if let Some(exit) = exit {
        let (kind, number) = match exit {
            ProcessExit::Code(code) => (0, code),
            ProcessExit::Signal(signal) => (1, signal),
        };
        out.byte(kind);
        out.fixed(&number.to_be_bytes());
    }
}

fn take_fault(body: &mut RecordReader) -> Option<GatewayFault> {
    let code = body.byte()?;
    let executed = body.byte()?;
    Some(GatewayFault {
        reason: Reason::ALL.iter().copied().find(|reason| *reason as u8 == code)?,
        executed: match executed & !EXIT_FOLLOWS {
            0 => Executed::No,
            1 => Executed::Unknown,
            2 => Executed::Yes,
            _ => return None,
        },
        http_status: body.maybe(|body| body.fixed().map(u16::from_be_bytes))?,
        retry_after: body.maybe(RecordReader::span)?,
        exit: if executed & EXIT_FOLLOWS == 0 { None } else { Some(take_exit(body)?) },
        process: None,
    })
}

fn take_exit(body: &mut RecordReader) -> Option<ProcessExit> {
    let (kind, number) = (body.byte()?, i32::from_be_bytes(body.fixed()?));
    match kind {
        0 => Some(ProcessExit::Code(number)),
        1 => Some(ProcessExit::Signal(number)),
        _ => None,
    }
}
