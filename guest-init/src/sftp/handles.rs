//! What a client has open.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::fs::Dir;

use super::packet::{Reader, Status};

#[derive(Debug)]
pub enum Handle {
    File(OwnedFd),
    Directory(Dir),
}

impl Handle {
    pub fn fd(&self) -> Result<BorrowedFd<'_>, Status> {
        match self {
            Self::File(file) => Ok(file.as_fd()),
            Self::Directory(listing) => Ok(listing.fd()?),
        }
    }
}

#[derive(Debug, Default)]
pub struct Handles {
    open: HashMap<u32, Handle>,
    next: u32,
}

impl Handles {
    pub fn insert(&mut self, handle: Handle) -> u32 {
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.open.insert(number, handle);
        number
    }

    pub fn remove(&mut self, reader: &mut Reader<'_>) -> Result<Handle, Status> {
        let number = number(reader)?;
        self.open.remove(&number).ok_or_else(unknown)
    }

    pub fn get(&mut self, reader: &mut Reader<'_>) -> Result<&mut Handle, Status> {
        let number = number(reader)?;
        self.open.get_mut(&number).ok_or_else(unknown)
    }

    pub fn file(&self, reader: &mut Reader<'_>) -> Result<&OwnedFd, Status> {
        let number = number(reader)?;
        match self.open.get(&number) {
            Some(Handle::File(file)) => Ok(file),
            _ => Err(unknown()),
        }
    }
}

fn number(reader: &mut Reader<'_>) -> Result<u32, Status> {
    let bytes = reader.string()?;
    <[u8; 4]>::try_from(bytes).map(u32::from_be_bytes).map_err(|_| unknown())
}

fn unknown() -> Status {
    Status::failure("Invalid handle")
}
