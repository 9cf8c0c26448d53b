//! `berth image build`: made beside its place and put there at once.

use super::{
    ImageError, initrd, kernel,
    metadata::{self, Metadata},
    progress::Progress,
    recipe, rootfs,
    store::Store,
};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub struct Options {
    pub directory: PathBuf,
    pub name: String,
    pub guest_init: PathBuf,
    /// Make all of it again, whether anything changed or not.
    pub force: bool,
}

/// How much there was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Nothing,
    Initrd,
    Everything,
}

pub fn build(options: &Options) -> Result<(Metadata, Work), ImageError> {
    let progress = Progress::new(format!("image {}", options.name));
    let guest_init = fs::read(&options.guest_init)
        .map_err(|source| ImageError::GuestInit { path: options.guest_init.clone(), source })?;
    let guest_init_hash = recipe::hex(&Sha256::digest(&guest_init));

    let store = Store::lock(&options.directory, &options.name, &progress)?;
    let image = store.image();
    match Metadata::read(&image) {
        Ok(metadata) if !options.force && metadata.is_current(&image) => {
            if metadata.guest_init == guest_init_hash {
                return Ok((metadata, Work::Nothing));
            }
            progress.step("putting the new guest-init into it");
            let modules = image.join(metadata::MODULES);
            let modules = fs::read(&modules).map_err(|source| ImageError::read(&modules, source))?;
            write_initrd(&image, modules, &guest_init)?;
            let metadata = Metadata { guest_init: guest_init_hash, created: Timestamp::now(), ..metadata };
            metadata.write(&image)?;
            return Ok((metadata, Work::Initrd));
        }
        _ => {}
    }

    // 1. Packages, in a directory that the next build clears away if this one dies.
    let work = store.work()?;
    let log = store.log();
    progress.step(&format!("installing Debian {} from this host's package sources", recipe::SUITE));
    let installed = rootfs::install(work.path(), &log, &progress)?;

    // 2. The image's parts.
    let new = work.path().join("image");
    fs::create_dir(&new).map_err(|source| ImageError::write(&new, source))?;
    progress.step("unpacking the kernel");
    let vmlinuz =
        fs::read(&installed.vmlinuz).map_err(|source| ImageError::read(&installed.vmlinuz, source))?;
    write(&new.join("vmlinux"), &kernel::extract(&vmlinuz)?)?;
    let modules = initrd::modules_archive(&installed.modules())?;
    write(&new.join(metadata::MODULES), &modules)?;
    write_initrd(&new, modules, &guest_init)?;
    progress.step("writing the disk");
    rootfs::pack(&installed.root, &new.join("disk"), &log, &progress)?;
    let metadata = Metadata {
        generation: recipe::GENERATION,
        name: options.name.clone(),
        created: Timestamp::now(),
        suite: recipe::SUITE.to_owned(),
        kernel: installed.kernel_version,
        recipe: recipe::fingerprint(),
        guest_init: guest_init_hash,
    };
    metadata.write(&new)?;

    // 3. Into its place; what was there goes with the working directory.
    store.publish(&new)?;
    progress.step("done");
    Ok((metadata, Work::Everything))
}

fn write_initrd(image: &Path, modules: Vec<u8>, guest_init: &[u8]) -> Result<(), ImageError> {
    let mut initrd = modules;
    initrd.extend(initrd::init_archive(guest_init));
    metadata::replace(&image.join("initrd"), &initrd)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    fs::write(path, bytes).map_err(|source| ImageError::write(path, source))
}
