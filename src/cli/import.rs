//! Converts a host's JSON into a configuration and a file of variables (`taskgate import`).

mod server_block;
mod variables;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bytes::Bytes;

use super::printable::printable;
use super::tool_arguments::text_of;
use super::{USAGE, refuse, write_line};
use crate::config::{fallback_name, fitting_name, quoted};
use crate::system::OwnersAlone as _;
use crate::wire::{Object, Payload, ScanError, ScanLimits};
use variables::Variables;

const BYTES_MAX: u64 = 4 << 20;
const MISTAKES_MAX: usize = 20;

#[derive(Debug, clap::Args)]
pub(super) struct ImportArguments {
    /// A host's JSON with its servers, also with comments; `-` reads standard input.
    #[arg(value_name = "HOST.json")]
    file: PathBuf,
    /// The configuration to write. The values of `env` and headers, if there are any, go into a file beside it, with `.env`
    /// for `.toml`. No existing file is overwritten.
    #[arg(long, value_name = "FILE.toml", default_value = "taskgate.toml")]
    out: PathBuf,
}

pub(super) fn run(arguments: &ImportArguments) -> ExitCode {
    let is_stdin = arguments.file.as_os_str() == "-";
    let name = if is_stdin { "standard input".to_owned() } else { arguments.file.display().to_string() };
    if is_stdin && io::stdin().is_terminal() {
        return refuse("- reads standard input, which is a terminal: pipe a host's JSON into it");
    }
    let text = match is_stdin {
        true => text_of(io::stdin(), &name, BYTES_MAX),
        false => File::open(&arguments.file)
            .map_err(|error| format!("{name}: {error}"))
            .and_then(|file| text_of(file, &name, BYTES_MAX)),
    };
    let text = match text {
        Ok(text) => text,
        Err(why) => return refuse(why),
    };
    let (toml_file, env_file) = (&arguments.out, arguments.out.with_extension("env"));
    let Some(env_name) = env_file.file_name().filter(|_| *toml_file != env_file) else {
        return refuse("--out names the configuration, such as taskgate.toml");
    };
    match imported(&text, &env_name.to_string_lossy()) {
        Ok(imported) => {
            if let Err(why) = write_files(&imported, toml_file, &env_file) {
                return refuse(why);
            }
            for note in imported.notes {
                write_line(format_args!("{name}: {}", printable(&note)));
            }
            let values = if imported.env.is_empty() { String::new() } else { format!(" and {}", env_file.display()) };
            write_line(format_args!("wrote {}{values}; start: taskgate serve {0}", toml_file.display()));
            ExitCode::SUCCESS
        }
        Err(mistakes) => {
            for mistake in mistakes.iter().take(MISTAKES_MAX) {
                write_line(format_args!("{name}{}", printable(mistake)));
            }
            if mistakes.len() > MISTAKES_MAX {
                write_line(format_args!("{name}: there are {} more mistakes", mistakes.len() - MISTAKES_MAX));
            }
            ExitCode::from(USAGE)
        }
    }
}

/// Creates the configuration, and the file of variables if there are any; neither is created without the other.
fn write_files(imported: &Imported, toml_file: &Path, env_file: &Path) -> Result<(), String> {
    let env = (env_file, &imported.env);
    let files = [Some(env).filter(|(_, lines)| !lines.is_empty()), Some((toml_file, &imported.toml))];
    let mut created: Vec<&Path> = Vec::new();
    for (path, text) in files.into_iter().flatten() {
        let opened = OpenOptions::new().write(true).create_new(true).owners_alone().open(path);
        let written = opened.and_then(|mut file| {
            created.push(path);
            file.write_all(text.as_bytes())
        });
        if let Err(error) = written {
            let left: Vec<_> = created.into_iter().filter(|path| fs::remove_file(path).is_err()).collect();
            let exists = error.kind() == io::ErrorKind::AlreadyExists;
            let advice = if exists { "; name another by --out, or remove it" } else { "" };
            let left: String = left.iter().map(|path| format!("; {} is left behind", path.display())).collect();
            return Err(format!("{}: {error}{advice}{left}", path.display()));
        }
    }
    Ok(())
}

struct Imported {
    toml: String,
    env: String,
    /// Settings that are imported in another form, or not at all.
    notes: Vec<String>,
}

