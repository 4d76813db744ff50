//! Defines the events, the lines of the audit file, and the chain of their digests.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use serde::Deserialize;

use crate::task::digest::{hex, unhex};
use crate::task::reference::ShortReference;
use crate::task::time::millis;
use crate::task::{Principal, TaskKey, Timestamp};
use crate::wire::one_line::{beginning, is_invisible};

pub(super) const LINE_BYTES_MAX: usize = 16 << 10;
/// A longer text is cut, and ends with digits of its digest.
const TEXT_BYTES_MAX: usize = 256;
const DIGEST_DIGITS: usize = 16;

named_variants! {
    /// The kind of an event; `what` of its line.
    pub enum AuditAct, label {
        LoginRefused = "login.refused",
        RuleDenied = "rule.denied",
        /// A call is about to be sent; recorded with `required` alone.
        CallBegun = "call.begun",
        CallEnded = "call.ended",
        CallAnswered = "call.answered",
        TaskCreated = "task.created",
        TaskSettled = "task.settled",
        TaskRead = "task.read",
        TaskAnswered = "task.answered",
        TaskCancelled = "task.cancelled",
        TaskDeleted = "task.deleted",
        OperatorCancelled = "operator.cancelled",
        OperatorForgot = "operator.forgot",
        Reload = "reload",
        /// The first line of a process, and of a file after its rotation.
        Opened = "audit.opened",
        Closed = "audit.closed",
        /// Records were lost: the file could not be written.
        Lost = "audit.lost",
    }
}

/// One event. Absent members are not in its line.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    pub act: AuditAct,
    pub who: Option<&'a Principal>,
    /// The address of a client without a name.
    pub client: Option<IpAddr>,
    pub upstream: Option<&'a str>,
    pub tool: Option<&'a str>,
    /// A prompt, a resource, or the name of a replica.
    pub item: Option<&'a str>,
    pub task: Option<&'a TaskKey>,
    pub outcome: Option<&'a str>,
    pub duration: Option<Duration>,
    pub arguments: Option<&'a str>,
    /// The line of the configuration that decided.
    pub rule: Option<&'a str>,
    /// A number of lost records, of refusals without a record, or of bytes that were cut off.
    pub count: Option<(&'static str, u64)>,
}

impl<'a> AuditEvent<'a> {
    pub const fn new(act: AuditAct) -> Self {
        Self {
            act,
            who: None,
            client: None,
            upstream: None,
            tool: None,
            item: None,
            task: None,
            outcome: None,
            duration: None,
            arguments: None,
            rule: None,
            count: None,
        }
    }

    pub const fn of_task(act: AuditAct, key: &'a TaskKey) -> Self {
        Self { who: Some(&key.owner), task: Some(key), ..Self::new(act) }
    }

    /// The members after the chain's, with the closing brace. `issuer` finds the URL of a principal's issuer.
    pub(super) fn members<'i>(&self, issuer: impl FnOnce(&str) -> Option<&'i str>) -> String {
        let mut out = String::with_capacity(256);
        let mut member = |name: &str, text: &str| {
            out.push('"');
            out.push_str(name);
            out.push_str("\":");
            put_text(&mut out, text);
            out.push(',');
        };
        member("what", self.act.label());
        if let Some(who) = self.who {
            member("who", who.as_str());
            let url = who.issuer().and_then(issuer);
            member("via", url.unwrap_or_else(|| who.scheme()));
        }
        let client = self.client.map(|client| client.to_string());
        let task = self.task.map(|key| hex(&ShortReference::of(key).0));
        let texts = [
            ("client", client.as_deref()),
            ("upstream", self.upstream),
            ("tool", self.tool),
            ("item", self.item),
            ("task", task.as_deref()),
            ("outcome", self.outcome),
            ("rule", self.rule),
            ("arguments_sha256", self.arguments),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                member(name, text);
            }
        }
        if let Some(duration) = self.duration {
            let millis = millis(duration.saturating_add(Duration::from_micros(500)));
            let _ = write!(out, "\"seconds\":{}.{:03},", millis / 1_000, millis % 1_000);
        }
        if let Some((name, count)) = self.count {
            let _ = write!(out, "\"{name}\":{count},");
        }
        out.pop();
        out.push('}');
        out
    }
}

