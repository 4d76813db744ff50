//! Writes names of upstreams and strings as the configuration reads them.

/// Longest name that is made up.
const NAME_LEN_MAX: usize = 32;
const FALLBACK_NAME: &str = "server";

/// A name that the configuration takes for an upstream, made of a text: nothing but a to z, 0 to 9, underscores, and single
/// hyphens between them. `None` where nothing is left.
#[must_use]
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

/// The name of something that cannot be named by what is known of it.
#[must_use]
pub fn fallback_name() -> String {
    FALLBACK_NAME.to_owned()
}

/// The variable of the environment that a secret of an upstream may be in.
#[must_use]
pub fn key_variable(upstream: &str) -> String {
    variable_name(&format!("{upstream}_KEY"))
}

/// A name for a variable of the environment, made of a text: upper case, and underscores between its words.
#[must_use]
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

/// A text as it stands in a string of the configuration: `${` means a variable there.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace("${", "$${")
}

/// A string of TOML that the configuration reads back as this text.
#[must_use]
pub fn quoted(text: &str) -> String {
    string(&escaped(text))
}

/// A string of TOML; `${VAR}` in it is a variable.
#[must_use]
pub fn string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A key of TOML, in quotes where it needs them.
#[must_use]
pub fn key(text: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_bare) { text.to_owned() } else { string(text) }
}
