//! Names the gateway's own requests, to servers and to clients: `"tg:<prefix>:<rest>"`.
//!
//! Each process draws a random prefix, so that a gateway behind or in front of another recognises only its own requests. Ids that
//! must be recognised after a restart do not depend on the prefix: a call's row holds its whole id, and the rest of a question's
//! id is sealed ([`rest`]).

use std::sync::LazyLock;

use uuid::Uuid;

use crate::random;
use crate::wire::RequestId;

/// The first part of every gateway's ids.
const MARK: &str = "tg:";

/// The first part of this process's ids.
static PREFIX: LazyLock<String> = LazyLock::new(|| format!("{MARK}{:016x}:", u64::from_be_bytes(random::bytes())));

/// A fresh id. Also used as the progress token: it cannot be guessed, so a message with it was meant for this call.
///
/// # Panics
/// If the operating system gives no random bytes.
pub(crate) fn mint() -> RequestId {
    of_bits(u128::from_be_bytes(random::bytes()))
}

/// An id of these bits, which must be unguessable.
pub(crate) fn of_bits(random: u128) -> RequestId {
    of(Uuid::from_u128(random).simple().encode_lower(&mut Uuid::encode_buffer()))
}

/// An id with this rest, which has no colon.
pub(crate) fn of(rest: &str) -> RequestId {
    RequestId::text(&[PREFIX.as_str(), rest].concat())
}

/// Whether this process made an id, in any spelling.
pub(crate) fn is_own(id: &RequestId) -> bool {
    id.as_text().is_some_and(|text| text.starts_with(PREFIX.as_str()))
}

/// The part of an id after its prefix, for any process's id. The rest itself proves its origin. Ids from before prefixes existed
/// have none.
pub(crate) fn rest(id: &RequestId) -> Option<String> {
    let text = id.as_text()?;
    let after = text.strip_prefix(MARK)?;
    Some(after.split_once(':').map_or(after, |(_, rest)| rest).to_owned())
}

/// The bits of an id from [`of_bits`], for any process's id; meaningless for an id that is not random.
pub(crate) fn bits(id: &RequestId) -> Option<u128> {
    Some(Uuid::try_parse(&rest(id)?).ok()?.as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_process_made_is_its_own_however_it_is_written() {
        let own = mint();
        assert!(is_own(&own) && own != mint());
        let text = own.as_text().unwrap().into_owned();
        let escaped = format!("\"\\u0074{}\"", &text[1..]);
        let escaped = crate::wire::Payload::parse(&escaped.into(), crate::wire::ScanLimits::CLIENT).unwrap();
        assert!(is_own(&RequestId::from_payload(&escaped).unwrap()));
        for foreign in ["tg:0123", "tg:0123456789abcdef:0", &text[1..], "", "tg:"] {
            assert!(!is_own(&RequestId::text(foreign)), "{foreign}");
        }
    }

    #[test]
    fn the_rest_is_read_behind_any_prefix_and_behind_none() {
        for id in [of("abc"), RequestId::text("tg:0123456789abcdef:abc"), RequestId::text("tg:abc")] {
            assert_eq!(rest(&id).as_deref(), Some("abc"));
        }
        assert_eq!(rest(&RequestId::text("abc")), None);
        assert_eq!(bits(&of_bits(7)), Some(7));
        assert_eq!([bits(&of("abc")), bits(&RequestId::text("abc"))], [None, None]);
    }
}
