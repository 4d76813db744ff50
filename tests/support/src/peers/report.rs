//! What a run with real peers leaves behind: a table under `target/reports`, which `docs/compatibility.md` repeats.

use std::{env, fs};

use parking_lot::Mutex;

use crate::target_dir;

/// The page that shows the tables.
const PAGE: &str = "docs/compatibility.md";

static WRITING: Mutex<()> = Mutex::new(());

/// Writes `table` to `target/reports/NAME.md` and compares it with what stands in `docs/compatibility.md` between
/// `<!-- NAME -->` and `<!-- /NAME -->`, if it has such a place. `UPDATE_GOLDEN=1` rewrites that instead.
///
/// # Panics
/// If the page shows something else.
pub fn publish(name: &str, table: &str) {
    let dir = target_dir().join("reports");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(format!("{name}.md")), table).unwrap();
    // Other suites of this process write other tables into it.
    let _alone = WRITING.lock();
    let page = crate::repository().join(PAGE);
    let text = fs::read_to_string(&page).unwrap();
    let Some(updated) = replaced(&text, name, table) else { return };
    if updates_golden() {
        fs::write(&page, updated).unwrap();
    } else {
        assert!(text == updated, "{PAGE} does not show target/reports/{name}.md; UPDATE_GOLDEN=1 rewrites it");
    }
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
fn only_what_stands_between_the_markers_is_replaced() {
    let text = "a\n<!-- t -->\nold\n<!-- /t -->\nz\n";
    let expected = "a\n<!-- t -->\n| new |\n<!-- /t -->\nz\n";
    assert_eq!(replaced(text, "t", "| new |\n").as_deref(), Some(expected));
    assert_eq!(replaced(expected, "t", "| new |\n").as_deref(), Some(expected));
    assert_eq!(replaced(text, "other", "| new |\n"), None);
}
