//! Ends circular lists for clients that read them page by page, where the gateway edits the pages. A page without a new
//! name ends a list ([`ListPages`]). The names of earlier pages are kept under the cursor of the next one. That state
//! may be lost, or another request may take it: then a circular list ends some pages later.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::Arc;

use super::catalog::{CircularLists, PAGES_MAX};
use crate::task::Principal;
use crate::upstream::recent_map::RecentMap;
use crate::wire::list_pages::next_cursor;
use crate::wire::{ListEnd, ListPages, Object, PagedList, Payload};

/// The most lists that clients are reading.
const WALKS_MAX: usize = 256;
/// The most bytes of one list's names and cursors; beyond them it starts again.
const KEPT_BYTES_MAX: usize = 192 << 10;

#[derive(Debug)]
pub(super) struct ListWalks {
    upstream: Arc<str>,
    walks: RecentMap<Arc<ListPages>>,
    circular: CircularLists,
    hasher: RandomState,
}

/// The reader of a list: a session, or one of the clients without sessions that the server can distinguish.
#[derive(Clone, Debug)]
pub(super) struct ListReader {
    id: u128,
    counted_as: Principal,
}

impl ListReader {
    pub(super) const fn in_session(nonce: u128, counted_as: Principal) -> Self {
        Self { id: nonce, counted_as }
    }
}

impl ListWalks {
    pub(super) fn new(upstream: &Arc<str>) -> Self {
        let (walks, circular, hasher) = (RecentMap::new(WALKS_MAX), CircularLists::default(), RandomState::new());
        Self { upstream: Arc::clone(upstream), walks, circular, hasher }
    }

    pub(super) fn reader(&self, who: impl Hash, counted_as: Principal) -> ListReader {
        ListReader { id: self.hash(who), counted_as }
    }

    /// Reads the page that answers a request with the cursor `sent`. Returns how the list ends there, if it does.
    pub(super) fn read(&self, reader: &ListReader, sent: Option<&Payload>, page: &Object) -> Option<ListEnd> {
        let next = next_cursor(page);
        if sent.is_none() && next.is_none() {
            return Some(ListEnd::Complete);
        }
        let before = sent.and_then(|sent| Arc::into_inner(self.walks.remove(self.key(reader, sent))?));
        let mut pages = before.unwrap_or_else(|| ListPages::after(PagedList::Tools, PAGES_MAX, sent));
        pages.read(page);
        let end = pages.end();
        self.circular.note(&self.upstream, PagedList::Tools, end);
        if let Some(next) = next.filter(|_| end.is_none() && pages.kept_bytes() <= KEPT_BYTES_MAX) {
            self.walks.insert(self.key(reader, &next), &reader.counted_as, Arc::new(pages));
        }
        end
    }

    fn key(&self, reader: &ListReader, cursor: &Payload) -> u128 {
        self.hash((reader.id, cursor.as_str()))
    }

    fn hash(&self, value: impl Hash) -> u128 {
        let half = |salt: u8| u128::from(self.hasher.hash_one((salt, &value)));
        half(0) << 64 | half(1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn page(names: &[&str], next: &Value) -> Object {
        let tools: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
        Object::of(&Payload::of(&json!({ "tools": tools, "nextCursor": next }))).unwrap()
    }

    fn cursor(text: &str) -> Payload {
        Payload::of(&json!(text))
    }

    #[test]
    fn a_page_without_a_new_name_ends_the_list_of_its_reader_alone() {
        let walks = ListWalks::new(&Arc::from("up"));
        let [ada, bob] = ["ada", "bob"].map(|name| walks.reader(name, Principal::new(name)));
        let read = |reader, sent: Option<&str>, names: &[&str], next: &str| {
            walks.read(reader, sent.map(cursor).as_ref(), &page(names, &json!(next)))
        };
        assert_eq!(read(&ada, None, &["a", "b"], "x"), None);
        assert_eq!(read(&bob, None, &["a"], "x"), None);
        assert_eq!(read(&bob, Some("x"), &["b"], "y"), None, "new to him");
        assert_eq!(read(&bob, Some("y"), &["c"], "z"), None);
        assert_eq!(read(&ada, Some("x"), &["b", "a"], "y"), Some(ListEnd::Circular));
        assert_eq!(read(&ada, None, &["a", "b"], "x"), None, "she may begin again");
        assert_eq!(read(&ada, Some("x"), &["c"], "y"), None);
        assert_eq!(read(&ada, Some("x"), &["c"], "y"), None, "the same page again is no circle");
        assert_eq!(walks.read(&ada, Some(&cursor("y")), &page(&["d"], &Value::Null)), Some(ListEnd::Complete));
    }

    #[test]
    fn a_list_of_long_cursors_or_many_names_is_not_kept() {
        let walks = ListWalks::new(&Arc::from("up"));
        let reader = ListReader::in_session(7, Principal::local());
        let read = |sent: Option<&str>, names: &[&str], next: &str| {
            walks.read(&reader, sent.map(cursor).as_ref(), &page(names, &json!(next)))
        };
        let (long, short) = ("x".repeat(KEPT_BYTES_MAX), "y".repeat(8));
        let many: Vec<_> = (0..KEPT_BYTES_MAX / 64).map(|number| number.to_string()).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for (names, next) in [(&["a"][..], &*long), (&many, "z")] {
            assert_eq!(read(None, names, next), None);
            assert_eq!(walks.walks.len(), 0, "{} names", names.len());
        }
        assert_eq!(read(None, &["a"], &short), None);
        assert_eq!(walks.walks.len(), 1);
    }

    #[test]
    fn cursors_that_alternate_over_empty_pages_or_never_end_end_the_list() {
        let walks = ListWalks::new(&Arc::from("up"));
        let reader = ListReader::in_session(7, Principal::local());
        let ends = |next: &dyn Fn(usize) -> String| {
            let mut sent = None;
            (1..).find_map(|count| {
                let next = next(count);
                let end = walks.read(&reader, sent.as_ref(), &page(&[], &json!(next)));
                sent = Some(cursor(&next));
                end.map(|end| (end, count))
            })
        };
        assert_eq!(ends(&|count| format!("{}", count % 2)), Some((ListEnd::Circular, 3)));
        assert_eq!(ends(&|count| format!("n{count}")), Some((ListEnd::TooManyPages, PAGES_MAX)));
    }
}
