//! Who has how much: quotas per user and the host's memory.
//!
//! Sums are kept, never recounted, so that an answer costs the same for one
//! machine as for a thousand.

use berth_api::Usage;
use berth_types::{ByteSize, Code, Quota, Refusal, UserId};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

#[derive(Clone, Debug)]
pub struct Ledger(Arc<Mutex<Books>>);

#[derive(Debug)]
struct Books {
    quota: Quota,
    host_memory: ByteSize,
    /// Of users' machines.
    committed: ByteSize,
    /// Of templates that are being made.
    templates: ByteSize,
    users: HashMap<UserId, Usage>,
}

/// Memory that a machine which is up has; given back when this is dropped.
#[derive(Debug)]
pub struct MemoryLease {
    ledger: Ledger,
    /// `None`: a template that is being made.
    owner: Option<UserId>,
    size: ByteSize,
}

impl Ledger {
    pub fn new(quota: Quota, host_memory: ByteSize) -> Self {
        let (committed, templates, users) = (ByteSize(0), ByteSize(0), HashMap::new());
        Self(Arc::new(Mutex::new(Books { quota, host_memory, committed, templates, users })))
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn quota(&self) -> Quota {
        self.books().quota
    }

    pub fn usage(&self, user: &UserId) -> Usage {
        self.books().users.get(user).copied().unwrap_or_default()
    }

    /// (committed, limit) of the host's memory.
    pub fn memory(&self) -> (ByteSize, ByteSize) {
        let books = self.books();
        (books.committed, books.host_memory)
    }

    /// Counts a machine that is about to be made.
    pub fn admit_machine(&self, owner: &UserId, disk: ByteSize) -> Result<(), Refusal> {
        let mut books = self.books();
        let quota = books.quota;
        let usage = books.users.entry(owner.clone()).or_default();
        let total = fits(*usage, quota, 1, disk)?;
        usage.machines += 1;
        usage.disk = total;
        Ok(())
    }

    /// Would so many machines of a size fit? Asked before work that they need;
    /// each is admitted by itself later.
    pub fn check_machines(&self, owner: &UserId, count: u32, disk: ByteSize) -> Result<(), Refusal> {
        let books = self.books();
        let usage = books.users.get(owner).copied().unwrap_or_default();
        fits(usage, books.quota, count, disk).map(drop)
    }

    /// Counts a machine that exists already, whatever the quota says now.
    pub fn count_machine(&self, owner: &UserId, disk: ByteSize) {
        let mut books = self.books();
        let usage = books.users.entry(owner.clone()).or_default();
        usage.machines += 1;
        usage.disk = ByteSize(usage.disk.bytes().saturating_add(disk.bytes()));
    }

    pub fn forget_machine(&self, owner: &UserId, disk: ByteSize) {
        if let Some(usage) = self.books().users.get_mut(owner) {
            usage.machines = usage.machines.saturating_sub(1);
            usage.disk = ByteSize(usage.disk.bytes().saturating_sub(disk.bytes()));
        }
    }

    /// Memory for a start.
    pub fn admit_memory(&self, owner: &UserId, size: ByteSize) -> Result<MemoryLease, Refusal> {
        let mut books = self.books();
        if add(books.committed, size) > books.host_memory {
            return Err(no_memory(size));
        }
        let quota = books.quota.memory;
        let usage = books.users.entry(owner.clone()).or_default();
        let total = usage.memory.bytes().saturating_add(size.bytes());
        if total > quota.bytes() {
            let message = format!(
                "your running machines have {} of memory, and may have {quota} together",
                usage.memory
            );
            return Err(Refusal::new(Code::Limit, message, "stop one with 'stop NAME'"));
        }
        books.take(owner, size);
        Ok(MemoryLease { ledger: self.clone(), owner: Some(owner.clone()), size })
    }

    /// Memory to make a template in: what is free, and no user is refused any because of it.
    /// For those seconds the host may have more in use than its limit.
    pub fn admit_template(&self, size: ByteSize) -> Result<MemoryLease, Refusal> {
        let mut books = self.books();
        let templates = add(books.templates, size);
        if add(books.committed, templates) > books.host_memory {
            return Err(no_memory(size));
        }
        books.templates = templates;
        Ok(MemoryLease { ledger: self.clone(), owner: None, size })
    }

    /// The same for a machine that is up already: it cannot be refused.
    pub fn take_memory(&self, owner: &UserId, size: ByteSize) -> MemoryLease {
        self.books().take(owner, size);
        MemoryLease { ledger: self.clone(), owner: Some(owner.clone()), size }
    }
}

impl Books {
    fn take(&mut self, owner: &UserId, size: ByteSize) {
        self.committed = add(self.committed, size);
        let usage = self.users.entry(owner.clone()).or_default();
        usage.memory = add(usage.memory, size);
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        let less = |sum: ByteSize| ByteSize(sum.bytes().saturating_sub(self.size.bytes()));
        let mut books = self.ledger.books();
        let Some(owner) = &self.owner else {
            books.templates = less(books.templates);
            return;
        };
        books.committed = less(books.committed);
        if let Some(usage) = books.users.get_mut(owner) {
            usage.memory = less(usage.memory);
        }
    }
}

fn add(sum: ByteSize, more: ByteSize) -> ByteSize {
    ByteSize(sum.bytes().saturating_add(more.bytes()))
}

fn no_memory(size: ByteSize) -> Refusal {
    Refusal::new(
        Code::Limit,
        format!("the host has no {size} of memory left for it"),
        "stop another machine with 'stop NAME', or try later",
    )
}

/// The disk that a user would have with so many more machines, if they may.
fn fits(usage: Usage, quota: Quota, count: u32, disk: ByteSize) -> Result<ByteSize, Refusal> {
    if usage.machines.saturating_add(count) > quota.machines {
        let message = format!("you have {} machines, and may have {}", usage.machines, quota.machines);
        return Err(Refusal::new(Code::Limit, message, "remove one with 'rm NAME'"));
    }
    let more = disk.bytes().saturating_mul(u64::from(count));
    let total = usage.disk.bytes().saturating_add(more);
    if total > quota.disk.bytes() {
        let (has, may) = (usage.disk, quota.disk);
        let message = format!("your machines have {has} of disk, and may have {may} together");
        let hint = "ask for less with --disk, or remove one with 'rm NAME'";
        return Err(Refusal::new(Code::Limit, message, hint));
    }
    Ok(ByteSize(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let quota = Quota {
            machines: 2,
            memory: ByteSize::gib(2),
            disk: ByteSize::gib(10),
            points: ByteSize::gib(9),
        };
        Ledger::new(quota, ByteSize::gib(3))
    }

    #[test]
    fn a_user_meets_their_own_quota_and_nobody_elses() {
        let (ledger, ann, bob) = (ledger(), UserId::random(), UserId::random());
        ledger.admit_machine(&ann, ByteSize::gib(6)).unwrap();
        assert_eq!(ledger.admit_machine(&ann, ByteSize::gib(6)).unwrap_err().code, Code::Limit);
        ledger.admit_machine(&ann, ByteSize::gib(4)).unwrap();
        assert_eq!(ledger.admit_machine(&ann, ByteSize(1)).unwrap_err().code, Code::Limit);
        ledger.admit_machine(&bob, ByteSize::gib(10)).unwrap();
        ledger.forget_machine(&ann, ByteSize::gib(6));
        ledger.admit_machine(&ann, ByteSize::gib(6)).unwrap();
    }

    #[test]
    fn memory_comes_back_when_its_lease_ends() {
        let (ledger, ann, bob) = (ledger(), UserId::random(), UserId::random());
        let lease = ledger.admit_memory(&ann, ByteSize::gib(2)).unwrap();
        assert!(ledger.admit_memory(&ann, ByteSize(1)).is_err());
        assert!(ledger.admit_memory(&bob, ByteSize::gib(2)).is_err(), "the host has 3G");
        drop(lease);
        ledger.admit_memory(&bob, ByteSize::gib(2)).unwrap();
        assert_eq!(ledger.memory().0, ByteSize(0));
    }

    #[test]
    fn a_template_takes_what_is_free_and_takes_it_from_no_user() {
        let (ledger, ann) = (ledger(), UserId::random());
        let lease = ledger.admit_memory(&ann, ByteSize::gib(1)).unwrap();
        let template = ledger.admit_template(ByteSize::gib(2)).unwrap();
        assert!(ledger.admit_template(ByteSize(1)).is_err(), "the host has 3G");
        let more = ledger.admit_memory(&ann, ByteSize::gib(1)).unwrap();
        drop(template);
        assert_eq!(ledger.memory().0, ByteSize::gib(2));
        assert!(ledger.admit_template(ByteSize::gib(2)).is_err());
        drop((lease, more));
        ledger.admit_template(ByteSize::gib(3)).unwrap();
    }
}
