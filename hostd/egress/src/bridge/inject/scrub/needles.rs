//! What is searched for: the values of secrets, and what encoders make of them
//! that is no escape of single characters.

use super::escapes::{self, is_introducer};
use aho_corasick::{
    Anchored, MatchKind,
    automaton::{Automaton, StateID},
    nfa::contiguous::NFA,
};
use base64::{
    Engine, alphabet,
    engine::{GeneralPurpose, general_purpose::NO_PAD},
};
use std::collections::{HashMap, HashSet};
use zeroize::Zeroizing;

/// Levels of escapes inside each other that are undone.
pub const LEVELS: usize = 3;

/// Bytes of all needles of one search: each costs about 32 bytes of memory.
const MOST: usize = 512 * 1024;

/// One host has more secrets than can be searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch;

/// How a needle may be written in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In one piece.
    Plain,
    /// Encoders break it into lines.
    Lines,
}

/// What is searched for, and what is put in its place.
#[derive(Default)]
pub struct Needles {
    needles: Vec<Needle>,
}

struct Needle {
    text: Zeroizing<Vec<u8>>,
    kind: Kind,
    instead: String,
}

impl Needles {
    /// Adds a secret's value in the forms that it may have.
    pub fn add_value(&mut self, value: &[u8], placeholder: &str) {
        self.add(value.to_vec(), placeholder);
        // Forms write a space as '+'.
        self.add(value.iter().map(|byte| if *byte == b' ' { b'+' } else { *byte }).collect(), placeholder);
        // A value that looks escaped loses that where the text around it is unescaped.
        let mut plain = Zeroizing::new(value.to_vec());
        for _ in 0..LEVELS {
            plain = Zeroizing::new(escapes::undo(&plain));
            if plain.len() >= SHORTEST {
                self.add(plain.to_vec(), placeholder);
            }
        }
        for alphabet in [&alphabet::STANDARD, &alphabet::URL_SAFE] {
            let engine = GeneralPurpose::new(alphabet, NO_PAD);
            for shift in 0..3 {
                self.push(aligned(&engine, value, shift), Kind::Lines, placeholder);
            }
        }
        let hex = |digits: &[u8; 16]| {
            let digit = |nibble: u8| digits.get(usize::from(nibble)).copied().unwrap_or_default();
            value.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
        };
        self.push(hex(b"0123456789abcdef"), Kind::Lines, placeholder);
        self.push(hex(b"0123456789ABCDEF"), Kind::Lines, placeholder);
    }

    /// Adds something that is searched for as it is, or escaped.
    pub fn add(&mut self, needle: Vec<u8>, placeholder: &str) {
        self.push(needle, Kind::Plain, placeholder);
    }

    fn push(&mut self, needle: Vec<u8>, kind: Kind, placeholder: &str) {
        let text = Zeroizing::new(needle);
        if !text.is_empty() && !self.needles.iter().any(|known| known.text == text) {
            self.needles.push(Needle { text, kind, instead: placeholder.to_owned() });
        }
    }

    /// Nothing if there is nothing to search for.
    pub fn build(self) -> Result<Option<Finder>, TooMuch> {
        if self.needles.is_empty() {
            return Ok(None);
        }
        if self.needles.iter().map(|needle| needle.text.len()).sum::<usize>() > MOST {
            return Err(TooMuch);
        }
        let texts = || self.needles.iter().map(|needle| needle.text.as_slice());
        let search = NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(texts());
        let search = search.map_err(|_| TooMuch)?;
        let start = search.start_state(Anchored::No).map_err(|_| TooMuch)?;
        let reach = reach(&search, start, texts());
        Ok(Some(Finder { pairs: Pairs::new(texts()), search, start, reach, needles: self.needles }))
    }
}

/// As short as secrets that are sent as text may be.
const SHORTEST: usize = 8;

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

/// For each state, how many of the characters before it a match that is not
/// over may have begun with. A state at the end of a needle that is no part of a
/// longer one has as many as the longest of its ends that a needle goes on from.
fn reach<'a>(search: &NFA, start: StateID, needles: impl Iterator<Item = &'a [u8]>) -> Vec<u32> {
    let mut needles: Vec<&[u8]> = needles.collect();
    needles.sort_unstable_by_key(|needle| needle.len());
    let next = |state, byte: &u8| search.next_state(Anchored::No, state, *byte);
    let mut reach = Vec::<u32>::new();
    let mut inner = HashSet::new();
    for needle in &needles {
        let mut state = start;
        for (length, byte) in (0u32..).zip(*needle) {
            put(&mut reach, state, length);
            inner.insert(state);
            state = next(state, byte);
        }
    }
    let mut whole: HashMap<StateID, StateID> = HashMap::new();
    for needle in &needles {
        let last = needle.iter().fold(start, next);
        let mut shorter = needle.iter().skip(1).fold(start, next);
        if !inner.contains(&last) {
            // Shorter needles come first.
            shorter = whole.get(&shorter).copied().unwrap_or(shorter);
            whole.insert(last, shorter);
        }
    }
    for (last, shorter) in whole {
        let length = reach.get(shorter.as_usize()).copied().unwrap_or(0);
        put(&mut reach, last, length);
    }
    reach
}

