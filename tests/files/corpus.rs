//! Replays the corpus of the fuzz targets in `fuzz/`. A file's name begins with what must come of it.

use support::checks;

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

#[test]
fn kept_envelopes_are_told_apart() {
    replay("envelope", 19, |text| checks::envelope(text).to_owned());
}

#[test]
fn kept_texts_are_scanned_as_serde_json_reads_them() {
    replay("scan", 26, |text| checks::scan(text).to_owned());
}

#[test]
fn kept_lines_are_cut_the_same_in_any_pieces() {
    replay("lines", 5, |text| checks::lines(text).to_string());
}

#[test]
fn kept_schemas_are_read_for_their_headers() {
    replay("schema", 9, |text| checks::schema(text).to_owned());
}

#[test]
fn kept_answers_are_taken_by_their_keys() {
    replay("answers", 7, checks::answers);
}

#[test]
fn kept_streams_decode_the_same_in_any_pieces() {
    replay("sse", 12, |stream| checks::sse(stream).to_string());
}
