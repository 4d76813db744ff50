//! U17, U20 and U21, and a comparison with a naive reading of the standard.

use proptest::prelude::*;

use super::*;

fn decode(text: &[u8]) -> Vec<SseEvent> {
    SseDecoder::new(1 << 16).feed(text).unwrap()
}

fn event(data: &str) -> SseEvent {
    SseEvent { data: Bytes::copy_from_slice(data.as_bytes()).into(), ..SseEvent::default() }
}

#[track_caller]
fn check(text: &str, expected: &[SseEvent]) {
    assert_eq!(decode(text.as_bytes()), expected, "{text:?}");
    let mut decoder = SseDecoder::new(1 << 16);
    let one_by_one: Vec<_> = text.bytes().flat_map(|byte| decoder.feed(&[byte]).unwrap()).collect();
    assert_eq!(one_by_one, expected, "byte by byte: {text:?}");
}

/// U20.
#[test]
fn lines_end_in_any_of_three_ways() {
    for text in [
        "data: a\ndata: b\n\n",
        "data: a\rdata: b\r\r",
        "data: a\r\ndata: b\r\n\r\n",
        "data: a\r\ndata: b\r\n\n",
        "data: a\rdata: b\n\r",
        "\u{feff}data: a\ndata: b\n\n",
        "\n\r\ndata: a\r\ndata: b\r\r\n",
    ] {
        check(text, &[event("a\nb")]);
    }
}

/// An event ends with an empty line however lines end, wherever the stream is cut, and however large the event is.
#[test]
fn it_is_known_where_the_stream_stands() {
    for (text, between, ids) in [
        ("", true, false),
        ("data: 1\n\n", true, false),
        ("data: 1\r\n\r\n", true, false),
        ("data: 1\r\r", true, false),
        ("data: 1\n", false, false),
        ("data: 1\r\n", false, false),
        ("data: 1\n\ndata: 2", false, false),
        (":\n\n", true, false),
        ("id: 7\ndata: 1\n\n", true, true),
        ("data: id\n\n", true, false),
    ] {
        for cut in 0..=text.len() {
            for mut decoder in [SseDecoder::new(1 << 16), SseDecoder::new(3), SseDecoder::of_nothing()] {
                let _ = decoder.feed(&text.as_bytes()[..cut]);
                let _ = decoder.feed(&text.as_bytes()[cut..]);
                assert_eq!((decoder.is_between_events(), decoder.gave_ids()), (between, ids), "{text:?} cut at {cut}");
            }
        }
    }
}

#[test]
fn one_byte_order_mark_is_dropped_and_at_the_start_alone() {
    check("\u{feff}\u{feff}data: a\n\n", &[]);
    check("data: a\n\n\u{feff}data: b\n\n", &[event("a")]);
    check("data: \u{feff}a\n\n", &[event("\u{feff}a")]);
}

#[test]
fn fields_are_read_as_the_standard_has_them() {
    check("data:a\n\ndata:  b\n\ndata\n\ndata:\n\n", &[event("a"), event(" b"), event(""), event("")]);
    check("data\ndata\n\n", &[event("\n")]);
    check(":comment\n: data: x\n\n:\n\n", &[]);
    check("Data: a\n data: a\ndata : a\nfoo: bar\ndatab: c\n\n", &[]);
    check("data: {\"a\": 1}\n\n", &[event("{\"a\": 1}")]);
    check("data: unfinished\n", &[]);
    let named = |name: &str| SseEvent { name: Some(name.to_owned()), ..event("a") };
    check("event: x\ndata: a\n\ndata: a\n\n", &[named("x"), event("a")]);
    check("event: x\n\ndata: a\n\n", &[event("a")]);
    check("event: x\nevent:\ndata: a\n\n", &[event("a")]);
    check("event: é\ndata: a\n\n", &[named("é")]);
}

