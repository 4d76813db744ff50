//! Keeps what a text search can keep: the direction of dependencies, files of a bearable size, and sources that
//! speak of the product alone, of pages that are there and of rules that are explained.

#[path = "tidy/client_code.rs"]
mod client_code;
#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/maps.rs"]
mod maps;
#[path = "tidy/order.rs"]
mod order;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/plain_words.rs"]
mod plain_words;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/types.rs"]
mod types;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use plain_words::WordCount;

/// The modules, each with the rank that it may use only what stands below in number. Those of one rank do not use
/// each other, but for the outermost, which put everything together.
const RANKS: [(&str, usize); 34] = [
    ("body_wakes", 0),
    ("cause", 0),
    ("connection_timer", 0),
    ("console", 0),
    ("failpoint", 0),
    ("line_budget", 0),
    ("line_queue", 1),
    ("metric", 0),
    ("own_command", 0),
    ("random", 0),
    ("system", 0),
    ("waits", 0),
    ("wire", 1),
    ("task", 2),
    ("dev_output", 2),
    ("died_programs", 3),
    ("dialect", 3),
    ("secret_file", 2),
    ("replica", 3),
    ("answer_budget", 3),
    ("audit", 3),
    ("shared_access", 3),
    ("shared_limits", 4),
    ("store", 5),
    ("tls", 3),
    ("upstream", 5),
    ("engine", 6),
    ("face", 7),
    ("server", 8),
    ("app", OUTERMOST),
    ("cli", OUTERMOST),
    ("config", OUTERMOST),
    ("demo", OUTERMOST),
    ("telemetry", OUTERMOST),
];

const OUTERMOST: usize = 9;

/// Modules that are pure: no I/O, no clock, nothing spawned.
const PURE: [&str; 4] = ["wire", "task", "replica", "dialect"];

/// What a pure module does not name.
const IMPURE_WORDS: [&str; 13] = [
    "tokio",
    "hyper",
    "http::",
    "std::net",
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "std::thread",
    "SystemTime::now",
    "Instant::now",
    "getrandom",
    "random::",
];

/// The wall clock is read in one place, behind `Clock`.
// A buffer is asked for slices of that type.
const IMPURE_ALLOWED: [(&str, &str); 2] =
    [("src/task/time.rs", "SystemTime::now"), ("src/wire/framing/part.rs", "std::io")];

/// Lines of a source file without its tests.
const LINES_MAX: usize = 700;

/// Words of [`plain_words`] in a thousand, in comments, in pages, and in string literals, also of unit tests.
const RIDDLES_PER_THOUSAND: usize = 1;

/// Lines of `src` without blanks and tests. Lower a bound when the count allows.
const CODE_LINES_MAX: usize = 88_350;
const COMMENT_LINES_MAX: usize = 8_965;
const FILES_MAX: usize = 470;

/// Names that stand for several types: a list that may only shrink.
const SHARED_NAMES: &str = "tests/tidy/shared_names.txt";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files under a folder of the repository, by their path in it; what is built or fetched is left out.
fn files_under(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is readable") {
            let path: PathBuf = entry.expect("the folder is readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("names are UTF-8");
            let is_made = matches!(name, "target" | "node_modules" | ".git" | "artifacts" | "coverage" | "__pycache__");
            if path.is_dir() && !is_made {
                folders.push(path);
            } else if path.is_file() && !is_made {
                let path = path.strip_prefix(root()).expect("the file is in the repository");
                found.push(path.to_str().expect("names are UTF-8").to_owned());
            }
        }
    }
    found.sort();
    found
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("sources are UTF-8")
}

/// A source file of the program.
struct Source {
    path: String,
    /// Names from the crate's root on; `main` and `lib` are the root.
    module: Vec<String>,
    /// All lines but those of tests.
    lines: Vec<String>,
}

impl Source {
    fn new(path: &str) -> Self {
        let inside = path.strip_prefix("src/").and_then(|path| path.strip_suffix(".rs")).expect("a source file");
        let module = inside.split('/').map(str::to_owned).collect();
        let text = read(path);
        let body = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        Self { path: path.to_owned(), module, lines: body.lines().map(str::to_owned).collect() }
    }

