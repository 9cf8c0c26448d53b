//! Ids: random, typed, never reused. A name may be renamed; an id never changes.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const LENGTH: usize = 12;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not an id: {0:?}")]
pub struct IdError(String);

/// Twelve base-32 letters: 60 bits, enough never to meet another.
fn random() -> String {
    let mut bytes = [0u8; LENGTH];
    getrandom::fill(&mut bytes).expect("the kernel gives randomness");
    bytes
        .iter()
        .map(|byte| char::from(ALPHABET.get(usize::from(byte % 32)).copied().unwrap_or(b'a')))
        .collect()
}

fn parse(text: &str) -> Result<String, IdError> {
    if text.len() == LENGTH && text.bytes().all(|byte| ALPHABET.contains(&byte)) {
        Ok(text.to_owned())
    } else {
        Err(IdError(text.chars().take(40).collect()))
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn random() -> Self {
                Self(random())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                parse(text).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// Names a machine's directory in the pool, its sockets and its namespace.
    MachineId
);
id!(
    /// Names a person or an agent: the owner of keys and machines.
    UserId
);

id!(
    /// Names a frozen point in time.
    GenerationId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_parse_and_differ() {
        let (one, two) = (MachineId::random(), MachineId::random());
        assert_ne!(one, two);
        assert_eq!(one.as_str().parse::<MachineId>().unwrap(), one);
    }

    #[test]
    fn an_id_is_never_a_path() {
        for bad in ["", "../../../etc", "abcdefghijk", "ABCDEFGHIJKL", "abcdefghijkl2", "abcdefghijk/"] {
            assert!(bad.parse::<UserId>().is_err(), "{bad}");
        }
    }
}
