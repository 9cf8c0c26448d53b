//! Two users: neither sees, reaches, guesses or disturbs what the other has.

use crate::{
    cases,
    context::{Case, Context},
    verbs::json,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::{Account, Output, Running, Settings, eventually};
use serde_json::Value;
use std::{
    io::Write,
    net::{Ipv4Addr, TcpListener},
    thread,
    time::Duration,
};

pub const CASES: &[Case] = cases![
    Service:
        machines_are_invisible_to_others,
        names_belong_to_each_user,
        forwards_stay_in_ones_own_machine;
    OwnService:
        quotas_are_each_users_own,
        a_closed_service_knows_whom_it_was_told,
        access_that_is_taken_away_ends_what_is_open;
];

fn machines_are_invisible_to_others(context: &Context) -> Result<()> {
    let (owner, other) = (context.account()?, context.account()?);
    owner.verb("new treasure --memory 256M")?.ok()?;
    owner.at("treasure").exec("echo secret > file")?;
    let id = json(&owner, "info treasure")?.get("id").and_then(Value::as_str).context("no id")?.to_owned();
    other.verb("new main --memory 256M")?.ok()?;

    ensure!(!other.verb("ls --json")?.ok()?.text().contains("treasure"), "it is listed");
    for name in ["treasure", &id] {
        for verb in
            ["info NAME", "info NAME --console", "stop NAME", "restart NAME", "rm NAME", "rename NAME mine"]
        {
            // What is said of another's machine is what is said of none at all.
            let theirs = other.verb(&verb.replace("NAME", name))?;
            let none = other.verb(&verb.replace("NAME", &alike(name)))?;
            let plain = |out: &Output, name: &str| out.errors().replace(name, "NAME");
            ensure!(theirs.status == none.status && [2, 3].contains(&theirs.status), "{}", theirs.report());
            ensure!(
                plain(&theirs, name) == plain(&none, &alike(name)),
                "{}\n{}",
                theirs.report(),
                none.report()
            );
        }
        // A login that names another's machine is like any other word: one's own.
        let shell = other.at(name).ssh(&[]).input("hostname; cat file; exit\n")?.finish()?;
        ensure!(shell.text().contains("main") && !shell.text().contains("secret"), "{}", shell.report());
        other.at(name).run("cat file")?.expect(2)?;
        let copied = other.client("scp").arg(format!("{name}@berth:file")).arg("/dev/null").finish()?;
        ensure!(copied.status != 0, "a file of another's: {}", copied.report());
        let jumped = other.client("ssh").args(["-J", "berth", name, "cat file"]).finish()?;
        ensure!(jumped.status == 255, "a jump to another's: {}", jumped.report());
    }
    ensure!(owner.at("treasure").line("cat file; hostname")? == "secret\ntreasure", "it was disturbed");
    Ok(())
}

/// A name that nobody has, as long and as well-formed.
fn alike(name: &str) -> String {
    let last = if name.ends_with('x') { 'y' } else { 'x' };
    let mut text: String = name.chars().take(name.chars().count().saturating_sub(1)).collect();
    text.push(last);
    text
}

fn names_belong_to_each_user(context: &Context) -> Result<()> {
    let (left, right) = (context.account()?, context.account()?);
    for account in [&left, &right] {
        account.verb("new dev --memory 256M")?.ok()?;
    }
    left.at("dev").exec("echo left > whose")?;
    right.at("dev").exec("test ! -e whose && echo right > whose")?;
    let id =
        |account: &Account| -> Result<Option<Value>> { Ok(json(account, "info dev")?.get("id").cloned()) };
    ensure!(id(&left)? != id(&right)?, "one machine for two");
    right.verb("rm dev")?.ok()?;
    ensure!(left.at("dev").line("cat whose")? == "left", "the other's rm took it");
    Ok(())
}

/// What is dialled is dialled inside: not the host, not its network, not a
/// neighbour, and not the links that machines are led by.
fn forwards_stay_in_ones_own_machine(context: &Context) -> Result<()> {
    let account = context.account()?;
    account.verb("new main --memory 256M")?.ok()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"the host answered");
        }
    });
    let gateway = account.endpoint().address.port();
    let addresses = [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("10.77.0.1:{gateway}"),
        format!("10.77.0.1:{port}"),
        "10.77.0.1:22".into(),
        "169.254.77.1:22".into(),
        "169.254.77.2:7".into(),
        "10.77.0.3:7".into(),
    ];
    for address in addresses {
        // Something that never answers is as good as something that refuses.
        let reach = |login: &str| {
            let line = format!("timeout 6 ssh -W {address} {login} < /dev/null");
            account.paste(&line, context.scratch().path())
        };
        for login in ["berth", "main@berth"] {
            let out = reach(login)?;
            ensure!(out.stdout.is_empty(), "{address} by {login}: {}", out.report());
        }
    }
    Ok(())
}

