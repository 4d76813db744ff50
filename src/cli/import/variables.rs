//! Converts a host's texts to the configuration's syntax: references, and the values of `env` and headers, become variables.

use std::collections::{BTreeMap, BTreeSet};

use super::ImportNotes;
use super::references::{self, BareVariables, HostText};
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
        let named = |part| match part {
            HostText::Variable { name, .. } => Some(name),
            HostText::Text(_) | HostText::HostValue { .. } => None,
        };
        let referenced = references::read(text, BareVariables::Taken).into_iter().filter_map(named).collect();
        Self { referenced, values: BTreeMap::new(), host_values: BTreeMap::new(), unset: BTreeSet::new() }
    }

    /// A command word or an address.
    pub(super) fn word(&mut self, text: &str, at: TextLocation<'_>, notes: &mut ImportNotes) -> String {
        let parts = references::read(text, BareVariables::WhenAlone);
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
        let mut parts = references::read(value, BareVariables::Taken);
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
