//! Finds the tests in the sources, the rules that each names, and every file that names a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The tests that name a rule, by its ID.
pub(crate) type Named = BTreeMap<String, BTreeSet<String>>;

/// The rules that the files of the repository name.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// A rule's tests: the name, the comment or the body of each names it.
    pub(crate) tests: Named,
    /// One file that names a rule, by its ID.
    pub(crate) used: BTreeMap<String, String>,
}

/// Folders that are read whole, and single files beside them.
const FOLDERS: [&str; 7] = ["src", "tests", "benches", "fuzz", "docs", "config", "deploy"];
const FILES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "Makefile"];

/// Files that are built or fetched, data, and files about rules themselves: none of them cites a rule as its reason.
const LEFT_OUT: [&str; 9] = [
    "target",
    "node_modules",
    "artifacts",
    "corpus",
    "golden",
    "tests/peers/package-lock.json",
    "tests/tidy/rules",
    "tests/tidy/rules.rs",
    "docs/rules.md",
];

/// All that is said of rules under `root`.
pub(crate) fn read(root: &Path) -> Sources {
    let mut sources = Sources::default();
    let mut count = 0;
    for folder in FOLDERS.iter().filter(|folder| root.join(folder).exists()) {
        count += read_folder(root, &root.join(folder), &mut sources);
    }
    for file in FILES {
        read_file(root, &root.join(file), &mut sources);
    }
    assert!(count >= 300, "only {count} sources were seen");
    sources
}

/// Returns how many files were read.
fn read_folder(root: &Path, folder: &Path, sources: &mut Sources) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("the folder is readable").path();
        if LEFT_OUT.iter().any(|name| path.ends_with(name)) {
            // See above.
        } else if path.is_dir() {
            count += read_folder(root, &path, sources);
        } else {
            read_file(root, &path, sources);
            count += 1;
        }
    }
    count
}

fn read_file(root: &Path, path: &Path, sources: &mut Sources) {
    let Ok(text) = fs::read_to_string(path) else { return };
    let shown = path.strip_prefix(root).unwrap_or(path).display().to_string();
    for line in text.lines() {
        for id in rules_in(line) {
            sources.used.entry(id).or_insert_with(|| shown.clone());
        }
    }
    if path.extension().is_some_and(|extension| extension == "rs") {
        read_tests(&text, &mut sources.tests);
    }
    for id in sources.tests.keys().filter(|id| !sources.used.contains_key(*id)).cloned().collect::<Vec<_>>() {
        sources.used.insert(id, shown.clone());
    }
}

/// The tests of one file: comments, attributes and the body of each belong to it. A row of a macro's whose name begins with
/// an ID is a test, too.
fn read_tests(text: &str, named: &mut Named) {
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
        if let (true, Some(name)) = (is_test, function(trimmed)) {
            let indent = &line[..line.len() - trimmed.len()];
            let end = format!("{indent}}}");
            let is_open = !line.ends_with('}');
            let body = if is_open { lines[at..].iter().take_while(|line| **line != end).count() } else { 0 };
            let rules = head.iter().chain(&lines[at..at + body]).flat_map(|line| rules_in(line));
            for rule in rules.chain(rules_of_name(name)) {
                named.entry(rule).or_default().insert(name.to_owned());
            }
            at += body;
        } else if let Some((name, _)) = trimmed.split_once(": ").filter(|(name, _)| name.matches('_').count() > 2) {
            for rule in rules_of_name(name) {
                named.entry(rule).or_default().insert(name.to_owned());
            }
        }
        head.clear();
    }
}

