//! Pseudo-terminals.

use std::{
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use berth_guest_protocol::Pty;
use rustix::{
    fs::{Gid, Mode, OFlags, Uid, chmod, chown, fcntl_setfl},
    process::{Pid, Signal, kill_process_group},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt},
    termios::{OptionalActions, Winsize, tcgetattr, tcgetpgrp, tcsetattr, tcsetwinsize},
};

use super::modes;
use crate::{
    account::{Account, group_id},
    error::{Context, Result},
};

/// Our side of a terminal. Dropping it hangs up.
#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
}

/// The user's side, to be given to a process.
#[derive(Debug)]
pub struct Line {
    pub slave: OwnedFd,
    pub path: PathBuf,
}

impl Terminal {
    pub fn open(request: &Pty) -> Result<(Self, Line)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).during("open", "a terminal")?;
        grantpt(&master).and_then(|()| unlockpt(&master)).during("unlock", "a terminal")?;
        let name = ptsname(&master, Vec::new()).during("name", "a terminal")?;
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes())).to_owned();
        let slave = ioctl_tiocgptpeer(&master, flags).during("open", path.display())?;
        let mut termios = tcgetattr(&slave).during("read the modes of", path.display())?;
        modes::apply(&mut termios, &request.modes);
        tcsetattr(&slave, OptionalActions::Now, &termios).during("set the modes of", path.display())?;
        let terminal = Self { master };
        terminal.resize(request.columns, request.rows, request.width, request.height)?;
        fcntl_setfl(&terminal.master, OFlags::RDWR | OFlags::NONBLOCK).during("prepare", path.display())?;
        Ok((terminal, Line { slave, path }))
    }

    pub fn resize(&self, columns: u16, rows: u16, width: u16, height: u16) -> Result<()> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: width, ws_ypixel: height };
        tcsetwinsize(&self.master, size).during("resize", "a terminal")
    }

    /// To the job in the foreground; `leader` when there is none.
    pub fn signal(&self, signal: Signal, leader: Pid) -> rustix::io::Result<()> {
        kill_process_group(tcgetpgrp(&self.master).unwrap_or(leader), signal)
    }
}

impl Line {
    /// As login does: the user's, and the group's of `write` and `wall`.
    pub fn give_to(&self, account: &Account) -> Result<()> {
        let (group, mode) = match group_id("tty") {
            Some(tty) => (tty, 0o620),
            None => (account.gid, 0o600),
        };
        chown(&self.path, Some(Uid::from_raw(account.uid)), Some(Gid::from_raw(group)))
            .and_then(|()| chmod(&self.path, Mode::from_raw_mode(mode)))
            .during("give away", self.path.display())
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }
}
