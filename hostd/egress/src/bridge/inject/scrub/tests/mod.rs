//! What is found, whoever wrote it, and what is left alone.

mod encoders;

use super::{Finder, Needles, Stream, Style};
use crate::bridge::fuzz::Random;
use bytes::Bytes;
use std::sync::Arc;

const VALUE: &[u8] = br#"sk-"live"/0123+x"#;
const PLACEHOLDER: &str = "berth_secret_x";

fn finder_of(values: &[&[u8]]) -> Arc<Finder> {
    let mut needles = Needles::default();
    for value in values {
        needles.add_value(value, PLACEHOLDER);
    }
    Arc::new(needles.build().unwrap().unwrap())
}

fn finder() -> Arc<Finder> {
    let mut needles = Needles::default();
    needles.add_value(VALUE, PLACEHOLDER);
    needles.add(b"short-one".to_vec(), "P");
    needles.add(b"short-one-and-longer".to_vec(), "Q");
    Arc::new(needles.build().unwrap().unwrap())
}

/// What a body becomes that comes in these pieces, and how many were replaced.
fn scrub<'a>(finder: &Arc<Finder>, style: Style, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, usize) {
    let mut stream = Stream::new(finder.clone(), style);
    let mut output = Vec::new();
    for piece in pieces {
        output.extend_from_slice(&stream.push(Bytes::copy_from_slice(piece)));
    }
    output.extend_from_slice(&stream.finish());
    (output, stream.replaced())
}

/// In pieces of random sizes.
fn scrub_at_random(finder: &Arc<Finder>, style: Style, text: &[u8], random: &mut Random) -> Vec<u8> {
    let most = [1, 2, 5, 17, 300][random.below(5)];
    let mut rest = text;
    let pieces = std::iter::from_fn(|| {
        let (piece, later) = rest.split_at((1 + random.below(most)).min(rest.len()));
        rest = later;
        (!piece.is_empty()).then_some(piece)
    });
    scrub(finder, style, pieces).0
}

#[test]
fn the_longest_wins_and_ends_are_not_lost() {
    for (text, wanted) in [
        ("a short-one b", "a P b"),
        ("a short-one-and-longer b", "a Q b"),
        ("a short-one-and-lo", "a P-and-lo"),
        ("a short-on", "a short-on"),
        ("short-oneshort-one-and-longershort", "PQshort"),
        (r"short\u002done-and-long\x65r \", r"Q \"),
        ("short%2done&", "P&"),
    ] {
        for size in 1..text.len() + 1 {
            let (output, replaced) = scrub(&finder(), Style::Text, text.as_bytes().chunks(size));
            assert_eq!(String::from_utf8_lossy(&output), wanted, "{text} {size}");
            assert_eq!(replaced > 0, text != wanted);
            let (output, _) = scrub(&finder(), Style::SameLength, text.as_bytes().chunks(size));
            assert_eq!(output.len(), text.len());
        }
    }
}

#[test]
fn names_of_headers_are_searched_without_their_capitals() {
    let finder = finder_of(&[b"Sk-Live_0123/X"]);
    for name in ["sk-live_0123%2fx", "x-meta-sk-live_0123%2fx", "SK-LIVE_0123%2FX", "u2sttgl2zv8wmtizl1g"] {
        assert!(finder.is_in_name(name), "{name}");
    }
    for name in ["", "x", "sk-live", "sk-live_0123-x", "content-type"] {
        assert!(!finder.is_in_name(name), "{name}");
    }
}

#[test]
fn an_event_is_not_late() {
    let mut stream = Stream::new(finder(), Style::Text);
    for (piece, wanted) in [
        ("data: hello\n\n", "data: hello\n\n"),
        ("data: s", "data: "),
        ("o\n", "so\n"),
        // The line break does not keep the character before it, which is the
        // first of a value in base64.
        ("data: c\n", "data: c\n"),
        ("\n", "\n"),
        (r#"data: {"text":"100% \"#, r#"data: {"text":"100% "#),
        ("n\"}\n\n", "\\n\"}\n\n"),
        // Nor does a longer beginning, after an empty line.
        ("data: c2stImxp\n", "data: "),
        ("\n", "c2stImxp\n\n"),
        (r#"sk-"live"/0123+x"#, PLACEHOLDER),
    ] {
        assert_eq!(stream.push(Bytes::from(piece)), wanted, "{piece}");
    }
}

#[test]
fn what_has_no_secret_is_passed_on_without_a_copy() {
    let text = Bytes::from(vec![b'x'; 4096]);
    let mut stream = Stream::new(finder(), Style::Text);
    let passed = stream.push(text.clone());
    assert_eq!((passed.as_ptr(), passed.len()), (text.as_ptr(), text.len()));
}

/// A server that knows the value and wants the bridge to keep much, or to work long.
#[test]
fn what_is_kept_has_a_limit() {
    let periodic = vec![b'a'; 4096];
    let value = b"sk-live-0123456789".as_slice();
    let finder = finder_of(&[&periodic, value]);
    let most = JOINED_AND_HELD;
    for unit in [
        b"a".as_slice(),
        b"%61",
        b"&#x61;",
        b"\\u0061",
        b"%2561",
        b"%252561",
        b"a\0",
        b"YWFh\n",
        b"61",
        b"c2stbGl2ZS0wMTIz\r\n\t  ",
        b"\n",
        b"\0",
        b"&#0000",
        b"\\",
        b"%25",
        b"sk-live-012345678",
    ] {
        let mut stream = Stream::new(finder.clone(), Style::SameLength);
        let piece = Bytes::from(unit.repeat(1024));
        let (mut pushed, mut given) = (0, 0);
        for _ in 0..60 {
            pushed += piece.len();
            given += stream.push(piece.clone()).len();
            assert!(pushed - given < most, "{} of {unit:?} are kept", pushed - given);
        }
        given += stream.finish().len();
        assert_eq!(pushed, given, "as many bytes");
        // A needle that is replaced does not become much more than it was.
        let mut stream = Stream::new(finder.clone(), Style::Text);
        given = (0..30).map(|_| stream.push(piece.clone()).len()).sum::<usize>() + stream.finish().len();
        assert!(given < 2 * 30 * piece.len() + 64, "{unit:?} became {given}");
    }
}

/// The longest value in hexadecimal digits, each written with a few bytes; less
/// than what a response's window holds.
const JOINED_AND_HELD: usize = 128 * 1024;

#[test]
fn one_host_may_have_only_so_many_long_secrets() {
    let mut needles = Needles::default();
    for number in 0..8u8 {
        let value: Vec<u8> = (0..4096u32).map(|at| b'a' + (at * 7 % 23) as u8 + number % 2).collect();
        needles.add_value(&[&[b'0' + number], &*value].concat()[..4096], PLACEHOLDER);
    }
    assert!(needles.build().is_ok());
    let mut needles = Needles::default();
    for number in 0..100u8 {
        needles.add_value(&[&[b'!' + number % 90, b'0' + number / 90], &*vec![b'x'; 4000]].concat(), "P");
    }
    assert!(needles.build().is_err(), "what searching costs has a limit");
}
