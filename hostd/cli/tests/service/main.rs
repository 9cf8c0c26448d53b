//! `run`, `up` and `down` as processes, around daemons that only pretend.
//!
//! The supervisor needs root; without it these cases say so and pass.

// A case fails by panicking.
#![allow(clippy::unwrap_used)]

mod fake;
mod stage;

use rustix::process::Signal;
use stage::Stage;

#[test]
fn up_serves_until_down() {
    let Some(stage) = Stage::new() else { return };
    let up = stage.berth(&["up"]);
    assert!(up.status.success(), "{up:?}");
    assert!(stage::text(&up.stdout).contains(&format!("ssh -p {}", stage.port)), "{up:?}");
    assert!(stage.berth(&["status"]).status.success());

    let again = stage.berth(&["up", "--json"]);
    assert!(stage::text(&again.stdout).contains("\"already\":true"), "{again:?}");
    let second = stage.berth(&["run"]);
    assert_eq!(second.status.code(), Some(5), "{second:?}");

    let down = stage.berth(&["down"]);
    assert!(down.status.success(), "{down:?}");
    assert_eq!(stage.berth(&["status"]).status.code(), Some(7));
    let again = stage.berth(&["down"]);
    assert!(again.status.success(), "{again:?}");
    assert!(stage::text(&again.stdout).contains("was not running"), "{again:?}");
}

#[test]
fn a_daemon_that_dies_is_started_again() {
    let Some(stage) = Stage::new() else { return };
    assert!(stage.berth(&["up"]).status.success());
    for name in ["hostd", "gateway"] {
        let before = stage.pid(name).unwrap();
        stage.kill(before, Signal::KILL);
        stage.until("it is there again", || stage.pid(name).is_some_and(|pid| pid != before));
    }
    stage.until("it answers again", || stage.berth(&["status"]).status.success());
    assert!(stage.berth(&["down"]).status.success());
}

#[test]
fn the_next_takes_the_place_of_a_killed_supervisor() {
    let Some(stage) = Stage::new() else { return };
    assert!(stage.berth(&["up"]).status.success());
    let left = (stage.pid("hostd").unwrap(), stage.pid("gateway").unwrap());
    stage.kill_supervisor();

    let up = stage.berth(&["up"]);
    assert!(up.status.success(), "{up:?}");
    assert!(!stage.lives(left.0) && !stage.lives(left.1), "what was left still runs");

    // And without a next one, `down` ends what was left.
    let left = (stage.pid("hostd").unwrap(), stage.pid("gateway").unwrap());
    stage.kill_supervisor();
    let down = stage.berth(&["down"]);
    assert!(down.status.success(), "{down:?}");
    assert!(!stage.lives(left.0) && !stage.lives(left.1), "what was left still runs");
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing() {
    let Some(stage) = Stage::new() else { return };
    stage.mark(fake::BROKEN);
    let up = stage.berth(&["up"]);
    assert_eq!(up.status.code(), Some(1), "{up:?}");
    let errors = stage::text(&up.stderr);
    assert!(errors.contains(fake::REASON), "{errors}");
    assert!(errors.lines().last().unwrap().contains("berth.log"), "{errors}");
    assert!(stage.pid("hostd").is_none() && stage.supervisor().is_none());
}

/// Both daemons would be well, and every verb would answer "the host is unavailable".
#[test]
fn a_private_directory_in_the_way_is_named() {
    use std::{fs, os::unix::fs::PermissionsExt};
    let Some(stage) = Stage::new() else { return };
    let above = stage.above_run();
    fs::set_permissions(&above, fs::Permissions::from_mode(0o700)).unwrap();
    for command in ["up", "run"] {
        let output = stage.berth(&[command]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let errors = stage::text(&output.stderr);
        assert!(errors.contains(&format!("cannot enter {}", above.display())), "{errors}");
        assert!(errors.contains("nobody"), "who cannot: {errors}");
    }
    assert!(stage.pid("hostd").is_none() && stage.pid("gateway").is_none());
    fs::set_permissions(&above, fs::Permissions::from_mode(0o711)).unwrap();
    let up = stage.berth(&["up"]);
    assert!(up.status.success(), "{up:?}");
    assert!(stage.berth(&["down"]).status.success());
}

/// It listens and greets, which is not enough.
#[test]
fn a_gateway_that_does_not_reach_hostd_is_not_up() {
    let Some(stage) = Stage::new() else { return };
    stage.mark(fake::CUT_OFF);
    for command in ["up", "run"] {
        let output = stage.berth(&[command]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let errors = stage::text(&output.stderr);
        let told = format!("no login at 127.0.0.1:{} comes through", stage.port);
        assert!(errors.contains(&told) && errors.contains("the host is unavailable"), "{errors}");
        assert!(stage.pid("hostd").is_none() && stage.pid("gateway").is_none());
    }
}

#[test]
fn a_port_in_use_is_named() {
    let Some(stage) = Stage::new() else { return };
    let _taken = std::net::TcpListener::bind(("127.0.0.1", stage.port)).unwrap();
    let run = stage.berth(&["run"]);
    assert_eq!(run.status.code(), Some(5), "{run:?}");
    assert!(stage::text(&run.stderr).contains(&format!("127.0.0.1:{} is in use", stage.port)), "{run:?}");
}

#[test]
fn a_second_interrupt_cuts_the_stop_short() {
    let Some(stage) = Stage::new() else { return };
    stage.mark(fake::SLOW);
    let mut run = stage.run();
    let pid = i32::try_from(run.id()).unwrap();
    stage.until("it is up", || stage.berth(&["status"]).status.success() && stage.pid("gateway").is_some());
    let hostd = stage.pid("hostd").unwrap();
    stage.kill(pid, Signal::INT);
    stage.until("hostd was asked to stop the machines", || stage.marked(fake::ASKED));
    stage.kill(pid, Signal::INT);
    assert!(run.wait().unwrap().success());
    assert!(!stage.lives(hostd));
}
