//! Finds the tests in the sources, and the rules that each names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The tests that name a rule, by its ID.
pub(crate) type Named = BTreeMap<String, BTreeSet<String>>;

const SERIES: [&str; 5] = ["EXT", "L25", "MOD", "LEG", "UPC"];

/// All rules that tests of this repository name.
pub(crate) fn named(root: &Path) -> Named {
    let mut named = Named::new();
    let count: usize = ["src", "tests"].map(|folder| read_folder(&root.join(folder), &mut named)).iter().sum();
    assert!(count >= 200, "only {count} sources were seen");
    named
}

/// Returns how many sources were read.
fn read_folder(folder: &Path, named: &mut Named) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("the folder is readable").path();
        let is_this = path.ends_with("tests/rules.rs") || path.ends_with("tests/rules");
        if is_this {
            // Its examples are no tests of rules.
        } else if path.is_dir() {
            count += read_folder(&path, named);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            read_source(&fs::read_to_string(&path).expect("sources are UTF-8"), named);
            count += 1;
        }
    }
    count
}

/// One file: comments, attributes and the body of each test belong to it.
fn read_source(text: &str, named: &mut Named) {
    let lines: Vec<&str> = text.lines().collect();
    let mut head: Vec<&str> = Vec::new();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        let trimmed = line.trim_start();
        if trimmed.starts_with("///") || trimmed.starts_with("#[") {
            head.push(line);
            continue;
        }
        let is_test = head.iter().any(|line| line.contains("#[test]") || line.contains("::test"));
        let name = function(trimmed);
        if let (true, Some(name)) = (is_test, name) {
            let indent = &line[..line.len() - trimmed.len()];
            let end = format!("{indent}}}");
            let is_open = !line.ends_with('}');
            let body = if is_open { lines[at..].iter().take_while(|line| **line != end).count() } else { 0 };
            let rules: BTreeSet<String> =
                head.iter().chain([line]).chain(&lines[at..at + body]).flat_map(|line| rules_in(line)).collect();
            for rule in rules {
                named.entry(rule).or_default().insert(name.to_owned());
            }
            at += body;
        }
        head.clear();
    }
}

fn function(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

/// The IDs in a line: `EXT-07`, `EXT-34 to EXT-36` and `ext_07_`.
fn rules_in(line: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut range_from: Option<(&str, u32)> = None;
    for series in SERIES {
        let mut rest = line;
        while let Some(start) = rest.find(&format!("{series}-")) {
            let after = &rest[start + series.len() + 1..];
            let Some(number) = two_digits(after) else {
                rest = after;
                continue;
            };
            let before = &rest[..start];
            match range_from {
                Some((same, first)) if same == series && before == " to " => {
                    found.extend((first..number).map(|number| id(series, number)));
                }
                Some(_) | None => {}
            }
            found.push(id(series, number));
            range_from = Some((series, number));
            rest = &after[2..];
        }
        range_from = None;
        let lower = format!("{}_", series.to_lowercase());
        for (start, _) in line.match_indices(&lower) {
            let is_word = !line[..start].ends_with(|letter: char| letter.is_alphanumeric());
            let after = &line[start + lower.len()..];
            if let (true, Some(number)) = (is_word, two_digits(after))
                && after[2..].starts_with('_')
            {
                found.push(id(series, number));
            }
        }
    }
    found
}

fn id(series: &str, number: u32) -> String {
    format!("{series}-{number:02}")
}

fn two_digits(text: &str) -> Option<u32> {
    let digits = text.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let is_longer = text[2..].starts_with(|next: char| next.is_ascii_digit());
    if is_longer { None } else { digits.parse().ok() }
}

#[test]
fn a_line_names_rules_one_by_one_in_ranges_and_in_names_of_tests() {
    for (line, rules) in [
        ("/// EXT-07, UPC-20.", &["EXT-07", "UPC-20"][..]),
        ("/// EXT-34 to EXT-36", &["EXT-34", "EXT-34", "EXT-35", "EXT-36"]),
        ("async fn l25_37_a_cancel_of_a_settled_task_is_refused() {", &["L25-37"]),
        ("let next_01_x = text_07_; // L25-1, MOD-123", &[]),
    ] {
        assert_eq!(rules_in(line), rules, "{line}");
    }
}

#[test]
fn what_a_test_names_is_in_its_comment_its_name_or_its_body_and_nowhere_else() {
    let text = "\
/// EXT-01.
fn helper() {
    // EXT-02
}

/// EXT-03.
#[test]
fn proves() {
    check(\"EXT-04\");
}

/// EXT-05.
#[tokio::test(start_paused = true)]
async fn mod_06_proves_too() {}

// EXT-07
";
    let mut named = Named::new();
    read_source(text, &mut named);
    let found: Vec<&str> = named.keys().map(String::as_str).collect();
    assert_eq!(found, ["EXT-03", "EXT-04", "EXT-05", "MOD-06"]);
}
