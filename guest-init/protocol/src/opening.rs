//! The first frame of a stream, which says what the host speaks and what it wants.
//!
//! The version is postcard's varint of a u16. A varint may be written longer than it
//! need be, and means the same; a guest of version 1 reads `81 00` as 1. So a host that
//! does not know its guest writes it like that: every guest understands what follows,
//! and a guest of version 2 or later knows that the host speaks 2 as well.

use crate::{
    FrameError, Kind,
    codec::{self, seal},
    frame::HEADER,
    message::Open,
    version::Version,
};

/// The first frame of every stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    pub speaks: Speaks,
    pub open: Open,
}

/// What a host says that it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// Version 2, and all of the opening is as version 1 has it: `81 00`.
    OneOrTwo,
    /// Every version up to this one. A guest of version 1 refuses all but 1.
    UpTo(Version),
}

impl Speaks {
    /// To a guest of which that much is known.
    pub fn to(known: Option<Version>) -> Self {
        match known {
            Some(known) if known > Version::ONE => Self::UpTo(Version::OURS),
            _ => Self::OneOrTwo,
        }
    }

    pub const fn version(self) -> Version {
        match self {
            Self::OneOrTwo => Version::TWO,
            Self::UpTo(version) => version,
        }
    }

    /// Does the host wait for a [`crate::Hello`]?
    pub fn wants_hello(self) -> bool {
        self.version().has(crate::Feature::Hello)
    }
}

impl Opening {
    /// A whole frame.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let mut frame = vec![0; HEADER];
        match self.speaks {
            Speaks::OneOrTwo => frame.extend([0x81, 0x00]),
            Speaks::UpTo(version) => frame = codec::put(&version.number(), frame)?,
        }
        seal(Kind::Open, codec::put(&self.open, frame)?)
    }

    /// From a payload.
    pub fn decode(payload: &[u8]) -> Result<Self, FrameError> {
        let (number, rest): (u16, _) = codec::take(payload)?;
        let speaks = match (Version::try_from(number)?, payload.len() - rest.len()) {
            (Version::ONE, 2..) => Speaks::OneOrTwo,
            (version, _) => Speaks::UpTo(version),
        };
        let (open, rest) = codec::take(rest)?;
        match speaks {
            // What it says besides came later than we did.
            Speaks::UpTo(version) if version.has(crate::Feature::LaterFields) => {}
            _ if rest.is_empty() => {}
            _ => return Err(FrameError::Payload),
        }
        Ok(Self { speaks, open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_known_is_spoken_to_as_everybody_understands() {
        assert_eq!(Speaks::to(None), Speaks::OneOrTwo);
        assert_eq!(Speaks::to(Some(Version::ONE)), Speaks::OneOrTwo);
        assert_eq!(Speaks::to(Some(Version::TWO)), Speaks::UpTo(Version::OURS));
        assert_eq!(Speaks::to(Version::new(9)), Speaks::UpTo(Version::OURS));
        assert!(Speaks::OneOrTwo.wants_hello() && !Speaks::UpTo(Version::ONE).wants_hello());
    }
}
