//! Encodes `subscriptions/listen` of 2026-07-28 (MOD-24): filters and notifications.

use std::borrow::Cow;
use std::collections::BTreeSet;

use bytes::Bytes;

use super::faults::RequestError;
use crate::task::TaskId;
use crate::wire::meta::{META, SERVER_INFO, SUBSCRIPTION_ID};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RequestId, envelope, method};

/// Most task ids that one request may name (B132).
pub const TASKS_MAX: usize = 1_000;
pub const RESOURCES_MAX: usize = 256;
/// Most bytes of the list of task ids or of URIs, which are kept as long as their stream (B237).
const NAMES_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListKind {
    Tools,
    Prompts,
    Resources,
}

impl ListKind {
    pub const ALL: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    /// The member of a filter, the capability, and the notification.
    const fn words(self) -> [&'static str; 3] {
        match self {
            Self::Tools => ["toolsListChanged", "tools", method::TOOLS_CHANGED],
            Self::Prompts => ["promptsListChanged", "prompts", method::PROMPTS_CHANGED],
            Self::Resources => ["resourcesListChanged", "resources", method::RESOURCES_CHANGED],
        }
    }

    const fn member(self) -> &'static str {
        self.words()[0]
    }

    const fn capability(self) -> &'static str {
        self.words()[1]
    }

    pub const fn notification(self) -> &'static str {
        self.words()[2]
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionFilter {
    pub lists: BTreeSet<ListKind>,
    /// `None` if the client did not name resources.
    pub resources: Option<BTreeSet<String>>,
    /// Without ids that cannot be ours; `None` if the client did not name tasks.
    pub tasks: Option<BTreeSet<TaskId>>,
}

impl SubscriptionFilter {
    /// Whether `params` name tasks, so that the request must declare the extension (EXT-47).
    pub fn speak_of_tasks(params: &Object) -> bool {
        params.get_object("notifications").is_some_and(|wanted| wanted.contains("taskIds"))
    }

    /// Reads `params`; ignores members of extensions. The error names a missing, mistyped or oversized member.
    pub fn read(params: &Object) -> Result<Self, RequestError> {
        let wanted = params
            .get_object("notifications")
            .ok_or_else(|| RequestError::params("notifications must be an object"))?;
        let mut wishes = Self::default();
        for list in ListKind::ALL {
            match wanted.get(list.member()).as_ref().map(Payload::as_str) {
                Some("true") => _ = wishes.lists.insert(list),
                Some("false") | None => (),
                Some(_) => return Err(complaint(list.member(), "must be true or false")),
            }
        }
        wishes.resources = strings(&wanted, "resourceSubscriptions", RESOURCES_MAX)?.map(BTreeSet::from_iter);
        let ids = strings(&wanted, "taskIds", TASKS_MAX)?;
        wishes.tasks = ids.map(|ids| ids.iter().filter_map(|id| TaskId::parse(id)).collect());
        Ok(wishes)
    }

    /// The part of it that a session server with these capabilities sends.
    #[must_use]
    pub fn within(self, capabilities: &Payload) -> Self {
        let declared = Object::of(capabilities);
        let offers = |area: &str, what: &str| {
            let area = declared.as_ref().and_then(|all| all.get_object(area));
            area.and_then(|area| area.get(what)).is_some_and(|value| value.as_str() == "true")
        };
        Self {
            lists: self.lists.into_iter().filter(|list| offers(list.capability(), "listChanged")).collect(),
            resources: self.resources.filter(|_| offers("resources", "subscribe")),
            tasks: self.tasks,
        }
    }

    /// The part of it that is requested from an upstream: all but tasks, which are the gateway's own.
    pub fn of_the_upstream(&self) -> Self {
        Self { tasks: None, ..self.clone() }
    }

    /// The upstream's part that both name. If one does not name resources, neither does the result.
    pub fn in_common(&self, other: &Self) -> Self {
        let resources = self.resources.as_ref().zip(other.resources.as_ref());
        Self {
            lists: self.lists.intersection(&other.lists).copied().collect(),
            resources: resources.map(|(own, theirs)| own.intersection(theirs).cloned().collect()),
            tasks: None,
        }
    }

