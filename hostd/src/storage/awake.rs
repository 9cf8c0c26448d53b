//! Which saved states a machine has woken from, as its own directory tells.
//!
//! A wake does not wait for the disk below, so a power failure can take back the store's
//! word that a machine runs: the record then says that it still sleeps where it slept, and
//! to wake it there again would lose all that the guest has written and synced since. So
//! before a guest runs on files that were laid out from a saved state, an empty file is made
//! beside them whose *name* says from which, and in which boot of the host: a name needs no
//! sync of its own. The disk was cloned just before, so the first write to any block of it is
//! a change that the filesystem's journal carries, and the journal keeps their order: no sync
//! of the guest's returns before this name is on the disk below.

use super::{Storage, blocking, generation::files};
use crate::error::{FileContext, Result};
use berth_sys::machine::Files;
use berth_types::{BootId, GenerationId, MachineId};
use std::io;

const AWAKE: &str = "awake-";

fn name(id: &GenerationId, boot: &BootId) -> String {
    format!("{AWAKE}{id}-{boot}")
}

fn parse(name: &str) -> Option<(GenerationId, BootId)> {
    let (id, boot) = name.strip_prefix(AWAKE)?.split_once('-')?;
    Some((id.parse().ok()?, boot.parse().ok()?))
}

impl Storage {
    /// From here on what the machine has is newer than that saved state.
    pub async fn mark_awake(&self, id: &MachineId, from: &GenerationId) -> Result<()> {
        let (directory, name) = (self.directory(id), name(from, &self.boot));
        blocking(move || {
            match files(&directory)?.create(&name) {
                // A hostd that ended in the middle of this wake said so already.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                marked => marked.map(drop).file("create", directory.join(&name)),
            }
        })
        .await
    }

    /// It sleeps there, whether it has been awake since or not; durably.
    pub async fn unmark_awake(&self, id: &MachineId, from: &GenerationId) -> Result<()> {
        self.unmark(id, |marked| marked == from, || true).await
    }

    /// The store says durably that it woke from this one; earlier wakes say nothing any more.
    /// `is_last` is asked when it is known what goes: a wake that came later has a mark too.
    pub async fn unmark_earlier(
        &self,
        id: &MachineId,
        from: &GenerationId,
        is_last: impl FnOnce() -> bool,
    ) -> Result<()> {
        self.unmark(id, |marked| marked != from, is_last).await
    }

    async fn unmark(
        &self,
        id: &MachineId,
        goes: impl Fn(&GenerationId) -> bool,
        may_go: impl FnOnce() -> bool,
    ) -> Result<()> {
        let gone: Vec<String> = self
            .marks(id)?
            .into_iter()
            .filter(|(marked, _)| goes(marked))
            .map(|(marked, boot)| name(&marked, &boot))
            .collect();
        if gone.is_empty() || !may_go() {
            return Ok(());
        }
        let directory = self.directory(id);
        blocking(move || {
            let own = files(&directory)?;
            gone.iter().try_for_each(|name| own.remove(name)).file("remove", &directory)?;
            own.sync().file("sync", &directory)
        })
        .await
    }

    /// Whether it has run on files that were laid out from this saved state.
    pub fn woke_from(&self, id: &MachineId, from: &GenerationId) -> Result<bool> {
        Ok(self.marks(id)?.iter().any(|(marked, _)| marked == from))
    }

    /// The saved states from which it woke in earlier boots of the host: whatever a record
    /// says, its guest may have gone on from there.
    pub fn woke_before_reboot(&self, id: &MachineId) -> Result<Vec<GenerationId>> {
        let marks = self.marks(id)?.into_iter();
        Ok(marks.filter(|(_, boot)| *boot != self.boot).map(|(from, _)| from).collect())
    }

    fn marks(&self, id: &MachineId) -> Result<Vec<(GenerationId, BootId)>> {
        let directory = self.directory(id);
        let own = match Files::open(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.file("open", &directory)?,
        };
        let names = own.names().file("list", &directory)?;
        Ok(names.iter().filter_map(|name| parse(name.to_str().ok()?)).collect())
    }
}
