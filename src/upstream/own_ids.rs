//! Names the gateway's own requests, to servers and to clients: `"tg:<prefix>:<rest>"`. The prefix is random in each
//! process: a gateway behind or in front of another recognises only its own requests. Ids to recognise after a restart
//! do not use it: a call's row holds its whole id; the rest of a question's id is sealed.

use std::sync::LazyLock;

use uuid::Uuid;

use crate::random;
use crate::wire::RequestId;

const MARK: &str = "tg:";

static PREFIX: LazyLock<String> = LazyLock::new(|| format!("{MARK}{:016x}:", u64::from_be_bytes(random::bytes())));

/// Also the progress token: unguessable, so a message with it was meant for this call. Panics without random bytes.
pub(crate) fn mint() -> RequestId {
    of(Uuid::from_bytes(random::bytes()).simple().encode_lower(&mut Uuid::encode_buffer()))
}

/// An id with this rest, which has no colon.
pub(crate) fn of(rest: &str) -> RequestId {
    RequestId::text_of([PREFIX.as_str(), rest])
}

/// Whether this process made an id, in any spelling.
pub(crate) fn is_own(id: &RequestId) -> bool {
    id.as_text().is_some_and(|text| text.starts_with(PREFIX.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_this_process_are_its_own_in_any_spelling() {
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
}
