//! Where the requests of one HTTP/1 connection begin and end.
//!
//! hyper frames requests too, but forgives: a length beside chunks is dropped, chunk
//! extensions are skipped. Nothing above it can tell. What passes here hyper frames
//! in the same way, and so does any server; what does not is refused. Bodies are
//! counted, never kept.

use super::head::{self, Body, Fault, Lines};

/// Fewer than hyper takes, so that hyper never stops first.
const TRAILERS: usize = 8 * 1024;
/// Of a chunk's size.
const DIGITS: u8 = 15;

#[derive(Debug)]
pub struct Framing {
    state: State,
    /// Of a head, in bytes.
    limit: usize,
    /// Heads that passed.
    requests: u64,
    /// The request under way asks for another protocol.
    upgrade: bool,
}

#[derive(Debug)]
enum State {
    Head(Lines),
    Length(u64),
    Size {
        digits: u8,
        size: u64,
    },
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    Trailers(Lines),
    /// The next bytes are a request or something else, as the answer says.
    Asked,
    /// Another protocol.
    Switched,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes may pass, at least one.
    Pass(usize),
    /// These begin something that is judged whole.
    More,
    /// Not before the last request is answered.
    Wait,
}

impl Framing {
    pub fn new(limit: usize) -> Self {
        Self { state: State::Head(Lines::default()), limit, requests: 0, upgrade: false }
    }

    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Bytes that will pass whatever they are.
    pub const fn unread(&self) -> u64 {
        match self.state {
            State::Length(left) | State::Data(left) => left,
            State::Switched => u64::MAX,
            _ => 0,
        }
    }

    pub const fn is_in_head(&self) -> bool {
        matches!(self.state, State::Head(_))
    }

    /// Notes that so many of them passed.
    pub fn skip(&mut self, count: u64) {
        match &mut self.state {
            State::Length(left) => {
                *left = left.saturating_sub(count);
                if *left == 0 {
                    self.finish();
                }
            }
            State::Data(left) => {
                *left = left.saturating_sub(count);
                if *left == 0 {
                    self.state = State::DataCr;
                }
            }
            _ => {}
        }
    }

    pub const fn is_waiting(&self) -> bool {
        matches!(self.state, State::Asked)
    }

    /// What was asked for was granted, or not.
    pub fn answered(&mut self, switched: bool) {
        self.state = if switched { State::Switched } else { State::Head(Lines::default()) };
    }

    /// `bytes` begin with the first that has not passed yet.
    pub fn follow(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        let mut passed = 0;
        while let Some((&byte, rest)) = bytes.get(passed..).and_then(<[u8]>::split_first) {
            let unread = self.unread();
            if unread > 0 {
                let count = usize::try_from(unread).unwrap_or(usize::MAX).min(rest.len() + 1);
                self.skip(count as u64);
                passed += count;
                continue;
            }
            match &mut self.state {
                State::Head(_) | State::Trailers(_) | State::Asked if passed > 0 => break,
                State::Head(lines) => {
                    let Some(end) = whole(lines, bytes, self.limit)? else { return Ok(Step::More) };
                    return self.begin(bytes, end);
                }
                State::Trailers(lines) => {
                    let Some(end) = whole(lines, bytes, TRAILERS)? else { return Ok(Step::More) };
                    head::trailers(bytes.get(..end).unwrap_or_default())?;
                    self.finish();
                    return Ok(Step::Pass(end));
                }
                State::Asked => return Ok(Step::Wait),
                state => *state = chunk(state, byte)?,
            }
            passed += 1;
        }
        Ok(if passed > 0 { Step::Pass(passed) } else { Step::More })
    }

    fn begin(&mut self, bytes: &[u8], end: usize) -> Result<Step, Fault> {
        let head = head::head(bytes.get(..end).unwrap_or_default())?;
        self.requests += 1;
        self.upgrade = head.upgrade;
        match head.body {
            Body::Length(0) => self.finish(),
            Body::Length(length) => self.state = State::Length(length),
            Body::Chunked => self.state = State::Size { digits: 0, size: 0 },
        }
        Ok(Step::Pass(end))
    }

    fn finish(&mut self) {
        self.state = if self.upgrade { State::Asked } else { State::Head(Lines::default()) };
    }
}

/// Where a block of lines ends that is judged whole.
fn whole(lines: &mut Lines, bytes: &[u8], limit: usize) -> Result<Option<usize>, Fault> {
    let end = lines.end(bytes)?;
    if end.unwrap_or(bytes.len()) > limit {
        return Err("the head of the request is too large");
    }
    Ok(end)
}

