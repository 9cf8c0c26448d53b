//! The gateway through the real `ssh`, `scp` and `sftp`. A machine here is a
//! process on this host; hostd is made up.

mod files;
mod forwards;
mod limits;
mod logins;
mod session;
mod support;
mod verbs;
