//! What can go wrong on the host's side, and what a user is told of it.

use crate::format::Unreadable;
use berth_types::{Code, Refusal};
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation} {}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{operation}")]
    Io { operation: &'static str, source: std::io::Error },
    #[error("the store: {operation}")]
    Store { operation: &'static str, source: sled::Error },
    #[error("the store panicked: {operation}: {message}")]
    StorePanicked { operation: &'static str, message: String },
    #[error("a record of {what} does not decode")]
    Record { what: &'static str, source: serde_json::Error },
    #[error("the record of {what}")]
    Unreadable { what: &'static str, source: Unreadable },
    #[error(
        "the store has {what} ({key}) of format version {version}, and this berth reads up to {}: start \
         the newer one again, or restore the backup from before the upgrade",
        crate::format::FORMAT_VERSION
    )]
    StoreIsNewer { what: &'static str, key: String, version: u64 },
    #[error("{program} failed: {output}")]
    Program { program: &'static str, output: String },
    #[error("the network: {operation}")]
    Network { operation: &'static str, source: rtnetlink::Error },
    #[error("the hypervisor")]
    Hypervisor(#[from] berth_hypervisor::Error),
    #[error("secrets: {0}")]
    Secret(&'static str),
    #[error("the egress bridge")]
    Bridge(#[from] berth_egress::BridgeError),
    #[error("the audit log")]
    Audit(#[from] berth_audit::AuditError),
    #[error("the authority")]
    Authority(#[from] rcgen::Error),
    #[error("the guest: {0}")]
    Guest(String),
    #[error("{0}")]
    Refused(#[from] Refusal),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The whole chain on one line, for logs and a machine's record.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(": ");
            text.push_str(&error.to_string());
            source = error.source();
        }
        text
    }

    fn is_out_of_space(&self) -> bool {
        let source = match self {
            Self::File { source, .. }
            | Self::Io { source, .. }
            | Self::Hypervisor(berth_hypervisor::Error::Io { source, .. }) => source,
            _ => return false,
        };
        matches!(source.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
    }
}

/// A user learns what they can act on; the rest is in the log.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        if error.is_out_of_space() {
            return pool_full();
        }
        match error {
            Error::Refused(refusal) => refusal,
            Error::Guest(message) => {
                Self::new(Code::Failed, message, "see its console with 'info NAME --console'")
            }
            other => {
                tracing::error!(error = other.chain(), "a request failed");
                Self::new(
                    Code::Failed,
                    "the host could not do that",
                    "its operator finds the reason in the log",
                )
            }
        }
    }
}

pub fn pool_full() -> Refusal {
    Refusal::new(
        Code::Limit,
        "the host's storage is full",
        "remove a machine with 'rm NAME', or ask the operator for room",
    )
}

/// Attaches the operation and its path to an I/O error.
pub trait FileContext<T> {
    fn file(self, operation: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> FileContext<T> for std::result::Result<T, E> {
    fn file(self, operation: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::File { operation, path: path.into(), source: source.into() })
    }
}

pub trait IoContext<T> {
    fn during(self, operation: &'static str) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> IoContext<T> for std::result::Result<T, E> {
    fn during(self, operation: &'static str) -> Result<T> {
        self.map_err(|source| Error::Io { operation, source: source.into() })
    }
}
