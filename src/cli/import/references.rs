//! Reads the references in a host's texts: variables, inputs, folders.

use crate::config::{is_variable_name, variable_name};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostText<'t> {
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
pub(super) enum BareVariables {
    Taken,
    /// Only if the text contains nothing else.
    WhenAlone,
}

pub(super) fn read(text: &str, bare: BareVariables) -> Vec<HostText<'_>> {
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
            read(text, bare).iter().map(shown).collect()
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
