//! Fuzzes lines of any bytes in any pieces. Seeds: `tests/corpus/lines`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::checks;

fuzz_target!(|bytes: &[u8]| {
    checks::lines(bytes);
});
