//! Decides which pages of a list count, and where a list with circular cursors ends. An absent or null cursor ends a
//! list; an empty string is a cursor (UPC-04). Against circular cursors, a page without a new name ends its list, and
//! so does a cursor that was sent before.

use std::collections::HashSet;

use super::object::ObjectWriter;
use super::{Object, Payload, method};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PagedList {
    Tools,
    Prompts,
    Resources,
    Templates,
    Tasks,
}

impl PagedList {
    const OFFERS: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    pub fn of_offers(name: &str) -> Option<Self> {
        Self::OFFERS.into_iter().find(|list| list.method() == name)
    }

    /// The method, the member with the items, and the member that identifies an item.
    const fn words(self) -> [&'static str; 3] {
        match self {
            Self::Tools => [method::TOOLS_LIST, "tools", "name"],
            Self::Prompts => [method::PROMPTS_LIST, "prompts", "name"],
            Self::Resources => [method::RESOURCES_LIST, "resources", "uri"],
            Self::Templates => [method::RESOURCES_TEMPLATES_LIST, "resourceTemplates", "uriTemplate"],
            Self::Tasks => [method::TASKS_LIST, "tasks", "taskId"],
        }
    }

    pub const fn method(self) -> &'static str {
        self.words()[0]
    }

    pub const fn items(self) -> &'static str {
        self.words()[1]
    }

    pub const fn key(self) -> &'static str {
        self.words()[2]
    }
}

pub fn next_cursor(page: &Object) -> Option<Payload> {
    page.get("nextCursor").filter(|cursor| cursor.as_str() != "null")
}

/// The cursor of a request for a page of a list: `null` is none, as in the page that it comes from.
pub fn sent_cursor(params: &Object) -> Option<Payload> {
    params.get("cursor").filter(|cursor| cursor.as_str() != "null")
}

/// Memory of a name or a cursor beside its text.
const ENTRY_BYTES: usize = 64;

#[derive(Debug)]
pub struct ListPages {
    list: PagedList,
    pages_left: usize,
    names: HashSet<String>,
    kept_bytes: usize,
    cursors: Vec<Payload>,
    end: Option<ListEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd {
    Complete,
    Circular,
    TooManyPages,
}

impl ListPages {
    pub fn new(list: PagedList, pages_max: usize) -> Self {
        Self { list, pages_left: pages_max, names: HashSet::new(), kept_bytes: 0, cursors: Vec::new(), end: None }
    }

    /// For the rest of a list after `cursor`, whose earlier pages are unknown.
    #[must_use]
    pub fn after(list: PagedList, pages_max: usize, cursor: Option<&Payload>) -> Self {
        Self { cursors: cursor.into_iter().map(Payload::detached).collect(), ..Self::new(list, pages_max) }
    }

    /// About the memory that the names and cursors of all pages take.
    #[must_use]
    pub const fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    pub fn params(&self) -> Option<Payload> {
        let cursor = self.cursor()?;
        Some(ObjectWriter::new().member("cursor", cursor).finish())
    }

    /// The cursor of the next page; none before the first one.
    pub fn cursor(&self) -> Option<&Payload> {
        self.cursors.last()
    }

    /// Reads a page. Returns whether its items count: not if it lists only names of earlier pages.
    pub fn read(&mut self, page: &Object) -> bool {
        let next = next_cursor(page);
        let (mut named, mut is_new) = (false, false);
        // Names decide nothing about a list of one page.
        if next.is_some() || !self.cursors.is_empty() {
            let items = page.get(self.list.items());
            for item in items.iter().flat_map(Payload::items) {
                let name = Object::of(&item).and_then(|item| item.get_string(self.list.key()));
                named |= name.is_some();
                if let Some(name) = name {
                    let bytes = ENTRY_BYTES + name.len();
                    if self.names.insert(name) {
                        is_new = true;
                        self.kept_bytes += bytes;
                    }
                }
            }
        }
        // A server that filters its pages may send one without items.
        let is_repeated = named && !is_new;
        self.pages_left = self.pages_left.saturating_sub(1);
        self.end = match &next {
            None => Some(ListEnd::Complete),
            Some(next) if is_repeated || self.cursors.iter().any(|sent| sent.as_str() == next.as_str()) => {
                Some(ListEnd::Circular)
            }
            Some(_) if self.pages_left == 0 => Some(ListEnd::TooManyPages),
            Some(_) => None,
        };
        if let Some(next) = next.filter(|_| self.end.is_none()) {
            self.kept_bytes += ENTRY_BYTES + next.len();
            self.cursors.push(next.detached());
        }
        !is_repeated
    }

    pub const fn end(&self) -> Option<ListEnd> {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Reads a list from a server that responds by cursor; returns the counted names, the end, the number of requests.
    fn read(server: impl Fn(Option<&str>) -> (Vec<String>, Value)) -> (Vec<String>, ListEnd, usize) {
        let mut pages = ListPages::new(PagedList::Tools, 20);
        let (mut names, mut requests) = (Vec::new(), 0);
        loop {
            let cursor: Option<String> = pages.cursor().and_then(|cursor| cursor.read().ok());
            let (listed, next) = server(cursor.as_deref());
            let tools: Vec<_> = listed.iter().map(|name| json!({ "name": name })).collect();
            let page = Object::of(&Payload::of(&json!({ "tools": tools, "nextCursor": next }))).unwrap();
            requests += 1;
            if pages.read(&page) {
                names.extend(listed);
            }
            if let Some(end) = pages.end() {
                return (names, end, requests);
            }
        }
    }

    fn tools(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_list_ends_where_its_pages_bring_nothing_new() {
        let all = || tools(&["a", "b"]);
        assert_eq!(read(|_| (all(), Value::Null)), (all(), ListEnd::Complete, 1));
        for unmoving in ["", "1"] {
            assert_eq!(read(|_| (all(), json!(unmoving))), (all(), ListEnd::Circular, 2), "{unmoving:?}");
        }
        // Other cursors each time, the same names.
        let counting =
            |cursor: Option<&str>| json!(cursor.map_or(0, |cursor| cursor.parse::<u32>().unwrap() + 1).to_string());
        assert_eq!(read(|cursor| (all(), counting(cursor))), (all(), ListEnd::Circular, 2));
        // New names after a cursor that was sent.
        let growing = |cursor: Option<&str>| if cursor.is_none() { tools(&["a"]) } else { tools(&["b"]) };
        assert_eq!(read(|cursor| (growing(cursor), json!("x"))), (all(), ListEnd::Circular, 2));
        // Alternating cursors, without a single item.
        let turns = |cursor: Option<&str>| if cursor == Some("x") { json!("y") } else { json!("x") };
        assert_eq!(read(|cursor| (Vec::new(), turns(cursor))), (Vec::new(), ListEnd::Circular, 3));
        assert_eq!(read(|cursor| (Vec::new(), counting(cursor))), (Vec::new(), ListEnd::TooManyPages, 20));
    }

    #[test]
    fn empty_cursors_empty_pages_and_names_that_come_twice_end_no_list() {
        let server = |cursor: Option<&str>| match cursor {
            None => (tools(&["a"]), json!("")),
            Some("") => (Vec::new(), json!("x")),
            Some("x") => (tools(&["a", "b"]), json!("y")),
            Some(_) => (tools(&["c"]), Value::Null),
        };
        assert_eq!(read(server), (tools(&["a", "a", "b", "c"]), ListEnd::Complete, 4));
    }
}
