//! Verbs: what they do, what they print, and how they end.

use crate::{
    cases,
    context::{Case, Context},
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Output, Run, replay};
use serde_json::Value;
use std::{fs, path::Path};

pub const CASES: &[Case] = cases![
    Service:
        what_people_read_of_machines,
        what_people_read_of_keys,
        what_programs_read_of_machines,
        what_programs_read_of_the_account,
        stop_and_restart_keep_files,
        rename_moves_everything,
        several_are_removed_or_none,
        keys_come_and_go,
        every_line_of_help_can_be_pasted,
        a_verb_may_have_a_terminal;
];

fn what_people_read_of_machines(context: &Context) -> Result<()> {
    replay(&context.account()?, include_str!("../transcripts/machines.txt"))
}

fn what_people_read_of_keys(context: &Context) -> Result<()> {
    replay(&context.account()?, include_str!("../transcripts/keys.txt"))
}

/// One value and nothing else on standard output.
pub fn json(account: &Account, words: &str) -> Result<Value> {
    account.verb(&format!("{words} --json"))?.ok()?.json()
}

fn has(value: &Value, keys: &[&str]) -> Result<()> {
    for key in keys {
        ensure!(value.get(key).is_some(), "no {key} in {value}");
    }
    Ok(())
}

const MACHINE: &[&str] =
    &["name", "id", "state", "image", "cpus", "memory", "disk", "labels", "created", "last_used", "network"];

fn what_programs_read_of_machines(context: &Context) -> Result<()> {
    let account = context.account()?;
    ensure!(json(&account, "ls")? == Value::Array(vec![]), "not an empty list");
    let made = json(&account, "new dev --memory 256M --disk 3G --cpus 2 --label team=a --label x=")?;
    has(&made, MACHINE)?;
    ensure!(made.get("memory") == Some(&Value::from(256 << 20)), "{made}");
    ensure!(made.get("disk") == Some(&Value::from(3_u64 << 30)), "{made}");
    ensure!(made.get("cpus") == Some(&Value::from(2)), "{made}");
    ensure!(made.pointer("/labels/team") == Some(&Value::from("a")), "{made}");
    let created = made.get("created").and_then(Value::as_str).unwrap_or_default();
    ensure!(created.contains('T') && created.ends_with('Z'), "not RFC 3339: {created}");
    let list = json(&account, "ls")?;
    ensure!(list.pointer("/0/state") == Some(&Value::from("running")), "{list}");
    let info = json(&account, "info dev")?;
    has(&info, MACHINE)?;
    has(&info, &["up_ms", "disk_used"])?;
    ensure!(json(&account, "info dev --console")?.get("console").is_some_and(Value::is_string), "no console");
    let inside = account
        .at("dev")
        .line("nproc; free -m | awk '/Mem/ {print $2}'; df -BM --output=size / | tail -1")?;
    let numbers: Vec<u64> =
        inside.split_whitespace().filter_map(|word| word.trim_end_matches('M').parse().ok()).collect();
    ensure!(matches!(numbers[..], [2, 180..=256, 2600..=3072]), "2 CPUs, 256M and 3G are {numbers:?} inside");
    for words in ["stop dev", "restart dev", "rename dev other"] {
        has(&json(&account, words)?, MACHINE).with_context(|| words.to_owned())?;
    }
    let removed = json(&account, "rm other")?;
    ensure!(removed.pointer("/removed/0") == Some(&Value::from("other")), "{removed}");
    Ok(())
}

fn what_programs_read_of_the_account(context: &Context) -> Result<()> {
    let account = context.account()?;
    has(&json(&account, "whoami")?, &["user", "created", "keys", "usage", "quota"])?;
    ensure!(json(&account, "key ls")?.as_array().is_some_and(|keys| keys.len() == 1), "not one key");
    has(&json(&account, "version")?, &["version"])?;
    has(&json(&account, "help")?, &["verbs"])?;
    has(&json(&account, "help new")?, &["usage", "examples"])?;
    let refused = account.verb("info nobody --json")?.expect(3)?;
    let value = refused.json()?;
    ensure!(value.pointer("/error/code") == Some(&Value::from("not_found")), "{value}");
    for key in ["/error/message", "/error/hint"] {
        ensure!(value.pointer(key).and_then(Value::as_str).is_some_and(|text| !text.is_empty()), "{value}");
    }
    ensure!(refused.errors().starts_with("berth: "), "{}", refused.report());
    Ok(())
}

