//! Wraps and unwraps servers in the text of a host's file, without I/O. All text around the moved words stays byte for
//! byte, and the words keep their spelling: unwrapping restores it.

use std::ops::Range;

use url::Url;

use super::shape::{BEARER, HostEntry, HostShape, KEY_VARIABLE, ServerTable, ShapeError, WrappedServer, WrappedTarget};
use super::syntax::{LocatedMember, LocatedNode, NodeKind, Syntax};
use crate::config::{ServerTarget, is_command_line};
use crate::server::is_at_loopback;

const HTTP: &str = "http://";
const NO_LINES: &str = "has `args` in lines that cannot be changed; edit it by hand";
/// Settings by which a host logs in at a server; `wrap` has no counterpart.
const LOGIN_KEYS: [&str; 10] = [
    "auth",
    "authProviderType",
    "bearer_token_env_var",
    "customUserVars",
    "env_http_headers",
    "headersHelper",
    "oauth",
    "oauth_resource",
    "requiresOAuth",
    "scopes",
];

/// The new text, and the result for each server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EditedServers {
    pub(super) text: String,
    pub(super) changed: Vec<String>,
    pub(super) unchanged: Vec<String>,
    /// Servers that cannot be changed, and the reasons.
    pub(super) skipped: Vec<(String, String)>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EditError {
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error("there is no server `{name}`; there {}", listed(known))]
    Unknown { name: String, known: Vec<String> },
    #[error("{name}: {why}")]
    Refused { name: String, why: String },
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "is none".to_owned(),
        [only] => format!("is `{only}`"),
        [_, _, ..] => format!("are {}", names.join(", ")),
    }
}

enum EntryChange {
    None,
    /// A wrapped server becomes a direct one, or the reverse.
    Flip(Vec<Splice>),
    /// A wrapped server is started by another path of this program.
    OtherPath(Splice),
}

type EntryEdit = Result<EntryChange, String>;

/// Replaces a range of the text.
struct Splice {
    range: Range<usize>,
    text: String,
}

fn splice(range: &Range<usize>, text: impl Into<String>) -> Splice {
    Splice { range: range.clone(), text: text.into() }
}

/// Makes each named server, or all, start as `own` and `wrap`. Fails on invalid text, or a missing or unfit server.
pub(super) fn wrap(
    text: &str,
    shape: &HostShape,
    names: &[String],
    own: &[String],
) -> Result<EditedServers, EditError> {
    edited(text, shape, names, |entry, writer| {
        if let Some(wrapped) = entry.wrapped() {
            return Ok(writer.other_path(entry, wrapped, own));
        }
        if entry.has_shared_values() {
            return Err(
                "shares values with other entries of the file (an anchor, an alias or `<<`); write them out".to_owned()
            );
        }
        let splices = match (entry.command(), entry.url()) {
            (Some(_), Some(_)) => Err("names both a command and an address; remove one of them".to_owned()),
            (Some(command), None) => writer.wrap_program(entry, command, own),
            (None, Some(url)) => writer.wrap_url(entry, url, own, !names.is_empty()),
            (None, None) => Err("has neither a command nor an address, so the host itself provides it".to_owned()),
        };
        splices.map(EntryChange::Flip)
    })
}

