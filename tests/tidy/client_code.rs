//! Each block of `docs/clients.md` is a file of `tests/clients`, and a test runs it.

use std::collections::BTreeSet;

use super::{files_under, read, root};

const PAGE: &str = "docs/clients.md";
const FOLDER: &str = "tests/clients";
/// The suite that runs the files.
const SUITE: &str = "tests/real_peers/clients_page.rs";

/// The page with the text of each file in its block, and the files in their order.
fn filled(page: &str, text_of: impl Fn(&str) -> String) -> (String, Vec<String>) {
    let (mut filled, mut files) = (String::new(), Vec::new());
    let mut named: Option<String> = None;
    let mut is_code = false;
    for line in page.lines() {
        let is_fence = line.starts_with("```");
        if is_code && !is_fence {
            continue;
        }
        if is_fence && !is_code {
            let file = named.take().unwrap_or_else(|| panic!("{PAGE}: a block names no file: {filled}"));
            filled += &format!("{line}\n{}", text_of(&file));
            files.push(file);
        } else {
            filled += &format!("{line}\n");
            named = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")).map(str::to_owned);
        }
        is_code ^= is_fence;
    }
    assert!(!is_code, "{PAGE}: the last block has no end");
    (filled, files)
}

/// `UPDATE_GOLDEN=1` writes the files into the page.
#[test]
fn blocks_of_the_page_of_clients_are_the_files_that_run() {
    let page = read(PAGE);
    let (expected, shown) = filled(&page, read);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(root().join(PAGE), &expected).expect("the page is writable");
    } else {
        let differs = page.lines().zip(expected.lines()).find(|(found, file)| found != file);
        assert!(page == expected, "{PAGE} is not the text of its files (UPDATE_GOLDEN=1 writes it): {differs:?}");
    }
    let files = files_under(FOLDER);
    assert!(files.len() >= 30, "only {} files were seen", files.len());
    assert_eq!(shown.len(), files.len(), "{PAGE} shows each file once");
    assert_eq!(BTreeSet::from_iter(shown), BTreeSet::from_iter(files));
}

/// Its name is in the suite, or in a file beside it that uses it.
#[test]
fn each_file_of_client_code_is_run_by_a_test() {
    let (suite, files) = (read(SUITE), files_under(FOLDER));
    assert!(files.len() >= 30, "only {} files were seen", files.len());
    for path in &files {
        let inside = path.trim_start_matches("tests/clients/");
        let (folder, name) = path.rsplit_once('/').expect("the file is in a folder");
        let stem = name.split('.').next().expect("a name begins with its stem");
        let uses = [format!("./{name}"), format!("from {stem} import")];
        let is_used = files
            .iter()
            .filter(|other| *other != path && other.rsplit_once('/').is_some_and(|(beside, _)| beside == folder))
            .any(|other| uses.iter().any(|word| read(other).contains(word)));
        assert!(suite.contains(inside) || is_used, "no test of {SUITE} runs {path}");
    }
}

#[test]
fn a_block_is_replaced_by_the_file_that_its_comment_names() {
    let page = "a\n<!-- x/y.sh -->\n```sh\nold\n```\nb\n";
    let expected = ("a\n<!-- x/y.sh -->\n```sh\nnew of x/y.sh\n```\nb\n".to_owned(), vec!["x/y.sh".to_owned()]);
    assert_eq!(filled(page, |path| format!("new of {path}\n")), expected);
}
