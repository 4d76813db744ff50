//! Reads the criteria of a `tasks/list` (SEP-1904), beside the cursor or in `filter`. A criterion beside the cursor
//! wins over the same in `filter` (T-41). Other members are ignored (FIL-03).

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::status;
use crate::dialect::RequestError;
use crate::task::{ListDirection, ListFilter, OrderedBy, PhaseKind, TaskId, TimeRange, Timestamp};
use crate::wire::dates::{date_of, numbers};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, method};

pub const LIST_VALUES_MAX: usize = 100;

/// `capabilities.tasks.list` for filtered lists: all supported criteria (FIL-01, FIL-02).
pub(super) fn capability() -> Payload {
    let yes = Payload::of(&true);
    let range = ObjectWriter::new().member("before", &yes).member("after", &yes).finish();
    let by = Payload::of(&["createdAt", "lastUpdatedAt"]);
    let order = ObjectWriter::new().member("by", &by).member("direction", &Payload::of(&["asc", "desc"])).finish();
    let filter = ObjectWriter::new()
        .member("methods", &Payload::of(&[method::TOOLS_CALL]))
        .member("taskIds", &yes)
        .member("status", &yes)
        .member("createdAt", &range)
        .member("lastUpdatedAt", &range)
        .member("order", &order)
        .finish();
    ObjectWriter::new().member("filter", &filter).finish()
}

/// The filter of a list request; `None` without criteria (FIL-07). The error names a criterion with an invalid value.
pub fn list_filter(params: &Object) -> Result<Option<ListFilter>, RequestError> {
    let nested = match params.get_object("filter") {
        None if params.contains("filter") => return Err(wrong("filter must be an object")),
        nested => nested,
    };
    let mut given = Criteria { direct: params, nested, any: false };
    let mut filter = ListFilter::default();
    given.read_phases(&mut filter)?;
    given.read_ids(&mut filter)?;
    filter.created = given.range("createdAfter", "createdBefore")?;
    filter.updated = given.range("lastUpdatedAfter", "lastUpdatedBefore")?;
    given.read_order(&mut filter)?;
    Ok(given.any.then_some(filter))
}

const fn wrong(what: &'static str) -> RequestError {
    RequestError::params(what)
}

struct Criteria<'a> {
    direct: &'a Object,
    nested: Option<Object>,
    any: bool,
}

impl Criteria<'_> {
    fn get(&mut self, name: &str) -> Option<Payload> {
        let value = self.direct.get(name).or_else(|| self.nested.as_ref()?.get(name));
        self.any |= value.is_some();
        value
    }

    fn texts(&mut self, name: &str, complaint: &'static str) -> Result<Option<Vec<String>>, RequestError> {
        let Some(list) = self.get(name) else { return Ok(None) };
        if !list.as_str().starts_with('[') || list.items().take(LIST_VALUES_MAX + 1).count() > LIST_VALUES_MAX {
            return Err(wrong(complaint));
        }
        let texts: Result<_, _> = list.items().map(|item| item.read::<String>()).collect();
        texts.map(Some).map_err(|_| wrong(complaint))
    }

    fn text(&mut self, name: &str, complaint: &'static str) -> Result<Option<String>, RequestError> {
        self.get(name).map(|text| text.read().map_err(|_| wrong(complaint))).transpose()
    }

    /// Each list selects by membership (FIL-04). All tasks are `tools/call`, so other methods select nothing.
    fn read_phases(&mut self, filter: &mut ListFilter) -> Result<(), RequestError> {
        let complaint = "status must be an array of at most 100 of \"working\", \"input_required\", \"completed\", \
                         \"failed\" and \"cancelled\"";
        if let Some(words) = self.texts("status", complaint)? {
            filter.phases.clear();
            for word in words {
                let phases: BTreeSet<PhaseKind> =
                    PhaseKind::ALL.into_iter().filter(|phase| status(*phase) == word).collect();
                if phases.is_empty() {
                    return Err(wrong(complaint));
                }
                filter.phases.extend(phases);
            }
        }
        let methods = self.texts("methods", "methods must be an array of at most 100 strings")?;
        if methods.is_some_and(|methods| !methods.iter().any(|name| name == method::TOOLS_CALL)) {
            filter.phases.clear();
        }
        Ok(())
    }

    /// Ids that cannot be the gateway's select no task.
    fn read_ids(&mut self, filter: &mut ListFilter) -> Result<(), RequestError> {
        let ids = self.texts("taskIds", "taskIds must be an array of at most 100 strings")?;
        filter.ids = ids.map(|ids| ids.iter().filter_map(|id| TaskId::parse(id)).collect());
        Ok(())
    }

    /// Both ends are exclusive (T-41).
    fn range(&mut self, after: &str, before: &str) -> Result<TimeRange, RequestError> {
        let mut range = TimeRange::ALL;
        if let Some(after) = self.instant(after)? {
            range.from = Timestamp::from_millis(u64::try_from(after.floor + 1).unwrap_or(0));
        }
        if let Some(before) = self.instant(before)? {
            range.until = Timestamp::from_millis(u64::try_from(before.ceiling).unwrap_or(0));
        }
        Ok(range)
    }

    fn instant(&mut self, name: &str) -> Result<Option<Instant>, RequestError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let found = value.read::<String>().ok().and_then(|text| instant(&text));
        let complaint = || Cow::Owned(format!("{name} must be an ISO 8601 date, time and zone"));
        found.map(Some).ok_or_else(|| RequestError::Params(complaint()))
    }

    fn read_order(&mut self, filter: &mut ListFilter) -> Result<(), RequestError> {
        let complaint = "orderBy must be \"createdAt\" or \"lastUpdatedAt\"";
        match self.text("orderBy", complaint)?.as_deref() {
            None | Some("lastUpdatedAt") => (),
            Some("createdAt") => filter.by = OrderedBy::Creation,
            Some(_) => return Err(wrong(complaint)),
        }
        let complaint = "order must be \"asc\" or \"desc\"";
        match self.text("order", complaint)?.as_deref() {
            None | Some("desc") => (),
            Some("asc") => filter.direction = ListDirection::OldestFirst,
            Some(_) => return Err(wrong(complaint)),
        }
        Ok(())
    }
}

