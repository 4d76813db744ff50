//! Merges the lists of several upstreams, and caches the upstream of each item.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use moka::policy::EvictionPolicy;
use tokio::time::Instant;

use super::member_answer::MemberRefusal;
use super::member_request::EndpointClient;
use super::names::NamePublisher;
use super::{ANSWER_MAX, CombinedUpstreams};
use crate::answer_budget::as_one_request;
use crate::dialect::RequestError;
use crate::dialect::fallback_tools::FallbackTool;
use crate::face::catalog::{BYTES_MAX, MISS_AFTER, PAGES_MAX, TOOLS_MAX, no_such_cursor};
use crate::task::Caller;
use crate::wire::object::ObjectWriter;
use crate::wire::{ListPages, Object, PagedList, Payload};

/// Items on one page. Many clients read only the first.
const PAGE_ITEMS_MAX: usize = 5_000;
/// The limit on remembered names, of all clients together, in bytes (U77).
const NAMES_BYTES_MAX: u64 = 64 << 20;
/// The limit of one list, so that any list can be kept. Without its longest names, a longer list is kept too.
const LIST_BYTES_MAX: usize = 16 << 20;
const _: () = assert!(2 * LIST_BYTES_MAX as u64 <= NAMES_BYTES_MAX, "a list can be kept beside another");
/// Memory of a name beside its text: a map's entry, and the counters of two shared texts.
const ENTRY_BYTES: usize = 96;
const KEPT_FOR: Duration = Duration::from_secs(300);

pub(super) type MergedList = PagedList;

const fn capability(list: MergedList) -> &'static str {
    match list {
        MergedList::Tools => "tools",
        MergedList::Prompts => "prompts",
        MergedList::Resources | MergedList::Templates => "resources",
        MergedList::Tasks => "tasks",
    }
}

/// Only names are changed, never URIs.
const fn has_names(list: MergedList) -> bool {
    matches!(list, MergedList::Tools | MergedList::Prompts)
}

