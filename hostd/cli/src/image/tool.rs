//! Running the host's tools: mmdebstrap, mke2fs, decompressors.

use super::{ImageError, progress::Progress};
use std::{
    ffi::OsStr,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    thread,
};

/// What a failing tool said last; enough to see why, short enough to read.
const TAIL: usize = 15;

/// Runs a command to its end. Everything it says goes to the log; lines
/// like `I: extracting archives...` (mmdebstrap's way to say what begins now)
/// are progress.
pub fn run(command: &mut Command, log: &Path, progress: &Progress) -> Result<(), ImageError> {
    let program = name(command.get_program());
    let failed = |source| ImageError::Run { program: program.clone(), source };
    let mut file = File::options().create(true).append(true).open(log).map_err(failed)?;
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    command
        .env("PATH", path())
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(failed)?)
        .stderr(writer);
    let mut child = command.spawn().map_err(failed)?;
    // The command keeps the pipe's writing end: as long as it is open here, reading never ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut tail = std::collections::VecDeque::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line.map_err(failed)?).into_owned();
        writeln!(file, "{line}").map_err(failed)?;
        if let Some(step) = line.strip_prefix("I: ").and_then(|step| step.strip_suffix("...")) {
            progress.step(step);
        }
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        Ok(())
    } else {
        let tail = Vec::from(tail).join("\n");
        Err(ImageError::Tool { program: program.clone(), status, tail, log: log.to_owned() })
    }
}

/// Passes bytes through a command, as a shell's pipe does.
pub fn filter(command: &[&str], input: &[u8]) -> Result<Vec<u8>, ImageError> {
    let program = command.first().copied().unwrap_or_default();
    let failed = |source| ImageError::Run { program: program.to_owned(), source };
    let mut child = Command::new(program)
        .args(command.get(1..).unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let output = thread::scope(|scope| {
        if let Some(mut stdin) = child.stdin.take() {
            // A program that stops reading says why by its exit status.
            scope.spawn(move || stdin.write_all(input).ok());
        }
        child.wait_with_output().map_err(failed)
    })?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let tail = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(ImageError::Filter { program: program.to_owned(), status: output.status, tail })
    }
}

/// Runs a command and returns what it printed.
pub fn output(program: &str, arguments: &[&str]) -> Result<String, ImageError> {
    let command: Vec<&str> = std::iter::once(program).chain(arguments.iter().copied()).collect();
    filter(&command, &[]).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Not every root's PATH has the administrator's tools.
fn path() -> String {
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", std::env::var("PATH").unwrap_or_default())
}

fn name(program: &OsStr) -> String {
    program.to_string_lossy().into_owned()
}
