//! Encodes the gateway's own faults, each as a fixed number.

use super::bytes::{RecordReader, RecordWriter};
use crate::task::{Executed, GatewayFault, ProcessExit, Reason};

/// A flag in the byte of [`Executed`]: a process's exit follows.
const EXIT_FOLLOWS: u8 = 0x80;

pub(super) fn put_fault(out: &mut RecordWriter, fault: &GatewayFault) {
    let GatewayFault { reason, executed, http_status, retry_after, exit, process: _ } = fault;
    out.byte(reason_code(*reason));
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

pub(super) fn take_fault(body: &mut RecordReader) -> Option<GatewayFault> {
    let code = body.byte()?;
    let executed = body.byte()?;
    Some(GatewayFault {
        reason: REASONS.into_iter().find(|reason| reason_code(*reason) == code)?,
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

/// Numbers are never reused.
pub(super) const fn reason_code(reason: Reason) -> u8 {
    match reason {
        Reason::UpstreamUnreachable => 0,
        Reason::UpstreamTls => 1,
        Reason::UpstreamHttpStatus => 2,
        Reason::UpstreamAuth => 3,
        Reason::UpstreamRedirect => 4,
        Reason::UpstreamMalformed => 5,
        Reason::UpstreamClosed => 6,
        Reason::UpstreamSessionLost => 7,
        Reason::UpstreamTimeout => 8,
        Reason::UpstreamRefused => 9,
        Reason::DeadlineExceeded => 10,
        Reason::ResultTooLarge => 11,
        Reason::TtlExpired => 12,
        Reason::GatewayRestart => 13,
        Reason::TooManyTasks => 14,
        Reason::TooManyListeners => 15,
        Reason::TooManyWaiters => 16,
        Reason::StoreFull => 17,
        Reason::StoreFailed => 18,
        Reason::QueueFull => 19,
        Reason::QueueDeadline => 20,
        Reason::Draining => 21,
        Reason::Internal => 22,
        Reason::StoreCorrupt => 23,
        Reason::Poison => 24,
        Reason::UpstreamCircuitOpen => 25,
        Reason::TooMuchStored => 26,
        Reason::RateLimited => 27,
        Reason::ReplicaUnavailable => 28,
        Reason::ReplicaLost => 29,
        Reason::StoreLost => 30,
        Reason::TooMuchUnread => 31,
        Reason::AnswersFull => 32,
        Reason::AuditUnavailable => 33,
        Reason::CredentialMissing => 34,
        Reason::CredentialRefused => 35,
        Reason::CredentialAway => 36,
        Reason::CredentialMalformed => 37,
        Reason::CredentialBound => 38,
    }
}

/// All reasons with a number; the tests check that none is missing.
pub(super) const REASONS: [Reason; 39] = [
    Reason::UpstreamUnreachable,
    Reason::UpstreamTls,
    Reason::UpstreamHttpStatus,
    Reason::UpstreamAuth,
    Reason::UpstreamRedirect,
    Reason::UpstreamMalformed,
    Reason::UpstreamClosed,
    Reason::UpstreamSessionLost,
    Reason::UpstreamTimeout,
    Reason::UpstreamRefused,
    Reason::DeadlineExceeded,
    Reason::ResultTooLarge,
    Reason::TtlExpired,
    Reason::GatewayRestart,
    Reason::TooManyTasks,
    Reason::TooManyListeners,
    Reason::TooManyWaiters,
    Reason::StoreFull,
    Reason::StoreFailed,
    Reason::QueueFull,
    Reason::QueueDeadline,
    Reason::Draining,
    Reason::Internal,
    Reason::StoreCorrupt,
    Reason::Poison,
    Reason::UpstreamCircuitOpen,
    Reason::TooMuchStored,
    Reason::RateLimited,
    Reason::ReplicaUnavailable,
    Reason::ReplicaLost,
    Reason::StoreLost,
    Reason::TooMuchUnread,
    Reason::AnswersFull,
    Reason::AuditUnavailable,
    Reason::CredentialMissing,
    Reason::CredentialRefused,
    Reason::CredentialAway,
    Reason::CredentialMalformed,
    Reason::CredentialBound,
];
