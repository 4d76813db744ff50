//! Converts a host's texts to the configuration's syntax: references, and the values of `env` and headers, become variables.

use std::collections::{BTreeMap, BTreeSet};

use super::ImportNotes;
use crate::config::{env_line, escaped, is_variable_name, key_variable, variable_name};

/// The environment variables of the imported configuration. Contains secrets.
pub(super) struct Variables {
    referenced: BTreeSet<String>,
    values: BTreeMap<String, String>,
    /// The variables for values that only the host knows, and the references to them.
    host_values: BTreeMap<String, String>,
    /// The variables that the configuration uses, and the host's file gives no value.
    unset: BTreeSet<String>,
}

#[derive(Clone, Copy)]
pub(super) struct TextLocation<'a> {
    pub(super) upstream: &'a str,
    pub(super) pointer: &'a str,
}

impl Variables {
    /// `text` is the host's whole file.
    pub(super) fn of(text: &str) -> Self {
        let named = |part| if let HostText::Variable { name, .. } = part { Some(name) } else { None };
        let referenced = parts_of(text, BareVariables::Taken).into_iter().filter_map(named).collect();
        Self { referenced, values: BTreeMap::new(), host_values: BTreeMap::new(), unset: BTreeSet::new() }
    }

    /// A command word or an address.
    pub(super) fn word(&mut self, text: &str, at: TextLocation<'_>, notes: &mut ImportNotes) -> String {
        let parts = parts_of(text, BareVariables::WhenAlone);
        self.written(&parts, at, notes, |_, plain| escaped(plain))
    }

    pub(super) fn environment_value(
        &mut self,
        name: &str,
        value: &str,
        at: TextLocation<'_>,
        notes: &mut ImportNotes,
    ) -> String {
        let own = if is_variable_name(name) { name.to_owned() } else { variable_name(name) };
        let names = [own, variable_name(&format!("{}_{name}", at.upstream))];
        self.value(value, &names, at, notes)
    }

    /// The value of a header; the authentication scheme in front of it stays.
    pub(super) fn header_value(&mut self, value: &str, at: TextLocation<'_>, notes: &mut ImportNotes) -> String {
        let is_scheme =
            |word: &str| ["bearer", "basic", "token"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
        let (scheme, credential) = match value.split_once(' ').filter(|(scheme, _)| is_scheme(scheme)) {
            Some((scheme, credential)) => (format!("{scheme} "), credential.trim()),
            None => (String::new(), value),
        };
        scheme + &self.value(credential, &[key_variable(at.upstream)], at, notes)
    }

    /// The lines of a file with all values; empty if there is none.
    pub(super) fn env_lines(&self) -> String {
        self.values.iter().map(|(name, value)| env_line(name, value)).collect()
    }

    pub(super) fn unset(&self) -> Vec<&str> {
        self.unset.iter().map(String::as_str).collect()
    }

    /// The variable for a value that only the host knows, such as `input:token`.
    pub(super) fn of_host_value(&self, written: &str) -> Option<&str> {
        self.host_values.get(written).map(String::as_str)
    }

    /// A value of `env` or of a header: its own text goes into variables.
    fn value(&mut self, value: &str, names: &[String], at: TextLocation<'_>, notes: &mut ImportNotes) -> String {
        let mut parts = parts_of(value, BareVariables::Taken);
        if parts.is_empty() {
            parts.push(HostText::Text(""));
        }
        self.written(&parts, at, notes, |variables, plain| {
            let variable = variables.free(names, plain);
            variables.values.insert(variable.clone(), plain.to_owned());
            format!("${{{variable}}}")
        })
    }

    fn written(
        &mut self,
        parts: &[HostText<'_>],
        at: TextLocation<'_>,
        notes: &mut ImportNotes,
        plain: impl Fn(&mut Self, &str) -> String,
    ) -> String {
        let mut text = String::new();
        for part in parts {
            let variable = match part {
                HostText::Text(own) => {
                    text.push_str(&plain(self, own));
                    continue;
                }
                HostText::Variable { name, has_default } => {
                    if *has_default {
                        notes.note(at.pointer, format_args!("the default of {name} is not carried over; set {name}"));
                    }
                    name.clone()
                }
                HostText::HostValue { written, variable } => self.host_value(written, variable, at, notes),
            };
            text.push_str(&format!("${{{variable}}}"));
            self.unset.insert(variable);
        }
        text
    }

    fn host_value(&mut self, written: &str, called: &str, at: TextLocation<'_>, notes: &mut ImportNotes) -> String {
        if let Some(variable) = self.host_values.get(written) {
            return variable.clone();
        }
        let variable = self.free(&[called.to_owned(), format!("HOST_{called}")], &format!("${{{written}}}"));
        if !written.starts_with("input:") {
            let text = format_args!("${{{written}}} is known to the host alone; here it is the variable {variable}");
            notes.note(at.pointer, text);
        }
        self.host_values.insert(written.to_owned(), variable.clone());
        variable
    }

    /// The first name that is free, or that has this value already.
    fn free(&self, names: &[String], value: &str) -> String {
        let last = names.last().filter(|name| !name.is_empty()).map_or("VALUE", String::as_str);
        let numbered = (2_usize..).map(|number| format!("{last}_{number}"));
        let is_free = |name: &String| {
            !name.is_empty()
                && !self.referenced.contains(name)
                && !self.host_values.values().any(|other| other == name)
                && self.values.get(name).is_none_or(|other| other == value)
        };
        names.iter().cloned().chain(numbered).find(is_free).unwrap_or_else(|| last.to_owned())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostText<'t> {
    Text(&'t str),
    Variable {
        name: String,
        has_default: bool,
    },
    /// A value that only the host knows, and the variable for it here.
    HostValue {
        written: &'t str,
        variable: String,
    },
}

/// Whether `$NAME` is a variable like `${NAME}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BareVariables {
    Taken,
    /// Only if the text contains nothing else.
    WhenAlone,
}

/// Reads the references in a host's text: variables, inputs, folders.
fn parts_of(text: &str, bare: BareVariables) -> Vec<HostText<'_>> {
    if let Some(name) = text.strip_prefix('$').filter(|name| is_variable_name(name)) {
        return vec![HostText::Variable { name: name.to_owned(), has_default: false }];
    }
    let mut parts = Vec::new();
    let (mut rest, mut from) = (text, 0);
    while let Some(at) = rest[from..].find('$').map(|at| from + at) {
        let found = braced(&rest[at..]).or_else(|| match bare {
            BareVariables::Taken => bare_name(&rest[at..]),
            BareVariables::WhenAlone => None,
        });
        let Some((part, length)) = found else {
            from = at + 1;
            continue;
        };
        if at > 0 {
            parts.push(HostText::Text(&rest[..at]));
        }
        parts.push(part);
        (rest, from) = (&rest[at + length..], 0);
    }
    if !rest.is_empty() {
        parts.push(HostText::Text(rest));
    }
    parts
}

/// The reference in `${...}`, and its length.
fn braced(text: &str) -> Option<(HostText<'_>, usize)> {
    let inner = text.strip_prefix("${")?;
    let inner = &inner[..inner.find('}')?];
    let part = match inner {
        "" => return None,
        "/" | "pathSeparator" => HostText::Text("/"),
        "userHome" => HostText::Variable { name: "HOME".to_owned(), has_default: false },
        "workspaceFolder" | "workspaceFolderBasename" | "workspaceRoot" | "cwd" => host_value(inner, inner),
        _ => {
            let name = inner.strip_prefix("env:").unwrap_or(inner);
            let (name, default) = name.split_once(":-").unwrap_or((name, ""));
            if is_variable_name(name) {
                HostText::Variable { name: name.to_owned(), has_default: !default.is_empty() }
            } else {
                host_value(inner, inner.strip_prefix("input:").unwrap_or(inner))
            }
        }
    };
    Some((part, inner.len() + "${}".len()))
}

fn host_value<'t>(written: &'t str, called: &str) -> HostText<'t> {
    let variable = variable_name(called);
    let variable = if variable.is_empty() { "HOST_VALUE".to_owned() } else { variable };
    HostText::HostValue { written, variable }
}

