//! Writes upstream names and strings in the configuration's syntax.

const NAME_LEN_MAX: usize = 32;
const FALLBACK_NAME: &str = "server";

/// A valid upstream name from a text: a to z, 0 to 9, underscores, single hyphens between them. `None` if it is empty.
pub fn fitting_name(text: &str) -> Option<String> {
    let mut name = String::new();
    for c in text.chars() {
        match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '_') => name.push(c),
            _ if name.is_empty() || name.ends_with('-') => (),
            _ => name.push('-'),
        }
    }
    name.truncate(NAME_LEN_MAX);
    let name = name.trim_end_matches('-');
    (!name.is_empty()).then(|| name.to_owned())
}

pub fn fallback_name() -> String {
    FALLBACK_NAME.to_owned()
}

pub fn key_variable(upstream: &str) -> String {
    variable_name(&format!("{upstream}_KEY"))
}

/// A name for an environment variable from a text: upper case, with underscores between the words.
pub fn variable_name(text: &str) -> String {
    let mut name = String::new();
    let mut is_lower = false;
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() {
            is_lower = false;
            if !name.is_empty() && !name.ends_with('_') {
                name.push('_');
            }
            continue;
        }
        if (c.is_ascii_uppercase() && is_lower) || (c.is_ascii_digit() && name.is_empty()) {
            name.push('_');
        }
        is_lower = c.is_ascii_lowercase();
        name.push(c.to_ascii_uppercase());
    }
    name.trim_end_matches('_').to_owned()
}

/// A text as a configuration string, in which `${` starts a variable.
pub fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// A TOML string that the configuration reads as this text.
pub fn quoted(text: &str) -> String {
    string(&escaped(text))
}

/// A TOML string; `${VAR}` in it is a variable.
pub fn string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

pub fn key(text: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_bare) { text.to_owned() } else { string(text) }
}
