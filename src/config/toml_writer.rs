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

/// A string of TOML that the configuration reads back as this text: `${` means a variable there.
#[must_use]
pub fn quoted(text: &str) -> String {
    toml::Value::String(text.replace("${", "$${")).to_string()
}
