//! Names the requests that the gateway makes itself, towards servers and towards clients: `"tg:<prefix>:<rest>"`.
//!
//! The prefix is drawn anew by each process, so that a gateway behind a gateway, or in front of one, takes only its own
//! requests for its own. What must be known again after a restart is not known by its prefix: the row of a call holds its
//! whole id, and a question's rest is sealed ([`rest`]).

use std::sync::LazyLock;

use uuid::Uuid;

use crate::random;
use crate::wire::RequestId;

/// What every gateway's own ids begin with.
const MARK: &str = "tg:";

/// What this process's begin with.
static PREFIX: LazyLock<String> = LazyLock::new(|| format!("{MARK}{:016x}:", u64::from_be_bytes(random::bytes())));

/// A fresh id. Also used as the progress token: nobody can guess it, so a message that names it was meant for this call.
///
/// # Panics
/// If the operating system gives no random bytes.
pub(crate) fn mint() -> RequestId {
    of_bits(u128::from_be_bytes(random::bytes()))
}

/// An id of these bits, which nobody must be able to guess.
pub(crate) fn of_bits(random: u128) -> RequestId {
    of(Uuid::from_u128(random).simple().encode_lower(&mut Uuid::encode_buffer()))
}

/// An id with this rest, without a colon in it.
pub(crate) fn of(rest: &str) -> RequestId {
    RequestId::text(&[PREFIX.as_str(), rest].concat())
}

/// Whether this process made an id, however it is written.
pub(crate) fn is_own(id: &RequestId) -> bool {
    id.as_text().is_some_and(|text| text.starts_with(PREFIX.as_str()))
}

/// What an id holds behind its prefix, whichever gateway's it is: one of before, or one that stands elsewhere. The rest
/// says for itself whose it is. Ids of before prefixes were drawn have none.
pub(crate) fn rest(id: &RequestId) -> Option<String> {
    let text = id.as_text()?;
    let after = text.strip_prefix(MARK)?;
    Some(after.split_once(':').map_or(after, |(_, rest)| rest).to_owned())
}

/// The bits of an id that [`of_bits`] made, whichever gateway's it is; of no use for one that is not random.
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