fn state(account: &Account, name: &str) -> Result<String> {
    let info = json(account, &format!("info {name}"))?;
    Ok(info.get("state").and_then(Value::as_str).unwrap_or_default().to_owned())
}

fn stop_and_restart_keep_files(context: &Context) -> Result<()> {
    let account = context.account()?;
    account.verb("new kept")?.ok()?;
    let kept = account.at("kept");
    let identity = "cat /proc/sys/kernel/random/boot_id";
    kept.exec("echo precious > file; mkdir -p deep/er; head -c 5000000 /dev/urandom > deep/er/data; md5sum deep/er/data > sum")?;
    let first = kept.line(identity)?;
    // Nothing was synced by hand: a clean stop does that.
    account.verb("stop kept")?.ok()?;
    ensure!(state(&account, "kept")? == "stopped", "not stopped");
    account.verb("stop kept")?.ok().context("stopping twice")?;
    ensure!(kept.line("cat file && md5sum --quiet -c sum")? == "precious", "after stop");
    let second = kept.line(identity)?;
    ensure!(first != second, "the same boot after a stop");
    kept.exec("echo newer > file")?;
    account.verb("restart kept")?.ok()?;
    ensure!(state(&account, "kept")? == "running", "not running");
    ensure!(kept.line("cat file && md5sum --quiet -c sum")? == "newer", "after restart");
    ensure!(kept.line(identity)? != second, "the same boot after a restart");
    // Its own way down leads to the same place.
    let down = kept.run("sudo poweroff; sleep 100")?;
    ensure!(down.status != 0, "{}", down.report());
    berth_tests::eventually("the machine to be stopped", std::time::Duration::from_secs(60), || {
        Ok(state(&account, "kept")? == "stopped")
    })?;
    ensure!(kept.line("cat file")? == "newer", "after its own poweroff");
    Ok(())
}

fn rename_moves_everything(context: &Context) -> Result<()> {
    let account = context.account()?;
    account.verb("new before")?.ok()?;
    account.at("before").exec("echo here > file")?;
    account.verb("rename before after")?.ok()?;
    ensure!(account.at("after").line("cat file")? == "here", "the file is gone");
    ensure!(account.at("after").line("hostname")? == "after", "the host name is the old one");
    account.verb("info before")?.expect(3)?;
    account.verb("new before --memory 256M")?.ok().context("the old name is free")?;
    account.verb("rename after before")?.expect(5)?;
    Ok(())
}

fn several_are_removed_or_none(context: &Context) -> Result<()> {
    let account = context.account()?;
    for name in ["one", "two"] {
        account.verb(&format!("new {name} --memory 256M"))?.ok()?;
    }
    account.verb("rm one nobody two")?.expect(3)?;
    ensure!(json(&account, "ls")?.as_array().is_some_and(|all| all.len() == 2), "one of them went");
    account.verb("rm one two")?.ok()?;
    ensure!(json(&account, "ls")? == Value::Array(vec![]), "one of them stayed");
    Ok(())
}

fn keys_come_and_go(context: &Context) -> Result<()> {
    let (first, second) = (context.account()?, context.account()?);
    first.verb("new shared --memory 256M")?.ok()?;
    let added = first.client("ssh").args(["berth", "key", "add"]).input(second.public_key()?)?.ok()?;
    ensure!(added.text().contains("SHA256:"), "{}", added.report());
    let user =
        |account: &Account| -> Result<Option<Value>> { Ok(json(account, "whoami")?.get("user").cloned()) };
    ensure!(user(&first)? == user(&second)?, "two keys, two users");
    ensure!(second.at("shared").line("hostname")? == "shared", "the second key does not reach the machine");
    let keys = json(&first, "key ls")?;
    let fingerprints: Vec<&str> =
        keys.as_array().into_iter().flatten().filter_map(|key| key.get("fingerprint")?.as_str()).collect();
    ensure!(fingerprints.len() == 2, "{keys}");
    let own = fingerprint(&first)?;
    second.verb(&format!("key rm {own}"))?.ok()?;
    let last = fingerprint(&second)?;
    let refused = second.verb(&format!("key rm {last}"))?;
    ensure!([4, 5].contains(&refused.status), "the last key went: {}", refused.report());
    // Whoever comes with the removed key is somebody new.
    ensure!(user(&first)? != user(&second)?, "a removed key still is the user");
    ensure!(json(&first, "ls")? == Value::Array(vec![]), "a removed key still sees machines");
    // A key that is somebody's already cannot be taken.
    second.client("ssh").args(["berth", "key", "add"]).input(first.public_key()?)?.finish()?.expect(5)?;
    Ok(())
}

