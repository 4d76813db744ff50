//! Lists the keys of `split`: how one call with a list is split into several.

use super::super::section::{LocatedValue, Section};
use super::super::value::ARGUMENT;

/// The most elements by which a call may be split.
const SPLIT_MAX: u32 = 1_000;

/// How calls with a list are split.
#[derive(Clone, Debug)]
pub(in super::super) struct RawSplit {
    pub(in super::super) argument: Option<LocatedValue<String>>,
    pub(in super::super) parallel: Option<LocatedValue<u32>>,
    pub(in super::super) max: Option<LocatedValue<u32>>,
}

pub(super) fn read(mut section: Section<'_, '_>) -> Option<RawSplit> {
    // Read even if absent, so that its keys are known.
    let is_written = section.is_written();
    let argument = match is_written {
        true => section.require("argument", &ARGUMENT),
        false => section.read("argument", &ARGUMENT),
    };
    let split = RawSplit {
        argument,
        parallel: section.count_in("parallel", 1..=SPLIT_MAX),
        max: section.count_in("max", 1..=SPLIT_MAX),
    };
    section.close();
    is_written.then_some(split)
}