    /// The text without comments and without items that are for tests alone.
    fn code(&self) -> String {
        let mut code = String::new();
        let mut is_for_tests = false;
        for line in self.lines.iter().map(|line| line.trim()).filter(|line| !line.starts_with("//")) {
            let starts = line == "#[cfg(test)]";
            if !starts && !(is_for_tests && (line.contains("mod ") || line.starts_with("use "))) {
                code.push_str(line);
                code.push('\n');
            }
            is_for_tests = starts || (is_for_tests && line.starts_with("#["));
        }
        code
    }

    /// The modules at the crate's root that the code names.
    fn uses(&self) -> BTreeSet<String> {
        let code = self.code();
        let mut used = BTreeSet::new();
        let above = "super::".repeat(self.module.len());
        for prefix in ["crate::", &above] {
            for (at, _) in code.match_indices(prefix) {
                // A longer path to the same place is found on its own.
                if code[..at].ends_with("super::") {
                    continue;
                }
                let rest = &code[at + prefix.len()..];
                match rest.strip_prefix('{') {
                    Some(group) => used.extend(first_names(group)),
                    None => used.extend(name_at(rest)),
                }
            }
        }
        used
    }
}

fn name_at(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// The names that begin the paths of a group, up to its closing brace.
fn first_names(group: &str) -> Vec<String> {
    let (mut depth, mut names, mut is_first) = (0_usize, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            _ if is_first && !c.is_whitespace() => {
                names.extend(name_at(&group[at..]));
                is_first = false;
            }
            _ => (),
        }
    }
    names
}

/// All sources of the program but those that hold tests alone.
fn sources() -> Vec<Source> {
    let paths = files_under("src");
    assert!(paths.len() >= 100 && paths.iter().all(|path| path.ends_with(".rs")), "{} files", paths.len());
    paths.iter().filter(|path| !is_test_file(path)).map(|path| Source::new(path)).collect()
}

/// Whether a file holds tests alone; the contract of stores is a module of tests.
fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.starts_with("src/store/contract")
}

fn rank_of(module: &str) -> Option<usize> {
    RANKS.iter().find(|(name, _)| *name == module).map(|(_, rank)| *rank)
}

#[test]
fn modules_use_only_modules_above_them() {
    let sources = sources();
    let mut seen = BTreeSet::new();
    let mut uses = 0;
    for source in &sources {
        let module = &source.module[0];
        if matches!(module.as_str(), "lib" | "main") {
            continue;
        }
        let rank = rank_of(module).unwrap_or_else(|| panic!("{} has no rank", source.path));
        seen.insert(module.clone());
        for used in source.uses().into_iter().filter(|used| used != module) {
            uses += 1;
            let below = rank_of(&used).unwrap_or_else(|| panic!("{} uses {used}, which has no rank", source.path));
            assert!(below < rank || (below, rank) == (OUTERMOST, OUTERMOST), "{} uses {used}", source.path);
        }
    }
    assert_eq!(seen.len(), RANKS.len(), "a module that is ranked has no file");
    assert!(uses >= 100, "the search found only {uses} uses");
}

