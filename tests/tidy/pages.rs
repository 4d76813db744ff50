//! Finds references to pages that the repository does not hold.

use std::collections::BTreeSet;

/// Files that runs of tests and benches write; pages name them to say where the output went.
const REPORTS: [&str; 7] = [
    "bench.md",
    "conformance.md",
    "conformance-2025-11-25.md",
    "matrix.md",
    "pairs.md",
    "session-matrix.md",
    "NAME.md",
];

/// Names of pages that the sources once referred to, as they begin a reference: with a section behind them.
const FORMER: [[&str; 2]; 4] = [["pro", "tocol"], ["de", "sign"], ["relia", "bility"], ["pe", "ers"]];

/// The references of a text that lead nowhere. `files` are all files of the repository, `path` is the text's own.
pub(crate) fn missing(path: &str, text: &str, files: &BTreeSet<String>) -> Vec<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let is_here = |name: &str| {
        let beside = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        [name.to_owned(), beside].iter().any(|name| files.contains(&plain(name)))
    };
    let is_report = |name: &str| REPORTS.contains(&name.rsplit('/').next().unwrap_or(name));
    let mut missing: Vec<String> =
        pages(text).filter(|name| !is_here(name) && !is_report(name)).map(str::to_owned).collect();
    missing.extend(sections(text));
    missing
}

/// Words that end in `.md`.
fn pages(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_')));
    words.map(|word| word.trim_end_matches('.')).filter(|word| word.len() > 3 && word.ends_with(".md"))
}

/// References such as a former page's name and "3.4", without the page's ending.
fn sections(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let mut found = Vec::new();
    for name in FORMER.map(|parts| parts.concat()) {
        for (at, _) in text.match_indices(&name) {
            let rest = text[at + name.len()..].trim_start_matches(".md");
            let mut section = rest.chars();
            let is_section = section.next() == Some(' ')
                && section.next().is_some_and(|c| c.is_ascii_digit() || ('a'..='d').contains(&c))
                && section.next() == Some('.')
                && section.next().is_some_and(|c| c.is_ascii_digit());
            if is_section {
                found.push(format!("{name}{}", &rest[..4]));
            }
        }
    }
    found
}

/// A path without `..`.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => (),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn a_page_is_looked_for_at_the_root_and_beside_the_text_that_names_it() {
    let page = |name: &str| format!("{name}.m{}", "d");
    let files = BTreeSet::from(["README", "docs/rules", "docs/decisions/store"].map(page));
    for (path, text, expected) in [
        ("src/lib.rs", format!("//! {} and target/reports/{}.", page("docs/rules"), page("pairs")), vec![]),
        ("docs/rules.md", format!("[a]({}), [b](../{})", page("decisions/store"), page("README")), vec![]),
        ("src/lib.rs", format!("(see {})", page("rules")), vec![page("rules")]),
        ("src/lib.rs", format!("({} 5.1)", page("gone")), vec![page("gone")]),
        ("src/lib.rs", ["(Des", "ign 3.4)"].concat(), vec![["des", "ign 3.4"].concat()]),
        ("src/lib.rs", "the design of 3.4 tasks, protocol 2025".to_owned(), vec![]),
    ] {
        assert_eq!(missing(path, &text, &files), expected, "{text}");
    }
}
