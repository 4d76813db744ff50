//! The dependencies of the program and its tests: their licences, their sources, their features, and the crates that must not come in.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, LicenseReq, ParseMode};

/// The systems that the program is built for and tested on.
const TARGETS: [&str; 3] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin"];
/// Permissive licences only: none has a condition for the code that is linked with such a crate.
const LICENCES: [&str; 9] =
    ["Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "Unicode-3.0", "Zlib"];
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Crates that must not come in, and those that the program uses instead.
const BANNED: [(&str, &str); 3] = [("native-tls", "rustls"), ("openssl-sys", "rustls"), ("reqwest", "hyper")];

/// Features that the program does not need.
const OF_TESTS_ALONE: [&str; 8] = [
    "futures-util/channel",
    "futures-util/futures-channel",
    "futures-util/futures-io",
    "futures-util/io",
    "futures-util/memchr",
    "serde/alloc",
    "serde_json/alloc",
    "tokio/test-util",
];

/// The packages that are compiled for one of [`TARGETS`], and their number.
fn packages() -> Vec<Value> {
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--locked", "--all-features", "--format-version", "1"]);
    metadata.args(TARGETS.iter().flat_map(|target| ["--filter-platform", target]));
    let output = metadata.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let nodes = metadata["resolve"]["nodes"].as_array().expect("a graph of packages");
    let used: BTreeSet<String> = nodes.iter().map(|node| text(node, "id").to_owned()).collect();
    let packages = metadata["packages"].take();
    let packages: Vec<Value> = serde_json::from_value(packages).expect("a list of packages");
    let packages: Vec<Value> = packages.into_iter().filter(|package| used.contains(text(package, "id"))).collect();
    assert!(packages.len() > 100, "{} packages are too few to be all", packages.len());
    packages
}

fn text<'v>(value: &'v Value, member: &str) -> &'v str {
    value[member].as_str().unwrap_or_default()
}

/// Whether a licence expression can be met with [`LICENCES`]; the licences that it was met with go to `met`.
fn is_permitted(expression: &str, met: &mut BTreeSet<String>) -> bool {
    // Old packages separate alternatives with a slash.
    let Ok(parsed) = Expression::parse_mode(expression, ParseMode::LAX) else { return false };
    parsed.evaluate(|licence: &LicenseReq| {
        let name = licence.to_string();
        let is_permitted = LICENCES.contains(&name.as_str());
        if is_permitted {
            met.insert(name);
        }
        is_permitted
    })
}

#[test]
fn every_dependency_has_a_permissive_licence_and_every_permitted_licence_is_needed() {
    let mut met = BTreeSet::new();
    let refused: Vec<String> = packages()
        .iter()
        .filter(|package| !is_permitted(text(package, "license"), &mut met))
        .map(|package| format!("{}: {:?}", text(package, "name"), text(package, "license")))
        .collect();
    assert_eq!(refused, Vec::<String>::new());
    let unused: Vec<&str> = LICENCES.into_iter().filter(|licence| !met.contains(*licence)).collect();
    assert_eq!(unused, Vec::<&str>::new(), "no dependency has these licences");
}

#[test]
fn a_licence_that_is_not_permissive_is_refused() {
    for (expression, expected) in [
        ("MIT", true),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0-only OR MIT", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("GPL-3.0-only", false),
        ("MIT AND GPL-3.0-only", false),
        ("", false),
        ("my own licence", false),
    ] {
        assert_eq!(is_permitted(expression, &mut BTreeSet::new()), expected, "{expression}");
    }
}

#[test]
fn every_dependency_comes_from_the_package_registry_and_none_is_banned() {
    let packages = packages();
    let foreign = packages.iter().filter(|package| !matches!(text(package, "source"), "" | CRATES_IO));
    let foreign: Vec<&str> = foreign.map(|package| text(package, "id")).collect();
    assert_eq!(foreign, Vec::<&str>::new(), "not from the package registry");
    for (name, instead) in BANNED {
        assert!(
            packages.iter().all(|package| text(package, "name") != name),
            "{name} came in; the program uses {instead}"
        );
    }
}

#[test]
fn every_dependency_names_its_version() {
    let mut unnamed = Vec::new();
    for package in packages().iter().filter(|package| text(package, "source").is_empty()) {
        let dependencies = package["dependencies"].as_array().expect("a list of dependencies");
        let wild =
            dependencies.iter().filter(|dependency| text(dependency, "req") == "*" && dependency["path"].is_null());
        unnamed.extend(wild.map(|dependency| text(dependency, "name").to_owned()));
    }
    assert_eq!(unnamed, Vec::<String>::new());
}

/// The features of each crate that the program names itself, as cargo builds it with these kinds of dependencies.
fn features(kinds: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--locked", "--package", "taskgate", "--depth", "1", "--prefix", "none", "--format", "{p};{f}"]);
    let output = tree.args(["--edges", kinds]).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let packages = text.lines().filter_map(|line| line.split_once(';'));
    packages
        .map(|(package, features)| {
            let name = package.split(' ').next().unwrap_or_default().to_owned();
            (name, features.split([',', ' ']).filter(|feature| *feature != "(*)").map(str::to_owned).collect())
        })
        .collect()
}

/// A build of the program alone lacks them, and the tests would not notice that it needs one.
#[test]
fn only_known_features_of_the_programs_dependencies_are_turned_on_by_tests_alone() {
    let (alone, with_tests) = (features("normal"), features("normal,dev"));
    assert!(alone.len() > 40, "{} dependencies are too few to be all", alone.len());
    let more = alone.iter().flat_map(|(name, features)| {
        with_tests[name].difference(features).map(move |feature| format!("{name}/{feature}"))
    });
    assert_eq!(more.collect::<Vec<_>>(), OF_TESTS_ALONE, "does `cargo check --bin taskgate` pass without them?");
}
