//! Encodes a task's summary for lists in a separate column, in the form of a record. The checksum covers the version, the
//! body, and the columns beside it, which decide about the row on their own.

use ::bytes::Bytes;

use super::bytes::{RecordReader, RecordValue, RecordWriter};
use super::{CHECKSUM_LEN, HEAD_LEN, RecordError, VERSION, checksum_of};
use crate::task::{Summary, SummaryPhase, TaskKey};

pub fn encode(summary: &Summary, columns: &[u8]) -> Vec<u8> {
    let mut out = RecordWriter::with_capacity(HEAD_LEN, summary.bytes());
    put(summary, &mut out);
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

/// Stores a summary as these fields, in this order; the columns beside it have its key.
macro_rules! summary_fields {
    ($($field:ident),+) => {
        fn put(summary: &Summary, out: &mut RecordWriter) {
            // Without `..`, so that a new field fails to compile until it is stored.
            let Summary { key: _, $($field),+ } = summary;
            $($field.put(out);)+
        }

        fn take(key: &TaskKey, body: &mut RecordReader) -> Option<Summary> {
            Some(Summary { key: key.clone(), $($field: RecordValue::take(body)?),+ })
        }
    };
}

summary_fields! {
    visibility, origin, created_at, updated_at, ttl, poll_interval, phase, status_message, failure, chosen, tree
}

stored_variants! {
    SummaryPhase {
        0 => (SummaryPhase::Queued),
        1 => (SummaryPhase::Working),
        2 => (SummaryPhase::AwaitingInput),
        3 [is_error] => (SummaryPhase::Returned { is_error }),
        4 => (SummaryPhase::Refused),
        5 [fault] => (SummaryPhase::Faulted(fault)),
        6 => (SummaryPhase::Cancelled),
    }
}
