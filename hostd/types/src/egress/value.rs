//! The value of a secret: wiped when dropped, never printed, never serialised
//! by accident.

use std::fmt;
use zeroize::Zeroizing;

/// A certificate chain with its key fits well.
const MAX: usize = 64 * 1024;
/// Shorter values could not be told from ordinary text in a response.
const MIN_TEXT: usize = 8;
/// What servers still take in a header.
const MAX_TEXT: usize = 4096;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidValue {
    #[error("a secret's value cannot be empty")]
    Empty,
    #[error("a secret's value has at most {MAX} bytes")]
    TooLong,
    #[error("a secret that is sent as text has {MIN_TEXT} to {MAX_TEXT} characters")]
    TextLength,
    #[error("a secret that is sent as text is one line of visible ASCII characters")]
    TextCharacter,
}

/// Deliberately without `Serialize`: only the store and the bridge's control
/// socket write it, each in a way of its own.
#[derive(Clone)]
pub struct SecretValue(Zeroizing<Vec<u8>>);

impl SecretValue {
    pub fn new(bytes: Vec<u8>) -> Result<Self, InvalidValue> {
        let bytes = Zeroizing::new(bytes);
        match bytes.len() {
            0 => Err(InvalidValue::Empty),
            1..=MAX => Ok(Self(bytes)),
            _ => Err(InvalidValue::TooLong),
        }
    }

    /// As it comes from standard input: one line break at its end is the
    /// editor's or `echo`'s, not the secret's.
    pub fn from_input(mut bytes: Vec<u8>) -> Result<Self, InvalidValue> {
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        Self::new(bytes)
    }

    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn check(&self, as_text: bool) -> Result<(), InvalidValue> {
        if as_text && !(MIN_TEXT..=MAX_TEXT).contains(&self.0.len()) {
            return Err(InvalidValue::TextLength);
        }
        if as_text && !self.0.iter().all(|byte| (0x20..0x7f).contains(byte)) {
            return Err(InvalidValue::TextCharacter);
        }
        Ok(())
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_printed() {
        let value = SecretValue::from_input(b"sk-very-secret\r\n".to_vec()).unwrap();
        assert_eq!(format!("{value:?}"), "SecretValue");
        assert_eq!(value.expose(), b"sk-very-secret");
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let check = |bytes: &[u8]| SecretValue::new(bytes.to_vec()).and_then(|value| value.check(true));
        assert_eq!(check(b""), Err(InvalidValue::Empty));
        assert_eq!(check(b"short"), Err(InvalidValue::TextLength));
        assert_eq!(check(b"long enough\r\nEvil: yes"), Err(InvalidValue::TextCharacter));
        assert_eq!(check(b"long enough"), Ok(()));
        assert_eq!(check(&vec![b'x'; MAX + 1]), Err(InvalidValue::TooLong));
    }
}
