//! What a server says over WebSocket, searched frame by frame.
//!
//! Frames are written anew, for their lengths change. A frame is collected and
//! stays one frame up to a size; a larger one goes by as fragments. A message is
//! searched as a whole, however it is fragmented. Extensions are not negotiated
//! where a secret goes, so that payloads are what they are.

use super::scrub::{Finder, Stream, Style};
use bytes::Bytes;
use std::{io, sync::Arc};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What of a frame is collected before it is passed on.
const UNIT: usize = 64 * 1024;
const FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
/// Of control frames.
const MAX_CONTROL: u64 = 125;

/// What is read at once.
const READ: usize = 16 * 1024;

/// A frame that ends the connection: breaking the protocol, as the guest is told.
const CLOSE: &[u8] = &[0x88, 2, 0x03, 0xea];

/// Why what the server sends cannot be searched, for people.
pub type Fault = &'static str;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opcode {
    Continuation,
    Text,
    Binary,
    /// Close, ping, pong.
    Control(u8),
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    opcode: Opcode,
    is_final: bool,
    left: u64,
}

/// A message under way.
struct Message {
    stream: Stream,
    /// Of the next fragment that is written.
    opcode: u8,
}

/// The frames of one connection, from the server to the guest.
pub struct Frames {
    finder: Arc<Finder>,
    head: Vec<u8>,
    frame: Option<Frame>,
    /// Payload of the frame under way that is not searched yet.
    unit: Vec<u8>,
    message: Option<Message>,
    replaced: bool,
}

impl Frames {
    pub const fn new(finder: Arc<Finder>) -> Self {
        Self { finder, head: Vec::new(), frame: None, unit: Vec::new(), message: None, replaced: false }
    }

    pub const fn has_replaced(&self) -> bool {
        self.replaced
    }

    /// Takes what the server sent, and writes what the guest gets.
    pub fn push(&mut self, mut bytes: &[u8], output: &mut Vec<u8>) -> Result<(), Fault> {
        loop {
            let Some(frame) = &mut self.frame else {
                let Some((byte, later)) = bytes.split_first() else { return Ok(()) };
                self.head.push(*byte);
                bytes = later;
                if let Some(frame) = head(&self.head)? {
                    self.head.clear();
                    self.begin(frame)?;
                }
                continue;
            };
            let room = (UNIT - self.unit.len()).min(bytes.len());
            let (taken, later) = bytes.split_at(usize::try_from(frame.left).unwrap_or(room).min(room));
            self.unit.extend_from_slice(taken);
            frame.left -= taken.len() as u64;
            bytes = later;
            let frame = *frame;
            if frame.left == 0 {
                self.frame = None;
            } else if self.unit.len() < UNIT {
                return Ok(());
            }
            let unit = std::mem::take(&mut self.unit);
            match frame.opcode {
                Opcode::Control(opcode) => self.control(opcode, unit, output),
                _ => self.data(unit.into(), frame.is_final && frame.left == 0, output),
            }
        }
    }

    fn begin(&mut self, frame: Frame) -> Result<(), Fault> {
        let style = match (frame.opcode, &self.message) {
            (Opcode::Text, None) => Some((Style::Text, 1)),
            (Opcode::Binary, None) => Some((Style::SameLength, 2)),
            (Opcode::Continuation, Some(_)) | (Opcode::Control(_), _) => None,
            (Opcode::Continuation, None) => return Err("a fragment of no message"),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err("a message inside another"),
        };
        if let Some((style, opcode)) = style {
            self.message = Some(Message { stream: Stream::new(self.finder.clone(), style), opcode });
        }
        self.frame = Some(frame);
        Ok(())
    }

    fn data(&mut self, unit: Bytes, ends: bool, output: &mut Vec<u8>) {
        let Some(message) = &mut self.message else { return };
        let mut payload = message.stream.push(unit);
        if ends {
            let rest = message.stream.finish();
            if !rest.is_empty() {
                payload = [payload, rest].concat().into();
            }
        }
        self.replaced |= message.stream.replaced() > 0;
        // What waits for the next fragment needs no fragment of its own.
        if ends || !payload.is_empty() {
            write(message.opcode, ends, &payload, output);
            message.opcode = 0;
        }
        if ends {
            self.message = None;
        }
    }

