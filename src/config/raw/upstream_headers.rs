//! Reads the headers for an upstream: its credential, and forwarded headers of clients.

use std::path::PathBuf;

use http::{HeaderName, HeaderValue};

use super::super::error::ConfigLocation;
use super::super::section::{LocatedValue, Section};
use super::super::value::{CREDENTIAL_HEADER, FORWARDED_HEADER, KEY_FILE, SECRET};
use crate::face::client_login::ResourceName;

#[derive(Debug, Default)]
pub(in crate::config) struct RawUpstreamHeaders {
    /// `None` if the table is absent.
    pub(in crate::config) auth: Option<RawCredential>,
    pub(in crate::config) forward_headers: Vec<HeaderName>,
    pub(in crate::config) forward_authorization: Option<LocatedValue<bool>>,
    pub(in crate::config) oauth_resource: Option<LocatedValue<ResourceName>>,
}

/// One credential. The resolver checks that it is written in exactly one way.
#[derive(Clone, Debug)]
pub(in crate::config) struct RawCredential {
    pub(in crate::config) place: ConfigLocation,
    pub(in crate::config) authorization: Option<LocatedValue<HeaderValue>>,
    pub(in crate::config) header: Option<LocatedValue<HeaderName>>,
    pub(in crate::config) value: Option<LocatedValue<HeaderValue>>,
    pub(in crate::config) value_file: Option<LocatedValue<PathBuf>>,
    /// Whether the secret is in the file itself and not in the environment.
    pub(in crate::config) is_inline: bool,
}

pub(super) fn read(upstream: &mut Section<'_, '_>) -> RawUpstreamHeaders {
    let forward_headers = upstream.read_all("forward_headers", &FORWARDED_HEADER);
    let forward_authorization = upstream.flag("forward_authorization");
    let resource_names = [("gateway", Some(ResourceName::Gateway)), ("upstream", Some(ResourceName::Upstream))];
    let oauth_resource = upstream.word("oauth_resource", &resource_names);
    let mut section = upstream.section("auth");
    let is_written = section.is_written();
    let inline = |section: &Section<'_, '_>, key| !section.has_variable(key);
    let (authorization_inline, value_inline) = (inline(&section, "authorization"), inline(&section, "value"));
    let credential = RawCredential {
        place: section.place(),
        authorization: section.read("authorization", &SECRET),
        header: section.read("header", &CREDENTIAL_HEADER),
        value: section.read("value", &SECRET),
        value_file: section.read("value_file", &KEY_FILE),
        is_inline: false,
    };
    section.close();
    let is_inline =
        (credential.authorization.is_some() && authorization_inline) || (credential.value.is_some() && value_inline);
    let auth = is_written.then_some(RawCredential { is_inline, ..credential });
    RawUpstreamHeaders { auth, forward_headers, forward_authorization, oauth_resource }
}