fn function(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

/// The IDs in a line: `EXT-07`, `B80`, and all of `EXT-34 to EXT-36`.
fn rules_in(line: &str) -> Vec<String> {
    let is_inside = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    let mut found = Vec::new();
    let (mut rest, mut last): (&str, Option<(&str, u32)>) = (line, None);
    loop {
        let gap = rest.find(is_inside).unwrap_or(rest.len());
        let (between, from) = rest.split_at(gap);
        let end = from.find(|letter| !is_inside(letter)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        if word.is_empty() {
            return found;
        }
        rest = after;
        // Behind a # it is a piece of another name, such as `x5t#S256`.
        let Some((series, number)) = parts(word).filter(|_| !between.ends_with('#')) else {
            if word != "to" || between != " " {
                last = None;
            }
            continue;
        };
        if let Some((same, first)) = last.filter(|(same, _)| *same == series && between == " ")
            && line[..line.len() - from.len()].ends_with(" to ")
        {
            found.extend((first + 1..number).map(|number| id(same, number)));
        }
        found.push(id(series, number));
        last = Some((series, number));
    }
}

/// Whether a word is an ID: `EXT-07`, with two digits; `B80` or `B101`; `L1`. Returns its series and its number.
fn parts(word: &str) -> Option<(&str, u32)> {
    let digits = word.len() - word.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
    let (series, number) = word.split_at(word.len() - digits);
    let letters = series.strip_suffix('-').unwrap_or(series);
    let is_name = letters.starts_with(|letter: char| letter.is_ascii_uppercase())
        && letters.bytes().all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit());
    let is_id = match (series.ends_with('-'), letters, digits) {
        (true, _, 2) => letters.len() <= 4,
        (false, "L", 1) => true,
        (false, _, 2 | 3) => letters.len() == 1,
        _ => false,
    };
    if is_name && is_id { Some((series, number.parse().ok()?)) } else { None }
}

fn id(series: &str, number: u32) -> String {
    if series == "L" { format!("L{number}") } else { format!("{series}{number:02}") }
}

/// The IDs that the name of a test begins with: `l25_33_34_a_list`, `u22_u23_a_stream`.
fn rules_of_name(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut series: Option<String> = None;
    for word in name.split('_') {
        let upper = word.to_uppercase();
        let is_number = word.len() == 2 && word.bytes().all(|digit| digit.is_ascii_digit());
        match (&series, parts(&upper)) {
            (Some(series), _) if is_number => found.push(format!("{series}-{word}")),
            (None | Some(_), Some((own, number))) if own.len() == 1 && upper != "L25" && upper != "D86" => {
                found.push(id(own, number));
                series = None;
            }
            _ if matches!(word, "ext" | "l25" | "d86" | "mod" | "leg" | "upc" | "t" | "gw" | "sec") => {
                series = Some(upper)
            }
            _ => break,
        }
    }
    found
}

#[test]
fn a_line_names_rules_one_by_one_and_in_ranges() {
    for (line, rules) in [
        ("/// EXT-07, UPC-20.", &["EXT-07", "UPC-20"][..]),
        ("/// EXT-34 to EXT-36", &["EXT-34", "EXT-35", "EXT-36"]),
        ("(B78, B100 to B102, `L8`)", &["B78", "B100", "B101", "B102", "L8"]),
        ("B07 to U09, L1 and L3 to say", &["B07", "U09", "L1", "L3"]),
        ("SHA-256, UTF-8, L25-1, MOD-123, \\u0041, V2, A-12b", &[]),
        ("QQ-77 and Z99", &["QQ-77", "Z99"]),
    ] {
        assert_eq!(rules_in(line), rules, "{line}");
    }
}

#[test]
fn a_test_names_the_rules_that_its_name_begins_with() {
    for (name, rules) in [
        ("l25_33_34_a_list_of_07_tasks", &["L25-33", "L25-34"][..]),
        ("d86_02_03_a_call", &["D86-02", "D86-03"]),
        ("sec_09_u41_an_endpoint", &["SEC-09", "U41"]),
        ("l4_a_killed_gateway", &["L4"]),
        ("upc_07_upc_08_a_question", &["UPC-07", "UPC-08"]),
        ("a_list_of_t_07", &[]),
        ("t70_a_host", &["T70"]),
    ] {
        assert_eq!(rules_of_name(name), rules, "{name}");
    }
}

#[test]
fn a_test_names_rules_in_its_comment_its_name_or_its_body_alone() {
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

faults! {
    f07_a_kill_between: Plan::new(\"F08\");
}
// EXT-09
";
    let mut named = Named::new();
    read_tests(text, &mut named);
    let found: Vec<&str> = named.keys().map(String::as_str).collect();
    assert_eq!(found, ["EXT-03", "EXT-04", "EXT-05", "F07", "MOD-06"]);
}
