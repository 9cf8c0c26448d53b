//! Passing a connection through untouched.

use super::{Connection, outcome};
use crate::{
    bridge::{
        dial,
        machine::Judged,
        splice::{self, Traffic},
    },
    control::{Outcome, Protocol},
};
use std::sync::atomic::Ordering;
use tokio::io::AsyncWriteExt;

/// `first` is what was read of the guest's already.
pub async fn pass(connection: Connection, first: Vec<u8>, protocol: Protocol, judged: Judged) {
    let mut decision = connection.decision(protocol, judged.host());
    let Connection { machine, mut stream, to, half_open } = connection;
    decision.rule = judged.verdict.rule.to_string();
    let mut server = match dial::dial(&machine, judged.name.as_ref(), to).await {
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
    let moved = async {
        server.write_all(&first).await?;
        traffic.up.fetch_add(first.len() as u64, Ordering::Relaxed);
        drop(first);
        splice::both(&mut stream, &mut server, &traffic, &machine.moved).await
    };
    let still_fine = |rules: &crate::bridge::rules::Rules| machine.judge_again(rules, &judged, to).allowed;
    let cut = tokio::select! {
        moved = moved => {
            if let Err(error) = moved {
                decision.reason = format!("broken off: {error}");
            }
            false
        }
        () = machine.changed_until(still_fine) => true,
    };
    if cut {
        let now = machine.judge_again(&machine.rules(), &judged, to);
        if !now.allowed {
            decision.verdict = Outcome::Refused;
            decision.rule = now.rule.to_string();
            decision.reason = "closed: no longer allowed".to_owned();
        }
        dial::reset(stream);
        dial::reset(server);
    }
    decision.up = traffic.up.load(Ordering::Relaxed);
    decision.down = traffic.down.load(Ordering::Relaxed);
    machine.host.reporter.decided(decision);
}
