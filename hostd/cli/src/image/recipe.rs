//! What an image is made from, and the fingerprint of that.
//!
//! The root filesystem takes a minute to make, so it is made again only when
//! its recipe changed. Whatever decides what is in it belongs into
//! [`fingerprint`].

use sha2::{Digest, Sha256};

/// Of the files in an image's directory and of what guest-init finds in them.
pub const GENERATION: u16 = 1;

pub const SUITE: &str = "bookworm";

/// On top of Debian's required packages.
pub const PACKAGES: &[&str] = &[
    "bash-completion",
    "ca-certificates",
    "curl",
    "file",
    "git",
    "iproute2",
    "iputils-ping",
    "jq",
    "kmod",
    "less",
    "nano",
    "netbase",
    "netcat-openbsd",
    "openssh-client",
    "procps",
    "python3",
    "rsync",
    "sudo",
    "tmux",
    "unzip",
    "vim-tiny",
    "xz-utils",
];

/// What guest-init needs to reach the root filesystem and the host, on every
/// hypervisor that we drive. Their dependencies come along.
pub const BOOT_MODULES: &[&str] =
    &["virtio_mmio", "virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "virtio_balloon"];

/// Files that nobody reads in a machine: a third of what would be installed.
pub const EXCLUDED: &[&str] = &[
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
];

/// Room for the image's files and a start; machines grow it to their own size.
pub const DISK_BYTES: u64 = 2 << 30;

/// How the filesystem is made. What is initialised now costs nothing in a sparse
/// file and later a guest's time. Machines grow it while they run, and room for
/// that has to be left: `resize` is 1 TiB in blocks.
pub const FILESYSTEM: &[&str] = &[
    "-t",
    "ext4",
    "-L",
    "berth",
    "-b",
    "4096",
    "-m",
    "0",
    "-E",
    "lazy_itable_init=0,lazy_journal_init=0,resize=268435456",
];

/// What its mounts do unasked: a grown filesystem is not filled with zeros, which
/// every machine would pay for in the pool.
pub const MOUNT_OPTIONS: &str = "noinit_itable";

pub const CUSTOMISE: &str = include_str!("customise.sh");

pub fn fingerprint() -> String {
    let mut hash = Sha256::new();
    hash.update(GENERATION.to_le_bytes());
    hash.update(DISK_BYTES.to_le_bytes());
    for list in [PACKAGES, BOOT_MODULES, EXCLUDED, FILESYSTEM, &[SUITE, MOUNT_OPTIONS, CUSTOMISE]] {
        for part in list {
            hash.update(part);
            hash.update([0]);
        }
    }
    hex(&hash.finalize())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_recipe_has_the_same_fingerprint() {
        assert_eq!(fingerprint(), fingerprint());
        assert_eq!(fingerprint().len(), 64);
    }

    #[test]
    fn no_init_system_is_asked_for() {
        assert!(!PACKAGES.iter().any(|package| package.contains("systemd") || package.contains("sysv")));
    }
}
