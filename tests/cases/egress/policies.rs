//! What a machine may reach, changed while it reaches it; and the record of it.

use super::curl;
use crate::{
    context::{Case, Context},
    verbs::json,
};
use anyhow::{Context as _, Result, ensure};
use berth_tests::Remote;
use std::{fs, time::Duration};

pub const CASES: &[Case] = crate::cases! {
    Service: what_people_read_of_it, rules_count_at_once, the_record_is_whole_and_tells_on_whoever_changes_it;
};

fn what_people_read_of_it(context: &Context) -> Result<()> {
    let account = context.egress()?.service.account(context.scratch())?;
    berth_tests::replay(&account, include_str!("../../transcripts/egress.txt"))
}

fn reaches(remote: &Remote, url: &str) -> Result<bool> {
    let output = curl(remote, &format!("-o /dev/null -w '%{{http_code}}' {url}"))?;
    Ok(output.status == 0 && output.line() != "403")
}

fn rules_count_at_once(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    let caged = world.machine("caged")?;
    let (here, there) = ("https://elsewhere.upstream.example/x", "http://plain.upstream.example/x");
    let egress = |words: &str| world.account.verb(&format!("egress caged {words}"))?.ok();
    ensure!(reaches(&caged, here)? && reaches(&caged, there)?, "an open machine reaches nothing");
    // A connection that is open when its host is denied is closed.
    let waits = "import socket; s = socket.create_connection(('elsewhere.upstream.example', 80), 60); \
                 print('open', flush=True); s.settimeout(300); print('end', s.recv(1))";
    let mut open = caged.ssh(&[]).arg(format!("python3 -c \"{waits}\"")).start()?;
    berth_tests::eventually("a connection", Duration::from_secs(90), || Ok(open.said()?.contains("open")))?;
    egress("deny elsewhere.upstream.example")?;
    berth_tests::eventually("the connection to be closed", Duration::from_secs(90), || {
        Ok(!open.is_running()?)
    })?;
    ensure!(!reaches(&caged, here)? && reaches(&caged, there)?, "denied, and reached");
    world.was_refused("caged", "elsewhere.upstream.example")?;
    egress("forget elsewhere.upstream.example")?;
    egress("allow elsewhere.upstream.example")?;
    egress("allowlist")?;
    ensure!(reaches(&caged, here)? && !reaches(&caged, there)?, "an allowlist that lets everything pass");
    // Another name at the address of the one that is allowed.
    for (scheme, port) in [("https", 443), ("http", 80)] {
        let at = format!("plain.upstream.example:{port}:elsewhere.upstream.example:{port}");
        let foreign = format!("-k --connect-to {at} {scheme}://plain.upstream.example/x");
        ensure!(!reaches(&caged, &foreign)?, "a name that is not allowed was reached over {scheme}");
        let words = [("verdict", "refused"), ("claimed", "plain.upstream.example")];
        world.logged("caged", &words, "elsewhere.upstream.example", Some(port))?;
    }
    egress("closed")?;
    ensure!(!reaches(&caged, here)? && !reaches(&caged, there)?, "closed, and reached");
    let info = json(&world.account, "info caged")?;
    ensure!(info.pointer("/network/egress").is_some_and(|words| words == "nothing"), "{info}");
    egress("default")?;
    // No rule opens the host: not its addresses, nor by a network that they are in.
    let own = world.upstream.address(1).to_string();
    for never in ["127.0.0.1", "0.0.0.0", "169.254.0.0/16", &own] {
        let refused = world.account.verb(&format!("egress caged allow {never}"))?;
        ensure!(refused.status == 4, "{never} was allowed: {}", refused.report());
        ensure!(refused.errors().contains("is never reached"), "{}", refused.report());
    }
    egress("allow 203.0.113.0/24")?;
    let port = world.account.endpoint().address.port();
    let heard = caged.line(&format!("timeout 60 nc -d -w 5 {own} {port} 2>/dev/null | wc -c"))?;
    ensure!(heard == "0", "the host's own gateway answered a machine");
    let words = [("verdict", "refused"), ("rule", "an address of the host")];
    world.logged("caged", &words, &own, Some(port))?;
    ensure!(!reaches(&caged, "http://loop.upstream.example/")?, "the host's loopback");
    egress("default")?;
    // By label: machines without a policy of their own.
    world.account.verb("new tagged --label team=web")?.ok()?;
    let tagged = world.account.at("tagged");
    ensure!(reaches(&tagged, here)?, "a machine of the default policy reaches nothing");
    world.account.verb("egress --label team=web closed")?.ok()?;
    ensure!(!reaches(&tagged, here)?, "closed by its label, and reached");
    world.account.verb("egress --label team=web default")?.ok()?;
    world.account.verb("rm tagged")?.ok()?;
    Ok(())
}

fn the_record_is_whole_and_tells_on_whoever_changes_it(context: &Context) -> Result<()> {
    let world = context.egress()?;
    let _turn = world.together();
    // One of its own: what "caged" may reach is changed by the case above meanwhile.
    let noted = world.machine("noted")?;
    ensure!(reaches(&noted, "https://elsewhere.upstream.example/audited")?, "not reached");
    for kind in ["verb", "machine", "egress"] {
        berth_tests::eventually(&format!("{kind} in the record"), Duration::from_secs(60), || {
            let mine = json(&world.account, "audit --machine noted --since 1h")?;
            let mut kinds = mine.as_array().into_iter().flatten().filter_map(|entry| entry.get("kind"));
            Ok(kinds.any(|found| found == kind))
        })?;
    }
    // Another user reads nothing of it.
    let stranger = world.service.account(context.scratch())?;
    let theirs = stranger.verb("audit")?.ok()?.text();
    ensure!(!theirs.contains("noted"), "{theirs}");
    world.service.berth_ok(&["audit", "verify"])?;
    // On a copy: the service goes on writing to its own.
    let copy = context.scratch().directory("audit")?;
    let audit = world.service.data().join("audit");
    let config = fs::read_to_string(world.service.config())?;
    let data = world.service.data().display().to_string();
    fs::create_dir_all(copy.join("audit"))?;
    for entry in fs::read_dir(&audit)?.flatten() {
        fs::copy(entry.path(), copy.join("audit").join(entry.file_name()))?;
    }
    let elsewhere = copy.join("config.toml");
    fs::write(&elsewhere, config.replace(&format!("\"{data}\""), &format!("\"{}\"", copy.display())))?;
    let verify = || {
        berth_tests::Run::new(berth_tests::binary("berth")?)
            .args(["audit", "verify", "--config"])
            .arg(&elsewhere)
            .finish()
    };
    ensure!(verify()?.status == 0, "a copy does not verify: {}", verify()?.report());
    let file = copy.join("audit/0000000001.jsonl");
    let text = fs::read_to_string(&file)?;
    let line = text.lines().nth(3).context("a short log")?;
    fs::write(&file, text.replacen(&format!("{line}\n"), "", 1))?;
    let found = verify()?;
    ensure!(
        found.status == 1 && found.text().contains(":4:"),
        "a missing line is not found: {}",
        found.report()
    );
    Ok(())
}
