//! Compares a call's headers with the arguments that they repeat (`x-mcp-header`, MOD-06, T-74).

use std::borrow::Cow;

use http::HeaderMap;

use super::headers;
use crate::dialect::RequestError;
use crate::upstream::header_annotations::HeaderArgument;
use crate::wire::Object;

/// Headers without an annotation are ignored (B76; MOD-06, MOD-07, B116).
///
/// # Errors
/// [`RequestError::Header`] or [`RequestError::Params`] that names the header.
pub fn check(mirrored: &[HeaderArgument], all: &HeaderMap, arguments: Option<&Object>) -> Result<(), RequestError> {
    for one in mirrored {
        let complain = |what: &str| RequestError::Header(Cow::Owned(format!("{} {what}", one.header)));
        let header = headers::single(all, &one.header)?;
        match (header, one.argument(arguments)) {
            (None, None) => (),
            (None, Some(_)) => return Err(complain("is missing")),
            (Some(_), None) => return Err(complain("is present, but its argument is missing")),
            (Some(header), Some(argument)) => {
                let header = headers::decode(header).ok_or_else(|| complain("is not validly encoded"))?;
                if !one.agrees(&header, &argument) {
                    return Err(complain("differs from its argument"));
                }
                // Another server may end the text there (B81).
                if header.contains('\0') {
                    let what = format!("the argument of {} holds a null character", one.header);
                    return Err(RequestError::Params(Cow::Owned(what)));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;

    use super::*;
    use crate::upstream::header_annotations::{HeaderAnnotations, read};
    use crate::wire::{Payload, ScanLimits};

    fn payload(text: &str) -> Payload {
        Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::UPSTREAM).unwrap()
    }

    const SCHEMA: &str = r#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"Count"}}},
        "dry":{"type":"boolean","x-mcp-header":"Dry"}}}"#;

    #[track_caller]
    fn check_call(header: &[(&'static str, &'static str)], arguments: &str, accepted: bool) {
        let HeaderAnnotations::Valid(mirrored) = read(&payload(SCHEMA)) else { panic!("the schema is valid") };
        let mut all = HeaderMap::new();
        for (name, value) in header {
            all.append(*name, HeaderValue::from_static(value));
        }
        let arguments = Object::of(&payload(arguments));
        assert_eq!(check(&mirrored, &all, arguments.as_ref()).is_ok(), accepted, "{header:?} {arguments:?}");
    }

    /// MOD-06, MOD-07, B76, B116.
    #[test]
    fn headers_must_repeat_the_arguments_that_are_there() {
        check_call(&[], "{}", true);
        check_call(&[], r#"{"region":null}"#, true);
        check_call(&[("mcp-param-region", "eu")], r#"{"region":"eu"}"#, true);
        check_call(&[("mcp-param-region", "=?base64?ZXU=?=")], r#"{"region":"eu"}"#, true);
        check_call(&[("mcp-param-region", "=?base64?ZXU?=")], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-region", "EU")], r#"{"region":"eu"}"#, false);
        check_call(&[], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-region", "eu")], "{}", false);
        check_call(&[("mcp-param-region", "eu"), ("mcp-param-region", "eu")], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-count", "7")], r#"{"deep":{"n":7}}"#, true);
        check_call(&[("mcp-param-count", "7")], r#"{"deep":{"n":7.0}}"#, true);
        check_call(&[("mcp-param-count", "8")], r#"{"deep":{"n":7}}"#, false);
        check_call(&[("mcp-param-dry", "true")], r#"{"dry":true}"#, true);
        check_call(&[("mcp-param-dry", "True")], r#"{"dry":true}"#, false);
        check_call(&[("mcp-param-other", "x")], "{}", true);
    }
}