/// Writes a JSON string in which no character moves, hides or reorders others. A long one is cut, with its digest.
fn put_text(out: &mut String, text: &str) {
    // Nearly every text: it is copied as it is.
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if text.len() <= TEXT_BYTES_MAX && text.bytes().all(is_plain) {
        out.push('"');
        out.push_str(text);
        out.push('"');
        return;
    }
    let (shown, mark) = if text.len() > TEXT_BYTES_MAX {
        let digits = hex(digest(&SHA256, text.as_bytes()).as_ref());
        (beginning(text, TEXT_BYTES_MAX), format!("…{}", &digits[..DIGEST_DIGITS]))
    } else {
        (text, String::new())
    };
    out.push('"');
    for character in shown.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            _ if !is_invisible(character) => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push_str(&mark);
    out.push('"');
}

pub(super) type LineDigest = [u8; SHA256_OUTPUT_LEN];

/// The digest of a line without its line end.
pub(super) fn digest_of(line: &[u8]) -> LineDigest {
    let mut bytes = LineDigest::default();
    bytes.copy_from_slice(digest(&SHA256, line).as_ref());
    bytes
}

/// The end of a chain: number and digest of its last line; zeros before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChainEnd {
    pub(super) seq: u64,
    pub(super) digest: LineDigest,
}

impl ChainEnd {
    /// Appends a line to `out` and to the chain.
    pub(super) fn add(&mut self, at: Timestamp, replica: Option<&str>, members: &str, out: &mut Vec<u8>) {
        self.seq += 1;
        let begin = out.len();
        let _ = write!(out, "{{\"seq\":{},\"time\":\"{at}\"", self.seq);
        if let Some(replica) = replica {
            let mut name = String::new();
            put_text(&mut name, replica);
            let _ = write!(out, ",\"replica\":{name}");
        }
        for part in [",\"prev\":\"", &hex(&self.digest), "\",", members] {
            out.extend_from_slice(part.as_bytes());
        }
        self.digest = digest_of(&out[begin..]);
        out.push(b'\n');
    }

    /// The end of the chain before a truncated line, if the line's remaining beginning has its `prev`.
    pub(super) fn before(torn: &[u8]) -> Option<Self> {
        // A name has its quotation marks escaped, so the first such text is the member.
        let at = memchr::memmem::find(torn, b"\"prev\":\"")?;
        let number = torn[..at].strip_prefix(b"{\"seq\":")?.split(|byte| *byte == b',').next()?;
        let seq = std::str::from_utf8(number).ok()?.parse::<u64>().ok()?.checked_sub(1)?;
        let rest = &torn[at + 8..];
        let digits = rest.get(..2 * SHA256_OUTPUT_LEN).filter(|digits| rest.get(digits.len()) == Some(&b'"'))?;
        Some(Self { seq, digest: unhex(std::str::from_utf8(digits).ok()?)? })
    }

