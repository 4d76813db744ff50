//! Reads one table of the file key by key: notes a wrong value and continues. A derived deserializer would stop at the
//! first mistake. The requested keys are the schema: see [`super::raw`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::error::{ConfigLocation, MistakeCollector};
use super::toml_writer;
use super::value::{self, StringFormat, ValueError};
use super::variables::{Environment, VariableMistake, fill_in};
use crate::server::api_keys::KeyPlace;

#[derive(Clone, Debug)]
pub(super) struct LocatedValue<T> {
    pub(super) value: T,
    pub(super) location: ConfigLocation,
}

/// The members of a table under names of the operator's choice.
pub(super) type NamedTexts<T> = Vec<LocatedValue<(String, T)>>;

/// The lists of a table under names of the operator's choice.
pub(super) type NamedLists = Vec<LocatedValue<(String, Vec<LocatedValue<String>>)>>;

/// One list for everything, or a list for each name.
#[derive(Clone, Debug)]
pub(super) enum ListOrTable {
    List(Vec<LocatedValue<String>>),
    Table(NamedLists),
}

/// The state that all sections of one file share.
pub(super) struct ConfigSource<'a> {
    /// Set if it is not the main configuration file.
    file: Option<Arc<str>>,
    line_ends: Vec<usize>,
    env: Environment<'a>,
    pub(super) report: MistakeCollector,
    /// Every requested key, present or not, with its content.
    pub(super) known: BTreeMap<String, KeyContent>,
    /// The line of every requested key that is present, tables included.
    pub(super) lines: BTreeMap<KeyPlace, usize>,
    pub(super) unknown: Vec<UnknownKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyContent {
    /// A value, described as in a mistake.
    Value(String),
    Table,
}

pub(super) struct UnknownKey {
    pub(super) location: ConfigLocation,
    /// The key without the path of its table.
    pub(super) key: String,
    pub(super) siblings: Vec<&'static str>,
}

impl<'a> ConfigSource<'a> {
    pub(super) fn new(text: &'a str, env: Environment<'a>, report: MistakeCollector) -> Self {
        let line_ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { file: None, line_ends, env, report, known: BTreeMap::new(), lines: BTreeMap::new(), unknown: Vec::new() }
    }

    pub(super) fn of_file(self, file: Arc<str>) -> Self {
        Self { file: Some(file), ..self }
    }

    fn at(&self, line: usize, key: String) -> ConfigLocation {
        ConfigLocation { line, key, file: self.file.clone() }
    }

    pub(super) fn line_at(&self, byte: usize) -> usize {
        1 + self.line_ends.partition_point(|end| *end < byte)
    }

    fn written(&mut self, line: usize, key: String) -> ConfigLocation {
        let location = self.at(line, key);
        self.lines.insert(location.key_place(), line);
        location
    }

    pub(super) fn root<'s>(&'s mut self, table: &'s DeTable<'a>) -> Section<'s, 'a> {
        let location = self.at(1, String::new());
        Section { source: self, table: Some(table), location, known: Vec::new() }
    }
}

/// One table. An absent table is read like an empty one, so that its keys are known. [`Section::close`] it at the end.
pub(super) struct Section<'s, 'a> {
    source: &'s mut ConfigSource<'a>,
    table: Option<&'s DeTable<'a>>,
    location: ConfigLocation,
    known: Vec<&'static str>,
}

impl<'s, 'a> Section<'s, 'a> {
    pub(super) fn location(&self) -> ConfigLocation {
        self.location.clone()
    }

    pub(super) const fn report(&mut self) -> &mut MistakeCollector {
        &mut self.source.report
    }

    pub(super) fn written_location(&self) -> Option<ConfigLocation> {
        self.table.map(|_| self.location())
    }

    /// A string of this format, with `${VAR}` replaced.
    pub(super) fn read<T>(&mut self, key: &'static str, kind: &StringFormat<T>) -> Option<LocatedValue<T>> {
        let (location, value) = self.value(key, kind.wanted)?;
        let value = self.text(&location, value, kind)?;
        Some(LocatedValue { value, location })
    }

