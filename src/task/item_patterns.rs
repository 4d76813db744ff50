//! Matches the names of tools and prompts, and the URIs of resources, with `*` and `?`.

use std::collections::BTreeSet;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use wildmatch::WildMatch;

/// Longer names and URIs match no pattern of a rule that allows, and every pattern of a rule that denies.
const MATCHED_BYTES_MAX: usize = 4_096;

#[derive(Clone, Debug, Default)]
pub struct ItemPatterns {
    texts: BTreeSet<Arc<str>>,
    patterns: Vec<WildMatch>,
}

impl ItemPatterns {
    pub fn new(texts: BTreeSet<Arc<str>>) -> Self {
        let patterns = texts.iter().map(|text| WildMatch::new(text)).collect();
        Self { texts, patterns }
    }

    /// Patterns for URIs that are denied: servers read schemes and hosts in any case.
    pub fn in_any_case(texts: BTreeSet<Arc<str>>) -> Self {
        let patterns = texts.iter().map(|text| WildMatch::new_case_insensitive(text)).collect();
        Self { texts, patterns }
    }

    pub fn fit(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether a rule with these patterns is about a name.
    pub(super) fn fit_in_rule(&self, name: &str, allows: bool) -> bool {
        if name.len() > MATCHED_BYTES_MAX { !allows } else { self.fit(name) }
    }

    /// As [`Self::fit_in_rule`], for a URI: a rule that allows needs every reading of it to fit, a rule that denies one.
    pub(super) fn fit_uri(&self, uri: &str, allows: bool) -> bool {
        if uri.len() > MATCHED_BYTES_MAX {
            return !allows;
        }
        let read = percent_decode_str(uri).decode_utf8();
        match read {
            Ok(read) if is_plain(&read) => match allows {
                true => self.fit(uri) && self.fit(&read),
                false => self.fit(uri) || self.fit(&read),
            },
            Ok(_) | Err(_) => !allows,
        }
    }

    /// Whether every name that `other` fits is fitted here, as far as the texts show it.
    pub fn cover(&self, other: &Self) -> bool {
        let covers = |wide: &Arc<str>, narrow: &str| {
            let is_exact = !wide.contains('?') || !narrow.contains('*');
            **wide == *narrow || (is_exact && WildMatch::new(wide).matches(narrow))
        };
        other.texts.iter().all(|narrow| self.texts.iter().any(|wide| covers(wide, narrow)))
    }
}

/// Whether servers cannot read another path in a decoded URI.
fn is_plain(uri: &str) -> bool {
    let is_encoded = |text: &[u8]| matches!(text, [b'%', a, b] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
    !uri.split(['/', '\\', '?', '#']).any(|segment| matches!(segment, "." | ".."))
        && !uri.as_bytes().windows(3).any(is_encoded)
}

compared_by!(ItemPatterns, |patterns| patterns.texts);

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> BTreeSet<Arc<str>> {
        texts.iter().map(|text| Arc::from(*text)).collect()
    }

    #[test]
    fn sec_28_a_uri_that_servers_may_read_in_two_ways_is_denied() {
        for (pattern, uri, allowed, denied) in [
            ("file:///public/*", "file:///public/a", true, true),
            ("file:///public/*", "file:///secret/a", false, false),
            ("file:///public/*", "file:///public/../secret/a", false, true),
            ("file:///public/*", "file:///public/%2e%2E/secret/a", false, true),
            ("file:///public/*", "file:///public/%252e%252e/secret/a", false, true),
            ("file:///public/*", "file:///public\\..\\secret", false, true),
            ("file:///public/*", "file:///public/a%20b", true, true),
            ("file:///public/*", "file:///publi%63/a", false, true),
            ("file:///public/*", "FILE:///public/a", false, true),
            ("file:///public/*", "file:///public/%ff", false, true),
            ("file:///public/*", "file:///public/..a/v1.0", true, true),
        ] {
            let (allows, denies) =
                (ItemPatterns::new(patterns(&[pattern])), ItemPatterns::in_any_case(patterns(&[pattern])));
            assert_eq!(allows.fit_uri(uri, true), allowed, "allowed: {uri}");
            assert_eq!(denies.fit_uri(uri, false), denied, "denied: {uri}");
        }
        let long = format!("file:///public/{}", "a".repeat(MATCHED_BYTES_MAX));
        let all = ItemPatterns::new(patterns(&["*"]));
        assert!(!all.fit_uri(&long, true) && all.fit_uri(&long, false));
        assert!(!all.fit_in_rule(&long, true) && all.fit_in_rule(&long, false) && all.fit(&long));
    }

    #[test]
    fn a_pattern_covers_another_only_if_no_name_escapes_it() {
        for (wide, narrow, covers) in [
            (&["*"][..], &["read_*", "x?"][..], true),
            (&["read_*"], &["read_a*", "read_?"], true),
            (&["read_?"], &["read_*"], false),
            (&["read_?"], &["read_a"], true),
            (&["read_*"], &["*"], false),
            (&["a", "b"], &["a"], true),
            (&["a"], &["a", "b"], false),
            (&["?*"], &["?*"], true),
        ] {
            let (wide, narrow) = (ItemPatterns::new(patterns(wide)), ItemPatterns::new(patterns(narrow)));
            assert_eq!(wide.cover(&narrow), covers, "{wide:?} {narrow:?}");
        }
    }
}
