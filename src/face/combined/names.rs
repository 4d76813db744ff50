//! Names the items of several upstreams at one path. An upstream's name prefixes all its items, or only duplicates; any
//! prefixed name is valid, even if unneeded. Pure.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

const SEPARATOR: &str = "__";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefixPolicy {
    #[default]
    Always,
    /// Names that two upstreams have, and names that look prefixed.
    Auto,
}

/// Whether a prefixed name of one upstream may look like a name of the other.
pub fn prefixes_clash(one: &str, other: &str) -> bool {
    let [one, other] = [prefixed(one, ""), prefixed(other, "")];
    one.starts_with(&other) || other.starts_with(&one)
}

pub(super) fn prefixed(upstream: &str, name: &str) -> String {
    [upstream, SEPARATOR, name].concat()
}

/// The upstream's index and the name without prefix.
pub(super) fn split<'n>(upstreams: &[Arc<str>], name: &'n str) -> Option<(usize, &'n str)> {
    let own = |upstream: &Arc<str>| name.strip_prefix(&**upstream)?.strip_prefix(SEPARATOR);
    upstreams.iter().enumerate().find_map(|(at, upstream)| Some((at, own(upstream)?)))
}

pub(super) struct NamePublisher<'a> {
    policy: PrefixPolicy,
    is_reserved: &'a dyn Fn(&str) -> bool,
    upstreams: &'a [Arc<str>],
    /// The number of upstreams with each name.
    holders: HashMap<&'a str, usize>,
}

impl<'a> NamePublisher<'a> {
    /// No name appears twice for one upstream.
    pub(super) fn new(
        policy: PrefixPolicy,
        is_reserved: &'a dyn Fn(&str) -> bool,
        upstreams: &'a [Arc<str>],
        names: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut holders = HashMap::new();
        if policy == PrefixPolicy::Auto {
            names.for_each(|name| *holders.entry(name).or_default() += 1);
        }
        Self { policy, is_reserved, upstreams, holders }
    }

    pub(super) fn published<'n>(&self, at: usize, name: &'n str) -> Cow<'n, str> {
        let is_alone = || self.holders.get(name).is_none_or(|holders| *holders < 2) && !(self.is_reserved)(name);
        match self.policy {
            PrefixPolicy::Auto if is_alone() && split(self.upstreams, name).is_none() => Cow::Borrowed(name),
            PrefixPolicy::Auto | PrefixPolicy::Always => Cow::Owned(prefixed(&self.upstreams[at], name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn upstreams(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[track_caller]
    fn check(policy: PrefixPolicy, lists: &[(&str, &[&str])], expected: &[&str]) {
        let upstreams = upstreams(&lists.iter().map(|(upstream, _)| *upstream).collect::<Vec<_>>());
        let names = lists.iter().flat_map(|(_, names)| names.iter().copied());
        let publisher = NamePublisher::new(policy, &|name| name == "own", &upstreams, names);
        let all = lists.iter().enumerate().flat_map(|(at, (_, names))| names.iter().map(move |name| (at, *name)));
        let published: Vec<_> = all.map(|(at, name)| publisher.published(at, name).into_owned()).collect();
        assert_eq!(published, expected, "{policy:?} {lists:?}");
    }

    #[test]
    fn names_have_their_upstream_in_front_always_or_where_two_have_the_same() {
        let lists: &[(&str, &[&str])] = &[("reports", &["make", "read"]), ("files", &["read"])];
        check(PrefixPolicy::Always, lists, &["reports__make", "reports__read", "files__read"]);
        check(PrefixPolicy::Auto, lists, &["make", "reports__read", "files__read"]);
        check(PrefixPolicy::Auto, &[("a", &["b__x", "y"]), ("b", &["x"])], &["a__b__x", "y", "x"]);
        check(PrefixPolicy::Auto, &[("a", &["b__x"]), ("b", &["x"]), ("c", &["x"])], &["a__b__x", "b__x", "c__x"]);
        check(PrefixPolicy::Auto, &[("a", &["own", "x"])], &["a__own", "x"]);
        check(PrefixPolicy::Always, &[("a", &["", "__", "a__a"])], &["a__", "a____", "a__a__a"]);
    }

    #[test]
    fn a_prefix_is_told_from_a_name_that_only_begins_alike() {
        let known = upstreams(&["reports", "files", "re"]);
        for (name, found) in [
            ("reports__make", Some((0, "make"))),
            ("files__a__b", Some((1, "a__b"))),
            ("re__ports__x", Some((2, "ports__x"))),
            ("reports_make", None),
            ("reportsx__make", None),
            ("__make", None),
            ("reports", None),
            ("Reports__make", None),
            ("reports__", Some((0, ""))),
        ] {
            assert_eq!(split(&known, name), found, "{name}");
        }
    }

    #[test]
    fn upstreams_whose_tools_could_be_taken_for_each_others_clash() {
        for (one, other, clash) in [
            ("a", "a", true),
            ("a", "a__b", true),
            ("a__b", "a", true),
            ("a", "a_", true),
            ("a", "a_b", false),
            ("a", "ab", false),
        ] {
            assert_eq!(prefixes_clash(one, other), clash, "{one} {other}");
        }
    }

    proptest! {
        /// No two tools have one public name, and each public name leads back to its tool.
        #[test]
        fn published_names_are_unique_and_lead_back(
            lists in prop::collection::vec(prop::collection::btree_set("(a|b|_){0,4}", 0..6), 1..4),
            auto in any::<bool>(),
        ) {
            let policy = if auto { PrefixPolicy::Auto } else { PrefixPolicy::Always };
            let names = ["a", "b", "ab"];
            let upstreams = upstreams(&names[..lists.len()]);
            let publisher = NamePublisher::new(policy, &|name| name == "own", &upstreams, lists.iter().flatten().map(String::as_str));
            let mut seen = BTreeSet::new();
            for (at, list) in lists.iter().enumerate() {
                for name in list {
                    let published = publisher.published(at, name).into_owned();
                    let leads_to = split(&upstreams, &published).unwrap_or((at, &published));
                    prop_assert_eq!(leads_to, (at, name.as_str()));
                    prop_assert!(seen.insert(published));
                }
            }
        }
    }
}