/// Restores the entry of each named server, or of each wrapped one. `original` is the file before `wrap`, if known: it
/// has the entry's former text. Fails if the text is invalid, or a named server is missing or unfit.
pub(super) fn unwrap(
    text: &str,
    shape: &HostShape,
    names: &[String],
    original: Option<&str>,
) -> Result<EditedServers, EditError> {
    if let Some(original) = original.filter(|_| names.is_empty())
        && let Some(changed) = changed_by_wrap_alone(text, original, shape)
    {
        return Ok(EditedServers { text: original.to_owned(), changed, unchanged: vec![], skipped: vec![] });
    }
    let original = original.and_then(|text| Some((text, LocatedNode::parse(body(text), shape.syntax).ok()?)));
    let first_entries = original.as_ref().and_then(|(_, root)| shape.entries(root).ok()).unwrap_or_default();
    edited(text, shape, names, |entry, writer| {
        let Some(wrapped) = entry.wrapped() else { return Ok(EntryChange::None) };
        let same = |first: &&HostEntry<'_>| first.table == entry.table && first.name == entry.name;
        let first = first_entries.iter().find(same);
        let first =
            first.zip(original.as_ref()).map(|(entry, (text, _))| FirstEntry { entry: *entry, text: body(text) });
        // The user wrapped it by hand.
        if names.is_empty()
            && let Some(by_hand) = first.as_ref().filter(|first| first.has_words_of(entry, wrapped))
        {
            return Ok(writer.first_path(entry, by_hand));
        }
        let first = first.filter(|first| first.entry.wrapped().is_none());
        let splices = match wrapped.target {
            WrappedTarget::Program(at) => writer.unwrap_program(entry, at, first.as_ref()),
            WrappedTarget::Url(at) => writer.unwrap_url(entry, at, first.as_ref()),
            WrappedTarget::File => Err("starts the servers of a configuration; edit the entry by hand".to_owned()),
        };
        splices.map(EntryChange::Flip)
    })
}

/// The wrapped servers, if nothing else distinguishes the text from the original.
fn changed_by_wrap_alone(text: &str, original: &str, shape: &HostShape) -> Option<Vec<String>> {
    let mut wrapped = servers(text, shape).ok()?;
    wrapped.retain(|server| server.own.is_some());
    let own = wrapped.first()?.own.clone()?;
    let names: Vec<String> = wrapped.into_iter().map(|server| server.name).collect();
    let again = wrap(original, shape, &names, &own).ok()?;
    (again.text == text).then_some(again.changed)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListedServer {
    pub(super) name: String,
    /// The words that start this program, if the server is wrapped.
    pub(super) own: Option<Vec<String>>,
    /// The folder of its project, where the file has the servers of several.
    pub(super) project: Option<String>,
}

/// Fails if the text is not valid.
pub(super) fn servers(text: &str, shape: &HostShape) -> Result<Vec<ListedServer>, ShapeError> {
    let root = LocatedNode::parse(body(text), shape.syntax)?;
    let listed = |entry: &HostEntry<'_>| {
        let own = |wrap| entry.words().into_iter().take(wrap).map(str::to_owned).collect();
        let project = if let ServerTable::Project(folder) = entry.table { Some(folder.to_owned()) } else { None };
        ListedServer { name: entry.name.to_owned(), own: entry.wrapped().map(|wrapped| own(wrapped.wrap)), project }
    };
    Ok(shape.entries(&root)?.iter().map(listed).collect())
}

/// The text without a byte order mark.
fn body(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn edited(
    text: &str,
    shape: &HostShape,
    names: &[String],
    edit: impl Fn(&HostEntry<'_>, &SpliceWriter<'_>) -> EntryEdit,
) -> Result<EditedServers, EditError> {
    let (mark, text) = text.split_at(text.len() - body(text).len());
    let root = LocatedNode::parse(text, shape.syntax).map_err(ShapeError::from)?;
    let entries = shape.entries(&root)?;
    if let Some(name) = names.iter().find(|name| entries.iter().all(|entry| entry.name != name.as_str())) {
        let known = entries.iter().map(|entry| entry.name.to_owned()).collect();
        return Err(EditError::Unknown { name: name.clone(), known });
    }
    let writer = SpliceWriter { text, shape };
    let mut result = EditedServers { text: String::new(), changed: vec![], unchanged: vec![], skipped: vec![] };
    let (mut splices, mut flipped) = (Vec::new(), Vec::new());
    let is_named = |entry: &HostEntry<'_>| names.is_empty() || names.iter().any(|name| name == entry.name);
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| is_named(entry)) {
        let name = entry.name.to_owned();
        match edit(entry, &writer) {
            Ok(EntryChange::Flip(found)) => {
                splices.extend(found);
                flipped.push(index);
                result.changed.push(name);
            }
            Ok(EntryChange::OtherPath(found)) => {
                splices.push(found);
                result.changed.push(name);
            }
            Ok(EntryChange::None) => result.unchanged.push(name),
            Err(why) if names.is_empty() => result.skipped.push((name, why)),
            Err(why) => return Err(EditError::Refused { name, why }),
        }
    }
    let new = spliced(text, splices);
    if !is_as_meant(&entries, &flipped, &new, shape) {
        let why = "written in a way that cannot be edited here; edit it by hand, or name the other servers".to_owned();
        return Err(EditError::Refused { name: result.changed.join(", "), why });
    }
    result.text = format!("{mark}{new}");
    Ok(result)
}

