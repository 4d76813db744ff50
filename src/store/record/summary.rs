//! Encodes a task's summary for lists, as the bytes of a separate column.
//! ```text
//! version (2 bytes) · checksum (16 bytes) · body
//! ```
//! The checksum covers the version, the body, and the columns beside it, which decide about the row on their own.

use ::bytes::Bytes;

use super::bytes::{RecordReader, RecordWriter};
use super::{
    CHECKSUM_LEN, HEAD_LEN, RecordError, VERSION, checksum_of, put_chosen, put_fault, put_origin, put_tree,
    put_visibility, take_chosen, take_fault, take_origin, take_tree, take_visibility,
};
use crate::task::{Summary, SummaryPhase, TaskKey};

pub fn encode(summary: &Summary, columns: &[u8]) -> Vec<u8> {
    // Without `..`, so that a new field fails to compile until it is encoded.
    let Summary {
        key: _,
        visibility,
        origin,
        created_at,
        updated_at,
        ttl,
        poll_interval,
        phase,
        status_message,
        failure,
        chosen,
        tree,
    } = summary;
    let mut out = RecordWriter::with_capacity(HEAD_LEN, summary.bytes());
    put_visibility(&mut out, *visibility);
    put_origin(&mut out, origin);
    out.time(*created_at);
    out.time(*updated_at);
    out.span(*ttl);
    out.span(*poll_interval);
    put_phase(&mut out, phase);
    out.maybe(status_message.as_deref(), RecordWriter::text);
    out.maybe(failure.as_deref(), RecordWriter::text);
    put_chosen(&mut out, chosen.as_ref());
    put_tree(&mut out, tree);
    let mut bytes = out.into_bytes();
    bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
    let sum = checksum_of(VERSION, &[columns, &bytes[HEAD_LEN..]]);
    bytes[2..HEAD_LEN].copy_from_slice(&sum);
    bytes
}

/// Checks that a summary was stored beside these columns, and returns its body.
pub fn check<'b>(columns: &[u8], bytes: &'b [u8]) -> Result<&'b [u8], RecordError> {
    let version = bytes.get(..2).and_then(|head| head.try_into().ok()).map(u16::from_be_bytes);
    let version = version.ok_or(RecordError::Damaged)?;
    let body = bytes.get(HEAD_LEN..).ok_or(RecordError::Damaged)?;
    let sum: [u8; CHECKSUM_LEN] = checksum_of(version, &[columns, body]);
    if bytes[2..HEAD_LEN] != sum {
        return Err(RecordError::Damaged);
    }
    if version == VERSION { Ok(body) } else { Err(RecordError::OtherVersion(version)) }
}

pub fn decode(key: &TaskKey, columns: &[u8], bytes: &[u8]) -> Result<Summary, RecordError> {
    let mut body = RecordReader::new(Bytes::copy_from_slice(check(columns, bytes)?));
    let summary = take(key, &mut body).filter(|_| body.is_at_end());
    summary.ok_or(RecordError::Unknown)
}

fn take(key: &TaskKey, body: &mut RecordReader) -> Option<Summary> {
    Some(Summary {
        key: key.clone(),
        visibility: take_visibility(body)?,
        origin: take_origin(body)?,
        created_at: body.time()?,
        updated_at: body.time()?,
        ttl: body.span()?,
        poll_interval: body.span()?,
        phase: take_phase(body)?,
        status_message: body.maybe(RecordReader::text)?,
        failure: body.maybe(RecordReader::text)?,
        chosen: take_chosen(body)?,
        tree: take_tree(body)?,
    })
}

fn put_phase(out: &mut RecordWriter, phase: &SummaryPhase) {
    match phase {
        SummaryPhase::Queued => out.byte(0),
        SummaryPhase::Working => out.byte(1),
        SummaryPhase::AwaitingInput => out.byte(2),
        SummaryPhase::Returned { is_error } => {
            out.byte(3);
            out.flag(*is_error);
        }
        SummaryPhase::Refused => out.byte(4),
        SummaryPhase::Faulted(fault) => {
            out.byte(5);
            put_fault(out, fault);
        }
        SummaryPhase::Cancelled => out.byte(6),
    }
}

fn take_phase(body: &mut RecordReader) -> Option<SummaryPhase> {
    Some(match body.byte()? {
        0 => SummaryPhase::Queued,
        1 => SummaryPhase::Working,
        2 => SummaryPhase::AwaitingInput,
        3 => SummaryPhase::Returned { is_error: body.flag()? },
        4 => SummaryPhase::Refused,
        5 => SummaryPhase::Faulted(take_fault(body)?),
        6 => SummaryPhase::Cancelled,
        _ => return None,
    })
}
