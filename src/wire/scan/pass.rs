//! Implements the scan: a loop over values with an explicit stack of open containers.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use smallvec::SmallVec;

use super::lexeme::{self, is_whitespace};
use super::{Member, Members, ObjectPlace, ScanError, ScanLimits};

#[derive(Debug)]
pub(super) struct ScanPass<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    limits: ScanLimits,
    nodes: usize,
    open: SmallVec<[Container; 12]>,
    keys: OpenKeys<'t>,
    pub(super) members: Members,
    pub(super) flaw: Option<ScanError>,
}

#[derive(Debug)]
enum Container {
    Object(OpenObject),
    Array { items: usize },
}

#[derive(Debug)]
struct OpenObject {
    count: usize,
    keys: ObjectKeys,
    /// Set if its members are to be located.
    place: Option<ObjectPlace>,
    current: Option<usize>,
    /// The location of that member's value, should it be an object.
    child: Option<ObjectPlace>,
}

enum NextValue {
    Value,
    /// The value that ends here may have been the last one of its container.
    AfterValue,
    End,
}

impl<'t> ScanPass<'t> {
    pub(super) fn new(text: &'t str, limits: ScanLimits) -> Self {
        Self {
            text,
            bytes: text.as_bytes(),
            at: 0,
            limits,
            nodes: 0,
            open: SmallVec::new(),
            keys: OpenKeys::default(),
            members: Members::new(),
            flaw: None,
        }
    }

    /// Returns the range of the value without surrounding whitespace.
    pub(super) fn run(&mut self) -> Result<Range<usize>, ScanError> {
        self.skip_whitespace();
        let start = self.at;
        let mut next = NextValue::Value;
        loop {
            next = match next {
                NextValue::Value => self.value()?,
                NextValue::AfterValue => self.after_value()?,
                NextValue::End => break,
            };
        }
        let root = start..self.at;
        self.skip_whitespace();
        if self.at < self.bytes.len() {
            return Err(self.syntax());
        }
        Ok(root)
    }

    /// Reads a scalar, or the opening of a container up to its first value.
    fn value(&mut self) -> Result<NextValue, ScanError> {
        self.skip_whitespace();
        self.nodes += 1;
        if self.nodes > self.limits.nodes_max {
            self.note(ScanError::TooManyNodes { at: self.at });
        }
        match self.peek() {
            Some(b'"') => self.at = lexeme::string(self.bytes, self.at)?.end,
            Some(b'{') => return self.open_object(),
            Some(b'[') => return self.open_array(),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.literal("true")?,
            Some(b'f') => self.literal("false")?,
            Some(b'n') => self.literal("null")?,
            Some(_) | None => return Err(self.syntax()),
        }
        Ok(NextValue::AfterValue)
    }

    fn after_value(&mut self) -> Result<NextValue, ScanError> {
        let end = self.at;
        if self.open.is_empty() {
            return Ok(NextValue::End);
        }
        self.skip_whitespace();
        let found = self.peek();
        let at = self.at;
        let Some(container) = self.open.last_mut() else { return Ok(NextValue::End) };
        match (container, found) {
            (Container::Object(object), Some(b',' | b'}')) => {
                if let Some(current) = object.current.take() {
                    self.members[current].value.end = end;
                }
                self.at += 1;
                if found == Some(b',') { self.key() } else { Ok(self.close()) }
            }
            (Container::Array { items }, Some(b',')) => {
                *items += 1;
                let too_many = *items > self.limits.items_max;
                self.at += 1;
                if too_many {
                    self.note(ScanError::TooManyNodes { at });
                }
                Ok(NextValue::Value)
            }
            (Container::Array { .. }, Some(b']')) => {
                self.at += 1;
                Ok(self.close())
            }
            (Container::Object(_) | Container::Array { .. }, Some(_) | None) => Err(self.syntax()),
        }
    }

