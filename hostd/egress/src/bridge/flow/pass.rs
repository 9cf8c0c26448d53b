//! Passing a connection through untouched.

use super::{
    Connection, outcome,
    requests::{self, Stopped},
};
use crate::{
    bridge::{
        dial,
        machine::Judged,
        rules::Rules,
        splice::{self, Traffic},
    },
    control::{Decision, Outcome, Protocol},
};
use std::{net::SocketAddrV4, sync::atomic::Ordering};
use tokio::io::AsyncWriteExt;

/// `first` is what was read of the guest's already.
pub async fn pass(connection: Connection, first: Vec<u8>, protocol: Protocol, judged: Judged) {
    let mut decision = connection.judged(protocol, &judged);
    let Connection { machine, mut stream, to, half_open } = connection;
    let judge = |rules: &Rules| machine.judge_again(rules, &judged, to);
    let mut server = match dial::dial(&machine, to, judge).await {
        Ok(server) => server,
        Err(error) => {
            decision.verdict = outcome(&error);
            decision.reason = error.to_string();
            machine.host.reporter.decided(decision);
            return dial::reset(stream);
        }
    };
    drop(half_open);
    decision.verdict = Outcome::Allowed;
    let traffic = Traffic::default();
    // Where only a name is allowed, each request has to be for one.
    let each = |rules: &Rules| protocol == Protocol::Http && machine.goes_by_name(rules, to);
    let judges_each = each(&machine.rules());
    let moved = async {
        let both = (&mut stream, &mut server);
        if judges_each {
            return requests::both(&machine, to, &first, both, &traffic).await;
        }
        let (stream, server) = both;
        server.write_all(&first).await?;
        traffic.up.fetch_add(first.len() as u64, Ordering::Relaxed);
        drop(first);
        Ok(splice::both(stream, server, &traffic, &machine.moved).await?)
    };
    let still_fine = |rules: &Rules| judge(rules).allowed && each(rules) == judges_each;
    let cut = tokio::select! {
        moved = moved => match moved {
            Ok(()) => false,
            Err(stopped) => stopped_by(stopped, &mut decision, to),
        },
        () = machine.changed_until(still_fine) => {
            let now = judge(&machine.rules());
            if !now.allowed {
                decision.verdict = Outcome::Refused;
                decision.rule = now.rule.to_string();
                decision.reason = "closed: no longer allowed".to_owned();
            }
            true
        }
    };
    if cut {
        dial::reset(stream);
        dial::reset(server);
    }
    decision.up = traffic.up.load(Ordering::Relaxed);
    decision.down = traffic.down.load(Ordering::Relaxed);
    machine.host.reporter.decided(decision);
}

/// Notes why; true if both ends have to see it.
fn stopped_by(stopped: Stopped, decision: &mut Decision, to: SocketAddrV4) -> bool {
    match stopped {
        Stopped::Broken(error) => {
            decision.reason = format!("broken off: {error}");
            return false;
        }
        Stopped::Foreign(judged) => {
            decision.rule = judged.verdict.rule.to_string();
            decision.claimed = judged.claimed().cloned();
            decision.reason = format!("a later request: {}", judged.reason(to));
        }
        Stopped::Misframed(fault) => fault.clone_into(&mut decision.reason),
    }
    decision.verdict = Outcome::Refused;
    true
}
