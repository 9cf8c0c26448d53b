//! The first filesystem of a boot: guest-init and the drivers that it loads.
//!
//! It is two archives, one after the other. The drivers change with the kernel,
//! guest-init with every build of ours, so a new guest-init costs no new image.

use super::{ImageError, cpio::Archive, recipe::BOOT_MODULES, tool};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// How a module may be compressed, and what undoes it.
const TOOLS: &[(&str, &[&str])] =
    &[(".xz", &["xz", "-dc"]), (".zst", &["zstd", "-dc"]), (".gz", &["gzip", "-dc"])];

/// Both archives, as the hypervisor is given them.
pub fn whole(modules: Vec<u8>, guest_init: &[u8]) -> Vec<u8> {
    let mut initrd = modules;
    initrd.extend(init_archive(guest_init));
    initrd
}

/// `/init`, and what it needs to speak before it has mounted anything.
fn init_archive(guest_init: &[u8]) -> Vec<u8> {
    let mut archive = Archive::default();
    archive.directory("dev");
    archive.character_device("dev/console", 0o600, (5, 1));
    archive.file("init", 0o755, guest_init);
    archive.finish()
}

/// The drivers in `/modules`, and in `/modules/order` their paths in the order
/// in which they load.
pub fn modules_archive(modules: &Path) -> Result<Vec<u8>, ImageError> {
    let read = |name: &str| {
        let path = modules.join(name);
        std::fs::read_to_string(&path).map_err(|source| ImageError::read(&path, source))
    };
    let order = load_order(&read("modules.dep")?, &read("modules.builtin")?)?;
    let mut archive = Archive::default();
    archive.directory("modules");
    let mut listing = String::new();
    for relative in order {
        let path = modules.join(&relative);
        let bytes = std::fs::read(&path).map_err(|source| ImageError::read(&path, source))?;
        let name = format!("modules/{}.ko", module_name(&relative));
        archive.file(&name, 0o644, &uncompressed(&relative, bytes)?);
        listing.push_str(&format!("/{name}\n"));
    }
    archive.file("modules/order", 0o644, listing.as_bytes());
    Ok(archive.finish())
}

fn uncompressed(name: &str, bytes: Vec<u8>) -> Result<Vec<u8>, ImageError> {
    match TOOLS.iter().find(|(suffix, _)| name.ends_with(suffix)) {
        Some((_, command)) => tool::filter(command, &bytes),
        None => Ok(bytes),
    }
}

/// `kernel/drivers/char/hw_random/virtio-rng.ko.xz` is `virtio_rng`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// The files of [`BOOT_MODULES`] and all that they need, each after its needs.
fn load_order(dependencies: &str, builtin: &str) -> Result<Vec<String>, ImageError> {
    let needs: BTreeMap<&str, Vec<&str>> = dependencies
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| (file, needs.split_whitespace().collect()))
        .collect();
    let files: BTreeMap<String, &str> = needs.keys().map(|file| (module_name(file), *file)).collect();
    let builtin: BTreeSet<String> = builtin.lines().map(module_name).collect();
    let mut order = Vec::new();
    for module in BOOT_MODULES {
        match files.get(*module) {
            Some(file) => place(file, &needs, &mut order),
            None if builtin.contains(*module) => {}
            None => return Err(ImageError::NoModule((*module).to_owned())),
        }
    }
    Ok(order)
}

/// depmod lists all needs of a file, not only the next ones, and refuses
/// circles; so this ends.
fn place(file: &str, needs: &BTreeMap<&str, Vec<&str>>, order: &mut Vec<String>) {
    if order.iter().any(|placed| placed == file) {
        return;
    }
    for need in needs.get(file).into_iter().flatten() {
        place(need, needs, order);
    }
    order.push(file.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/drivers/net/virtio_net.ko: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko kernel/virtio/virtio.ko
kernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko
kernel/net/core/failover.ko:
kernel/virtio/virtio.ko:
kernel/virtio/virtio_mmio.ko.xz: kernel/virtio/virtio.ko
kernel/drivers/char/virtio-rng.ko: kernel/virtio/virtio.ko
kernel/drivers/block/virtio_blk.ko: kernel/virtio/virtio.ko
kernel/drivers/virtio/virtio_balloon.ko: kernel/virtio/virtio.ko
";

    #[test]
    fn every_module_comes_after_what_it_needs() {
        let order = load_order(DEP, "kernel/virtio/virtio_pci.ko\n").unwrap();
        let place = |name: &str| order.iter().position(|file| module_name(file) == name).unwrap();
        assert!(place("virtio") < place("virtio_mmio"));
        assert!(place("failover") < place("net_failover"));
        assert!(place("net_failover") < place("virtio_net"));
        assert_eq!(order.len(), 8);
    }

    #[test]
    fn a_driver_that_is_nowhere_is_an_error() {
        assert!(matches!(load_order(DEP, ""), Err(ImageError::NoModule(name)) if name == "virtio_pci"));
    }
}
