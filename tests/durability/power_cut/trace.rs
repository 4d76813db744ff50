//! The output of `strace`, as events in their order.

use std::collections::HashMap;
use std::path::Path;

/// Something that happened to a file of the store, or a line that the program printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Wrote {
        file: String,
        at: usize,
        bytes: Vec<u8>,
    },
    Cut {
        file: String,
        len: usize,
    },
    Removed {
        file: String,
    },
    /// The file's content, and its length, are on the disk.
    Synced {
        file: String,
    },
    /// The folder's list of names is.
    SyncedNames,
    /// The list of names of a folder above it is.
    SyncedAbove(String),
    Printed(String),
}

/// Reads the record of a program whose store is in `folder`.
pub(crate) fn read_trace(text: &str, folder: &Path) -> Vec<Event> {
    let folder = folder.to_str().unwrap();
    let mut unfinished: HashMap<&str, String> = HashMap::new();
    let mut positions = HashMap::new();
    let mut events = Vec::new();
    for line in text.lines() {
        let (thread, rest) = line.split_once(' ').unwrap();
        let rest = rest.trim_start();
        let call = if let Some(begun) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(thread, begun.to_owned());
            continue;
        } else if let Some(resumed) = rest.strip_prefix("<... ") {
            let end = resumed.split_once("resumed>").unwrap().1;
            unfinished.remove(thread).unwrap_or_default() + end
        } else {
            rest.to_owned()
        };
        events.extend(event(&call, folder, &mut positions));
    }
    events
}

/// One finished call, such as `write(1<pipe:[7]>, "\x61", 1) = 1`. One that failed changed nothing.
fn event(call: &str, folder: &str, positions: &mut HashMap<String, usize>) -> Option<Event> {
    let (name, rest) = call.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let result: usize = result.split(' ').next()?.parse().ok()?;
    if name == "unlink" || name == "unlinkat" {
        let path = text(arguments.split('"').nth(1)?);
        return Some(Event::Removed { file: in_folder(&path, folder)? });
    }
    let (number, rest) = arguments.split_once('<')?;
    let (path, rest) = rest.split_once('>')?;
    let path = &*text(path);
    if name == "write" && number == "1" {
        let line = text(rest.split('"').nth(1)?);
        let printed = line.trim_end();
        return rows_line(printed).then(|| Event::Printed(printed.to_owned()));
    }
    if path == folder {
        return matches!(name, "fsync" | "fdatasync").then_some(Event::SyncedNames);
    }
    if folder.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')) && name == "fsync" {
        return Some(Event::SyncedAbove(path.to_owned()));
    }
    let file = in_folder(path, folder)?;
    let arguments: Vec<&str> = rest.trim_end_matches([')', ' ']).split(", ").collect();
    match name {
        "pwrite64" => {
            let bytes = unescape(arguments[1].trim_matches('"'))[..result].to_vec();
            Some(Event::Wrote { file, at: arguments[3].parse().unwrap(), bytes })
        }
        "write" => {
            let at = positions.entry(number.to_owned()).or_default();
            let bytes = unescape(arguments[1].trim_matches('"'))[..result].to_vec();
            let wrote = Event::Wrote { file, at: *at, bytes };
            *at += result;
            Some(wrote)
        }
        "lseek" => {
            positions.insert(number.to_owned(), result);
            None
        }
        "ftruncate" => Some(Event::Cut { file, len: arguments[1].parse().unwrap() }),
        "fsync" | "fdatasync" => Some(Event::Synced { file }),
        other => panic!("{other} is not expected"),
    }
}

/// Whether the program printed this line; the others come from the harness of tests.
fn rows_line(printed: &str) -> bool {
    printed.split(' ').count() == 3 && printed.starts_with("row ")
}

/// The name of a file that the store's promise rests on. The content of the others does not matter.
fn in_folder(path: &str, folder: &str) -> Option<String> {
    let name = path.strip_prefix(folder)?.strip_prefix('/')?;
    name.starts_with("tasks.db").then(|| name.to_owned()).filter(|name| !name.ends_with("-shm"))
}

fn unescape(text: &str) -> Vec<u8> {
    text.split("\\x").skip(1).map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect()
}

fn text(escaped: &str) -> String {
    String::from_utf8(unescape(escaped)).unwrap()
}
