//! Which versions there are, and what came with which.

use crate::FrameError;
use serde::{Deserialize, Serialize};

/// A version of the protocol. A connection uses the lower one of both ends'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Version(u16);

/// What came after version 1. This is the only place that says with which version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The guest says its version ([`crate::Hello`]) before it replies.
    Hello,
    /// A reader takes fields that are not there as absent, and passes over what
    /// comes behind those that it knows.
    LaterFields,
    /// [`crate::Equip::known_hosts`] is a field. Version 1 has a variable for it.
    KnownHosts,
}

impl Feature {
    pub const ALL: [Self; 3] = [Self::Hello, Self::LaterFields, Self::KnownHosts];

    /// The table.
    pub const fn since(self) -> Version {
        match self {
            Self::Hello | Self::LaterFields | Self::KnownHosts => Version::TWO,
        }
    }
}

impl Version {
    pub const ONE: Self = Self(1);
    pub const TWO: Self = Self(2);
    /// The latest, which this end speaks with all before it.
    pub const OURS: Self = Self::TWO;

    /// None: there is no version 0.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    pub const fn number(self) -> u16 {
        self.0
    }

    /// What a connection to an end that speaks `theirs` uses.
    pub fn settle(self, theirs: Self) -> Self {
        self.min(theirs)
    }

    pub const fn has(self, feature: Feature) -> bool {
        self.0 >= feature.since().0
    }
}

impl TryFrom<u16> for Version {
    type Error = FrameError;

    fn try_from(number: u16) -> Result<Self, FrameError> {
        Self::new(number).ok_or(FrameError::Payload)
    }
}

impl From<Version> for u16 {
    fn from(version: Version) -> Self {
        version.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_uses_the_lower_version() {
        assert_eq!(Version::TWO.settle(Version::ONE), Version::ONE);
        assert_eq!(Version::TWO.settle(Version(7)), Version::TWO);
        assert_eq!(Version::new(0), None);
    }

    #[test]
    fn version_1_has_nothing_that_came_later_and_ours_has_all() {
        for feature in Feature::ALL {
            assert!(!Version::ONE.has(feature) && Version::OURS.has(feature), "{feature:?}");
        }
    }
}
