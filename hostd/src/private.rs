//! The directories of the service, and who else on the host may use them: nobody.
//!
//! ```text
//!   DATA        0711   hypervisors pass through to images; nobody lists it
//!   DATA/*      0700, files 0600
//!   DATA/pool   0711   see `storage`
//!   RUN/vm      0711   nobody learns which machines run
//! ```
//!
//! Images are public: every hypervisor reads them.

use crate::error::{FileContext, Result};
use berth_config::Config;
use berth_sys::private::{CLOSED, PASSABLE, Tightened, make_directory, tighten_all, tighten_directory};
use std::path::Path;

/// Directories that a line in the log names; of more it gives the number.
const NAMED: usize = 8;

/// The directories that everything else is made in.
pub fn make(config: &Config) -> Result<()> {
    let (data, run) = (&config.service.data, &config.service.run);
    for directory in [data, run, &run.join("vm")] {
        make_directory(directory, PASSABLE).file("create", directory)?;
    }
    Ok(())
}

/// Takes from others what an installation made under another umask left open to them.
pub fn tighten(config: &Config) -> Result<()> {
    let (data, run) = (&config.service.data, &config.service.run);
    let mut found = Vec::new();
    for (directory, mode) in [(data, PASSABLE), (&run.join("vm"), PASSABLE)] {
        found.extend(tighten_directory(directory, mode).file("protect", directory)?);
    }
    let spared = [data.join("pool"), config.image.directory.clone()];
    let spared: Vec<&Path> = spared.iter().map(AsRef::as_ref).collect();
    found.extend(tighten_all(data, &spared).file("protect", data)?);
    tell(&found);
    Ok(())
}

/// Makes a directory of the pool, or takes from it what others should not have.
pub fn make_tight(path: &Path, mode: u32) -> Result<()> {
    make_directory(path, mode).file("create", path)?;
    tell(tighten_directory(path, mode).file("protect", path)?.as_slice());
    Ok(())
}

/// For directories that only hostd uses.
pub fn make_closed(path: &Path) -> Result<()> {
    make_tight(path, CLOSED)
}

/// One line, whatever was found.
fn tell(found: &[Tightened]) {
    if found.is_empty() {
        return;
    }
    let mut names = found.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if found.len() > NAMED {
        names.push_str(&format!(" and {} more", found.len() - NAMED));
    }
    tracing::warn!(
        "other users of this host could use {names}: only the service may now; \
         keys and memory that were readable before may have been read"
    );
}
