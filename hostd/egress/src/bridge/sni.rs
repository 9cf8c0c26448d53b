//! The first message of TLS, read just far enough: which host, which protocols.
//!
//! What a guest sends is hostile, so nothing here allocates by a length it
//! claims, and what does not parse is no TLS to us.

use berth_types::egress::HostName;

/// A ClientHello with post-quantum keys has about 2 KiB.
pub const MAX_HELLO: usize = 32 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// It may become one.
    Incomplete,
    /// It never will be.
    NotTls,
    Complete(ClientHello),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    pub server_name: Option<HostName>,
    /// HTTP/2 and HTTP/1.1, in the order in which they are offered.
    pub http: Vec<Http>,
    /// Whether any protocols are offered at all.
    pub has_alpn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Http {
    One,
    Two,
}

impl Http {
    pub const fn alpn(self) -> &'static [u8] {
        match self {
            Self::One => b"http/1.1",
            Self::Two => b"h2",
        }
    }
}

/// Looks at all bytes so far.
pub fn parse(bytes: &[u8]) -> Hello {
    match message(bytes) {
        Ok(Some(message)) => match hello(&message) {
            Some(hello) => Hello::Complete(hello),
            None => Hello::NotTls,
        },
        Ok(None) if bytes.len() < MAX_HELLO => Hello::Incomplete,
        Ok(None) | Err(NotTls) => Hello::NotTls,
    }
}

struct NotTls;

/// The handshake message, put together from its records.
fn message(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, NotTls> {
    let mut message = Vec::new();
    loop {
        match bytes {
            [] => return Ok(None),
            [HANDSHAKE] | [HANDSHAKE, 3, ..] => {}
            _ => return Err(NotTls),
        }
        let Some((header, rest)) = bytes.split_first_chunk::<5>() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 || length > 1 << 14 {
            return Err(NotTls);
        }
        let (payload, rest) = rest.split_at(length.min(rest.len()));
        message.extend_from_slice(payload);
        // Known early, so that nobody waits for the rest of what is no hello.
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(NotTls);
        }
        if payload.len() < length {
            return Ok(None);
        }
        if let Some((header, body)) = message.split_first_chunk::<4>() {
            let length = usize::from(header[1]) << 16 | usize::from(header[2]) << 8 | usize::from(header[3]);
            if length > MAX_HELLO {
                return Err(NotTls);
            }
            if let Some(body) = body.get(..length) {
                return Ok(Some(body.to_vec()));
            }
        }
        bytes = rest;
    }
}

fn hello(message: &[u8]) -> Option<ClientHello> {
    let mut reader = Reader(message);
    reader.take(2 + 32)?; // version, random
    let session = usize::from(reader.byte()?);
    reader.take(session)?;
    reader.block()?; // cipher suites
    let compression = usize::from(reader.byte()?);
    reader.take(compression)?;
    let mut hello = ClientHello::default();
    if reader.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = Reader(reader.block()?);
    let (mut named, mut negotiated) = (false, false);
    while !extensions.0.is_empty() {
        let kind = extensions.word()?;
        let body = extensions.block()?;
        match kind {
            // Twice would mean that the server may read another one than we do.
            SERVER_NAME if named => return None,
            SERVER_NAME => {
                named = true;
                hello.server_name = Some(server_name(body)?);
            }
            ALPN if negotiated => return None,
            ALPN => {
                negotiated = true;
                hello.has_alpn = true;
                hello.http = protocols(body)?;
            }
            _ => {}
        }
    }
    Some(hello)
}

fn server_name(body: &[u8]) -> Option<HostName> {
    let mut list = Reader(Reader(body).block()?);
    // The only kind there is, and at most one of it.
    if list.byte()? != 0 {
        return None;
    }
    let name = list.block()?;
    if !list.0.is_empty() {
        return None;
    }
    std::str::from_utf8(name).ok()?.parse().ok()
}

fn protocols(body: &[u8]) -> Option<Vec<Http>> {
    let mut list = Reader(Reader(body).block()?);
    let mut found = Vec::new();
    while !list.0.is_empty() {
        let length = usize::from(list.byte()?);
        let protocol = list.take(length)?;
        let known = [Http::One, Http::Two].into_iter().find(|http| http.alpn() == protocol);
        found.extend(known.filter(|http| !found.contains(http)));
    }
    Some(found)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.take(2)?.first_chunk()?))
    }

    /// What two bytes of length announce.
    fn block(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.word()?);
        self.take(length)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// What rustls says first.
    pub fn sample(name: &str, alpn: &[&[u8]]) -> Vec<u8> {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn reads_a_hello_however_it_is_cut() {
        let bytes = sample("API.example.com", &[b"h2", b"http/1.1", b"other"]);
        let wanted = Hello::Complete(ClientHello {
            server_name: Some("api.example.com".parse().unwrap()),
            http: vec![Http::Two, Http::One],
            has_alpn: true,
        });
        assert_eq!(parse(&bytes), wanted);
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Hello::Incomplete, "{cut}");
        }
        // One byte a record.
        let payload = &bytes[5..];
        let records: Vec<u8> = payload.iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect();
        assert_eq!(parse(&records), wanted);
    }

    #[test]
    fn an_address_is_no_server_name() {
        let Hello::Complete(hello) = parse(&sample("192.0.2.1", &[])) else { panic!("no hello") };
        assert_eq!(hello, ClientHello::default());
    }

    #[test]
    fn what_is_not_tls() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"SSH-2.0-x",
            &[22, 3, 1, 0, 0],
            &[22, 2],
            &[22, 3, 1, 0, 4, 2, 0, 0, 0],
            // A whole record, yet less than a message.
            &[22, 3, 1, 0, 3, 2, 0, 0],
        ] {
            assert_eq!(parse(bytes), Hello::NotTls, "{bytes:?}");
        }
        assert_eq!(parse(&[22, 3, 1, 255, 255]), Hello::NotTls);
        let endless: Vec<u8> = std::iter::once([22, 3, 1, 0x40, 0, 1, 0, 0x7f, 0xff])
            .flatten()
            .chain(vec![0; MAX_HELLO])
            .collect();
        assert_eq!(parse(&endless), Hello::NotTls);
    }

    #[test]
    fn two_server_names_are_none() {
        // A hello made by hand: no ciphers, two server_name extensions.
        let name = |name: &[u8]| {
            let mut body = vec![0];
            body.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
            body.extend(name);
            let mut list = u16::try_from(body.len()).unwrap().to_be_bytes().to_vec();
            list.extend(body);
            let mut extension = vec![0, 0];
            extension.extend(u16::try_from(list.len()).unwrap().to_be_bytes());
            extension.extend(list);
            extension
        };
        let hello = |extensions: Vec<u8>| {
            let mut body = vec![3; 34];
            body.extend([0, 0, 2, 0x13, 1, 1, 0]);
            body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
            body.extend(extensions);
            let mut bytes = vec![22, 3, 1];
            bytes.extend(u16::try_from(body.len() + 4).unwrap().to_be_bytes());
            bytes.extend([1, 0]);
            bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
            bytes.extend(body);
            bytes
        };
        assert!(matches!(parse(&hello(name(b"a.example"))), Hello::Complete(_)));
        assert_eq!(parse(&hello([name(b"a.example"), name(b"b.example")].concat())), Hello::NotTls);
        assert_eq!(parse(&hello(name(b"a\0.example"))), Hello::NotTls);
    }
}
