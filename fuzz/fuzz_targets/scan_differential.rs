//! Fuzzes the strict scan against `serde_json`. Seeds: `tests/corpus/scan`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::checks;

fuzz_target!(|bytes: &[u8]| {
    checks::scan(bytes);
});
