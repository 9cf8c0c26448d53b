//! The host's end of the guest protocol, for the programs that have a connection to a guest: the
//! gateway, to which hostd hands one, and hostd.
//!
//! Connections settle on a version here: see `VERSIONING.md` beside the protocol. What
//! arrives is hostile: whatever does not fit ends the stream with an error, and nothing
//! else.

mod frames;
mod stream;

pub use frames::{Frames, Output};
pub use stream::{Begin, Stream, open};

use berth_guest_protocol::{FrameError, Kind, Refused, RefusedKind};
use std::io;

/// What became of a stream. What a guest says in it is not fit to be printed as it is.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error("the machine does not answer")]
    Silent,
    #[error("the machine ended the stream")]
    Ended,
    #[error("the stream to the machine broke: {0}")]
    Io(#[from] io::Error),
    #[error("the machine broke the protocol: {0}")]
    Frame(#[from] FrameError),
    #[error("the machine broke the protocol: a {0:?} frame out of place")]
    Unexpected(Kind),
    #[error("the machine broke the protocol: an answer to another question")]
    Answer,
    /// It does not open what it was told to.
    #[error("the machine refused: {}", .0.message)]
    Refused(Refused),
    /// It did not do what it was asked.
    #[error("the machine refused: {0}")]
    Failed(String),
}

impl GuestError {
    /// The connection is gone, which says nothing of the guest: another may be made.
    pub const fn is_broken(&self) -> bool {
        matches!(self, Self::Ended | Self::Io(_))
    }

    /// It speaks less than it was thought to.
    pub fn is_of_version(&self) -> bool {
        matches!(self, Self::Refused(refused) if refused.kind == RefusedKind::Version)
    }
}
