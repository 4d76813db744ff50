//! Checks of the documents that a text search can do: the size of the README, links and paths that lead somewhere, one
//! line for each module on the map, and a word for each metric.

use std::collections::BTreeSet;

use super::plain_words::WordCount;
use super::{RIDDLES_PER_THOUSAND, files_under, read, root};

/// More than this is not read before the decision to use the program.
const README_BYTES_MAX: usize = 12 * 1024;

/// Folders that a path in a document may begin with.
const FOLDERS: [&str; 8] = ["src/", "tests/", "benches/", "config/", "deploy/", "docs/", "fuzz/", ".ci/"];

/// The pages that describe the present program; the changelog also describes earlier ones.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned(), "tests/README.md".to_owned()];
    pages.extend(files_under("docs").into_iter().filter(|path| path.ends_with(".md")));
    assert!(pages.len() >= 10, "only {} pages were seen", pages.len());
    pages
}

/// The text without blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_fence && !is_code {
            prose.push_str(line);
            prose.push('\n');
        }
        is_code ^= is_fence;
    }
    prose
}

/// Plain English, as in comments. Tables of rules and figures are no prose.
#[test]
fn pages_name_their_nouns() {
    let is_prose = |page: &String| !["docs/rules.md", "docs/benchmarks.md"].contains(&page.as_str());
    let mut all = WordCount::default();
    for page in pages().iter().filter(|page| is_prose(page)) {
        all = all.and(WordCount::of(&prose(&read(page))));
    }
    assert!(all.words >= 20_000, "{all:?} are not all");
    assert!(all.per_thousand() < RIDDLES_PER_THOUSAND, "in pages: {all:?}");
}

/// The texts between backquotes.
fn spans(prose: &str) -> impl Iterator<Item = &str> {
    prose.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// A heading's name in links.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn headings(page: &str) -> BTreeSet<String> {
    let text = prose(&read(page));
    text.lines().filter(|line| line.starts_with('#')).map(|line| slug(line.trim_start_matches('#'))).collect()
}

/// Where a link of a page leads, as a path in the repository.
fn target(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => (),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn the_readme_is_short() {
    let bytes = read("README.md").len();
    assert!(
        bytes <= README_BYTES_MAX,
        "README.md has {bytes} bytes; at most {README_BYTES_MAX}: write more into docs/"
    );
}

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading() {
    let mut links = 0;
    for page in pages() {
        let text = prose(&read(&page));
        for rest in text.split("](").skip(1) {
            let link = rest.split(')').next().unwrap_or_default();
            if link.starts_with("http://") || link.starts_with("https://") {
                continue;
            }
            links += 1;
            let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
            let file = if file.is_empty() { page.clone() } else { target(&page, file) };
            assert!(root().join(&file).exists(), "{page} links to {link}, where nothing is");
            if let Some(heading) = heading {
                assert!(headings(&file).contains(heading), "{page} links to {link}, and {file} has no such heading");
            }
        }
    }
    assert!(links >= 20, "only {links} links were seen");
}

/// `path`, `path::name` for something in the file, or `folder/*`.
#[test]
fn every_path_that_a_page_names_is_there() {
    let mut paths = 0;
    for page in pages() {
        for span in spans(&prose(&read(&page))).filter(|span| FOLDERS.iter().any(|folder| span.starts_with(folder))) {
            paths += 1;
            let (path, name) = span.split_once("::").map_or((span, None), |(path, name)| (path, Some(name)));
            let path = path.trim_end_matches('*');
            assert!(root().join(path).exists(), "{page} names {span}, which is not there");
            if let Some(name) = name {
                let last = name.rsplit("::").next().unwrap_or(name);
                assert!(read(path).contains(last), "{page} names {span}, and the file does not");
            }
        }
    }
    assert!(paths >= 150, "only {paths} paths were seen");
}

/// `module::Name`, where the module is one of the crate's root.
#[test]
fn every_name_of_the_code_that_a_page_names_is_defined() {
    let sources = files_under("src").into_iter().filter(|path| path.ends_with(".rs"));
    let code: Vec<String> = sources.map(|path| read(&path)).collect();
    let defines = |name: &str| {
        let starts = ["struct ", "enum ", "trait ", "fn ", "type ", "const ", "static ", "mod "];
        let is_definition = |line: &str, name: &str| {
            let is_item = |start: &&str| line.contains(&format!("{start}{name}"));
            starts.iter().any(is_item) || line.trim_start().starts_with(name)
        };
        let ends = |line: &str| {
            line.split(name).nth(1).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        let mut lines = code.iter().flat_map(|text| text.lines()).filter(|line| line.contains(name));
        lines.any(|line| is_definition(line, name) && ends(line))
    };
    let mut names = 0;
    for page in pages() {
        for span in spans(&prose(&read(&page))) {
            let mut parts = span.split("::");
            let is_path = span.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | ':')) && span.contains("::");
            let is_ours = parts.next().is_some_and(|first| root().join(format!("src/{first}.rs")).exists());
            if !(is_path && is_ours) {
                continue;
            }
            names += 1;
            let missing = parts.find(|part| !defines(part));
            assert_eq!(missing, None, "{page} names {span}, which is not defined");
        }
    }
    assert!(names >= 20, "only {names} names were seen");
}

