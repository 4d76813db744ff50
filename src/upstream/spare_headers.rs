//! Keeps the cleared header maps of finished heads for the heads that follow. A forwarded request has four heads, and a
//! map takes two allocations. hyper keeps a connection's last map likewise.

use std::cell::RefCell;

use http::HeaderMap;

/// The fields of a usual head.
const FIELDS: usize = 12;
/// A larger map is not kept.
const FIELDS_MAX: usize = 48;
const MAPS_MAX: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<HeaderMap>> = const { RefCell::new(Vec::new()) };
}

/// An empty map with room for a usual head.
pub(crate) fn take() -> HeaderMap {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| HeaderMap::with_capacity(FIELDS))
}

/// Drops the fields of a map, and keeps its memory within bounds.
pub(crate) fn keep(mut headers: HeaderMap) {
    if (FIELDS..=FIELDS_MAX).contains(&headers.capacity()) {
        headers.clear();
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MAPS_MAX {
                spare.push(headers);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::ACCEPT;

    use super::*;

    /// The list is empty at first, because the test harness starts a new thread for each test.
    #[test]
    fn a_kept_map_has_no_field_and_a_large_or_excess_one_is_dropped() {
        let mut used = take();
        let capacity = used.capacity();
        used.insert(ACCEPT, HeaderValue::from_static("text/html"));
        keep(used);
        let again = take();
        assert!(again.is_empty() && again.capacity() == capacity);
        for headers in [HeaderMap::new(), HeaderMap::with_capacity(2 * FIELDS_MAX)] {
            keep(headers);
        }
        assert_eq!(SPARE.with_borrow(Vec::len), 0);
        for _ in 0..2 * MAPS_MAX {
            keep(HeaderMap::with_capacity(FIELDS));
        }
        assert_eq!(SPARE.with_borrow(Vec::len), MAPS_MAX);
    }
}
