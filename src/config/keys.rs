//! Declares the keys of a table once: for its reader, its defaults and its rows in the reference.

use toml::de::DeTable;

use super::error::{ConfigLocation, MistakeCollector};
use super::section::{ConfigSource, LocatedValue, Section};

/// A value that was written, or its default.
#[derive(Clone, Debug)]
pub(super) struct Setting<T> {
    pub(super) value: T,
    /// Set if the value was written.
    pub(super) location: Option<ConfigLocation>,
}

impl<T> Setting<T> {
    pub(super) fn set(&mut self, written: Option<LocatedValue<T>>) {
        if let Some(written) = written {
            *self = written.into();
        }
    }

    /// Reads a key; if it has no value, `line` is the key with its default.
    pub(super) fn read(
        section: &mut Section<'_, '_>,
        line: &str,
        read: impl Fn(&mut Section<'_, '_>) -> Option<LocatedValue<T>>,
    ) -> Self {
        let default = || read_text(line, &read).expect("a default is a value of its key").value;
        read(section).map_or_else(|| Self { value: default(), location: None }, Self::from)
    }
}

impl<T> From<LocatedValue<T>> for Setting<T> {
    fn from(LocatedValue { value, location }: LocatedValue<T>) -> Self {
        Self { value, location: Some(location) }
    }
}

pub(super) trait KeyField: Clone {
    fn location(&self) -> Option<&ConfigLocation>;

    /// This value, or `wider` if it was not written.
    fn over(&self, wider: &Self) -> Self {
        if self.location().is_some() { self.clone() } else { wider.clone() }
    }
}

impl<T: Clone> KeyField for Option<LocatedValue<T>> {
    fn location(&self) -> Option<&ConfigLocation> {
        self.as_ref().map(|written| &written.location)
    }
}

impl<T: Clone> KeyField for Setting<T> {
    fn location(&self) -> Option<&ConfigLocation> {
        self.location.as_ref()
    }
}

pub(super) trait KeyTable: Default {
    const ROWS: &'static [KeyRow];

    fn read(section: &mut Section<'_, '_>) -> Self;

    fn locations(&self) -> Vec<&ConfigLocation>;

    fn over(&self, wider: &Self) -> Self;
}

/// A key as the reference shows it, but for the values that it takes.
#[derive(Clone, Copy, Debug)]
pub struct KeyRow {
    pub key: &'static str,
    /// The default as the reference shows it: in backquotes, or in words; `None` if the key has no effect unless it is written.
    pub default: Option<&'static str>,
    /// The bounds, if they differ from the bounds of every value of its kind.
    pub bounds: Option<&'static str>,
    /// `reload` or `restart`.
    pub changes: &'static str,
    pub sentence: &'static str,
}

/// Rows of keys that another table has too, and inherits their values from it.
pub(super) fn inherited(rows: &[KeyRow], sentence: &'static str) -> Vec<KeyRow> {
    rows.iter().map(|row| KeyRow { default: Some("inherited"), sentence, ..*row }).collect()
}

/// Reads a text, and ignores its mistakes.
pub(super) fn read_text<T>(text: &str, read: impl FnOnce(&mut Section<'_, '_>) -> T) -> T {
    let (tree, _) = DeTable::parse_recoverable(text);
    let mut source = ConfigSource::new(text, &|_| None, MistakeCollector::new(""));
    read(&mut source.root(tree.get_ref()))
}

/// Declares a table of keys. Each has its sentence for the reference as a comment, the class of its change (`reload` or
/// `restart`), its name, its type, and the method of [`Section`] that reads it. With `default VALUE`, in the configuration's
/// syntax, its field is a [`Setting`]; else an [`Option`], and `shown TEXT` is what the reference shows as the default. `bounds
/// TEXT` replaces the bounds of the type in the reference. `named KEY` is for a key that cannot name a field.
macro_rules! keys {
    (
        $(#[$meta:meta])*
        struct $table:ident {
            $(
                $(#[doc = $sentence:literal])+
                $changes:ident $field:ident: $type:ty = $read:ident($($argument:expr),*)
                    $(, default $default:tt)? $(, shown $shown:literal)? $(, bounds $bounds:literal)? $(, named $key:literal)?;
            )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub(in crate::config) struct $table {
            $(pub(in crate::config) $field: keys!(@field $type $(, $default)?),)+
        }

        impl $crate::config::keys::KeyTable for $table {
            const ROWS: &'static [$crate::config::KeyRow] = &[$($crate::config::KeyRow {
                key: keys!(@key $field $($key)?),
                default: keys!(@optional $(concat!("`", stringify!($default), "`"))? $($shown)?),
                bounds: keys!(@optional $($bounds)?),
                changes: stringify!($changes),
                sentence: concat!($($sentence),+),
            },)+];

            fn read(section: &mut $crate::config::section::Section<'_, '_>) -> Self {
                Self {
                    $($field: keys!(@read section, keys!(@key $field $($key)?), $read($($argument),*) $(, $default)?),)+
                }
            }

            fn locations(&self) -> Vec<&$crate::config::error::ConfigLocation> {
                let locations = [$($crate::config::keys::KeyField::location(&self.$field),)+];
                locations.into_iter().flatten().collect()
            }

            fn over(&self, wider: &Self) -> Self {
                Self { $($field: $crate::config::keys::KeyField::over(&self.$field, &wider.$field),)+ }
            }
        }

        impl Default for $table {
            fn default() -> Self {
                $crate::config::keys::read_text("", $crate::config::keys::KeyTable::read)
            }
        }
    };
    (@field $type:ty) => { Option<$crate::config::section::LocatedValue<$type>> };
    (@field $type:ty, $default:tt) => { $crate::config::keys::Setting<$type> };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
    (@optional) => { None };
    (@optional $text:expr) => { Some($text) };
    (@read $section:ident, $key:expr, $read:ident($($argument:expr),*)) => { $section.$read($key $(, $argument)*) };
    (@read $section:ident, $key:expr, $read:ident($($argument:expr),*), $default:tt) => {
        $crate::config::keys::Setting::read($section, concat!($key, " = ", stringify!($default)), |section| {
            section.$read($key $(, $argument)*)
        })
    };
}
pub(super) use keys;
