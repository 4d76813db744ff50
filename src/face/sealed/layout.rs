//! Encodes and decodes the parts of a token.

use aws_lc_rs::digest;
use bytes::Bytes;

use crate::task::digest::hex;
use crate::wire::{Payload, ScanLimits};

/// Appends a part after its length.
pub(super) fn put(out: &mut Vec<u8>, part: &[u8]) {
    let len = u32::try_from(part.len()).expect("parts of a request are far shorter than 4 GiB");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(part);
}

/// SHA-256 as 64 hex digits.
pub(super) fn hex_digest(of: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, of).as_ref())
}

/// The unread rest.
pub(super) struct TokenReader<'a>(&'a [u8]);

impl<'a> TokenReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(u32::from_be_bytes(self.take()?)).ok()?;
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(super) fn payload(&mut self) -> Option<Payload> {
        Payload::parse(&Bytes::copy_from_slice(self.bytes()?), ScanLimits::CLIENT).ok()
    }
}
