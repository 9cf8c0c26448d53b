//! A disk whose power can be cut at any moment: what is on it then is a copy of its own.
//!
//! ```text
//!   tmpfs                 private to this test, gone with it however it ends
//!   └ host.img ── loop ── XFS on HOST, where a file is copied in one instant (FICLONE)
//!     └ disk.img ── loop ── XFS on NOW: the data directory, with hostd at work
//!     └ cut.img  ── loop ── XFS on THEN: what NOW's disk had at one moment
//! ```
//!
//! `disk.img` is the device below NOW's filesystem. Its copy has what that filesystem had
//! written to its device by then, journal included, and nothing of the page cache above it,
//! as after a power failure. The device itself has no cache that it could lose: that the
//! filesystem flushes one where it must is the filesystem's own to test.

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use std::{
    fs::File,
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

pub struct Disk {
    place: PathBuf,
    /// Ends every process that works on the disk when this test ends, however it does: acted
    /// hypervisors outlive it otherwise, and keep the disk.
    ends: Option<Child>,
}

const ENDS: &str = r#"
    read line
    for process in /proc/[0-9]*; do
        case $(readlink "$process/cwd") in "$1"/*) kill -9 "${process#/proc/}" ;; esac
    done
"#;

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("{command:?}: {told}")))
}

impl Disk {
    /// Mounted for this thread and for those that it starts, and for no other. An error
    /// says what this host does not have.
    pub fn new() -> io::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("only root may mount"));
        }
        unshare(CloneFlags::CLONE_NEWNS)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        let place = std::env::temp_dir().join(format!("berth-flash-{}", berth_types::MachineId::random()));
        std::fs::create_dir(&place)?;
        let mut watch = Command::new("sh");
        watch.args(["-c", ENDS, "sh"]).arg(&place).stdin(Stdio::piped()).stderr(Stdio::null());
        // What ends the test by a signal to its group must not end this too.
        watch.process_group(0);
        let disk = Self { ends: watch.spawn().ok(), place };
        mount(Some("berth-flash"), &disk.place, Some("tmpfs"), MsFlags::empty(), none)?;
        disk.format("host.img", 4 << 30, "host")?;
        disk.format("host/disk.img", 1 << 30, "now")?;
        std::fs::create_dir(disk.place.join("then"))?;
        Ok(disk)
    }

    fn format(&self, image: &str, size: u64, on: &str) -> io::Result<()> {
        let (image, on) = (self.place.join(image), self.place.join(on));
        File::create(&image)?.set_len(size)?;
        run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image))?;
        std::fs::create_dir(&on)?;
        attach(&image, &on)
    }

    pub fn now(&self) -> PathBuf {
        self.place.join("now")
    }

    /// What is on the disk at this moment, beside what goes on.
    pub fn cut(&self) -> io::Result<Cut> {
        let (from, image) = (self.place.join("host/disk.img"), self.place.join("host/cut.img"));
        rustix::fs::ioctl_ficlone(File::create(&image)?, File::open(from)?)?;
        Ok(Cut { image, on: self.place.join("then") })
    }
}

fn attach(image: &Path, on: &Path) -> io::Result<()> {
    run(Command::new("mount").args(["-t", "xfs", "-o", "loop,nouuid,noatime"]).arg(image).arg(on))
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(mut ends) = self.ends.take() {
            drop(ends.stdin.take());
            let _ = ends.wait();
        }
        for on in ["now", "host", "."] {
            let _ = umount2(&self.place.join(on), MntFlags::MNT_DETACH);
        }
        let _ = std::fs::remove_dir(&self.place);
    }
}

/// A disk after its power was cut.
pub struct Cut {
    image: PathBuf,
    on: PathBuf,
}

impl Cut {
    /// As the next boot has it.
    pub fn mount(&self) -> io::Result<&Path> {
        attach(&self.image, &self.on)?;
        Ok(&self.on)
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let _ = umount2(&self.on, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_file(&self.image);
    }
}