fn quotas_are_each_users_own(context: &Context) -> Result<()> {
    let settings = Settings::default()
        .set("quota.machines", 3)
        .set("quota.memory", "600M")
        .set("machine.memory", "256M")
        .set("machine.disk", "2G")
        .set("quota.disk", "7G")
        .set("host.memory", "900M");
    context.with_service(&settings, |service| {
        let (first, second) = (service.account(context.scratch())?, service.account(context.scratch())?);
        let limit = |account: &Account, words: &str| -> Result<()> {
            let before = account.verb("ls")?.ok()?.text().lines().count();
            let out = account.verb(words)?.expect(6)?;
            // Where it takes a while, what is being done is told before.
            let errors = out.errors();
            let told: Vec<_> = errors.lines().filter(|line| !line.starts_with("berth: starting ")).collect();
            ensure!(
                told.len() == 1 && told.iter().all(|line| line.starts_with("berth: ")),
                "{}",
                out.report()
            );
            ensure!(account.verb("ls")?.ok()?.text().lines().count() == before, "half-made by {words}");
            Ok(())
        };
        first.verb("new one")?.ok()?;
        first.verb("new two")?.ok()?;
        limit(&first, "new three").context("memory of one user")?;
        first.verb("stop two")?.ok()?;
        limit(&first, "new three --disk 4G").context("disk of one user")?;
        first.verb("new three")?.ok()?;
        limit(&first, "new four").context("machines of one user")?;
        let start = first.at("two").run("true")?;
        ensure!(
            start.status != 0 && start.errors().contains("berth: "),
            "a start over quota: {}",
            start.report()
        );
        // All that the first user has leaves the second what is theirs, as far as the host goes.
        second.verb("new one")?.ok()?;
        limit(&second, "new two").context("memory of the host")?;
        ensure!(second.at("one").line("hostname")? == "one", "the second user's machine");
        first.verb("rm one two three")?.ok()?;
        second.verb("new two")?.ok().context("after room was made")?;
        Ok(())
    })
}

/// Nothing but the removal, or the lock, ends these sessions: they wait for ever.
fn access_that_is_taken_away_ends_what_is_open(context: &Context) -> Result<()> {
    context.with_service(&Settings::default(), |service| {
        let (owner, thief) = (service.account(context.scratch())?, service.account(context.scratch())?);
        owner.client("ssh").args(["berth", "key", "add"]).input(thief.public_key()?)?.ok()?;
        owner.verb("new main --memory 256M")?.ok()?;
        let session = |account: &Account, mark: &str| -> Result<Running> {
            let running =
                account.at("main").ssh(&[]).arg(format!("touch {mark}; exec sleep infinity")).start()?;
            eventually("the session runs", Duration::from_secs(60), || {
                Ok(owner.at("main").run(&format!("test -e {mark}"))?.status == 0)
            })?;
            Ok(running)
        };
        let (stolen, own) = (session(&thief, "stolen")?, session(&owner, "own")?);
        let keys = json(&owner, "key ls")?;
        let planted =
            keys.get(1).and_then(|key| key.get("fingerprint")).and_then(Value::as_str).context("no key")?;
        owner.verb(&format!("key rm {planted}"))?.ok()?;
        let ended = stolen.wait()?;
        ensure!(ended.status == 255, "{}", ended.report());
        let identity = json(&owner, "whoami")?;
        let user = identity.get("user").and_then(Value::as_str).context("no user")?;
        service.berth_ok(&["user", "lock", user, "--reason", "stolen laptop"])?;
        let ended = own.wait()?;
        ensure!(ended.status == 255, "{}", ended.report());
        let refused = owner.verb("ls")?.expect(4)?;
        ensure!(refused.errors().contains("your account is locked (stolen laptop)"), "{}", refused.report());
        service.berth_ok(&["user", "unlock", user])?;
        owner.verb("ls")?.ok()?;
        let audit = service.berth_ok(&["audit", "show"])?;
        for line in ["\"user lock\"", "stolen laptop", "\"kind\":\"refused\"", "\"address\":\"127.0.0.1\""] {
            ensure!(audit.text().contains(line), "no {line} in the audit log");
        }
        Ok(())
    })
}

fn a_closed_service_knows_whom_it_was_told(context: &Context) -> Result<()> {
    let settings = Settings::default().set("gateway.registration", "closed");
    context.with_service(&settings, |service| {
        let (known, unknown) = (service.account(context.scratch())?, service.account(context.scratch())?);
        let refused = unknown.verb("whoami")?.expect(255)?;
        ensure!(refused.errors().contains("denied"), "{}", refused.report());
        let key = format!("{}.pub", known.key().display());
        service.berth_ok(&["user", "add", "ada", &key])?;
        ensure!(known.verb("whoami")?.ok()?.text().contains("ada"), "not the user that was added");
        unknown.verb("whoami")?.expect(255)?;
        known.client("ssh").args(["berth", "key", "add"]).input(unknown.public_key()?)?.ok()?;
        unknown.verb("whoami")?.ok().context("a key that a user added")?;
        let users = service.berth_ok(&["user", "ls"])?;
        ensure!(users.text().contains("ada"), "{}", users.report());
        Ok(())
    })
}
