//! Fuzzes proofs of possession. Seeds: `tests/corpus/proof`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::login_checks;

fuzz_target!(|bytes: &[u8]| {
    login_checks::proof(bytes);
});
