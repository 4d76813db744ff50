//! Writes the configuration tables of one server from its host's settings.

use std::fmt::{Display, Write as _};

use serde_json::Value;
use url::Url;

use super::variables::{TextLocation, Variables};
use super::{HostServer, ImportNotes, below};
use crate::config::{ServerTarget, is_command_line, is_credential_header, key, quoted, string, usual_listener_at};
use crate::wire::{Object, Payload};

/// The host's settings that the configuration supports, each with its pointer for notes.
#[derive(Default)]
struct HostSettings {
    kind: Option<String>,
    command: Option<(String, Vec<String>)>,
    arguments: Vec<(String, String)>,
    env: Vec<(String, String, String)>,
    folder: Option<(String, String)>,
    url: Option<HostUrl>,
    headers: Vec<(String, String, String)>,
    hidden: Vec<String>,
    /// The enabled tools; all of them without a list.
    offered: Option<Vec<String>>,
    is_off: bool,
}

struct HostUrl {
    pointer: String,
    text: String,
    /// The transport that its key implies.
    transport: Option<&'static str>,
}

pub(super) struct ServerBlock {
    pub(super) text: String,
    /// The listener that uses the server's port by default.
    pub(super) listener: Option<&'static str>,
}

/// The tables of a server under the name `upstream`; `None` if it is left out, which is noted.
pub(super) fn of(
    server: &HostServer,
    upstream: &str,
    variables: &mut Variables,
    notes: &mut ImportNotes,
) -> Option<ServerBlock> {
    let settings = HostSettings::read(server, notes);
    if settings.is_off {
        notes.note(&server.pointer, "is switched off in the host, and left out");
        return None;
    }
    let text = format!("[upstreams.{upstream}]\n");
    let mut writer = BlockWriter { upstream, variables, notes, block: ServerBlock { text, listener: None } };
    writer.whole(server, &settings).then_some(writer.block)
}

impl HostSettings {
    fn read(server: &HostServer, notes: &mut ImportNotes) -> Self {
        let mut found = Self::default();
        for (key, value) in &server.members {
            found.member(key, value, &below(&server.pointer, key), notes);
        }
        found
    }

    fn has_websocket(&self) -> bool {
        let url = self.url.as_ref().filter(|_| self.command.is_none());
        url.and_then(|url| Url::parse(&url.text).ok()).is_some_and(|url| matches!(url.scheme(), "ws" | "wss"))
    }

    fn member(&mut self, key: &str, value: &Payload, pointer: &str, notes: &mut ImportNotes) {
        match key {
            "type" | "transport" | "transportType" => self.kind = text(value, pointer, notes),
            "command" if value.bytes().starts_with(b"[") => {
                let words = texts(value, pointer, notes).into_iter().map(|(_, word)| word).collect();
                self.command = Some((pointer.to_owned(), words));
            }
            "command" => self.command = text(value, pointer, notes).map(|word| (pointer.to_owned(), vec![word])),
            "args" => self.arguments = texts(value, pointer, notes),
            "env" | "environment" => self.env = named_texts(value, pointer, notes),
            "cwd" => self.folder = text(value, pointer, notes).map(|folder| (pointer.to_owned(), folder)),
            "url" | "serverUrl" | "httpUrl" => {
                let transport = (key == "httpUrl").then_some("streamable-http");
                self.url =
                    text(value, pointer, notes).map(|text| HostUrl { pointer: pointer.to_owned(), text, transport });
            }
            "headers" => self.headers = named_texts(value, pointer, notes),
            "disabledTools" | "excludeTools" => self.hidden = names(value, pointer, notes),
            "includeTools" | "enabledTools" | "tools" => self.offered = Some(names(value, pointer, notes)),
            "disabled" => self.is_off |= value.as_str() == "true",
            "enabled" => self.is_off |= value.as_str() == "false",
            _ => notes.note(pointer, format_args!("is not carried over: {}", why_not(key))),
        }
    }
}