/// A reader who looks for a suite, or for the place of a new test, finds it there.
#[test]
fn every_suite_has_a_line_in_the_index_of_tests() {
    let index = read("tests/README.md");
    let mut suites = 0;
    for main in files_under("tests").iter().filter(|path| path.ends_with("/main.rs")) {
        let binary = main.trim_start_matches("tests/").trim_end_matches("/main.rs");
        let text = read(main);
        let modules = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        // A binary with tests of its own is one suite.
        let is_one = text.contains("#[test]");
        let names: Vec<String> =
            if is_one { vec![binary.to_owned()] } else { modules.map(|name| format!("{binary}/{name}")).collect() };
        for name in names {
            suites += 1;
            let start = format!("| `{name}` |");
            let lines = index.lines().filter(|line| line.starts_with(&start)).count();
            assert_eq!(lines, 1, "tests/README.md has one line for each suite; `{name}` has {lines}");
        }
    }
    assert!(suites >= 40, "only {suites} suites were seen");
}

#[test]
fn the_operators_page_names_every_metric() {
    let page = read("docs/operating.md");
    let names = read("src/metric.rs");
    let names: Vec<_> = metrics_in(&names).into_iter().collect();
    assert!(names.len() >= 40, "only {} metrics were seen", names.len());
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "docs/operating.md does not name {name}");
    }
}

/// The metrics that a text names, also by a series of a histogram.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    let names = words.filter(|word| word.starts_with("taskgate_"));
    names.map(|name| name.strip_suffix("_count").unwrap_or(name)).collect()
}

#[test]
fn the_alerts_of_the_page_are_rules_for_prometheus() {
    let (page, rules) = (read("docs/operating.md"), read("deploy/helm/taskgate/alerts.yml"));
    let table = page.split("Recommended alerts").nth(1).and_then(|rest| rest.split("\n\n").nth(1)).expect("the table");
    let rows: Vec<&str> = table.lines().skip(2).map(|row| row.split('|').nth(1).expect("a condition")).collect();
    assert!(rows.len() >= 15, "only {} alerts were seen", rows.len());
    let expressions: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    let (conditions, expressions) = (rows.join("\n"), expressions.join("\n"));
    let (named, used) = (metrics_in(&conditions), metrics_in(&expressions));
    // A rule may compare a metric of the table with another one.
    assert!(used.is_superset(&named), "alerts.yml lacks {:?}", named.difference(&used));
    let names = read("src/metric.rs");
    let known = metrics_in(&names);
    assert!(used.is_subset(&known), "no metrics: {:?}", used.difference(&known));
    for part in ["expr: ", "summary: "] {
        assert_eq!(rules.matches(part).count(), rules.matches("- alert: ").count(), "{part}once for each alert");
    }
}

#[test]
fn headings_and_links_are_read_as_readers_of_pages_do() {
    for (heading, expected) in [
        (" What peers do", "what-peers-do"),
        (" [listen.tls]", "listentls"),
        (" `wrap`: a host's server", "wrap-a-hosts-server"),
    ] {
        assert_eq!(slug(heading), expected);
    }
    for (page, link, expected) in [
        ("README.md", "docs/rules.md", "docs/rules.md"),
        ("docs/rules.md", "../README.md", "README.md"),
        ("docs/decisions/store.md", "../../README.md", "README.md"),
    ] {
        assert_eq!(target(page, link), expected);
    }
    assert_eq!(prose("a\n```\nb\n```\nc\n"), "a\nc\n");
}
