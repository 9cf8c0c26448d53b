//! Frames: a length, a kind, a payload. No I/O; each side brings its own.

/// Bytes before a payload.
pub const HEADER: usize = 5;
/// The largest payload of a data frame: large enough that copying dominates,
/// small enough that a signal never waits long behind one.
pub const MAX_DATA: usize = 128 * 1024;
/// The largest payload of any frame: an [`crate::Open::Exec`] carries a whole
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
    /// What the guest speaks, before its reply. Since version 2.
    Hello = 11,
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
            11 => Self::Hello,
            _ => return None,
        })
    }

    /// What a frame of this kind may carry, so that nobody has to buffer more.
    pub const fn limit(self) -> usize {
        match self {
            Self::Open => MAX_FRAME,
            Self::Data | Self::Errors => MAX_DATA,
            Self::Eof => 0,
            Self::Hello => 256,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        for (kind, length) in
            [(Kind::Data, 0), (Kind::Data, MAX_DATA), (Kind::Eof, 0), (Kind::Open, MAX_FRAME)]
        {
            assert_eq!(parse_header(header(kind, length)), Ok(Header { kind, length }));
        }
    }

    #[test]
    fn hostile_headers_are_refused_before_anything_is_allocated() {
        assert_eq!(parse_header([0, 0, 0, 0, 3]), Err(FrameError::Length(0)));
        assert_eq!(parse_header([255, 255, 255, 255, 3]), Err(FrameError::Length(u32::MAX)));
        assert_eq!(parse_header([2, 0, 0, 0, 5]), Err(FrameError::Length(2)));
        assert_eq!(parse_header([1, 0, 0, 0, 0]), Err(FrameError::Kind(0)));
        assert_eq!(parse_header([2, 1, 0, 0, 11]), Err(FrameError::Length(258)));
        assert_eq!(parse_header([1, 0, 0, 0, 200]), Err(FrameError::Kind(200)));
    }
}