    /// Pings, and why a server closes. As long as they were.
    fn control(&mut self, opcode: u8, unit: Vec<u8>, output: &mut Vec<u8>) {
        let mut stream = Stream::new(self.finder.clone(), Style::SameLength);
        let payload = [stream.push(unit.into()), stream.finish()].concat();
        self.replaced |= stream.replaced() > 0;
        write(opcode, true, &payload, output);
    }
}

/// Carries bytes both ways until both ends have ended. What the server sends goes
/// through `frames`; when it cannot be searched, the connection ends.
pub async fn join(
    guest: &mut (impl AsyncRead + AsyncWrite + Unpin),
    server: &mut (impl AsyncRead + AsyncWrite + Unpin),
    frames: &mut Frames,
) -> io::Result<()> {
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let up = async {
        tokio::io::copy(&mut from_guest, &mut to_server).await?;
        to_server.shutdown().await
    };
    let down = async {
        let (mut bytes, mut output) = (vec![0; READ], Vec::new());
        loop {
            let count = from_server.read(&mut bytes).await?;
            if count == 0 {
                return to_guest.shutdown().await;
            }
            let searched = frames.push(bytes.get(..count).unwrap_or_default(), &mut output);
            if searched.is_err() {
                output.extend_from_slice(CLOSE);
            }
            to_guest.write_all(&output).await?;
            to_guest.flush().await?;
            output.clear();
            searched.map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
        }
    };
    tokio::try_join!(up, down).map(drop)
}

/// A frame's head, when it is whole.
fn head(bytes: &[u8]) -> Result<Option<Frame>, Fault> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    let opcode = match first & 0x0f {
        0 => Opcode::Continuation,
        1 => Opcode::Text,
        2 => Opcode::Binary,
        opcode @ 8..=10 => Opcode::Control(opcode),
        _ => return Err("a frame of an unknown kind"),
    };
    if first & RESERVED != 0 {
        return Err("a frame of an extension that was not negotiated");
    }
    if second & MASKED != 0 {
        return Err("a masked frame, which only clients send");
    }
    let left = match second & !MASKED {
        126 => rest.first_chunk::<2>().map(|length| u64::from(u16::from_be_bytes(*length))),
        127 => rest.first_chunk::<8>().map(|length| u64::from_be_bytes(*length)),
        length => Some(u64::from(length)),
    };
    let Some(left) = left else { return Ok(None) };
    let is_final = first & FINAL != 0;
    if matches!(opcode, Opcode::Control(_)) && (!is_final || left > MAX_CONTROL) {
        return Err("a control frame that is fragmented or too long");
    }
    if left > i64::MAX as u64 {
        return Err("a frame of an impossible length");
    }
    Ok(Some(Frame { opcode, is_final, left }))
}

