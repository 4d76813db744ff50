//! Tampers with audit files in every way, and checks that it is found.

use proptest::prelude::*;

use super::super::record::{AuditAct, AuditEvent};
use super::*;
use crate::task::{Principal, Timestamp};

/// The lines of a chain, with their line ends.
fn chain(count: u64) -> Vec<Vec<u8>> {
    let (mut end, mut lines) = (ChainEnd::default(), Vec::new());
    let who = Principal::holding("ada");
    for n in 0..count {
        let mut line = Vec::new();
        let event = AuditEvent { who: Some(&who), ..AuditEvent::new(AuditAct::CallEnded) };
        end.add(Timestamp::from_millis(n), None, &event.members(|_| None), &mut line);
        lines.push(line);
    }
    lines
}

fn verified(files: &[Vec<u8>]) -> Result<ChainVerifier, String> {
    verified_by(ChainVerifier::default(), files)
}

fn verified_by(mut verifier: ChainVerifier, files: &[Vec<u8>]) -> Result<ChainVerifier, String> {
    for file in files {
        verifier.file(file.as_slice()).map_err(|fault| fault.to_string())?;
    }
    Ok(verifier)
}

#[track_caller]
fn check(what: &str, tamper: impl FnOnce(&mut Vec<Vec<u8>>), expected: &str) {
    let mut lines = chain(5);
    tamper(&mut lines);
    let found = verified(&[lines.concat()]).map(|verifier| format!("{} lines", verifier.lines));
    let found = found.unwrap_or_else(|fault| fault);
    assert!(found.starts_with(expected), "{what}: {found}");
}

fn edit(line: &mut Vec<u8>, from: &str, to: &str) {
    *line = String::from_utf8(line.clone()).unwrap().replacen(from, to, 1).into_bytes();
}

#[test]
fn each_tampering_is_found_with_its_line() {
    check("whole", |_| (), "5 lines");
    check("a name", |lines| edit(&mut lines[2], "ada", "bob"), "line 3, seq 3: its digest is not the one");
    check("a blank", |lines| edit(&mut lines[0], ":", ": "), "line 1, seq 1: its digest is not the one");
    check("a digest", |lines| edit(&mut lines[0], "0000", "0001"), "line 1, seq 1: neither begins a chain");
    check("a number", |lines| edit(&mut lines[1], ":2,", ":3,"), "line 2, seq 3: does not follow seq 1");
    check("number 0", |lines| edit(&mut lines[0], ":1,", ":0,"), "line 1: is not a record");
    check("removed", |lines| drop(lines.remove(1)), "line 2, seq 3: does not follow seq 1");
    check("the first removed", |lines| drop(lines.remove(0)), "line 1, seq 2: the lines before it are missing");
    check("swapped", |lines| lines.swap(2, 3), "line 3, seq 4: does not follow seq 2");
    check("twice", |lines| lines.insert(1, lines[1].clone()), "line 3, seq 2: does not follow seq 2");
    check("the last twice", |lines| lines.push(lines[4].clone()), "line 6, seq 5: does not follow seq 5");
    check("cut off", |lines| lines[4].truncate(40), "line 5, after seq 4: is incomplete");
    check("no line end", |lines| assert_eq!(lines[4].pop(), Some(b'\n')), "line 5, after seq 4: is incomplete");
    check("CRLF", |lines| edit(&mut lines[4], "\n", "\r\n"), "line 5: is not a record");
    check("a blank line", |lines| lines.insert(2, b"\n".to_vec()), "line 3: is not a record");
    check("another text", |lines| lines.insert(2, b"hello\n".to_vec()), "line 3: is not a record");
    check("a NUL", |lines| lines[2][9] = 0, "line 3: is not a record");
    check("two members", |lines| edit(&mut lines[2], "{", "{\"seq\":3,"), "line 3: is not a record");
    check("long", |lines| lines.push([vec![b'x'; 1 << 20], b"\n".to_vec()].concat()), "line 6: is longer");
    check("long and torn", |lines| lines.push(vec![b'{'; 1 << 20]), "line 6: is longer");
    check("empty", Vec::clear, "is empty");
}

