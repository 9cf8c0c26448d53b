//! One error type: what was being done, to what, and what the kernel said.
//! Most of it ends as a refusal on the wire or as a line on the console.

use std::{error::Error as _, fmt::Display, io};

use berth_guest_protocol::{Refused, RefusedKind};

#[derive(Debug, thiserror::Error)]
#[error("{operation} {subject}")]
pub struct Error {
    operation: &'static str,
    subject: String,
    #[source]
    source: io::Error,
}

pub type Result<T> = std::result::Result<T, Error>;

/// Says what was being done when the kernel refused.
pub trait Context<T> {
    fn during(self, operation: &'static str, subject: impl Display) -> Result<T>;
}

impl<T, E: Into<io::Error>> Context<T> for std::result::Result<T, E> {
    fn during(self, operation: &'static str, subject: impl Display) -> Result<T> {
        self.map_err(|source| Error { operation, subject: subject.to_string(), source: source.into() })
    }
}

impl Error {
    pub fn new(operation: &'static str, subject: impl Display, source: io::Error) -> Self {
        Self { operation, subject: subject.to_string(), source }
    }

    /// The error and its causes in one line, for the console and for refusals.
    pub fn line(&self) -> String {
        let mut line = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        line
    }

    pub fn refusal(&self) -> Refused {
        Refused { kind: refused_kind(&self.source), message: self.line() }
    }
}

fn refused_kind(error: &io::Error) -> RefusedKind {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => RefusedKind::Denied,
        Some(
            libc::ENOENT
            | libc::ENOTDIR
            | libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::ETIMEDOUT
            | libc::ECONNRESET,
        ) => RefusedKind::Unreachable,
        Some(
            libc::EMFILE
            | libc::ENFILE
            | libc::ENOMEM
            | libc::EAGAIN
            | libc::ENOSPC
            | libc::EDQUOT
            | libc::ENOBUFS
            | libc::E2BIG,
        ) => RefusedKind::Exhausted,
        Some(_) => RefusedKind::Failed,
        None => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::TimedOut => RefusedKind::Unreachable,
            io::ErrorKind::PermissionDenied => RefusedKind::Denied,
            io::ErrorKind::OutOfMemory => RefusedKind::Exhausted,
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => RefusedKind::Malformed,
            _ => RefusedKind::Failed,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_the_kind_and_the_cause() {
        let refused =
            Error::new("connect to", "db:5432", io::Error::from_raw_os_error(libc::ECONNREFUSED)).refusal();
        assert_eq!(refused.kind, RefusedKind::Unreachable);
        assert!(refused.message.starts_with("connect to db:5432: "), "{}", refused.message);
    }
}