/// Modules with one parent form no cycle: each can be read with those that it uses, and without those that use it.
#[test]
fn sibling_modules_form_no_cycle() {
    let sources = sources();
    let modules = sources.iter().filter(|source| !matches!(source.module[0].as_str(), "lib" | "main"));
    let uses = cycles::sibling_uses(modules.map(|source| (source.module.as_slice(), source.code())));
    assert!(uses.len() >= 300, "only {} uses were seen", uses.len());
    let mistakes = cycles::mistakes(&uses);
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// The search itself: paths and groups, from any depth, without comments and tests.
#[test]
fn the_search_for_uses_sees_paths_and_groups() {
    let lines = "use crate::wire::{Object, task};\nuse crate::{store, face::http::{empty, full}};\n\
                 // crate::server\n#[cfg(test)]\nuse crate::cli;\nfn f() { super::super::engine::g(); super::own(); }";
    let source = Source {
        path: String::new(),
        module: vec!["dialect".to_owned(), "plain".to_owned()],
        lines: lines.lines().map(str::to_owned).collect(),
    };
    let expected = ["engine", "face", "store", "wire"].map(str::to_owned);
    assert_eq!(source.uses(), BTreeSet::from(expected));
}

#[test]
fn pure_modules_do_no_input_or_output_and_read_no_clock() {
    let mut count = 0;
    for source in sources().iter().filter(|source| PURE.contains(&source.module[0].as_str())) {
        count += 1;
        let code = source.code();
        for word in IMPURE_WORDS {
            let is_allowed = IMPURE_ALLOWED.contains(&(source.path.as_str(), word));
            // Our own module `face::http` and the like are judged as uses.
            let names = code.match_indices(word).any(|(at, _)| !code[..at].ends_with("::"));
            assert_eq!(names, is_allowed, "{} and {word}", source.path);
        }
    }
    assert!(count >= 30, "only {count} pure files were seen");
}

#[test]
fn files_stay_within_their_limits() {
    for source in sources() {
        let lines = source.lines.len();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", source.path);
    }
    let tests = files_under("tests");
    let tests: Vec<_> = tests.iter().filter(|path| path.ends_with(".rs")).collect();
    assert!(tests.len() >= 30, "only {} test files were seen", tests.len());
    for path in tests {
        let lines = read(path).lines().count();
        assert!(lines <= LINES_MAX, "{path} has {lines} lines");
    }
}

#[test]
fn every_module_begins_with_its_purpose() {
    let mut count = 0;
    for path in [files_under("src"), files_under("tests"), files_under("fuzz")].concat() {
        if path.ends_with(".rs") {
            count += 1;
            assert!(!path.ends_with("/mod.rs"), "{path}: a module is a file beside its folder");
            assert!(read(&path).starts_with("//! "), "{path} does not begin with its duty");
        }
    }
    assert!(count >= 130, "only {count} modules were seen");
}

/// A request's changes to a task are finished after any disconnect: every method that a request awaits gives its change
/// to a tokio task of the engine, and no code outside of the engine can apply an event.
#[test]
fn nothing_that_a_request_awaits_applies_an_event_by_itself() {
    let (mut applies, mut methods) = (0, 0);
    for source in sources() {
        let code = source.code();
        if source.module[0] != "engine" {
            for word in ["engine.apply(", "engine.apply_all(", "engine().apply("] {
                assert!(!code.contains(word), "{} and {word}", source.path);
            }
            continue;
        }
        for method in code.split("\npub async fn ").skip(1) {
            methods += 1;
            let body = method.split("\n}\n").next().unwrap_or_default();
            let body = body.split("\nfn ").next().unwrap_or_default().split("\nasync fn ").next().unwrap_or_default();
            let body = body.split("\npub(super) async fn ").next().unwrap_or_default();
            assert!(!method.starts_with("apply"), "{}: `apply` is for the engine alone", source.path);
            // The sweeper is a task of its own.
            let uses = body.match_indices(".apply(").chain(body.match_indices(".apply_with_room("));
            for (at, _) in uses.filter(|_| !source.path.ends_with("/sweeper.rs")) {
                applies += 1;
                assert!(body[..at].contains("self.finish("), "{}: {}", source.path, body.lines().next().unwrap_or(""));
            }
        }
    }
    assert!(methods >= 10 && applies >= 1, "only {methods} methods and {applies} uses were seen");
}

/// "The store failed" says nothing: the engine's log lines show what lies beneath an error.
#[test]
fn the_engine_logs_errors_with_their_causes() {
    let mut chains = 0;
    for source in sources().iter().filter(|source| source.module[0] == "engine") {
        let code = source.code();
        chains += code.matches("error = %CauseChain(").count();
        assert!(!code.contains("%error"), "{} logs an error without its causes", source.path);
    }
    assert!(chains >= 20, "only {chains} errors are logged");
}

/// A walk that finds nothing must not pass for one that finds nothing wrong.
#[test]
fn tests_that_walk_a_folder_say_how_many_files_there_are() {
    let mut walks = 0;
    for path in [files_under("src"), files_under("tests")].concat().iter().filter(|path| path.ends_with(".rs")) {
        let text = read(path);
        if text.contains("fs::read_dir(") {
            walks += 1;
            let counts = |line: &str| line.contains("assert") && (line.contains("len()") || line.contains("count"));
            assert!(text.lines().any(counts), "{path} walks a folder and does not count");
        }
    }
    assert!(walks >= 4, "only {walks} walks were seen");
}

/// Nothing in the repository depends on where it was written. The words are put together here, so that this file
/// does not hold them.
#[test]
fn no_file_names_a_machine_or_a_package_registry() {
    let words = [
        ["/ho", "me/"],
        ["/ro", "ot/"],
        ["/Us", "ers/"],
        ["/wo", "rk/"],
        ["index.cra", "tes.io"],
        ["static.cra", "tes.io"],
        ["registry.np", "mjs"],
        ["registry.ya", "rnpkg"],
        ["files.pytho", "nhosted"],
        ["pypi", ".org"],
        ["artifac", "tory"],
    ]
    .map(|parts| parts.concat());
    let paths = files_under("");
    assert!(paths.len() >= 200, "only {} files were seen", paths.len());
    for path in paths {
        // Inputs of the parsers may be no text at all.
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for word in &words {
            assert!(!text.contains(word.as_str()), "{path} holds {word}");
        }
    }
}

/// A reference to a page that is not here helps no reader.
#[test]
fn no_file_refers_to_a_page_that_is_not_here() {
    let files: BTreeSet<String> = files_under("").into_iter().collect();
    let mut references = 0;
    for path in &files {
        let is_text =
            [".rs", ".md", ".toml", ".sh", ".py", ".mjs", ".yml", "Makefile"].iter().any(|end| path.ends_with(end));
        if !is_text {
            continue;
        }
        let text = read(path);
        references += text.matches(".md").count();
        let missing = pages::missing(path, &text, &files);
        assert!(missing.is_empty(), "{path} refers to {missing:?}");
    }
    assert!(references >= 20, "only {references} references were seen");
}

/// A search for a type's name lands on one type.
#[test]
fn a_types_name_stands_for_one_type() {
    let sources = sources();
    let lines = sources.iter().flat_map(|source| &source.lines).map(String::as_str);
    let names: Vec<&str> = lines.filter_map(types::defined).collect();
    assert!(names.len() >= 400, "only {} types were seen", names.len());
    let (shared, listed) = (types::shared(names.into_iter()), read(SHARED_NAMES));
    if std::env::var_os("UPDATE_TIDY").is_some() {
        fs::write(root().join(SHARED_NAMES), types::shortened(&listed, &shared)).expect("the list is writable");
    }
    let mistakes = types::mistakes(&shared, &types::exceptions(&read(SHARED_NAMES)));
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// The size of the program: a capability may raise a bound, with its reason in the commit.
#[test]
fn the_source_grows_by_decision() {
    let (mut code, mut comments, mut files) = (0, 0, 0);
    for path in files_under("src") {
        if is_test_file(&path) || path.contains("/tests/") || !path.ends_with(".rs") {
            continue;
        }
        files += 1;
        let text = read(&path);
        for line in without_test_items(&text) {
            match line.trim() {
                "" => (),
                line if line.starts_with("//") => comments += 1,
                _ => code += 1,
            }
        }
    }
    println!("src: {code} lines of code, {comments} of comments, {files} files");
    assert!(code <= CODE_LINES_MAX, "{code} lines of code");
    assert!(comments <= COMMENT_LINES_MAX, "{comments} lines of comments");
    assert!(files <= FILES_MAX, "{files} files");
}

/// The lines of a source file outside of items for tests alone. Sources are formatted, so an item ends at its own indentation.
fn without_test_items(text: &str) -> Vec<&str> {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push(line);
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        for line in lines.by_ref() {
            let is_outermost = line.len() - line.trim_start().len() == indent && !line.trim().is_empty();
            let ends = line.ends_with(['}', ';', ',']) || line.ends_with(");");
            if is_outermost && ends && !line.trim_start().starts_with("#[") {
                break;
            }
        }
    }
    kept
}

#[test]
fn items_for_tests_are_not_counted() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\nfn c() {}\n#[cfg(test)]\nuse d;\nimpl E {\n    #[cfg(test)]\n    fn f() {\n        1\n    }\n    fn g() {}\n}";
    assert_eq!(without_test_items(text), ["fn a() {}", "fn c() {}", "impl E {", "    fn g() {}", "}"]);
}