fn write(opcode: u8, is_final: bool, payload: &[u8], output: &mut Vec<u8>) {
    output.push(opcode | if is_final { FINAL } else { 0 });
    match payload.len() {
        length @ 0..=125 => output.extend(u8::try_from(length)),
        length @ 126..=0xffff => {
            output.push(126);
            output.extend(u16::try_from(length).unwrap_or_default().to_be_bytes());
        }
        length => {
            output.push(127);
            output.extend((length as u64).to_be_bytes());
        }
    }
    output.extend_from_slice(payload);
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bridge::{fuzz::Random, inject::scrub::Needles};

    pub const VALUE: &str = "sk-live-0123456789";
    const PLACEHOLDER: &str = "berth_secret_0123456789abcdef";

    pub fn frames() -> Frames {
        let mut needles = Needles::default();
        needles.add_value(VALUE.as_bytes(), PLACEHOLDER);
        Frames::new(Arc::new(needles.build().unwrap().unwrap()))
    }

    /// A frame as servers write it.
    pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(first & 0x0f, first & FINAL != 0, payload, &mut bytes);
        bytes
    }

    /// What a client reads: whole messages and control frames, by opcode. Nothing
    /// if a message has no end.
    pub fn read(mut bytes: &[u8]) -> Option<Vec<(u8, Vec<u8>)>> {
        let (mut all, mut open) = (Vec::new(), None::<(u8, Vec<u8>)>);
        while !bytes.is_empty() {
            let length =
                (2..=10).find(|length| bytes.get(..*length).is_some_and(|b| head(b).unwrap().is_some()));
            let (start, rest) = bytes.split_at(length.unwrap());
            let frame = head(start).unwrap().unwrap();
            let (payload, rest) = rest.split_at(usize::try_from(frame.left).unwrap());
            bytes = rest;
            match frame.opcode {
                Opcode::Control(opcode) => all.push((opcode, payload.to_vec())),
                opcode => {
                    let (_, text) =
                        open.get_or_insert_with(|| (1 + u8::from(opcode == Opcode::Binary), Vec::new()));
                    text.extend_from_slice(payload);
                    if frame.is_final {
                        all.extend(open.take());
                    }
                }
            }
        }
        open.is_none().then_some(all)
    }

    #[test]
    fn values_become_placeholders_in_any_fragments_and_pieces() {
        let text = format!("{{\"a\":\"{VALUE}\"}}");
        let escaped = format!("{{\"a\":\"{}\"}}", VALUE.replace('-', "\\u002d"));
        let wanted = format!("{{\"a\":\"{PLACEHOLDER}\"}}");
        let (start, end) = text.split_at(12);
        let sent = [
            frame(0x81, b"hello"),
            frame(0x81, text.as_bytes()),
            frame(0x01, start.as_bytes()),
            frame(0x89, b"ping"),
            frame(0x00, b""),
            frame(0x80, end.as_bytes()),
            frame(0x81, b""),
            frame(0x81, escaped.as_bytes()),
            frame(0x82, format!("\x01{VALUE}\x02").as_bytes()),
            frame(0x82, &[7; 70_000]),
            frame(0x88, format!("\x03\u{20}{VALUE}").as_bytes()),
        ]
        .concat();
        let same_length = PLACEHOLDER.as_bytes()[..VALUE.len()].to_vec();
        for size in [1, 2, 3, 7, 100, 1000, 65_536, sent.len()] {
            let (mut frames, mut output) = (frames(), Vec::new());
            for piece in sent.chunks(size) {
                frames.push(piece, &mut output).unwrap();
            }
            let got = read(&output).unwrap();
            let expected: [(u8, Vec<u8>); 9] = [
                (1, b"hello".to_vec()),
                (1, wanted.clone().into()),
                (9, b"ping".to_vec()),
                (1, wanted.clone().into()),
                (1, Vec::new()),
                (1, wanted.clone().into()),
                (2, [b"\x01".as_slice(), &same_length, b"\x02"].concat()),
                (2, vec![7; 70_000]),
                (8, [b"\x03\x20".as_slice(), &same_length].concat()),
            ];
            assert!(got == expected, "in pieces of {size}");
            assert!(frames.has_replaced());
        }
    }

    #[test]
    fn frames_without_a_secret_stay_as_they_are() {
        let mut random = Random::seeded(3);
        for _ in 0..20 {
            let mut sent = Vec::new();
            for _ in 0..random.below(5) {
                let length = [0, 5, 125][random.below(3)];
                sent.extend(frame(0x80 | [1, 2, 9][random.below(3)], &vec![b'x'; length]));
                sent.extend(frame(0x82, &vec![b'x'; [126, 3000, 65_536][random.below(3)]]));
            }
            let (mut frames, mut output) = (frames(), Vec::new());
            for piece in sent.chunks(1 + random.below(300)) {
                frames.push(piece, &mut output).unwrap();
            }
            assert_eq!(output, sent);
        }
    }

    #[test]
    fn what_cannot_be_searched_ends_the_connection() {
        for (bytes, why) in [
            (&[0xc1, 1][..], "extension"),
            (&[0x83, 1], "unknown"),
            (&[0x81, 0x81], "masked"),
            (&[0x80, 1], "no message"),
            (&[0x01, 0, 0x01, 0], "inside"),
            (&[0x09, 1], "control"),
            (&[0x89, 126, 1, 0], "control"),
            (&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], "length"),
        ] {
            let fault = frames().push(bytes, &mut Vec::new()).expect_err(why);
            assert!(fault.contains(why), "{fault}");
        }
    }

    #[test]
    fn a_huge_frame_is_not_kept() {
        let (mut frames, mut output) = (frames(), Vec::new());
        frames.push(&[0x82, 127, 0, 0, 0x10, 0, 0, 0, 0, 0], &mut output).unwrap();
        let piece = vec![7; 100_000];
        let mut given = 0;
        for number in 1..100 {
            frames.push(&piece, &mut output).unwrap();
            given += std::mem::take(&mut output).len();
            assert!(given + 2 * UNIT > number * piece.len());
        }
    }
}
