//! From the client into a machine: a bounded queue, written in large pieces.

use crate::ssh::{
    channel::{Gone, Inbox},
    flow::Counted,
};
use berth_guest_protocol::{Event, Kind, MAX_DATA, Version, encode, header};
use bytes::{Buf, Bytes, BytesMut};
use russh::ChannelMsg;
use std::{collections::VecDeque, io::IoSlice, time::Duration};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// Slices in one write.
const SLICES: usize = 32;
/// Data shorter than this is gathered while it waits: a piece costs memory even
/// if it is one byte.
const SHORT: usize = 512;
/// What a piece costs besides its bytes.
const PIECE: usize = 128;
/// A machine that does not read for so long has no use for what a departed
/// client sent.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How the client's bytes are put on the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they are; the end of input is the end of the stream.
    Raw,
    /// In frames of that version, with window changes and signals between them.
    Frames(Version),
}

#[derive(Debug)]
struct Queue {
    pieces: VecDeque<Bytes>,
    /// Short data after the last piece, not yet one itself.
    gathered: BytesMut,
    counted: Counted,
    form: Form,
    /// Raw streams end by closing, once everything before is written.
    ended: bool,
}

/// Carries what the client sends until the client is gone, or has ended a raw
/// stream. It goes on taking messages after the machine has stopped reading:
/// the machine's last words may still be on their way to the client.
pub async fn carry(inbox: &mut Inbox, writer: impl AsyncWrite + Unpin, form: Form) -> Result<(), Gone> {
    let mut queue = Queue {
        pieces: VecDeque::new(),
        gathered: BytesMut::new(),
        counted: Counted::new(inbox.flow()),
        form,
        ended: false,
    };
    let mut writer = Some(writer);
    loop {
        if queue.pieces.is_empty() {
            queue.settle();
        }
        let writable = writer.as_mut().filter(|_| queue.has_work());
        tokio::select! {
            message = inbox.next() => match message {
                Ok(message) => queue.take(message),
                Err(gone) => {
                    if let Some(writer) = writer {
                        queue.finish(writer).await;
                    }
                    return Err(gone);
                }
            },
            // Without a writer this branch is off.
            Some(written) = async { Some(write(&queue.pieces, writable?).await) } => match written {
                Ok(Some(count)) => queue.advance(count),
                Ok(None) => return Ok(()),
                Err(error) => {
                    tracing::debug!(%error, "the machine stopped reading");
                    writer = None;
                }
            }
        }
        if writer.is_none() {
            queue.clear();
        }
    }
}

