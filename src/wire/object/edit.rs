//! Makes shallow edits: named members change, every other byte stays.

use super::{Member, Object, Payload};
use crate::wire::payload::write_string;

/// Changes to top-level members, applied at once by [`ObjectEdit::finish`]. A later change of the same
/// member takes the place of the earlier one.
#[derive(Debug)]
pub struct ObjectEdit<'a> {
    object: &'a Object,
    changes: Vec<MemberChange<'a>>,
}

#[derive(Debug)]
struct MemberChange<'a> {
    key: &'a str,
    /// `None` removes.
    value: Option<Payload>,
}

impl<'a> ObjectEdit<'a> {
    pub(super) const fn new(object: &'a Object) -> Self {
        Self { object, changes: Vec::new() }
    }

    /// Sets a member: in place where it stands, else appended.
    #[must_use]
    pub fn set(self, key: &'a str, value: Payload) -> Self {
        self.change(key, Some(value))
    }

    /// Removes a member if it stands there.
    #[must_use]
    pub fn remove(self, key: &'a str) -> Self {
        self.change(key, None)
    }

    fn change(mut self, key: &'a str, value: Option<Payload>) -> Self {
        match self.changes.iter_mut().find(|change| change.key == key) {
            Some(change) => change.value = value,
            // What does not stand there need not be removed.
            None if value.is_none() && !self.object.contains(key) => (),
            None => self.changes.push(MemberChange { key, value }),
        }
        self
    }

    /// The edited text. An edit that changes nothing returns the original payload, not a copy.
    #[must_use]
    pub fn finish(mut self) -> Payload {
        let object = self.object;
        let health = |key| object.find(key).map(|member| object.raw(member));
        self.changes.retain(|change| health(change.key) != change.value.as_ref().map(|value| value.bytes().as_ref()));
        if self.changes.is_empty() {
            return object.payload().clone();
        }
        let growth = |change: &MemberChange<'_>| change.key.len() + 4 + change.value.as_ref().map_or(0, Payload::len);
        let room = object.payload().len() + self.changes.iter().map(growth).sum::<usize>();
        // One byte more, for the brace of an envelope that this may be the end of.
        let mut out = Vec::with_capacity(room + 1);
        out.push(b'{');
        self.write_standing(&mut out);
        for MemberChange { key, value } in &self.changes {
            if let (Some(value), false) = (value, object.contains(key)) {
                separate(&mut out);
                write_string(&mut out, key);
                out.push(b':');
                out.extend_from_slice(value.bytes());
            }
        }
        out.push(b'}');
        Payload::from_scanned(out.into())
    }

    /// Writes the members that stand in the object. What belongs to a member reaches from the
    /// separator before it to the one behind it, so whitespace stays and goes with its member.
    fn write_standing(&self, out: &mut Vec<u8>) {
        let text = self.object.payload().bytes();
        let mut start = 1;
        for member in self.object.members() {
            let (value_start, value_end) = (self.object.start(member), self.object.end(member));
            let separator = text[value_end..].iter().position(|&b| b == b',' || b == b'}');
            let end = separator.map_or(text.len(), |distance| value_end + distance);
            match self.change_of(member) {
                None => {
                    separate(out);
                    out.extend_from_slice(&text[start..end]);
                }
                Some(MemberChange { value: Some(value), .. }) => {
                    separate(out);
                    out.extend_from_slice(&text[start..value_start]);
                    out.extend_from_slice(value.bytes());
                    out.extend_from_slice(&text[value_end..end]);
                }
                Some(MemberChange { value: None, .. }) => (),
            }
            start = end + 1;
        }
    }

    fn change_of(&self, member: &Member) -> Option<&MemberChange<'a>> {
        let key = self.object.key(member);
        self.changes.iter().find(|change| change.key == key)
    }
}

/// Puts a comma behind everything but the opening brace.
fn separate(out: &mut Vec<u8>) {
    if out.len() > 1 {
        out.push(b',');
    }
}
