//! Commands: their status, their streams, their environment.

use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Remote, eventually};
use std::{ffi::OsStr, fs::File, io::Read, os::unix::ffi::OsStrExt, thread, time::Duration};

pub const CASES: &[Case] = cases![
    AnyServer:
        a_status_comes_back,
        a_command_killed_under_a_shell_is_told_by_it,
        random_bytes_come_back_identical,
        standard_error_is_separate,
        the_end_of_input_arrives,
        a_slow_reader_loses_nothing_and_stalls_nobody,
        words_arrive_as_they_were_sent,
        the_environment_is_a_login,
        only_harmless_variables_pass,
        background_output_still_arrives,
        a_background_process_survives,
        long_transfers_change_keys,
        ciphers_and_compression_work,
        many_commands_at_once;
    Service:
        a_killed_command_is_128_and_the_signal,
        kinds_of_keys_log_in;
];

const MINUTE: Duration = Duration::from_secs(60);

fn remote(context: &Context) -> Result<Remote> {
    context.remote("session")
}

pub fn random(count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn a_status_comes_back(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    remote.run("exit 7")?.expect(7)?;
    remote.run("true")?.expect(0)?;
    remote.run("exit 255")?.expect(255)?;
    let missing = remote.run("no-such-command")?.expect(127)?;
    ensure!(missing.errors().contains("no-such-command"), "{}", missing.report());
    Ok(())
}

fn a_command_killed_under_a_shell_is_told_by_it(context: &Context) -> Result<()> {
    remote(context)?.run("sh -c 'kill -KILL $$'; exit $?")?.expect(137)?;
    Ok(())
}

/// OpenSSH's server tells a signal apart from a status, and its client turns
/// that into 255. The interface promises the number that a shell would show.
fn a_killed_command_is_128_and_the_signal(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    remote.run("kill -KILL $$")?.expect(137)?;
    remote.run("kill -TERM $$")?.expect(143)?;
    let sleeper = remote.ssh(&[]).arg("echo $$; exec sleep 1000").start()?;
    eventually("the command to start", MINUTE, || Ok(sleeper.said()?.ends_with('\n')))?;
    remote.exec(&format!("kill -INT {}", sleeper.said()?.trim()))?;
    sleeper.wait()?.expect(130)?;
    Ok(())
}

fn random_bytes_come_back_identical(context: &Context) -> Result<()> {
    let bytes = random(100 << 20)?;
    let back = remote(context)?.ssh(&[]).arg("cat").input(&bytes)?.limit(10 * MINUTE).ok()?;
    ensure!(back.stdout.len() == bytes.len(), "{} of {} bytes", back.stdout.len(), bytes.len());
    ensure!(back.stdout == bytes, "the bytes differ");
    ensure!(back.stderr.is_empty(), "{}", back.errors());
    Ok(())
}

fn standard_error_is_separate(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let both = remote.exec("echo out; echo err >&2")?;
    ensure!((both.text().as_str(), both.errors().as_str()) == ("out\n", "err\n"), "{}", both.report());
    let script = "head -c 3000000 /dev/zero | tr '\\0' o & head -c 3000000 /dev/zero | tr '\\0' e >&2; wait";
    let much = remote.exec(script)?;
    ensure!(much.stdout == vec![b'o'; 3_000_000], "{} bytes on stdout", much.stdout.len());
    ensure!(much.stderr == vec![b'e'; 3_000_000], "{} bytes on stderr", much.stderr.len());
    Ok(())
}

fn the_end_of_input_arrives(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let count = remote.ssh(&[]).arg("wc -c").input("12345")?.ok()?;
    ensure!(count.line().trim() == "5", "{}", count.report());
    ensure!(remote.ssh(&["-n"]).arg("wc -c").ok()?.line().trim() == "0", "input out of nowhere");
    // A command that never reads must not hold up the session.
    remote.ssh(&[]).arg("true").input(random(8 << 20)?)?.ok()?;
    // One that reads late gets all of it.
    let late = remote.ssh(&[]).arg("sleep 1; wc -c").input(random(8 << 20)?)?.ok()?;
    ensure!(late.line().trim() == (8 << 20).to_string(), "{}", late.report());
    Ok(())
}

/// Two sessions on one connection, of which one is not read from.
fn a_slow_reader_loses_nothing_and_stalls_nobody(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let directory = context.scratch().directory("slow")?;
    let (socket, fifo) = (directory.join("socket"), directory.join("fifo"));
    let path = format!("ControlPath={}", socket.display());
    let _master = remote.ssh(&["-o", "ControlMaster=yes", "-o", &path, "-N"]).start()?;
    eventually("the connection", MINUTE, || Ok(socket.exists()))?;
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;

    let line = format!(
        "{} -o {path} {} 'head -c 50000000 /dev/zero; exit 3' > {}",
        remote.ssh_command(),
        remote.target(),
        fifo.display()
    );
    let slow = remote.account().program("sh").arg("-c").arg(line).limit(10 * MINUTE).start()?;
    let mut reader = File::open(&fifo)?;
    let mut first = [0];
    reader.read_exact(&mut first)?;
    for _ in 0..3 {
        remote.ssh(&["-o", &path]).arg("true").limit(MINUTE).ok()?;
    }
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest)?;
    ensure!(rest.len() == 49_999_999, "{} bytes after the first", rest.len());
    slow.wait()?.expect(3)?;
    Ok(())
}