pub(super) type ItemOwner = (usize, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct GatheredList {
    /// Items, each with its upstream and its index in that upstream's list.
    items: Vec<(usize, usize, Payload)>,
    owners: HashMap<Arc<str>, ItemOwner>,
    answered: usize,
    /// The upstreams that refused or were late.
    absent: Vec<usize>,
    refusal: Option<MemberRefusal>,
}

pub(super) struct ListOwners(moka::future::Cache<(Caller, MergedList), Arc<KnownOwners>>);

struct KnownOwners {
    owners: HashMap<Arc<str>, ItemOwner>,
    fetched_at: Instant,
}

impl KnownOwners {
    fn of(mut owners: HashMap<Arc<str>, ItemOwner>) -> Arc<Self> {
        if bytes_of(&owners) > LIST_BYTES_MAX {
            let mut by_length: Vec<_> = owners.drain().collect();
            by_length.sort_by_cached_key(|(shown, (_, own))| (shown.len() + own.len(), Arc::clone(shown)));
            let mut bytes = 0;
            let fitting = by_length.into_iter().take_while(|(shown, owner)| {
                bytes += entry_bytes(shown, owner);
                bytes <= LIST_BYTES_MAX
            });
            owners = fitting.collect();
        }
        Arc::new(Self { owners, fetched_at: Instant::now() })
    }

    /// Adds names of absent upstreams from the `last` list, unless another has them now: calls reach the right one.
    fn after(last: Option<&Self>, list: MergedList, gathered: &GatheredList) -> Arc<Self> {
        let mut owners = gathered.owners.clone();
        let absent = last.filter(|_| has_names(list)).into_iter().flat_map(|last| &last.owners);
        for (name, owner) in absent.filter(|(_, (at, _))| gathered.absent.contains(at)) {
            owners.entry(Arc::clone(name)).or_insert_with(|| owner.clone());
        }
        Self::of(owners)
    }

    fn weight(&self) -> u32 {
        u32::try_from(ENTRY_BYTES + bytes_of(&self.owners)).unwrap_or(u32::MAX)
    }
}

fn bytes_of(owners: &HashMap<Arc<str>, ItemOwner>) -> usize {
    owners.iter().map(|(shown, owner)| entry_bytes(shown, owner)).sum()
}

/// An unchanged name is in memory once.
fn entry_bytes(shown: &Arc<str>, (_, own): &ItemOwner) -> usize {
    ENTRY_BYTES + shown.len() + if Arc::ptr_eq(shown, own) { 0 } else { own.len() }
}

impl ListOwners {
    pub(super) fn new() -> Self {
        let weigh = |_: &(Caller, MergedList), known: &Arc<KnownOwners>| known.weight();
        // LRU: the list of a new client must be admitted, however often the others are looked up.
        let lists = moka::future::Cache::builder().max_capacity(NAMES_BYTES_MAX).eviction_policy(EvictionPolicy::lru());
        Self(lists.weigher(weigh).time_to_idle(KEPT_FOR).build())
    }
}

debug_members!(ListOwners, |owners| lists: owners.0.entry_count());

impl CombinedUpstreams {
    /// Fails if all upstreams refuse: the first refusal. The inner error is for a cursor that is not of this list.
    pub(super) async fn page(
        &self,
        client: &EndpointClient,
        list: MergedList,
        cursor: Option<&Payload>,
    ) -> Result<Result<Payload, RequestError>, MemberRefusal> {
        let start = match cursor.map(|cursor| self.read_cursor(client, cursor)) {
            Some(None) => return Ok(Err(no_such_cursor())),
            Some(start) => start,
            None => None,
        };
        let gathered = self.gather(client, list).await;
        let key = (client.caller().clone(), list);
        let last = self.owners.0.get(&key).await;
        self.owners.0.insert(key, KnownOwners::after(last.as_deref(), list, &gathered)).await;
        if let (0, Some(refusal)) = (gathered.answered, gathered.refusal) {
            return Err(refusal);
        }
        let from = start.map_or(0, |start| gathered.items.partition_point(|(at, index, _)| (*at, *index) < start));
        let until = gathered.items.len().min(from + PAGE_ITEMS_MAX);
        let items: Vec<&Payload> = gathered.items[from..until].iter().map(|(.., item)| item).collect();
        // Upstreams are named, so that the cursor stays valid if another one is removed.
        let next = gathered.items.get(until).map(|(at, index, _)| format!("{}:{index}", self.settings.upstreams[*at]));
        let page = ObjectWriter::new().member(list.items(), &Payload::of(&items));
        let page = page.optional_text("nextCursor", next.as_deref()).finish();
        let share = self.common().engine.limits().answers_to(client.principal());
        Ok(Ok(page.held_by(|text| share.rehold(text))))
    }

    fn read_cursor(&self, client: &EndpointClient, cursor: &Payload) -> Option<(usize, usize)> {
        let text: String = cursor.read().ok()?;
        let (upstream, index) = text.split_once(':')?;
        Some((self.position(upstream, client.caller())?, index.parse().ok()?))
    }

    /// Reads the cached list, and fetches it again for a missing name. Concurrent requests share the fetch.
    pub(super) async fn owner(&self, client: &EndpointClient, list: MergedList, name: &str) -> Option<ItemOwner> {
        let known = self.known_owners(client, list).await;
        if let Some(owner) = known.owners.get(name) {
            return Some(owner.clone());
        }
        if known.fetched_at.elapsed() < MISS_AFTER {
            return None;
        }
        let entry = self.owners.0.entry((client.caller().clone(), list));
        let looking = self.look(client, list, Some(&known));
        let looked = entry.or_insert_with_if(looking, |last| Arc::ptr_eq(last, &known)).await;
        looked.into_value().owners.get(name).cloned()
    }

    /// The upstream with a matching template: the one with most literal text, and of equals the first.
    pub(super) async fn template_owner(&self, client: &EndpointClient, uri: &str) -> Option<usize> {
        let known = self.known_owners(client, MergedList::Templates).await;
        let owners = known.owners.iter().filter(|(template, _)| may_be_of(template, uri));
        let owner = owners.max_by_key(|(template, (at, _))| (literal_bytes(template), Reverse(*at)));
        owner.map(|(_, (at, _))| *at)
    }

    async fn known_owners(&self, client: &EndpointClient, list: MergedList) -> Arc<KnownOwners> {
        self.owners.0.get_with((client.caller().clone(), list), self.look(client, list, None)).await
    }

    fn look<'a>(
        &'a self,
        client: &'a EndpointClient,
        list: MergedList,
        last: Option<&'a Arc<KnownOwners>>,
    ) -> impl Future<Output = Arc<KnownOwners>> + Send + 'a {
        // Boxed: most requests find a list, and need no memory for a look.
        async move { KnownOwners::after(last.map(|last| &**last), list, &self.gather(client, list).await) }.boxed()
    }

    /// An unavailable upstream contributes nothing.
    async fn gather(&self, client: &EndpointClient, list: MergedList) -> GatheredList {
        let asked = self.members_for(client.caller());
        let asked = asked.map(|at| async move { (at, self.items_of(client, list, at).await) });
        let mut lists = Vec::with_capacity(self.members.len());
        let mut gathered = GatheredList::default();
        for (at, answer) in as_one_request(join_all(asked)).await {
            match answer {
                Ok(items) => {
                    gathered.answered += 1;
                    lists.push((at, items));
                }
                Err(refusal) => {
                    self.note_absence(client, at, &refusal.message());
                    gathered.absent.push(at);
                    gathered.refusal = gathered.refusal.or(Some(refusal));
                }
            }
        }
        self.put_together(list, &lists, &mut gathered);
        gathered
    }

    async fn items_of(
        &self,
        client: &EndpointClient,
        list: MergedList,
        at: usize,
    ) -> Result<Vec<Object>, MemberRefusal> {
        // Some servers have tools without declaring a capability.
        if list != MergedList::Tools && self.members[at].lacks(capability(list), client) {
            return Ok(Vec::new());
        }
        match self.in_time(at, ANSWER_MAX, self.pages_of(client, list, at)).await {
            Some(Err(refusal)) if refusal.is_unknown_method() => Ok(Vec::new()),
            Some(items) => items,
            None => Err(MemberRefusal::late()),
        }
    }

    async fn pages_of(
        &self,
        client: &EndpointClient,
        list: MergedList,
        at: usize,
    ) -> Result<Vec<Object>, MemberRefusal> {
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut pages = ListPages::new(list, PAGES_MAX);
        while pages.end().is_none() && items.len() < TOOLS_MAX && bytes < BYTES_MAX {
            let params = client.params(pages.cursor().map(|cursor| ("cursor", cursor.clone())));
            let page = client.request(at, list.method(), params).await?;
            bytes += page.payload().len();
            if pages.read(&page)
                && let Some(array) = page.get(list.items())
            {
                items.extend(array.items().filter_map(|item| Object::of(&item)));
            }
        }
        self.members[at].circular.note(&self.settings.upstreams[at], list, pages.end());
        items.truncate(TOOLS_MAX);
        Ok(items)
    }

    /// Of two items with one URI, the first upstream's is shown. The gateway's tools, which all have, are shown once.
    fn put_together(&self, list: MergedList, lists: &[(usize, Vec<Object>)], gathered: &mut GatheredList) {
        let read = lists.iter().map(|(at, items)| {
            let mut seen = HashSet::new();
            let named = items.iter().enumerate().filter_map(|(index, item)| {
                let key = item.get_string(list.key())?;
                seen.insert(key.clone()).then_some((index, key, item))
            });
            (*at, named.collect::<Vec<_>>())
        });
        let read: Vec<_> = read.collect();
        let is_shared = |name: &str, item: &Object| {
            self.reserved(list, name).is_some() && FallbackTool::is_definition(item.payload())
        };
        let own_names = read.iter().flat_map(|(_, items)| items.iter().map(|(_, name, item)| (name.as_str(), *item)));
        let own_names = own_names.filter(|(name, item)| has_names(list) && !is_shared(name, item));
        let is_reserved = |name: &str| self.reserved(list, name).is_some();
        let publisher = NamePublisher::new(
            self.settings.prefix,
            &is_reserved,
            &self.settings.upstreams,
            own_names.map(|(name, _)| name),
        );
        for (at, items) in &read {
            for (index, name, item) in items {
                let own: Arc<str> = Arc::from(name.as_str());
                let (shown, text) = match has_names(list) && !is_shared(name, item) {
                    true => {
                        let shown = publisher.published(*at, name);
                        let text = item.edit().set(list.key(), Payload::text(&shown)).finish();
                        (if *shown == **name { Arc::clone(&own) } else { Arc::from(&*shown) }, text)
                    }
                    false => (Arc::clone(&own), item.payload().clone()),
                };
                if let Entry::Vacant(free) = gathered.owners.entry(shown) {
                    free.insert((*at, own));
                    gathered.items.push((*at, *index, text));
                }
            }
        }
    }
}

