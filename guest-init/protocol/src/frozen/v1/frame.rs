//! The frames of version 1.

use serde::{Serialize, de::DeserializeOwned};

/// Bytes before a payload.
pub const HEADER: usize = 5;
/// The largest payload of a data frame: large enough that copying dominates,
/// small enough that a signal never waits long behind one.
pub const MAX_DATA: usize = 128 * 1024;
/// The largest payload of any frame: an [`super::Open::Exec`] carries a whole
/// command line and environment.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Open = 1,
    Reply = 2,
    /// Standard input downwards, standard output upwards.
    Data = 3,
    /// Standard error, upwards.
    Errors = 4,
    /// No more data in this direction.
    Eof = 5,
    Event = 6,
    Exit = 7,
    Incoming = 8,
    Control = 9,
    Answer = 10,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FrameError {
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    #[error("frame of {0} bytes")]
    Length(u32),
    #[error("frame does not decode")]
    Payload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    /// Of the payload, already checked against the kind's limit.
    pub length: usize,
}

impl Kind {
    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Open,
            2 => Self::Reply,
            3 => Self::Data,
            4 => Self::Errors,
            5 => Self::Eof,
            6 => Self::Event,
            7 => Self::Exit,
            8 => Self::Incoming,
            9 => Self::Control,
            10 => Self::Answer,
            _ => return None,
        })
    }

    /// What a frame of this kind may carry, so that nobody has to buffer more.
    pub const fn limit(self) -> usize {
        match self {
            Self::Open => MAX_FRAME,
            Self::Data | Self::Errors => MAX_DATA,
            Self::Eof => 0,
            Self::Reply | Self::Event | Self::Exit | Self::Incoming | Self::Control | Self::Answer => {
                64 * 1024
            }
        }
    }
}

/// The five bytes before a payload of `length` bytes.
pub fn header(kind: Kind, length: usize) -> [u8; HEADER] {
    debug_assert!(length <= kind.limit());
    let [a, b, c, d] = (u32::try_from(length).unwrap_or(u32::MAX).saturating_add(1)).to_le_bytes();
    [a, b, c, d, kind as u8]
}

pub fn parse_header(bytes: [u8; HEADER]) -> Result<Header, FrameError> {
    let [a, b, c, d, kind] = bytes;
    let length = u32::from_le_bytes([a, b, c, d]);
    let kind = Kind::of(kind).ok_or(FrameError::Kind(kind))?;
    let payload = length.checked_sub(1).ok_or(FrameError::Length(length))? as usize;
    if payload > kind.limit() {
        return Err(FrameError::Length(length));
    }
    Ok(Header { kind, length: payload })
}

/// A whole frame of a message; refuses one that the other side would refuse.
pub fn encode<T: Serialize>(kind: Kind, message: &T) -> Result<Vec<u8>, FrameError> {
    let mut frame = postcard::to_extend(message, vec![0; HEADER]).map_err(|_| FrameError::Payload)?;
    let length = frame.len() - HEADER;
    if length > kind.limit() {
        return Err(FrameError::Length(u32::try_from(length).unwrap_or(u32::MAX)));
    }
    if let Some(place) = frame.first_chunk_mut::<HEADER>() {
        *place = header(kind, length);
    }
    Ok(frame)
}

/// A message from a payload, all of which must be used.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Payload),
    }
}
