//! Finds names that stand for more than one type.

use std::collections::BTreeMap;

/// How many types each name stands for, where that is more than one.
pub(crate) type Shared = BTreeMap<String, usize>;

/// The name that a line of code defines a type by.
pub(crate) fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let (kind, rest) = line.split_once(' ')?;
    let name = rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next()?;
    (matches!(kind, "struct" | "enum" | "trait") && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

/// The names among all definitions that stand for several types.
pub(crate) fn shared<'a>(names: impl Iterator<Item = &'a str>) -> Shared {
    let mut counts = Shared::new();
    for name in names {
        *counts.entry(name.to_owned()).or_insert(0) += 1;
    }
    counts.retain(|_, count| *count > 1);
    counts
}

/// The exceptions: a name and a number on each line.
pub(crate) fn exceptions(text: &str) -> Shared {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split_once(' ').expect("a name and a number"))
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a number")))
        .collect()
}

/// The mistakes, one line each: the list is exact, so it is shortened with the code and never grows unseen.
pub(crate) fn mistakes(shared: &Shared, exceptions: &Shared) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = shared.keys().chain(exceptions.keys()).collect();
    let mut mistakes = Vec::new();
    for name in names {
        let now = shared.get(name).copied().unwrap_or(1);
        let listed = exceptions.get(name).copied().unwrap_or(1);
        if now > listed {
            mistakes.push(format!(
                "{name} stands for {now} types, of which {listed} may be: give the new one a name of its own"
            ));
        } else if now < listed {
            mistakes.push(format!(
                "{name} stands for {now} types, not for {listed}: shorten the list (UPDATE_TIDY=1 does)"
            ));
        }
    }
    mistakes
}

/// The list without the entries that are gone.
pub(crate) fn shortened(text: &str, shared: &Shared) -> String {
    let head = text.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n"));
    let rest = exceptions(text).into_iter().filter_map(|(name, listed)| {
        let now = listed.min(shared.get(&name).copied().unwrap_or(1));
        (now > 1).then(|| format!("{name} {now}\n"))
    });
    head.chain(rest).collect()
}

#[test]
fn types_are_found_by_their_definitions_alone() {
    for (line, name) in [
        ("pub struct Task {", Some("Task")),
        ("    pub(in crate::face) enum Way<'a> {", Some("Way")),
        ("trait Clock: Send {", Some("Clock")),
        ("struct Id(u64);", Some("Id")),
        ("impl Task {", None),
        ("// struct Task", None),
        ("let struct_of = 1;", None),
    ] {
        assert_eq!(defined(line), name, "{line}");
    }
}

#[test]
fn the_list_of_names_may_shrink_and_not_grow() {
    let counts =
        |pairs: &[(&str, usize)]| pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<Shared>();
    let list = "# why\nPlace 3\nState 2\n";
    assert_eq!(exceptions(list), counts(&[("Place", 3), ("State", 2)]));
    assert!(mistakes(&exceptions(list), &exceptions(list)).is_empty());
    for (now, expected) in [
        (counts(&[("Place", 3), ("State", 3)]), "State stands for 3 types"),
        (counts(&[("Place", 3), ("State", 2), ("Way", 2)]), "Way stands for 2 types"),
        (counts(&[("Place", 2), ("State", 2)]), "Place stands for 2 types, not for 3"),
        (counts(&[("Place", 3)]), "State stands for 1 types, not for 2"),
    ] {
        let found = mistakes(&now, &exceptions(list));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
    assert_eq!(shortened(list, &counts(&[("Place", 2), ("Way", 9)])), "# why\nPlace 2\n");
    assert_eq!(shared(["A", "B", "A"].into_iter()), counts(&[("A", 2)]));
}
