//! taskgate: a reverse proxy that turns slow MCP tool calls into tasks.
//!
//! The modules in reading order. Each may use only modules above it (`tests/tidy.rs`).

/// Implements `Debug` with some members of a type. The others are secrets, or have no useful text.
macro_rules! debug_members {
    ($type:ident) => {
        debug_members!($type, |_value|);
    };
    ($type:ident, |$value:ident| $($name:ident: $shown:expr),*) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $value = self;
                f.debug_struct(stringify!($type))$(.field(stringify!($name), &$shown))*.finish_non_exhaustive()
            }
        }
    };
}

/// Compares and hashes the values of a type by one part of them.
macro_rules! compared_by {
    ($type:ident, |$value:ident| $part:expr) => {
        impl PartialEq for $type {
            fn eq(&self, other: &Self) -> bool {
                let $value = self;
                let own = &$part;
                let $value = other;
                *own == $part
            }
        }

        impl Eq for $type {}

        impl std::hash::Hash for $type {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                let $value = self;
                std::hash::Hash::hash(&$part, state);
            }
        }
    };
}

/// Implements `From` for variants that hold nothing but the value.
macro_rules! from_variant {
    ($($type:ident::$variant:ident($value:ty)),* $(,)?) => {
        $(impl From<$value> for $type {
            fn from(value: $value) -> Self {
                Self::$variant(value)
            }
        })*
    };
}

/// Declares an enum with a name for each variant, which the method `$named` returns, and the list `ALL` of its variants.
macro_rules! named_variants {
    ($(#[$doc:meta])* $vis:vis enum $type:ident, $named:ident {
        $($(#[$why:meta])* $variant:ident = $name:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $type {
            $($(#[$why])* $variant,)*
        }

        impl $type {
            $vis const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            $vis const fn $named(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

mod body_wakes;
pub mod cause;
mod connection_timer;
mod console;
pub mod failpoint;
mod line_budget;
mod line_queue;
pub mod metric;
pub mod own_command;
pub mod random;
mod system;
mod waits;

pub mod wire;

pub mod dev_output;
pub mod task;

pub mod replica;

pub mod answer_budget;
pub mod audit;
pub mod dialect;
mod died_programs;
pub mod secret_file;
pub mod shared_access;
pub mod shared_limits;
pub mod store;
pub mod tls;

pub mod upstream;

pub mod engine;

pub mod face;

pub mod server;

pub mod app;
pub mod cli;
pub mod config;
pub mod demo;
pub mod telemetry;
