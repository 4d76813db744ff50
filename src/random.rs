//! Generates random bytes.

/// Unpredictable bytes for ids and nonces without a system call: ChaCha12, keyed by the operating system and rekeyed
/// after 64 KiB. A fork would repeat bytes; this program never forks. Panics if the system provides no key.
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