/// An instant, rounded down and up to milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instant {
    floor: i64,
    ceiling: i64,
}

/// Longest text that is read: room for 20 digits of a second's fraction.
const LEN_MAX: usize = 64;

/// Reads an ISO 8601 instant as RFC 3339 narrows it: date, time and zone, all required.
fn instant(text: &str) -> Option<Instant> {
    if text.len() > LEN_MAX {
        return None;
    }
    let (date, rest) = text.split_once(['T', 't'])?;
    let (time, zone) = zone(rest)?;
    let (clock, fraction) = match time.split_once(['.', ',']) {
        Some((clock, digits)) => (clock, Some(digits)),
        None => (time, None),
    };
    let [year, month, day] = date_of(date)?;
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let is_time = hour < 24 && minute < 60 && second <= 60;
    if !is_time {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - zone;
    let (millis, has_rest) = fraction.map_or(Some((0, false)), millis)?;
    let floor = seconds * 1_000 + millis;
    Some(Instant { floor, ceiling: floor + i64::from(has_rest) })
}

/// The text before the zone, and the zone's offset in seconds.
fn zone(text: &str) -> Option<(&str, i64)> {
    if let Some(time) = text.strip_suffix(['Z', 'z']) {
        return Some((time, 0));
    }
    let at = text.rfind(['+', '-'])?;
    let (time, offset) = text.split_at(at);
    let [hours, minutes] = numbers(&offset[1..], ':', [2, 2])?;
    let ahead = hours * 3_600 + minutes * 60;
    let is_zone = hours < 24 && minutes < 60;
    is_zone.then_some((time, if offset.starts_with('-') { -ahead } else { ahead }))
}

/// Whole milliseconds of a second's fraction, and whether there is a remainder.
fn millis(digits: &str) -> Option<(i64, bool)> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (whole, rest) = digits.split_at(digits.len().min(3));
    let millis = format!("{whole:0<3}").parse().ok()?;
    Some((millis, rest.bytes().any(|digit| digit != b'0')))
}

/// Days since 1970, in the Gregorian calendar.
const fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that a leap day is their last day.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIL-05.
    #[test]
    fn instants_are_read_in_any_zone_and_precision() {
        let rows = [
            ("2026-07-28T00:00:00.007Z", 1_785_196_800_007, 0),
            ("2026-07-28t02:00:00.007+02:00", 1_785_196_800_007, 0),
            ("2026-07-27T18:30:00,007-05:30", 1_785_196_800_007, 0),
            ("2026-07-28T00:00:00.007000+00:00", 1_785_196_800_007, 0),
            ("2026-07-28T00:00:00.0070001z", 1_785_196_800_007, 1),
            ("2026-07-28T00:00:00.5Z", 1_785_196_800_500, 0),
            ("2026-07-27T23:59:60Z", 1_785_196_800_000, 0),
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2000-02-29T00:00:00Z", 951_782_400_000, 0),
            ("1969-12-31T23:59:59.999Z", -1, 0),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000, 0),
        ];
        for (text, floor, more) in rows {
            assert_eq!(instant(text), Some(Instant { floor, ceiling: floor + more }), "{text}");
        }
    }

    #[test]
    fn a_text_without_a_part_or_a_valid_day_is_no_instant() {
        let rows = [
            "",
            "2026-07-28",
            "2026-07-28T00:00:00",
            "2026-07-28T00:00Z",
            "2026-07-28 00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-07-28T24:00:00Z",
            "2026-07-28T00:60:00Z",
            "2026-07-28T00:00:61Z",
            "2026-07-28T00:00:00.Z",
            "2026-07-28T00:00:00.x+00:00",
            "2026-07-28T00:00:00+0200",
            "2026-07-28T00:00:00+24:00",
            "2026-7-28T00:00:00Z",
            "+2026-07-28T00:00:00Z",
            "2026-07-28T00:00:00Z ",
            "1785196800007",
            "yesterday",
        ];
        for text in rows {
            assert_eq!(instant(text), None, "{text}");
        }
        assert_eq!(instant(&format!("2026-07-28T00:00:00.{}Z", "0".repeat(64))), None);
    }
}
