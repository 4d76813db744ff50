//! Reads the criteria of a `tasks/list` (SEP-1904), beside the cursor or in `filter`.
//!
//! A criterion beside the cursor wins over the same in `filter` (T-41). Other members are ignored (FIL-03).

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::instant::{Instant, instant};
use super::status;
use crate::dialect::RequestError;
use crate::task::{ListDirection, ListFilter, OrderedBy, PhaseKind, TaskId, TimeRange};
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
    filter.created = given.range(
        ("createdAfter", "createdAfter must be an ISO 8601 date, time and zone"),
        ("createdBefore", "createdBefore must be an ISO 8601 date, time and zone"),
    )?;
    filter.updated = given.range(
        ("lastUpdatedAfter", "lastUpdatedAfter must be an ISO 8601 date, time and zone"),
        ("lastUpdatedBefore", "lastUpdatedBefore must be an ISO 8601 date, time and zone"),
    )?;
    given.read_order(&mut filter)?;
    Ok(given.any.then_some(filter))
}

const fn wrong(what: &'static str) -> RequestError {
    RequestError::Params(Cow::Borrowed(what))
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
    fn range(&mut self, after: (&str, &'static str), before: (&str, &'static str)) -> Result<TimeRange, RequestError> {
        let mut range = TimeRange::ALL;
        if let Some(after) = self.instant(after)? {
            range.from = after.next();
        }
        if let Some(before) = self.instant(before)? {
            range.until = before.end();
        }
        Ok(range)
    }

    fn instant(&mut self, (name, complaint): (&str, &'static str)) -> Result<Option<Instant>, RequestError> {
        let Some(text) = self.text(name, complaint)? else { return Ok(None) };
        instant(&text).map(Some).ok_or_else(|| wrong(complaint))
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
