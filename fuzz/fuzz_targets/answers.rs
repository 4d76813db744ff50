//! Fuzzes answers to questions. Seeds: `tests/corpus/answers`.
#![no_main]

#[path = "../../tests/corpus/checks.rs"]
#[allow(dead_code, reason = "each target uses one of the checks")]
mod checks;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    checks::answers(bytes);
});
