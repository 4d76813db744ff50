//! Makes shallow edits: named members change, every other byte stays.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{Object, Payload};
use crate::wire::JsonPieces;
use crate::wire::payload::write_string;

/// Changes to top-level members, applied at once by [`ObjectEdit::finish`]. A later change of a member replaces the earlier one.
#[derive(Debug)]
pub struct ObjectEdit<'a> {
    object: &'a Object,
    changes: SmallVec<[MemberChange<'a>; 4]>,
}

#[derive(Debug)]
struct MemberChange<'a> {
    key: &'a str,
    /// `None` removes.
    value: Option<Payload>,
    /// Whether the object has the member: set when the edit is finished.
    stands: bool,
}

impl<'a> ObjectEdit<'a> {
    pub(super) fn new(object: &'a Object) -> Self {
        Self { object, changes: SmallVec::new() }
    }

    /// Sets a member: in place if the object has it, else appended.
    #[must_use]
    pub fn set(self, key: &'a str, value: Payload) -> Self {
        self.change(key, Some(value))
    }

    #[must_use]
    pub fn remove(self, key: &'a str) -> Self {
        self.change(key, None)
    }

    /// Sets a member to an object, or removes it if that object is empty.
    #[must_use]
    pub fn set_unless_empty(self, key: &'a str, object: Payload) -> Self {
        let is_empty = Object::of(&object).is_none_or(|object| object.keys().next().is_none());
        if is_empty { self.remove(key) } else { self.set(key, object) }
    }

    /// Removes members of the object in a member, and that member if it has no others.
    #[must_use]
    pub fn remove_within(self, key: &'a str, names: &[&str]) -> Self {
        let object = self.object.get_object(key);
        match object.filter(|object| names.iter().any(|name| object.contains(name))) {
            Some(object) => {
                let kept = names.iter().fold(object.edit(), |edit, name| edit.remove(name)).finish();
                self.set_unless_empty(key, kept)
            }
            None => self,
        }
    }

    fn change(mut self, key: &'a str, value: Option<Payload>) -> Self {
        match self.changes.iter_mut().find(|change| change.key == key) {
            Some(change) => change.value = value,
            None => self.changes.push(MemberChange { key, value, stands: false }),
        }
        self
    }

    /// The edited text. An edit that changes nothing returns the original payload, not a copy.
    pub fn finish(self) -> Payload {
        let object = self.object;
        match self.write(usize::MAX) {
            Some(text) => Payload::from_scanned(text.open.into()),
            None => object.payload().clone(),
        }
    }

    /// The edited text in consecutive pieces: unchanged parts of at least `large` bytes are not copied.
    pub fn pieces(self, large: usize) -> Vec<Bytes> {
        let object = self.object;
        match self.write(large) {
            Some(mut text) => {
                text.close_piece();
                text.pieces
            }
            None => vec![object.payload().bytes().clone()],
        }
    }

    pub fn finish_pieces(self) -> JsonPieces {
        let object = self.object;
        if object.payload().len() >= JsonPieces::SHARED_MIN {
            return JsonPieces::Pieces(self.pieces(JsonPieces::SHARED_MIN));
        }
        match self.write(usize::MAX) {
            Some(text) => JsonPieces::of_text(text.open),
            None => object.payload().clone().into(),
        }
    }

    /// `None` if the edit changes nothing.
    fn write(mut self, large: usize) -> Option<EditedText<'a>> {
        let object = self.object;
        let mut is_same = true;
        for member in object.members() {
            if let Some(change) = self.changes.iter_mut().find(|change| object.is_named(member, change.key)) {
                change.stands = true;
                is_same &= change.value.as_ref().is_some_and(|value| *value.bytes() == *object.raw(member));
            }
        }
        if is_same && self.changes.iter().all(|change| change.stands || change.value.is_none()) {
            return None;
        }
        let growth = |change: &MemberChange<'_>| change.key.len() + 4 + change.value.as_ref().map_or(0, Payload::len);
        let room = object.payload().len() + self.changes.iter().map(growth).sum::<usize>();
        let source = object.payload().bytes();
        let mut out = EditedText { source, large, pieces: Vec::new(), open: Vec::new(), is_empty: true };
        // One byte more, for the closing brace of an envelope around it.
        out.open.reserve_exact(if room < large { room + 1 } else { 0 });
        out.open.push(b'{');
        self.write_standing(&mut out);
        for change in &self.changes {
            if let MemberChange { key, value: Some(value), stands: false } = change {
                out.separate();
                write_string(&mut out.open, key);
                out.open.push(b':');
                out.open.extend_from_slice(value.bytes());
            }
        }
        out.open.push(b'}');
        Some(out)
    }

    /// Writes existing members. Each extends from separator to separator: whitespace stays and goes with its member.
    fn write_standing(&self, out: &mut EditedText<'_>) {
        let text = self.object.payload().bytes();
        let mut start = 1;
        for member in self.object.members() {
            let (value_start, value_end) = (self.object.start(member), self.object.end(member));
            let separator = text[value_end..].iter().position(|&b| b == b',' || b == b'}');
            let end = separator.map_or(text.len(), |distance| value_end + distance);
            match self.changes.iter().find(|change| self.object.is_named(member, change.key)) {
                None => {
                    out.separate();
                    out.keep(start..end);
                }
                Some(MemberChange { value: Some(value), .. }) => {
                    out.separate();
                    out.keep(start..value_start);
                    out.open.extend_from_slice(value.bytes());
                    out.keep(value_end..end);
                }
                Some(MemberChange { value: None, .. }) => (),
            }
            start = end + 1;
        }
    }
}

struct EditedText<'a> {
    source: &'a Bytes,
    large: usize,
    pieces: Vec<Bytes>,
    open: Vec<u8>,
    is_empty: bool,
}

impl EditedText<'_> {
    fn separate(&mut self) {
        if !std::mem::take(&mut self.is_empty) {
            self.open.push(b',');
        }
    }

    fn keep(&mut self, range: Range<usize>) {
        if range.len() < self.large {
            return self.open.extend_from_slice(&self.source[range]);
        }
        self.close_piece();
        self.pieces.push(self.source.slice(range));
    }

    fn close_piece(&mut self) {
        if !self.open.is_empty() {
            self.pieces.push(std::mem::take(&mut self.open).into());
        }
    }
}
