//! Carries one JSON value in pieces, so that large texts inside it are shared.

use bytes::Bytes;

use super::Payload;

/// One JSON value: whole, or in consecutive pieces.
#[derive(Clone, Debug)]
pub enum JsonPieces {
    Whole(Payload),
    Pieces(Vec<Bytes>),
}

impl JsonPieces {
    /// Payloads of at least so many bytes become a separate piece.
    pub const SHARED_MIN: usize = 64 << 10;

    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(payload) => payload.len(),
            Self::Pieces(pieces) => pieces.iter().map(Bytes::len).sum(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn is_large(&self) -> bool {
        self.len() >= Self::SHARED_MIN
    }

    /// The value in one piece. Copies pieces.
    #[must_use]
    pub fn whole(self) -> Payload {
        match self {
            Self::Whole(payload) => payload,
            Self::Pieces(pieces) => Payload::from_scanned(pieces.concat().into()),
        }
    }

    /// A copy that keeps no other buffer alive; a small value is shared.
    #[must_use]
    pub fn detached(&self) -> Self {
        if self.is_large() { Self::Whole(self.clone().whole().detached()) } else { self.clone() }
    }

    #[must_use]
    pub fn into_pieces(self) -> Vec<Bytes> {
        match self {
            Self::Whole(payload) => vec![payload.into_bytes()],
            Self::Pieces(pieces) => pieces,
        }
    }
}

impl From<Payload> for JsonPieces {
    fn from(payload: Payload) -> Self {
        Self::Whole(payload)
    }
}
