//! What every stream needs to know of the machine it runs in.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use berth_guest_protocol::Repair;

use crate::{
    account::{Account, Who},
    children::Children,
    control::{equip::Equipment, freeze::Freezer},
    error::{Context, Result},
    forward::tickets::Tickets,
    server::streams::Streams,
};

/// Enough for one poll loop; a thousand streams must not cost a thousand
/// default stacks.
const STACK: usize = 128 * 1024;

#[derive(Debug)]
pub struct Guest {
    who: Who,
    /// This program, to be run again as the SFTP server.
    pub program: PathBuf,
    pub children: Children,
    pub freezer: Freezer,
    pub equipment: Equipment,
    pub tickets: Tickets,
    pub streams: Streams,
    /// What it was called last, and its disk's size.
    known_as: Mutex<Option<(String, u64)>>,
}

impl Guest {
    /// A machine's own, with its reaper running.
    pub fn start(who: Who, program: PathBuf, freezer: Freezer) -> Result<Arc<Self>> {
        let guest = Arc::new(Self {
            who,
            program,
            children: Children::default(),
            freezer,
            equipment: Equipment::default(),
            tickets: Tickets::default(),
            streams: Streams::default(),
            known_as: Mutex::default(),
        });
        let reaper = Arc::clone(&guest);
        spawn("reaper", move || reaper.children.reap_forever())?;
        Ok(guest)
    }

    /// Whether this is the same machine as at the last repair: most wakes find
    /// nothing to do, and every file that is not looked at is time saved.
    pub fn is_known_as(&self, repair: &Repair) -> bool {
        let known = self.known_as.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            known.as_ref().is_some_and(|(name, disk)| *name == repair.hostname && *disk == repair.disk);
        same && !repair.renew_identity
    }

    pub fn remember(&self, repair: &Repair) {
        let mut known = self.known_as.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((repair.hostname.clone(), repair.disk));
    }

    pub fn account(&self) -> Account {
        Account::lookup(self.who)
    }

    /// A machine, where the user is somebody else than PID 1; not a host.
    pub fn is_machine(&self) -> bool {
        matches!(self.who, Who::Dev)
    }

    /// Makes the calling thread the user's, for good.
    pub fn become_user(&self) -> Result<()> {
        if self.is_machine() {
            let account = self.account();
            account.assume().during("become", account.name.display())?;
        }
        Ok(())
    }
}

pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(work)
        .during("start the thread", name)
        .map(drop)
}
