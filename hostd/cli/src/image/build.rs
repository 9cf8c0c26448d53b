//! `berth image build`: made beside its place and put there at once.

use super::{
    ImageError,
    guest_init::GuestInit,
    initrd, kernel,
    metadata::{self, Metadata},
    progress::Progress,
    recipe, rootfs,
    store::Store,
};
use jiff::Timestamp;
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
    let guest_init = GuestInit::read(&options.guest_init)?;

    let store = Store::lock(&options.directory, &options.name, &progress)?;
    let image = store.image();
    if !options.force
        && let Ok(metadata) = Metadata::read(&image)
        && metadata.is_current(&image)
    {
        return refresh(&image, metadata, guest_init, &progress);
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
    write(&new.join("initrd"), &initrd::whole(modules, &guest_init.bytes))?;
    progress.step("writing the disk");
    rootfs::pack(&installed.root, &new.join("disk"), &log, &progress)?;
    let metadata = Metadata {
        generation: recipe::GENERATION,
        name: options.name.clone(),
        created: Timestamp::now(),
        suite: recipe::SUITE.to_owned(),
        kernel: installed.kernel_version,
        recipe: recipe::fingerprint(),
        guest_init: guest_init.hash,
    };
    metadata.write(&new)?;

    // 3. Into its place; what was there goes with the working directory.
    store.publish(&new)?;
    progress.step("done");
    Ok((metadata, Work::Everything))
}

/// Exchanges guest-init in an image that is otherwise what would be made now.
fn refresh(
    image: &Path,
    metadata: Metadata,
    guest_init: GuestInit,
    progress: &Progress,
) -> Result<(Metadata, Work), ImageError> {
    let read = |path: &Path| fs::read(path).map_err(|source| ImageError::read(path, source));
    let path = image.join("initrd");
    let wanted = initrd::whole(read(&image.join(metadata::MODULES))?, &guest_init.bytes);
    // Compared with the file itself: a build that was killed may have written only one of the two.
    if read(&path)? == wanted && metadata.guest_init == guest_init.hash {
        return Ok((metadata, Work::Nothing));
    }
    progress.step("putting the new guest-init into it");
    metadata::replace(&path, &wanted)?;
    let metadata = Metadata { guest_init: guest_init.hash, created: Timestamp::now(), ..metadata };
    metadata.write(image)?;
    Ok((metadata, Work::Initrd))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), ImageError> {
    fs::write(path, bytes).map_err(|source| ImageError::write(path, source))
}
