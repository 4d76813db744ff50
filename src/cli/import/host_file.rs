//! Finds the servers in the configuration file of any host.

use super::{ImportNotes, below};
use crate::wire::{Object, Payload};

/// The paths of server lists: most hosts'; VS Code's, also in its settings; Zed's; OpenCode's.
const SERVER_PATHS: [&[&str]; 6] =
    [&["mcpServers"], &["servers"], &["mcp", "servers"], &["mcp", "mcpServers"], &["context_servers"], &["mcp"]];

pub(super) struct HostServer {
    pub(super) name: String,
    pub(super) pointer: String,
    pub(super) members: Vec<(String, Payload)>,
}

/// An input for which the host asks its user once.
pub(super) struct HostInput {
    pub(super) id: String,
    pub(super) pointer: String,
    pub(super) description: Option<String>,
}

#[derive(Default)]
pub(super) struct HostFile {
    pub(super) servers: Vec<HostServer>,
    pub(super) inputs: Vec<HostInput>,
}

pub(super) fn read(file: &Payload, notes: &mut ImportNotes) -> HostFile {
    let Some(root) = Object::of(file) else {
        notes.mistake("/", "is no object; write {\"mcpServers\": {\"NAME\": {\"command\": ...}}}");
        return HostFile::default();
    };
    let mut found = HostFile::default();
    let mut is_named = false;
    for path in SERVER_PATHS {
        let (pointer, value) = match path {
            [only] => (below("", only), root.get(only)),
            [outer, inner @ ..] => {
                let outer_value = root.get_object(outer);
                (below(&below("", outer), inner[0]), outer_value.and_then(|object| object.get(inner[0])))
            }
            [] => continue,
        };
        let Some(value) = value else { continue };
        // Servers below a more specific path are found there.
        if path == ["mcp"] && is_named {
            continue;
        }
        is_named = true;
        servers(&value, &pointer, &mut found.servers, notes);
    }
    for (pointer, object) in [("", Some(&root)), ("/mcp", root.get_object("mcp").as_ref())] {
        inputs(object, pointer, &mut found.inputs);
    }
    if has_projects(&root) {
        notes
            .note("/projects", "servers of single projects are not carried over; the host has a file for each project");
    }
    if !is_named {
        notes.mistake("/", "names no servers: there is neither `mcpServers` nor `servers`");
    } else if found.servers.is_empty() {
        notes.mistake("/", "names no server");
    }
    found
}

fn servers(value: &Payload, pointer: &str, found: &mut Vec<HostServer>, notes: &mut ImportNotes) {
    let Some(all) = Object::of(value) else {
        notes.mistake(pointer, "is no object; write a name and an object for each server");
        return;
    };
    for (name, value) in all.entries() {
        let pointer = below(pointer, &name);
        match Object::of(&value) {
            Some(server) => {
                let members = server.entries().map(|(key, value)| (key.into_owned(), value)).collect();
                found.push(HostServer { name: name.into_owned(), pointer, members });
            }
            None => notes.mistake(&pointer, "is no object; write {\"command\": ...} or {\"url\": ...}"),
        }
    }
}

fn inputs(object: Option<&Object>, pointer: &str, found: &mut Vec<HostInput>) {
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

/// Whether the file has servers for single projects, as Claude Code's has.
fn has_projects(root: &Object) -> bool {
    let Some(projects) = root.get_object("projects") else { return false };
    let has_servers =
        |project: &Object| project.get_object("mcpServers").is_some_and(|all| all.keys().next().is_some());
    projects.entries().filter_map(|(_, project)| Object::of(&project)).any(|project| has_servers(&project))
}