fn put(reach: &mut Vec<u32>, state: StateID, length: u32) {
    let index = state.as_usize();
    if reach.len() <= index {
        reach.resize(index + 1, 0);
    }
    if let Some(place) = reach.get_mut(index) {
        *place = length;
    }
}

/// Two characters in a row with which a match may begin: one bit for each pair.
/// Where nothing else is under way, all others are passed over.
struct Pairs {
    pairs: Box<[u64; 1024]>,
    /// One bit for each first character.
    firsts: [u64; 4],
}

impl Pairs {
    fn new<'a>(needles: impl Iterator<Item = &'a [u8]> + Clone) -> Self {
        let mut pairs = Self { pairs: Box::new([0; 1024]), firsts: [0; 4] };
        let firsts = needles.clone().filter_map(|needle| needle.first());
        for first in firsts.chain(escapes::ALL) {
            if let Some(word) = pairs.firsts.get_mut(usize::from(first >> 6)) {
                *word |= 1 << (first & 63);
            }
        }
        for needle in needles {
            let (Some(first), second) = (needle.first(), needle.get(1)) else { continue };
            match second {
                Some(second) => pairs.put(*first, *second),
                None => (0..=255).for_each(|second| pairs.put(*first, second)),
            }
            // What goes on escaped, on the next line, or in UTF-16.
            b"\\%&\r\n\0".iter().for_each(|second| pairs.put(*first, *second));
        }
        // In UTF-16.
        escapes::ALL.iter().for_each(|first| pairs.put(*first, 0));
        for second in 0..=255u8 {
            if matches!(second, b'u' | b'U' | b'x' | b'0'..=b'3')
                || pairs.begins(second) && (second.is_ascii_punctuation() || second == b' ')
            {
                pairs.put(b'\\', second);
            }
            let high = |byte: u8| char::from(second).to_digit(16) == Some(u32::from(byte >> 4));
            if second == b'u' || (0..=0x7f).any(|byte| pairs.begins(byte) && high(byte)) {
                pairs.put(b'%', second);
            }
            if second == b'#' || second.is_ascii_alphabetic() {
                pairs.put(b'&', second);
            }
        }
        pairs
    }

    fn put(&mut self, first: u8, second: u8) {
        let pair = usize::from(first) << 8 | usize::from(second);
        if let Some(word) = self.pairs.get_mut(pair >> 6) {
            *word |= 1 << (pair & 63);
        }
    }

    /// Does a match, or an escape, begin with this?
    fn begins(&self, byte: u8) -> bool {
        self.firsts.get(usize::from(byte >> 6)).is_some_and(|word| word >> (byte & 63) & 1 == 1)
    }

    fn has(&self, first: u8, second: u8) -> bool {
        let pair = usize::from(first) << 8 | usize::from(second);
        self.pairs.get(pair >> 6).is_some_and(|word| word >> (pair & 63) & 1 == 1)
    }
}

/// Secrets, ready to be searched for.
pub struct Finder {
    search: NFA,
    start: StateID,
    reach: Vec<u32>,
    pairs: Pairs,
    needles: Vec<Needle>,
}

impl Finder {
    pub const fn start(&self) -> StateID {
        self.start
    }

    pub fn next(&self, state: StateID, byte: u8) -> StateID {
        self.search.next_state(Anchored::No, state, byte)
    }

    /// Has a value something in it that could be an escape?
    pub fn looks_escaped(&self) -> bool {
        self.needles.iter().any(|needle| needle.text.iter().any(|byte| is_introducer(*byte)))
    }

    /// How many of the characters before this state may belong to a match.
    pub fn reach(&self, state: StateID) -> usize {
        self.reach.get(state.as_usize()).map_or(0, |reach| *reach as usize)
    }

    /// The needles that end in this state: their numbers, lengths and kinds.
    pub fn ended(&self, state: StateID) -> impl Iterator<Item = (usize, usize, Kind)> {
        let count = if self.search.is_match(state) { self.search.match_len(state) } else { 0 };
        (0..count).filter_map(move |index| {
            let number = self.search.match_pattern(state, index).as_usize();
            self.needles.get(number).map(|needle| (number, needle.text.len(), needle.kind))
        })
    }

    pub fn instead(&self, number: usize) -> &str {
        self.needles.get(number).map_or("", |needle| &needle.instead)
    }

    /// The first place from which a match may begin. The last character's
    /// successor is not known, so it always may.
    pub fn skip(&self, text: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let rest = text.get(at..).unwrap_or_default();
            at += self.plain(rest);
            // An escape for a character that no match begins with.
            let rest = text.get(at..).unwrap_or_default();
            match escapes::first(rest) {
                Some((length, byte)) if !self.pairs.begins(byte) => {
                    let inside = rest.get(1..=length).unwrap_or_default();
                    if inside.len() < length || self.plain(inside) < length - 1 {
                        return at;
                    }
                    at += length;
                }
                _ => return at,
            }
        }
    }

    /// Is one in the name of a header? Names have lost their capitals.
    pub fn is_in_name(&self, name: &str) -> bool {
        let name = escapes::undo(name.as_bytes());
        let is_in =
            |needle: &[u8]| name.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle));
        self.needles.iter().any(|needle| is_in(&needle.text))
    }

    fn plain(&self, text: &[u8]) -> usize {
        let pairs = text.iter().zip(text.iter().skip(1));
        pairs.take_while(|(first, second)| !self.pairs.has(**first, **second)).count()
    }
}
