//! Finding secrets in what a server sends back, and putting the placeholder
//! there instead.
//!
//! A value comes back as it went out, or as a text format wrote it: escaped,
//! percent-encoded, or inside base64, where it has one of three alignments.

use aho_corasick::{AhoCorasick, MatchKind};
use base64::{
    Engine, alphabet,
    engine::{GeneralPurpose, general_purpose::NO_PAD},
};
use zeroize::Zeroizing;

/// What is searched for, and what is put in its place.
#[derive(Default)]
pub struct Needles {
    found: Vec<Zeroizing<Vec<u8>>>,
    instead: Vec<String>,
}

impl Needles {
    /// Adds a secret's value in the forms that it may have.
    pub fn add_value(&mut self, value: &[u8], placeholder: &str) {
        self.add(value.to_vec(), placeholder);
        self.add(json(value), placeholder);
        self.add(percent(value).into_bytes(), placeholder);
        for alphabet in [&alphabet::STANDARD, &alphabet::URL_SAFE] {
            let engine = GeneralPurpose::new(alphabet, NO_PAD);
            for shift in 0..3 {
                self.add(aligned(&engine, value, shift), placeholder);
            }
        }
    }

    pub fn add(&mut self, needle: Vec<u8>, placeholder: &str) {
        let needle = Zeroizing::new(needle);
        if !needle.is_empty() && !self.found.contains(&needle) {
            self.found.push(needle);
            self.instead.push(placeholder.to_owned());
        }
    }

    pub fn build(self) -> Option<Finder> {
        if self.found.is_empty() {
            return None;
        }
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(self.found.iter().map(|needle| needle.as_slice()))
            .ok()?;
        let longest = self.found.iter().map(|needle| needle.len()).max().unwrap_or_default();
        Some(Finder { search, needles: self, longest })
    }
}

/// The part of a value's base64 that does not depend on what surrounds it,
/// when `shift` bytes stand before it in its group of three.
fn aligned(engine: &GeneralPurpose, value: &[u8], shift: usize) -> Vec<u8> {
    let mut text = Zeroizing::new(vec![0; shift]);
    text.extend_from_slice(value);
    let encoded = Zeroizing::new(engine.encode(&*text));
    // Characters that hold bits of a neighbour: at the start, and at the end.
    let first = (shift * 8).div_ceil(6);
    let last = text.len() * 8 / 6;
    encoded.as_bytes().get(first..last).unwrap_or_default().to_vec()
}