    /// Whether a string contains `${VAR}`, so that the file does not show its value.
    pub(super) fn has_variable(&self, key: &str) -> bool {
        match self.table.and_then(|table| table.get(key)).map(Spanned::get_ref) {
            Some(DeValue::String(written)) => written.replace("$${", "").contains("${"),
            Some(_) | None => false,
        }
    }

    pub(super) fn require<T>(&mut self, key: &'static str, kind: &StringFormat<T>) -> Option<LocatedValue<T>> {
        if self.table.is_some_and(|table| !table.contains_key(key)) {
            let location = self.source.at(self.location.line, join(&self.location.key, key));
            self.source.report.mistake(&location, format!("is missing; write {}", kind.wanted));
        }
        self.read(key, kind)
    }

    /// An array of strings of this format. Wrong elements are noted and left out.
    pub(super) fn read_all<T>(&mut self, key: &'static str, kind: &StringFormat<T>) -> Option<LocatedValue<Vec<T>>> {
        let LocatedValue { value, location } = self.read_each(key, kind)?;
        Some(LocatedValue { value: value.into_iter().map(|read| read.value).collect(), location })
    }

    /// As [`Self::read_all`], each with its location.
    pub(super) fn read_each<T>(
        &mut self,
        key: &'static str,
        kind: &StringFormat<T>,
    ) -> Option<LocatedValue<Vec<LocatedValue<T>>>> {
        let wanted = format!("an array of strings, each {}", kind.wanted);
        let (location, value) = self.value(key, &wanted)?;
        let DeValue::Array(items) = value.get_ref() else { return self.wrong_type(&location, value, &wanted) };
        Some(LocatedValue { value: self.texts_of(&location, items, kind), location })
    }

