//! The gateway through the real `ssh`, `scp` and `sftp`. A machine here is a
//! process on this host; hostd is made up.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod access;
mod files;
mod forwards;
mod hardware;
mod limits;
mod logins;
mod memory;
mod older_guest;
mod session;
mod support;
mod transcripts;
mod verbs;
