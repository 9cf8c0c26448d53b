//! Escapes of the formats in which servers answer, undone one level at a time.
//!
//! All formats at once: `\/`, `\u002f`, `\x2f` and `\057` of JSON and program
//! text, `%2f` and `%u002f` of addresses, `&#47;`, `&#x2f;` and `&sol;` of HTML.
//! What is no escape passes as it is. Secrets that are sent as text are visible
//! ASCII, so an escape for anything else becomes [`OTHER`], which no secret has.

/// One character, and the bytes of the body that it was written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Char {
    pub byte: u8,
    pub start: u64,
    pub end: u64,
}

/// Stands for every character that no secret contains.
const OTHER: u8 = 0x80;
/// Digits of a numeric character reference, leading zeros included.
const DIGITS: usize = 8;
/// Letters of a named character reference.
const LETTERS: usize = 16;

/// The first characters of escapes.
pub const ALL: &[u8] = b"\\%&";
/// By format: of JSON and programs, of addresses, of HTML.
pub const FORMATS: [&[u8]; 3] = [b"\\", b"%", b"&"];

pub fn is_introducer(byte: u8) -> bool {
    ALL.contains(&byte)
}

#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    /// More characters decide.
    More,
    /// The first character stands for itself.
    Literal,
    /// So many characters stand for this one.
    Escape(usize, u8),
}

/// Undoes one level of escapes.
#[derive(Debug)]
pub struct Escapes {
    introducers: &'static [u8],
    /// What may be an escape, when more of it is there. Short: every escape is.
    pending: Vec<Char>,
}

impl Escapes {
    /// The escapes that begin with one of these.
    pub const fn of(introducers: &'static [u8]) -> Self {
        Self { introducers, pending: Vec::new() }
    }

