//! Maps tool names of an upstream to those that clients see, by rules alone: all pages and processes then agree.

use std::borrow::Cow;

use wildmatch::WildMatch;

/// A name with at most one `*`, which stands for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    head: Box<str>,
    tail: Option<Box<str>>,
}

impl NamePattern {
    /// `None` for a text with two stars or with a `?`, where the carried-over part would be ambiguous.
    pub fn parse(text: &str) -> Option<Self> {
        let (head, tail) = text.split_once('*').map_or((text, None), |(head, tail)| (head, Some(tail)));
        let is_odd = text.is_empty() || text.contains('?') || tail.is_some_and(|tail| tail.contains('*'));
        (!is_odd).then(|| Self { head: head.into(), tail: tail.map(Box::from) })
    }

    pub const fn has_star(&self) -> bool {
        self.tail.is_some()
    }

    /// Whether it is a single star.
    pub fn is_any(&self) -> bool {
        self.head.is_empty() && self.tail.as_deref() == Some("")
    }

    /// Whether some name matches both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (&self.tail, &other.tail) {
            (None, _) => other.held(&self.head).is_some(),
            (_, None) => self.held(&other.head).is_some(),
            (Some(one), Some(two)) => {
                let heads = self.head.starts_with(&*other.head) || other.head.starts_with(&*self.head);
                heads && (one.ends_with(&**two) || two.ends_with(&**one))
            }
        }
    }

    /// The text that the star matches in `name`.
    pub fn held<'n>(&self, name: &'n str) -> Option<&'n str> {
        match &self.tail {
            Some(tail) => name.strip_prefix(&*self.head)?.strip_suffix(&**tail),
            None => (*name == *self.head).then_some(""),
        }
    }

    pub fn filled(&self, held: &str) -> String {
        [&self.head, held, self.tail.as_deref().unwrap_or_default()].concat()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameRule {
    Kept,
    Hidden,
    /// The text matched by the star of `from` replaces the star of `to`. Both have a star, or neither does.
    Renamed {
        from: NamePattern,
        to: NamePattern,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishedName<'n> {
    Name(Cow<'n, str>),
    /// The operator hides it.
    Nothing,
    /// Its name belongs to another tool.
    Taken(Cow<'n, str>),
}

/// One upstream's rules, by its own tool names: the first match decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolNames {
    rules: Vec<(WildMatch, NameRule)>,
}

impl ToolNames {
    /// Drops rules if all of them keep the names.
    pub fn new(rules: Vec<(WildMatch, NameRule)>) -> Self {
        if rules.iter().all(|(_, naming)| *naming == NameRule::Kept) { Self::default() } else { Self { rules } }
    }

    /// Whether every tool keeps its own name, and none is hidden.
    pub const fn are_kept(&self) -> bool {
        self.rules.is_empty()
    }

    pub fn patterns(&self) -> impl Iterator<Item = &WildMatch> {
        self.rules.iter().map(|(pattern, _)| pattern)
    }

    pub fn hide_some(&self) -> bool {
        self.rules.iter().any(|(_, naming)| *naming == NameRule::Hidden)
    }

    pub fn shown<'n>(&self, own: &'n str) -> PublishedName<'n> {
        match self.named(own) {
            None => PublishedName::Nothing,
            Some(name) if self.own(&name).as_deref() == Some(own) => PublishedName::Name(name),
            Some(name) => PublishedName::Taken(name),
        }
    }

    /// The upstream's own name of the tool that clients see as `shown`. The first rule about a name decides.
    pub fn own<'n>(&self, shown: &'n str) -> Option<Cow<'n, str>> {
        let leads_here = |own: &str| self.named(own).as_deref() == Some(shown);
        for (pattern, naming) in &self.rules {
            let own = match naming {
                NameRule::Kept if pattern.matches(shown) => Cow::Borrowed(shown),
                NameRule::Renamed { from, to } => match to.held(shown) {
                    Some(held) => Cow::Owned(from.filled(held)),
                    None => continue,
                },
                NameRule::Kept | NameRule::Hidden => continue,
            };
            if leads_here(&own) {
                return Some(own);
            }
        }
        leads_here(shown).then_some(Cow::Borrowed(shown))
    }

    fn named<'n>(&self, own: &'n str) -> Option<Cow<'n, str>> {
        match self.rules.iter().find(|(pattern, _)| pattern.matches(own)).map(|(_, naming)| naming) {
            None | Some(NameRule::Kept) => Some(Cow::Borrowed(own)),
            Some(NameRule::Hidden) => None,
            // A tool without a name could not be called.
            Some(NameRule::Renamed { from, to }) => {
                from.held(own).map(|held| Cow::Owned(to.filled(held))).filter(|name: &Cow<'_, str>| !name.is_empty())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pattern`, `-` for hidden, `=` for kept, else the new name.
    fn names(rules: &[(&str, &str)]) -> ToolNames {
        let rule = |(from, to): &(&str, &str)| {
            let naming = match *to {
                "-" => NameRule::Hidden,
                "=" => NameRule::Kept,
                to => {
                    NameRule::Renamed { from: NamePattern::parse(from).unwrap(), to: NamePattern::parse(to).unwrap() }
                }
            };
            (WildMatch::new(from), naming)
        };
        ToolNames::new(rules.iter().map(rule).collect())
    }

    #[test]
    fn every_name_leads_to_its_tool_and_back() {
        let plain: &[(&str, &str)] = &[];
        for (rules, own, shown) in [
            (plain, "greet", Some("greet")),
            (&[("generate_*", "make_*")], "generate_report", Some("make_report")),
            (&[("generate_*", "make_*")], "generate_", Some("make_")),
            (&[("generate_*", "make_*")], "greet", Some("greet")),
            (&[("greet", "hello")], "greet", Some("hello")),
            (&[("*_v2", "*")], "search_v2", Some("search")),
            (&[("*", "files.*")], "read", Some("files.read")),
            (&[("a*b", "c*d")], "ab", Some("cd")),
            (&[("a*a", "x*")], "a", Some("a")),
            (&[("admin_*", "-")], "admin_drop", None),
            (&[("admin_*", "-")], "greet", Some("greet")),
            (&[("admin_list", "="), ("admin_*", "-")], "admin_list", Some("admin_list")),
            (&[("a", "b"), ("b", "c")], "a", Some("b")),
            (&[("a", "b"), ("b", "c")], "b", Some("c")),
            (&[("a", "b"), ("b", "a")], "a", Some("b")),
            (&[("x_*", "*")], "x_", None),
            (&[("größe_*", "maß_*")], "größe_ä", Some("maß_ä")),
        ] {
            let names = names(rules);
            let found = if let PublishedName::Name(name) = names.shown(own) { Some(name.into_owned()) } else { None };
            assert_eq!(found.as_deref(), shown, "{rules:?} {own}");
            match shown {
                Some(shown) => assert_eq!(names.own(shown).as_deref(), Some(own), "{rules:?} {own}"),
                // Another tool may have that name.
                None => assert_ne!(names.own(own).as_deref(), Some(own), "{rules:?} {own}"),
            }
        }
    }

    #[test]
    fn a_name_that_two_tools_could_have_is_that_of_the_first_rule() {
        let renamed = names(&[("generate_*", "make_*")]);
        assert_eq!(renamed.own("make_it").as_deref(), Some("generate_it"));
        assert_eq!(renamed.shown("make_it"), PublishedName::Taken(Cow::Borrowed("make_it")));
        let kept = names(&[("make_it", "="), ("generate_*", "make_*")]);
        assert_eq!(kept.own("make_it").as_deref(), Some("make_it"));
        assert_eq!(kept.shown("generate_it"), PublishedName::Taken(Cow::Borrowed("make_it")));
        // A renamed tool's old name belongs to no tool.
        assert_eq!(renamed.own("generate_it"), None);
    }

    #[test]
    fn patterns_have_one_star_and_overlap_where_a_name_fits_both() {
        for odd in ["", "a*b*", "a?", "**"] {
            assert_eq!(NamePattern::parse(odd), None, "{odd:?}");
        }
        for (one, two, overlap) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a*", "ab", true),
            ("a*", "b", false),
            ("a*", "ab*", true),
            ("a*", "b*", false),
            ("a*x", "a*y", false),
            ("a*x", "*x", true),
            ("ab*ba", "aba", false),
            ("*", "anything", true),
        ] {
            let (one, two) = (NamePattern::parse(one).unwrap(), NamePattern::parse(two).unwrap());
            assert_eq!(one.overlaps(&two), overlap, "{one:?} {two:?}");
            assert_eq!(two.overlaps(&one), overlap, "{two:?} {one:?}");
        }
    }
}
