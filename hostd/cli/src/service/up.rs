//! `berth up`: the service in the background, once it answers.

use super::{place::Place, ready};
use crate::{context::Context, output};
use berth_sys::private::{PASSABLE, make_directory};
use berth_types::{Code, Refusal};
use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    process::Stdio,
    time::Duration,
};
use tokio::process::{Child, Command};

/// A log larger than this is put aside before the next start.
const LARGEST_LOG: u64 = 16 << 20;
/// How much of the log tells why a start failed.
const TAIL: usize = 20;
/// `berth run` gives up by itself before this.
const LIMIT: Duration = Duration::from_secs(240);

pub fn run(context: &Context) -> Result<(), Refusal> {
    context.need_root("up")?;
    crate::runtime()?.block_on(async {
        let place = Place::new(&context.config.service.run);
        let log = context.config.service.data.join("berth.log");
        let already = runs_already(context, &place).await?;
        if !already {
            let start = rotate(&log).map_err(|error| cannot_write(&log, &error))?;
            let mut child = spawn(context, &log).map_err(|error| {
                let message = format!("cannot start in the background ({error})");
                Refusal::new(Code::Failed, message, "try 'berth run'")
            })?;
            answers(context, &place, &mut child, &log, start).await?;
        }
        if context.json {
            return output::json(
                &serde_json::json!({ "ssh": context.ssh_line(), "log": log, "already": already }),
            );
        }
        let already = if already { " already" } else { "" };
        show!("berth is up{already}: {}", context.ssh_line());
        Ok(())
    })
}

/// Waits for a supervisor that is there already; false if there is none, or none any more.
async fn runs_already(context: &Context, place: &Place) -> Result<bool, Refusal> {
    let Some(holder) = place.holder().and_then(|holder| holder.open()) else { return Ok(false) };
    tokio::select! {
        ready = ready::all(context, place, LIMIT) => ready.map(|()| true),
        _ = holder.ended(LIMIT) => Ok(false),
    }
}

/// Waits until the service answers or what was started has ended.
async fn answers(
    context: &Context,
    place: &Place,
    child: &mut Child,
    log: &Path,
    start: u64,
) -> Result<(), Refusal> {
    let failed = |message: &str| {
        for line in tail(log, start) {
            say!("{line}");
        }
        Refusal::new(Code::Failed, message, format!("all it said is in {}", log.display()))
    };
    tokio::select! {
        ready = ready::all(context, place, LIMIT) => ready,
        _ = child.wait() => Err(failed("berth did not start")),
        () = tokio::time::sleep(LIMIT) => Err(failed("berth does not answer")),
    }
}

/// The supervisor in a session of its own: closing this terminal does not end it.
fn spawn(context: &Context, log: &Path) -> io::Result<Child> {
    let file = File::options().create(true).append(true).open(log)?;
    let mut command = Command::new("setsid");
    command.arg(std::env::current_exe()?);
    if let Some(path) = &context.path {
        command.arg("--config").arg(fs::canonicalize(path)?);
    }
    command.arg("run").current_dir("/");
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()
}

/// Where in the log this start begins.
fn rotate(log: &Path) -> io::Result<u64> {
    if let Some(directory) = log.parent() {
        make_directory(directory, PASSABLE)?;
    }
    match fs::metadata(log) {
        Ok(found) if found.len() <= LARGEST_LOG => Ok(found.len()),
        Ok(_) => fs::rename(log, log.with_extension("log.1")).map(|()| 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

fn tail(log: &Path, start: u64) -> Vec<String> {
    let mut text = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(start))?;
        file.take(LARGEST_LOG).read_to_end(&mut text)
    });
    if read.is_err() {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(TAIL)).map(|line| (*line).to_owned()).collect()
}

fn cannot_write(path: &Path, error: &io::Error) -> Refusal {
    let message = format!("cannot write {} ({error})", path.display());
    Refusal::new(Code::Failed, message, "look at service.data in the configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_lines_of_this_start_are_shown() {
        let log = std::env::temp_dir().join(format!("berth-log-{}", std::process::id()));
        fs::write(&log, "an earlier start\n").unwrap();
        let start = rotate(&log).unwrap();
        let lines: Vec<String> = (0..30).map(|number| format!("line {number}")).collect();
        fs::write(&log, format!("an earlier start\n{}\n", lines.join("\n"))).unwrap();
        assert_eq!(tail(&log, start), lines[10..]);
        fs::remove_file(log).unwrap();
    }
}