fn why_not(key: &str) -> &'static str {
    match key {
        "timeout" | "timeoutMs" | "initTimeout" | "startupTimeout" => {
            "it is the host's own waiting time; the bound of a call is `deadline`, 1h by default"
        }
        "trust" | "alwaysAllow" | "autoApprove" | "autoApproved" => "the host decides which calls its user confirms",
        "envFile" => {
            "list the file in `env_files`, and write `NAME = \"${NAME}\"` for each of its variables into [upstreams.NAME.env]"
        }
        "oauth" | "auth" | "authProviderType" | "headersHelper" | "CLIENT_ID" | "CLIENT_SECRET" => {
            "the gateway does not log in; with `forward_authorization = true` the server gets its clients' tokens"
        }
        _ => "the configuration has no such key",
    }
}

struct BlockWriter<'a> {
    upstream: &'a str,
    variables: &'a mut Variables,
    notes: &'a mut ImportNotes,
    block: ServerBlock,
}

impl BlockWriter<'_> {
    /// Whether the settings define a server.
    fn whole(&mut self, server: &HostServer, settings: &HostSettings) -> bool {
        let kind = settings.kind.as_deref().unwrap_or_default().to_ascii_lowercase();
        let kind = if kind.is_empty() && settings.has_websocket() { "ws".to_owned() } else { kind };
        let transport = match kind.as_str() {
            "" | "stdio" | "local" | "remote" => None,
            "sse" => Some("sse"),
            "http" | "streamable-http" | "streamablehttp" | "streamable_http" => Some("streamable-http"),
            _ => {
                let text = format_args!("there is no transport `{kind}` here; the server is left out");
                let member = if settings.kind.is_some() { "type" } else { "url" };
                self.notes.note(&below(&server.pointer, member), text);
                return false;
            }
        };
        let has_command = settings.command.is_some() && transport.is_none();
        let is_written = match (&settings.command, &settings.url) {
            (Some((pointer, words)), _) if has_command => self.program(pointer, words, settings),
            (_, Some(url)) => self.address(url, transport.or(url.transport)),
            (Some(_), None) | (None, None) => {
                match transport.is_some() {
                    true => self.notes.mistake(&server.pointer, "names no server; write a `url`"),
                    // For example an extension of Zed: the host starts it by itself.
                    false => self.notes.note(&server.pointer, "has neither a `command` nor a `url`, and is left out"),
                }
                false
            }
        };
        if !is_written {
            return false;
        }
        self.unfit(server, has_command);
        match has_command {
            true => self.environment(&settings.env),
            false => self.credential(&settings.headers),
        }
        self.tools(settings);
        true
    }

    /// Notes the keys that do not apply to the transport.
    fn unfit(&mut self, server: &HostServer, is_program: bool) {
        let (unfit, other): (&[&str], _) = match is_program {
            true => (&["url", "serverUrl", "httpUrl", "headers"], "command"),
            false => (&["command", "args", "env", "environment", "cwd"], "url"),
        };
        for (key, _) in server.members.iter().filter(|(key, _)| unfit.contains(&key.as_str())) {
            let text = format_args!("is not carried over: the server is reached by its `{other}`");
            self.notes.note(&below(&server.pointer, key), text);
        }
    }

    fn program(&mut self, pointer: &str, words: &[String], settings: &HostSettings) -> bool {
        let mut words: Vec<(String, String)> = words
            .iter()
            .map(|word| (pointer.to_owned(), word.clone()))
            .chain(settings.arguments.iter().cloned())
            .collect();
        if let [(_, line)] = words.as_slice()
            && is_command_line(line)
        {
            if line.contains(['"', '\'', '\\']) {
                self.notes.mistake(
                    pointer,
                    "is a shell's line with quotes; write the program alone, and its words as `args`",
                );
                return false;
            }
            self.notes.note(pointer, "is one string with blanks; its words are written one by one");
            words = line.split_whitespace().map(|word| (pointer.to_owned(), word.to_owned())).collect();
        }
        if let Some(server) = wrapped(&words) {
            self.notes.note(
                pointer,
                "starts `taskgate wrap`; the server behind it is written, without the options of `wrap`",
            );
            words = server;
        }
        if words.first().is_none_or(|(_, program)| program.is_empty()) {
            self.notes.mistake(pointer, "names no program");
            return false;
        }
        let mut written = Vec::new();
        for (pointer, word) in &words {
            if word.contains('\0') {
                self.notes.mistake(pointer, "has a NUL character, which no program can be given");
                return false;
            }
            let at = TextLocation { upstream: self.upstream, pointer };
            written.push(string(&self.variables.word(word, at, self.notes)));
        }
        self.line(format_args!("command = [{}]", written.join(", ")));
        if let Some((pointer, folder)) = settings.folder.as_ref().filter(|(_, folder)| !folder.is_empty()) {
            let at = TextLocation { upstream: self.upstream, pointer };
            let folder = self.variables.word(folder, at, self.notes);
            self.line(format_args!("cwd = {}", string(&folder)));
        }
        true
    }

    fn address(&mut self, written: &HostUrl, transport: Option<&str>) -> bool {
        let mut text = written.text.clone();
        // An address that begins with a variable cannot be parsed.
        if let Ok(mut url) = Url::parse(&text) {
            if !url.username().is_empty() || url.password().is_some() {
                let note = "has a user name or password, which is not carried over; write [upstreams.NAME.auth] for it";
                self.notes.note(&written.pointer, note);
                let _ = url.set_username("").and_then(|()| url.set_password(None));
                text = url.to_string();
            }
            text.truncate(text.find('#').unwrap_or(text.len()));
            self.block.listener = usual_listener_at(&url);
        }
        if !text.contains('$')
            && let Err(why) = ServerTarget::url(&text)
        {
            self.notes.mistake(&written.pointer, why);
            return false;
        }
        let at = TextLocation { upstream: self.upstream, pointer: &written.pointer };
        let url = self.variables.word(&text, at, self.notes);
        self.line(format_args!("url = {}", string(&url)));
        if let Some(transport) = transport {
            self.line(format_args!("transport = {}", quoted(transport)));
        }
        true
    }

    fn environment(&mut self, env: &[(String, String, String)]) {
        if !env.is_empty() {
            self.table("env");
        }
        for (pointer, name, value) in env {
            if name.contains(char::is_control) && !name.contains('\0') {
                self.notes.mistake(pointer, "has a control character, such as a line break, in its name");
                continue;
            }
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                self.notes.note(pointer, "is not a variable that a program can be given, and left out");
                continue;
            }
            let at = TextLocation { upstream: self.upstream, pointer };
            let value = self.variables.environment_value(name, value, at, self.notes);
            self.line(format_args!("{} = {}", key(name), string(&value)));
        }
    }

    /// The configuration has one credential header: `Authorization`, else one with the name of a key or token, else the first.
    fn credential(&mut self, headers: &[(String, String, String)]) {
        let is_authorization = |name: &str| name.eq_ignore_ascii_case("authorization");
        let is_fit =
            |header: &&(String, String, String)| is_credential_header(&header.1) && !header.2.trim().is_empty();
        let fitting = || headers.iter().filter(is_fit);
        let chosen = fitting()
            .find(|(_, name, _)| is_authorization(name))
            .or_else(|| fitting().find(|(_, name, _)| names_key(name)))
            .or_else(|| fitting().next());
        for (pointer, ..) in headers.iter().filter(|(pointer, ..)| chosen.is_none_or(|chosen| chosen.0 != *pointer)) {
            self.notes.note(pointer, "is not carried over: the server gets one header, its credential");
        }
        let Some((pointer, name, value)) = chosen else { return };
        let at = TextLocation { upstream: self.upstream, pointer };
        let value = string(&self.variables.header_value(value.trim(), at, self.notes));
        self.table("auth");
        if is_authorization(name) {
            self.line(format_args!("authorization = {value}"));
        } else {
            self.line(format_args!("header = {}\nvalue = {value}", quoted(name)));
        }
    }

    fn tools(&mut self, settings: &HostSettings) {
        let offered = settings.offered.as_deref().filter(|offered| !offered.iter().any(|name| name == "*"));
        let hidden = settings.hidden.iter().map(|name| (name.as_str(), true));
        let offered = offered.map(|names| names.iter().map(|name| (name.as_str(), false)).chain([("*", true)]));
        let rules: Vec<(&str, bool)> = hidden.chain(offered.into_iter().flatten()).collect();
        for (name, is_hidden) in rules {
            let hide = if is_hidden { "\nhide = true" } else { "" };
            self.line(format!("\n[[upstreams.{}.tools]]\nmatch = {}{hide}", self.upstream, quoted(name)));
        }
    }

    fn table(&mut self, name: &str) {
        self.line(format!("\n[upstreams.{}.{name}]", self.upstream));
    }

    fn line(&mut self, text: impl Display) {
        let _ = writeln!(self.block.text, "{text}");
    }
}

