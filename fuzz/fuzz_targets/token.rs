//! Fuzzes access tokens. Seeds: `tests/corpus/token`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::login_checks;

fuzz_target!(|bytes: &[u8]| {
    login_checks::token(bytes);
});