/// U21, and events that prime a stream.
#[test]
fn ids_stick_and_unusable_ones_are_ignored() {
    let with_id = |data: &str, id: &str| SseEvent { id: Some(id.to_owned()), ..event(data) };
    check("id: 1\n\ndata: a\n\nid\ndata: b\n\n", &[with_id("", "1"), with_id("a", "1"), with_id("b", "")]);
    check("id: 1\nid: 2\0\ndata: a\n\n", &[with_id("a", "1")]);
    let (longest, too_long) = ("x".repeat(1024), "x".repeat(1025));
    check(
        &format!("id: {longest}\ndata: a\n\nid: {too_long}\ndata: b\n\n"),
        &[with_id("a", &longest), with_id("b", &longest)],
    );
    check(&format!("id: {too_long}\n\n"), &[]);
}

/// U21: digits alone; the caller puts the number into its range.
#[test]
fn a_retry_is_given_once_and_as_digits_alone() {
    let with_retry = |data: &str, retry: u64| SseEvent { retry_ms: Some(retry), ..event(data) };
    check("retry: 0\n\ndata: a\n\n", &[with_retry("", 0), event("a")]);
    check("retry: 1000000000\ndata: a\n\n", &[with_retry("a", 1_000_000_000)]);
    check("retry: 99999999999999999999999\n\n", &[with_retry("", u64::MAX)]);
    for text in ["", "-1", "+1", "1.0", "1e3", "0x1", " 1", "1 "] {
        check(&format!("retry: {text}\ndata: a\n\n"), &[event("a")]);
    }
}

/// U20: data are bytes, and a cut inside a character does no harm.
#[test]
fn data_that_is_not_utf8_is_handed_on_as_it_came() {
    assert_eq!(decode(b"data: \xff\xe2\n\n")[0].data.as_ref(), b"\xff\xe2");
    let named = decode(b"event: a\xff\ndata: x\n\n");
    assert_eq!(named[0].name.as_deref(), Some("a\u{fffd}"));
}

/// U17: no field grows past the bound.
#[test]
fn an_event_that_outgrows_the_bound_is_refused() {
    #[track_caller]
    fn check(head: &str, filler: &str) {
        let mut decoder = SseDecoder::new(1000);
        assert_eq!(decoder.feed(head.as_bytes()), Ok(Vec::new()));
        let fed = (0..=1000).find(|_| decoder.feed(filler.as_bytes()).is_err());
        assert!(fed.is_some_and(|count| count * filler.len() <= 1000 * filler.len()), "{head:?} {filler:?}");
        assert_eq!(decoder.feed(b"data: a\n\n"), Err(FramingError::EventTooLarge { max: 1000 }));
    }
    check("data: ", "x");
    check("", "data: xxxx\n");
    check("", "data\n");
    check(": comment ", "x");
    check("", "x");
    check("event: ", "x");
    check("id: ", "x");
}

/// The bound holds one event, not the stream.
#[test]
fn many_events_within_the_bound_pass() {
    let mut decoder = SseDecoder::new(16);
    for _ in 0..100 {
        assert_eq!(decoder.feed(b"data: 0123456789\n\n: comment\n"), Ok(vec![event("0123456789")]));
    }
}

/// U17: a complete response is not lost to an oversized event after it.
#[test]
fn events_before_one_that_is_too_large_come_first() {
    let mut decoder = SseDecoder::new(16);
    assert_eq!(decoder.feed(b"data: a\n\ndata: 01234567890123456789"), Ok(vec![event("a")]));
    assert_eq!(decoder.feed(b""), Err(FramingError::EventTooLarge { max: 16 }));
}

#[test]
fn a_written_event_reads_back_as_one() {
    let written = BodyPart::message(Bytes::from_static(b"{\"a\":1}")).into_bytes();
    assert_eq!(written, "event: message\ndata: {\"a\":1}\n\n");
    let several = BodyPart::message(Bytes::from_static(b"{\r\n\"a\":\r1}\n")).into_bytes();
    assert_eq!(*decode(&several)[0].data, "{\n\n\"a\":\n1}\n");
    assert_eq!(decode(&BodyPart::comment().into_bytes()), []);
}

