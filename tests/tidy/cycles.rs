//! Finds cycles between sibling modules: modules with one parent, each with all modules below it.
//!
//! A module may use items of its own ancestors, and an ancestor items of modules below it. Any other use leads from one
//! sibling to another, at the level where the two paths part. A re-exported item counts where it is defined.

use std::collections::{BTreeMap, BTreeSet};

/// Names from the crate's root on.
type ModulePath = Vec<String>;

/// The names that one source file binds and uses.
#[derive(Default)]
pub(crate) struct Module {
    /// The path of each name that a `use` imports.
    bound: BTreeMap<String, ModulePath>,
    /// Every path that is written, the bound ones included.
    named: Vec<ModulePath>,
    /// The same without those that are only re-exported.
    used: Vec<ModulePath>,
}

/// A use of one sibling by another.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SiblingUse {
    /// Their parent; the crate's root is empty.
    pub(crate) parent: String,
    pub(crate) user: String,
    pub(crate) used: String,
}

impl std::fmt::Display for SiblingUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parent = if self.parent.is_empty() { "crate" } else { &self.parent };
        write!(f, "{parent}: {} uses {}", self.user, self.used)
    }
}

/// All uses between siblings, each with where it is made: a file's module and the path that it names.
pub(crate) type Uses = BTreeMap<SiblingUse, BTreeSet<String>>;

/// The uses between siblings among these modules, each of which is a path and code without comments and tests.
pub(crate) fn sibling_uses<'a>(sources: impl Iterator<Item = (&'a [String], String)>) -> Uses {
    let sources: Vec<(&[String], String)> = sources.collect();
    let paths: BTreeSet<ModulePath> = sources.iter().map(|(path, _)| path.to_vec()).collect();
    let modules: BTreeMap<ModulePath, Module> =
        sources.iter().map(|(path, code)| (path.to_vec(), read(path, code, &paths))).collect();
    let mut uses = Uses::new();
    for (user, module) in &modules {
        for path in &module.named {
            let Some(used) = defining(path, &modules) else { continue };
            let shared = user.iter().zip(&used).take_while(|(a, b)| a == b).count();
            if let (Some(from), Some(to)) = (user.get(shared), used.get(shared)) {
                let (parent, user_name, used_name) = (user[..shared].join("::"), from.clone(), to.clone());
                let edge = SiblingUse { parent, user: user_name, used: used_name };
                uses.entry(edge).or_default().insert(format!("{} names {}", user.join("/"), path.join("::")));
            }
        }
    }
    uses
}

/// The files that each file uses, by the definitions that it names; a re-export is no use, nor is the path of a visibility.
pub(crate) fn file_uses<'a>(
    sources: impl Iterator<Item = (&'a [String], String)>,
) -> BTreeSet<(ModulePath, ModulePath)> {
    let sources: Vec<_> = sources.map(|(path, code)| (path, without_visibilities(&code))).collect();
    let paths: BTreeSet<ModulePath> = sources.iter().map(|(path, _)| path.to_vec()).collect();
    let modules: BTreeMap<ModulePath, Module> =
        sources.iter().map(|(path, code)| (path.to_vec(), read(path, code, &paths))).collect();
    let of_file = |(user, module): (&ModulePath, &Module)| -> Vec<(ModulePath, ModulePath)> {
        let used = module.used.iter().filter_map(|path| defining(path, &modules));
        used.filter(|used| used != user).map(|used| (user.clone(), used)).collect()
    };
    modules.iter().flat_map(of_file).collect()
}

