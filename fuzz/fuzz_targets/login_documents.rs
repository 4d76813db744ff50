//! Fuzzes key sets and metadata of issuers. Seeds: `tests/corpus/login_documents`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use support::login_checks;

fuzz_target!(|bytes: &[u8]| {
    login_checks::login_documents(bytes);
});