    /// Whether it contains the upstream's part of `other`.
    pub fn cover(&self, other: &Self) -> bool {
        other.lists.is_subset(&self.lists) && other.resources.iter().flatten().all(|uri| self.names(uri))
    }

    fn names(&self, uri: &str) -> bool {
        self.resources.as_ref().is_some_and(|uris| uris.contains(uri))
    }

    /// Without the resources that a server has refused: it granted `granted` of `asked` (U95).
    pub fn without_refused(mut self, asked: &Self, granted: &Self) -> Self {
        let is_left = |uri: &String| !asked.names(uri) || granted.names(uri);
        self.resources.iter_mut().for_each(|uris| uris.retain(is_left));
        self
    }

    pub fn extend(&mut self, other: &Self) {
        self.lists.extend(&other.lists);
        if let Some(uris) = &other.resources {
            self.resources.get_or_insert_default().extend(uris.iter().cloned());
        }
    }

    /// The member `notifications` of a request to an upstream, or of an acknowledgement.
    pub fn written(&self) -> Payload {
        let yes = Payload::of(&true);
        let mut writer = self.lists.iter().fold(ObjectWriter::new(), |writer, list| writer.member(list.member(), &yes));
        if let Some(uris) = &self.resources {
            writer = writer.member("resourceSubscriptions", &Payload::of(uris));
        }
        if let Some(ids) = &self.tasks {
            let ids: Vec<String> = ids.iter().map(TaskId::to_string).collect();
            writer = writer.member("taskIds", &Payload::of(&ids));
        }
        writer.finish()
    }

    /// The part of it that an upstream's acknowledgement grants. Additional or unreadable grants are ignored.
    pub fn granted_by(&self, acknowledgement: &Object) -> Self {
        let granted = acknowledgement.get_object("notifications");
        let is_granted = |list: &ListKind| {
            granted.as_ref().and_then(|granted| granted.get(list.member())).is_some_and(|it| it.as_str() == "true")
        };
        let uris = granted.as_ref().and_then(|granted| granted.get("resourceSubscriptions"));
        let uris = uris.and_then(|uris| uris.read::<BTreeSet<String>>().ok()).unwrap_or_default();
        Self {
            lists: self.lists.iter().copied().filter(is_granted).collect(),
            resources: self.resources.as_ref().map(|own| own.intersection(&uris).cloned().collect()),
            tasks: None,
        }
    }

    pub fn want(&self, name: &str, params: Option<&Object>) -> bool {
        if name == method::RESOURCE_UPDATED {
            return params.and_then(|params| params.get_string("uri")).is_some_and(|uri| self.want_updates_of(&uri));
        }
        ListKind::ALL.into_iter().any(|list| list.notification() == name && self.lists.contains(&list))
    }

    /// Whether a subscription's stream may carry this notification: one of a requested kind, or one that the gateway does not
    /// know (MOD-24). Servers may spell a resource in another way than their client, or name a part of it.
    pub fn admits(&self, name: &str, params: Option<&Object>) -> bool {
        match name {
            method::LISTEN_ACKNOWLEDGED => true,
            method::PROGRESS | method::LOG_MESSAGE => false,
            method::RESOURCE_UPDATED => self.resources.as_ref().is_some_and(|uris| !uris.is_empty()),
            _ => self.want(name, params) || !is_reserved(name),
        }
    }

    /// All notifications for when the changes are unknown: one name for each list and each resource, and the resource.
    pub fn everything(&self) -> impl Iterator<Item = (&'static str, Option<&String>)> {
        let lists = self.lists.iter().map(|list| (list.notification(), None));
        let uris = self.resources.iter().flatten().map(|uri| (method::RESOURCE_UPDATED, Some(uri)));
        lists.chain(uris)
    }

    /// Its resources in two parts; none for fewer than two resources.
    fn halves(self) -> Vec<Self> {
        let mut first = self.resources.unwrap_or_default();
        let middle = first.iter().nth(first.len() / 2).filter(|_| first.len() > 1).cloned();
        let Some(middle) = middle else { return Vec::new() };
        let second = first.split_off(&middle);
        [first, second].map(|uris| Self { resources: Some(uris), ..Self::default() }).into()
    }