/// A call tells what each argument is: values that belong together are a type, and others are parameters of their own.
#[test]
fn no_function_takes_a_tuple_apart() {
    let mut seen = 0;
    for source in sources() {
        let code = source.code();
        for declared in code.split("fn ").skip(1) {
            let Some((parameters, name)) = parameters(declared) else { continue };
            seen += parameters.len();
            let is_tuple = |one: &&String| {
                one.starts_with('(') && one.rsplit("):").next().is_some_and(|kind| kind.trim().starts_with('('))
            };
            let apart = parameters.iter().find(is_tuple);
            assert_eq!(apart, None, "{}: `{name}`", source.path);
        }
    }
    assert!(seen >= 5_000, "only {seen} parameters were seen");
}

/// Each part of the runner alone changes its fields: what it promises about them can be read in its own files.
#[test]
fn the_parts_of_the_runner_keep_their_fields() {
    let sources = sources();
    let parts = [("dialog", "Dialog"), ("recorder", "Recorder"), ("family", "Family"), ("call_state", "UpstreamCall")];
    for (file, part) in parts {
        let path = format!("src/engine/runner/{file}.rs");
        let code = sources.iter().find(|source| source.path == path).expect("the part's file").code();
        let (_, declared) = code.split_once(&format!("struct {part} {{\n")).expect("the part's declaration");
        let fields: Vec<&str> =
            declared.lines().take_while(|line| *line != "}").filter(|line| line.contains(": ")).collect();
        assert!(fields.len() >= 4, "{part}: only {} fields were seen", fields.len());
        let open = fields.iter().find(|field| field.trim_start().starts_with("pub"));
        assert_eq!(open, None, "{path}: {part}");
    }
}

