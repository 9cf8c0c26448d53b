//! `make man`: writes the man pages into the first directory and the completions into the second.

use anyhow::bail;
use std::path::PathBuf;

fn main() -> anyhow::Result<()> {
    let directories: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [pages, completions] = directories.as_slice() else {
        bail!("usage: berth-man PAGES COMPLETIONS");
    };
    berth_man::write(pages, completions)
}
