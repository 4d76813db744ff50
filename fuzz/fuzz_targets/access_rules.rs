//! Fuzzes access rules. Seeds: `tests/corpus/access_rules`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::login_checks;

fuzz_target!(|bytes: &[u8]| {
    login_checks::access_rules(bytes);
});