    pub fn concern_the_upstream(&self) -> bool {
        !self.lists.is_empty() || self.resources.as_ref().is_some_and(|uris| !uris.is_empty())
    }

    /// Whether the client subscribed to this resource: it named the resource, or one that contains it.
    pub fn want_updates_of(&self, uri: &str) -> bool {
        let is_part = |whole: &String| {
            let rest = uri.strip_prefix(whole.as_str());
            rest.is_some_and(|rest| rest.is_empty() || whole.ends_with('/') || rest.starts_with(['/', '?', '#']))
        };
        self.resources.as_ref().is_some_and(|uris| uris.iter().any(is_part))
    }
}

/// After so many requests the other resources count as unknown.
const SEARCHES_MAX: usize = 32;

/// The part of a filter that a server accepts, once it has refused the whole: asks for ever smaller parts until it
/// `is_over` (U95). `None` if that is nothing or everything.
pub async fn known_part<E, F: Future<Output = Result<bool, E>>>(
    filter: &SubscriptionFilter,
    is_over: impl Fn() -> bool,
    mut is_accepted: impl FnMut(SubscriptionFilter) -> F,
) -> Result<Option<SubscriptionFilter>, E> {
    let resources = SubscriptionFilter { resources: filter.resources.clone(), ..SubscriptionFilter::default() };
    let mut known = SubscriptionFilter { lists: filter.lists.clone(), ..SubscriptionFilter::default() };
    let mut unclear = if filter.lists.is_empty() { resources.halves() } else { vec![resources] };
    for _ in 0..SEARCHES_MAX {
        let Some(part) = unclear.pop().filter(|part| part.concern_the_upstream() && !is_over()) else { break };
        if is_accepted(part.clone()).await? { known.extend(&part) } else { unclear.extend(part.halves()) }
    }
    Ok(Some(known).filter(|known| known.concern_the_upstream() && !known.cover(filter)))
}

/// Whether a notification is only for its subscribers, or concerns a request or a task of the gateway's own (T-67).
pub(super) fn is_reserved(name: &str) -> bool {
    [method::RESOURCE_UPDATED, method::LISTEN_ACKNOWLEDGED, method::CANCELLED].contains(&name)
        || name.starts_with(method::TASKS_CHANGED)
        || ListKind::ALL.into_iter().any(|list| list.notification() == name)
}

/// The strings of an array, at most `max`; `None` if the member is missing.
fn strings(wanted: &Object, member: &'static str, max: usize) -> Result<Option<Vec<String>>, RequestError> {
    let Some(array) = wanted.get(member) else { return Ok(None) };
    if !array.as_str().starts_with('[') {
        return Err(complaint(member, "must be an array of strings"));
    }
    if array.items().nth(max).is_some() {
        return Err(complaint(member, &format!("names more than {max}")));
    }
    if array.len() > NAMES_BYTES_MAX {
        return Err(complaint(member, &format!("has more than {NAMES_BYTES_MAX} bytes")));
    }
    array.read().map(Some).map_err(|_| complaint(member, "must be an array of strings"))
}

/// The params of an upstream's notification without the gateway's own subscription id, and that id.
pub fn untagged(params: Option<&Object>) -> (Option<Payload>, Option<Payload>) {
    let Some(params) = params else { return (None, None) };
    let id = params.get_object(META).and_then(|meta| meta.get(SUBSCRIPTION_ID));
    if id.is_none() {
        return (Some(params.payload().clone()), None);
    }
    let params = params.edit().remove_within(META, &[SUBSCRIPTION_ID]).finish();
    let any_left = Object::of(&params).is_some_and(|params| params.keys().next().is_some());
    (any_left.then_some(params), id)
}

/// A notification for a session client, without a subscription id.
pub fn untagged_notification(name: &str, uri: Option<&String>) -> Bytes {
    let params = uri.map(|uri| ObjectWriter::new().text("uri", uri).finish());
    envelope::notification(name, params.as_ref())
}