    /// The end of the chain with this line as its last.
    pub(super) fn at(line: &[u8]) -> Option<Self> {
        Some(Self { seq: LineLinks::read(line)?.seq, digest: digest_of(line) })
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct LineLinks<'a> {
    pub(super) seq: u64,
    #[serde(borrow)]
    pub(super) prev: Cow<'a, str>,
    #[serde(default)]
    pub(super) lost: u64,
}

impl<'a> LineLinks<'a> {
    /// `None` for a text that no gateway wrote.
    pub(super) fn read(line: &'a [u8]) -> Option<Self> {
        let is_bare = line.first() == Some(&b'{') && line.last() == Some(&b'}') && line.len() < LINE_BYTES_MAX;
        let links = is_bare.then(|| serde_json::from_slice::<Self>(line).ok()).flatten();
        // No chain gets so long that its next line would have no number.
        links.filter(|links| (1..u64::MAX).contains(&links.seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_line_is_within_the_bound_and_keeps_long_names_apart() {
        let hostile = "\u{1}".repeat(100_000);
        let who = [Principal::new(&hostile), Principal::new(&format!("{hostile}x"))];
        let lines = who.each_ref().map(|who| {
            let key = TaskKey { owner: who.clone(), id: crate::task::TaskId::from_bits(7) };
            let event = AuditEvent {
                client: Some(IpAddr::from([0xffff; 8])),
                upstream: Some(&hostile),
                tool: Some(&hostile),
                item: Some(&hostile),
                outcome: Some("ended"),
                duration: Some(Duration::MAX),
                arguments: Some(&hostile),
                rule: Some(&hostile),
                count: Some(("lost", u64::MAX)),
                ..AuditEvent::of_task(AuditAct::CallEnded, &key)
            };
            let (mut chain, mut line) = (ChainEnd { seq: u64::MAX - 2, ..ChainEnd::default() }, Vec::new());
            chain.add(Timestamp::from_millis(u64::MAX), Some(&hostile), &event.members(|_| None), &mut line);
            line.pop();
            assert!(LineLinks::read(&line).is_some(), "{} bytes", line.len());
            event.members(|_| None)
        });
        assert_ne!(lines[0], lines[1]);
    }

    #[test]
    fn b175_hostile_names_are_escaped_and_json_reads_the_same() {
        let hostile = "a\"\\\n\u{1b}[2J\u{7f}\u{9b}\u{85}\u{202e}\u{2066}\u{200b}\u{feff}\u{e0041}é🦀";
        let event = AuditEvent { tool: Some(hostile), ..AuditEvent::new(AuditAct::CallEnded) };
        let members = event.members(|_| None);
        assert_eq!(
            members,
            concat!(
                r#""what":"call.ended","tool":"a\"\\\u000a\u001b[2J\u007f\u009b\u0085\u202e\u2066\u200b\ufeff"#,
                r#"\udb40\udc41é🦀"}"#
            )
        );
        let read: serde_json::Value = serde_json::from_str(&format!("{{{members}")).unwrap();
        assert_eq!(read["tool"], hostile);
    }

    #[test]
    fn each_ascii_character_is_read_again_and_visible_ones_are_copied() {
        for character in '\0'..='\u{7f}' {
            let tool = format!("a{character}b");
            let members = AuditEvent { tool: Some(&tool), ..AuditEvent::new(AuditAct::CallEnded) }.members(|_| None);
            let read: serde_json::Value = serde_json::from_str(&format!("{{{members}")).unwrap();
            assert_eq!(read["tool"], tool);
            let is_copied = !character.is_control() && !matches!(character, '"' | '\\');
            assert_eq!(members.contains(&tool), is_copied, "{character:?}");
        }
    }

    #[test]
    fn a_duration_is_rounded_to_milliseconds_in_every_digit() {
        for (micros, expected) in [
            (0, "0.000"),
            (499, "0.000"),
            (500, "0.001"),
            (7_000, "0.007"),
            (70_499, "0.070"),
            (999_500, "1.000"),
            (59_999_499, "59.999"),
            (3_600_000_000, "3600.000"),
        ] {
            let duration = Some(Duration::from_micros(micros));
            let members = AuditEvent { duration, ..AuditEvent::new(AuditAct::CallEnded) }.members(|_| None);
            assert_eq!(members, format!(r#""what":"call.ended","seconds":{expected}}}"#));
        }
    }

    /// Auditors can compute the digests with a program of their own.
    #[test]
    fn a_line_has_the_digest_of_the_line_before() {
        let (mut chain, mut lines) = (ChainEnd::default(), Vec::new());
        let ada = Principal::holding("ada");
        for _ in 0..2 {
            let event = AuditEvent { who: Some(&ada), ..AuditEvent::new(AuditAct::Reload) };
            chain.add(Timestamp::from_millis(0), Some("a"), &event.members(|_| None), &mut lines);
        }
        let lines = String::from_utf8(lines).unwrap();
        let (first, second) = lines.trim_end().split_once('\n').unwrap();
        let zeros = "0".repeat(64);
        assert_eq!(
            first,
            format!(
                r#"{{"seq":1,"time":"1970-01-01T00:00:00.000Z","replica":"a","prev":"{zeros}","what":"reload","who":"key:ada","via":"api_key"}}"#
            )
        );
        assert!(second.contains(&format!(r#""prev":"{}""#, hex(&digest_of(first.as_bytes())))), "{second}");
    }
}
