//! Generates random bytes.

/// Unpredictable bytes for ids and nonces, from the thread's generator and so without a system call.
///
/// ChaCha12, keyed by the operating system and rekeyed after every 64 KiB; known output reveals no other output. This
/// program never forks, which would repeat it. Panics if the system provides no randomness.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes);
    bytes
}

/// Unpredictable bytes for keys, from the operating system itself. Panics if it provides none.
pub fn key<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
