//! Fuzzes event streams of any bytes in any pieces. Seeds: `tests/corpus/sse`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::checks;

fuzz_target!(|bytes: &[u8]| {
    checks::sse(bytes);
});
