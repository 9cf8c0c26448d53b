//! What hostd and its commands ask of the kernel about files.
//!
//! `beneath` opens files in directories that a less trusted process may have written
//! to; `private` keeps what the service writes from everybody else; `inherited` ends what a
//! program was started with. `testing` is for tests alone.

pub mod beneath;
pub mod inherited;
pub mod machine;
pub mod private;
#[cfg(test)]
mod scratch;
pub mod testing;

pub use beneath::{Access, Directory, Expected, Owner};

use rustix::fs::Mode;

/// Undoes [`keep_private`] for a command that makes an image, which every hypervisor reads.
/// A guest's own root filesystem takes its modes from this too.
pub fn let_others_read() {
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
}

/// Files that this process makes from here on are readable by its own user only.
/// The first thing that every program of the service does.
pub fn keep_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}
