//! What every stream needs to know of the machine it runs in.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use crate::{
    account::{Account, Who},
    children::Children,
    control::{equip::Equipment, freeze::Freezer},
    error::{Context, Result},
    forward::tickets::Tickets,
    rehearse::Rehearser,
    server::streams::Streams,
};

/// Enough for one poll loop; a thousand streams must not cost a thousand
/// default stacks.
const STACK: usize = 128 * 1024;

#[derive(Debug, Default)]
pub struct Known {
    pub hostname: String,
    /// In bytes.
    pub disk: u64,
}

#[derive(Debug)]
pub struct Guest {
    who: Who,
    /// This program, to be run again as the SFTP server.
    pub program: PathBuf,
    pub children: Children,
    pub freezer: Freezer,
    pub rehearser: Rehearser,
    pub equipment: Equipment,
    pub tickets: Tickets,
    pub streams: Streams,
    known: Mutex<Known>,
}

impl Guest {
    /// A machine's own, with its reaper running.
    pub fn start(who: Who, program: PathBuf, freezer: Freezer) -> Result<Arc<Self>> {
        let guest = Arc::new(Self {
            who,
            program,
            children: Children::default(),
            freezer,
            rehearser: Rehearser::default(),
            equipment: Equipment::default(),
            tickets: Tickets::default(),
            streams: Streams::default(),
            known: Mutex::default(),
        });
        let reaper = Arc::clone(&guest);
        spawn("reaper", move || reaper.children.reap_forever())?;
        Ok(guest)
    }

    /// What the last repair made of it: most wakes find nothing to do, and every
    /// file that is not looked at is time saved.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Has the calling thread run when nobody else wants to; what it starts is as any.
#[allow(unsafe_code)]
pub fn yield_to_others() {
    let policy = libc::SCHED_IDLE | libc::SCHED_RESET_ON_FORK;
    // SAFETY: reads one number, and there is one. A kernel that refuses changes nothing.
    unsafe { libc::sched_setscheduler(0, policy, &libc::sched_param { sched_priority: 0 }) };
}