fn complaint(member: &str, what: &str) -> RequestError {
    RequestError::Params(Cow::Owned(format!("notifications.{member} {what}")))
}

/// One open subscription. Tags its messages with the id of the request that opened it, byte for byte (MOD-24, EXT-51).
#[derive(Clone, Debug)]
pub struct Subscription {
    id: RequestId,
}

impl Subscription {
    pub const fn new(id: RequestId) -> Self {
        Self { id }
    }

    pub fn acknowledged(&self, granted: &SubscriptionFilter) -> Bytes {
        let params = ObjectWriter::new().member(META, &self.tag(None)).member("notifications", &granted.written());
        envelope::notification(method::LISTEN_ACKNOWLEDGED, Some(&params.finish()))
    }

    pub fn passed_on(&self, granted: &SubscriptionFilter, name: &str, params: Option<&Payload>) -> Option<Bytes> {
        let params = params.and_then(Object::of);
        let is_wanted = granted.want(name, params.as_ref());
        is_wanted.then(|| envelope::notification(name, Some(&self.tagged(params.as_ref()))))
    }

    /// Notifications for when the changes are unknown: one for each granted list and resource.
    pub fn anything(&self, granted: &SubscriptionFilter) -> impl Iterator<Item = Bytes> {
        granted.everything().map(|(name, uri)| {
            let params = ObjectWriter::new().member(META, &self.tag(None));
            envelope::notification(name, Some(&params.optional_text("uri", uri.map(String::as_str)).finish()))
        })
    }

    /// A task's state, from the result of `tasks/get` at that moment (EXT-50).
    pub fn task(&self, snapshot: &Payload) -> Option<Bytes> {
        let params = Object::of(snapshot)?.edit().remove("resultType").set(META, self.tag(None)).finish();
        Some(envelope::notification(method::TASKS_CHANGED, Some(&params)))
    }

    /// The last message (MOD-25, T-52).
    pub fn ended(&self, server_info: &Payload) -> Bytes {
        let meta = ObjectWriter::new().member(SUBSCRIPTION_ID, &self.id.payload()).member(SERVER_INFO, server_info);
        let result = ObjectWriter::new().text("resultType", "complete").member(META, &meta.finish()).finish();
        envelope::result(&self.id, &result)
    }

    fn tagged(&self, params: Option<&Object>) -> Payload {
        match params {
            Some(params) => params.edit().set(META, self.tag(params.get_object(META).as_ref())).finish(),
            None => ObjectWriter::new().member(META, &self.tag(None)).finish(),
        }
    }

