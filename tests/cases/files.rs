//! Files in and out: scp, sftp, rsync, git.

use crate::{
    cases,
    context::{Case, Context},
    session::random,
};
use anyhow::{Result, ensure};
use berth_tests::Remote;
use std::{fs, path::Path, time::Duration};

pub const CASES: &[Case] = cases![
    AnyServer:
        scp_copies_both_ways,
        scp_copies_both_ways_by_the_old_protocol,
        sftp_does_what_a_batch_asks,
        sftp_says_what_went_wrong,
        sftp_resumes_a_transfer,
        rsync_sends_nothing_twice,
        git_clones_and_pushes;
];

fn remote(context: &Context) -> Result<Remote> {
    context.remote("files")
}

fn scp_copies_both_ways(context: &Context) -> Result<()> {
    scp(context, "new", &[])
}

fn scp_copies_both_ways_by_the_old_protocol(context: &Context) -> Result<()> {
    scp(context, "old", &["-O"])
}

fn scp(context: &Context, name: &str, options: &[&str]) -> Result<()> {
    let remote = remote(context)?;
    let local = context.scratch().directory("scp")?;
    let bytes = random(5 << 20)?;
    fs::create_dir_all(local.join("tree/inner"))?;
    fs::write(local.join("tree/one file"), &bytes)?;
    fs::write(local.join("tree/inner/empty"), "")?;
    fs::write(local.join("single"), "one")?;

    let place = format!("scp-{name}");
    remote.exec(&format!("mkdir {place}"))?;
    let copy = |extra: &[&str], from: &str, to: &str| {
        remote.scp(options).args(extra).arg(from).arg(to).directory(&local).ok()
    };
    copy(&[], "single", &remote.path(&format!("{place}/single")))?;
    copy(&["-r", "-p"], "tree", &remote.path(&format!("{place}/")))?;
    ensure!(remote.line(&format!("cat {place}/single"))? == "one", "a file arrived changed");
    ensure!(remote.line(&format!("stat -c %s '{place}/tree/one file'"))? == bytes.len().to_string(), "size");

    copy(&[], &remote.path(&format!("{place}/single")), "back")?;
    copy(&["-r"], &remote.path(&format!("{place}/tree")), "tree-back")?;
    ensure!(fs::read(local.join("back"))? == b"one", "a file came back changed");
    ensure!(fs::read(local.join("tree-back/one file"))? == bytes, "a tree came back changed");
    ensure!(fs::read(local.join("tree-back/inner/empty"))?.is_empty(), "an empty file came back changed");
    let missing = remote.scp(options).arg(remote.path("no-such-file")).arg("x").directory(&local).finish()?;
    ensure!(missing.status == 1 && missing.errors().contains("No such file"), "{}", missing.report());
    Ok(())
}

fn sftp_does_what_a_batch_asks(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let local = context.scratch().directory("sftp")?;
    let bytes = random(3 << 20)?;
    fs::write(local.join("data"), &bytes)?;
    let batch = "mkdir s\ncd s\npwd\nput data\nput data other\nls -l\nrename other renamed\nchmod 640 data\n\
                 symlink data link\nget link linked\nget renamed back\nrm renamed\nmkdir d\nrmdir d\n\
                 ln data hard\ndf -h .\nls -1\n";
    let out = remote.sftp(batch, &local)?.ok()?;
    let said = out.text();
    ensure!(said.contains("-rw-"), "ls -l shows no modes: {}", out.report());
    ensure!(said.trim_end().ends_with("data\nhard\nlink"), "{}", out.report());
    ensure!(fs::read(local.join("linked"))? == bytes, "through the link: changed");
    ensure!(fs::read(local.join("back"))? == bytes, "under the new name: changed");
    ensure!(
        remote.line("stat -c %a s/data; readlink s/link; ls s")? == "640\ndata\ndata\nhard\nlink",
        "there"
    );
    Ok(())
}

fn sftp_says_what_went_wrong(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let local = context.scratch().directory("sftp")?;
    for (batch, expected) in [
        ("get no-such-file\n", "not found"),
        ("put no-such-local\n", "No such file"),
        ("mkdir /proc/x\n", "remote mkdir"),
        ("rmdir no-such-directory\n", "No such file"),
    ] {
        let out = remote.sftp(batch, &local)?.expect(1)?;
        ensure!(out.errors().contains(expected) || out.text().contains(expected), "{}", out.report());
    }
    Ok(())
}

fn sftp_resumes_a_transfer(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let local = context.scratch().directory("sftp")?;
    let bytes = random(2 << 20)?;
    remote.write("resume", &bytes)?;
    fs::write(local.join("resume"), bytes.get(..700_000).unwrap_or_default())?;
    remote.sftp("reget resume\n", &local)?.ok()?;
    ensure!(fs::read(local.join("resume"))? == bytes, "reget");
    remote.exec("truncate -s 700000 resume")?;
    remote.sftp("reput resume\n", &local)?.ok()?;
    let back = remote.exec("cat resume")?;
    ensure!(back.stdout == bytes, "reput");
    Ok(())
}

fn rsync_sends_nothing_twice(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let local = context.scratch().directory("rsync")?;
    for directory in 0..50 {
        let directory = local.join(format!("tree/{directory}"));
        fs::create_dir_all(&directory)?;
        for file in 0..100 {
            fs::write(directory.join(file.to_string()), format!("{file}").repeat(50))?;
        }
    }
    let send = || {
        let options = ["-a", "--out-format=%n", "tree"];
        remote.rsync(&options).arg(remote.path("")).directory(&local).limit(Duration::from_secs(600)).ok()
    };
    let first = send()?;
    ensure!(first.text().lines().count() >= 5000, "the first sent too little: {}", first.report());
    let second = send()?;
    ensure!(second.text().is_empty(), "the second sent: {}", second.report());
    ensure!(remote.line("find tree -type f | wc -l")? == "5000", "files are missing");
    remote.exec("echo changed > tree/7/7")?;
    let back = remote
        .rsync(&["-rlpt", "--out-format=%n"])
        .arg(remote.path("tree"))
        .arg(".")
        .directory(&local)
        .ok()?;
    ensure!(back.line() == "tree/7/7", "back came: {}", back.report());
    Ok(())
}

fn git_clones_and_pushes(context: &Context) -> Result<()> {
    let remote = remote(context)?;
    let local = context.scratch().directory("git")?;
    remote.exec("git init -q --bare -b main repository.git")?;
    let git = |directory: &Path, words: &[&str]| remote.git(directory).args(words.iter().copied()).ok();
    let first = local.join("first");
    git(&local, &["clone", "-q", &remote.path("repository.git"), "first"])?;
    fs::write(first.join("data"), random(1 << 20)?)?;
    git(&first, &["add", "data"])?;
    git(&first, &["commit", "-q", "-m", "one"])?;
    git(&first, &["push", "-q", "origin", "HEAD:main"])?;
    git(&local, &["clone", "-q", &remote.path("repository.git"), "second"])?;
    ensure!(fs::read(first.join("data"))? == fs::read(local.join("second/data"))?, "the clone differs");
    let there = remote.line("git -C repository.git log --format=%s main")?;
    ensure!(there == "one", "{there}");
    Ok(())
}