/// Converts a host's file; each error starts with its JSON pointer. `env_name` names the file of variables.
fn imported(text: &str, env_name: &str) -> Result<Imported, Vec<String>> {
    let json = relaxed_json(text).map_err(|error| {
        let is_json = text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '/']);
        let hint = if is_json { "" } else { "; a host's file is JSON, and no TOML or YAML" };
        vec![format!(":{}: {error}{hint}", error.line(text))]
    })?;
    let mut notes = ImportNotes::default();
    let file = read_host_file(&json, &mut notes);
    let mut variables = Variables::of(text);
    let (mut blocks, mut names, mut listeners) = (Vec::new(), Vec::new(), BTreeSet::new());
    for server in &file.servers {
        let name = free_name(&server.name, &names);
        if let Some(block) = server_block::of(server, &name, &mut variables, &mut notes) {
            if name != server.name {
                notes.note(&server.pointer, format_args!("is called `{name}` here, and served at /{name}/mcp"));
            }
            listeners.extend(block.listener.map(|listener| (listener, server.pointer.as_str())));
            blocks.push(block.text);
            names.push(name);
        }
    }
    for input in &file.inputs {
        if let Some(variable) = variables.of_host_value(&format!("input:{}", input.id)) {
            let what = input.description.as_ref().map(|what| format!(" ({what})")).unwrap_or_default();
            notes.note(
                &input.pointer,
                format_args!("the host asks its user for it{what}; here it is the variable {variable}"),
            );
        }
    }
    let is_empty = blocks.is_empty() && !file.servers.is_empty();
    let (env, unset) = (variables.env_lines(), variables.unset());
    for (listener, pointer) in &listeners {
        let text = format_args!("has the default port of [{listener}], which therefore takes a free one");
        notes.note(pointer, text);
        blocks.insert(0, format!("[{listener}]\naddress = \"127.0.0.1:0\"\n"));
    }
    if !env.is_empty() {
        blocks.insert(0, format!("env_files = [{}]\n", quoted(env_name)));
    }
    if !unset.is_empty() {
        let file = if env.is_empty() { String::new() } else { format!("{env_name}, or ") };
        blocks.insert(0, format!("# To be set in {file}the environment of the gateway: {}.\n", unset.join(", ")));
    }
    let mut notes = notes.into_result().map_err(with_colons)?;
    if is_empty {
        notes.push("/: no server is left".to_owned());
        return Err(with_colons(notes));
    }
    if !unset.is_empty() {
        notes.push(format!("to be set where the gateway starts: {}", unset.join(", ")));
    }
    Ok(Imported { toml: blocks.join("\n"), env, notes })
}

fn with_colons(lines: Vec<String>) -> Vec<String> {
    lines.into_iter().map(|line| format!(": {line}")).collect()
}

