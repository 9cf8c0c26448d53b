//! The search: one automaton that is walked by the text as it is, and by the
//! text with one, two and three levels of escapes undone.
//!
//! ```text
//!   bytes ─▶ Lane ─▶ Layer: unescape ─▶ Lane ─▶ Layer: unescape ─▶ Lane ─▶ …
//!                      └ join lines ─▶ Lane       └ join lines ─▶ Lane
//! ```
//!
//! Without escapes all lanes are in the same state. So only the first of them is
//! walked, and another wakes where an escape or a line break gives it something
//! else to read; it sleeps again as soon as its state is the same. Each lane
//! knows where the characters of its state begin in the body: a match is a range
//! of the body, whatever it was written with.

use super::{
    escapes::{ALL, Char, Escapes, FORMATS, is_introducer},
    needles::{Finder, Kind, LEVELS},
};
use aho_corasick::automaton::StateID;
use std::collections::VecDeque;

/// One character written with more bytes than this, line breaks before it
/// included, ends every match: what has to be kept of a body has a limit.
const WIDEST: u64 = 48;
/// What has matched so far when a line breaks, for the part before the break to
/// be waited with: the end of an event must not wait for the next event.
const BEFORE_BREAK: usize = 4;
/// A lane that has matched more stays awake, so that waking it costs little.
const SLEEPS_BELOW: usize = 64;
/// Matches that overlap are replaced as one up to this length.
const JOINED: u64 = 16 * 1024;

/// A part of the body that a needle was found in.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    pub start: u64,
    pub end: u64,
    pub needle: usize,
}

/// Sorted, and none overlaps another.
#[derive(Debug, Default)]
pub struct Hits(pub Vec<Hit>);

impl Hits {
    fn add(&mut self, mut hit: Hit) {
        let mut at = self.0.partition_point(|known| known.end <= hit.start);
        while let Some(known) = self.0.get_mut(at).filter(|known| known.start < hit.end) {
            if known.start <= hit.start && hit.end <= known.end {
                return;
            }
            let covered = hit.start <= known.start && known.end <= hit.end;
            let joined = known.end.max(hit.end) - known.start.min(hit.start);
            if covered || joined <= JOINED {
                if !covered && known.start < hit.start {
                    hit = Hit { start: known.start, needle: known.needle, ..hit };
                }
                hit.end = hit.end.max(known.end);
                self.0.remove(at);
            } else if known.start < hit.start {
                hit.start = known.end;
                at += 1;
            } else {
                hit.end = known.start;
            }
        }
        if hit.start < hit.end {
            self.0.insert(at, hit);
        }
    }
}

/// One reading of the body.
#[derive(Debug)]
struct Lane {
    state: StateID,
    /// Where the characters begin that the state stands for.
    starts: VecDeque<u64>,
    /// Where the last character ended.
    end: u64,
    awake: bool,
    /// Line breaks were left out of what it reads.
    joined: bool,
}

impl Lane {
    fn new(finder: &Finder, joined: bool) -> Self {
        Self { state: finder.start(), starts: VecDeque::new(), end: 0, awake: false, joined }
    }

    fn reset(&mut self, finder: &Finder) {
        self.state = finder.start();
        self.starts.clear();
    }

    fn step(&mut self, char: Char, finder: &Finder, hits: &mut Hits) {
        if char.end - self.end > WIDEST && !self.starts.is_empty() {
            self.reset(finder);
        }
        self.end = char.end;
        self.state = finder.next(self.state, char.byte);
        self.starts.push_back(char.start);
        for (needle, length, kind) in finder.ended(self.state) {
            if kind == Kind::Plain && self.joined {
                continue;
            }
            let start = self.starts.len().checked_sub(length).and_then(|first| self.starts.get(first));
            if let Some(start) = start {
                hits.add(Hit { start: *start, end: char.end, needle });
            }
        }
        let excess = self.starts.len().saturating_sub(finder.reach(self.state));
        self.starts.drain(..excess);
    }

    /// Takes over what another lane has read.
    fn wake(&mut self, other: &Self) {
        self.awake = true;
        self.state = other.state;
        self.end = other.end;
        self.starts.clear();
        self.starts.extend(&other.starts);
    }

    /// Would it go on as the other does?
    fn is_as(&self, other: &Self) -> bool {
        self.state == other.state
            && self.starts.len() <= SLEEPS_BELOW
            && self.starts.front() == other.starts.front()
    }

    fn held(&self) -> Option<u64> {
        self.starts.front().copied().filter(|_| self.awake)
    }
}

/// The readings that follow from another one.
#[derive(Debug)]
struct Layer {
    /// What it reads, without line breaks.
    lines: Lane,
    /// Line breaks since the last character, if it is followed by any.
    breaks: Option<usize>,
    escapes: Escapes,
    /// What it reads, unescaped.
    plain: Lane,
    inner: Option<Box<Layer>>,
}

impl Layer {
    fn new(finder: &Finder, introducers: &'static [u8], levels: usize) -> Self {
        Self {
            lines: Lane::new(finder, true),
            breaks: None,
            escapes: Escapes::of(introducers),
            plain: Lane::new(finder, false),
            inner: (levels > 0).then(|| Box::new(Self::new(finder, introducers, levels - 1))),
        }
    }

