//! Detects secrets in texts.
//!
//! This is a heuristic. The value of a variable or a header passes only if it is known to be harmless. In addresses and command
//! words, where most parts are not secret, only a part with a secret's name or form is taken for one.

/// Parts of secrets' names, in upper case.
const SECRET_NAMES: [&str; 14] = [
    "KEY",
    "TOKEN",
    "SECRET",
    "PASS",
    "PWD",
    "AUTH",
    "CREDENTIAL",
    "COOKIE",
    "BEARER",
    "PRIVATE",
    "SIGNATURE",
    "SESSION",
    "DSN",
    "WEBHOOK",
];
/// Prefixes of well-known token formats.
const SECRET_BEGINNINGS: [&str; 16] = [
    "sk-",
    "sk_",
    "pk_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xox",
    "AKIA",
    "eyJ",
    "ya29.",
    "AIza",
    "hf_",
    "npm_",
    "tvly-",
];
const TOKEN_LEN_MIN: usize = 16;
/// Authentication schemes in `Authorization`, in lower case.
const SCHEMES: [&str; 3] = ["bearer", "basic", "token"];
/// Values that reveal nothing, in lower case.
const HARMLESS_WORDS: [&str; 20] = [
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "none",
    "trace",
    "debug",
    "info",
    "warn",
    "warning",
    "error",
    "production",
    "development",
    "staging",
    "test",
    "stdio",
    "http",
    "utf-8",
];
/// Parts of the names of variables for paths, in upper case.
const PLACE_NAMES: [&str; 6] = ["PATH", "DIR", "DIRECTORY", "FILE", "FOLDER", "ROOT"];
const VALUE_ENDS: [char; 6] = ['&', ',', ';', '"', '\'', ' '];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextPart<'t> {
    Plain(&'t str),
    /// A secret and its name, if it has one.
    Secret {
        name: &'t str,
        value: &'t str,
    },
}

pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret))
}

/// Whether a word is an authentication scheme.
pub(super) fn is_scheme(word: &str) -> bool {
    SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// Whether a variable's value may be copied.
pub(super) fn is_harmless(name: &str, value: &str) -> bool {
    let is_word = HARMLESS_WORDS.iter().any(|word| value.eq_ignore_ascii_case(word));
    if value.is_empty() || is_word {
        return true;
    }
    let upper = name.to_ascii_uppercase();
    let is_number = value.len() <= 5 && value.bytes().all(|byte| byte.is_ascii_digit());
    let is_place = PLACE_NAMES.iter().any(|place| upper.ends_with(place)) && value.starts_with(['/', '.', '~']);
    !is_secret_name(name) && (is_number || is_place)
}

/// The parts of an address or a command word.
pub(super) fn parts(text: &str) -> Vec<TextPart<'_>> {
    let mut scan = SecretScan { text, label: "", is_assigned: false, plain_from: 0, parts: Vec::new() };
    let mut at = 0;
    while at < text.len() {
        at = scan.step(at);
    }
    scan.plain_to(text.len());
    scan.parts
}

struct SecretScan<'t> {
    text: &'t str,
    /// The previous word.
    label: &'t str,
    /// Whether the next word is its value, after `=` or `:`.
    is_assigned: bool,
    plain_from: usize,
    parts: Vec<TextPart<'t>>,
}

impl<'t> SecretScan<'t> {
    /// Scans the part that begins at `at`, and returns its end.
    fn step(&mut self, at: usize) -> usize {
        let rest = &self.text[at..];
        if let Some(inner) = rest.strip_prefix("://") {
            self.is_assigned = false;
            return self.user_info(self.text.len() - inner.len());
        }
        let is_delimiter = |c: char| !(c.is_alphanumeric() || "-_.+%~$\\*".contains(c));
        let word = rest.find(is_delimiter).map_or(rest, |end| &rest[..end]);
        let Some(delimiter) = rest.chars().next().filter(|_| word.is_empty()) else { return self.word(at, word) };
        match delimiter {
            ':' | '=' => self.is_assigned = true,
            '&' | ',' | ';' => (self.label, self.is_assigned) = ("", false),
            _ => (),
        }
        at + delimiter.len_utf8()
    }

    fn word(&mut self, at: usize, word: &'t str) -> usize {
        if is_scheme(word) {
            (self.label, self.is_assigned) = ("token", true);
            return at + word.len();
        }
        if self.is_assigned && is_secret_name(self.label) {
            let rest = &self.text[at..];
            let value = rest.find(VALUE_ENDS).map_or(rest, |end| &rest[..end]);
            return self.secret(at, self.label, value);
        }
        let is_digest = self.is_assigned && self.label == "sha256";
        if looks_secret(word) && !is_digest {
            return self.secret(at, "", word);
        }
        (self.label, self.is_assigned) = (word, false);
        at + word.len()
    }