fn bare_name(text: &str) -> Option<(HostText<'_>, usize)> {
    let name = text.strip_prefix('$')?;
    let name = &name[..name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len())];
    let part = || HostText::Variable { name: name.to_owned(), has_default: false };
    is_variable_name(name).then(|| (part(), name.len() + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hosts_way_to_name_a_variable_is_understood() {
        let shown = |text: &str, bare| -> String {
            let shown = |part: &HostText<'_>| match part {
                HostText::Text(text) => (*text).to_owned(),
                HostText::Variable { name, has_default } => format!("<{name}{}>", if *has_default { "?" } else { "" }),
                HostText::HostValue { variable, .. } => format!("<host {variable}>"),
            };
            parts_of(text, bare).iter().map(shown).collect()
        };
        for (text, expected) in [
            ("plain", "plain"),
            ("", ""),
            ("${API_KEY}", "<API_KEY>"),
            ("Bearer ${env:API_KEY}!", "Bearer <API_KEY>!"),
            ("${API_KEY:-none}/x", "<API_KEY?>/x"),
            ("${API_KEY:-}", "<API_KEY>"),
            ("${input:github-token}", "<host GITHUB_TOKEN>"),
            ("${input:apiKey}", "<host API_KEY>"),
            ("${workspaceFolder}${/}data", "<host WORKSPACE_FOLDER>/data"),
            ("${userHome}/x", "<HOME>/x"),
            ("${config:a.b}", "<host CONFIG_A_B>"),
            ("${input:報告}", "<host HOST_VALUE>"),
            ("$TOKEN", "<TOKEN>"),
            ("a $TOKEN b$$ 5$", "a <TOKEN> b$$ 5$"),
            ("${open", "${open"),
            ("${}", "${}"),
            ("ä${X}ö", "ä<X>ö"),
        ] {
            assert_eq!(shown(text, BareVariables::Taken), expected, "{text}");
        }
        assert_eq!(shown("echo $HOME", BareVariables::WhenAlone), "echo $HOME");
        assert_eq!(shown("$HOME", BareVariables::WhenAlone), "<HOME>");
    }
}
