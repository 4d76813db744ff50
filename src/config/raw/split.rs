//! Lists the keys of `split`: how a call with a list is made as many.

use super::super::section::{LocatedValue, Section};
use super::super::value::ARGUMENT;

/// Elements of a list that one call may be split by.
const SPLIT_MAX: u32 = 1_000;

/// How calls with a list are split.
#[derive(Clone, Debug)]
pub(in super::super) struct RawSplit {
    pub(in super::super) argument: Option<LocatedValue<String>>,
    pub(in super::super) parallel: Option<LocatedValue<u32>>,
    pub(in super::super) max: Option<LocatedValue<u32>>,
}

pub(super) fn read(mut section: Section<'_, '_>) -> Option<RawSplit> {
    // Read where it is not written, too: so it is learned which keys there are.
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
