//! Verifies audit files: every line is the next of its chain.
//!
//! Reads each file once, line by line, within bounds. A changed last line is found by an anchor alone: no line follows it.

use std::collections::HashMap;
use std::io::{self, BufRead, Read as _};

use super::record::{ChainEnd, LINE_BYTES_MAX, LineLinks, digest_in, digest_of};
use crate::task::digest::hex;

/// The most lines of an anchor file.
const ANCHORS_MAX: usize = 1_000_000;
const ANCHOR_LINE_BYTES_MAX: u64 = 128;

/// Where a chain is broken: the first fault of a file. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum AuditFault {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is empty")]
    Empty,
    #[error("line {line}: is longer than {LINE_BYTES_MAX} bytes")]
    TooLong { line: u64 },
    #[error("line {line}: is no record")]
    NotARecord { line: u64 },
    #[error("line {line}, after seq {seq}: is incomplete")]
    Torn { line: u64, seq: u64 },
    #[error("line {line}, seq {seq}: its digest is not the one in the next line: one of the two was changed")]
    Changed { line: u64, seq: u64 },
    #[error("line {line}, seq {seq}: does not follow seq {before}: lines are missing, or in another order")]
    Misplaced { line: u64, seq: u64, before: u64 },
    #[error("line {line}, seq {seq}: neither begins a chain nor continues the file before")]
    OfAnotherChain { line: u64, seq: u64 },
    #[error("line {line}, seq {seq}: differs from the anchor")]
    Unanchored { line: u64, seq: u64 },
    #[error("the anchors go on to seq {anchored}, and the lines end at seq {seq}: lines are missing at the end")]
    EndMissing { anchored: u64, seq: u64 },
    #[error("line {line}: is no anchor")]
    NotAnAnchor { line: u64 },
}

/// Digests that were written elsewhere, by line number. A later chain follows an earlier one.
#[derive(Debug, Default)]
pub struct Anchors {
    digests: HashMap<u64, Vec<String>>,
    /// The last line of the last chain.
    last: u64,
}

impl Anchors {
    pub fn read(mut text: impl BufRead) -> Result<Self, AuditFault> {
        let mut anchors = Self::default();
        let mut line = String::new();
        for number in 1.. {
            line.clear();
            text.by_ref().take(ANCHOR_LINE_BYTES_MAX).read_line(&mut line)?;
            if line.is_empty() {
                break;
            }
            let parts = line.strip_suffix('\n').and_then(|line| line.split_once(' '));
            let read = parts.and_then(|(seq, digest)| Some((seq.parse::<u64>().ok()?, digest)));
            let is_digest = |digest: &str| digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            let (seq, digest) = read
                .filter(|(_, digest)| is_digest(digest) && number <= ANCHORS_MAX as u64)
                .ok_or(AuditFault::NotAnAnchor { line: number })?;
            anchors.digests.entry(seq).or_default().push(digest.to_owned());
            anchors.last = seq;
        }
        Ok(anchors)
    }

    fn accept(&self, end: &ChainEnd) -> bool {
        self.digests.get(&end.seq).is_none_or(|known| known.contains(&hex(&end.digest)))
    }
}

/// Verifies the files of one chain, in their order.
#[derive(Debug, Default)]
pub struct ChainVerifier {
    anchors: Anchors,
    end: Option<ChainEnd>,
    pub lines: u64,
    /// The number of the first line.
    pub first: u64,
    /// Records that the gateway could not write, as the lines themselves say.
    pub lost: u64,
}

impl ChainVerifier {
    pub fn with(anchors: Anchors) -> Self {
        Self { anchors, ..Self::default() }
    }

    /// The number and the digest of the last line.
    pub fn last(&self) -> Option<(u64, String)> {
        self.end.map(|end| (end.seq, hex(&end.digest)))
    }

    /// Verifies the next file, up to its first fault.
    pub fn file(&mut self, mut text: impl BufRead) -> Result<(), AuditFault> {
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            text.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
            let is_whole = line.pop_if(|last| *last == b'\n').is_some();
            match is_whole {
                false if line.len() > LINE_BYTES_MAX => return Err(AuditFault::TooLong { line: number }),
                false if line.is_empty() && number == 1 => return Err(AuditFault::Empty),
                false if line.is_empty() => break,
                false => {
                    let seq = self.end.map_or(0, |end| end.seq);
                    return Err(AuditFault::Torn { line: number, seq });
                }
                true => self.line(number, &line)?,
            }
        }
        Ok(())
    }

    /// Whether the last line is as late as the last anchor.
    pub fn finish(&self) -> Result<(), AuditFault> {
        let (anchored, seq) = (self.anchors.last, self.end.map_or(0, |end| end.seq));
        if anchored > seq { Err(AuditFault::EndMissing { anchored, seq }) } else { Ok(()) }
    }

    fn line(&mut self, line: u64, text: &[u8]) -> Result<(), AuditFault> {
        let LineLinks { seq, prev, lost } = LineLinks::read(text).ok_or(AuditFault::NotARecord { line })?;
        let before = match self.end {
            Some(end) => end,
            // The first file may be one of a rotated series, which begins in the middle of the chain.
            None if seq > 1 => {
                ChainEnd { seq: seq - 1, digest: digest_in(&prev).ok_or(AuditFault::NotARecord { line })? }
            }
            None => ChainEnd::default(),
        };
        if seq != before.seq + 1 {
            return Err(AuditFault::Misplaced { line, seq, before: before.seq });
        }
        if *prev != hex(&before.digest) {
            return Err(match line {
                1 => AuditFault::OfAnotherChain { line, seq },
                _ => AuditFault::Changed { line: line - 1, seq: before.seq },
            });
        }
        let end = ChainEnd { seq, digest: digest_of(text) };
        if !self.anchors.accept(&end) {
            return Err(AuditFault::Unanchored { line, seq });
        }
        if self.lines == 0 {
            self.first = seq;
        }
        (self.end, self.lines, self.lost) = (Some(end), self.lines + 1, self.lost.saturating_add(lost));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
