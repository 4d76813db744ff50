//! Warns once about a server with circular list cursors.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::wire::{ListEnd, PagedList};

#[derive(Debug, Default)]
pub(crate) struct CircularLists(AtomicU8);

impl CircularLists {
    /// Records how a list ended. Logs one line when it starts to be circular.
    pub(crate) fn note(&self, upstream: &str, list: PagedList, end: Option<ListEnd>) {
        let bit = 1 << list as u8;
        let before = match end {
            Some(ListEnd::Circular) => self.0.fetch_or(bit, Ordering::Relaxed),
            Some(ListEnd::Complete | ListEnd::TooManyPages) => self.0.fetch_and(!bit, Ordering::Relaxed),
            None => return,
        };
        if end == Some(ListEnd::Circular) && before & bit == 0 {
            let list = list.method();
            tracing::warn!(
                upstream,
                list,
                "the server's list cursors are circular; the list ends at the first page without new items"
            );
        }
    }
}
