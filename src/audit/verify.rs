//! Verifies audit files: every line is the next of its chain. Reads each file once, line by line, within bounds. A
//! changed last line is found by an anchor alone: no line follows it.

use std::collections::HashMap;
use std::io::{self, BufRead, Read as _};

use super::record::{ChainEnd, LINE_BYTES_MAX, LineLinks, digest_of};
use crate::task::digest::{hex, unhex};

const ANCHORS_MAX: usize = 1_000_000;
const ANCHOR_LINE_BYTES_MAX: u64 = 128;
const DIGEST_DIGITS: usize = 64;
const SEQ_DIGITS_MAX: usize = 20;

/// Where a chain is broken: the first fault of a file. Lines count from 1.
#[derive(Debug, thiserror::Error)]
pub enum AuditFault {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is empty")]
    Empty,
    #[error("line {line}: is longer than {LINE_BYTES_MAX} bytes")]
    TooLong { line: u64 },
    #[error("line {line}: is not a record")]
    NotARecord { line: u64 },
    #[error("line {line}, after seq {seq}: is incomplete")]
    Torn { line: u64, seq: u64 },
    #[error("line {line}, seq {seq}: its digest is not the one in the next line: one of the two was changed")]
    Changed { line: u64, seq: u64 },
    #[error("line {line}, seq {seq}: does not follow seq {before}: lines are missing, or in another order")]
    Misplaced { line: u64, seq: u64, before: u64 },
    #[error("line {line}, seq {seq}: neither begins a chain nor continues the file before")]
    OfAnotherChain { line: u64, seq: u64 },
    #[error(
        "line {line}, seq {seq}: the lines before it are missing; name the earlier files too, or add --partial if you do not have them"
    )]
    BeginningMissing { line: u64, seq: u64 },
    #[error("line {line}, seq {seq}: differs from the anchor")]
    Unanchored { line: u64, seq: u64 },
    #[error("the anchors go on to seq {anchored}, and the lines end at seq {seq}: lines are missing at the end")]
    EndMissing { anchored: u64, seq: u64 },
    #[error("line {line}: is not an anchor")]
    NotAnAnchor { line: u64 },
}

/// Digests of each chain from elsewhere: a later chain's anchors follow an earlier one's, and begin again at line 1.
#[derive(Debug, Default)]
pub struct Anchors {
    by_seq: HashMap<u64, Vec<Anchor>>,
    /// The last anchored line of each chain, in their order.
    last: Vec<u64>,
}

#[derive(Debug)]
struct Anchor {
    /// Its position in [`Anchors::last`].
    chain: usize,
    digest: String,
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
            let entry = line.trim_end_matches('\n');
            let (seq, digest) = entry.split_once(' ').unwrap_or((entry, ""));
            let is_number = seq.len() <= SEQ_DIGITS_MAX && seq.bytes().all(|byte| byte.is_ascii_digit());
            let is_hex = digest.len() <= DIGEST_DIGITS && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_number || !is_hex || number > ANCHORS_MAX as u64 {
                return Err(AuditFault::NotAnAnchor { line: number });
            }
            // A write that failed left a part of a line, or a whole one that was written again later.
            let whole = seq.parse::<u64>().ok().filter(|_| digest.len() == DIGEST_DIGITS && line.ends_with('\n'));
            let Some(seq) = whole.filter(|seq| !anchors.has(*seq, digest)) else { continue };
            match anchors.last.last_mut() {
                Some(last) if seq > *last => *last = seq,
                Some(_) | None => anchors.last.push(seq),
            }
            let chain = anchors.last.len() - 1;
            anchors.by_seq.entry(seq).or_default().push(Anchor { chain, digest: digest.to_owned() });
        }
        Ok(anchors)
    }

    fn has(&self, seq: u64, digest: &str) -> bool {
        self.by_seq.get(&seq).is_some_and(|known| known.iter().any(|anchor| anchor.digest == digest))
    }
}

/// The anchors that no verified line was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnseenChains {
    pub count: usize,
    /// The last anchored line of the longest of them.
    pub longest: u64,
}