    pub fn begins(&self, byte: u8) -> bool {
        self.introducers.contains(&byte)
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Where the escape begins that is not whole yet.
    pub fn start(&self) -> Option<u64> {
        self.pending.first().map(|first| first.start)
    }

    /// Takes one character and gives what is decided by it.
    pub fn push(&mut self, char: Char, mut give: impl FnMut(Char)) {
        if self.pending.is_empty() && !self.begins(char.byte) {
            return give(char);
        }
        self.pending.push(char);
        self.settle(false, give);
    }

    /// The text ends here.
    pub fn finish(&mut self, give: impl FnMut(Char)) {
        self.settle(true, give);
    }

    fn settle(&mut self, ended: bool, mut give: impl FnMut(Char)) {
        while let Some(first) = self.pending.first().copied() {
            let pending = |index: usize| self.pending.get(index).map(|char: &Char| char.byte);
            let parsed = if self.begins(first.byte) { parse(pending, ended) } else { Parsed::Literal };
            let (taken, byte) = match parsed {
                Parsed::More if !ended => return,
                Parsed::More | Parsed::Literal => (1, first.byte),
                Parsed::Escape(taken, byte) => (taken, byte),
            };
            let end = self.pending.get(taken - 1).map_or(first.end, |last| last.end);
            self.pending.drain(..taken);
            give(Char { byte, start: first.start, end });
        }
    }
}

fn parse(at: impl Fn(usize) -> Option<u8>, ended: bool) -> Parsed {
    match at(0) {
        Some(b'\\') => backslash(at),
        Some(b'%') => percent(at),
        Some(b'&') => reference(at, ended),
        _ => Parsed::Literal,
    }
}

fn backslash(at: impl Fn(usize) -> Option<u8>) -> Parsed {
    match at(1) {
        None => Parsed::More,
        Some(b'u') if at(2).is_none() => Parsed::More,
        Some(b'u') if at(2) == Some(b'{') => braced(at),
        Some(b'u') => digits(at, 2, 4, 16),
        Some(b'U') => digits(at, 2, 8, 16),
        Some(b'x') => digits(at, 2, 2, 16),
        Some(b'0'..=b'3') => digits(at, 1, 3, 8),
        Some(b'n') => Parsed::Escape(2, b'\n'),
        Some(b'r') => Parsed::Escape(2, b'\r'),
        Some(b't') => Parsed::Escape(2, b'\t'),
        Some(byte) if byte.is_ascii_punctuation() || byte == b' ' => Parsed::Escape(2, byte),
        Some(_) => Parsed::Literal,
    }
}

fn percent(at: impl Fn(usize) -> Option<u8>) -> Parsed {
    match at(1) {
        None => Parsed::More,
        Some(b'u') => digits(at, 2, 4, 16),
        Some(_) => digits(at, 1, 2, 16),
    }
}

/// Exactly `count` digits from `first` on.
fn digits(at: impl Fn(usize) -> Option<u8>, first: usize, count: usize, radix: u32) -> Parsed {
    let mut value = 0u32;
    for index in first..first + count {
        let Some(byte) = at(index) else { return Parsed::More };
        let Some(digit) = char::from(byte).to_digit(radix) else { return Parsed::Literal };
        value = value.wrapping_mul(radix) | digit;
    }
    Parsed::Escape(first + count, ascii(value))
}

/// `\u{2f}`
fn braced(at: impl Fn(usize) -> Option<u8>) -> Parsed {
    let mut value = 0u32;
    for index in 3..4 + DIGITS {
        match at(index) {
            None => return Parsed::More,
            Some(b'}') if index > 3 => return Parsed::Escape(index + 1, ascii(value)),
            Some(byte) => match char::from(byte).to_digit(16) {
                Some(digit) => value = value << 4 | digit,
                None => return Parsed::Literal,
            },
        }
    }
    Parsed::Literal
}

fn reference(at: impl Fn(usize) -> Option<u8>, ended: bool) -> Parsed {
    if at(1) != Some(b'#') {
        return named(at);
    }
    let (first, radix) = match at(2) {
        Some(b'x' | b'X') => (3, 16),
        _ => (2, 10),
    };
    let mut value = 0u32;
    for index in first..=first + DIGITS {
        match at(index) {
            None if ended && index > first => return Parsed::Escape(index, ascii(value)),
            None => return Parsed::More,
            Some(b';') if index > first => return Parsed::Escape(index + 1, ascii(value)),
            Some(byte) => match char::from(byte).to_digit(radix) {
                Some(digit) => value = value.wrapping_mul(radix).wrapping_add(digit),
                None if index > first => return Parsed::Escape(index, ascii(value)),
                None => return Parsed::Literal,
            },
        }
    }
    Parsed::Literal
}

/// The characters of ASCII that HTML has names for.
const NAMED: &[(&[u8], u8)] = &[
    (b"DiacriticalGrave", b'`'),
    (b"Hat", b'^'),
    (b"NewLine", b'\n'),
    (b"Tab", b'\t'),
    (b"UnderBar", b'_'),
    (b"VerticalLine", b'|'),
    (b"amp", b'&'),
    (b"AMP", b'&'),
    (b"apos", b'\''),
    (b"ast", b'*'),
    (b"bsol", b'\\'),
    (b"colon", b':'),
    (b"comma", b','),
    (b"commat", b'@'),
    (b"dollar", b'$'),
    (b"equals", b'='),
    (b"excl", b'!'),
    (b"grave", b'`'),
    (b"gt", b'>'),
    (b"GT", b'>'),
    (b"lbrace", b'{'),
    (b"lbrack", b'['),
    (b"lcub", b'{'),
    (b"lowbar", b'_'),
    (b"lpar", b'('),
    (b"lsqb", b'['),
    (b"lt", b'<'),
    (b"LT", b'<'),
    (b"midast", b'*'),
    (b"nbsp", b' '),
    (b"num", b'#'),
    (b"percnt", b'%'),
    (b"period", b'.'),
    (b"plus", b'+'),
    (b"quest", b'?'),
    (b"quot", b'"'),
    (b"QUOT", b'"'),
    (b"rbrace", b'}'),
    (b"rbrack", b']'),
    (b"rcub", b'}'),
    (b"rpar", b')'),
    (b"rsqb", b']'),
    (b"semi", b';'),
    (b"sol", b'/'),
    (b"verbar", b'|'),
    (b"vert", b'|'),
];

fn named(at: impl Fn(usize) -> Option<u8>) -> Parsed {
    for end in 1..=LETTERS + 1 {
        match at(end) {
            None => return Parsed::More,
            Some(b';') => {
                let is_at = |name: &[u8]| {
                    name.len() == end - 1 && (1..).zip(name).all(|(index, byte)| at(index) == Some(*byte))
                };
                let known = NAMED.iter().find(|(name, _)| is_at(name));
                return known.map_or(Parsed::Literal, |(_, byte)| Parsed::Escape(end + 1, *byte));
            }
            Some(byte) if byte.is_ascii_alphabetic() => {}
            Some(_) => return Parsed::Literal,
        }
    }
    Parsed::Literal
}

fn ascii(value: u32) -> u8 {
    u8::try_from(value).ok().filter(u8::is_ascii).unwrap_or(OTHER)
}

/// How long the escape is that this begins with, if it is whole, and for what.
pub fn first(text: &[u8]) -> Option<(usize, u8)> {
    match parse(|index| text.get(index).copied(), false) {
        Parsed::Escape(length, byte) => Some((length, byte)),
        Parsed::More | Parsed::Literal => None,
    }
}

/// One level undone, of something whole.
pub fn undo(text: &[u8]) -> Vec<u8> {
    let mut escapes = Escapes::of(ALL);
    let mut plain = Vec::with_capacity(text.len());
    for byte in text {
        escapes.push(Char { byte: *byte, start: 0, end: 0 }, |char| plain.push(char.byte));
    }
    escapes.finish(|char| plain.push(char.byte));
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_all_formats_are_undone_once() {
        for (written, plain) in [
            (r#"\/ \" \\ \' \- \u002f \u002F \u{2f} \x2F \057 \U0000002f"#, r#"/ " \ ' - / / / / / /"#),
            ("%2f %2F %u002f %25 %252f %2 %zz %", "/ / / % %2f %2 %zz %"),
            ("&amp; &#47; &#x2f; &#X2F; &#0047; &sol; &amp;amp;", "& / / / / / &amp;"),
            ("&#47/ &#x2f", "// /"),
            ("&DiacriticalGrave; &nothing; & && &;", "` &nothing; & && &;"),
            (r"\users \ \u12 \xg \u{} \u{110000000000} \9", r"\users  \u12 \xg \u{} \u{110000000000} \9"),
            (r"\\u0041 \\\/", r"\u0041 \/"),
            (r"a\nb\tc", "a\nb\tc"),
        ] {
            assert_eq!(String::from_utf8_lossy(&undo(written.as_bytes())), plain, "{written}");
        }
        assert_eq!(undo(br"\ud83d\ude00 %e2 &#233;"), [OTHER, OTHER, b' ', OTHER, b' ', OTHER]);
    }

    #[test]
    fn every_character_says_where_it_was() {
        let text = br"a\u002fb%2fc&#47d\";
        let mut escapes = Escapes::of(ALL);
        let mut found = Vec::new();
        for (start, byte) in (0..).zip(text) {
            escapes.push(Char { byte: *byte, start, end: start + 1 }, |char| found.push(char));
        }
        assert_eq!(escapes.start(), Some(17));
        escapes.finish(|char| found.push(char));
        let places: Vec<_> = found.iter().map(|char| (char.byte, char.start, char.end)).collect();
        let wanted = [
            (b'a', 0, 1),
            (b'/', 1, 7),
            (b'b', 7, 8),
            (b'/', 8, 11),
            (b'c', 11, 12),
            (b'/', 12, 16),
            (b'd', 16, 17),
            (b'\\', 17, 18),
        ];
        assert_eq!(places, wanted);
    }
}