#[test]
fn rotated_files_are_one_chain_in_their_order_alone() {
    let lines = chain(9);
    let files = [lines[..3].concat(), lines[3..5].concat(), lines[5..].concat()];
    let found = verified(&files).unwrap();
    assert_eq!((found.lines, found.first, found.last().unwrap().0), (9, 1, 9));
    assert!(verified(&files[1..]).unwrap_err().contains("line 1, seq 4: the lines before it are missing"));
    assert_eq!(verified_by(ChainVerifier::default().partial(), &files[1..]).unwrap().first, 4);
    let [a, b, c] = files;
    assert!(verified(&[a.clone(), c.clone()]).unwrap_err().contains("line 1, seq 6: does not follow seq 3"));
    let reversed = verified_by(ChainVerifier::default().partial(), &[b, a.clone()]);
    assert!(reversed.unwrap_err().contains("line 1, seq 1: does not follow seq 5"));
    // The same numbers in another chain.
    let mut other = lines;
    edit(&mut other[2], "ada", "bob");
    let other = chain_again(&other);
    assert!(verified(&[a, other[3..].concat()]).unwrap_err().contains("line 1, seq 4: neither begins"));
}

/// The edit of an intruder who knows the format: it recomputes all later digests.
fn chain_again(lines: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut before = ChainEnd::default().digest;
    let mut again = Vec::new();
    for line in lines {
        let text = String::from_utf8(line.clone()).unwrap();
        let from = text.find("\"prev\":\"").unwrap() + 8;
        let text = format!("{}{}{}", &text[..from], hex(&before), &text[from + 64..]);
        before = digest_of(text.trim_end().as_bytes());
        again.push(text.into_bytes());
    }
    again
}

#[test]
fn a_chain_that_was_written_anew_is_found_by_an_anchor_alone() {
    let lines = chain(2_500);
    let mut again = lines.clone();
    edit(&mut again[500], "ada", "bob");
    let again = chain_again(&again);
    assert_eq!(verified(&[again.concat()]).unwrap().lines, 2_500);
    let anchors: String = [1, 1_000, 2_000]
        .map(|seq: usize| format!("{seq} {}\n", hex(&digest_of(lines[seq - 1].strip_suffix(b"\n").unwrap()))))
        .concat();
    let verify = |lines: &[Vec<u8>], anchors: &str| {
        let mut verifier = ChainVerifier::with(Anchors::read(anchors.as_bytes()).map_err(|fault| fault.to_string())?);
        verifier.file(lines.concat().as_slice()).map_err(|fault| fault.to_string())?;
        verifier.finish().map_err(|fault| fault.to_string())
    };
    assert_eq!(verify(&lines, &anchors), Ok(()));
    assert_eq!(verify(&again, &anchors).unwrap_err(), "line 1000, seq 1000: differs from the anchor");
    assert!(verify(&lines[..1_999], &anchors).unwrap_err().starts_with("the anchors go on to seq 2000"));
    assert_eq!(verify(&lines[..2_000], &anchors), Ok(()));
    // An anchor file also holds the digests of earlier chains, before this chain's.
    assert_eq!(verify(&lines, &format!("1 {}\n9000 {}\n{anchors}", "a".repeat(64), "b".repeat(64))), Ok(()));
    // A write failed after a part of a line; the next one began a new line, and wrote all lines again.
    let (first, others) = anchors.split_at(anchors.find('\n').unwrap() + 1);
    for torn in ["1", "1000 ", "1000 0a1b2c", "1000 0a1b2c\n", &format!("{}\n{first}", &first[..40])] {
        let torn = if torn.ends_with('\n') { torn.to_owned() } else { format!("{torn}\n") };
        let anchors = format!("{first}{torn}{first}{others}2000 5");
        assert_eq!(verify(&lines, &anchors), Ok(()), "{torn}");
        assert_eq!(verify(&again, &anchors).unwrap_err(), "line 1000, seq 1000: differs from the anchor");
        assert!(verify(&lines[..1_999], &anchors).unwrap_err().starts_with("the anchors go on to seq 2000"));
    }
    for wrong in ["1000 x\n", "x\n", &format!("1 {}\n", "a".repeat(65)), &"9".repeat(1 << 20)] {
        assert_eq!(verify(&lines, wrong).unwrap_err(), "line 1: is not an anchor");
    }
}

/// The digest of every line, as `audit.anchor` has it for each 1,000th.
fn anchors_of(lines: &[Vec<u8>]) -> String {
    let digest = |line: &Vec<u8>| hex(&digest_of(line.strip_suffix(b"\n").unwrap()));
    lines.iter().enumerate().map(|(at, line)| format!("{} {}\n", at + 1, digest(line))).collect()
}