/// A code without the paths of `pub(in path)`.
fn without_visibilities(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| code + "pub" + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// The uses that are part of a cycle.
pub(crate) fn in_cycles(uses: &Uses) -> BTreeSet<&SiblingUse> {
    uses.keys().filter(|edge| reaches(uses, &edge.parent, &edge.used, &edge.user)).collect()
}

/// Whether a way leads from one sibling to another.
fn reaches(uses: &Uses, parent: &str, from: &str, to: &str) -> bool {
    let (mut seen, mut waiting) = (BTreeSet::from([from]), vec![from]);
    while let Some(at) = waiting.pop() {
        if at == to {
            return true;
        }
        let next = uses.keys().filter(|edge| edge.parent == parent && edge.user == at);
        waiting.extend(next.map(|edge| edge.used.as_str()).filter(|name| seen.insert(name)));
    }
    false
}

/// The mistakes, one line each, with their places.
pub(crate) fn mistakes(uses: &Uses) -> Vec<String> {
    let mistake = |edge: &SiblingUse| {
        let places: Vec<_> = uses[edge].iter().take(3).map(String::as_str).collect();
        format!("{edge}, which closes a cycle ({})", places.join("; "))
    };
    in_cycles(uses).into_iter().map(mistake).collect()
}

/// The module that defines a path's item; `None` for a path of another crate.
fn defining(path: &[String], modules: &BTreeMap<ModulePath, Module>) -> Option<ModulePath> {
    let mut path = path.to_vec();
    // More steps than any chain of re-exports has.
    for _ in 0..16 {
        let at = (1..=path.len()).rev().find(|at| modules.contains_key(&path[..*at]))?;
        let bound = path.get(at).and_then(|name| modules[&path[..at]].bound.get(name));
        match bound {
            Some(target) => path = [target.as_slice(), &path[at + 1..]].concat(),
            None => return Some(path[..at].to_vec()),
        }
    }
    None
}

fn read(at: &[String], code: &str, modules: &BTreeSet<ModulePath>) -> Module {
    let mut module = Module::default();
    let mut rest = String::new();
    let mut code = code;
    while let Some((before, statement, after)) = next_use(code) {
        let is_reexport = before.rsplit('\n').next().is_some_and(|line| line.starts_with("pub"));
        rest.push_str(before);
        for (path, name) in leaves(statement) {
            if let Some(path) = absolute(at, &path, &BTreeMap::new(), modules) {
                module.bound.insert(name, path.clone());
                if !is_reexport {
                    module.used.push(path.clone());
                }
                module.named.push(path);
            }
        }
        code = after;
    }
    rest.push_str(code);
    for path in written(&rest) {
        let path = absolute(at, &path, &module.bound, modules);
        module.used.extend(path.clone());
        module.named.extend(path);
    }
    module
}

/// The first `use` of a text: the text before it, its tree, and the rest.
fn next_use(code: &str) -> Option<(&str, &str, &str)> {
    let start = code.match_indices("use ").map(|(at, _)| at).find(|at| {
        let line = code[..*at].rsplit('\n').next().unwrap_or_default();
        line.is_empty() || (line.starts_with("pub") && line.ends_with(' '))
    })?;
    let length = code[start..].find(';')?;
    Some((&code[..start], &code[start + 4..start + length], &code[start + length + 1..]))
}

/// The paths of a tree of `use`, each with the name that it binds.
fn leaves(tree: &str) -> Vec<(ModulePath, String)> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
        let mut path: ModulePath = path.split("::").map(|name| name.trim().to_owned()).collect();
        if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
            path.pop();
        }
        let name = alias.or_else(|| path.last().map(String::as_str)).unwrap_or_default().to_owned();
        return vec![(path, name)];
    };
    let prefix: ModulePath =
        prefix.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
    let group = group.trim().strip_suffix('}').expect("a group ends with its statement");
    let (mut depth, mut parts) = (0_usize, vec![String::new()]);
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => (),
        }
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("never empty").push(c),
        }
    }
    let below = parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| leaves(part));
    below
        .map(|(path, name)| {
            if path == ["self"] {
                return (prefix.clone(), prefix.last().cloned().unwrap_or_default());
            }
            ([prefix.as_slice(), &path].concat(), name)
        })
        .collect()
}