#[test]
fn lines_are_cut_at_line_feeds_and_bounded() {
    let mut decoder = LineDecoder::new(8);
    assert_eq!(decoder.feed(b"ab"), Ok(vec![]));
    assert_eq!(decoder.feed(b"c\r\n\n\r\n12345678\nx\ry"), Ok(vec![Bytes::from("abc"), Bytes::from("12345678")]));
    assert_eq!(decoder.feed(b"\n"), Ok(vec![Bytes::from("x\ry")]));
    assert_eq!(decoder.feed(b"a\n123456789"), Ok(vec![Bytes::from("a")]));
    assert_eq!(decoder.feed(b"a\n"), Err(FramingError::LineTooLong { max: 8 }));
}

#[test]
fn a_byte_order_mark_before_a_line_is_skipped() {
    let mut decoder = LineDecoder::new(16);
    let lines = decoder.feed("\u{feff}{}\r\n\u{feff}[]\n\u{feff}\r\n{\"\u{feff}\":1}\n".as_bytes());
    assert_eq!(lines, Ok(vec![Bytes::from("{}"), Bytes::from("[]"), Bytes::from("{\"\u{feff}\":1}")]));
}

/// The standard's algorithm in its own order, over a whole text at once.
fn plain_reading(text: &[u8]) -> Vec<SseEvent> {
    let text = String::from_utf8(text.to_vec()).unwrap().replace("\r\n", "\n").replace('\r', "\n");
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let (mut events, mut last_id) = (Vec::new(), None);
    let (mut data, mut name, mut retry_ms, mut has_id) = (String::new(), String::new(), None, false);
    // The text after the last line end is no line yet.
    let lines: Vec<&str> = text.split('\n').collect();
    for line in &lines[..lines.len() - 1] {
        if line.is_empty() {
            if !data.is_empty() || has_id || retry_ms.is_some() {
                data.pop();
                let name = (!name.is_empty()).then(|| name.clone());
                events.push(SseEvent { name, data: Bytes::from(data.clone()).into(), id: last_id.clone(), retry_ms });
            }
            (data, name, retry_ms, has_id) = (String::new(), String::new(), None, false);
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut name),
            "data" => data = data + value + "\n",
            "id" if !value.contains('\0') => (last_id, has_id) = (Some(value.to_owned()), true),
            "retry" if value.bytes().all(|b| b.is_ascii_digit()) && !value.is_empty() => retry_ms = value.parse().ok(),
            _ => (),
        }
    }
    events
}

fn stream() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "data",
        "data:",
        "data: ",
        "event:",
        "id:",
        "id",
        "retry:",
        ":",
        " ",
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "a",
        "{\"é\":1}",
        "😀",
        "12",
        "\0",
        "\u{feff}",
        "foo:",
    ]);
    prop::collection::vec(token, 0..40).prop_map(|tokens| tokens.concat())
}

proptest! {
    /// U20.
    #[test]
    fn any_stream_in_any_pieces_reads_as_the_standard_says(text in stream(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut decoder = SseDecoder::new(1 << 16);
        let events: Vec<_> =
            cuts.windows(2).flat_map(|cut| decoder.feed(&text.as_bytes()[cut[0]..cut[1]]).unwrap()).collect();
        prop_assert_eq!(events, plain_reading(text.as_bytes()));
    }

    #[test]
    fn any_lines_in_any_pieces_are_the_same(text in "[ab\n\r]{0,40}", cut in any::<prop::sample::Index>()) {
        let whole = LineDecoder::new(100).feed(text.as_bytes()).unwrap();
        let mut decoder = LineDecoder::new(100);
        let (front, back) = text.as_bytes().split_at(cut.index(text.len() + 1));
        let mut pieces = decoder.feed(front).unwrap();
        pieces.extend(decoder.feed(back).unwrap());
        prop_assert_eq!(pieces, whole);
    }
}
