//! A store that is damaged is set aside, and begun anew from the mirrors.

use super::{Store, caught};
use crate::error::{Error, FileContext, Result};
use std::{io, path::Path};

/// Opens the store and reads all of it. One that cannot be read for a reason that
/// may be gone tomorrow is left alone.
pub fn open_or_set_aside(path: &Path) -> Result<Store> {
    let opened = caught("open", || {
        let store = Store::open(path)?;
        store.read_through()?;
        Ok(store)
    });
    let error = match opened {
        Err(error) if is_damage(&error) => error,
        opened => return opened,
    };
    let place = |number: u32| path.with_extension(format!("broken-{number}"));
    let aside = (1..).map(place).find(|place| !place.exists()).unwrap_or_else(|| place(0));
    tracing::error!(error = error.chain(), aside = %aside.display(),
        "the store is damaged: it is set aside, and rebuilt from the mirrors");
    std::fs::rename(path, &aside).file("set aside", path)?;
    Store::open(path)
}

/// sled says it by its own error, by a panic, or by one of the reader's errors.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::StorePanicked { .. } => true,
        Error::Store { source, .. } => match source {
            sled::Error::Corruption { .. }
            | sled::Error::ReportableBug(_)
            | sled::Error::Unsupported(_)
            | sled::Error::CollectionNotFound(_) => true,
            sled::Error::Io(error) => {
                matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData)
                    || error.raw_os_error().is_none() && error.kind() == io::ErrorKind::Other
            }
        },
        _ => false,
    }
}
