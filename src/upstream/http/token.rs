//! Ids of requests that the gateway makes itself.

use crate::wire::RequestId;

/// A fresh id, `"tg:<32 hex digits>"`. Also used as the progress token: nobody can guess it, so a message
/// that names it was meant for this call.
///
/// # Panics
/// If the operating system gives no random bytes; nothing safe can be done then.
pub(crate) fn mint() -> RequestId {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the operating system gives random bytes");
    RequestId::text(&format!("tg:{:032x}", u128::from_be_bytes(random)))
}