    fn open_object(&mut self) -> Result<NextValue, ScanError> {
        let place = match self.open.last() {
            None => Some(ObjectPlace::Root),
            Some(Container::Object(parent)) => parent.child,
            Some(Container::Array { .. }) => None,
        };
        let keys = self.keys.open();
        self.descend(Container::Object(OpenObject { count: 0, keys, place, current: None, child: None }))?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(self.close());
        }
        self.key()
    }

    fn open_array(&mut self) -> Result<NextValue, ScanError> {
        self.descend(Container::Array { items: 1 })?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(self.close());
        }
        Ok(NextValue::Value)
    }

    /// Skips the opening bracket and the whitespace after it.
    fn descend(&mut self, container: Container) -> Result<(), ScanError> {
        if self.open.len() >= self.limits.depth_max {
            return Err(ScanError::TooDeep { at: self.at });
        }
        self.open.push(container);
        self.at += 1;
        self.skip_whitespace();
        Ok(())
    }

    fn close(&mut self) -> NextValue {
        if let Some(Container::Object(object)) = self.open.pop() {
            self.keys.close(&object.keys);
        }
        NextValue::AfterValue
    }

    fn key(&mut self) -> Result<NextValue, ScanError> {
        self.skip_whitespace();
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.syntax());
        }
        let quoted = lexeme::string(self.bytes, start)?;
        let is_root = self.open.len() == 1;
        if let Some(at) = quoted.lone {
            // Two such keys could not be distinguished; at the root all keys must be known.
            let error = ScanError::LoneSurrogate { at };
            if is_root {
                return Err(error);
            }
            self.note(error);
        }
        let span = start + 1..quoted.end - 1;
        let raw = &self.text[span.clone()];
        self.at = quoted.end;
        self.skip_whitespace();
        if self.peek() != Some(b':') {
            return Err(self.syntax());
        }
        self.at += 1;
        self.skip_whitespace();
        let is_decoded = quoted.escaped && quoted.lone.is_none();
        let key = if is_decoded { Cow::Owned(lexeme::unescape(raw)) } else { Cow::Borrowed(raw) };

        let Some(Container::Object(object)) = self.open.last_mut() else { return Err(ScanError::Syntax { at: start }) };
        if let Some(place) = object.place {
            object.child = place.child(&key);
            object.current = Some(self.members.len());
            self.members.push(Member { place, key: span, escaped: quoted.escaped, value: self.at..self.at });
        }
        object.count += 1;
        let too_many = object.count > self.limits.members_max;
        // A refused text is read on only for its id, so only the root still needs unique keys.
        let is_new = (self.flaw.is_some() && !is_root) || self.keys.insert(&mut object.keys, key);
        if too_many {
            self.note(ScanError::TooManyNodes { at: start });
        }
        if is_new {
            return Ok(NextValue::Value);
        }
        let error = ScanError::DuplicateKey { at: start };
        if is_root {
            return Err(error);
        }
        self.note(error);
        Ok(NextValue::Value)
    }

    fn number(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        self.at = lexeme::number(self.bytes, start)?;
        if !lexeme::is_carried(&self.text[start..self.at], self.limits.number_chars_max) {
            self.note(ScanError::NumberRange { at: start });
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Result<(), ScanError> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.syntax());
        }
        self.at += word.len();
        Ok(())
    }

    fn note(&mut self, flaw: ScanError) {
        self.flaw.get_or_insert(flaw);
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_whitespace(&mut self) {
        while self.peek().is_some_and(is_whitespace) {
            self.at += 1;
        }
    }

    const fn syntax(&self) -> ScanError {
        ScanError::Syntax { at: self.at }
    }
}

/// Up to so many keys are compared one by one; beyond, a set is faster.
const LINEAR_MAX: usize = 16;

/// Keys of the open objects, innermost last.
#[derive(Debug, Default)]
struct OpenKeys<'t> {
    stack: SmallVec<[Cow<'t, str>; 32]>,
    /// The keys of large objects. The standard hasher has a random seed, so colliding keys cannot be prepared (B89).
    sets: Vec<HashSet<Cow<'t, str>>>,
}

#[derive(Debug)]
struct ObjectKeys {
    /// The index of its first key on the stack.
    from: usize,
    /// One bit for each [`fingerprint`] seen: an unset bit saves the comparisons.
    seen: u64,
    /// Whether its keys are in a set, which is the last one while the object is the innermost.
    is_large: bool,
}

impl<'t> OpenKeys<'t> {
    fn open(&self) -> ObjectKeys {
        ObjectKeys { from: self.stack.len(), seen: 0, is_large: false }
    }

    /// Adds a key to the innermost object, `object`; false for a duplicate.
    fn insert(&mut self, object: &mut ObjectKeys, key: Cow<'t, str>) -> bool {
        if object.is_large {
            return self.sets.last_mut().is_some_and(|set| set.insert(key));
        }
        let bit = 1 << fingerprint(&key);
        if object.seen & bit != 0 && self.stack[object.from..].contains(&key) {
            return false;
        }
        object.seen |= bit;
        self.stack.push(key);
        if self.stack.len() - object.from > LINEAR_MAX {
            object.is_large = true;
            self.sets.push(self.stack.drain(object.from..).collect());
        }
        true
    }

    fn close(&mut self, object: &ObjectKeys) {
        if object.is_large {
            self.sets.pop();
        }
        self.stack.truncate(object.from);
    }
}

/// A number below 64 that distinguishes most keys of one object.
fn fingerprint(key: &str) -> u32 {
    let bytes = key.as_bytes();
    let (first, last) = (bytes.first().copied().unwrap_or(0), bytes.last().copied().unwrap_or(0));
    (u32::from(first) ^ (u32::from(last) << 2) ^ (bytes.len() as u32).wrapping_mul(11)) % 64
}
