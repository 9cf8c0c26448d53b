//! Encoders that are not ours: found whatever they write, in any pieces.

use super::*;
use base64::{Engine, engine::general_purpose::STANDARD};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

/// Python with its encoders.
struct Encoders {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Encoders {
    fn start() -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", include_str!("encoders.py")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().expect("the tests need python3");
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn write(&mut self, before: &str, value: &str, after: &str) -> Vec<(String, Vec<u8>)> {
        let question = serde_json::to_string(&[before, value, after]).unwrap() + "\n";
        self.child.stdin.as_mut().unwrap().write_all(question.as_bytes()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let written: Vec<(String, String)> = serde_json::from_str(&answer).unwrap();
        let mut written: Vec<_> =
            written.into_iter().map(|(name, text)| (name, STANDARD.decode(text).unwrap())).collect();
        // Those of Rust.
        let percent = percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC);
        written.push(("percent-encoding".to_owned(), percent.to_string().into_bytes()));
        written.push(("serde_json".to_owned(), serde_json::to_vec(&[value]).unwrap()));
        written
    }
}

impl Drop for Encoders {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// `make fuzz` has more of them.
fn rounds(usual: usize) -> usize {
    let seconds = std::env::var("BERTH_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.unwrap_or(1).max(1) * usual
}

fn seed(usual: u64) -> u64 {
    std::env::var("BERTH_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

const TOKEN: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+/=";

fn characters(random: &mut Random, count: usize, of: &[u8]) -> String {
    (0..count).map(|_| char::from(of[random.below(of.len())])).collect()
}

fn value(random: &mut Random) -> String {
    let visible: Vec<u8> = (0x20..0x7f).collect();
    let length = 8 + random.below(60);
    match random.below(4) {
        0 => characters(random, length, &visible),
        1 => characters(random, length, b"ab/+%\\&\"'<> =#;ux0"),
        _ => characters(random, length, TOKEN),
    }
}

/// What may stand around a value and not become part of it.
fn around(random: &mut Random) -> String {
    let count = random.below(5);
    characters(random, count, b"xyz:, ")
}

#[test]
fn what_real_encoders_write_is_found_in_any_pieces() {
    let mut encoders = Encoders::start();
    let mut random = Random::seeded(seed(13));
    for _ in 0..rounds(40) {
        let value = value(&mut random);
        let finder = finder_of(&[value.as_bytes()]);
        let (before, after) = (around(&mut random), around(&mut random));
        for (encoder, written) in encoders.write(&before, &value, &after) {
            // Formats in each other, around a value that itself looks escaped, may be
            // undone too far.
            let looks_escaped = value.bytes().any(|byte| b"\\%&".contains(&byte));
            if looks_escaped && [" in ", " of "].iter().any(|word| encoder.contains(word)) {
                continue;
            }
            let text = [b"{before}: ", &*written, b" :{after}"].concat();
            let say = || format!("{encoder} of {value:?}: {:?}", String::from_utf8_lossy(&text));
            let (output, replaced) = scrub(&finder, Style::Text, [text.as_slice()].into_iter());
            assert!(replaced > 0, "not found: {}", say());
            let shown = String::from_utf8_lossy(&output);
            assert!(shown.contains(PLACEHOLDER), "{shown} is left of {}", say());
            assert!(shown.starts_with("{before}: ") && shown.ends_with(" :{after}"), "{shown}");
            // Of what was written nothing is left but what stood around it, and
            // what base64 shares with that.
            assert!(output.len() < 10 + 9 + PLACEHOLDER.len() + 40, "{shown} is left of {}", say());
            assert_eq!(scrub_at_random(&finder, Style::Text, &text, &mut random), output, "{}", say());
            assert_eq!(scrub_at_random(&finder, Style::SameLength, &text, &mut random).len(), text.len());
        }
    }
}

#[test]
fn what_is_almost_a_secret_passes_byte_for_byte() {
    let mut encoders = Encoders::start();
    let mut random = Random::seeded(seed(14));
    for _ in 0..rounds(40) {
        let value = characters(&mut random, 24, TOKEN);
        // The same in all characters but one.
        let mut other = value.clone().into_bytes();
        let at = 3 + random.below(18);
        other[at] = if other[at] == b'q' { b'r' } else { b'q' };
        let other = String::from_utf8(other).unwrap();
        let finder = finder_of(&[value.as_bytes()]);
        for (encoder, written) in encoders.write("x", &other, "y") {
            let output = scrub_at_random(&finder, Style::Text, &written, &mut random);
            assert_eq!(output, written, "{encoder} of {other:?}, which is not {value:?}");
        }
    }
}

#[test]
fn text_without_a_secret_passes_byte_for_byte() {
    let mut random = Random::seeded(seed(15));
    for _ in 0..rounds(100) {
        let value = value(&mut random);
        let finder = finder_of(&[value.as_bytes()]);
        // Its characters, escapes and beginnings, in any order but its own.
        let words: [&[u8]; 12] =
            [b"\\u00", b"%", b"&#", b";", b"\\", b"\n", b"\r\n\r\n", b"\0", b"%25", b"&amp;", b" ", b"sk-"];
        let mut text = Vec::new();
        while text.len() < 400 {
            match random.below(4) {
                0 => text.extend_from_slice(words[random.below(words.len())]),
                1 => text.extend_from_slice(&value.as_bytes()[..random.below(value.len() - 3)]),
                2 => text.extend_from_slice(&value.as_bytes()[4 + random.below(value.len() - 4)..]),
                _ => text.extend((0..random.below(9)).map(|_| b"abcxyz0189{}:\"/+"[random.below(16)])),
            }
            // A character that no value has, so that beginnings and ends do not meet.
            text.extend_from_slice("é".as_bytes());
        }
        let output = scrub_at_random(&finder, Style::Text, &text, &mut random);
        assert_eq!(output, text, "{value:?}");
    }
}
