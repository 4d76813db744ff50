//! Fuzzes messages of any bytes. Seeds: `tests/corpus/envelope`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::checks;

fuzz_target!(|bytes: &[u8]| {
    checks::envelope(bytes);
});
