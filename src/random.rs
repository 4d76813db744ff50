//! Generates random bytes.

/// Unpredictable bytes for ids and nonces, from the thread's generator and so without a system call.
///
/// The generator is ChaCha12, keyed by the operating system and rekeyed after every 64 KiB. Known output reveals no other output.
/// A forked process would repeat it, but this program never forks: it only starts programs.
///
/// # Panics
/// If the operating system provides no randomness when a thread first generates: then no id, key or nonce may be used.
#[must_use]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes);
    bytes
}

/// Unpredictable bytes for keys, which are rare and long-lived and so come from the operating system itself.
///
/// # Panics
/// If the operating system provides none.
#[must_use]
pub fn key<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