fn names_key(header: &str) -> bool {
    let header = header.to_ascii_lowercase();
    ["key", "token", "secret", "auth"].iter().any(|word| header.contains(word))
}

/// The wrapped program, if the words start a gateway.
fn wrapped(words: &[(String, String)]) -> Option<Vec<(String, String)>> {
    let (program, rest) = words.split_first()?;
    let is_gateway =
        program.1.rsplit(['/', '\\']).next().is_some_and(|file| file == "taskgate" || file == "taskgate.exe");
    if !is_gateway || rest.first().is_none_or(|(_, word)| word != "wrap") {
        return None;
    }
    let at = rest.iter().position(|(_, word)| word == "--")?;
    rest.get(at + 1..).filter(|server| !server.is_empty()).map(<[_]>::to_vec)
}

fn text(value: &Payload, pointer: &str, notes: &mut ImportNotes) -> Option<String> {
    match value.read::<Value>() {
        Ok(Value::String(text)) => return Some(text),
        // As if it were absent.
        Ok(Value::Null) => (),
        Ok(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) | Err(_) => {
            notes.mistake(pointer, "is not a string");
        }
    }
    None
}

/// The texts of a list, each with its pointer. Numbers are converted to text.
fn texts(value: &Payload, pointer: &str, notes: &mut ImportNotes) -> Vec<(String, String)> {
    match value.as_str().chars().next() {
        Some('[') => (),
        Some('n') => return Vec::new(),
        Some(_) | None => {
            notes.mistake(pointer, "is not a list of strings");
            return Vec::new();
        }
    }
    let each = value.items().enumerate().filter_map(|(index, item)| {
        let pointer = below(pointer, &index.to_string());
        let text = scalar(&item, &pointer, notes)?;
        Some((pointer, text))
    });
    each.collect()
}

fn names(value: &Payload, pointer: &str, notes: &mut ImportNotes) -> Vec<String> {
    let all = texts(value, pointer, notes);
    all.into_iter().map(|(_, name)| name).filter(|name| !name.is_empty()).collect()
}

/// The texts of an object, each with its pointer and its name. Null members are skipped.
fn named_texts(value: &Payload, pointer: &str, notes: &mut ImportNotes) -> Vec<(String, String, String)> {
    let Some(all) = Object::of(value) else {
        if value.as_str() != "null" {
            notes.mistake(pointer, "is not an object of strings");
        }
        return Vec::new();
    };
    let each = all.entries().filter_map(|(name, value)| {
        let pointer = below(pointer, &name);
        let text = scalar(&value, &pointer, notes)?;
        Some((pointer, name.into_owned(), text))
    });
    each.collect()
}

/// A string, or a number or boolean as text.
fn scalar(value: &Payload, pointer: &str, notes: &mut ImportNotes) -> Option<String> {
    match value.as_str().chars().next() {
        Some('{' | '[') => {
            notes.mistake(pointer, "is not a string");
            None
        }
        Some('"' | 'n') => text(value, pointer, notes),
        Some(_) | None => Some(value.as_str().to_owned()),
    }
}