/// The parameters of a function, and its name.
fn parameters(declared: &str) -> Option<(Vec<String>, String)> {
    let name = name_at(declared)?;
    let rest = &declared[name.len()..];
    let begin = match rest.starts_with('<') {
        false => rest,
        true => {
            let mut depth = 0;
            let ends = |(at, c): (usize, char)| {
                match c {
                    '<' => depth += 1,
                    '>' if !rest[..at].ends_with('-') => depth -= 1,
                    _ => (),
                }
                (depth == 0).then_some(at + 1)
            };
            &rest[rest.char_indices().find_map(ends)?..]
        }
    };
    let (mut depth, mut all, mut one) = (0, Vec::new(), String::new());
    for c in begin.strip_prefix('(')?.chars() {
        match c {
            ')' if depth == 0 => break,
            ',' if depth == 0 => all.push(std::mem::take(&mut one).trim().to_owned()),
            _ => {
                let closes = matches!(c, ')' | ']' | '}') || (c == '>' && !one.ends_with('-'));
                depth += i32::from(matches!(c, '(' | '[' | '{' | '<')) - i32::from(closes);
                one.push(c);
            }
        }
    }
    all.push(one.trim().to_owned());
    Some((all, name))
}

#[test]
fn parameters_are_found_behind_generics() {
    let found = parameters("a<F: Fn(u8) -> u8>(b: Vec<(u8, u8)>, (c, d): (u8, u8)) -> u8 {").unwrap().0;
    assert_eq!(found, ["b: Vec<(u8, u8)>", "(c, d): (u8, u8)"]);
}

/// Plain English: the pronouns of [`plain_words`] are rare in comments and in texts that people see.
#[test]
fn comments_and_texts_name_their_nouns() {
    let (mut comments, mut strings) = (WordCount::default(), WordCount::default());
    for path in files_under("src") {
        let (said, shown) = plain_words::comments_and_strings(&read(&path));
        comments = comments.and(WordCount::of(&said));
        strings = strings.and(WordCount::of(&shown));
    }
    assert!(comments.words >= 50_000 && strings.words >= 10_000, "{comments:?} and {strings:?} are not all");
    println!("riddles: {comments:?} in comments, {strings:?} in strings");
    assert!(comments.per_thousand() < RIDDLES_PER_THOUSAND, "in comments: {comments:?}");
    assert!(strings.per_thousand() < RIDDLES_PER_THOUSAND, "in strings: {strings:?}");
}
