//! Lists the keys of `[[endpoints]]`: paths that serve several upstreams.

use super::super::error::ConfigLocation;
use super::super::section::{LocatedValue, Section};
use super::super::value::{SERVED_PATH, UPSTREAM_NAME};
use crate::face::combined::PrefixPolicy;

#[derive(Debug)]
pub(in super::super) struct RawEndpoint {
    pub(in super::super) place: ConfigLocation,
    pub(in super::super) path: Option<LocatedValue<String>>,
    pub(in super::super) sse_path: Option<LocatedValue<String>>,
    /// `None` if the key is absent.
    pub(in super::super) upstreams: Option<LocatedValue<Vec<String>>>,
    pub(in super::super) prefix: Option<LocatedValue<PrefixPolicy>>,
}

pub(super) fn read(mut section: Section<'_, '_>) -> RawEndpoint {
    let policies = [("always", Some(PrefixPolicy::Always)), ("auto", Some(PrefixPolicy::Auto))];
    let place = section.place();
    let path = section.require("path", &SERVED_PATH);
    let sse_path = section.read("sse_path", &SERVED_PATH);
    let upstreams_place = section.place_of("upstreams");
    let names = section.read_all("upstreams", &UPSTREAM_NAME);
    let upstreams = upstreams_place.map(|place| LocatedValue { value: names, place });
    let prefix = section.word("prefix", &policies);
    section.close();
    RawEndpoint { place, path, sse_path, upstreams, prefix }
}