/// All paths of several names in a text.
fn written(code: &str) -> Vec<ModulePath> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c| !is_part(c)).filter(|word| word.contains("::"));
    words.map(|word| word.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()).collect()
}

/// A path in a module, from the crate's root on; `None` for one of another crate.
fn absolute(
    at: &[String],
    path: &[String],
    bound: &BTreeMap<String, ModulePath>,
    modules: &BTreeSet<ModulePath>,
) -> Option<ModulePath> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let (head, rest) = (path.first()?, &path[1..]);
    Some(match head.as_str() {
        "crate" => rest.to_vec(),
        "super" => [at.get(..at.len().checked_sub(ups)?)?, &path[ups..]].concat(),
        "self" => [at, rest].concat(),
        _ if bound.contains_key(head) => [bound[head].as_slice(), rest].concat(),
        _ => {
            let child = [at, std::slice::from_ref(head)].concat();
            return modules.contains(&child).then(|| [child.as_slice(), rest].concat());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(sources: &[(&str, &str)]) -> Uses {
        let paths: Vec<ModulePath> =
            sources.iter().map(|(path, _)| path.split('/').map(str::to_owned).collect()).collect();
        sibling_uses(paths.iter().zip(sources).map(|(path, (_, code))| (path.as_slice(), (*code).to_owned())))
    }

    fn lines(uses: &Uses) -> Vec<String> {
        uses.keys().map(SiblingUse::to_string).collect()
    }

    #[test]
    fn a_use_is_seen_at_the_level_where_the_two_ways_part() {
        let uses = uses(&[
            ("a", "mod b;\nmod c;\npub use c::{\nd::Deep,\nOwn,\n};\nuse b::f;\n"),
            ("a/b", "use super::c::d::{self, x as y};\nfn f() { d::g(); super::c::h() }\n"),
            ("a/c", "use super::Parent;\nuse std::io;\n"),
            ("a/c/d", "use super::super::b;\nuse super::Own;\n"),
            ("e", "use crate::a::Deep;\nfn f() { crate::a::b::f() }\n"),
        ]);
        assert_eq!(lines(&uses), ["crate: e uses a", "a: b uses c", "a: c uses b"]);
        let places =
            uses.iter().find(|(edge, _)| edge.user == "e").map(|(_, places)| places.iter().collect::<Vec<_>>());
        assert_eq!(places.expect("seen"), ["e names a::Deep", "e names a::b::f"]);
    }

    #[test]
    fn an_imported_item_counts_where_it_is_defined() {
        let direct = ("a/b", "use super::Item;\n");
        assert!(uses(&[("a", "struct Item;\n"), direct, ("a/c", "")]).is_empty());
        let through = uses(&[("a", "mod c;\nuse c::Item;\n"), direct, ("a/c", "")]);
        assert_eq!(lines(&through), ["a: b uses c"]);
        // A module that is bound to a name is used by that name.
        let by_name = uses(&[("a", "mod b;\n"), ("a/b", "use crate::a as up;\nfn f() { up::c::g() }\n"), ("a/c", "")]);
        assert_eq!(lines(&by_name), ["a: b uses c"]);
    }

    #[test]
    fn a_cycle_is_told_of_with_the_uses_that_close_it_and_no_others() {
        let three = [("a/b", "use super::c;\n"), ("a/c", "use super::d;\n"), ("a/d", "use super::b;\n")];
        let told = mistakes(&uses(&[three.as_slice(), &[("a/e", "use super::b;\n")]].concat()));
        let expected = [
            "a: b uses c, which closes a cycle (a/b names a::c)",
            "a: c uses d, which closes a cycle (a/c names a::d)",
            "a: d uses b, which closes a cycle (a/d names a::b)",
        ];
        assert_eq!(told, expected);
        assert!(mistakes(&uses(&[three[0], three[1], ("a/d", "")])).is_empty());
    }
}