#[derive(Debug, Default)]
pub struct ChainVerifier {
    anchors: Anchors,
    /// For each chain of the anchors, the number of lines that agree with it; `None` once a line does not.
    agreed: Vec<Option<u64>>,
    is_partial: bool,
    end: Option<ChainEnd>,
    pub lines: u64,
    pub first: u64,
    /// Records that the gateway could not write, as the lines themselves say.
    pub lost: u64,
}

impl ChainVerifier {
    pub fn with(anchors: Anchors) -> Self {
        let agreed = vec![Some(0); anchors.last.len()];
        Self { anchors, agreed, ..Self::default() }
    }

    /// The same for files that need not begin with the first line of their chain.
    #[must_use]
    pub fn partial(self) -> Self {
        Self { is_partial: true, ..self }
    }

    pub fn last(&self) -> Option<(u64, String)> {
        self.end.map(|end| (end.seq, hex(&end.digest)))
    }

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

    /// Whether the last line is as late as the last anchor of its chain.
    pub fn finish(&self) -> Result<(), AuditFault> {
        let anchored = self.chain().map_or(0, |chain| self.anchors.last[chain]);
        let seq = self.end.map_or(0, |end| end.seq);
        if anchored > seq { Err(AuditFault::EndMissing { anchored, seq }) } else { Ok(()) }
    }

    /// The number of lines that were compared with an anchor.
    #[must_use]
    pub fn agreed(&self) -> u64 {
        self.chain().and_then(|chain| self.agreed[chain]).unwrap_or(0)
    }

    /// The chains of the anchors that the lines do not belong to.
    #[must_use]
    pub fn unseen(&self) -> Option<UnseenChains> {
        let own = self.chain();
        let others = || self.anchors.last.iter().enumerate().filter(|(at, _)| Some(*at) != own).map(|(_, last)| *last);
        others().max().map(|longest| UnseenChains { count: others().count(), longest })
    }

    /// The chain of the anchors that most lines agree with; the newest if there are several.
    fn chain(&self) -> Option<usize> {
        let possible = (0..self.agreed.len()).filter(|chain| self.agreed[*chain].is_some());
        possible.max_by_key(|chain| self.agreed[*chain])
    }

    /// Compares a line with the anchors of the chains that the lines before it agree with.
    fn compare(&mut self, line: u64, end: &ChainEnd) -> Result<(), AuditFault> {
        let Some(known) = self.anchors.by_seq.get(&end.seq) else { return Ok(()) };
        let digest = hex(&end.digest);
        let (mut is_anchored, mut has_agreed, mut has_left) = (false, false, false);
        for anchor in known {
            let agreed = &mut self.agreed[anchor.chain];
            let Some(count) = agreed else { continue };
            is_anchored = true;
            if anchor.digest == digest {
                (*count, has_agreed) = (*count + 1, true);
            } else {
                // An older copy of the file was put back, and continued (SEC-95).
                has_left |= *count > 0;
                *agreed = None;
            }
        }
        let is_wrong = has_left || (is_anchored && !has_agreed);
        if is_wrong { Err(AuditFault::Unanchored { line, seq: end.seq }) } else { Ok(()) }
    }

    fn line(&mut self, line: u64, text: &[u8]) -> Result<(), AuditFault> {
        let LineLinks { seq, prev, lost } = LineLinks::read(text).ok_or(AuditFault::NotARecord { line })?;
        let before = match self.end {
            Some(end) => end,
            // One file of a rotated series, or the rest of one whose beginning was removed.
            None if seq > 1 && !self.is_partial => return Err(AuditFault::BeginningMissing { line, seq }),
            None if seq > 1 => ChainEnd { seq: seq - 1, digest: unhex(&prev).ok_or(AuditFault::NotARecord { line })? },
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
        self.compare(line, &end)?;
        if self.lines == 0 {
            self.first = seq;
        }
        (self.end, self.lines, self.lost) = (Some(end), self.lines + 1, self.lost.saturating_add(lost));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
