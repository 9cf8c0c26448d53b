//! What can go wrong with the log's files.

use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("cannot {operation} {}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot read the log")]
    Read(#[source] std::io::Error),
    #[error("an entry has no JSON form")]
    Encode(#[source] serde_json::Error),
    #[error("{} is no public key: give the 64 digits of one", path.display())]
    Key { path: PathBuf },
    #[error("{} is no head of a log", path.display())]
    Head { path: PathBuf },
    #[error(
        "{} has format version {version}, and this berth reads up to {}: start the newer one again",
        path.display(),
        crate::line::FORMAT_VERSION
    )]
    Newer { path: PathBuf, version: u64 },
}

pub trait FileContext<T> {
    fn file(self, operation: &'static str, path: &Path) -> Result<T, AuditError>;
}

impl<T> FileContext<T> for std::io::Result<T> {
    fn file(self, operation: &'static str, path: &Path) -> Result<T, AuditError> {
        self.map_err(|source| AuditError::File { operation, path: path.to_owned(), source })
    }
}
