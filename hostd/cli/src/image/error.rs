//! What can go wrong with an image, and what the operator is told to do.

use berth_types::{Code, Refusal};
use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
};

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read guest-init at {}", path.display())]
    GuestInit { path: PathBuf, source: io::Error },
    #[error("{} is not linked statically", .0.display())]
    NotStatic(PathBuf),
    #[error("{} is no program for a machine", .0.display())]
    NotElf(PathBuf),
    #[error("cannot run {program}")]
    Run { program: String, source: io::Error },
    #[error("{program} failed ({status})")]
    Tool { program: String, status: ExitStatus, tail: String, log: PathBuf },
    #[error("{program} failed ({status}) with '{tail}'")]
    Filter { program: String, status: ExitStatus, tail: String },
    #[error("this host's package sources name no Debian mirror")]
    NoSources,
    #[error("cannot unpack the kernel: {0}")]
    Kernel(&'static str),
    #[error("the kernel has no driver {0}")]
    NoModule(String),
    #[error("{} does not describe an image", path.display())]
    Metadata { path: PathBuf, source: serde_json::Error },
    #[error("'{0}' cannot name an image")]
    Name(String),
}

impl ImageError {
    pub fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    pub fn write(path: &Path, source: io::Error) -> Self {
        Self::Write { path: path.to_owned(), source }
    }

    /// What a failed tool said, to be shown above the error itself.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Tool { tail, .. } => Some(tail),
            _ => None,
        }
    }

    fn hint(&self) -> String {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => "run it as root".to_owned(),
                io::ErrorKind::StorageFull => "make room there".to_owned(),
                _ => "look at the path and try again".to_owned(),
            },
            Self::GuestInit { .. } | Self::NotStatic(_) | Self::NotElf(_) => {
                "build it with 'make build', or name it with --guest-init".to_owned()
            }
            Self::Run { program, .. } => {
                format!("install {program} ('make setup' installs all that is needed)")
            }
            Self::Tool { log, .. } => format!("all it said is in {}", log.display()),
            Self::NoSources => "add Debian's sources to /etc/apt and run 'apt-get update'".to_owned(),
            Self::Filter { .. } | Self::Kernel(_) | Self::NoModule(_) | Self::Metadata { .. } => {
                "build it anew with 'berth image build --force'".to_owned()
            }
            Self::Name(_) => "use letters, digits and '-', and start with a letter".to_owned(),
        }
    }
}

impl From<ImageError> for Refusal {
    fn from(error: ImageError) -> Self {
        let code = match error {
            ImageError::Name(_) => Code::Usage,
            _ => Code::Failed,
        };
        let message = match std::error::Error::source(&error) {
            Some(source) => format!("{error} ({source})"),
            None => error.to_string(),
        };
        Refusal::new(code, message, error.hint())
    }
}