    fn texts_of<T>(
        &mut self,
        location: &ConfigLocation,
        items: &DeArray<'_>,
        kind: &StringFormat<T>,
    ) -> Vec<LocatedValue<T>> {
        let mut read = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let location = self.source.at(self.line_of(item), format!("{}[{index}]", location.key));
            read.extend(self.text(&location, item, kind).map(|value| LocatedValue { value, location }));
        }
        read
    }

    /// A non-empty array of strings of this format, each with its location.
    pub(super) fn read_some<T>(
        &mut self,
        key: &'static str,
        kind: &StringFormat<T>,
    ) -> Option<LocatedValue<Vec<LocatedValue<T>>>> {
        let wanted = format!("an array of at least one string, each {}", kind.wanted);
        let (location, value) = self.value(key, &wanted)?;
        let Some(items) = value.get_ref().as_array() else { return self.wrong_type(&location, value, &wanted) };
        Some(LocatedValue { value: self.some_texts(&location, items, &wanted, kind), location })
    }

    /// A string of this format, or a non-empty array of them.
    pub(super) fn one_or_all<T>(&mut self, key: &'static str, kind: &StringFormat<T>) -> Option<LocatedValue<Vec<T>>> {
        let wanted = format!("{}; or an array of strings, each {}", kind.wanted, kind.wanted);
        let (location, value) = self.value(key, &wanted)?;
        let read = match value.get_ref().as_array() {
            Some(items) if items.is_empty() => {
                self.source.report.mistake(&location, format!("is empty; write {}", kind.wanted));
                return None;
            }
            Some(items) => self.texts_of(&location, items, kind).into_iter().map(|read| read.value).collect(),
            None => vec![self.text(&location, value, kind)?],
        };
        (!read.is_empty()).then_some(LocatedValue { value: read, location })
    }

    /// A table of strings of this format under names of the operator's choice.
    pub(super) fn texts<T>(
        &mut self,
        key: &'static str,
        kind: &StringFormat<T>,
    ) -> Option<LocatedValue<NamedTexts<T>>> {
        let wanted = format!("a table of names, each with {}", kind.wanted);
        let (location, value) = self.value(key, &wanted)?;
        let table = self.table_in(&location, value, &format!("[{}]", location.key))?;
        let mut all = Vec::new();
        for (name, value) in table {
            let line = self.source.line_at(name.span().start);
            let location = self.source.written(line, join(&location.key, name.get_ref()));
            if let Some(read) = self.text(&location, value, kind) {
                all.push(LocatedValue { value: (name.get_ref().clone().into_owned(), read), location });
            }
        }
        Some(LocatedValue { value: all, location })
    }

    /// A table of names, each with a string of this format or a non-empty array of them.
    pub(super) fn named_lists(
        &mut self,
        key: &'static str,
        kind: &StringFormat<String>,
    ) -> Option<LocatedValue<NamedLists>> {
        let wanted = format!("a table of names, each with an array of strings, each {}", kind.wanted);
        let (location, value) = self.value(key, &wanted)?;
        let value = self.lists_in(&location, value, kind)?;
        Some(LocatedValue { value, location })
    }

    /// A non-empty array of strings of this format, or a table as of [`Self::named_lists`].
    pub(super) fn list_or_table(
        &mut self,
        key: &'static str,
        kind: &StringFormat<String>,
    ) -> Option<LocatedValue<ListOrTable>> {
        let wanted = format!("an array of at least one string, each {}; or a table of such arrays", kind.wanted);
        let (location, value) = self.value(key, &wanted)?;
        let value = match value.get_ref() {
            DeValue::Table(_) => ListOrTable::Table(self.lists_in(&location, value, kind)?),
            DeValue::Array(items) => ListOrTable::List(self.some_texts(&location, items, &wanted, kind)),
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => return self.wrong_type(&location, value, &wanted),
        };
        Some(LocatedValue { value, location })
    }

    fn lists_in(
        &mut self,
        location: &ConfigLocation,
        value: &'s Spanned<DeValue<'a>>,
        kind: &StringFormat<String>,
    ) -> Option<NamedLists> {
        let table = self.table_in(location, value, &format!("[{}]", location.key))?;
        let wanted = format!("an array of at least one string, each {}", kind.wanted);
        if table.is_empty() {
            self.source.report.mistake(location, "is empty; write names with lists, or leave it out");
        }
        let mut lists = Vec::new();
        for (name, value) in table {
            let line = self.source.line_at(name.span().start);
            let location = self.source.written(line, join(&location.key, name.get_ref()));
            let list = match value.get_ref().as_array() {
                Some(items) => self.some_texts(&location, items, &wanted, kind),
                None => {
                    let text = self.text(&location, value, kind);
                    text.map(|value| LocatedValue { value, location: location.clone() }).into_iter().collect()
                }
            };
            lists.push(LocatedValue { value: (name.get_ref().clone().into_owned(), list), location });
        }
        Some(lists)
    }

    fn some_texts<T>(
        &mut self,
        location: &ConfigLocation,
        items: &DeArray<'_>,
        wanted: &str,
        kind: &StringFormat<T>,
    ) -> Vec<LocatedValue<T>> {
        if items.is_empty() {
            self.source.report.mistake(location, format!("is empty; write {wanted}, or leave it out"));
        }
        self.texts_of(location, items, kind)
    }

    /// A date or time of TOML's, or a string of this format.
    pub(super) fn time<T>(&mut self, key: &'static str, kind: &StringFormat<T>) -> Option<LocatedValue<T>> {
        let (location, value) = self.value(key, kind.wanted)?;
        let DeValue::Datetime(written) = value.get_ref() else {
            let value = self.text(&location, value, kind)?;
            return Some(LocatedValue { value, location });
        };
        match (kind.read)(&written.to_string()) {
            Ok(value) => Some(LocatedValue { value, location }),
            Err(wrong) => {
                let why = match wrong {
                    ValueError::Form => format!("is not {}", kind.wanted),
                    ValueError::Because(why) => why.to_owned(),
                };
                self.source.report.mistake(&location, why);
                None
            }
        }
    }

    /// A word of a closed list, or an array of them.
    pub(super) fn words<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<LocatedValue<Vec<T>>> {
        let wanted = format!("{}, or an array of them", value::word_list(words));
        let (location, value) = self.value(key, &wanted)?;
        let items = value.get_ref().as_array().map_or_else(|| vec![value], |items| items.iter().collect());
        if items.is_empty() {
            self.source.report.mistake(&location, format!("is empty; write {wanted}"));
            return None;
        }
        let mut all = Vec::new();
        for item in items {
            all.push(self.word_in(&location, item, words)?);
        }
        Some(LocatedValue { value: all, location })
    }

    pub(super) fn word<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<LocatedValue<T>> {
        let (location, value) = self.value(key, &value::word_list(words))?;
        let value = self.word_in(&location, value, words)?;
        Some(LocatedValue { value, location })
    }

    fn word_in<T: Copy>(
        &mut self,
        location: &ConfigLocation,
        value: &Spanned<DeValue<'_>>,
        words: &[(&str, T)],
    ) -> Option<T> {
        let list = value::word_list(words);
        let DeValue::String(written) = value.get_ref() else { return self.wrong_type(location, value, &list) };
        let text = self.fill_in(location, written)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            self.source.report.mistake(location, format!("{written:?} is unknown; write {list}"));
        }
        found.map(|(_, meant)| *meant)
    }

    /// A whole number between `min` and 2³²−1: higher counts are certainly mistakes, and some counters of dependencies end there.
    pub(super) fn count(&mut self, key: &'static str, min: u32) -> Option<LocatedValue<u32>> {
        self.count_in(key, min..=u32::MAX)
    }

    pub(super) fn count_in(&mut self, key: &'static str, bounds: RangeInclusive<u32>) -> Option<LocatedValue<u32>> {
        let wanted = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        let (location, value) = self.value(key, &wanted)?;
        let DeValue::Integer(written) = value.get_ref() else { return self.wrong_type(&location, value, &wanted) };
        let number =
            u32::from_str_radix(written.as_str(), written.radix()).ok().filter(|number| bounds.contains(number));
        if number.is_none() {
            self.source.report.mistake(&location, format!("{written} is out of range; write {wanted}"));
        }
        Some(LocatedValue { value: number?, location })
    }

    pub(super) fn flag(&mut self, key: &'static str) -> Option<LocatedValue<bool>> {
        let wanted = "`true` or `false`";
        let (location, value) = self.value(key, wanted)?;
        if let DeValue::Boolean(flag) = value.get_ref() {
            return Some(LocatedValue { value: *flag, location });
        }
        self.wrong_type(&location, value, wanted)
    }

    pub(super) fn section(&mut self, key: &'static str) -> Section<'_, 'a> {
        let (location, table) = match self.get(key, KeyContent::Table) {
            Some((location, value)) => {
                let table = self.table_in(&location, value, &format!("[{}]", location.key));
                (location, table)
            }
            None => (self.source.at(self.location.line, join(&self.location.key, key)), None),
        };
        Section { source: self.source, table, location, known: Vec::new() }
    }

    pub(super) fn each<T>(&mut self, key: &'static str, read: impl Fn(Section<'_, 'a>) -> T) -> Vec<T> {
        let Some((location, value)) = self.get(key, KeyContent::Table) else { return Vec::new() };
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type::<()>(&location, value, &format!("tables that begin with [[{}]]", location.key));
            return Vec::new();
        };
        let header = format!("[[{}]]", location.key);
        let mut all = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let location = self.source.written(self.line_of(item), format!("{}[{index}]", location.key));
            if let Some(table) = self.table_in(&location, item, &header) {
                all.push(read(Section { source: self.source, table: Some(table), location, known: Vec::new() }));
            }
        }
        all
    }

    /// Reads each table in the table `key`, under names of the operator's choice.
    pub(super) fn named<T>(&mut self, key: &'static str, read: impl Fn(&str, Section<'_, 'a>) -> T) -> Vec<T> {
        let Some((location, value)) = self.get(key, KeyContent::Table) else { return Vec::new() };
        let header = format!("[{}.NAME]", location.key);
        let Some(table) = self.table_in(&location, value, &header) else { return Vec::new() };
        let mut all = Vec::new();
        for (name, value) in table {
            let line = self.source.line_at(name.span().start);
            let location = self.source.written(line, join(&location.key, name.get_ref()));
            if let Some(table) = self.table_in(&location, value, &format!("[{}]", location.key)) {
                all.push(read(
                    name.get_ref(),
                    Section { source: self.source, table: Some(table), location, known: Vec::new() },
                ));
            }
        }
        all
    }

    /// Notes the keys that were not requested.
    pub(super) fn close(self) {
        for (key, _) in self.table.into_iter().flatten() {
            if !self.known.contains(&key.get_ref().as_ref()) {
                let line = self.source.line_at(key.span().start);
                let location = self.source.at(line, join(&self.location.key, key.get_ref()));
                let key = key.get_ref().clone().into_owned();
                self.source.unknown.push(UnknownKey { location, key, siblings: self.known.clone() });
            }
        }
    }

    fn value(&mut self, key: &'static str, wanted: &str) -> Option<(ConfigLocation, &'s Spanned<DeValue<'a>>)> {
        self.get(key, KeyContent::Value(wanted.to_owned()))
    }

    fn get(&mut self, key: &'static str, takes: KeyContent) -> Option<(ConfigLocation, &'s Spanned<DeValue<'a>>)> {
        self.known.push(key);
        let path = join(&self.location.key, key);
        self.source.known.insert(path.clone(), takes);
        let (written, value) = self.table?.get_key_value(key)?;
        let line = self.source.line_at(written.span().start);
        Some((self.source.written(line, path), value))
    }

    fn line_of(&self, value: &Spanned<DeValue<'_>>) -> usize {
        self.source.line_at(value.span().start)
    }

    fn table_in(
        &mut self,
        location: &ConfigLocation,
        value: &'s Spanned<DeValue<'a>>,
        header: &str,
    ) -> Option<&'s DeTable<'a>> {
        if let DeValue::Table(table) = value.get_ref() {
            return Some(table);
        }
        self.wrong_type(location, value, &format!("a table that begins with {header}"))
    }

    fn text<T>(
        &mut self,
        location: &ConfigLocation,
        value: &Spanned<DeValue<'_>>,
        kind: &StringFormat<T>,
    ) -> Option<T> {
        let DeValue::String(written) = value.get_ref() else { return self.wrong_type(location, value, kind.wanted) };
        let text = self.fill_in(location, written)?;
        let wrong = match (kind.read)(&text) {
            Ok(read) => return Some(read),
            Err(ValueError::Form) => format!("{written:?} is not {}", kind.wanted),
            Err(ValueError::Because(why)) => why.to_owned(),
        };
        self.source.report.mistake(location, wrong);
        None
    }

    fn fill_in(&mut self, location: &ConfigLocation, written: &str) -> Option<String> {
        match fill_in(written, self.source.env) {
            Ok(text) => Some(text),
            Err(wrong) => {
                for mistake in wrong {
                    match mistake {
                        VariableMistake::Form(message) => self.source.report.mistake(location, message),
                        VariableMistake::Unset(message) => self.source.report.unset_variable(location, message),
                    }
                }
                None
            }
        }
    }

    /// Notes the mistake; always `None`.
    fn wrong_type<T>(&mut self, location: &ConfigLocation, value: &Spanned<DeValue<'_>>, wanted: &str) -> Option<T> {
        let found = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a float",
            DeValue::Boolean(_) => "a boolean",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.source.report.mistake(location, format!("is {found}; write {wanted}"));
        None
    }
}

/// The path of `key` in the table `parent`, quoted where TOML requires it.
fn join(parent: &str, key: &str) -> String {
    let key = toml_writer::key(key);
    if parent.is_empty() { key } else { format!("{parent}.{key}") }
}
