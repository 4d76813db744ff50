//! Fuzzes what input schemas say about headers. Seeds: `tests/corpus/schema`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::checks;

fuzz_target!(|bytes: &[u8]| {
    checks::schema(bytes);
});