fn words_arrive_as_they_were_sent(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let bytes = b"printf %s 'a\xff\xfe\x01\t \"\\ \xc3\xa4\n*$HOME'";
    let back = remote.ssh(&[]).arg(OsStr::from_bytes(bytes)).ok()?;
    ensure!(back.stdout == b"a\xff\xfe\x01\t \"\\ \xc3\xa4\n*$HOME", "{:?}", back.stdout);
    let long = "x".repeat(100_000);
    ensure!(remote.line(&format!("printf %s {long} | wc -c"))?.trim() == "100000", "a long line was cut");
    Ok(())
}

fn the_environment_is_a_login(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    ensure!(remote.line("echo $HOME")? == remote.line("pwd")?, "does not start at home");
    ensure!(remote.line("echo $USER $LOGNAME")? == remote.line("echo $(id -un) $(id -un)")?, "USER");
    ensure!(remote.line("echo $SHELL")?.ends_with("/bash"), "SHELL");
    for place in ["/usr/bin", "/bin"] {
        ensure!(remote.line("echo :$PATH:")?.contains(&format!(":{place}:")), "{place} is not in PATH");
    }
    ensure!(remote.line("echo $SSH_CONNECTION")?.split(' ').count() == 4, "SSH_CONNECTION");
    ensure!(remote.run("test -t 0 || test -t 1")?.status == 1, "a terminal nobody asked for");
    Ok(())
}

fn only_harmless_variables_pass(context: &Context) -> Result<()> {
    let out = remote(context)?
        .ssh(&["-o", "SendEnv=LANG LC_* COLORTERM LD_PRELOAD BERTH_SECRET"])
        .env("LANG", "xx_YY.UTF-8")
        .env("LC_BERTH", "a b")
        .env("COLORTERM", "truecolor")
        .env("BERTH_SECRET", "no")
        .arg("echo \"$LANG|$LC_BERTH|$COLORTERM|$BERTH_SECRET\"")
        .ok()?;
    ensure!(out.line() == "xx_YY.UTF-8|a b|truecolor|", "{}", out.report());
    Ok(())
}

fn background_output_still_arrives(context: &Context) -> Result<()> {
    let out = remote(context)?.run("(sleep 1; echo late) & echo early; exit 4")?.expect(4)?;
    ensure!(out.text() == "early\nlate\n", "{}", out.report());
    Ok(())
}

fn a_background_process_survives(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let tick = "while :; do echo >> ticks; sleep 0.1; done";
    remote.exec(&format!("nohup sh -c '{tick}' > /dev/null 2>&1 < /dev/null & echo $! > ticker"))?;
    // It may not have begun when the command that started it has ended.
    let ticks = "cat ticks 2> /dev/null | wc -l";
    let count = || -> Result<u64> { remote.line(ticks)?.trim().parse().context("no count") };
    let before = count()?;
    eventually("the process to go on", MINUTE, || Ok(count()? > before + 5))?;
    remote.exec("kill $(cat ticker)")?;
    Ok(())
}

fn long_transfers_change_keys(context: &Context) -> Result<()> {
    let bytes = random(12 << 20)?;
    let back = remote(context)?.ssh(&["-o", "RekeyLimit=1M"]).arg("cat").input(&bytes)?.ok()?;
    ensure!(back.stdout == bytes, "the bytes differ after {} of them", back.stdout.len());
    Ok(())
}

fn ciphers_and_compression_work(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let bytes = random(1 << 20)?;
    let ciphers = ["chacha20-poly1305@openssh.com", "aes128-ctr", "aes256-gcm@openssh.com", "aes256-ctr"];
    for options in ciphers.iter().map(|cipher| vec!["-c", *cipher]).chain([vec!["-C"]]) {
        let back = remote.ssh(&options).arg("cat").input(&bytes)?.ok()?;
        ensure!(back.stdout == bytes, "the bytes differ with {options:?}");
    }
    Ok(())
}

fn many_commands_at_once(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    thread::scope(|scope| {
        let started: Vec<_> = (0..10)
            .map(|number| {
                let remote = &remote;
                scope.spawn(move || remote.run(&format!("echo {number}; exit {number}"))?.expect(number))
            })
            .collect();
        for (number, one) in started.into_iter().enumerate() {
            let output = one.join().map_err(|_| anyhow::anyhow!("a thread failed"))??;
            ensure!(output.line() == number.to_string(), "{}", output.report());
        }
        Ok(())
    })
}

fn kinds_of_keys_log_in(context: &Context) -> Result<()> {
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let endpoint = context.service()?.endpoint().clone();
        let account = Account::with_key(endpoint, context.scratch().directory("u")?, kind)?;
        account.verb("whoami")?.ok().with_context(|| kind.to_owned())?;
    }
    Ok(())
}
