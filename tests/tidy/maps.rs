//! Finds the maps of the program with keys that name a session, and compares them with the table of
//! `docs/decisions/sessions.md`, which has each key's identity and the share of one principal.

use std::collections::BTreeSet;

use super::{Source, read, sources};

const PAGE: &str = "docs/decisions/sessions.md";
const HEADING: &str = "## Maps of sessions";

/// Names of types that are a session's nonce, alone or with more: tuples that begin with one, and structs that hold one.
fn key_types(sources: &[Source]) -> BTreeSet<String> {
    let mut keys = BTreeSet::from(["u128".to_owned(), "SessionKey".to_owned()]);
    for source in sources {
        let mut open: Option<String> = None;
        for line in source.lines.iter().map(|line| line.trim()) {
            if let Some((name, _)) = line.strip_prefix("type ").and_then(|line| line.split_once(" = (u128")) {
                keys.insert(name.to_owned());
            }
            let named = line
                .split_once("struct ")
                .map(|(_, rest)| rest)
                .and_then(|rest| rest.split([' ', '(', '<', ';']).next());
            if let Some(name) = named.filter(|name| name.ends_with("Key")) {
                open = Some(name.to_owned());
            }
            match &open {
                Some(name) if line.ends_with("nonce: u128,") => {
                    keys.insert(name.clone());
                }
                Some(_) | None => (),
            }
            if line == "}" {
                open = None;
            }
        }
    }
    keys
}

/// The maps of one file by the name of their field, or of their type where they have no field's.
fn maps_of(source: &Source, keys: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for line in source.code().lines() {
        let is_item = ["use ", "fn ", "let ", "impl", "return "].iter().any(|start| line.starts_with(start))
            || line.contains("fn ");
        if is_item || line.contains("struct RecentMap") || line.contains("::new(") {
            continue;
        }
        let is_keyed = ["HashMap<", "BTreeMap<", "Cache<"].iter().any(|map| {
            line.match_indices(map).any(|(at, _)| {
                let key = line[at + map.len()..].trim_start_matches('(');
                let key: String = key.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                keys.contains(&key)
            })
        });
        if !is_keyed && !line.contains("RecentMap<") {
            continue;
        }
        let name = match line.split_once("struct ") {
            Some((_, rest)) => rest.split(['(', '<', ' ']).next().unwrap_or_default(),
            None => line.split(':').next().unwrap_or_default().rsplit(' ').next().unwrap_or_default(),
        };
        found.push(format!("{} {name}", source.path));
    }
    found
}

/// A row of the page's table.
struct MapRow {
    /// File and field.
    map: String,
    share: String,
}

/// The maps that the page lists, all of whose columns say something.
fn listed(page: &str) -> Vec<MapRow> {
    let section = page.split(HEADING).nth(1).unwrap_or_default().split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let columns: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(columns.len() == 4 && columns.iter().all(|column| column.len() > 3), "an empty column: {row}");
        MapRow { map: columns[0].replace('`', ""), share: columns[2].to_owned() }
    })
    .collect()
}

#[test]
fn every_map_of_sessions_names_its_identity_and_the_share_of_a_principal() {
    let all = sources();
    let keys = key_types(&all);
    // The map that others are made of.
    let all_but_made_of = all.iter().filter(|source| source.path != "src/upstream/recent_map.rs");
    let mut found: Vec<_> = all_but_made_of.flat_map(|source| maps_of(source, &keys)).collect();
    let rows = listed(&read(PAGE));
    let mut listed: Vec<_> = rows.iter().map(|row| row.map.clone()).collect();
    assert!(found.len() >= 15, "only {} maps were seen: {found:?}", found.len());
    found.sort();
    listed.sort();
    assert_eq!(found, listed, "left: the sources, right: the table of {PAGE}");
}

/// A `RecentMap` has a share of each principal by its type.
#[test]
fn the_page_names_the_limit_of_each_map_with_shares() {
    let all = sources();
    let has_shares = |row: &&MapRow| {
        let (path, field) = row.map.split_once(' ').unwrap();
        let source = all.iter().find(|source| source.path == path).unwrap();
        source.code().lines().any(|line| line.contains(field) && line.contains("RecentMap<"))
    };
    let rows = listed(&read(PAGE));
    let shared: Vec<_> = rows.iter().filter(has_shares).collect();
    assert!(shared.len() >= 9, "only {} were seen", shared.len());
    for row in shared {
        let limit = row.share.strip_prefix("of ").map(|limit| limit.replace(',', ""));
        assert!(limit.is_some_and(|limit| limit.parse::<u32>().is_ok()), "{}: {}", row.map, row.share);
    }
}

#[test]
fn a_map_is_found_by_the_type_of_its_key() {
    let source = |lines: &[&str]| Source {
        path: "src/x.rs".to_owned(),
        module: vec!["x".to_owned()],
        lines: lines.iter().map(|line| (*line).to_owned()).collect(),
    };
    let all = [source(&[
        "type PauseKey = (u128, String);",
        "struct StreamKey {",
        "    nonce: u128,",
        "}",
        "pub(super) struct Whole(Mutex<HashMap<u128, u8>>);",
        "    pub(super) one: Mutex<HashMap<PauseKey, u8>>,",
        "    two: BTreeMap<(u128, u8), u8>,",
        "    three: HashMap<StreamKey, u8>,",
        "    four: RecentMap<u8>,",
        "    five: HashMap<String, u128>,",
        "    // six: HashMap<u128, u8>,",
        "    let seven: HashMap<u128, u8> = x;",
    ])];
    let keys = key_types(&all);
    let names = ["Whole", "one", "two", "three", "four"].map(|name| format!("src/x.rs {name}"));
    assert_eq!(maps_of(&all[0], &keys), names);
}
