//! Bad input: one clear line, the right status, nothing half-made.

use crate::{
    cases,
    context::{Case, Context},
    verbs::json,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Output};
use serde_json::Value;
use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

pub const CASES: &[Case] = cases![
    Service:
        names_that_cannot_be,
        sizes_that_cannot_be,
        words_too_many_and_too_few,
        machines_that_are_not_there,
        lines_that_are_not_lines,
        a_megabyte_of_words;
];

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 5;
const LIMIT: i32 = 6;

/// Someone with one machine, which must be all they have afterwards too.
fn try_all(context: &Context, tries: &[(&str, i32)]) -> Result<()> {
    let account = context.account()?;
    account.verb("new main --memory 256M")?.ok()?;
    // Only a mistake could change its state.
    account.verb("idle main --pause never --sleep never")?.ok()?;
    let before = what_is_there(&account)?;
    for (words, status) in tries {
        let out = account.verb(words)?;
        check(&out, *status).with_context(|| format!("{words:?}"))?;
        let out = account.verb(&format!("{words} --json"))?;
        // A quote that is not closed takes --json into the word.
        if !words.contains(['\'', '"']) {
            let message = out.json()?.pointer("/error/message").cloned();
            ensure!(message.is_some_and(|text| text.is_string()), "{words:?}: {}", out.report());
        }
    }
    let after = what_is_there(&account)?;
    ensure!(before == after, "before {before:?}, after {after:?}");
    account.verb("rm main")?.ok()?;
    Ok(())
}

fn check(out: &Output, status: i32) -> Result<()> {
    ensure!(out.status == status, "expected status {status}: {}", out.report());
    let errors = out.errors();
    let lines: Vec<&str> = errors.lines().collect();
    let [line] = lines[..] else { anyhow::bail!("not one line: {}", out.report()) };
    // `berth: what went wrong: what to do`
    ensure!(line.starts_with("berth: ") && line.matches(": ").count() >= 2, "no hint: {}", out.report());
    ensure!(!line.chars().any(char::is_control) && line.len() < 600, "{line:?}");
    ensure!(out.stdout.is_empty(), "{}", out.report());
    Ok(())
}

/// Names, ids and states.
fn what_is_there(account: &Account) -> Result<Vec<[Option<Value>; 3]>> {
    let list = json(account, "ls")?;
    let all = list.as_array().cloned().unwrap_or_default();
    Ok(all.iter().map(|one| ["name", "id", "state"].map(|key| one.get(key).cloned())).collect())
}

fn names_that_cannot_be(context: &Context) -> Result<()> {
    let long = format!("new {}", "a".repeat(41));
    try_all(
        context,
        &[
            ("new 9lives", USAGE),
            ("new -lead", USAGE),
            ("new Upper", USAGE),
            ("new under_score", USAGE),
            ("new dotted.name", USAGE),
            ("new ../../etc", USAGE),
            ("new ''", USAGE),
            ("new m\u{e4}in", USAGE),
            ("new ls", USAGE),
            ("new fork", USAGE),
            (&long, USAGE),
            ("new main", CONFLICT),
            ("rename main ls", USAGE),
            ("rename main a_b", USAGE),
            ("rename main main", CONFLICT),
            ("new a\u{7}b", USAGE),
            ("new 'a\nb'", USAGE),
            ("info \u{1b}[31m", USAGE),
        ],
    )
}

fn sizes_that_cannot_be(context: &Context) -> Result<()> {
    try_all(
        context,
        &[
            ("new x --memory 0", USAGE),
            ("new x --memory -1G", USAGE),
            ("new x --memory=-1G", USAGE),
            ("new x --memory lots", USAGE),
            ("new x --memory 1X", USAGE),
            ("new x --memory 10T", LIMIT),
            ("new x --memory 99999999999999999999G", USAGE),
            ("new x --disk 0", USAGE),
            ("new x --disk -5G", USAGE),
            ("new x --disk big", USAGE),
            ("new x --disk 10T", LIMIT),
            ("new x --cpus 0", USAGE),
            ("new x --cpus -1", USAGE),
            ("new x --cpus many", USAGE),
            ("new x --cpus 1000", LIMIT),
            ("new x --cpus 99999999999", USAGE),
            ("new x --label nothing", USAGE),
            ("new x --label =value", USAGE),
            ("new x --image none-such", NOT_FOUND),
            ("new x --image ../../../etc", USAGE),
        ],
    )
}

fn words_too_many_and_too_few(context: &Context) -> Result<()> {
    try_all(
        context,
        &[
            ("new", USAGE),
            ("new one two", USAGE),
            ("new x --memory", USAGE),
            ("new x --memory 1G --memory 2G", USAGE),
            ("new x --frobnicate", USAGE),
            ("ls extra", USAGE),
            ("info", USAGE),
            ("info main extra", USAGE),
            ("rm", USAGE),
            ("stop", USAGE),
            ("stop main extra", USAGE),
            ("restart", USAGE),
            ("rename main", USAGE),
            ("rename main one two", USAGE),
            ("key", USAGE),
            ("key frob", USAGE),
            ("key add", USAGE),
            ("key add garbage", USAGE),
            ("key add ssh-ed25519 AAAA", USAGE),
            ("key rm", USAGE),
            ("whoami me", USAGE),
            ("version 2", USAGE),
            ("help new ls", USAGE),
            ("help nothing", USAGE),
        ],
    )
}

fn machines_that_are_not_there(context: &Context) -> Result<()> {
    try_all(
        context,
        &[
            ("info nobody", NOT_FOUND),
            ("info nobody --console", NOT_FOUND),
            ("rm nobody", NOT_FOUND),
            ("rm main nobody", NOT_FOUND),
            ("stop nobody", NOT_FOUND),
            ("restart nobody", NOT_FOUND),
            ("rename nobody other", NOT_FOUND),
            ("key rm SHA256:AAAAAAAAAAAAAAAAAAAA", NOT_FOUND),
        ],
    )
}

fn lines_that_are_not_lines(context: &Context) -> Result<()> {
    try_all(
        context,
        &[
            ("new 'open", USAGE),
            ("new \"open", USAGE),
            ("'", USAGE),
            ("   ", USAGE),
            ("frobnicate main", USAGE),
            ("\u{1b}]0;title\u{7}", USAGE),
            ("NEW x", USAGE),
        ],
    )?;
    let account = context.account()?;
    // Whoever is new is told so; afterwards only the mistake is.
    account.verb("whoami")?.ok()?;
    let bytes = OsStr::from_bytes(b"new \xff\xfe");
    check(&account.client("ssh").arg("berth").arg(bytes).finish()?, USAGE)
}

fn a_megabyte_of_words(context: &Context) -> Result<()> {
    let account = context.account()?;
    let before = what_is_there(&account)?;
    let word = "x".repeat(100_000);
    let send = |count| {
        let words = std::iter::repeat_n(word.as_str(), count);
        account.client("ssh").args(["berth", "new"]).args(words).finish()
    };
    check(&send(2)?, USAGE)?;
    // SSH has no packets of more than 256 KiB: any server ends such a connection.
    let out = send(10)?;
    ensure!(out.status == 255, "{}", out.report());
    let machine = context.remote("session")?;
    let line = format!("printf %s {} | wc -c", "x".repeat(120_000));
    ensure!(machine.line(&line)? == "120000", "a long line in a machine");
    ensure!(before == what_is_there(&account)?, "something was made");
    Ok(())
}
