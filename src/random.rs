//! Draws random bytes.

/// Bytes that nobody can guess, for ids and nonces: of the calling thread's own generator, and so without a system call.
///
/// That is ChaCha with 12 rounds under a key of the operating system's randomness, and under a new one after every 64 KiB.
/// Whoever knows bytes that it gave can tell none of the others. Two processes would draw the same if one were a copy of
/// the other; this program never forks: it only starts programs, which begin anew.
///
/// # Panics
/// If the operating system has no randomness when a thread first draws: then no id, key or nonce may be given out.
#[must_use]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes);
    bytes
}

/// Bytes that nobody can guess, for keys: what is drawn seldom and kept long comes from the operating system itself.
///
/// # Panics
/// If the operating system has none.
#[must_use]
pub fn key<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
