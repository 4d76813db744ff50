//! Checks the media types of a request: `Content-Type`, `Content-Encoding`, `Accept`.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderName};

use super::refusal::Refusal;
use crate::face::http::AcceptedTypes;

const USUAL_CONTENT: &str = "application/json";
const USUAL_ACCEPT: &str = "application/json, text/event-stream";

/// Refuses a further encoding (B68).
pub(super) fn check_coding(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    let is_plain = codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if is_plain { Ok(()) } else { Err(Refusal::ContentCoding) }
}

/// Requires JSON in UTF-8 (B67). The exact values of nearly every client are not parsed.
pub(super) fn check_content(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    match (types.next(), types.next()) {
        (Some(only), None) if only == USUAL_CONTENT || only.to_str().is_ok_and(is_json) => Ok(()),
        (_, _) => Err(Refusal::MediaType),
    }
}

fn is_json(value: &str) -> bool {
    let mut parts = value.split(';');
    let essence = parts.next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        && parts.all(|parameter| match parameter.split_once('=') {
            Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
                value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
            }
            Some(_) | None => true,
        })
}

/// Which of the two response types `Accept` admits: the most specific range decides, `q=0` refuses (RFC 9110, 12.5.1).
pub(super) fn accepted(headers: &HeaderMap) -> AcceptedTypes {
    let mut values = headers.get_all(ACCEPT).iter();
    if values.next().is_some_and(|only| only == USUAL_ACCEPT) && values.next().is_none() {
        return AcceptedTypes::Both;
    }
    let mut json = MediaRangeMatch::default();
    let mut events = MediaRangeMatch::default();
    for element in elements(headers, &ACCEPT) {
        let mut parts = element.split(';').map(str::trim);
        let range = parts.next().unwrap_or_default();
        let admits = !parts.any(is_zero_weight);
        json.consider(specificity(range, "application/*", "application/json"), admits);
        events.consider(specificity(range, "text/*", "text/event-stream"), admits);
    }
    match (json.admits(headers), events.admits(headers)) {
        (true, true) => AcceptedTypes::Both,
        (true, false) => AcceptedTypes::Json,
        (false, true) => AcceptedTypes::EventStream,
        (false, false) => AcceptedTypes::Neither,
    }
}

fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter(|element| !element.trim().is_empty())
}

#[derive(Clone, Copy, Default)]
struct MediaRangeMatch {
    specificity: u8,
    admitted: MediaAcceptance,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum MediaAcceptance {
    #[default]
    Unmentioned,
    Yes,
    No,
}

impl MediaRangeMatch {
    fn consider(&mut self, specificity: Option<u8>, admits: bool) {
        if let Some(specificity) = specificity.filter(|&found| found > self.specificity) {
            self.specificity = specificity;
            self.admitted = if admits { MediaAcceptance::Yes } else { MediaAcceptance::No };
        }
    }

    /// Without `Accept`, or with an empty one, everything is admitted.
    fn admits(self, headers: &HeaderMap) -> bool {
        match self.admitted {
            MediaAcceptance::Yes => true,
            MediaAcceptance::No => false,
            MediaAcceptance::Unmentioned => elements(headers, &ACCEPT).next().is_none(),
        }
    }
}

fn specificity(range: &str, family: &str, exact: &str) -> Option<u8> {
    if range.eq_ignore_ascii_case(exact) {
        Some(3)
    } else if range.eq_ignore_ascii_case(family) {
        Some(2)
    } else {
        (range == "*/*").then_some(1)
    }
}

fn is_zero_weight(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, value)| {
        name.trim().eq_ignore_ascii_case("q") && value.trim().parse::<f32>().is_ok_and(|weight| weight <= 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, values: &[&'static str]) -> HeaderMap {
        values.iter().map(|&value| (name.clone(), http::HeaderValue::from_static(value))).collect()
    }

    #[track_caller]
    fn check_accept(values: &[&'static str], expected: AcceptedTypes) {
        assert_eq!(accepted(&headers(ACCEPT, values)), expected, "{values:?}");
    }

    /// B69.
    #[test]
    fn the_most_specific_range_decides() {
        use AcceptedTypes::{Both, EventStream, Json, Neither};
        check_accept(&[], Both);
        check_accept(&[""], Both);
        check_accept(&["*/*"], Both);
        check_accept(&["application/json, text/event-stream"], Both);
        check_accept(&["application/json", "text/event-stream;q=0.1"], Both);
        check_accept(&["Application/JSON"], Json);
        check_accept(&["application/*;q=0.5"], Json);
        check_accept(&["text/*"], EventStream);
        check_accept(&["*/*, application/json;q=0"], EventStream);
        check_accept(&["text/event-stream; q=0.000, */*;q=0.1"], Json);
        check_accept(&["text/html, image/png"], Neither);
        check_accept(&["*/*;q=0"], Neither);
        check_accept(&["application/jsonl"], Neither);
    }

    #[track_caller]
    fn check_type(values: &[&'static str], expected: Result<(), Refusal>) {
        assert_eq!(check_content(&headers(CONTENT_TYPE, values)), expected, "{values:?}");
    }

    /// B67.
    #[test]
    fn only_json_in_utf_8_is_taken() {
        check_type(&["application/json"], Ok(()));
        check_type(&["Application/JSON; Charset=\"UTF-8\""], Ok(()));
        check_type(&["application/json;charset=latin1"], Err(Refusal::MediaType));
        check_type(&["application/json", "application/json"], Err(Refusal::MediaType));
        check_type(&["application/json, text/plain"], Err(Refusal::MediaType));
        check_type(&["application/jsonx"], Err(Refusal::MediaType));
        check_type(&[], Err(Refusal::MediaType));
    }
}