/// Two chains, of nine and of four lines: the file was removed while the gateway was stopped.
#[test]
fn sec_56_a_removed_beginning_end_or_earlier_chain_is_found_by_the_anchors_of_each_chain() {
    let old = chain(9);
    let mut new = chain(4);
    new.iter_mut().for_each(|line| edit(line, "ada", "bob"));
    let new = chain_again(&new);
    let anchors = anchors_of(&old) + &anchors_of(&new);
    let verify = |lines: &[Vec<u8>], is_partial: bool| {
        let verifier = ChainVerifier::with(Anchors::read(anchors.as_bytes()).unwrap());
        let verifier = if is_partial { verifier.partial() } else { verifier };
        let verifier = verified_by(verifier, &[lines.concat()])?;
        verifier.finish().map_err(|fault| fault.to_string())?;
        Ok((verifier.agreed(), verifier.unseen()))
    };
    let unseen = |longest| Some(UnseenChains { count: 1, longest });
    assert_eq!(verify(&old, false), Ok((9, unseen(4))));
    assert_eq!(verify(&new, false), Ok((4, unseen(9))));
    let end = |anchored, seq| {
        Err(format!(
            "the anchors go on to seq {anchored}, and the lines end at seq {seq}: lines are missing at the end"
        ))
    };
    for (lines, is_partial, expected) in [
        // The newest chain does not reach further, and excuses nothing.
        (&old[..6], false, end(9, 6)),
        (&new[..3], false, end(4, 3)),
        (&old[4..], true, Ok((5, unseen(4)))),
        (&old[4..8], true, end(9, 8)),
    ] {
        assert_eq!(verify(lines, is_partial), expected);
    }
    let missing = |seq| format!("line 1, seq {seq}: the lines before it are missing");
    assert!(verify(&old[4..], false).unwrap_err().starts_with(&missing(5)));
    // The beginning of one and the end of the other.
    let spliced = chain_again(&[&old[..2], &new[2..]].concat());
    assert_eq!(verify(&spliced, false).unwrap_err(), "line 3, seq 3: differs from the anchor");
}

/// The chain of the copy is whole, and the gateway has anchored its further lines, too.
#[test]
fn sec_95_an_older_copy_that_was_put_back_and_continued_is_found() {
    let old = chain(9);
    let mut continued = old.clone();
    continued[4..].iter_mut().for_each(|line| edit(line, "ada", "bob"));
    let continued = chain_again(&continued);
    assert_eq!(continued[..4], old[..4]);
    let anchor = |(lines, seq): (&[Vec<u8>], usize)| {
        format!("{seq} {}\n", hex(&digest_of(lines[seq - 1].strip_suffix(b"\n").unwrap())))
    };
    let anchors = [(&*old, 1), (&*old, 3), (&*old, 6), (&*continued, 6), (&*continued, 9)].map(anchor).concat();
    let verify = |lines: &[Vec<u8>]| {
        let verifier = ChainVerifier::with(Anchors::read(anchors.as_bytes()).unwrap());
        verified_by(verifier, &[lines.concat()]).map(|verifier| verifier.lines)
    };
    assert_eq!(verify(&old), Ok(9));
    assert_eq!(verify(&continued).unwrap_err(), "line 6, seq 6: differs from the anchor");
}

proptest! {
    /// Every edit is found, except an edit of the last line: no other line has the digest of the last one.
    #[test]
    fn any_changed_byte_is_found(at in 0_usize..1_000, byte: u8) {
        let lines = chain(8);
        let bound = lines[..7].concat().len();
        let mut text = lines.concat();
        let at = at % bound;
        prop_assume!(text[at] != byte);
        text[at] = byte;
        prop_assert!(verified(&[text]).is_err());
    }

    #[test]
    fn any_other_order_is_found(order in Just((0_usize..8).collect::<Vec<_>>()).prop_shuffle(), kept in 1_usize..=8) {
        let lines = chain(8);
        let chosen: Vec<_> = order[..kept].iter().map(|at| lines[*at].clone()).collect();
        let is_a_part = order[..kept].windows(2).all(|pair| pair[1] == pair[0] + 1);
        prop_assert_eq!(verified_by(ChainVerifier::default().partial(), &[chosen.concat()]).is_ok(), is_a_part);
        prop_assert_eq!(verified(&[chosen.concat()]).is_ok(), is_a_part && order[0] == 0);
    }
}
