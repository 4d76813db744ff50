//! Replays the corpus of the fuzz targets in `fuzz/`. A file's name begins with its expected result.

use support::{checks, login_checks};

use std::fs;
use std::path::Path;

/// Runs `judge` on each file of a folder; its verdict must be the first word of the file's name.
#[track_caller]
fn replay(folder: &str, count: usize, judge: impl Fn(&[u8]) -> String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder);
    let files: Vec<_> = fs::read_dir(&folder).expect("the corpus is there").collect();
    assert_eq!(files.len(), count, "files in {}", folder.display());
    for file in files {
        let file = file.expect("the folder is readable");
        let verdict = judge(&fs::read(file.path()).expect("the file is readable"));
        let name = file.file_name().to_string_lossy().into_owned();
        assert_eq!(name.split('-').next(), Some(verdict.as_str()), "{name}");
    }
}

support::rows! {
    kept_envelopes_are_told_apart: replay("envelope", 19, |text| checks::envelope(text).to_owned());
    kept_texts_are_scanned_as_serde_json_reads_them: replay("scan", 26, |text| checks::scan(text).to_owned());
    kept_lines_are_cut_the_same_in_any_pieces: replay("lines", 6, |text| checks::lines(text).to_string());
    kept_schemas_are_read_for_their_headers: replay("schema", 9, |text| checks::schema(text).to_owned());
    kept_answers_are_taken_by_their_keys: replay("answers", 7, checks::answers);
    kept_streams_decode_the_same_in_any_pieces: replay("sse", 12, |stream| checks::sse(stream).to_string());
    kept_tokens_are_refused_for_their_first_fault: replay("token", 26, login_checks::token);
    kept_proofs_are_refused_for_their_first_fault: replay("proof", 14, login_checks::proof);
    kept_documents_of_issuers_are_read_for_their_keys: replay("login_documents", 13, login_checks::login_documents);
    kept_audit_files_are_one_chain_or_refused: replay("audit_lines", 12, login_checks::audit_lines);
    kept_access_rules_decide_the_same_each_time:
        replay("access_rules", 9, |text| login_checks::access_rules(text).to_owned());
}

/// How many changed texts are made of each kept one. Without a fuzzer's feedback they are few; `CORPUS_CHANGES` makes more.
const CHANGES: usize = 40;
/// Words that parsers of such texts search for.
const WORDS: [&str; 24] = [
    "\"alg\":\"none\"",
    "\"crit\":[]",
    "\"exp\":1e309",
    "\\ud800",
    "\"aud\":[]",
    "\"cnf\":{}",
    "\"kty\":\"RSA\"",
    "\"d\":\"A\"",
    "\"seq\":1",
    "\"lost\":18446744073709551615",
    "\"prev\":\"\"",
    "..",
    "%2e%2e",
    "%00",
    "*",
    "?",
    "[[auth.rules]]\n",
    "who = {}\n",
    "\0",
    "\n",
    "{",
    "]",
    "=",
    "🦀",
];

/// The generator of splitmix64: the same choices in each run.
struct Choices(u64);

impl Choices {
    fn below(&mut self, many: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((bits ^ (bits >> 31)) % many.max(1) as u64).expect("it is below a length")
    }
}

/// A text with one to four changes: other bytes, words in between, cuts, a piece of another text.
fn changed(text: &[u8], other: &[u8], choices: &mut Choices) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=choices.below(4) {
        let at = choices.below(text.len() + 1);
        let end = at + choices.below(text.len() - at + 1);
        match choices.below(6) {
            0 => text.truncate(at),
            1 => drop(text.drain(at..end)),
            2 => text.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << choices.below(8)),
            3 => drop(text.splice(at..at, WORDS[choices.below(WORDS.len())].bytes())),
            4 => drop(text.splice(at..end, other[choices.below(other.len() + 1)..].iter().copied())),
            _ => drop(text.splice(at..at, text[at..end].to_vec())),
        }
        text.truncate(32 << 10);
    }
    text
}

/// The invariants of the corpus also hold for changed copies of its texts.
#[test]
fn changed_copies_of_the_corpus_break_nothing() {
    type Judge = fn(&[u8]);
    let judges: [(&str, Judge); 5] = [
        ("token", |text| drop(login_checks::token(text))),
        ("proof", |text| drop(login_checks::proof(text))),
        ("login_documents", |text| drop(login_checks::login_documents(text))),
        ("access_rules", |text| {
            login_checks::access_rules(text);
        }),
        ("audit_lines", |text| drop(login_checks::audit_lines(text))),
    ];
    let changes = std::env::var("CORPUS_CHANGES").map_or(CHANGES, |changes| changes.parse().expect("a number"));
    for (at, (folder, judge)) in judges.into_iter().enumerate() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder);
        let mut paths: Vec<_> =
            fs::read_dir(&folder).expect("the corpus is there").map(|file| file.unwrap().path()).collect();
        paths.sort();
        let texts: Vec<_> = paths.iter().map(|path| fs::read(path).expect("the file is readable")).collect();
        assert!(texts.len() >= 9, "{}", folder.display());
        let mut choices = Choices(at as u64);
        for (path, text) in paths.iter().zip(&texts) {
            for nth in 0..changes {
                let changed = changed(text, &texts[choices.below(texts.len())], &mut choices);
                let judged = std::panic::catch_unwind(|| judge(&changed));
                assert!(judged.is_ok(), "change {nth} of {}: {:?}", path.display(), String::from_utf8_lossy(&changed));
            }
        }
    }
}
