//! One body that goes by in pieces. Only what may be the start of a needle is
//! held back, so that an event is not late; what has none in it is not copied.

use super::{Finder, lanes::Search};
use bytes::Bytes;
use std::sync::Arc;
use zeroize::Zeroizing;

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
        if self.skip(text) + 1 >= text.len() {
            return None;
        }
        let mut search = Search::new(self);
        search.push(text, self);
        search.finish(self);
        let found = !search.hits.0.is_empty();
        found.then(|| {
            Output { finder: self, style: Style::Text, search: &mut search }.assemble(&[], text, 0).0
        })
    }
}

pub struct Stream {
    finder: Arc<Finder>,
    style: Style,
    search: Search,
    held: Zeroizing<Vec<u8>>,
    /// Where in the body those held are.
    first: u64,
    replaced: usize,
}

impl Stream {
    pub fn new(finder: Arc<Finder>, style: Style) -> Self {
        let search = Search::new(&finder);
        Self { finder, style, search, held: Zeroizing::default(), first: 0, replaced: 0 }
    }

    /// How many needles there were so far.
    pub const fn replaced(&self) -> usize {
        self.replaced
    }

    pub fn push(&mut self, piece: Bytes) -> Bytes {
        self.search.push(&piece, &self.finder);
        self.give(piece)
    }

    /// Nothing that follows can belong to what was there before.
    pub fn finish(&mut self) -> Bytes {
        self.search.finish(&self.finder);
        self.give(Bytes::new())
    }

    fn give(&mut self, mut piece: Bytes) -> Bytes {
        if self.held.is_empty() && self.search.hits.0.is_empty() {
            let decided = usize::try_from(self.search.decided() - self.first).unwrap_or(usize::MAX);
            self.held.extend_from_slice(&piece.split_off(decided.min(piece.len())));
            self.first += piece.len() as u64;
            return piece;
        }
        let mut output = Output { finder: &self.finder, style: self.style, search: &mut self.search };
        let (bytes, decided, replaced) = output.assemble(&self.held, &piece, self.first);
        self.replaced += replaced;
        let taken = usize::try_from(decided - self.first).unwrap_or(usize::MAX);
        self.first = decided;
        let of_held = taken.min(self.held.len());
        self.held.drain(..of_held);
        self.held.extend_from_slice(piece.get(taken - of_held..).unwrap_or_default());
        bytes.into()
    }
}

/// Puts together what is decided.
struct Output<'a> {
    finder: &'a Finder,
    style: Style,
    search: &'a mut Search,
}

impl Output<'_> {
    /// What `held` and then `piece`, which begin at `first`, become; how far that
    /// goes, and how many needles were replaced.
    fn assemble(&mut self, held: &[u8], piece: &[u8], first: u64) -> (Vec<u8>, u64, usize) {
        let decided = self.search.decided();
        let hits = &mut self.search.hits.0;
        let over = hits.iter().take_while(|hit| hit.end <= decided).count();
        // A needle that may yet become a longer one waits whole.
        let until = hits.get(over).map_or(decided, |hit| hit.start.min(decided));
        let mut output = Vec::with_capacity(held.len() + piece.len());
        let mut at = first;
        let copy = |from: u64, to: u64, output: &mut Vec<u8>| {
            let index = |place: u64| usize::try_from(place.saturating_sub(first)).unwrap_or(usize::MAX);
            let (from, to) = (index(from), index(to));
            let border = held.len();
            output.extend_from_slice(held.get(from.min(border)..to.min(border)).unwrap_or_default());
            let (from, to) = (from.max(border) - border, to.max(border) - border);
            output.extend_from_slice(piece.get(from..to).unwrap_or_default());
        };
        for hit in hits.drain(..over) {
            copy(at, hit.start, &mut output);
            let instead = self.finder.instead(hit.needle);
            match self.style {
                Style::Text => output.extend_from_slice(instead.as_bytes()),
                Style::SameLength => {
                    let length = usize::try_from(hit.end - hit.start.max(at)).unwrap_or_default();
                    output.extend(instead.bytes().chain(std::iter::repeat(b'*')).take(length));
                }
            }
            at = hit.end;
        }
        copy(at, until, &mut output);
        (output, until.max(at), over)
    }
}