/// One byte between the data of two chunks.
fn chunk(state: &State, byte: u8) -> Result<State, Fault> {
    Ok(match (state, byte) {
        (State::Size { digits: 1.., size }, b'\r') => State::SizeLf(*size),
        (State::Size { digits: 1.., .. }, b';' | b' ' | b'\t') => {
            return Err("the request has chunk extensions");
        }
        (State::Size { digits: digits @ 0..DIGITS, size }, byte) if byte.is_ascii_hexdigit() => {
            let digit = char::from(byte).to_digit(16).unwrap_or_default();
            State::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
        }
        (State::SizeLf(0), b'\n') => State::Trailers(Lines::default()),
        (State::SizeLf(size), b'\n') => State::Data(*size),
        (State::DataCr, b'\r') => State::DataLf,
        (State::DataLf, b'\n') => State::Size { digits: 0, size: 0 },
        _ => return Err(CHUNK),
    })
}

const CHUNK: Fault = "a chunk of the request cannot be read";

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The bodies of the requests that pass whole, byte by byte, and what stopped it.
    /// Nobody is granted another protocol.
    pub fn bodies(bytes: &[u8], limit: usize) -> (Vec<Vec<u8>>, Option<Fault>) {
        let mut framing = Framing::new(limit);
        let (mut found, mut open, mut held) = (Vec::new(), Vec::new(), Vec::new());
        for byte in bytes {
            if framing.is_waiting() {
                framing.answered(false);
            }
            if framing.unread() > 0 {
                open.push(*byte);
            }
            held.push(*byte);
            match framing.follow(&held) {
                Ok(Step::Pass(count)) => {
                    assert_eq!(count, held.len());
                    held.clear();
                }
                Ok(Step::More) => {}
                Ok(Step::Wait) => return (found, None),
                Err(fault) => return (found, Some(fault)),
            }
            if framing.requests() > found.len() as u64 && (framing.is_in_head() || framing.is_waiting()) {
                found.push(std::mem::take(&mut open));
            }
        }
        (found, None)
    }

    fn read(text: &str) -> (Vec<String>, Option<Fault>) {
        let (found, fault) = bodies(text.as_bytes(), 1024);
        (found.into_iter().map(|body| String::from_utf8(body).unwrap()).collect(), fault)
    }

    const CHUNKS: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn requests_follow_each_other() {
        let text = format!(
            "GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello{CHUNKS}\
             5\r\nhello\r\n0A\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n{CHUNKS}0\r\n\r\nGET /"
        );
        let found = ["", "hello", "hello0123456789", ""].map(str::to_owned).to_vec();
        assert_eq!(read(&text), (found, None));
    }

    #[test]
    fn what_is_not_plain_stops_it() {
        let good = "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nok";
        for (bad, why) in [
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "two lengths"),
            ("GET / HTTP/1.1\n", "bare LF"),
            ("\r\nGET / HTTP/1.1\r\n\r\n", "head of the request"),
            (&format!("{CHUNKS}5;x=y\r\nhello\r\n"), "extensions"),
            (&format!("{CHUNKS}5 \r\nhello\r\n"), "extensions"),
            (&format!("{CHUNKS}5\nhello\r\n"), "a chunk"),
            (&format!("{CHUNKS}5\r\nhello!\r\n"), "a chunk"),
            (&format!("{CHUNKS}\r\n"), "a chunk"),
            (&format!("{CHUNKS}+5\r\nhello\r\n"), "a chunk"),
            (&format!("{CHUNKS}0000000000000005\r\nhello\r\n"), "a chunk"),
            (&format!("{CHUNKS}0\r\nHost: x\r\n\r\n"), "trailers"),
            (&format!("{CHUNKS}0\r\nX: y\n\r\n"), "bare LF"),
            (&format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(1024)), "too large"),
        ] {
            let (found, fault) = read(&format!("{good}{bad}"));
            assert!(fault.is_some_and(|fault| fault.contains(why)), "{bad:?}: {fault:?}");
            assert_eq!(found, ["ok"], "{bad:?}");
        }
    }

    #[test]
    fn another_protocol_is_waited_for() {
        let ask = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n";
        for (switched, wanted) in [(true, Ok(Step::Pass(2))), (false, Err("the request has a bare CR"))] {
            let mut framing = Framing::new(1024);
            assert_eq!(framing.follow(ask), Ok(Step::Pass(ask.len())));
            assert_eq!(framing.follow(b"\r\0"), Ok(Step::Wait));
            framing.answered(switched);
            assert_eq!(framing.follow(b"\r\0"), wanted);
        }
    }
}
