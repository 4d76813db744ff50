//! Compares `docs/rules.md` with the code and with the tests that ran: every rule that a file names is explained there,
//! every rule there has a sentence, a source and a test that names it and passed, or the reason why none can.
//!
//! A test names a rule by beginning with it (`l25_37_…`), in its comment or in its body. `TASKGATE_TEST_LOG` is the
//! output of the run of all tests; without it only the sources are compared, and the output says so. `UPDATE_RULES=1`
//! rewrites the column of tests: a test that still names its rule stays.

#[path = "rules/page.rs"]
mod page;
#[path = "rules/sources.rs"]
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use page::Rule;
use sources::{Named, Sources};

/// The names of all tests that passed, without their modules.
fn passed(log: &str) -> BTreeSet<&str> {
    let names = log.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ok")?;
        // Behind it may stand how long it took.
        (rest.is_empty() || rest.starts_with(" <")).then_some(name)
    });
    names.map(|name| name.rsplit("::").next().unwrap_or(name)).collect()
}

/// The mistakes of the page, one line each.
fn mistakes(tables: &[Vec<Rule>], sources: &Sources, ran: Option<&BTreeSet<&str>>) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut seen = BTreeSet::new();
    for table in tables {
        for pair in table.windows(2).filter(|pair| order(&pair[0].id) >= order(&pair[1].id)) {
            mistakes.push(format!("{} stands before {}", pair[0].id, pair[1].id));
        }
        for rule in table {
            if !seen.insert(rule.id.as_str()) {
                mistakes.push(format!("{} stands there twice", rule.id));
            }
            mistakes.extend(mistakes_of(rule, sources, ran));
        }
    }
    let unexplained = sources.used.iter().filter(|(id, _)| !seen.contains(id.as_str()));
    mistakes.extend(unexplained.map(|(id, file)| format!("{file} names {id}, which docs/rules.md does not explain")));
    mistakes
}

fn mistakes_of(rule: &Rule, sources: &Sources, ran: Option<&BTreeSet<&str>>) -> Vec<String> {
    let id = &rule.id;
    let mut mistakes = Vec::new();
    if rule.sentence.len() < 10 || !rule.sentence.ends_with('.') {
        mistakes.push(format!("{id} has no sentence"));
    }
    if rule.source.is_empty() || rule.source.contains("own: ;") || rule.source.ends_with("own:") {
        mistakes.push(format!("{id} has no source"));
    }
    let tests = sources.tests.get(id);
    match (rule.test(), rule.reason(), tests) {
        (None, None, _) => mistakes.push(format!("{id} has neither a test nor a reason; run with UPDATE_RULES=1")),
        (Some(test), _, tests) if tests.is_none_or(|tests| !tests.contains(test)) => {
            mistakes.push(format!("{id} is not named by {test}; run with UPDATE_RULES=1"));
        }
        (Some(test), _, _) => {
            if ran.is_some_and(|ran| !ran.contains(test)) {
                mistakes.push(format!("{id} is held by {test}, which did not pass"));
            }
        }
        (None, Some(_), Some(tests)) => {
            mistakes.push(format!("{id} is said to have no test, but {tests:?} name it"));
        }
        (None, Some(_), None) => {}
    }
    if rule.reason().is_none() && !sources.used.contains_key(id) {
        mistakes.push(format!("{id} is named by no file"));
    }
    mistakes
}

/// Rules of one table are sorted by their numbers.
fn order(id: &str) -> (String, u32) {
    let digits = id.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
    (id[..digits].to_owned(), id[digits..].parse().unwrap_or(0))
}

/// The test in the last column: the present one as long as it names the rule; else one that begins with the rule; else
/// the one that names the fewest other rules.
fn held_by(rule: &Rule, tests: &Named, rules_of: &BTreeMap<&str, usize>) -> String {
    let Some(naming) = tests.get(&rule.id) else {
        return if rule.test().is_some() { String::new() } else { rule.held_by.clone() };
    };
    if let Some(test) = rule.test().filter(|test| naming.contains(*test)) {
        return format!("`{test}`");
    }
    let small = rule.id.to_lowercase().replace('-', "_");
    let best = naming.iter().min_by_key(|test| (!test.starts_with(&small), rules_of.get(test.as_str())));
    format!("`{}`", best.expect("a rule is entered with its first test"))
}

