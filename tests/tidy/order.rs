//! Holds the files of `engine` to their order in ARCHITECTURE.md: a file uses those before it.

use std::collections::BTreeSet;

use crate::{cycles, read, sources};

/// Uses against the order.
const AGAINST_MAX: usize = 3;

/// The modules in the order of the page.
fn listed(page: &str) -> Vec<&str> {
    let list = page.split("\nEach file of `engine` uses only files").nth(1).expect("the page has the order");
    list.split("```").nth(1).unwrap_or_default().split_whitespace().skip(1).collect()
}

/// A file's position in the order: the position of its outermost listed module, below `engine` and `runner`.
fn position(order: &[&str], path: &[String]) -> usize {
    let names = if path.len() == 1 { path } else { &path[1..] };
    let names = if names.len() == 1 { names } else { &names[usize::from(names[0] == "runner")..] };
    let position = names.first().and_then(|name| order.iter().position(|listed| listed == name));
    position.unwrap_or_else(|| panic!("{} has no position in the order", path.join("::")))
}

#[test]
fn the_engines_files_use_those_before_them() {
    let page = read("ARCHITECTURE.md");
    let order = listed(&page);
    let sources = sources();
    let engine = sources.iter().filter(|source| source.module[0] == "engine");
    let uses = cycles::file_uses(engine.clone().map(|source| (source.module.as_slice(), source.code())));
    assert!(uses.len() >= 100, "only {} uses were seen", uses.len());
    let seen: BTreeSet<usize> = engine.map(|source| position(&order, &source.module)).collect();
    assert_eq!(seen.len(), order.len(), "a module of the order is not there, or is there twice");
    let against: Vec<_> = uses
        .iter()
        .filter(|(user, used)| position(&order, user) < position(&order, used))
        .map(|(user, used)| format!("{} uses {}", user.join("::"), used.join("::")))
        .collect();
    println!("{} uses between files of engine, {} against their order: {against:?}", uses.len(), against.len());
    assert!(against.len() <= AGAINST_MAX, "{} uses against the order:\n{}", against.len(), against.join("\n"));
}
