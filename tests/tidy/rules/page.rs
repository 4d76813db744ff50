//! Reads `docs/rules.md`: one table for each subject, one row for each rule.

/// One row of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) sentence: String,
    pub(crate) source: String,
    /// A test's name in backticks, or `none:` and the reason.
    pub(crate) held_by: String,
}

impl Rule {
    /// The rule of a line, where the line is a row.
    fn read(line: &str) -> Option<Result<Self, String>> {
        let row = line.strip_prefix("| ")?;
        if row.starts_with("ID |") {
            return None;
        }
        let cells: Vec<&str> = row.strip_suffix('|').unwrap_or(row).split('|').map(str::trim).collect();
        let rule = match cells[..] {
            [id, sentence, source, held_by] => Ok(Self {
                id: id.to_owned(),
                sentence: sentence.to_owned(),
                source: source.to_owned(),
                held_by: held_by.to_owned(),
            }),
            _ => Err(format!("a row has no four cells: {line}")),
        };
        Some(rule)
    }

    fn write(&self) -> String {
        let row = format!("| {} | {} | {} | {} |", self.id, self.sentence, self.source, self.held_by);
        row.replace("|  |", "| |")
    }

    /// The test that holds the rule; `None` where none does.
    pub(crate) fn test(&self) -> Option<&str> {
        self.held_by.strip_prefix('`')?.strip_suffix('`')
    }

    /// Why no test holds the rule.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.held_by.strip_prefix("none: ").filter(|reason| !reason.is_empty())
    }
}

/// The tables of the page, in order.
pub(crate) fn read(text: &str) -> Result<Vec<Vec<Rule>>, String> {
    let mut tables: Vec<Vec<Rule>> = Vec::new();
    for line in text.lines() {
        if line.starts_with("| ID |") {
            tables.push(Vec::new());
        }
        if let Some(rule) = Rule::read(line) {
            tables.last_mut().ok_or("a row stands outside of a table")?.push(rule?);
        }
    }
    Ok(tables)
}

/// The page with other tests in its last column.
pub(crate) fn rewrite(text: &str, held_by: impl Fn(&Rule) -> String) -> String {
    let line = |line: &str| match Rule::read(line) {
        Some(Ok(rule)) => Rule { held_by: held_by(&rule), ..rule }.write(),
        Some(Err(_)) | None => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().map(line).collect();
    lines.join("\n") + "\n"
}

#[test]
fn a_page_is_read_row_by_row_and_written_back_as_it_was() {
    let text = "# Rules\n\n| ID | Rule | Source | Held by |\n|---|---|---|---|\n\
                | L1 | It holds. | own: why | `proves` |\n| L2 | It is said. | own: why | none: nothing runs |\n\
                | L3 | It is new. | own: why | |\n";
    let tables = read(text).unwrap();
    let [rules] = &tables[..] else { panic!("{tables:?}") };
    assert_eq!(rules.iter().map(Rule::test).collect::<Vec<_>>(), [Some("proves"), None, None]);
    assert_eq!(rules.iter().map(Rule::reason).collect::<Vec<_>>(), [None, Some("nothing runs"), None]);
    assert_eq!(rewrite(text, |rule| rule.held_by.clone()), text);
    assert!(rewrite(text, |_| "`other`".to_owned()).contains("| L3 | It is new. | own: why | `other` |"));
    assert!(read("| ID | Rule |\n| L1 | It holds. |\n").is_err());
}
