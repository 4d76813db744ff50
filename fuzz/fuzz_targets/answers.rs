//! Fuzzes answers to questions. Seeds: `tests/corpus/answers`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::checks;

fuzz_target!(|bytes: &[u8]| {
    checks::answers(bytes);
});