fn spliced(text: &str, mut splices: Vec<Splice>) -> String {
    splices.sort_by_key(|splice| (splice.range.start, splice.range.end));
    let (mut result, mut from) = (String::with_capacity(text.len()), 0);
    for splice in splices {
        result.push_str(text.get(from..splice.range.start).unwrap_or_default());
        result.push_str(&splice.text);
        from = splice.range.end;
    }
    result.push_str(text.get(from..).unwrap_or_default());
    result
}

/// Whether servers start as before, but for the wrapping of edited ones. Odd spellings may have misled an edit.
fn is_as_meant(before: &[HostEntry<'_>], flipped: &[usize], text: &str, shape: &HostShape) -> bool {
    let Ok(root) = LocatedNode::parse(text, shape.syntax) else { return false };
    let Ok(after) = shape.entries(&root) else { return false };
    let pairs = before.iter().zip(&after).enumerate();
    let mut all = pairs.map(|(index, (before, after))| {
        let is_flipped = before.wrapped().is_some() != after.wrapped().is_some();
        let starts = [before, after].map(|entry| (entry.table, entry.name, entry.server_words(), entry.token()));
        starts[0] == starts[1] && is_flipped == flipped.contains(&index)
    });
    before.len() == after.len() && all.all(|is_same| is_same)
}

/// The program of `own`, and the words up to `wrap`.
fn own_words(own: &[String]) -> Result<(String, Vec<String>), String> {
    let (program, rest) = own.split_first().ok_or("cannot start this program, which has no path")?;
    Ok((quoted(program), rest.iter().map(String::as_str).chain(["wrap"]).map(quoted).collect()))
}

/// Why a setting of a server with an address cannot become an argument.
fn exposed(setting: &str) -> String {
    format!(
        "has {setting}, which other users of this machine could read in the arguments of `wrap`; write the server into \
         a configuration for `wrap --config`"
    )
}

/// Whether the host may log in at the address: hosts do so over https, at other machines.
fn may_need_login(address: &str) -> bool {
    if address.get(..HTTP.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(HTTP)) {
        return false;
    }
    // An address that begins with a variable may be any.
    !Url::parse(address).is_ok_and(|url| is_at_loopback(&url))
}

/// A string of JSON, which is one of TOML and YAML, too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The entry as it was before it was wrapped.
struct FirstEntry<'n> {
    entry: HostEntry<'n>,
    text: &'n str,
}

impl FirstEntry<'_> {
    fn raw(&self, range: &Range<usize>) -> String {
        self.text[range.clone()].to_owned()
    }

    /// Whether the copy has the same server behind `wrap`, with the same options.
    fn has_words_of(&self, entry: &HostEntry<'_>, wrapped: WrappedServer) -> bool {
        let Some(first) = self.entry.wrapped() else { return false };
        self.entry.words()[first.wrap..] == entry.words()[wrapped.wrap..]
    }
}

struct SpliceWriter<'t> {
    text: &'t str,
    shape: &'t HostShape,
}