    fn is_asleep(&self) -> bool {
        !self.lines.awake && !self.plain.awake && self.inner.as_ref().is_none_or(|inner| inner.is_asleep())
    }

    /// Sleeps where it would go on as `outer` does, which has taken as much.
    fn doze(&mut self, outer: &Lane) {
        self.lines.awake &= self.breaks.is_some() || !self.lines.is_as(outer);
        self.plain.awake &= !self.escapes.is_idle() || !self.plain.is_as(outer);
        if let Some(inner) = &mut self.inner {
            inner.doze(if self.plain.awake { &self.plain } else { outer });
        }
    }

    /// The next character of what `outer` reads, which `outer` has yet to take.
    fn feed(&mut self, outer: &Lane, char: Char, finder: &Finder, hits: &mut Hits) {
        self.join(outer, char, finder, hits);
        let Some(inner) = &mut self.inner else { return };
        let plain = &mut self.plain;
        if !plain.awake && (self.escapes.begins(char.byte) || char.byte == 0 && !outer.starts.is_empty()) {
            plain.wake(outer);
        }
        if !plain.awake {
            return inner.feed(outer, char, finder, hits);
        }
        // Text of visible ASCII is the same in UTF-8 and, but for zeros, in UTF-16.
        if char.byte != 0 {
            self.escapes.push(char, |char| {
                inner.feed(plain, char, finder, hits);
                plain.step(char, finder, hits);
            });
        }
    }

    fn join(&mut self, outer: &Lane, char: Char, finder: &Finder, hits: &mut Hits) {
        let lines = &mut self.lines;
        let is_break = matches!(char.byte, b'\r' | b'\n');
        if !lines.awake {
            if !is_break || outer.starts.is_empty() {
                return;
            }
            lines.wake(outer);
        }
        let is_indent = self.breaks.is_some() && matches!(char.byte, b' ' | b'\t');
        if !is_break && !is_indent {
            self.breaks = None;
            return lines.step(char, finder, hits);
        }
        let breaks = self.breaks.get_or_insert_default();
        *breaks += usize::from(char.byte == b'\n');
        // An empty line ends what was encoded.
        if *breaks > 1 {
            lines.reset(finder);
        }
        if lines.starts.len() < BEFORE_BREAK {
            lines.starts.iter_mut().for_each(|start| *start = char.end);
        }
    }

    fn finish(&mut self, finder: &Finder, hits: &mut Hits) {
        let Some(inner) = &mut self.inner else { return };
        let plain = &mut self.plain;
        self.escapes.finish(|char| {
            inner.feed(plain, char, finder, hits);
            plain.step(char, finder, hits);
        });
        inner.finish(finder, hits);
    }

    /// The first byte that a match which is not over may have.
    fn held(&self) -> Option<u64> {
        let own = [self.lines.held(), self.plain.held(), self.escapes.start()];
        let inner = self.inner.as_ref().and_then(|inner| inner.held());
        own.into_iter().chain([inner]).flatten().min()
    }
}

/// The search through one body.
#[derive(Debug)]
pub struct Search {
    bytes: Lane,
    layers: Vec<Layer>,
    /// Where the next byte is.
    at: u64,
    pub hits: Hits,
}

impl Search {
    pub fn new(finder: &Finder) -> Self {
        let bytes = Lane { awake: true, ..Lane::new(finder, false) };
        let mut layers = vec![Layer::new(finder, ALL, LEVELS)];
        if finder.looks_escaped() {
            // What is an escape in one format is part of a value in another.
            layers.extend(FORMATS.map(|format| Layer::new(finder, format, LEVELS)));
        }
        Self { bytes, layers, at: 0, hits: Hits::default() }
    }

    pub fn push(&mut self, piece: &[u8], finder: &Finder) {
        let mut rest = piece;
        let mut asleep = self.layers.iter().all(Layer::is_asleep);
        while !rest.is_empty() {
            if asleep && self.bytes.starts.is_empty() {
                let skipped = finder.skip(rest);
                self.at += skipped as u64;
                self.bytes.end = self.at;
                rest = rest.get(skipped..).unwrap_or_default();
            }
            let Some((byte, later)) = rest.split_first() else { return };
            rest = later;
            let char = Char { byte: *byte, start: self.at, end: self.at + 1 };
            self.at += 1;
            if !asleep || is_introducer(*byte) || matches!(*byte, b'\r' | b'\n' | 0) {
                for layer in &mut self.layers {
                    layer.feed(&self.bytes, char, finder, &mut self.hits);
                }
                self.bytes.step(char, finder, &mut self.hits);
                self.layers.iter_mut().for_each(|layer| layer.doze(&self.bytes));
                asleep = self.layers.iter().all(Layer::is_asleep);
            } else {
                self.bytes.step(char, finder, &mut self.hits);
            }
        }
    }

    /// The body ends here, or a message in it: nothing goes on after it.
    pub fn finish(&mut self, finder: &Finder) {
        self.layers.iter_mut().for_each(|layer| layer.finish(finder, &mut self.hits));
        let (hits, at) = (std::mem::take(&mut self.hits), self.at);
        *self = Self { at, hits, ..Self::new(finder) };
        self.bytes.end = at;
    }

    /// Everything before this is decided.
    pub fn decided(&self) -> u64 {
        let held = self.layers.iter().filter_map(Layer::held);
        self.bytes.held().into_iter().chain(held).min().unwrap_or(self.at)
    }
}
