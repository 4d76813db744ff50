//! Reads random bytes from the operating system.

/// Bytes that nobody can guess.
///
/// # Panics
/// If the operating system has none: then no id, key or nonce may be given out.
#[must_use]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
