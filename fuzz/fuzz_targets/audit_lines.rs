//! Fuzzes audit files. Seeds: `tests/corpus/audit_lines`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::login_checks;

fuzz_target!(|bytes: &[u8]| {
    login_checks::audit_lines(bytes);
});
