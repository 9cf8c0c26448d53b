//! The host user ids that machines have had, on record outside the store as well: one that
//! comes again would join two machines' processes.
//!
//! `DATA/next-uid` has the first id that was never given out, rounded up: it is written
//! once for a block of ids, ahead of the first of them.

use crate::{
    error::{FileContext, Result},
    storage::{replace, sync_directory},
};
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

const BLOCK: u32 = 64;

#[derive(Debug)]
pub struct Uids {
    path: PathBuf,
    /// Every id below this one may have been given out.
    reserved: Mutex<u32>,
}

impl Uids {
    pub fn beside(store: &Path) -> Result<Self> {
        let path = store.with_file_name("next-uid");
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.file("read", &path)?,
        };
        // One that does not decode says nothing; the records still do.
        let reserved = Mutex::new(text.trim().parse().unwrap_or(0));
        Ok(Self { path, reserved })
    }

    /// The first id that may be given out, where the store's own next one is `next`: that,
    /// unless the store was lost or is an older one.
    pub fn least(&self, next: Option<u32>) -> u32 {
        let reserved = *self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        next.filter(|next| next.saturating_add(BLOCK) >= reserved).unwrap_or(reserved)
    }

    /// This id is about to be used.
    pub fn reserve(&self, uid: u32) -> Result<()> {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if uid < *reserved {
            return Ok(());
        }
        let next = uid.saturating_add(BLOCK);
        replace(&self.path, format!("{next}\n").as_bytes())?;
        self.path.parent().map_or(Ok(()), sync_directory)?;
        *reserved = next;
        Ok(())
    }
}