/// Whether a URI contains a template's literal parts in order (RFC 6570). The text between them is not checked.
fn may_be_of(template: &str, uri: &str) -> bool {
    let mut literals = Vec::new();
    let mut rest = template;
    while let Some((literal, behind)) = rest.split_once('{') {
        literals.push(literal);
        rest = behind.split_once('}').map_or("", |(_, behind)| behind);
    }
    let (Some((first, middle)), last) = (literals.split_first(), rest) else { return template == uri };
    let Some(mut left) = uri.strip_prefix(first).and_then(|left| left.strip_suffix(last)) else { return false };
    middle.iter().all(|literal| match left.find(literal) {
        Some(at) => {
            left = &left[at + literal.len()..];
            true
        }
        None => false,
    })
}

fn literal_bytes(template: &str) -> usize {
    let (mut bytes, mut rest) = (0, template);
    while let Some((literal, behind)) = rest.split_once('{') {
        bytes += literal.len();
        rest = behind.split_once('}').map_or("", |(_, behind)| behind);
    }
    bytes + rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Principal;

    #[test]
    fn the_literal_text_of_each_template_is_measured() {
        for (template, bytes) in [("{+any}", 0), ("ab{x}c{y}", 3), ("plain", 5), ("a{broken", 1), ("", 0)] {
            assert_eq!(literal_bytes(template), bytes, "{template}");
        }
    }

    fn known(names: impl Iterator<Item = String>) -> Arc<KnownOwners> {
        let owned = names.map(Arc::from).map(|name: Arc<str>| (Arc::clone(&name), (0, name)));
        KnownOwners::of(owned.collect())
    }

    #[tokio::test]
    async fn u77_the_name_lists_of_an_endpoint_are_bounded_in_bytes_and_a_new_one_is_kept() {
        let owners = ListOwners::new();
        let key = |n: usize| (Caller::of(Principal::new(&format!("key:{n}"))), MergedList::Resources);
        // 40 lists of 2 MB, and the first is looked up more often than any.
        for n in 0..40 {
            owners.0.insert(key(n), known((0..2_000).map(|item| format!("{n}:{item}:{}", "x".repeat(1_000))))).await;
            assert!(owners.0.get(&key(n)).await.is_some(), "the list of a new client");
            owners.0.get(&key(0)).await;
            owners.0.run_pending_tasks().await;
            assert!(owners.0.weighted_size() <= NAMES_BYTES_MAX);
        }
        assert!(owners.0.get(&key(39)).await.is_some() && owners.0.get(&key(0)).await.is_some());
        assert!(owners.0.get(&key(1)).await.is_none(), "the least recently used one");
    }

    #[tokio::test]
    async fn a_list_with_names_without_bound_is_kept_without_the_longest() {
        let long = (0..40).map(|n| format!("{n}{}", "x".repeat(1 << 20)));
        let known = known((0..10_000).map(|n| format!("name-{n}")).chain(long));
        let short = known.owners.keys().filter(|name| name.len() < 100).count();
        let weight = usize::try_from(known.weight()).unwrap();
        assert!(short == 10_000 && weight <= LIST_BYTES_MAX + ENTRY_BYTES, "{short} names, {weight} bytes");
        assert!(known.owners.len() > short, "as many of the long ones as fit");
    }

    #[test]
    fn an_address_matches_by_the_literal_text_of_a_template() {
        for (template, uri, fits) in [
            ("demo://report/{id}", "demo://report/7", true),
            ("demo://report/{id}", "demo://reports/7", false),
            ("demo://{kind}/{id}/text", "demo://a/b/text", true),
            ("demo://{kind}/{id}/text", "demo://a/b/image", false),
            ("{+any}", "x:y", true),
            ("demo://plain", "demo://plain", true),
            ("demo://plain", "demo://plain/", false),
            ("demo://{broken", "demo://x", true),
            ("a{x}b{y}b", "ab", false),
            ("a{x}b{y}c", "abbc", true),
        ] {
            assert_eq!(may_be_of(template, uri), fits, "{template} {uri}");
        }
    }
}
