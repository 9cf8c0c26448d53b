//! Where things are that a run needs: the checkout, the programs, the images.

use anyhow::{Result, ensure};
use std::{
    env,
    path::{Path, PathBuf},
};

/// The checkout that this was built from.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"))
}

/// The directory of our programs: `BERTH_BIN_DIR`, else where cargo put the
/// running one (a test lies one directory deeper, in `deps`).
pub fn binaries() -> Result<PathBuf> {
    if let Some(directory) = env::var_os("BERTH_BIN_DIR") {
        return Ok(directory.into());
    }
    let own = env::current_exe()?;
    let found = own.ancestors().skip(1).find(|directory| !directory.ends_with("deps"));
    Ok(found.unwrap_or(Path::new("/")).to_owned())
}

pub fn binary(name: &str) -> Result<PathBuf> {
    let path = binaries()?.join(name);
    ensure!(path.exists(), "{} is missing: build it first (make build) or set BERTH_BIN_DIR", path.display());
    Ok(path)
}

/// All instances share the images; nothing writes to them.
pub fn images() -> PathBuf {
    env::var_os("BERTH_TEST_IMAGES").map_or_else(|| "/var/lib/berth/images".into(), PathBuf::from)
}
