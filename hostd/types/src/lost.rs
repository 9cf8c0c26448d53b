//! What a start could not place and moved aside.

use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostKind {
    /// A machine's directory.
    Machine,
    /// A saved state.
    Snapshot,
    /// A file from which the store would have been rebuilt.
    Mirror,
}

impl fmt::Display for LostKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Machine => "machine",
            Self::Snapshot => "snapshot",
            Self::Mirror => "mirror",
        })
    }
}