    fn tag(&self, meta: Option<&Object>) -> Payload {
        match meta {
            Some(meta) => meta.edit().set(SUBSCRIPTION_ID, self.id.payload()).finish(),
            None => ObjectWriter::new().member(SUBSCRIPTION_ID, &self.id.payload()).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()
    }

    fn read(params: &str) -> Result<SubscriptionFilter, RequestError> {
        SubscriptionFilter::read(&Object::of(&payload(params)).unwrap())
    }

    fn text(message: &Bytes) -> &str {
        std::str::from_utf8(message).unwrap()
    }

    const ID: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn b237_long_lists_of_resources_and_tasks_are_refused() {
        for member in ["resourceSubscriptions", "taskIds"] {
            let of = |bytes: usize| format!(r#"{{"notifications":{{"{member}":["{}"]}}}}"#, "x".repeat(bytes - 4));
            assert!(read(&of(NAMES_BYTES_MAX)).is_ok(), "{member}");
            let RequestError::Params(said) = read(&of(NAMES_BYTES_MAX + 1)).unwrap_err() else { panic!("{member}") };
            assert!(said.contains(member) && said.contains("has more than 65536 bytes"), "{said}");
        }
    }

    #[test]
    fn b132_members_of_another_type_and_too_many_ids_are_refused() {
        let many = format!(r#"{{"notifications":{{"taskIds":[{}"x"]}}}}"#, r#""x","#.repeat(TASKS_MAX));
        for (params, named) in [
            ("{}", "notifications"),
            (r#"{"notifications":[]}"#, "notifications"),
            (r#"{"notifications":{"toolsListChanged":1}}"#, "toolsListChanged"),
            (r#"{"notifications":{"promptsListChanged":null}}"#, "promptsListChanged"),
            (r#"{"notifications":{"resourcesListChanged":"true"}}"#, "resourcesListChanged"),
            (r#"{"notifications":{"resourceSubscriptions":"file:///a"}}"#, "resourceSubscriptions"),
            (r#"{"notifications":{"resourceSubscriptions":[1]}}"#, "resourceSubscriptions"),
            (r#"{"notifications":{"taskIds":{}}}"#, "taskIds"),
            (r#"{"notifications":{"taskIds":[null]}}"#, "taskIds"),
            (&many, "taskIds"),
        ] {
            let Err(RequestError::Params(what)) = read(params) else { panic!("{params} was accepted") };
            assert!(what.contains(named), "{what}");
        }
        assert!(read(&many.replacen(r#""x","#, "", 1)).is_ok(), "1,000 are not too many");
    }

    #[test]
    fn filters_are_read_without_impossible_task_ids() {
        let wishes = read(&format!(
            r#"{{"notifications":{{"toolsListChanged":true,"promptsListChanged":false,"x":7,"taskIds":["{ID}","{ID}","nobody"]}}}}"#
        ))
        .unwrap();
        assert_eq!(wishes.lists, BTreeSet::from([ListKind::Tools]));
        assert_eq!(wishes.resources, None);
        assert_eq!(wishes.tasks, Some(BTreeSet::from([TaskId::parse(ID).unwrap()])));
    }

    #[test]
    fn u95_a_search_for_known_resources_is_bounded_and_leaves_out_no_list() {
        let resources = Some((0..RESOURCES_MAX).map(|n| n.to_string()).collect());
        let filter = SubscriptionFilter { lists: [ListKind::Tools].into(), resources, tasks: None };
        let lists = SubscriptionFilter { resources: None, ..filter.clone() };
        for (max, expected) in [(RESOURCES_MAX, 32), (3, 3)] {
            let requests = Cell::new(0);
            let refuse = |_| {
                requests.set(requests.get() + 1);
                ready(Ok::<_, ()>(false))
            };
            let known = known_part(&filter, || requests.get() == max, refuse).now_or_never();
            assert_eq!((known, requests.get()), (Some(Ok(Some(lists.clone()))), expected), "in number and in time");
        }
    }

    /// MOD-24: only notifications that the server declares and the client asked for.
    #[test]
    fn the_acknowledgement_is_the_part_that_the_server_offers() {
        let everything = r#"{"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["file:///a"],"taskIds":[]}}"#;
        for (capabilities, granted_text) in [
            ("{}", r#"{"taskIds":[]}"#),
            (r#"{"tools":{"listChanged":false},"resources":{}}"#, r#"{"taskIds":[]}"#),
            (
                r#"{"tools":{"listChanged":true},"resources":{"subscribe":true}}"#,
                r#"{"toolsListChanged":true,"resourceSubscriptions":["file:///a"],"taskIds":[]}"#,
            ),
        ] {
            let granted = read(everything).unwrap().within(&payload(capabilities));
            let acknowledged = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":"a\u0031"}},"notifications":{granted_text}}}}}"#
            );
            let id = RequestId::from_payload(&payload(r#""a\u0031""#)).unwrap();
            assert_eq!(text(&Subscription::new(id).acknowledged(&granted)), acknowledged);
        }
    }

    #[test]
    fn forwarded_notifications_match_the_filter_are_tagged_and_else_unchanged() {
        let wishes =
            read(r#"{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["file:///a","x:/"]}}"#).unwrap();
        let subscription = Subscription::new(RequestId::number(7));
        let passed = |name, params: &str| {
            let params = (!params.is_empty()).then(|| payload(params));
            let message = subscription.passed_on(&wishes, name, params.as_ref())?;
            Some(text(&message).split_once(r#""params":"#).unwrap().1.to_owned())
        };
        let tag = r#""io.modelcontextprotocol/subscriptionId":7"#;
        assert_eq!(passed(method::TOOLS_CHANGED, ""), Some(format!(r#"{{"_meta":{{{tag}}}}}}}"#)));
        assert_eq!(
            passed(method::TOOLS_CHANGED, r#"{"n":1.10,"_meta":{"k":1}}"#),
            Some(format!(r#"{{"n":1.10,"_meta":{{"k":1,{tag}}}}}}}"#))
        );
        assert_eq!(passed(method::PROMPTS_CHANGED, ""), None);
        assert_eq!(passed("notifications/other", ""), None);
        for (uri, wanted) in [
            ("file:///a", true),
            ("file:///a/b", true),
            ("file:///a#1", true),
            ("file:///ab", false),
            ("x:/y", true),
            ("file:///", false),
        ] {
            let passed = passed(method::RESOURCE_UPDATED, &format!(r#"{{"uri":"{uri}"}}"#));
            assert_eq!(passed.is_some(), wanted, "{uri}");
        }
        assert_eq!(passed(method::RESOURCE_UPDATED, ""), None);
        assert_eq!(subscription.anything(&wishes).count(), 3);
    }

    #[test]
    fn mod_24_an_upstream_grants_no_more_than_was_asked_and_nothing_that_cannot_be_read() {
        let asked = r#"{"notifications":{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["a:/","b:/"],"taskIds":["x"]}}"#;
        let asked = read(asked).unwrap().of_the_upstream();
        for (acknowledged, granted) in [
            (
                r#"{"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["b:/","c:/"]}}"#,
                r#"{"toolsListChanged":true,"resourceSubscriptions":["b:/"]}"#,
            ),
            (
                r#"{"notifications":{"toolsListChanged":1,"resourceSubscriptions":[1,"a:/"]}}"#,
                r#"{"resourceSubscriptions":[]}"#,
            ),
            (r#"{"notifications":[]}"#, r#"{"resourceSubscriptions":[]}"#),
            ("{}", r#"{"resourceSubscriptions":[]}"#),
        ] {
            let read = asked.granted_by(&Object::of(&payload(acknowledged)).unwrap());
            assert_eq!(read.written().as_str(), granted, "{acknowledged}");
            assert!(asked.cover(&read) && !read.cover(&asked));
            assert_eq!(asked.in_common(&read), read);
        }
        let mut both = asked.clone();
        both.extend(&read(r#"{"notifications":{"promptsListChanged":true,"resourceSubscriptions":["c:/"]}}"#).unwrap());
        assert_eq!(both.everything().count(), 6);
        assert!(both.cover(&asked) && !asked.cover(&both));
    }

    #[test]
    fn no_client_sees_the_gateways_own_subscription() {
        let tag = r#""io.modelcontextprotocol/subscriptionId":"t""#;
        for (params, left, id) in [
            (format!(r#"{{"n":1.10,"_meta":{{"k":1,{tag}}}}}"#), Some(r#"{"n":1.10,"_meta":{"k":1}}"#), Some(r#""t""#)),
            (format!(r#"{{"uri":"a:/","_meta":{{{tag}}}}}"#), Some(r#"{"uri":"a:/"}"#), Some(r#""t""#)),
            (format!(r#"{{"_meta":{{{tag}}}}}"#), None, Some(r#""t""#)),
            (r#"{"_meta":{"k":1}}"#.to_owned(), Some(r#"{"_meta":{"k":1}}"#), None),
        ] {
            let (params, tag) = untagged(Object::of(&payload(&params)).as_ref());
            assert_eq!((params.as_ref().map(Payload::as_str), tag.as_ref().map(Payload::as_str)), (left, id));
        }
        assert_eq!(untagged(None), (None, None));
    }

    /// MOD-25, T-52.
    #[test]
    fn the_end_is_a_result_with_the_subscriptions_id() {
        let ended = Subscription::new(RequestId::text("x")).ended(&payload(r#"{"name":"s"}"#));
        assert_eq!(
            text(&ended),
            r#"{"jsonrpc":"2.0","id":"x","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"x","io.modelcontextprotocol/serverInfo":{"name":"s"}}}}"#
        );
    }
}
