//! The report of a run with real peers: a table under `target/reports`, which `docs/compatibility.md` repeats.

use std::process::Command;
use std::{env, fs};

use parking_lot::Mutex;

use super::coverage::every_cell_runs;
use crate::target_dir;

/// The page that shows the tables.
const PAGE: &str = "docs/compatibility.md";

/// How the line begins that names the commit of a table.
const COMMIT: &str = "Written by `make peers` at commit ";

static WRITING: Mutex<()> = Mutex::new(());

/// Writes `table` to `target/reports/NAME.md` and compares it with the text in `docs/compatibility.md` between `<!--
/// NAME -->` and `<!-- /NAME -->`, if it has these markers. `UPDATE_GOLDEN=1` rewrites that instead.
///
/// # Panics
/// If the page shows something else.
pub fn publish(name: &str, table: &str) {
    publish_between(name, table, None);
}

/// The same with every cell of a matrix, which only `make peers` runs: the page names the commit at which the table was written.
///
/// # Panics
/// If the page shows something else, or if not every cell runs.
pub fn publish_every_cell(name: &str, table: &str) {
    assert!(every_cell_runs(), "only `make peers` runs every cell of {name}");
    let commit = if updates_golden() { commit() } else { String::new() };
    publish_between(name, table, Some(&commit));
}

/// The commit of the repository.
fn commit() -> String {
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(crate::repository()).output();
    let commit = git.expect("git runs");
    assert!(commit.status.success(), "git does not name the commit");
    String::from_utf8(commit.stdout).expect("a commit is hexadecimal").trim().to_owned()
}

fn publish_between(name: &str, table: &str, commit: Option<&str>) {
    let dir = target_dir().join("reports");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(format!("{name}.md")), table).unwrap();
    // Other suites of this process write other tables into it.
    let _alone = WRITING.lock();
    let page = crate::repository().join(PAGE);
    let text = fs::read_to_string(&page).unwrap();
    let stamped = commit.map(|commit| format!("{COMMIT}`{commit}`.\n\n{table}"));
    let Some(updated) = replaced(&text, name, stamped.as_deref().unwrap_or(table)) else { return };
    if updates_golden() {
        fs::write(&page, updated).unwrap();
    } else {
        assert!(
            without_commits(&text) == without_commits(&updated),
            "{PAGE} does not show target/reports/{name}.md; UPDATE_GOLDEN=1 rewrites it"
        );
    }
}

/// `text` without the lines that name commits, and without empty ones.
fn without_commits(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with(COMMIT)).collect()
}

/// Whether expected texts are to be rewritten.
pub fn updates_golden() -> bool {
    env::var("UPDATE_GOLDEN").is_ok_and(|value| value == "1")
}

/// `text` with `table` between the markers of `name`; `None` if it has none.
fn replaced(text: &str, name: &str, table: &str) -> Option<String> {
    let (start, end) = (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    let (before, rest) = text.split_once(&start)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{start}\n{}\n{end}{after}", table.trim_end()))
}

#[test]
fn only_the_text_between_the_markers_is_replaced() {
    let text = "a\n<!-- t -->\nold\n<!-- /t -->\nz\n";
    let expected = "a\n<!-- t -->\n| new |\n<!-- /t -->\nz\n";
    assert_eq!(replaced(text, "t", "| new |\n").as_deref(), Some(expected));
    assert_eq!(replaced(expected, "t", "| new |\n").as_deref(), Some(expected));
    assert_eq!(replaced(text, "other", "| new |\n"), None);
}

#[test]
fn pages_that_differ_in_their_commits_alone_show_the_same() {
    let page = |commit: &str, cell: &str| format!("a\n{COMMIT}`{commit}`.\n\n| {cell} |\n");
    assert_eq!(without_commits(&page("1", "ok")), without_commits(&page("2", "ok")));
    assert_ne!(without_commits(&page("1", "ok")), without_commits(&page("1", "-")));
}
