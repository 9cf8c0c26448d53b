//! guest-init as it goes into an image: looked at first, for a machine that
//! cannot run its PID 1 says nothing but that it panicked.

use super::{ImageError, recipe};
use sha2::{Digest, Sha256};
use std::{fs, path::Path};

#[derive(Debug)]
pub struct GuestInit {
    pub bytes: Vec<u8>,
    pub hash: String,
}

impl GuestInit {
    pub fn read(path: &Path) -> Result<Self, ImageError> {
        let bytes =
            fs::read(path).map_err(|source| ImageError::GuestInit { path: path.to_owned(), source })?;
        match needs_interpreter(&bytes) {
            Some(false) => {}
            Some(true) => return Err(ImageError::NotStatic(path.to_owned())),
            None => return Err(ImageError::NotElf(path.to_owned())),
        }
        let hash = recipe::hex(&Sha256::digest(&bytes));
        Ok(Self { bytes, hash })
    }
}

/// Does this 64-bit ELF file ask for a dynamic linker? `None`: it is no such file.
fn needs_interpreter(elf: &[u8]) -> Option<bool> {
    const INTERPRETER: u32 = 3;
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?)));
    let table = usize::try_from(u64::from_le_bytes(elf.get(32..40)?.try_into().ok()?)).ok()?;
    let (size, count) = (half(54)?, half(56)?);
    let mut found = false;
    for index in 0..count {
        let at = table.checked_add(index * size)?;
        let kind = elf.get(at..at.checked_add(4)?)?;
        found |= u32::from_le_bytes(kind.try_into().ok()?) == INTERPRETER;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_told_from_a_static_one() {
        let this = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(needs_interpreter(&this), Some(true));
        let mut bare = vec![0; 64];
        bare[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert_eq!(needs_interpreter(&bare), Some(false));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let this = fs::read(std::env::current_exe().unwrap()).unwrap();
        for bad in [&b""[..], b"#!/bin/sh", this.get(..60).unwrap()] {
            assert_eq!(needs_interpreter(bad), None);
        }
    }
}
