//! Encodes the gateway's own faults, each as a fixed number.

use super::bytes::{RecordReader, RecordWriter};
use crate::task::{Executed, GatewayFault, ProcessExit, Reason};

/// A flag in the byte of [`Executed`]: a process's exit follows.
const EXIT_FOLLOWS: u8 = 0x80;

pub(super) fn put_fault(out: &mut RecordWriter, fault: &GatewayFault) {
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

pub(super) fn take_fault(body: &mut RecordReader) -> Option<GatewayFault> {
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