impl SpliceWriter<'_> {
    fn wrap_program(
        &self,
        entry: &HostEntry<'_>,
        command: &LocatedMember,
        own: &[String],
    ) -> Result<Vec<Splice>, String> {
        let raw = self.word(&command.value, self.shape.command_key)?;
        if entry.words().len() == 1 && command.value.as_text().is_some_and(is_command_line) {
            return Err("has arguments in its command; write them into `args`".to_owned());
        }
        let (program, mut words) = own_words(own)?;
        words.push(quoted("--"));
        let mut splices = vec![splice(&command.value.range, program)];
        let Some(arguments) = entry.arguments() else {
            words.push(self.in_list(&raw, &command.value));
            let end = command.value.range.end;
            splices.push(splice(&(end..end), self.sibling(entry, command, &words)));
            return Ok(splices);
        };
        let items = arguments.value.items().ok_or("has `args` that are not a list; write a list")?;
        let list = &arguments.value.range;
        let is_flow = self.text[list.clone()].starts_with('[');
        words.push(if is_flow { self.in_list(&raw, &command.value) } else { raw });
        let (at, text) = match items.first() {
            None => (list.start + 1, words.join(", ")),
            Some(first) if is_flow => {
                let gap = &self.text[list.start + 1..first.range.start];
                let separator =
                    if gap.contains('\n') && gap.trim().is_empty() { format!(",{gap}") } else { ", ".into() };
                (first.range.start, words.join(&separator) + &separator)
            }
            Some(first) => {
                let (dash, line) = self.dash(first).ok_or(NO_LINES)?;
                let lines = words.iter().map(|word| format!("- {word}{}{line}", self.line_end()));
                (dash, lines.collect())
            }
        };
        splices.push(splice(&(at..at), text));
        Ok(splices)
    }

    /// Replaces the path of this program in a wrapped server: an upgrade may have removed the earlier one.
    fn other_path(&self, entry: &HostEntry<'_>, wrapped: WrappedServer, own: &[String]) -> EntryChange {
        let (Some(command), [path]) = (entry.command(), own) else { return EntryChange::None };
        let is_other = |text: &str| text.contains(['/', '\\']) && text != path;
        if wrapped.wrap != 1 || !command.value.as_text().is_some_and(is_other) {
            return EntryChange::None;
        }
        EntryChange::OtherPath(splice(&command.value.range, quoted(path)))
    }

    /// Gives a server that the user wrapped by hand its first path of this program.
    fn first_path(&self, entry: &HostEntry<'_>, first: &FirstEntry<'_>) -> EntryChange {
        match (entry.command(), first.entry.command()) {
            (Some(now), Some(before)) if now.value.as_text() != before.value.as_text() => {
                EntryChange::OtherPath(splice(&now.value.range, first.raw(&before.value.range)))
            }
            (Some(_) | None, Some(_) | None) => EntryChange::None,
        }
    }

    fn wrap_url(
        &self,
        entry: &HostEntry<'_>,
        url: &LocatedMember,
        own: &[String],
        is_named: bool,
    ) -> Result<Vec<Splice>, String> {
        if entry.arguments().is_some() {
            return Err("has `args` beside its address; remove them".to_owned());
        }
        if let Some(key) = LOGIN_KEYS.iter().find(|key| entry.node.member(key).is_some()) {
            return Err(format!("has `{key}`, by which the host logs in; `wrap` cannot do that"));
        }
        let raw = self.in_list(&self.word(&url.value, &url.key)?, &url.value);
        // An address with a variable is known to the host alone.
        if let Some(address) = url.value.as_text().filter(|address| !address.contains('$'))
            && let Err(why) = ServerTarget::url(address)
        {
            return Err(format!("has an address that `wrap` cannot use: {why}"));
        }
        // Also a variable: the host writes its value into the arguments.
        if url.value.as_text().is_some_and(|address| address.contains('?')) {
            return Err(exposed("a query in its address"));
        }
        let is_empty = |headers: &LocatedMember| headers.value.members().is_some_and(<[_]>::is_empty);
        let headers = entry.headers().filter(|headers| !is_empty(headers));
        if headers.is_none() && !is_named && url.value.as_text().is_some_and(may_need_login) {
            return Err(
                "has an https address and no token, so the host may log in there (OAuth), which `wrap` cannot \
                 do; if it does not, name the server"
                    .to_owned(),
            );
        }
        let (program, mut words) = own_words(own)?;
        let mut splices = vec![self.renamed(&url.key_range, self.shape.command_key)];
        splices.extend(entry.transport().map(|transport| self.renamed(&transport.value.range, "stdio")));
        if let Some(headers) = headers {
            splices.extend(self.token_to_environment(entry, headers)?);
            words.extend([quoted("--key-env"), quoted(KEY_VARIABLE)]);
        }
        words.extend([quoted("--url"), raw]);
        splices.push(splice(&url.value.range, program + &self.sibling(entry, url, &words)));
        Ok(splices)
    }

    /// Turns `headers` with one bearer token into `env` with the token.
    fn token_to_environment(&self, entry: &HostEntry<'_>, headers: &LocatedMember) -> Result<Vec<Splice>, String> {
        let [header] = headers.value.members().unwrap_or_default() else { return Err(exposed("headers")) };
        let is_token = header.key.eq_ignore_ascii_case("authorization");
        let range = &header.value.range;
        let at = self.token(range).filter(|_| is_token).ok_or_else(|| exposed("headers"))?;
        if entry.environment().is_some() {
            return Err(format!("has `{}` beside its address; remove it", self.shape.environment_key));
        }
        Ok(vec![
            self.renamed(&headers.key_range, self.shape.environment_key),
            self.renamed(&header.key_range, KEY_VARIABLE),
            match header.value.as_text().and_then(|text| text.strip_prefix(BEARER)) {
                // YAML's text without quotes may be a number or a table without the first word.
                Some(token) if self.is_plain(&self.text[range.clone()]) => splice(range, quoted(token)),
                Some(_) | None => splice(&(at..at + BEARER.len()), ""),
            },
        ])
    }

    fn is_plain(&self, raw: &str) -> bool {
        self.shape.syntax == Syntax::Yaml && !raw.starts_with(['"', '\''])
    }

    /// The offset of `Bearer ` at the start of a value.
    fn token(&self, range: &Range<usize>) -> Option<usize> {
        let raw = &self.text[range.clone()];
        let inner = raw.trim_start_matches(['"', '\'']);
        inner.starts_with(BEARER).then_some(range.start + raw.len() - inner.len())
    }

    fn unwrap_program(
        &self,
        entry: &HostEntry<'_>,
        at: usize,
        first: Option<&FirstEntry<'_>>,
    ) -> Result<Vec<Splice>, String> {
        let (command, arguments, program) = self.wrapped_members(entry, at)?;
        let items = arguments.value.items().unwrap_or_default();
        let raw = self.spelling(program, first.and_then(|first| Some((first, first.entry.command()?))));
        let mut splices = vec![splice(&command.value.range, raw)];
        let list = &arguments.value.range;
        let is_flow = self.text[list.clone()].starts_with('[');
        let start =
            |item: &LocatedNode| if is_flow { Some(item.range.start) } else { self.dash(item).map(|(dash, _)| dash) };
        let begin = items.first().and_then(start).ok_or(NO_LINES)?;
        let range = match items.get(at) {
            Some(next) => begin..start(next).ok_or(NO_LINES)?,
            None if first.is_some_and(|first| first.entry.arguments().is_none())
                && self.follows(command, arguments) =>
            {
                command.value.range.end..list.end
            }
            None if is_flow => begin..self.behind_comma(program.range.end),
            None => {
                splices.push(splice(&(arguments.key_range.end..program.range.end), ": []"));
                return Ok(splices);
            }
        };
        splices.push(splice(&range, ""));
        Ok(splices)
    }

    fn unwrap_url(
        &self,
        entry: &HostEntry<'_>,
        at: usize,
        first: Option<&FirstEntry<'_>>,
    ) -> Result<Vec<Splice>, String> {
        let (command, arguments, address) = self.wrapped_members(entry, at)?;
        if !self.follows(command, arguments) {
            return Err("has other text between its command and its `args`; edit it by hand".to_owned());
        }
        let words = entry.words();
        let options = words.split(|word| *word == "--url").next().unwrap_or_default();
        let of_others = |option: &&str| matches!(*option, "--header" | "--ca");
        let key = options.windows(2).find(|pair| pair[0] == "--key-env").map(|pair| pair[1]);
        if options.iter().any(of_others) || key.is_some_and(|key| key != KEY_VARIABLE) {
            return Err("has options of `wrap` that the host has no settings for; edit it by hand".to_owned());
        }
        let variables = entry.environment().and_then(|member| member.value.members()).unwrap_or_default();
        if variables.len() > 1 && variables.iter().any(|variable| variable.key == KEY_VARIABLE) {
            return Err("has variables beside its token; edit it by hand".to_owned());
        }
        let first_url = first.and_then(|first| Some((first, first.entry.url()?)));
        let raw = self.spelling(address, first_url);
        let key = match first_url {
            Some((first, url)) => splice(&command.key_range, first.raw(&url.key_range)),
            None => self.renamed(&command.key_range, self.shape.url_key),
        };
        let mut splices = vec![key, splice(&(command.value.range.start..arguments.value.range.end), raw)];
        if let Some(transport) = entry.transport().filter(|member| member.value.as_text() == Some("stdio")) {
            let range = &transport.value.range;
            let of_first =
                first.and_then(|first| Some(splice(range, first.raw(&first.entry.transport()?.value.range))));
            splices.extend(of_first.or_else(|| Some(self.renamed(range, self.shape.remote_type?))));
        }
        splices.extend(self.token_to_header(entry, first));
        Ok(splices)
    }

    fn token_to_header(&self, entry: &HostEntry<'_>, first: Option<&FirstEntry<'_>>) -> Vec<Splice> {
        let Some(environment) = entry.environment() else { return Vec::new() };
        let Some([variable]) = environment.value.members() else { return Vec::new() };
        if variable.key != KEY_VARIABLE {
            return Vec::new();
        }
        let of_first = first.and_then(|first| {
            let headers = first.entry.headers()?;
            let header = headers.value.members()?.first()?;
            let (keys, value) = ((headers.key_range.clone(), header.key_range.clone()), &header.value);
            let is_same = value.as_text()?.strip_prefix(BEARER) == variable.value.as_text();
            Some((first.raw(&keys.0), first.raw(&keys.1), is_same.then(|| first.raw(&value.range))))
        });
        let spelled = of_first.as_ref().and_then(|(_, _, value)| value.clone());
        let (headers, header) = match of_first {
            Some((headers, header, _)) => {
                (splice(&environment.key_range, headers), splice(&variable.key_range, header))
            }
            None => {
                let headers = if self.shape.syntax == Syntax::Toml { "http_headers" } else { "headers" };
                (self.renamed(&environment.key_range, headers), self.renamed(&variable.key_range, "Authorization"))
            }
        };
        let range = &variable.value.range;
        let value = &self.text[range.clone()];
        let token = range.start + value.len() - value.trim_start_matches(['"', '\'']).len();
        let value = spelled.map_or_else(|| splice(&(token..token), BEARER), |value| splice(range, value));
        vec![headers, header, value]
    }

    /// The command of a wrapped server, its arguments, and the word at `at` among both.
    fn wrapped_members<'n>(
        &self,
        entry: &HostEntry<'n>,
        at: usize,
    ) -> Result<(&'n LocatedMember, &'n LocatedMember, &'n LocatedNode), String> {
        let (command, arguments) = entry.command().zip(entry.arguments()).ok_or("has no `args`; edit it by hand")?;
        // The words begin with the command, which is no item.
        let word = arguments.value.items().unwrap_or_default().get(at - 1).ok_or("has fewer words than expected")?;
        Ok((command, arguments, word))
    }

    /// A word as the copy has it, if the copy has the same text there, else as it is now.
    fn spelling(&self, word: &LocatedNode, first: Option<(&FirstEntry<'_>, &LocatedMember)>) -> String {
        match first.filter(|(_, member)| member.value.as_text() == word.as_text()) {
            Some((first, member)) => first.raw(&member.value.range),
            None => self.text[word.range.clone()].to_owned(),
        }
    }

    /// A value as written, if it is text on one line.
    fn word(&self, value: &LocatedNode, key: &str) -> Result<String, String> {
        let raw = &self.text[value.range.clone()];
        match &value.kind {
            NodeKind::Text(text) if !text.is_empty() && !raw.contains('\n') => Ok(raw.to_owned()),
            NodeKind::Text(text) if text.is_empty() => Err(format!("has an empty `{key}`; write one")),
            NodeKind::Text(_) | NodeKind::List(_) | NodeKind::Table(_) | NodeKind::Shared | NodeKind::Other => {
                Err(format!("has a `{key}` that is not text on one line; write it so"))
            }
        }
    }

    /// A word in a list with brackets: YAML's text without quotes may hold marks of such a list.
    fn in_list(&self, raw: &str, value: &LocatedNode) -> String {
        match value.as_text() {
            Some(text) if self.is_plain(raw) && raw.contains([',', '[', ']', '{', '}']) => quoted(text),
            Some(_) | None => raw.to_owned(),
        }
    }

    /// Replaces a name, and keeps its quotes.
    fn renamed(&self, range: &Range<usize>, name: &str) -> Splice {
        match self.text[range.clone()].chars().next() {
            Some(quote @ ('\'' | '"')) => splice(range, format!("{quote}{name}{quote}")),
            Some(_) | None => splice(range, name),
        }
    }

    /// The text that adds `args` behind a member.
    fn sibling(&self, entry: &HostEntry<'_>, member: &LocatedMember, words: &[String]) -> String {
        let list = format!("[{}]", words.join(", "));
        let start = self.text[..member.key_range.start].rfind('\n').map_or(0, |at| at + 1);
        let before = &self.text[start..member.key_range.start];
        let is_braced = self.text[entry.node.range.clone()].starts_with('{');
        let line_end = self.line_end();
        match self.shape.syntax {
            Syntax::Json if start > 0 && before.trim().is_empty() => format!(",{line_end}{before}\"args\": {list}"),
            Syntax::Json => format!(", \"args\": {list}"),
            Syntax::Toml if is_braced => format!(", args = {list}"),
            // A dotted key is repeated.
            Syntax::Toml => format!("{line_end}{before}args = {list}"),
            Syntax::Yaml if is_braced => format!(", args: {list}"),
            Syntax::Yaml => format!("{line_end}{before}args: {list}"),
        }
    }

    /// Whether only blanks and a comma, or the start of a dotted key, stand between the two members.
    fn follows(&self, member: &LocatedMember, next: &LocatedMember) -> bool {
        let Some(between) = self.text.get(member.value.range.end..next.key_range.start) else { return false };
        let start = self.text[..member.key_range.start].rfind('\n').map_or(0, |at| at + 1);
        let dotted = self.text[start..member.key_range.start].trim();
        let between = between.trim().trim_start_matches(',').trim();
        between.is_empty() || between == dotted
    }

    /// The offset of an item's dash, and the text between a line's start and it.
    fn dash(&self, item: &LocatedNode) -> Option<(usize, &str)> {
        let before = self.text[..item.range.start].trim_end_matches([' ', '\t']);
        let dash = before.strip_suffix('-')?.len();
        let start = self.text[..dash].rfind('\n').map_or(0, |at| at + 1);
        let indent = &self.text[start..dash];
        indent.trim().is_empty().then_some((dash, indent))
    }

    /// The offset behind a comma that follows, or `end`.
    fn behind_comma(&self, end: usize) -> usize {
        let rest = &self.text[end..];
        let blanks = rest.len() - rest.trim_start().len();
        if rest[blanks..].starts_with(',') { end + blanks + 1 } else { end }
    }

    fn line_end(&self) -> &'static str {
        if self.text.contains("\r\n") { "\r\n" } else { "\n" }
    }
}

#[cfg(test)]
mod tests;
