//! Encodes the token in the URL of an HTTP+SSE stream: its nonce and its replica.

use super::layout::TokenReader;
use crate::replica::Incarnation;

/// An HTTP+SSE stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamToken {
    /// 128 random bits.
    pub nonce: u128,
    /// The replica that holds it, if there are several.
    pub home: Option<Incarnation>,
}

impl StreamToken {
    /// Encodes the token; without a replica only the nonce.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let home = self.home.iter().flat_map(|home| home.0.to_be_bytes());
        self.nonce.to_be_bytes().into_iter().chain(home).collect()
    }

    /// Reads what [`StreamToken::encode`] wrote; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = TokenReader::new(bytes);
        let nonce = u128::from_be_bytes(rest.take()?);
        let home = if rest.is_empty() { None } else { Some(Incarnation(u64::from_be_bytes(rest.take()?))) };
        rest.is_empty().then_some(Self { nonce, home })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_without_a_home_is_its_nonce_alone_and_every_token_reads_back() {
        let alone = StreamToken { nonce: 7, home: None };
        assert_eq!(alone.encode(), 7_u128.to_be_bytes());
        for token in [alone, StreamToken { nonce: u128::MAX, home: Some(Incarnation(9)) }] {
            let plain = token.encode();
            assert_eq!(StreamToken::decode(&plain), Some(token));
            assert_eq!(StreamToken::decode(&plain[1..]), None);
            assert_eq!(StreamToken::decode(&[&plain[..], b"x"].concat()), None);
        }
    }
}