    /// The end of user name and password in an address, with its authority from `from` on.
    fn user_info(&mut self, from: usize) -> usize {
        let rest = &self.text[from..];
        let authority = rest.find(['/', '?', '#', ' ', '"', '\'']).map_or(rest, |end| &rest[..end]);
        let Some(user_info) = authority.rfind('@').map(|end| &authority[..end]) else { return from };
        match user_info.split_once(':') {
            Some((user, password)) => self.secret(from + user.len() + 1, "password", password),
            None => self.secret(from, "user", user_info),
        }
    }

    fn secret(&mut self, at: usize, name: &'t str, value: &'t str) -> usize {
        if !value.is_empty() {
            self.plain_to(at);
            self.parts.push(TextPart::Secret { name, value });
            self.plain_from = at + value.len();
        }
        (self.label, self.is_assigned) = ("", false);
        at + value.len()
    }

    fn plain_to(&mut self, end: usize) {
        if self.plain_from < end {
            self.parts.push(TextPart::Plain(&self.text[self.plain_from..end]));
        }
    }
}

/// Whether a word looks like a token: random letters and digits.
fn looks_secret(word: &str) -> bool {
    let has_beginning = SECRET_BEGINNINGS.iter().any(|beginning| word.starts_with(beginning));
    let is_mixed = |run: &str| {
        run.len() >= TOKEN_LEN_MIN
            && run.bytes().any(|byte| byte.is_ascii_digit())
            && run.bytes().any(|byte| byte.is_ascii_alphabetic())
    };
    (has_beginning && word.len() >= TOKEN_LEN_MIN)
        || word.split(|c: char| !c.is_ascii_alphanumeric()).any(is_mixed)
        || is_uuid(word)
}

fn is_uuid(word: &str) -> bool {
    let lengths = word.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && word.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The parts of any text add up to the text.
        #[test]
        fn parts_are_the_whole_text(text in "[a-z0-9:/@=&? \"'ü.-]{0,60}|\\PC{0,40}") {
            let whole: String = parts(&text)
                .iter()
                .map(|part| match part {
                    TextPart::Plain(text) | TextPart::Secret { value: text, .. } => *text,
                })
                .collect();
            prop_assert_eq!(whole, text);
        }
    }

    #[test]
    fn what_is_called_a_secret_or_looks_like_one_is_taken_out() {
        for (text, shown) in [
            (
                "@modelcontextprotocol/server-filesystem@2025.10.24",
                "@modelcontextprotocol/server-filesystem@2025.10.24",
            ),
            ("/srv/files", "/srv/files"),
            ("--api-key=s3cret", "--api-key=<--api-key>"),
            ("OPENAI_API_KEY=a/b+c==", "OPENAI_API_KEY=<OPENAI_API_KEY>"),
            ("Authorization: Bearer abc", "Authorization: Bearer <token>"),
            ("Bearer abc", "Bearer <token>"),
            ("X-Api-Key:abc def", "X-Api-Key:<X-Api-Key> def"),
            ("{\"apiKey\":\"abc\",\"depth\":2}", "{\"apiKey\":\"<apiKey>\",\"depth\":2}"),
            ("postgres://ada:pa:ss@db/x", "postgres://ada:<password>@db/x"),
            ("https://ghtoken@host/x", "https://<user>@host/x"),
            ("https://h/mcp?key=abc&profile=x", "https://h/mcp?key=<key>&profile=x"),
            ("https://h/s/NzQ1YjFmMzAtYzE4/mcp", "https://h/s/<>/mcp"),
            ("sk-live-abcdefghijkl", "<>"),
            ("0f0f0f0f-aaaa-bbbb-cccc-0123456789ab", "<>"),
            ("img@sha256:0123456789abcdef0123", "img@sha256:0123456789abcdef0123"),
            ("http://127.0.0.1:9000/mcp", "http://127.0.0.1:9000/mcp"),
            ("ü=é", "ü=é"),
            ("", ""),
        ] {
            let found: String = parts(text)
                .iter()
                .map(|part| match part {
                    TextPart::Plain(plain) => (*plain).to_owned(),
                    TextPart::Secret { name, .. } => format!("<{name}>"),
                })
                .collect();
            assert_eq!(found, shown, "{text}");
        }
    }

    #[test]
    fn a_value_passes_only_where_it_is_known_to_be_harmless() {
        for (name, value, expected) in [
            ("LOG_LEVEL", "debug", true),
            ("AUTH_ENABLED", "true", true),
            ("PORT", "8080", true),
            ("PIN_TOKEN", "1234", false),
            ("DATA_DIR", "/srv/data", true),
            ("KEY_FILE", "/srv/key", false),
            ("USER_NAME", "ada", false),
            ("X", "", true),
            ("HOOK", "https://hooks.example/T0/B0/x", false),
        ] {
            assert_eq!(is_harmless(name, value), expected, "{name}={value}");
        }
    }
}
