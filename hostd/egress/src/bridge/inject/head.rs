//! The head of an HTTP/1 request, read as strictly as the strictest server would.
//!
//! Servers differ in what they make of two lengths, of bare line ends, of folded
//! lines. A request that could be read in two ways is not read at all.

use hyper::{Method, Uri};

/// Why a request is refused, for people.
pub type Fault = &'static str;

pub const MAX_HEADERS: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Chunked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub body: Body,
    /// Asks for another protocol on this connection.
    pub upgrade: bool,
}

/// A block of lines that is ended by an empty one, searched as it arrives.
#[derive(Debug)]
pub struct Lines {
    seen: usize,
    previous: u8,
    /// Of the line under way.
    length: usize,
}

impl Default for Lines {
    fn default() -> Self {
        Self { seen: 0, previous: b'\n', length: 0 }
    }
}

impl Lines {
    /// Where the block ends. `bytes` begin where the block does, each time.
    pub fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        for byte in bytes.iter().skip(self.seen).copied() {
            self.seen += 1;
            match (self.previous, byte) {
                (b'\r', b'\n') if self.length == 0 => return Ok(Some(self.seen)),
                (b'\r', b'\n') => self.length = 0,
                (b'\r', _) => return Err("the request has a bare CR"),
                (_, b'\n') => return Err("the request has a bare LF"),
                (b'\n', b' ' | b'\t') => return Err("the request has a folded line"),
                (_, b'\r') => {}
                _ => self.length += 1,
            }
            self.previous = byte;
        }
        Ok(None)
    }
}

/// `bytes` are one whole block of [`Lines`].
pub fn head(bytes: &[u8]) -> Result<Head, Fault> {
    const UNREADABLE: Fault = "the head of the request cannot be read";
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err("the request has too many headers"),
        _ => return Err(UNREADABLE),
    }
    let method = Method::from_bytes(request.method.unwrap_or_default().as_bytes());
    if method.map_err(|_| UNREADABLE)? == Method::CONNECT {
        return Err("CONNECT would hide what is sent");
    }
    request.path.unwrap_or_default().parse::<Uri>().map_err(|_| UNREADABLE)?;
    let mut read = Head { body: Body::Length(0), upgrade: false };
    let mut has_length = false;
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let body = if is("content-length") {
            Body::Length(length(header.value).ok_or("the length of the request cannot be read")?)
        } else if is("transfer-encoding") {
            if request.version != Some(1) || !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err("the request has another transfer encoding than chunked");
            }
            Body::Chunked
        } else {
            read.upgrade |= is("upgrade");
            continue;
        };
        if has_length {
            return Err("the request has two lengths");
        }
        (has_length, read.body) = (true, body);
    }
    Ok(read)
}

/// Digits and nothing else: no sign, no list, no space.
fn length(value: &[u8]) -> Option<u64> {
    // The largest numbers mean something else to hyper.
    const MAX: u64 = u64::MAX - 2;
    let text =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse().ok().filter(|length| *length < MAX)
}

/// What follows the last chunk. It cannot say anything about the framing.
pub fn trailers(bytes: &[u8]) -> Result<(), Fault> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let Ok(httparse::Status::Complete((length, found))) = httparse::parse_headers(bytes, &mut headers) else {
        return Err("the trailers of the request cannot be read");
    };
    let forbidden = ["content-length", "transfer-encoding", "host"];
    let is_forbidden =
        |header: &httparse::Header<'_>| forbidden.iter().any(|name| header.name.eq_ignore_ascii_case(name));
    if length != bytes.len() || found.iter().any(is_forbidden) {
        return Err("the request has trailers that belong to its head");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> Result<Head, Fault> {
        let text = format!("POST / HTTP/1.1\r\nHost: api.example\r\n{lines}\r\n");
        let end = Lines::default().end(text.as_bytes())?.expect("a whole head");
        assert_eq!(end, text.len());
        head(text.as_bytes())
    }

    #[test]
    fn one_length_is_read() {
        for (lines, body) in [
            ("", Body::Length(0)),
            ("Content-Length: 5\r\n", Body::Length(5)),
            ("content-length:005 \r\n", Body::Length(5)),
            ("Transfer-Encoding: Chunked\r\n", Body::Chunked),
        ] {
            assert_eq!(read(lines), Ok(Head { body, upgrade: false }), "{lines:?}");
        }
        assert_eq!(read("Upgrade: websocket\r\n"), Ok(Head { body: Body::Length(0), upgrade: true }));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (lines, why) in [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "two lengths"),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "two lengths"),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", "two lengths"),
            ("Content-Length: 5\r\nContent-Length: 5\r\n", "two lengths"),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "two lengths"),
            ("Content-Length: 5, 5\r\n", "length of the request"),
            ("Content-Length: +5\r\n", "length of the request"),
            ("Content-Length: -1\r\n", "length of the request"),
            ("Content-Length: 0x5\r\n", "length of the request"),
            ("Content-Length:\r\n", "length of the request"),
            ("Content-Length: 18446744073709551615\r\n", "length of the request"),
            ("Transfer-Encoding: chunked, identity\r\n", "transfer encoding"),
            ("Transfer-Encoding: gzip, chunked\r\n", "transfer encoding"),
            ("Transfer-Encoding: \x0bchunked\r\n", "cannot be read"),
            ("Content-Length : 5\r\n", "cannot be read"),
            ("X: a\r\n Content-Length: 5\r\n", "folded"),
            ("X: a\rTransfer-Encoding: chunked\r\n", "bare CR"),
            ("X: a\nTransfer-Encoding: chunked\r\n", "bare LF"),
            ("X: \0\r\n", "cannot be read"),
        ] {
            let refused = read(lines).expect_err(lines);
            assert!(refused.contains(why), "{lines:?}: {refused}");
        }
        assert!(head(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        assert!(head(b"CONNECT a:443 HTTP/1.1\r\n\r\n").is_err());
        assert!(head(b"\r\nGET / HTTP/1.1\r\n\r\n\r\n").is_err());
    }

    #[test]
    fn trailers_are_not_a_second_head() {
        assert_eq!(trailers(b"\r\n"), Ok(()));
        assert_eq!(trailers(b"X-Sum: 1\r\n\r\n"), Ok(()));
        assert!(trailers(b"Content-Length: 1\r\n\r\n").is_err());
        assert!(trailers(b"no colon\r\n\r\n").is_err());
    }
}
