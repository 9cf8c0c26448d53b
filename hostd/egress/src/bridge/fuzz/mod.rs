//! Mutations of good input against everything that reads what guests and
//! servers send. Seeded, so that what was found is found again; for as long as
//! `BERTH_FUZZ_SECONDS` says: `make fuzz` for long, a moment otherwise.

mod framing;
mod websocket;

use super::{
    dns,
    inject::{
        gate, rewrite,
        scrub::{Needles, Stream, Style},
    },
    rules::{Ready, Rules},
    sni::{self, Hello},
};
use crate::control::{Secret, Terms, new_placeholder};
use berth_types::{
    UserId,
    egress::{Binding, HostName, Projection, SecretValue},
};
use bytes::Bytes;
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RecordType},
};
use hyper::{
    HeaderMap, Request,
    header::{AUTHORIZATION, HOST},
};
use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

const VALUE: &str = "sk-live-0123456789";

/// Splitmix64: small, seeded, good enough to choose mutations.
pub struct Random(u64);

impl Random {
    pub const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// A few changes: bits, bytes, cuts, repetitions, words of the trade.
    pub fn mutate(&mut self, sample: &[u8], words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = sample.to_vec();
        for _ in 0..self.below(6) {
            let at = self.below(bytes.len() + 1);
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                2 => bytes.truncate(at),
                3 => bytes.insert(at, u8::try_from(self.below(256)).unwrap()),
                4 => {
                    let end = (at + self.below(64)).min(bytes.len());
                    bytes.drain(at..end);
                }
                5 => {
                    let end = (at + self.below(64)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
                _ => {
                    let word = self.pick(words).to_vec();
                    bytes.splice(at..at, word);
                }
            }
        }
        bytes
    }
}

/// Calls `once` until the time is up, and says how often that was.
fn run(name: &str, mut once: impl FnMut(&mut Random)) {
    let seconds = std::env::var("BERTH_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let seed = std::env::var("BERTH_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let mut random = Random::seeded(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0u64;
    while Instant::now() < end {
        for _ in 0..256 {
            once(&mut random);
        }
        rounds += 256;
    }
    println!("{name}: {rounds} rounds from seed {seed}");
}

#[test]
fn fuzz_sni() {
    let samples = [
        sni::tests::sample("api.example.com", &[b"h2", b"http/1.1"]),
        sni::tests::sample("192.0.2.1", &[]),
        sni::tests::sample(&"a.".repeat(60), &[b"h2"]),
    ];
    let words: &[&[u8]] = &[&[0, 0], &[0, 16], &[0xff, 0xff], &[22, 3, 1], b"evil.example", &[0, 1, 0]];
    run("sni", |random| {
        let sample = &samples[random.below(samples.len())];
        let bytes = random.mutate(sample, words);
        let whole = sni::parse(&bytes);
        // What was said of a beginning stays true of the whole.
        let cut = random.below(bytes.len() + 1);
        let early = sni::parse(&bytes[..cut]);
        assert!(early == Hello::Incomplete || early == whole, "{early:?} then {whole:?}");
    });
}

#[test]
fn fuzz_dns() {
    let question = |name: &str, kind| {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.to_vec().unwrap()
    };
    let samples = [question("api.example.com.", RecordType::A), question("x.example.", RecordType::HTTPS)];
    let words: &[&[u8]] = &[&[0xc0, 0x0c], &[0xc0, 0], &[0, 1, 0, 1], &[63], &[0, 41, 0xff, 0xff]];
    run("dns", |random| {
        let sample = &samples[random.below(samples.len())];
        let bytes = random.mutate(sample, words);
        if let Some(question) = dns::parse(&bytes) {
            let answer =
                question.answer(ResponseCode::NoError, &[Ipv4Addr::LOCALHOST], Duration::from_secs(1));
            let answer = Message::from_vec(&answer.unwrap()).unwrap();
            assert_eq!(answer.metadata.id.to_be_bytes(), bytes[..2]);
            assert_eq!(answer.answers.len(), 1);
        }
    });
}

fn secrets() -> Vec<Arc<Ready>> {
    let secret = |projection, value: &str| Secret {
        name: "s".parse().unwrap(),
        binding: Binding::new(vec!["api.example".parse().unwrap()], vec![projection]).unwrap(),
        value: SecretValue::new(value.into()).unwrap(),
        placeholder: new_placeholder(),
    };
    let bearer = Projection::Header { name: "Authorization".to_owned(), template: "Bearer {}".to_owned() };
    let terms = Terms {
        name: "dev".parse().unwrap(),
        owner: UserId::random(),
        policy: Default::default(),
        secrets: vec![secret(bearer, VALUE), secret(Projection::Placeholder, "sk-\"other\"\\value")],
        info: serde_json::Value::Null,
    };
    Rules::new(terms).secrets
}

/// A request as the server parses it, before any rule of ours.
fn parsed(bytes: &[u8]) -> Option<Request<()>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    if !request.parse(bytes).ok()?.is_complete() {
        return None;
    }
    let mut built = Request::builder().method(request.method?).uri(request.path?);
    for header in request.headers.iter() {
        built = built.header(header.name, header.value);
    }
    built.body(()).ok()
}

#[test]
fn fuzz_requests() {
    let secrets = secrets();
    let placeholder = secrets[1].placeholder.clone();
    let name: HostName = "api.example".parse().unwrap();
    let sample = format!(
        "POST /a/{placeholder}?k={placeholder} HTTP/1.1\r\nHost: api.example\r\nAuthorization: Basic eDp5\r\n\
         Connection: keep-alive, x-drop\r\nX-Key: a {placeholder}\r\nContent-Length: 5\r\n\r\n"
    );
    let words: &[&[u8]] = &[
        b"\r\n",
        b"\r",
        b"\n ",
        b":",
        b"Host: evil.example\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"@",
        b"Connection: authorization\r\n",
        b"Connection: host, content-length\r\n",
        b"https://evil.example",
        b"%0d%0a",
        b" ",
        b"\0",
        placeholder.as_bytes(),
    ];
    run("requests", |random| {
        let Some(request) = parsed(&random.mutate(sample.as_bytes(), words)) else { return };
        let plain = |headers: &HeaderMap| headers.values().all(|value| !value.as_bytes().contains(&b'\r'));
        let body = random.mutate(placeholder.as_bytes(), words);
        if gate::check(&request, &name, 443).is_err() {
            return;
        }
        let (mut parts, ()) = request.into_parts();
        if rewrite::request(&mut parts, &secrets, false).is_err() {
            return;
        }
        let credentials: Vec<_> = parts.headers.get_all(AUTHORIZATION).iter().collect();
        assert_eq!(credentials, [&format!("Bearer {VALUE}")]);
        assert!(plain(&parts.headers) && !parts.headers.contains_key("connection"));
        let hosts: Vec<_> = parts.headers.get_all(HOST).iter().map(|host| host.to_str().unwrap()).collect();
        assert!(
            matches!(*hosts, [host] if host.to_ascii_lowercase().starts_with("api.example")),
            "{hosts:?}"
        );
        assert!(
            parts
                .uri
                .authority()
                .is_none_or(|authority| authority.host().eq_ignore_ascii_case("api.example"))
        );
        assert!(!parts.uri.to_string().contains(&placeholder));
        let _ = rewrite::body(&parts, &secrets, &body);
    });
}

#[test]
fn fuzz_scrubbing() {
    let mut needles = Needles::default();
    needles.add_value(VALUE.as_bytes(), "berth_secret_a");
    needles.add_value(b"sk-live-0123456789-and-more", "berth_secret_b");
    needles.add_value(b"live-0123", "berth_secret_c");
    let finder = Arc::new(needles.build().unwrap().unwrap());
    let words: &[&[u8]] = &[
        VALUE.as_bytes(),
        b"sk-live-0123456789-and-more",
        b"sk-live-",
        b"live-0123",
        b"s",
        b"c2stbGl2ZS0wMTIzNDU2Nzg5",
    ];
    run("scrubbing", |random| {
        let text = random.mutate(b"before sk-live-0123456789 after live-0123", words);
        let mut stream = Stream::new(finder.clone(), Style::Text);
        let mut rest = text.as_slice();
        let mut output = Vec::new();
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(1 + random.below(rest.len()));
            output.extend_from_slice(&stream.push(Bytes::copy_from_slice(piece)));
            rest = later;
        }
        output.extend_from_slice(&stream.finish());
        // In pieces or whole, it reads the same, and the value is not in it.
        assert_eq!(output, finder.replace(&text).unwrap_or(text));
        assert!(!output.windows(VALUE.len()).any(|window| window == VALUE.as_bytes()));
    });
}
