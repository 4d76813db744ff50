//! Counts the words that make a sentence a riddle: pronouns that stand for a noun.

/// Single words, in lower case.
const PRONOUNS: [&str; 7] = ["whoever", "whatever", "whichever", "nobody", "somebody", "whose", "whom"];
/// Beginnings of clauses that stand for a noun, in lower case.
const CLAUSES: [&str; 10] = [
    "what is",
    "what was",
    "what are",
    "what were",
    "what comes",
    "what came",
    "of what",
    "that of",
    "those of",
    "of its own",
];

/// The words of a text, and the riddles among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WordCount {
    pub(crate) words: usize,
    pub(crate) riddles: usize,
}

impl WordCount {
    pub(crate) fn of(text: &str) -> Self {
        let lower = text.to_lowercase();
        let words: Vec<&str> =
            lower.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|word| !word.is_empty()).collect();
        let clauses = |length: usize| words.windows(length).filter(|some| CLAUSES.contains(&some.join(" ").as_str()));
        let pronouns = words.iter().filter(|word| PRONOUNS.contains(word)).count();
        Self { words: words.len(), riddles: pronouns + clauses(2).count() + clauses(3).count() }
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self { words: self.words + other.words, riddles: self.riddles + other.riddles }
    }

    /// Riddles in a thousand words, rounded down.
    pub(crate) const fn per_thousand(self) -> usize {
        self.riddles * 1_000 / if self.words == 0 { 1 } else { self.words }
    }
}

/// The comments and the string literals of a Rust source.
pub(crate) fn comments_and_strings(source: &str) -> (String, String) {
    let (mut comments, mut strings) = (String::new(), String::new());
    let mut rest = source;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let is_word_going_on = before.is_alphanumeric() || before == '_';
        before = c;
        if rest.starts_with("//") {
            let (comment, behind) = rest.split_at(rest.find('\n').unwrap_or(rest.len()));
            comments.push_str(comment.trim_start_matches(['/', '!']));
            comments.push('\n');
            rest = behind;
        } else if let Some(raw) = raw_string(rest).filter(|_| !is_word_going_on) {
            strings.push_str(raw);
            strings.push('\n');
            rest = &rest[raw.len()..];
        } else if c == '"' {
            let end = end_of_string(&rest[1..]);
            strings.push_str(&rest[1..=end]);
            strings.push('\n');
            rest = &rest[(end + 2).min(rest.len())..];
        } else {
            rest = &rest[character(rest)..];
        }
    }
    (comments, strings)
}

/// A raw string with its marks, if the text begins with one.
fn raw_string(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = inner.len() - inner.trim_start_matches('#').len();
    let body = inner[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let behind = body.find(&end).map_or("", |at| &body[at + end.len()..]);
    Some(&text[..text.len() - behind.len()])
}

/// The end of a string literal, counted from behind its first quote.
fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !is_escaped => return at,
            _ => is_escaped = c == '\\' && !is_escaped,
        }
    }
    text.len()
}

/// The length of the first token of a text: a character literal, which may hold a quote, or one character.
fn character(text: &str) -> usize {
    let first = text.chars().next().map_or(1, char::len_utf8);
    let Some(inner) = text.strip_prefix('\'') else { return first };
    let end = match inner.strip_prefix('\\') {
        // The escaped character may be a quote itself.
        Some(escaped) => escaped.get(1..).and_then(|rest| rest.find('\'')).map(|at| at + 2),
        None => inner.chars().next().map(char::len_utf8).filter(|length| inner[*length..].starts_with('\'')),
    };
    end.map_or(first, |end| end + 2)
}

#[test]
fn riddles_are_counted_in_comments_and_strings_apart() {
    let source = "//! What is it? Nobody's.\nlet c = ['\"', '\\'', '\\\\', 'x', '\\u{9b}'];\n\
                  fn f<'a>(s: &'a str) { s.push(\"of its own \\\" whose\"); } // those of\n\
                  let raw = r#\"somebody \"quoted\"\"#; let bar\"x\";";
    let (comments, strings) = comments_and_strings(source);
    assert_eq!(comments, " What is it? Nobody's.\n those of\n");
    assert_eq!(WordCount::of(&comments), WordCount { words: 6, riddles: 2 });
    assert_eq!(WordCount::of(&strings).riddles, 3, "{strings}");
    assert_eq!(WordCount::of("Nothing to see, but a thing of itself.").riddles, 0);
    assert_eq!(WordCount { words: 2_000, riddles: 3 }.per_thousand(), 1);
}
