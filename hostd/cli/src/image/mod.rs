//! Images: what machines start from, a directory each.

mod build;
mod cpio;
mod error;
mod guest_init;
mod initrd;
mod kernel;
mod metadata;
mod progress;
mod recipe;
mod rootfs;
mod sources;
mod store;
mod tool;

pub use error::ImageError;

use crate::{context::Context, output};
use berth_types::{ByteSize, Code, Refusal};
use clap::{Args, Subcommand};
use metadata::Metadata;
use serde::Serialize;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make an image, or bring it up to date
    Build(Build),
    /// List the images
    Ls,
}

#[derive(Debug, Args)]
pub struct Build {
    /// What to call it
    #[arg(default_value = "debian")]
    name: String,
    /// Make all of it again even if nothing changed
    #[arg(long)]
    force: bool,
    /// The static guest-init to put into it [default: beside this program]
    #[arg(long, value_name = "PATH")]
    guest_init: Option<PathBuf>,
}

pub fn run(context: &Context, command: Command) -> Result<(), Refusal> {
    match command {
        Command::Build(arguments) => make(context, arguments),
        Command::Ls => list(context),
    }
}

fn make(context: &Context, arguments: Build) -> Result<(), Refusal> {
    let valid = arguments.name.starts_with(|first: char| first.is_ascii_lowercase())
        && arguments.name.len() <= 40
        && arguments
            .name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !valid {
        return Err(ImageError::Name(arguments.name).into());
    }
    context.need_root("image build")?;
    berth_sys::let_others_read();
    let options = build::Options {
        directory: context.config.image.directory.clone(),
        name: arguments.name,
        guest_init: arguments.guest_init.unwrap_or_else(|| crate::context::beside("berth-guest-init")),
        force: arguments.force,
    };
    let (metadata, work) = build::build(&options).map_err(|error| {
        if let Some(detail) = error.detail() {
            say!("{detail}");
        }
        Refusal::from(error)
    })?;
    if context.json {
        return output::json(&metadata);
    }
    let done = match work {
        build::Work::Nothing => "is up to date",
        build::Work::Initrd => "has the new guest-init",
        build::Work::Everything => "is made",
    };
    show!("{} {done}: {}", metadata.name, options.directory.join(&metadata.name).display());
    Ok(())
}

/// A row of `image ls`.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    metadata: Metadata,
    /// What its files occupy.
    size: ByteSize,
    /// False: `image build` would make it anew.
    current: bool,
    path: PathBuf,
}

fn list(context: &Context) -> Result<(), Refusal> {
    let rows = rows(&context.config.image.directory)?;
    if context.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        say!("no images: make one with 'berth image build'");
        return Ok(());
    }
    let cells = rows.iter().map(|row| {
        [
            row.metadata.name.clone(),
            row.size.to_string(),
            format!("{:.0}", row.metadata.created),
            format!("{} {}", row.metadata.suite, row.metadata.kernel),
            if row.current { "" } else { "out of date" }.to_owned(),
        ]
    });
    output::table(["NAME", "SIZE", "CREATED", "CONTENT", ""], cells);
    Ok(())
}

fn rows(directory: &Path) -> Result<Vec<Row>, Refusal> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ImageError::read(directory, error).into()),
    };
    let mut rows = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if hidden || !path.join(metadata::FILE).is_file() {
            continue;
        }
        let metadata = Metadata::read(&path)?;
        let current = metadata.is_current(&path);
        rows.push(Row { metadata, size: size(&path), current, path });
    }
    rows.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    Ok(rows)
}

/// What an image's files occupy, holes not counted.
fn size(image: &Path) -> ByteSize {
    let files = fs::read_dir(image).into_iter().flatten().flatten();
    ByteSize(files.filter_map(|file| file.metadata().ok()).map(|found| found.blocks() * 512).sum())
}

/// Is the image of this name what would be built now? An error if there is none.
pub fn is_current(directory: &Path, name: &str) -> Result<bool, Refusal> {
    let image = directory.join(name);
    if !image.join(metadata::FILE).exists() {
        let hint = format!("make it with 'berth image build {name}'");
        return Err(Refusal::new(Code::NotFound, format!("there is no image '{name}'"), hint));
    }
    Ok(Metadata::read(&image)?.is_current(&image))
}
