//! Time and bytes per second, the servers taking turns.

use crate::{
    report::{Report, Row},
    servers::Servers,
};
use anyhow::Result;
use berth_tests::{Output, Remote, Running, Scratch, eventually};
use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    time::{Duration, Instant},
};

/// The same for all, and one that the hardware is good at.
const CIPHER: &str = "aes256-gcm@openssh.com";
const SIZE: usize = 256 << 20;
const LIMIT: Duration = Duration::from_secs(600);

pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Every server once per round, so that a busy minute of the host hits all.
fn rounds(servers: &Servers, count: usize, one: impl Fn(&Remote) -> Result<f64>) -> Result<[f64; 3]> {
    let mut all: [Vec<f64>; 3] = Default::default();
    for _ in 0..count {
        for (remote, figures) in servers.remotes.iter().zip(&mut all) {
            figures.push(one(remote)?);
        }
    }
    Ok(all.map(median))
}

fn milliseconds(output: &Output) -> f64 {
    output.elapsed.as_secs_f64() * 1000.0
}

/// (a) A command on a new connection, and on one that is there.
pub fn connections(servers: &Servers, report: &mut Report) -> Result<()> {
    eprintln!("connections");
    let fresh = rounds(servers, 25, |remote| Ok(milliseconds(&remote.exec("true")?)))?;
    report.time(Row::new("`ssh NAME@HOST true`, a new connection", fresh));

    let verb = servers.machine().account();
    let mut alone = Vec::new();
    for _ in 0..25 {
        alone.push(milliseconds(&verb.verb("version")?.ok()?));
    }
    report
        .note(format!("A verb that needs no guest (`version`, a new connection): {:.0} ms.", median(alone)));

    let masters: Vec<(Running, String)> = servers.remotes.iter().map(master).collect::<Result<_>>()?;
    let paths: Vec<&str> = masters.iter().map(|(_, path)| path.as_str()).collect();
    let shared = rounds(servers, 50, |remote| {
        let place = servers.remotes.iter().position(|one| one.account().key() == remote.account().key());
        let path = place.and_then(|place| paths.get(place)).copied().unwrap_or_default();
        Ok(milliseconds(&remote.ssh(&["-o", path]).arg("true").ok()?))
    })?;
    report.time(Row::new("`ssh NAME@HOST true` over a ControlMaster", shared));
    Ok(())
}

fn master(remote: &Remote) -> Result<(Running, String)> {
    let socket = remote.account().directory().join("master");
    let path = format!("ControlPath={}", socket.display());
    let process = remote.ssh(&["-o", "ControlMaster=yes", "-o", &path, "-N"]).limit(LIMIT).start()?;
    eventually("a master connection", LIMIT, || Ok(socket.exists()))?;
    Ok((process, path))
}

/// (b) Bytes per second, with one cipher.
pub fn streams(servers: &Servers, scratch: &Scratch, report: &mut Report) -> Result<()> {
    eprintln!("streams of {} MiB", SIZE >> 20);
    let mut bytes = vec![0; SIZE];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let local = scratch.directory("bench")?;
    fs::write(local.join("file"), &bytes)?;
    let rate = |output: Output| (SIZE >> 20) as f64 / output.elapsed.as_secs_f64();
    let ssh = |remote: &Remote| remote.ssh(&["-c", CIPHER]).limit(LIMIT);

    let into =
        rounds(servers, 3, |remote| Ok(rate(ssh(remote).arg("cat > /dev/null").input(&bytes)?.ok()?)))?;
    report.rate(Row::new("`cat > /dev/null`, into it", into));
    let out =
        rounds(servers, 3, |remote| Ok(rate(ssh(remote).arg(format!("head -c {SIZE} /dev/zero")).ok()?)))?;
    report.rate(Row::new("`head -c … /dev/zero`, out of it", out));
    let both = rounds(servers, 3, |remote| Ok(rate(ssh(remote).arg("cat").input(&bytes)?.ok()?)))?;
    report.rate(Row::new("`cat`, both ways at once", both));

    let copy = |remote: &Remote, from: &str, to: &str, directory: &Path| {
        remote.scp(&["-c", CIPHER, from, to]).directory(directory).limit(LIMIT).ok()
    };
    // In memory at both ends: disks are not what is compared.
    let there = |remote: &Remote| remote.path("/dev/shm/berth-bench");
    let up = rounds(servers, 3, |remote| Ok(rate(copy(remote, "file", &there(remote), &local)?)))?;
    report.rate(Row::new("`scp` into it", up));
    let down = rounds(servers, 3, |remote| Ok(rate(copy(remote, &there(remote), "back", &local)?)))?;
    report.rate(Row::new("`scp` out of it", down));
    for remote in &servers.remotes {
        remote.exec("rm -f /dev/shm/berth-bench")?;
    }
    Ok(())
}

/// (c) Fifty at once, from the first start to the last end.
pub fn crowd(servers: &Servers, report: &mut Report) -> Result<()> {
    eprintln!("50 sessions at once");
    let figures = rounds(servers, 5, |remote| {
        let started = Instant::now();
        let all: Vec<Running> =
            (0..50).map(|_| remote.ssh(&[]).arg("true").limit(LIMIT).start()).collect::<Result<_>>()?;
        for one in all {
            one.wait()?.ok()?;
        }
        Ok(started.elapsed().as_secs_f64() * 1000.0)
    })?;
    report.time(Row::new("50 × `ssh NAME@HOST true` at once, until the last is done", figures));
    Ok(())
}