#[test]
fn every_rule_is_explained_and_held_by_a_test_that_ran() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources::read(root);
    let path = root.join("docs/rules.md");
    let mut text = std::fs::read_to_string(&path).unwrap();
    if std::env::var_os("UPDATE_RULES").is_some() {
        let mut rules_of = BTreeMap::new();
        for test in sources.tests.values().flatten() {
            *rules_of.entry(test.as_str()).or_insert(0) += 1;
        }
        text = page::rewrite(&text, |rule| held_by(rule, &sources.tests, &rules_of));
        std::fs::write(&path, &text).unwrap();
    }
    let log = std::env::var_os("TASKGATE_TEST_LOG").map(|path| std::fs::read_to_string(path).unwrap());
    if log.is_none() {
        println!("left out: whether the tests that hold rules ran (TASKGATE_TEST_LOG is not set)");
    }
    let ran = log.as_deref().map(passed);
    assert!(ran.as_ref().is_none_or(|ran| ran.len() > 100), "the log is not one of all tests");
    let tables = page::read(&text).unwrap();
    assert!(tables.concat().len() >= 500, "only {} rules were read", tables.concat().len());
    let mistakes = mistakes(&tables, &sources, ran.as_ref());
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

fn rule(id: &str, held_by: &str) -> Rule {
    let (sentence, source) = ("It holds everywhere.".to_owned(), "own: why".to_owned());
    Rule { id: id.to_owned(), sentence, source, held_by: held_by.to_owned() }
}

/// The page and the code each lack an entry of the other.
#[test]
fn a_page_that_says_too_little_or_too_much_is_a_mistake() {
    let sources = || {
        let of = |id: &str| (id.to_owned(), BTreeSet::from(["proves".to_owned()]));
        let used = ["L1", "L2", "L3"].map(|id| (id.to_owned(), "src/lib.rs".to_owned()));
        Sources { tests: Named::from([of("L1"), of("L2")]), used: BTreeMap::from(used) }
    };
    let good = [rule("L1", "`proves`"), rule("L2", "`proves`"), rule("L3", "none: nothing runs")];
    let ran = BTreeSet::from(["proves"]);
    let of = |rules: &[Rule], ran| mistakes(&[rules.to_vec()], &sources(), ran);
    assert_eq!(of(&good, Some(&ran)), [""; 0]);

    let changed = |at: usize, change: &dyn Fn(&mut Rule)| {
        let mut rules = good.clone();
        change(&mut rules[at]);
        of(&rules, Some(&ran)).join(", ")
    };
    for (found, expected) in [
        (of(&good[..2], None).join(", "), "src/lib.rs names L3, which docs/rules.md does not explain"),
        (of(&[&good[..], &[rule("L4", "`proves`")]].concat(), None).join(", "), "L4 is not named by proves"),
        (of(&[&good[..], &[rule("L4", "")]].concat(), None).join(", "), "L4 is named by no file"),
        (of(&[good[1].clone(), good[0].clone(), good[2].clone()], None).join(", "), "L2 stands before L1"),
        (of(&[&good[..], &good[2..]].concat(), None).join(", "), "L3 stands there twice"),
        (of(&good, Some(&BTreeSet::new())).join(", "), "L1 is held by proves, which did not pass"),
        (changed(0, &|rule| rule.sentence.clear()), "L1 has no sentence"),
        (changed(0, &|rule| "own:".clone_into(&mut rule.source)), "L1 has no source"),
        (changed(0, &|rule| rule.held_by.clear()), "L1 has neither a test nor a reason"),
        (changed(0, &|rule| "none: why".clone_into(&mut rule.held_by)), "L1 is said to have no test"),
        (changed(2, &|rule| "`proves`".clone_into(&mut rule.held_by)), "L3 is not named by proves"),
    ] {
        assert!(found.contains(expected), "{expected}: {found:?}");
    }
}

#[test]
fn the_column_of_tests_is_written_anew_where_it_no_longer_holds() {
    let tests = ["l1_holds", "says_so", "a_table"].map(str::to_owned);
    let named = Named::from([("L1".to_owned(), BTreeSet::from(tests))]);
    let rules_of = BTreeMap::from([("l1_holds", 3), ("says_so", 1), ("a_table", 9)]);
    assert_eq!(held_by(&rule("L1", "`a_table`"), &named, &rules_of), "`a_table`");
    assert_eq!(held_by(&rule("L1", "`gone`"), &named, &rules_of), "`l1_holds`");
    assert_eq!(held_by(&rule("L2", "`gone`"), &named, &rules_of), "");
    assert_eq!(held_by(&rule("L2", "none: why"), &named, &rules_of), "none: why");
}

#[test]
fn only_tests_that_passed_have_run() {
    let log = "test a::b::first ... ok\ntest timed ... ok <0.012s>\ntest fifth ... okay\ntest second ... FAILED\ntest third ... ignored\ntest result: ok. 3 passed\n";
    assert_eq!(passed(log), BTreeSet::from(["first", "timed"]));
}