/// Writes what is first in line; `None` when the stream has been ended.
async fn write(
    pieces: &VecDeque<Bytes>,
    writer: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<Option<usize>> {
    if pieces.is_empty() {
        return writer.shutdown().await.map(|()| None);
    }
    let slices: Vec<IoSlice<'_>> = pieces.iter().take(SLICES).map(|piece| IoSlice::new(piece)).collect();
    writer.write_vectored(&slices).await.map(Some)
}

impl Queue {
    /// Something to write, or an end to be written.
    fn has_work(&self) -> bool {
        !self.pieces.is_empty() || self.ended
    }

    fn take(&mut self, message: ChannelMsg) {
        match message {
            ChannelMsg::Data { data } if data.len() < SHORT && !self.pieces.is_empty() => {
                self.counted.add(data.len());
                self.gathered.extend_from_slice(&data);
                if self.gathered.len() >= MAX_DATA / 2 {
                    self.settle();
                }
            }
            ChannelMsg::Data { data } => {
                self.settle();
                self.counted.add(data.len());
                self.data(data);
            }
            ChannelMsg::Eof => {
                self.settle();
                match self.form {
                    Form::Raw => self.ended = true,
                    Form::Frames(_) => self.control(Bytes::copy_from_slice(&header(Kind::Eof, 0))),
                }
            }
            ChannelMsg::WindowChange { col_width, row_height, pix_width, pix_height } => {
                self.event(&Event::Resize {
                    columns: cells(col_width),
                    rows: cells(row_height),
                    width: cells(pix_width),
                    height: cells(pix_height),
                });
            }
            ChannelMsg::Signal { signal } => {
                self.event(&Event::Signal(signal_name(&signal)));
            }
            _ => {}
        }
    }

    fn event(&mut self, event: &Event) {
        if let Form::Frames(version) = self.form
            && let Ok(frame) = encode(version, event)
        {
            self.settle();
            self.control(frame.into());
        }
    }

    /// What was gathered becomes a piece, before anything that came after it.
    fn settle(&mut self) {
        let gathered = self.gathered.split().freeze();
        self.data(gathered);
    }

    /// Counted already.
    fn data(&mut self, mut data: Bytes) {
        if self.form == Form::Raw && !data.is_empty() {
            return self.push(data);
        }
        while !data.is_empty() {
            let part = data.split_to(data.len().min(MAX_DATA));
            self.control(Bytes::copy_from_slice(&header(Kind::Data, part.len())));
            self.push(part);
        }
    }

    fn control(&mut self, frame: Bytes) {
        self.counted.add(frame.len());
        self.push(frame);
    }

    /// Its bytes are counted already.
    fn push(&mut self, piece: Bytes) {
        self.counted.add(PIECE);
        self.pieces.push_back(piece);
    }

    fn advance(&mut self, mut count: usize) {
        self.counted.remove(count);
        while let Some(piece) = self.pieces.front_mut() {
            if count < piece.len() {
                piece.advance(count);
                return;
            }
            count -= piece.len();
            self.pieces.pop_front();
            self.counted.remove(PIECE);
        }
    }

    /// The client has gone, but what it sent before is still the machine's.
    async fn finish(&mut self, mut writer: impl AsyncWrite + Unpin) {
        self.settle();
        while !self.pieces.is_empty() {
            match timeout(LAST_WORDS, write(&self.pieces, &mut writer)).await {
                Ok(Ok(Some(count))) => self.advance(count),
                _ => return,
            }
        }
    }

    fn clear(&mut self) {
        self.counted.clear();
        self.pieces.clear();
        self.gathered.clear();
    }
}

pub fn cells(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// As RFC 4254 writes it: without SIG.
fn signal_name(signal: &russh::Sig) -> String {
    use russh::Sig;
    match signal {
        Sig::ABRT => "ABRT".into(),
        Sig::ALRM => "ALRM".into(),
        Sig::FPE => "FPE".into(),
        Sig::HUP => "HUP".into(),
        Sig::ILL => "ILL".into(),
        Sig::INT => "INT".into(),
        Sig::KILL => "KILL".into(),
        Sig::PIPE => "PIPE".into(),
        Sig::QUIT => "QUIT".into(),
        Sig::SEGV => "SEGV".into(),
        Sig::TERM => "TERM".into(),
        Sig::USR1 => "USR1".into(),
        Sig::Custom(name) => name.chars().take(32).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::flow::{Budget, Flow};
    use std::sync::Arc;

    fn queue(form: Form) -> Queue {
        let counted = Counted::new(Arc::new(Flow::new(Arc::new(Budget::new(1 << 20)))));
        Queue { pieces: VecDeque::new(), gathered: BytesMut::new(), counted, form, ended: false }
    }

    fn data(bytes: &'static [u8]) -> ChannelMsg {
        ChannelMsg::Data { data: Bytes::from_static(bytes) }
    }

    #[test]
    fn drops_are_gathered_and_nothing_changes_its_place() {
        let mut queue = queue(Form::Frames(Version::OURS));
        for message in [data(b"ab"), data(b"c"), data(b"d"), ChannelMsg::Signal { signal: russh::Sig::INT }] {
            queue.take(message);
        }
        queue.take(data(b"e"));
        queue.take(ChannelMsg::Eof);
        let written: Vec<u8> = queue.pieces.iter().flatten().copied().collect();
        let mut expected = Vec::new();
        for text in [&b"ab"[..], b"cd"] {
            expected.extend(header(Kind::Data, text.len()));
            expected.extend(text);
        }
        expected.extend(encode(Version::OURS, &Event::Signal("INT".into())).unwrap());
        expected.extend(header(Kind::Data, 1));
        expected.extend(b"e");
        expected.extend(header(Kind::Eof, 0));
        assert_eq!(written, expected);
        queue.advance(written.len());
        assert!(queue.pieces.is_empty() && !queue.has_work());
    }

    #[test]
    fn a_raw_stream_is_only_the_bytes() {
        let mut queue = queue(Form::Raw);
        for message in [data(b"ab"), data(b"c"), data(b""), ChannelMsg::Eof] {
            queue.take(message);
        }
        let written: Vec<u8> = queue.pieces.iter().flatten().copied().collect();
        assert_eq!(written, b"abc");
        assert!(queue.ended);
        queue.clear();
        assert!(queue.has_work(), "the end is still to be written");
    }
}
