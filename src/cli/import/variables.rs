//! Converts a host's texts to the configuration's syntax; references and secrets become variables.

use std::collections::{BTreeMap, BTreeSet};

use super::notes::ImportNotes;
use super::references::{self, BareVariables, HostText};
use super::secrets::{self, TextPart};
use crate::config::{escaped, is_variable_name, key_variable, variable_name};

/// Variables with a standard meaning, which are never used for secrets.
const USUAL: [&str; 9] = ["HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"];

/// The environment variables of the imported configuration. Contains secrets.
pub(super) struct Variables {
    /// The variables that the host's file names.
    referenced: BTreeSet<String>,
    /// The invented variables, each with its secret.
    made: BTreeMap<String, String>,
    /// The variables that the configuration uses.
    used: BTreeSet<String>,
    /// The variables for values that only the host knows.
    host_values: BTreeMap<String, String>,
}

#[derive(Clone, Copy)]
pub(super) struct TextPlace<'a> {
    pub(super) upstream: &'a str,
    pub(super) pointer: &'a str,
}

impl Variables {
    /// `text` is the host's whole file.
    pub(super) fn of(text: &str) -> Self {
        let named = |part| match part {
            HostText::Variable { name, .. } => Some(name),
            HostText::Text(_) | HostText::HostValue { .. } => None,
        };
        let referenced = references::read(text, BareVariables::Taken).into_iter().filter_map(named).collect();
        Self { referenced, made: BTreeMap::new(), used: BTreeSet::new(), host_values: BTreeMap::new() }
    }

    /// A command word or an address. The word after an option for a secret, `option`, is a secret.
    pub(super) fn word(
        &mut self,
        text: &str,
        option: Option<&str>,
        at: TextPlace<'_>,
        notes: &mut ImportNotes,
    ) -> String {
        let option = option.filter(|option| option.starts_with('-') && secrets::is_secret_name(option));
        let parts = references::read(text, BareVariables::WhenAlone);
        match (option, parts.as_slice()) {
            (Some(option), [HostText::Text(text)]) if !text.starts_with('-') => self.secret(option, text, at, notes),
            _ => self.written(&parts, at, notes),
        }
    }

    pub(super) fn environment_value(
        &mut self,
        name: &str,
        value: &str,
        at: TextPlace<'_>,
        notes: &mut ImportNotes,
    ) -> String {
        let parts = references::read(value, BareVariables::Taken);
        match parts.as_slice() {
            [] => String::new(),
            [HostText::Text(text)] if secrets::is_harmless(name, text) => escaped(text),
            [HostText::Text(text)] => {
                let own = if is_variable_name(name) { name.to_owned() } else { variable_name(name) };
                let variable = self.free([own, variable_name(&format!("{}_{name}", at.upstream))], text);
                self.take_secret(variable, at, notes)
            }
            _ => self.written(&parts, at, notes),
        }
    }

    /// The value of a header: a secret after the authentication scheme.
    pub(super) fn header_value(&mut self, value: &str, at: TextPlace<'_>, notes: &mut ImportNotes) -> String {
        let scheme = value.split_once(' ').filter(|(scheme, _)| secrets::is_scheme(scheme));
        let (scheme, secret) =
            scheme.map_or((String::new(), value), |(scheme, rest)| (format!("{scheme} "), rest.trim()));
        let parts = references::read(secret, BareVariables::Taken);
        match parts.as_slice() {
            [HostText::Text(text)] => {
                let variable = self.free([key_variable(at.upstream)], text);
                scheme + &self.take_secret(variable, at, notes)
            }
            _ => scheme + &self.written(&parts, at, notes),
        }
    }

    /// The variables that the environment must define.
    pub(super) fn used(&self) -> impl Iterator<Item = &str> {
        self.used.iter().map(String::as_str)
    }

    /// The variable for a value that only the host knows, such as `input:token`.
    pub(super) fn of_host_value(&self, written: &str) -> Option<&str> {
        self.host_values.get(written).map(String::as_str)
    }

    fn written(&mut self, parts: &[HostText<'_>], at: TextPlace<'_>, notes: &mut ImportNotes) -> String {
        let mut text = String::new();
        for part in parts {
            match part {
                HostText::Text(plain) => {
                    for part in secrets::parts(plain) {
                        match part {
                            TextPart::Plain(plain) => text.push_str(&escaped(plain)),
                            TextPart::Secret { name, value } => text.push_str(&self.secret(name, value, at, notes)),
                        }
                    }
                }
                HostText::Variable { name, has_default } => {
                    if *has_default {
                        notes.note(at.pointer, format_args!("the default of {name} is not carried over; set {name}"));
                    }
                    text.push_str(&self.take(name.clone()));
                }
                HostText::HostValue { written, variable } => {
                    let is_told = written.starts_with("input:") || self.host_values.contains_key(*written);
                    let variable =
                        self.free([variable.clone(), format!("HOST_{variable}")], &format!("${{{written}}}"));
                    if !is_told {
                        notes.note(
                            at.pointer,
                            format_args!(
                                "${{{written}}} is known to the host alone; here it is the variable {variable}"
                            ),
                        );
                    }
                    self.host_values.insert((*written).to_owned(), variable.clone());
                    text.push_str(&self.take(variable));
                }
            }
        }
        text
    }

    fn secret(&mut self, name: &str, value: &str, at: TextPlace<'_>, notes: &mut ImportNotes) -> String {
        let name = if name.is_empty() { "secret" } else { name };
        let variable = self.free([variable_name(&format!("{}_{name}", at.upstream))], value);
        self.take_secret(variable, at, notes)
    }

    fn take_secret(&mut self, variable: String, at: TextPlace<'_>, notes: &mut ImportNotes) -> String {
        notes.note(at.pointer, format_args!("may be a secret and is not copied; put it into the variable {variable}"));
        self.take(variable)
    }

    fn take(&mut self, variable: String) -> String {
        let text = format!("${{{variable}}}");
        self.used.insert(variable);
        text
    }

    /// The first name that is free, or that has this value already.
    fn free<const N: usize>(&mut self, names: [String; N], value: &str) -> String {
        let last = names.last().filter(|name| !name.is_empty()).cloned().unwrap_or_else(|| "SECRET".to_owned());
        let numbered = (2_usize..).map(|number| format!("{last}_{number}"));
        let is_free = |name: &String| {
            !name.is_empty()
                && !self.referenced.contains(name)
                && !USUAL.contains(&name.as_str())
                && self.made.get(name).is_none_or(|other| other == value)
        };
        let free = names.into_iter().chain(numbered).find(is_free).unwrap_or_else(|| last.clone());
        self.made.insert(free.clone(), value.to_owned());
        free
    }
}