pub fn json(value: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(value.len());
    for byte in value {
        if matches!(byte, b'"' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    escaped
}

pub fn percent(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

pub struct Finder {
    search: AhoCorasick,
    needles: Needles,
    longest: usize,
}

/// How a needle is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// By the placeholder, whatever its length.
    Text,
    /// By as many bytes: formats that count bytes stay whole.
    SameLength,
}

impl Finder {
    /// In something whole, such as a header's value.
    pub fn replace(&self, text: &[u8]) -> Option<Vec<u8>> {
        self.search.is_match(text).then(|| {
            let mut output = Vec::with_capacity(text.len());
            self.copy(text, text.len(), Style::Text, &mut output);
            output
        })
    }

    /// Copies `text` with the needles replaced that start before `limit`; returns how
    /// much of it was copied, which is at least that, and how many were replaced.
    fn copy(&self, text: &[u8], limit: usize, style: Style, output: &mut Vec<u8>) -> (usize, usize) {
        let (mut done, mut replaced) = (0, 0);
        for found in self.search.find_iter(text).take_while(|found| found.start() < limit) {
            output.extend_from_slice(text.get(done..found.start()).unwrap_or_default());
            let instead = self.needles.instead.get(found.pattern().as_usize()).map_or("", String::as_str);
            match style {
                Style::Text => output.extend_from_slice(instead.as_bytes()),
                Style::SameLength => {
                    let padded = instead.bytes().chain(std::iter::repeat(b'*'));
                    output.extend(padded.take(found.end() - found.start()));
                }
            }
            done = found.end();
            replaced += 1;
        }
        output.extend_from_slice(text.get(done..limit).unwrap_or_default());
        (done.max(limit), replaced)
    }

    /// How many bytes at the end of `text` may be the start of a needle.
    fn open_end(&self, text: &[u8]) -> usize {
        let from = text.len().saturating_sub(self.longest.saturating_sub(1));
        let tail = text.get(from..).unwrap_or_default();
        (0..tail.len())
            .find(|start| {
                let end = tail.get(*start..).unwrap_or_default();
                self.needles.found.iter().any(|needle| needle.len() > end.len() && needle.starts_with(end))
            })
            .map_or(0, |start| tail.len() - start)
    }
}

/// One body that goes by in pieces. Only what may be the start of a needle is
/// held back, so that an event is not late.
pub struct Stream {
    finder: std::sync::Arc<Finder>,
    style: Style,
    held: Zeroizing<Vec<u8>>,
    replaced: usize,
}

impl Stream {
    pub fn new(finder: std::sync::Arc<Finder>, style: Style) -> Self {
        Self { finder, style, held: Zeroizing::default(), replaced: 0 }
    }

    /// How many needles there were so far.
    pub const fn replaced(&self) -> usize {
        self.replaced
    }

    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let ready = self.held.len() - self.finder.open_end(&self.held);
        let mut output = Vec::with_capacity(ready);
        let (copied, replaced) = self.finder.copy(&self.held, ready, self.style, &mut output);
        self.replaced += replaced;
        self.held.drain(..copied);
        output
    }

    pub fn finish(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        let held = std::mem::take(&mut self.held);
        let (_, replaced) = self.finder.copy(&held, held.len(), self.style, &mut output);
        self.replaced += replaced;
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use std::sync::Arc;

    const VALUE: &[u8] = br#"sk-"live"/0123+x"#;

    fn finder() -> Arc<Finder> {
        let mut needles = Needles::default();
        needles.add_value(VALUE, "berth_secret_x");
        needles.add(b"short-one".to_vec(), "P");
        needles.add(b"short-one-and-longer".to_vec(), "Q");
        Arc::new(needles.build().unwrap())
    }

    fn in_pieces(text: &[u8], size: usize, style: Style) -> Vec<u8> {
        let mut stream = Stream::new(finder(), style);
        let mut output: Vec<u8> = text.chunks(size).flat_map(|piece| stream.push(piece)).collect();
        output.extend(stream.finish());
        let changed = output != text;
        assert_eq!(stream.replaced() > 0, changed, "what was replaced is counted");
        output
    }

    #[test]
    fn every_form_is_found_in_any_pieces() {
        let mut forms = vec![VALUE.to_vec(), json(VALUE), percent(VALUE).into_bytes()];
        for before in ["", "u:", "user:", "x:y"] {
            let text = [before.as_bytes(), VALUE, b"!"].concat();
            forms.push(STANDARD.encode(&text).into_bytes());
            forms.push(URL_SAFE_NO_PAD.encode(&text).into_bytes());
        }
        for form in forms {
            let text = [b"before ".as_slice(), &form, b" after"].concat();
            for size in 1..text.len() + 1 {
                let output = in_pieces(&text, size, Style::Text);
                let output = String::from_utf8(output).unwrap();
                assert!(output.contains("berth_secret_x"), "{output}");
                assert!(output.starts_with("before ") && output.ends_with(" after"), "{output}");
                assert_eq!(in_pieces(&text, size, Style::SameLength).len(), text.len());
            }
        }
    }

    #[test]
    fn the_longest_wins_and_ends_are_not_lost() {
        for (text, wanted) in [
            ("a short-one b", "a P b"),
            ("a short-one-and-longer b", "a Q b"),
            ("a short-one-and-lo", "a P-and-lo"),
            ("a short-on", "a short-on"),
            ("short-oneshort-one-and-longershort", "PQshort"),
        ] {
            for size in 1..text.len() + 1 {
                assert_eq!(in_pieces(text.as_bytes(), size, Style::Text), wanted.as_bytes(), "{text} {size}");
            }
        }
    }

    #[test]
    fn an_event_is_not_late() {
        let mut stream = Stream::new(finder(), Style::Text);
        assert_eq!(stream.push(b"data: hello\n\n"), b"data: hello\n\n");
        assert_eq!(stream.push(b"data: s"), b"data: ");
        assert_eq!(stream.push(b"o\n"), b"so\n");
    }
}