fn free_name(host_name: &str, taken: &[String]) -> String {
    let name = fitting_name(host_name).unwrap_or_else(fallback_name);
    let numbered = (2_usize..).map(|number| format!("{name}-{number}"));
    std::iter::once(name.clone()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or(name)
}

#[derive(Debug, Default)]
struct ImportNotes {
    notes: Vec<String>,
    mistakes: Vec<String>,
}

impl ImportNotes {
    fn note(&mut self, pointer: &str, text: impl Display) {
        self.notes.push(format!("{pointer}: {text}"));
    }

    fn mistake(&mut self, pointer: &str, text: impl Display) {
        self.mistakes.push(format!("{pointer}: {text}"));
    }

    fn into_result(self) -> Result<Vec<String>, Vec<String>> {
        if self.mistakes.is_empty() { Ok(self.notes) } else { Err(self.mistakes) }
    }
}

fn below(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// The paths of server lists: most hosts'; VS Code's, also in its settings; Zed's; OpenCode's.
const SERVER_PATHS: [&[&str]; 6] =
    [&["mcpServers"], &["servers"], &["mcp", "servers"], &["mcp", "mcpServers"], &["context_servers"], &["mcp"]];

struct HostServer {
    name: String,
    pointer: String,
    members: Vec<(String, Payload)>,
}

/// An input for which the host asks its user once.
struct HostInput {
    id: String,
    pointer: String,
    description: Option<String>,
}

#[derive(Default)]
struct HostFile {
    servers: Vec<HostServer>,
    inputs: Vec<HostInput>,
}

fn read_host_file(file: &Payload, notes: &mut ImportNotes) -> HostFile {
    let Some(root) = Object::of(file) else {
        notes.mistake("/", "is not an object; write {\"mcpServers\": {\"NAME\": {\"command\": ...}}}");
        return HostFile::default();
    };
    let mut found = HostFile::default();
    let mut is_named = false;
    for path in SERVER_PATHS {
        let pointer = path.iter().fold(String::new(), |pointer, key| below(&pointer, key));
        let value = path.iter().try_fold(file.clone(), |value, key| Object::of(&value)?.get(key));
        let Some(value) = value else { continue };
        // Servers below a more specific path are found there.
        if path == ["mcp"] && is_named {
            continue;
        }
        is_named = true;
        add_servers(&value, &pointer, &mut found.servers, notes);
    }
    for (pointer, object) in [("", Some(&root)), ("/mcp", root.get_object("mcp").as_ref())] {
        add_inputs(object, pointer, &mut found.inputs);
    }
    let folder = std::env::current_dir().map(|folder| folder.display().to_string()).unwrap_or_default();
    let projects = root.get_object("projects");
    if let Some(servers) = projects.as_ref().and_then(|all| all.get_object(&folder)?.get("mcpServers")) {
        is_named = true;
        add_servers(&servers, &below(&below("/projects", &folder), "mcpServers"), &mut found.servers, notes);
    }
    if projects.is_some_and(|all| has_other_projects(&all, &folder)) {
        let text = "servers of other projects are not carried over; import the file in their folders, too";
        match found.servers.is_empty() {
            true => notes.mistake("/projects", text),
            false => notes.note("/projects", text),
        }
    } else if !is_named {
        notes.mistake("/", "names no servers: there is neither `mcpServers` nor `servers`");
    } else if found.servers.is_empty() {
        notes.mistake("/", "names no server");
    }
    found
}

fn add_servers(value: &Payload, pointer: &str, found: &mut Vec<HostServer>, notes: &mut ImportNotes) {
    let Some(all) = Object::of(value) else {
        notes.mistake(pointer, "is not an object; write a name and an object for each server");
        return;
    };
    for (name, value) in all.entries() {
        let pointer = below(pointer, &name);
        match Object::of(&value) {
            Some(server) => {
                let members = server.entries().map(|(key, value)| (key.into_owned(), value)).collect();
                found.push(HostServer { name: name.into_owned(), pointer, members });
            }
            None => notes.mistake(&pointer, "is not an object; write {\"command\": ...} or {\"url\": ...}"),
        }
    }
}

fn add_inputs(object: Option<&Object>, pointer: &str, found: &mut Vec<HostInput>) {
    let Some(all) = object.and_then(|object| object.get("inputs")).filter(|all| all.bytes().starts_with(b"[")) else {
        return;
    };
    for (index, input) in all.items().enumerate() {
        let Some(input) = Object::of(&input) else { continue };
        let Some(id) = input.get_string("id") else { continue };
        let pointer = below(&below(pointer, "inputs"), &index.to_string());
        found.push(HostInput { id, pointer, description: input.get_lossy("description") });
    }
}

/// Whether the file has servers for projects in other folders, as Claude Code's has.
fn has_other_projects(projects: &Object, folder: &str) -> bool {
    let others = projects.entries().filter(|(other, _)| other != folder);
    let mut tables = others.filter_map(|(_, project)| Object::of(&project)?.get_object("mcpServers"));
    tables.any(|servers| servers.keys().next().is_some())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum RelaxedJsonError {
    #[error("a comment begins with /* and does not end")]
    OpenComment { at: usize },
    #[error("{0}")]
    Json(ScanError),
}

impl RelaxedJsonError {
    /// The line of the error, from 1.
    fn line(self, text: &str) -> usize {
        let at = match self {
            Self::OpenComment { at } => at,
            Self::Json(error) => error.at(),
        };
        1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }
}

/// Reads JSON as hosts write it: with comments, trailing commas and a byte order mark. Blanks replace them, so that the
/// rest is JSON with every byte at its offset.
fn relaxed_json(text: &str) -> Result<Payload, RelaxedJsonError> {
    let strict = strict(text).map_err(|at| RelaxedJsonError::OpenComment { at })?;
    Payload::parse(&Bytes::from(strict), ScanLimits::CLIENT).map_err(RelaxedJsonError::Json)
}

/// The bytes with comments and commas blanked; or the start of an unclosed comment.
fn strict(text: &str) -> Result<Vec<u8>, usize> {
    let mut bytes = text.as_bytes().to_vec();
    // The last byte that is neither blank nor comment, and the offset of the comma after a value.
    let (mut last, mut comma) = (b'{', None);
    let mut at = if text.starts_with('\u{feff}') { blank(&mut bytes, 0, '\u{feff}'.len_utf8()) } else { 0 };
    while let Some(byte) = bytes.get(at).copied() {
        let end = match (byte, bytes.get(at + 1)) {
            (b'"', _) => string_end(&bytes, at),
            (b'/', Some(b'/')) => {
                let end = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |line| at + line);
                at = blank(&mut bytes, at, end);
                continue;
            }
            (b'/', Some(b'*')) => {
                let inner = text.as_bytes().get(at + 2..).unwrap_or_default();
                let length = inner.windows(2).position(|pair| pair == b"*/").ok_or(at)?;
                at = blank(&mut bytes, at, at + 2 + length + 2);
                continue;
            }
            (b' ' | b'\t' | b'\r' | b'\n', _) => {
                at += 1;
                continue;
            }
            _ => at + 1,
        };
        if let (b'}' | b']', Some(comma)) = (byte, comma) {
            bytes[comma] = b' ';
        }
        comma = (byte == b',' && !b"{[,:".contains(&last)).then_some(at);
        last = byte;
        at = end;
    }
    Ok(bytes)
}

/// Blanks a part except its line ends, and returns its end.
fn blank(bytes: &mut [u8], from: usize, to: usize) -> usize {
    for byte in bytes[from..to].iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
    to
}

/// The offset after the string that begins at `from`; the end of the text if it is unclosed.
fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// JSON is unchanged, with any strings in it.
        #[test]
        fn json_is_unchanged(texts in prop::collection::vec("[a-z,/*\\\\\"\\[\\]{}:\u{feff}ü]{0,12}", 0..6)) {
            let json = serde_json::json!({ "all": texts }).to_string();
            prop_assert_eq!(strict(&json), Ok(json.clone().into_bytes()));
        }

        /// No text panics, and no byte moves.
        #[test]
        fn no_byte_moves(text in "[a,/*\\\\\"\\[\\]{}:\n ü]{0,40}") {
            if let Ok(bytes) = strict(&text) {
                prop_assert_eq!(bytes.len(), text.len());
            }
        }
    }

    #[test]
    fn comments_and_last_commas_are_no_mistakes_and_all_else_is() {
        for (text, read) in [
            ("{}", Ok("{}")),
            ("\u{feff}{\"a\": 1}\n", Ok("{\"a\": 1}")),
            ("// ä\n{\"a\": [1, 2, ], }", Ok("{\"a\": [1, 2  ]  }")),
            ("{\"a\": 1, // why\n}", Ok("{\"a\": 1        \n}")),
            ("{\"a\": /* x\n */ 1}", Ok("{\"a\":     \n    1}")),
            ("{\"//\": \"/* , } */\", \"\\\",}\": 2}", Ok("{\"//\": \"/* , } */\", \"\\\",}\": 2}")),
            ("{\"a\": 1}\n// end", Ok("{\"a\": 1}")),
            ("{\n\"a\": }", Err(2)),
            ("{,}", Err(1)),
            ("[1,,]", Err(1)),
            ("{\"a\": 1\n,\n,}", Err(3)),
            ("{\n/* x", Err(2)),
            ("{\n\n\"a", Err(3)),
            ("{\"a\": 1,\n\"a\": 2}", Err(2)),
            ("{'a': 1}", Err(1)),
            ("", Err(1)),
        ] {
            let found = relaxed_json(text);
            let found = found.as_ref().map(Payload::as_str).map_err(|error| error.line(text));
            assert_eq!(found, read, "{text:?}");
        }
    }
}
