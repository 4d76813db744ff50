//! Locates the top-level members of a JSON object, edits some, and writes small objects. Validates nothing: the text
//! has passed a scan already. Read [`super::scan`] first.

mod edit;
#[cfg(test)]
mod tests;
mod writer;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::scan::{LocatedMembers, Member, ObjectPlace};
use super::{Payload, scan};

pub use edit::ObjectEdit;
pub use writer::ObjectWriter;

/// A JSON object with its members located; the text stays as it came. Clones share it.
#[derive(Clone, Debug)]
pub struct Object {
    text: Payload,
    located: LocatedMembers,
}

impl Object {
    pub fn empty() -> Self {
        let located = LocatedMembers { base: 0, place: ObjectPlace::Root, members: Arc::default() };
        Self { text: Payload::empty_object(), located }
    }

    /// Locates the members of a payload; `None` if it is no object. One walk, unless the message's scan located them.
    pub fn of(payload: &Payload) -> Option<Self> {
        let located = match payload.members() {
            Some(located) => located.clone(),
            None => {
                let members = scan::members(payload.bytes())?;
                LocatedMembers { base: 0, place: ObjectPlace::Root, members: members.as_slice().into() }
            }
        };
        Some(Self { text: payload.clone(), located })
    }

    pub(in crate::wire) const fn located(text: Payload, located: LocatedMembers) -> Self {
        Self { text, located }
    }

    /// The whole object; [`Object::of`] reads it without a walk.
    pub(in crate::wire) fn located_payload(&self) -> Payload {
        Payload::with_members(self.text.bytes().clone(), self.located.clone())
    }

    pub const fn payload(&self) -> &Payload {
        &self.text
    }

    /// Copies the object out of its message (see [`Payload::detached`]), with the positions of all members in it.
    pub fn detached(&self) -> Self {
        let LocatedMembers { base, place, members } = &self.located;
        let within = |member: &&Member| member.key.start >= *base && member.value.end <= base + self.text.len();
        let moved = |span: &Range<usize>| span.start - base..span.end - base;
        let moved = |member: &Member| Member { key: moved(&member.key), value: moved(&member.value), ..*member };
        let members = members.iter().filter(within).map(moved).collect();
        Self { text: self.text.detached(), located: LocatedMembers { base: 0, place: *place, members } }
    }

    /// A member's value, verbatim. `null` is a value, not an absence.
    pub fn get(&self, key: &str) -> Option<Payload> {
        self.find(key).map(|member| self.value(member))
    }

    pub fn contains(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    pub fn get_string(&self, key: &str) -> Option<String> {
        self.get_str(key).map(Cow::into_owned)
    }

    /// A member that is a string, decoded; borrowed unless it has escapes.
    pub fn get_str(&self, key: &str) -> Option<Cow<'_, str>> {
        scan::decode_string(self.raw(self.find(key)?))
    }

    /// As [`Self::get_string`], with U+FFFD for each lone surrogate: for text that is only displayed.
    pub fn get_lossy(&self, key: &str) -> Option<String> {
        scan::decode_lossy(self.raw(self.find(key)?)).map(Cow::into_owned)
    }

    pub fn has_object(&self, key: &str) -> bool {
        self.find(key).is_some_and(|member| self.raw(member).starts_with(b"{"))
    }

    pub fn get_object(&self, key: &str) -> Option<Self> {
        let member = self.find(key)?;
        if !self.raw(member).starts_with(b"{") {
            return None;
        }
        let text = self.value(member);
        match self.located_child(key) {
            Some(place) => {
                let members = Arc::clone(&self.located.members);
                Some(Self::located(text, LocatedMembers { base: member.value.start, place, members }))
            }
            None => Self::of(&text),
        }
    }

    /// As `get_object(outer)?.get_str(key)`, at the cost of one lookup if the message's scan has located the inner object.
    pub fn get_str_in(&self, outer: &str, key: &str) -> Option<Cow<'_, str>> {
        let Some(place) = self.located_child(outer) else {
            return self.get_object(outer)?.get_string(key).map(Cow::Owned);
        };
        let mut inner = self.located.members.iter().filter(|member| member.place == place);
        scan::decode_string(self.raw(inner.find(|member| self.is_named(member, key))?))
    }

    /// The position of a member's object, if the message's scan has located the members of that object.
    fn located_child(&self, key: &str) -> Option<ObjectPlace> {
        use ObjectPlace::{Error, Params, Result, Root};

        self.located.place.child(key).filter(|place| !matches!(place, Root | Params | Result | Error))
    }

    /// Member names in order, decoded. Use [`Object::entries`] to read values too.
    pub fn keys(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.members().map(|member| self.key(member))
    }

    /// Members in order, keys decoded. Visits each once; looking up each of [`Object::keys`] takes quadratic time.
    pub fn entries(&self) -> impl Iterator<Item = (Cow<'_, str>, Payload)> {
        self.members().map(|member| (self.key(member), self.value(member)))
    }

    /// The first of `names` that a member has in another case (Unicode's folding): some parsers take both as one (B85).
    pub fn case_variant<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let is_ascii = |member: &Member| !member.escaped && self.raw_key(member).is_ascii();
        if names.iter().all(|name| name.is_ascii()) && self.members().all(is_ascii) {
            let is_variant =
                |raw: &[u8], name: &[u8]| raw.len() == name.len() && raw != name && raw.eq_ignore_ascii_case(name);
            let varied = |raw: &[u8]| names.iter().position(|name| is_variant(raw, name.as_bytes()));
            return self.members().filter_map(|member| varied(self.raw_key(member))).min().map(|first| names[first]);
        }
        let is_variant = |key: &str, name: &str| key != name && folded(key).eq(folded(name));
        names.iter().copied().find(|name| self.keys().any(|key| is_variant(&key, name)))
    }

    /// Starts an edit of top-level members; other members are copied byte for byte.
    pub fn edit(&self) -> ObjectEdit<'_> {
        ObjectEdit::new(self)
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.located.members.iter().filter(|member| member.place == self.located.place)
    }

    fn find(&self, key: &str) -> Option<&Member> {
        self.members().find(|member| self.is_named(member, key))
    }

    fn is_named(&self, member: &Member, key: &str) -> bool {
        if member.escaped { self.key(member) == key } else { self.raw_key(member) == key.as_bytes() }
    }

    fn key(&self, member: &Member) -> Cow<'_, str> {
        member.decode(std::str::from_utf8(self.raw_key(member)).expect("keys of scanned text are UTF-8"))
    }

    fn raw_key(&self, member: &Member) -> &[u8] {
        &self.text.bytes()[member.key.start - self.located.base..member.key.end - self.located.base]
    }

    fn raw(&self, member: &Member) -> &[u8] {
        &self.text.bytes()[self.start(member)..self.end(member)]
    }

    fn value(&self, member: &Member) -> Payload {
        Payload::from_scanned(self.text.bytes().slice(self.start(member)..self.end(member)))
    }

    const fn start(&self, member: &Member) -> usize {
        member.value.start - self.located.base
    }

    const fn end(&self, member: &Member) -> usize {
        member.value.end - self.located.base
    }
}

fn folded(text: &str) -> impl Iterator<Item = char> {
    text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}
