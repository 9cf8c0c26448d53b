//! The root filesystem: mmdebstrap with our packages and our last touches, then
//! an ext4 image of it.

use super::{
    ImageError,
    progress::Progress,
    recipe::{CUSTOMISE, DISK_BYTES, EXCLUDED, FILESYSTEM, MOUNT_OPTIONS, PACKAGES, SUITE},
    sources, tool,
};
use rustix::mount::MountPropagationFlags;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
};

#[derive(Debug)]
pub struct Rootfs {
    pub root: PathBuf,
    pub vmlinuz: PathBuf,
    pub kernel_version: String,
}

impl Rootfs {
    pub fn modules(&self) -> PathBuf {
        self.root.join("usr/lib/modules").join(&self.kernel_version)
    }
}

/// Installs into directories below `work`.
pub fn install(work: &Path, log: &Path, progress: &Progress) -> Result<Rootfs, ImageError> {
    let root = work.join("root");
    let kernel = work.join("kernel");
    let script = work.join("customise.sh");
    fs::create_dir(&kernel).map_err(|source| ImageError::write(&kernel, source))?;
    fs::write(&script, CUSTOMISE).map_err(|source| ImageError::write(&script, source))?;

    keep_mounts_private().map_err(|source| ImageError::Run { program: "mmdebstrap".to_owned(), source })?;
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--mode=root", "--variant=minbase", "--architectures=amd64", "--format=directory"])
        .arg(format!("--include={}", PACKAGES.join(",")))
        // The image is made whole or not at all: no need to wait for the disk at every file.
        .args(["--dpkgopt=force-unsafe-io", "--aptopt=Acquire::Languages \"none\""])
        .args(EXCLUDED.iter().map(|rule| format!("--dpkgopt={rule}")))
        .args(sources::settings()?.iter().map(|setting| format!("--aptopt={setting}")))
        .arg("--customize-hook=sh \"$BERTH_CUSTOMISE\" \"$1\"")
        .env("BERTH_CUSTOMISE", &script)
        .env("BERTH_KERNEL", &kernel)
        .env("LC_ALL", "C.UTF-8")
        .arg(SUITE)
        .arg(&root)
        .args(sources::lines()?);
    tool::run(&mut command, log, progress)?;

    let version = kernel.join("version");
    let kernel_version =
        fs::read_to_string(&version).map_err(|source| ImageError::read(&version, source))?.trim().to_owned();
    Ok(Rootfs { root, vmlinuz: kernel.join("vmlinuz"), kernel_version })
}

/// What is mounted below the new root is seen by this thread and its children
/// alone, and goes with them. Left behind by a build that was killed, the host's
/// own /dev would be in what the next build clears away.
fn keep_mounts_private() -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(())
}

/// Writes a root filesystem as a sparse ext4 image without a partition table.
pub fn pack(root: &Path, disk: &Path, log: &Path, progress: &Progress) -> Result<(), ImageError> {
    let file = File::create_new(disk).map_err(|source| ImageError::write(disk, source))?;
    file.set_len(DISK_BYTES).map_err(|source| ImageError::write(disk, source))?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F"]).args(FILESYSTEM).arg("-d").arg(root).arg(disk);
    tool::run(&mut make, log, progress)?;
    let mut tune = Command::new("tune2fs");
    tune.arg("-E").arg(format!("mount_opts={MOUNT_OPTIONS}")).arg(disk);
    tool::run(&mut tune, log, progress)
}