fn fingerprint(account: &Account) -> Result<String> {
    let line = account.program("ssh-keygen").arg("-lf").arg(account.key()).ok()?.line();
    line.split(' ').nth(1).map(str::to_owned).context("no fingerprint")
}

fn every_line_of_help_can_be_pasted(context: &Context) -> Result<()> {
    let account = context.account()?;
    let directory = context.scratch().directory("help")?;
    fs::create_dir_all(directory.join("src"))?;
    values(&directory)?;
    // With copy-1 and copy-2 taken, 'fork dev copy -n 5' is refused and makes no machines.
    for name in ["main", "dev", "copy-1", "copy-2"] {
        account.verb(&format!("new {name} --memory 256M"))?.ok()?;
    }
    let overview = account.verb("help")?.ok()?;
    let verbs = json(&account, "help")?;
    let verbs: Vec<&str> = verbs
        .pointer("/verbs")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|verb| verb.get("verb")?.as_str())
        .collect();
    ensure!(verbs.len() >= 11, "{verbs:?}");
    let mut lines = Vec::new();
    for verb in &verbs {
        ensure!(overview.text().contains(&format!(" {verb}")), "{verb} is not in the overview");
        let help = account.verb(&format!("help {verb}"))?.ok()?;
        lines.extend(examples(&help));
    }
    ensure!(lines.len() >= verbs.len(), "too few examples: {lines:?}");
    // Those that remove what others need come last; names that are taken are made free.
    lines.sort_by_key(|line| line.contains(" rm "));
    for line in lines {
        if let Some(name) = line.split_once(" new ").and_then(|(_, rest)| rest.split(' ').next()) {
            account.verb(&format!("rm {name}"))?;
        }
        let out = account.paste(&line, &directory)?;
        // An example's fingerprint, and machines that an earlier example renamed, are nobody's.
        ensure!([0, 3, 5].contains(&out.status), "{line}: {}", out.report());
    }
    Ok(())
}

/// What the examples of `secret` read.
fn values(directory: &Path) -> Result<()> {
    for name in ["key.txt", "token.txt"] {
        fs::write(directory.join(name), "sk-0123456789\n")?;
    }
    let certificate =
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=dev -keyout key.pem";
    Run::new("openssl").args(certificate.split(' ')).args(["-out", "cert.pem"]).directory(directory).ok()?;
    let both = [fs::read(directory.join("cert.pem"))?, fs::read(directory.join("key.pem"))?].concat();
    fs::write(directory.join("cert-and-key.pem"), both)?;
    Run::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f", "id_ed25519"])
        .directory(directory)
        .ok()?;
    let public = fs::read_to_string(directory.join("id_ed25519.pub"))?;
    Ok(fs::write(directory.join("known_host"), format!("git.example.com {public}"))?)
}

/// The indented lines that start with a client.
fn examples(help: &Output) -> Vec<String> {
    let text = help.text();
    let lines = text.lines().filter(|line| line.starts_with(' ')).map(str::trim);
    lines
        .filter(|line| ["ssh ", "scp "].iter().any(|client| line.starts_with(client)))
        .map(str::to_owned)
        .collect()
}

fn a_verb_may_have_a_terminal(context: &Context) -> Result<()> {
    let account = context.account()?;
    let out = account.client("ssh").args(["-tt", "berth", "version"]).ok()?;
    ensure!(out.text().ends_with("\r\n"), "{}", out.report());
    let plain = account.client("ssh").args(["berth", "ls"]).input("ignored")?.ok()?;
    ensure!(!plain.text().contains('\u{1b}'), "colours without a terminal: {}", plain.report());
    Ok(())
}
